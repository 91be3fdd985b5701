#include "data/pictures/picture.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/pictures/picture_decode.h"

static const struct dpt_picture_decoder *const decoders[] = {
    &dpt_picture_png,  &dpt_picture_jpeg,
#ifdef DPT_WITH_TIFF
    &dpt_picture_tiff,
#endif
#ifdef DPT_WITH_BMP
    &dpt_picture_bmp,  &dpt_picture_gif,
#endif
#ifdef DPT_WITH_WEBP
    &dpt_picture_webp,
#endif
};
enum { DECODERS = sizeof decoders / sizeof decoders[0] };

/* Other images, by what their files begin with: those that this build can read are found before
 * them. */
static const struct {
    const char *name, *mark;
    size_t at, n;
    const char *knob; /* of the Makefile; NULL: no build reads them */
} others[] = {
    {"a TIFF", "II*\0", 0, 4, "TIFF=1"}, {"a TIFF", "MM\0*", 0, 4, "TIFF=1"},
    {"a GIF", "GIF89a", 0, 6, "BMP=1"},  {"a GIF", "GIF87a", 0, 6, "BMP=1"},
    {"a WebP", "WEBP", 8, 4, "WEBP=1"},  {"a HEIC", "ftyphei", 4, 7, NULL},
    {"a HEIC", "ftyphev", 4, 7, NULL},   {"a HEIF", "ftypmif1", 4, 8, NULL},
    {"an AVIF", "ftypavif", 4, 8, NULL}, {"a JPEG XL", "\xFF\x0A", 0, 2, NULL},
    {"a JPEG XL", "JXL ", 4, 4, NULL},   {"a JPEG 2000", "jP  ", 4, 4, NULL},
    {"a Photoshop", "8BPS", 0, 4, NULL},
};
enum { OTHERS = sizeof others / sizeof others[0] };

static const struct dpt_picture_decoder *find(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < DECODERS; i++)
        if (decoders[i]->is(bytes, n))
            return decoders[i];
    return NULL;
}

/* The number of those that a file is one of; OTHERS: none. */
static size_t find_other(const uint8_t *bytes, size_t n)
{
    size_t i = 0;

    while (i < OTHERS && (n < others[i].at + others[i].n ||
                          memcmp(bytes + others[i].at, others[i].mark, others[i].n) != 0))
        i++;
    return i;
}

bool dpt_picture_is(const uint8_t *bytes, size_t n)
{
    return find(bytes, n) != NULL || find_other(bytes, n) < OTHERS;
}

/* Says which image it is that cannot be read, if it is one. */
static enum dpt_status refuse(const char *path, const uint8_t *bytes, size_t n,
                              struct dpt_error *err)
{
    const size_t other = find_other(bytes, n);

    if (other == OTHERS)
        return dpt_fail(err, DPT_BAD_DATA, "%s: is no " DPT_PICTURE_FORMATS " file%s", path,
                        n == 0 ? ": it is empty" : "");
    if (others[other].knob != NULL)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: is %s file, which this dptrain was built without (make %s); it "
                        "reads " DPT_PICTURE_FORMATS,
                        path, others[other].name, others[other].knob);
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: is %s file, which is not read; save it as one of " DPT_PICTURE_FORMATS,
                    path, others[other].name);
}

enum dpt_status dpt_picture_decode(struct dpt_picture *p, const char *name, const uint8_t *bytes,
                                   size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_picture_decoder *decoder = find(bytes, n);

    *p = (struct dpt_picture){0};
    if (decoder == NULL)
        DPT_TRY(refuse(name, bytes, n, err));
    DPT_TRY(decoder->decode(p, name, bytes, n, header_only, err));
out:
    if (status != DPT_OK)
        dpt_picture_release(p);
    return status;
}

enum dpt_status dpt_picture_file(const char *path, char **bytes, size_t *n, struct dpt_error *err)
{
    const enum dpt_status status =
        dpt_file_read(path, DPT_PICTURE_BYTES, DPT_BAD_DATA, bytes, n, err);
    char to[PATH_MAX];
    const ssize_t length =
        status == DPT_OK || access(path, F_OK) == 0 ? 0 : readlink(path, to, sizeof to);

    if (length <= 0)
        return status;
    return dpt_fail(err, DPT_BAD_DATA, "%s: is a link to %.*s, which is not there", path,
                    (int)length, to);
}

enum dpt_status dpt_picture_read(struct dpt_picture *p, const char *path, bool header_only,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *bytes = NULL;
    size_t n = 0;

    *p = (struct dpt_picture){0};
    DPT_TRY(dpt_picture_file(path, &bytes, &n, err));
    DPT_TRY(dpt_picture_decode(p, path, (const uint8_t *)bytes, n, header_only, err));
out:
    free(bytes);
    return status;
}

void dpt_picture_release(struct dpt_picture *p)
{
    free(p->pixels);
    *p = (struct dpt_picture){0};
}

/* A part of an image. */
struct box {
    int32_t x, y, w, h;
};

void dpt_picture_line(const struct dpt_picture *p, int32_t x, int32_t y, int32_t n, int32_t channel,
                      int32_t channels, float *line)
{
    const size_t step = (size_t)p->channels;
    const uint8_t *pixel = p->pixels + ((size_t)y * (size_t)p->width + (size_t)x) * step;

    if (p->channels == 1 || p->channels == channels)
        for (int32_t i = 0; i < n; i++)
            line[i] = pixel[(size_t)i * step + (p->channels == 1 ? 0 : (size_t)channel)];
    else /* The arithmetic is in whole numbers, rounded, as most programs have it. */
        for (int32_t i = 0; i < n; i++, pixel += step)
            line[i] =
                (float)((19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2] + 0x8000u) >> 16);
}

/* A line of numbers as bytes; not by fminf and fmaxf, which are calls. */
static void put_line(const float *line, size_t n, bool invert, uint8_t *out)
{
    for (size_t x = 0; x < n; x++) {
        const float low = line[x] > 0.0f ? line[x] : 0.0f, bounded = low < 255.0f ? low : 255.0f;
        const uint8_t byte = (uint8_t)(int)(bounded + 0.5f);

        out[x] = invert ? (uint8_t)(255 - byte) : byte;
    }
}

/* The pixels of one line that make up one pixel of another length, and their shares. */
struct taps {
    int32_t first, n;
    float *share; /* [n] */
};

/* Finds the taps of each of `to` pixels. taps: [to]; shares: room for all of them. */
static void find_taps(int32_t from, int32_t to, struct taps *taps, float *shares, int32_t most)
{
    const double scale = (double)from / to, width = scale > 1 ? scale : 1;

    for (int32_t i = 0; i < to; i++) {
        const double center = (i + 0.5) * scale;
        int32_t first = (int32_t)floor(center - width + 0.5);
        int32_t last = (int32_t)floor(center + width + 0.5);
        double sum = 0;

        first = first < 0 ? 0 : first;
        last = last > from ? from : last;
        taps[i] = (struct taps){first, last - first, shares + (size_t)i * (size_t)most};
        for (int32_t k = first; k < last; k++)
            sum += fmax(0, 1 - fabs((k + 0.5 - center) / width));
        for (int32_t k = first; k < last; k++)
            taps[i].share[k - first] = (float)(fmax(0, 1 - fabs((k + 0.5 - center) / width)) / sum);
    }
}

/* Memory for scaling: lines of the new width, and where they come from. */
struct scaler {
    struct dpt_region region;
    struct taps *across, *down;
    float *lines; /* [height of the image][new width] of one channel */
    float *line;  /* of the image, or the new one */
};

/* The pixels that each of `to` pixels is made of. NULL: memory ran out. */
static struct taps *make_taps(struct scaler *s, int32_t from, int32_t to)
{
    const int32_t most = (int32_t)(2 * ceil(from > to ? (double)from / to : 1)) + 2;
    struct taps *taps = dpt_region_alloc(&s->region, (size_t)to * sizeof *taps);
    float *shares = dpt_region_alloc(&s->region, (size_t)to * (size_t)most * sizeof *shares);

    if (taps == NULL || shares == NULL)
        return NULL;
    find_taps(from, to, taps, shares, most);
    return taps;
}

/* side * to / from, rounded, and something of it always left. */
static int32_t scaled(int32_t side, int32_t to, int32_t from)
{
    const int64_t length = ((int64_t)side * to + from / 2) / from;

    return length > 0 ? (int32_t)length : 1;
}

/* Finds the part of an image that is taken, and the part of the wanted image that it fills. */
static void find_boxes(const struct dpt_picture *p, const struct dpt_picture_format *format,
                       struct box *from, struct box *to)
{
    const bool wider = (int64_t)p->width * format->height > (int64_t)format->width * p->height;

    *from = (struct box){.w = p->width, .h = p->height};
    *to = (struct box){.w = format->width, .h = format->height};
    if (format->fit == DPT_PICTURE_CROP && wider)
        from->w = scaled(format->width, p->height, format->height);
    else if (format->fit == DPT_PICTURE_CROP)
        from->h = scaled(format->height, p->width, format->width);
    if (format->fit == DPT_PICTURE_PAD && wider)
        to->h = scaled(p->height, format->width, p->width);
    else if (format->fit == DPT_PICTURE_PAD)
        to->w = scaled(p->width, format->height, p->height);
    from->x = (p->width - from->w) / 2;
    from->y = (p->height - from->h) / 2;
    to->x = (format->width - to->w) / 2;
    to->y = (format->height - to->h) / 2;
}

/* out: where its part begins. */
static void scale_channel(const struct scaler *s, const struct dpt_picture *p,
                          const struct dpt_picture_format *format, const struct box *from,
                          const struct box *to, int32_t channel, uint8_t *out)
{
    const size_t w = (size_t)to->w;
    float *line = s->line;

    for (int32_t y = 0; y < from->h; y++) {
        dpt_picture_line(p, from->x, from->y + y, from->w, channel, format->channels, line);
        for (int32_t x = 0; x < to->w; x++) {
            const struct taps *t = &s->across[x];
            float sum = 0;

            for (int32_t k = 0; k < t->n; k++)
                sum += t->share[k] * line[t->first + k];
            s->lines[(size_t)y * w + (size_t)x] = sum;
        }
    }
    for (int32_t y = 0; y < to->h; y++) {
        const struct taps *t = &s->down[y];

        memset(line, 0, w * sizeof *line);
        for (int32_t k = 0; k < t->n; k++) {
            const float share = t->share[k], *from_line = s->lines + (size_t)(t->first + k) * w;

            for (size_t x = 0; x < w; x++)
                line[x] += share * from_line[x];
        }
        put_line(line, w, format->invert, out + (size_t)y * (size_t)format->width);
    }
}

static void copy_channel(const struct scaler *s, const struct dpt_picture *p,
                         const struct dpt_picture_format *format, const struct box *from,
                         int32_t channel, uint8_t *out)
{
    for (int32_t y = 0; y < from->h; y++) {
        dpt_picture_line(p, from->x, from->y + y, from->w, channel, format->channels, s->line);
        put_line(s->line, (size_t)from->w, format->invert, out + (size_t)y * (size_t)format->width);
    }
}

enum dpt_status dpt_picture_shape(const struct dpt_picture *p,
                                  const struct dpt_picture_format *format, uint8_t *out,
                                  struct dpt_error *err)
{
    const size_t plane = (size_t)format->height * (size_t)format->width;
    struct scaler s = {0};
    struct box from, to;
    bool good, same;
    size_t floats;

    find_boxes(p, format, &from, &to);
    same = from.w == to.w && from.h == to.h;
    floats = (size_t)from.h * (size_t)to.w;
    s.line = dpt_region_alloc(&s.region, (size_t)(from.w > to.w ? from.w : to.w) * sizeof *s.line);
    good = s.line != NULL;
    if (!same) {
        s.across = make_taps(&s, from.w, to.w);
        s.down = make_taps(&s, from.h, to.h);
        s.lines = dpt_region_alloc(&s.region, floats * sizeof *s.lines);
        good = good && s.across != NULL && s.down != NULL && s.lines != NULL;
    }
    if (to.w < format->width || to.h < format->height)
        memset(out, 0, plane * (size_t)format->channels);
    for (int32_t c = 0; good && c < format->channels; c++) {
        uint8_t *begin = out + (size_t)c * plane + (size_t)to.y * (size_t)format->width + to.x;

        if (same)
            copy_channel(&s, p, format, &from, c, begin);
        else
            scale_channel(&s, p, format, &from, &to, c, begin);
    }
    dpt_region_release(&s.region);
    return good ? DPT_OK
                : dpt_fail_memory(err, "scaling an image", (double)floats * sizeof *s.lines);
}

/*
 * PNG through libpng. The library leaves a decoding that goes wrong by longjmp, so the jump's
 * buffer and all that changes between stands in one struct that is not on the jumping function's
 * own frame.
 */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/pictures/picture_decode.h"

struct reading {
    const uint8_t *bytes;
    size_t n, at;
    png_structp png;
    png_infop info;
    png_bytep *rows;
    uint8_t *stored; /* pixels with their opacity or of 16 bits, where they are; else NULL */
    bool no_memory;
    char said[128];
};

static void fail(png_structp png, png_const_charp text)
{
    struct reading *r = png_get_error_ptr(png);

    snprintf(r->said, sizeof r->said, "%s", text);
    png_longjmp(png, 1);
}

/* What libpng can live with: a damaged time stamp, a doubtful profile. */
static void warn(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void give(png_structp png, png_bytep out, size_t n)
{
    struct reading *r = png_get_io_ptr(png);

    if (n > r->n - r->at)
        png_error(png, "the file is cut off");
    memcpy(out, r->bytes + r->at, n);
    r->at += n;
}

/* Reads up to where the size is known; false where libpng jumped out of it. */
static bool head_of(struct reading *r, uint32_t size[2], int *channels)
{
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return false;
    png_read_info(r->png, r->info);
    size[0] = png_get_image_width(r->png, r->info);
    size[1] = png_get_image_height(r->png, r->info);
    *channels = (png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
    return true;
}

/* Says what is to become of the pixels; false likewise. Samples of 16 bits stay, to be looked at,
 * in this machine's order. */
static bool form_of(struct reading *r)
{
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return false;
    png_set_expand(r->png); /* palettes, fewer than 8 bits, transparent colours */
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        png_set_swap(r->png);
    png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    return true;
}

/* Reads the pixels into r->rows; false likewise. */
static bool rows_of(struct reading *r)
{
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return false;
    png_read_image(r->png, r->rows);
    png_read_end(r->png, NULL);
    return true;
}

/* What its eXIf chunk says, which may stand anywhere; 1, upright, where there is none. */
static int orientation_of(const uint8_t *bytes, size_t n)
{
    enum { MARK = 8, HEAD = 8, SUM = 4 };

    for (size_t at = MARK; at + HEAD + SUM <= n;) {
        const size_t size = dpt_picture_number(bytes + at, 4, false);

        if (size > n - at - HEAD - SUM)
            return 1;
        if (memcmp(bytes + at + 4, "eXIf", 4) == 0)
            return dpt_picture_exif(bytes + at + HEAD, size);
        at += HEAD + size + SUM;
    }
    return 1;
}

/* Makes bytes of n samples of 16 bits, rounded. Returns the largest of a colour: of `channels` the
 * last one of an even count is the opacity. */
static uint16_t narrow(uint8_t *bytes, size_t n, size_t channels)
{
    const size_t colours = channels - (channels % 2 == 0);
    uint16_t most = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t value;

        memcpy(&value, bytes + 2 * i, sizeof value);
        bytes[i] = (uint8_t)((value + 128u) / 257);
        most = value > most && i % channels < colours ? value : most;
    }
    return most;
}

/* Reads the pixels, of which there is room. */
static enum dpt_status pixels_of(struct reading *r, const char *path, struct dpt_picture *p,
                                 struct dpt_error *err)
{
    const size_t pixels = (size_t)p->width * (size_t)p->height;
    const size_t row = png_get_rowbytes(r->png, r->info);
    const size_t channels = png_get_channels(r->png, r->info);
    const bool deep = png_get_bit_depth(r->png, r->info) == 16;

    if (deep || channels % 2 == 0)
        r->stored = malloc(row * (size_t)p->height);
    r->rows = calloc((size_t)p->height, sizeof *r->rows);
    if (r->rows == NULL || (r->stored == NULL && (deep || channels % 2 == 0)))
        return dpt_fail_memory(err, path, (double)row * p->height);
    for (size_t y = 0; y < (size_t)p->height; y++)
        r->rows[y] = (r->stored != NULL ? r->stored : p->pixels) + y * row;
    if (!rows_of(r))
        return dpt_picture_damaged(path, "PNG file", r->said, err);
    if (deep)
        p->deepest = narrow(r->stored, pixels * channels, channels);
    if (channels % 2 == 0)
        dpt_picture_flatten(r->stored, pixels, (size_t)p->channels, p->pixels);
    else if (deep)
        memcpy(p->pixels, r->stored, pixels * channels);
    return DPT_OK;
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading r = {.bytes = bytes, .n = n};
    uint32_t size[2] = {0};
    int channels = 0;

    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, fail, warn);
    r.info = r.png != NULL ? png_create_info_struct(r.png) : NULL;
    if (r.info == NULL)
        DPT_TRY(dpt_fail_memory(err, path, 0));
    png_set_read_fn(r.png, &r, give);
    /* What is too large, dpt_picture_room tells, before libpng has memory for a row. */
    png_set_user_limits(r.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    if (!head_of(&r, size, &channels))
        DPT_TRY(dpt_picture_damaged(path, "PNG file", r.said, err));
    DPT_TRY(dpt_picture_room(p, path, size[0], size[1], channels, header_only, err));
    if (!form_of(&r))
        DPT_TRY(dpt_picture_damaged(path, "PNG file", r.said, err));
    p->deepest = png_get_bit_depth(r.png, r.info) == 16 ? UINT16_MAX : 0;
    if (!header_only)
        DPT_TRY(pixels_of(&r, path, p, err));
    DPT_TRY(dpt_picture_orient(p, path, orientation_of(bytes, n), err));
out:
    png_destroy_read_struct(&r.png, &r.info, NULL);
    free(r.rows);
    free(r.stored);
    return status;
}

static bool is(const uint8_t *bytes, size_t n)
{
    return n >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0;
}

const struct dpt_picture_decoder dpt_picture_png = {is, decode};

/* --- writing ---------------------------------------------------------------------------------- */

static void add_bytes(png_structp png, png_bytep bytes, size_t n)
{
    dpt_str_add(png_get_io_ptr(png), (const char *)bytes, n);
}

static void no_flush(png_structp png)
{
    (void)png;
}

static void leave(png_structp png, png_const_charp text)
{
    (void)text;
    png_longjmp(png, 1);
}

void dpt_picture_write(struct dpt_str *out, const uint8_t *pixels, int width, int height,
                       int channels)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, leave, warn);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;

    if (info == NULL || setjmp(png_jmpbuf(png)) != 0) {
        out->failed = true;
        png_destroy_write_struct(&png, &info);
        return;
    }
    png_set_write_fn(png, out, add_bytes, no_flush);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE); /* drawings pack best as they are */
    png_set_compression_level(png, 9);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8,
                 channels == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int y = 0; y < height; y++)
        png_write_row(png, pixels + (size_t)y * (size_t)width * (size_t)channels);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
}

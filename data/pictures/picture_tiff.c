/*
 * TIFF through libtiff: the first image of a file, whatever its compression. What is not whole
 * numbers of grey, of a palette, of RGB or CMYK is as its RGBA interface makes it. Its own way with
 * errors is to print them; here the first one is kept.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "data/pictures/picture_decode.h"
#include "data/pictures/picture_tiff.h"

struct reading {
    const uint8_t *bytes;
    size_t n, at;
    TIFF *tiff;
    uint32_t *raster;
    char said[1024]; /* libtiff fills as much; empty: nothing went wrong */
};

static pthread_once_t silenced = PTHREAD_ONCE_INIT;

static void keep(thandle_t handle, const char *module, const char *format, va_list values)
{
    struct reading *r = handle;

    (void)module;
    if (r != NULL && r->said[0] == '\0')
        vsnprintf(r->said, sizeof r->said, format, values);
}

/* The library has one handler for all files; which file it is, the handle tells. */
static void silence(void)
{
    TIFFSetErrorHandler(NULL);
    TIFFSetWarningHandler(NULL);
    TIFFSetErrorHandlerExt(keep);
}

static tmsize_t take(thandle_t handle, void *to, tmsize_t n)
{
    struct reading *r = handle;
    const size_t left = r->n - r->at, got = n < 0 ? 0 : (size_t)n < left ? (size_t)n : left;

    memcpy(to, r->bytes + r->at, got);
    r->at += got;
    return (tmsize_t)got;
}

static tmsize_t put(thandle_t handle, void *from, tmsize_t n)
{
    (void)handle;
    (void)from;
    (void)n;
    return 0;
}

static toff_t seek(thandle_t handle, toff_t to, int whence)
{
    struct reading *r = handle;
    const uint64_t at = whence == SEEK_SET ? to : whence == SEEK_CUR ? r->at + to : r->n + to;

    r->at = at < r->n ? (size_t)at : r->n;
    return r->at;
}

static toff_t size(thandle_t handle)
{
    return ((struct reading *)handle)->n;
}

static int leave(thandle_t handle)
{
    (void)handle;
    return 0;
}

static enum dpt_status damaged(const struct reading *r, const char *path, struct dpt_error *err)
{
    return dpt_picture_damaged(path, "TIFF file, or of a rare kind",
                               r->said[0] != '\0' ? r->said : "no reason given", err);
}

/* Fills p->pixels, rows from the top as they are stored: what is upright is our own affair. */
static enum dpt_status rows_of(struct reading *r, const char *path, struct dpt_picture *p,
                               struct dpt_error *err)
{
    const size_t n = (size_t)p->width * (size_t)p->height;
    char said[1024] = "";
    TIFFRGBAImage image;
    int good;

    r->raster = calloc(n, sizeof *r->raster);
    if (r->raster == NULL)
        return dpt_fail_memory(err, path, (double)n * sizeof *r->raster);
    good = TIFFRGBAImageBegin(&image, r->tiff, 1, said);
    if (good) {
        image.orientation = image.req_orientation = ORIENTATION_TOPLEFT;
        good = TIFFRGBAImageGet(&image, r->raster, (uint32_t)p->width, (uint32_t)p->height);
        TIFFRGBAImageEnd(&image);
    }
    if (said[0] != '\0')
        memcpy(r->said, said, sizeof said);
    for (size_t i = 0; i < n * 3; i++)
        p->pixels[i] = (uint8_t)(r->raster[i / 3] >> 8 * (i % 3));
    return good && r->said[0] == '\0' ? DPT_OK : damaged(r, path, err);
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading r = {.bytes = bytes, .n = n};
    struct dpt_tiff_form form;
    bool own, good = true;

    pthread_once(&silenced, silence);
    r.tiff = TIFFClientOpen(path, "rm", &r, take, put, seek, leave, size, NULL, NULL);
    if (r.tiff == NULL)
        DPT_TRY(damaged(&r, path, err));
    own = dpt_tiff_form_read(&form, r.tiff);
    if (!own && !TIFFRGBAImageOK(r.tiff, r.said))
        DPT_TRY(damaged(&r, path, err));
    DPT_TRY(dpt_picture_room(p, path, form.width, form.height,
                             own && form.inks == 1 && form.palette[0] == NULL ? 1 : 3, header_only,
                             err));
    p->deepest = own && form.bits == 16 && form.palette[0] == NULL ? UINT16_MAX : 0;
    if (!header_only && own)
        DPT_TRY(dpt_tiff_pixels(&form, r.tiff, path, p, &good, err));
    if (!good || r.said[0] != '\0')
        DPT_TRY(damaged(&r, path, err));
    if (!header_only && !own)
        DPT_TRY(rows_of(&r, path, p, err));
    DPT_TRY(dpt_picture_orient(p, path, form.orientation, err));
out:
    if (r.tiff != NULL)
        TIFFClose(r.tiff);
    free(r.raster);
    return status;
}

/* Classic and big ones, of both byte orders. */
static bool is(const uint8_t *bytes, size_t n)
{
    return n >= 8 && (memcmp(bytes, "II*\0", 4) == 0 || memcmp(bytes, "MM\0*", 4) == 0 ||
                      memcmp(bytes, "II+\0", 4) == 0 || memcmp(bytes, "MM\0+", 4) == 0);
}

const struct dpt_picture_decoder dpt_picture_tiff = {is, decode};

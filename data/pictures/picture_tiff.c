/*
 * TIFF through libtiff: the first picture of a file, whatever its compression, as its RGBA
 * interface makes it. Its own way with errors is to print them; here the first one is kept.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <tiffio.h>

#include "data/pictures/picture_decode.h"

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
    return dpt_fail(err, DPT_BAD_DATA, "%s: is a damaged TIFF file, or of a rare kind (%s)", path,
                    r->said[0] != '\0' ? r->said : "no reason given");
}

/* Fills r->raster, rows from the top as they are stored: what is upright is our own affair. */
static bool rows_of(struct reading *r, const struct dpt_picture *p)
{
    TIFFRGBAImage image;
    char said[1024] = "";
    int good = TIFFRGBAImageBegin(&image, r->tiff, 1, said);

    if (good) {
        image.orientation = image.req_orientation = ORIENTATION_TOPLEFT;
        good = TIFFRGBAImageGet(&image, r->raster, (uint32_t)p->width, (uint32_t)p->height);
        TIFFRGBAImageEnd(&image);
    }
    if (said[0] != '\0')
        memcpy(r->said, said, sizeof said);
    return good && r->said[0] == '\0';
}

/* Pixels whose colours are multiplied by their opacity, shown on white. */
static void flatten(struct dpt_picture *p, const uint32_t *raster)
{
    const size_t n = (size_t)p->width * (size_t)p->height, channels = (size_t)p->channels;

    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < channels; c++) {
            const uint32_t value = (raster[i] >> 8 * c & 255) + 255 - TIFFGetA(raster[i]);

            p->pixels[i * channels + c] = (uint8_t)(value < 255 ? value : 255);
        }
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading r = {.bytes = bytes, .n = n};
    uint32_t width = 0, height = 0;
    uint16_t colours = PHOTOMETRIC_RGB, orientation = ORIENTATION_TOPLEFT;
    char said[1024] = "";

    pthread_once(&silenced, silence);
    r.tiff = TIFFClientOpen(path, "rm", &r, take, put, seek, leave, size, NULL, NULL);
    if (r.tiff == NULL)
        DPT_TRY(damaged(&r, path, err));
    TIFFGetField(r.tiff, TIFFTAG_IMAGEWIDTH, &width);
    TIFFGetField(r.tiff, TIFFTAG_IMAGELENGTH, &height);
    TIFFGetField(r.tiff, TIFFTAG_PHOTOMETRIC, &colours);
    TIFFGetField(r.tiff, TIFFTAG_ORIENTATION, &orientation);
    if (!TIFFRGBAImageOK(r.tiff, said)) {
        memcpy(r.said, said, sizeof said);
        DPT_TRY(damaged(&r, path, err));
    }
    DPT_TRY(dpt_picture_room(
        p, path, width, height,
        colours == PHOTOMETRIC_MINISBLACK || colours == PHOTOMETRIC_MINISWHITE ? 1 : 3, header_only,
        err));
    if (!header_only) {
        r.raster = calloc((size_t)width * height, sizeof *r.raster);
        if (r.raster == NULL)
            DPT_TRY(dpt_fail_memory(err, path, (double)width * height * sizeof *r.raster));
        if (!rows_of(&r, p))
            DPT_TRY(damaged(&r, path, err));
        flatten(p, r.raster);
    }
    DPT_TRY(dpt_picture_orient(p, path, orientation, err));
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

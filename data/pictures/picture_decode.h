/*
 * picture_decode: what turns the bytes of a file into pixels, one row a format. Private to
 * picture*.c.
 */
#ifndef DPT_DATA_PICTURE_DECODE_H
#define DPT_DATA_PICTURE_DECODE_H

#include <stdlib.h>

#include "data/pictures/picture.h"

struct dpt_picture_decoder {
    const char *magic; /* a file's first bytes */
    size_t length;
    /* Errors: BAD_DATA, RANK; what was allocated then is the caller's to release. */
    /* look: only how large it is. */
    enum dpt_status (*decode)(struct dpt_picture *picture, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err);
};

extern const struct dpt_picture_decoder dpt_picture_png, dpt_picture_jpeg;

/* Checks a size and, unless it is only looked at, makes room for its pixels. Errors: BAD_DATA,
 * RANK. */
static inline enum dpt_status dpt_picture_room(struct dpt_picture *p, const char *path,
                                               uint32_t width, uint32_t height, int channels,
                                               bool header_only, struct dpt_error *err)
{
    const double bytes = (double)width * height * channels;

    if (width < 1 || height < 1 || width > DPT_PICTURE_SIDE || height > DPT_PICTURE_SIDE ||
        bytes > DPT_PICTURE_BYTES)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: says that it has %u x %u pixels; at most %d a side and %d MB are taken", path,
            width, height, DPT_PICTURE_SIDE, DPT_PICTURE_BYTES / 1000000);
    p->width = (int32_t)width;
    p->height = (int32_t)height;
    p->channels = channels;
    if (header_only)
        return DPT_OK;
    p->pixels = malloc((size_t)bytes);
    return p->pixels != NULL ? DPT_OK : dpt_fail_memory(err, path, bytes);
}

#endif

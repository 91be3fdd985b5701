/*
 * picture_decode: what turns the bytes of a file into pixels, one row a format. Private to
 * picture*.c.
 */
#ifndef DPT_DATA_PICTURE_DECODE_H
#define DPT_DATA_PICTURE_DECODE_H

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
enum dpt_status dpt_picture_room(struct dpt_picture *picture, const char *path, uint32_t width,
                                 uint32_t height, int channels, bool header_only,
                                 struct dpt_error *err);

#endif

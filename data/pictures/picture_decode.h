/*
 * picture_decode: what turns the bytes of a file into pixels, one row per format. Private to
 * picture*.c.
 */
#ifndef DPT_DATA_PICTURE_DECODE_H
#define DPT_DATA_PICTURE_DECODE_H

#include <stdlib.h>

#include "data/pictures/picture.h"

struct dpt_picture_decoder {
    bool (*is)(const uint8_t *bytes, size_t n); /* by a file's first bytes */
    /* Errors: BAD_DATA, RANK; what was allocated then is the caller's to release. */
    /* header_only: only how large it is. */
    enum dpt_status (*decode)(struct dpt_picture *picture, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err);
};

extern const struct dpt_picture_decoder dpt_picture_png, dpt_picture_jpeg, dpt_picture_tiff,
    dpt_picture_bmp, dpt_picture_gif, dpt_picture_webp;

/* The orientation that EXIF data say (tag 0x0112 of EXIF 2.3, 4.6.4), with or without the mark
 * "Exif" before them; 1, upright, where there is none. */
int dpt_picture_exif(const uint8_t *exif, size_t n);
/* Turns and mirrors as an orientation of EXIF and TIFF, 1 to 8, says; where there are no pixels,
 * the size alone. Errors: RANK. */
enum dpt_status dpt_picture_orient(struct dpt_picture *p, const char *path, int orientation,
                                   struct dpt_error *err);
/* A whole number of up to 4 bytes. */
static inline uint32_t dpt_picture_number(const uint8_t *at, size_t bytes, bool little)
{
    uint32_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << 8 * (little ? i : bytes - 1 - i);
    return value;
}
/* Whether n colours of a palette, of `entry` bytes each, are nothing but greys; false: there are
 * none. */
bool dpt_picture_all_grey(const uint8_t *palette, size_t n, size_t entry);
/* Fails for a file that cannot be decoded. what: "BMP file, or of a rare kind"; why: NULL where
 * nobody says it. */
enum dpt_status dpt_picture_damaged(const char *path, const char *what, const char *why,
                                    struct dpt_error *err);
/* Pixels of `colours` channels and an opacity, shown on white. */
void dpt_picture_flatten(const uint8_t *from, size_t n, size_t colours, uint8_t *out);
/* n pixels of four inks as red, green and blue. inverted: 255 is no ink, as in JPEG. */
void dpt_picture_inks(const uint8_t *from, size_t n, bool inverted, uint8_t *out);

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
            "%s: its header has %u x %u pixels; at most %d per side and %d MB are taken", path,
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

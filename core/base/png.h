/*
 * png: small pictures as PNG files (ISO/IEC 15948), for pages and logs.
 */
#ifndef DPT_BASE_PNG_H
#define DPT_BASE_PNG_H

#include <stdint.h>

#include "core/base/str.h"

/*
 * Adds the bytes of a PNG file to out: 8 bits a sample, rows from the top. channels: 1 (grey) or 3
 * (red, green, blue), interleaved. width and height are above 0, their product below 2^26. Check
 * out->failed.
 */
void dpt_png_write(struct dpt_str *out, const uint8_t *pixels, int width, int height, int channels);

/* Adds bytes in base 64 (RFC 4648), padded. */
void dpt_base64(struct dpt_str *out, const void *bytes, size_t n);

#endif

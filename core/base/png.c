#include "core/base/png.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void put32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Length, type, bytes, checksum of type and bytes. */
static void add_chunk(struct dpt_str *out, const char type[4], const void *bytes, size_t n)
{
    uint8_t word[4];
    uLong crc = crc32(0, (const Bytef *)type, 4);

    put32(word, (uint32_t)n);
    dpt_str_add(out, (const char *)word, 4);
    dpt_str_add(out, type, 4);
    dpt_str_add(out, bytes, n);
    if (n > 0)
        crc = crc32(crc, bytes, (uInt)n);
    put32(word, (uint32_t)crc);
    dpt_str_add(out, (const char *)word, 4);
}

/* Rows behind a byte each that says "not filtered", deflated; NULL: memory ran out. */
static uint8_t *deflate_rows(const uint8_t *pixels, size_t row, int height, uLongf *n)
{
    const size_t raw = (row + 1) * (size_t)height;
    uint8_t *rows = malloc(raw), *packed = NULL;

    if (rows == NULL)
        return NULL;
    for (int y = 0; y < height; y++) {
        rows[(row + 1) * (size_t)y] = 0;
        memcpy(rows + (row + 1) * (size_t)y + 1, pixels + row * (size_t)y, row);
    }
    *n = compressBound((uLong)raw);
    packed = malloc(*n);
    if (packed != NULL && compress2(packed, n, rows, (uLong)raw, 9) != Z_OK) {
        free(packed);
        packed = NULL;
    }
    free(rows);
    return packed;
}

void dpt_png_write(struct dpt_str *out, const uint8_t *pixels, int width, int height, int channels)
{
    static const char magic[8] = {'\x89', 'P', 'N', 'G', '\r', '\n', '\x1a', '\n'};
    uint8_t head[13] = {0}; /* the last three: deflate, five filters, not interlaced */
    uLongf n = 0;
    uint8_t *packed = deflate_rows(pixels, (size_t)width * (size_t)channels, height, &n);

    if (packed == NULL) {
        out->failed = true;
        return;
    }
    put32(head, (uint32_t)width);
    put32(head + 4, (uint32_t)height);
    head[8] = 8;
    head[9] = channels == 3 ? 2 : 0;
    dpt_str_add(out, magic, sizeof magic);
    add_chunk(out, "IHDR", head, sizeof head);
    add_chunk(out, "IDAT", packed, n);
    add_chunk(out, "IEND", NULL, 0);
    free(packed);
}

void dpt_base64(struct dpt_str *out, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes;

    for (size_t i = 0; i < n; i += 3) {
        const uint32_t word = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                              (i + 2 < n ? p[i + 2] : 0);
        const char four[4] = {
            digits[word >> 18],
            digits[word >> 12 & 63],
            i + 1 < n ? digits[word >> 6 & 63] : '=',
            i + 2 < n ? digits[word & 63] : '=',
        };

        dpt_str_add(out, four, 4);
    }
}

/* What becomes of pixels that are stored otherwise: on their side, with an opacity, as inks; and
 * what the formats' decoders share. */
#include <string.h>

#include "data/pictures/picture_decode.h"

/* 5 to 8 swap the sides. */
enum dpt_status dpt_picture_orient(struct dpt_picture *p, const char *path, int orientation,
                                   struct dpt_error *err)
{
    const bool swap = orientation > 4;
    const bool flip_x =
        orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    const bool flip_y =
        orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    const int32_t w = swap ? p->height : p->width, h = swap ? p->width : p->height;
    const size_t c = (size_t)p->channels;
    uint8_t *out;

    if (orientation < 2 || orientation > 8)
        return DPT_OK;
    if (p->pixels == NULL) { /* only how large it is */
        p->width = w;
        p->height = h;
        return DPT_OK;
    }
    out = malloc((size_t)w * (size_t)h * c);
    if (out == NULL)
        return dpt_fail_memory(err, path, (double)w * h);
    for (int32_t y = 0; y < h; y++)
        for (int32_t x = 0; x < w; x++) {
            const int32_t u = flip_x ? w - 1 - x : x, v = flip_y ? h - 1 - y : y;
            const size_t from = swap ? (size_t)u * (size_t)p->width + (size_t)v
                                     : (size_t)v * (size_t)p->width + (size_t)u;

            memcpy(out + ((size_t)y * (size_t)w + (size_t)x) * c, p->pixels + from * c, c);
        }
    free(p->pixels);
    p->pixels = out;
    p->width = w;
    p->height = h;
    return DPT_OK;
}

bool dpt_picture_all_grey(const uint8_t *palette, size_t n, size_t entry)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *c = palette + i * entry;

        if (c[0] != c[1] || c[1] != c[2])
            return false;
    }
    return n > 0;
}

enum dpt_status dpt_picture_damaged(const char *path, const char *what, const char *why,
                                    struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: is a damaged %s%s%s%s", path, what,
                    why != NULL ? " (" : "", why != NULL ? why : "", why != NULL ? ")" : "");
}

int dpt_picture_exif(const uint8_t *exif, size_t n)
{
    enum { MARK = 6, ENTRY = 12, TAG = 0x0112, LONG = 4 };
    const bool marked = n >= MARK && memcmp(exif, "Exif\0\0", MARK) == 0;
    const uint8_t *tiff = marked ? exif + MARK : exif;
    const size_t size = marked ? n - MARK : n;
    bool little;
    size_t at, entries;

    if (size < 8 || (memcmp(tiff, "II", 2) != 0 && memcmp(tiff, "MM", 2) != 0))
        return 1;
    little = tiff[0] == 'I';
    at = dpt_picture_number(tiff + 4, 4, little);
    if (at > size - 2)
        return 1;
    entries = dpt_picture_number(tiff + at, 2, little);
    at += 2;
    for (size_t i = 0; i < entries && size - at >= ENTRY; i++, at += ENTRY) {
        const size_t bytes = dpt_picture_number(tiff + at + 2, 2, little) == LONG ? 4 : 2;
        const uint32_t value = dpt_picture_number(tiff + at + 8, bytes, little);

        if (dpt_picture_number(tiff + at, 2, little) == TAG)
            return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

void dpt_picture_flatten(const uint8_t *from, size_t n, size_t colours, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned alpha = from[i * (colours + 1) + colours];

        for (size_t c = 0; c < colours; c++)
            out[i * colours + c] =
                (uint8_t)((from[i * (colours + 1) + c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
}

/* The product of two shares of 255, rounded. */
static unsigned part(unsigned a, unsigned b)
{
    const unsigned product = a * b + 128;

    return ((product >> 8) + product) >> 8;
}

/* As Pillow has it: each ink takes its part of what black leaves. */
void dpt_picture_inks(const uint8_t *from, size_t n, bool inverted, uint8_t *out)
{
    const uint8_t flip = inverted ? 255 : 0;

    for (size_t i = 0; i < n; i++, from += 4)
        for (size_t c = 0; c < 3; c++) {
            const unsigned left = 255u - (from[3] ^ flip);

            out[i * 3 + c] = (uint8_t)(left - part(from[c] ^ flip, left));
        }
}

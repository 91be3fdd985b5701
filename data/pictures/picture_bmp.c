/*
 * BMP: rows of 1 to 32 bits per pixel, plain or run-length encoded, palettes and masks (Microsoft,
 * "Bitmap Storage"; OS/2's have the same rows). Without masks a fourth byte says nothing, as most
 * programs have it.
 */
#include <string.h>

#include "data/pictures/picture_decode.h"

enum { FILE_HEADER = 14, OLD_HEADER = 12, WITH_OPACITY = 56 };
enum { PLAIN, RLE8, RLE4, MASKS };
static const char what[] = "BMP file, or of a rare kind", cut_off[] = "the file is cut off";

static uint32_t number(const uint8_t *at, size_t bytes)
{
    return dpt_picture_number(at, bytes, true);
}

/* The size of the second header is one of those that there are: else a text may begin so. */
static bool is(const uint8_t *bytes, size_t n)
{
    static const uint32_t sizes[] = {OLD_HEADER, 40, 52, WITH_OPACITY, 64, 108, 124};
    bool known = false;

    for (size_t i = 0; n >= 16 && i < sizeof sizes / sizeof sizes[0]; i++)
        known = known || (number(bytes + FILE_HEADER, 2) == sizes[i]);
    return known && memcmp(bytes, "BM", 2) == 0;
}

/* What the two headers say. */
struct header {
    uint32_t pixels, header, width, height, bits, packing;
    bool from_top;
    uint32_t masks[4]; /* of more than 8 bits: red, green, blue; and opacity, or 0 */
    const uint8_t *palette;
    size_t colours, entry; /* of the palette; bytes of one */
};

/* False: the file ends before. */
static bool read_palette(struct header *h, const uint8_t *bytes, size_t n, uint32_t colours)
{
    const size_t at = (size_t)FILE_HEADER + h->header, all = (size_t)1 << h->bits;

    h->entry = h->header == OLD_HEADER ? 3 : 4;
    h->colours = colours > 0 && colours < all ? colours : all;
    /* Short palettes of old files whose header does not say so. */
    if (h->pixels > at && (h->pixels - at) / h->entry < h->colours)
        h->colours = (h->pixels - at) / h->entry;
    h->palette = bytes + at;
    return at + h->colours * h->entry <= n;
}

static bool read_header(struct header *h, const uint8_t *bytes, size_t n)
{
    static const uint32_t usual[2][4] = {{0x7C00, 0x3E0, 0x1F, 0}, {0xFF0000, 0xFF00, 0xFF, 0}};
    const uint8_t *at = bytes + FILE_HEADER;
    const bool old = n >= FILE_HEADER + OLD_HEADER && number(at, 4) == OLD_HEADER;
    int32_t height;

    if (n < FILE_HEADER + OLD_HEADER || (!old && n < FILE_HEADER + 40))
        return false;
    h->pixels = number(bytes + 10, 4);
    h->header = number(at, 4);
    h->width = old ? number(at + 4, 2) : number(at + 4, 4);
    height = old ? (int32_t)number(at + 6, 2) : (int32_t)number(at + 8, 4);
    h->from_top = height < 0;
    h->height = height < 0 ? 0U - (uint32_t)height : (uint32_t)height;
    h->bits = number(at + (old ? 10 : 14), 2);
    h->packing = old ? PLAIN : number(at + 16, 4);
    if (h->bits <= 8)
        return read_palette(h, bytes, n, old ? 0 : number(at + 32, 4));
    memcpy(h->masks, usual[h->bits > 16], sizeof h->masks);
    if (h->packing != MASKS)
        return true;
    if (n < FILE_HEADER + WITH_OPACITY)
        return false;
    for (size_t c = 0; c < (h->header < WITH_OPACITY ? 3 : 4); c++)
        h->masks[c] = number(at + 40 + 4 * c, 4);
    return true;
}

/* Why its pixels cannot be read; NULL: they can. */
static const char *find_fault(const struct header *h, size_t n)
{
    const uint64_t row = ((uint64_t)h->width * h->bits + 31) / 32 * 4;
    const bool low = h->bits == 1 || h->bits == 4 || h->bits == 8;
    const bool high = h->bits == 16 || h->bits == 24 || h->bits == 32;

    if (!low && !high)
        return "bits of a pixel";
    if (h->packing == PLAIN || (h->packing == MASKS && high))
        return h->pixels + row * h->height <= n ? NULL : cut_off;
    if ((h->packing == RLE8 && h->bits == 8) || (h->packing == RLE4 && h->bits == 4))
        return h->pixels < n ? NULL : cut_off;
    return "compression";
}

/* Unpacks runs into numbers of colours, a byte per pixel, rows as in the file; those passed over
 * are 0. False: the file ends before. */
static bool unpack(const struct header *h, const uint8_t *at, const uint8_t *end, uint8_t *out)
{
    const unsigned bits = h->bits;
    uint32_t x = 0, y = 0;

    while (y < h->height) {
        uint32_t count, code, bytes;
        bool run;

        if (end - at < 2)
            return false;
        count = at[0];
        code = at[1];
        run = count > 0;
        at += run ? 1 : 2;
        if (!run && code == 1) /* end of the image */
            return true;
        if (!run && code == 0) { /* of the row */
            x = 0;
            y++;
            continue;
        }
        count = run ? count : code == 2 ? 0 : code;
        bytes = run ? 1 : code == 2 ? 2 : (count * bits + 15) / 16 * 2;
        if ((size_t)(end - at) < bytes)
            return false;
        for (uint32_t i = 0; i < count; i++, x++) {
            const uint32_t bit = (run ? i * bits % 8 : i * bits);

            if (x < h->width)
                out[(size_t)y * h->width + x] =
                    (uint8_t)(at[bit / 8] >> (8 - bits - bit % 8) & ((1u << bits) - 1));
        }
        if (!run && code == 2) { /* further right and up */
            x += at[0];
            y += at[1];
        }
        at += bytes;
    }
    return true;
}

/* What a mask takes of a pixel, in 8 bits: fewer are repeated. */
static uint8_t masked(uint32_t pixel, uint32_t mask)
{
    const int n = __builtin_popcount(mask);
    uint32_t value;

    if (mask == 0)
        return 0;
    value = (pixel & mask) >> __builtin_ctz(mask);
    value = n > 8 ? value >> (n - 8) : value << (8 - n);
    for (int bits = n; bits < 8; bits *= 2)
        value |= value >> bits;
    return (uint8_t)value;
}

/* One pixel of a row: red, green, blue, opacity. */
static void pixel_at(const struct header *h, const uint8_t *row, size_t x, uint8_t out[4])
{
    const size_t bit = x * h->bits;

    if (h->bits <= 8) {
        const size_t index = row[bit / 8] >> (8 - h->bits - bit % 8) & ((1u << h->bits) - 1);
        const uint8_t *c = h->palette + index * h->entry;

        for (int i = 0; i < 3; i++)
            out[i] = index < h->colours ? c[2 - i] : 0;
    } else {
        for (int i = 0; i < 4; i++)
            out[i] = masked(number(row + bit / 8, h->bits / 8), h->masks[i]);
    }
}

static void take_rows(const struct header *h, const uint8_t *rows, size_t row,
                      struct dpt_picture *p)
{
    const size_t channels = (size_t)p->channels;
    uint8_t *out = p->pixels, pixel[4];

    for (size_t y = 0; y < h->height; y++)
        for (size_t x = 0; x < h->width; x++, out += channels) {
            pixel_at(h, rows + (h->from_top ? y : h->height - 1 - y) * row, x, pixel);
            if (h->masks[3] != 0)
                dpt_picture_flatten(pixel, 1, 3, out);
            else
                memcpy(out, pixel, channels);
        }
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct header h = {0};
    uint8_t *unpacked = NULL;
    const char *fault;
    bool grey;

    if (!read_header(&h, bytes, n))
        DPT_TRY(dpt_picture_damaged(path, what, cut_off, err));
    grey = dpt_picture_all_grey(h.palette, h.colours, h.entry);
    DPT_TRY(dpt_picture_room(p, path, h.width, h.height, grey ? 1 : 3, true, err));
    fault = find_fault(&h, n);
    if (fault != NULL)
        DPT_TRY(dpt_picture_damaged(path, what, fault, err));
    if (header_only)
        goto out;
    DPT_TRY(dpt_picture_room(p, path, h.width, h.height, p->channels, false, err));
    if (h.packing == RLE8 || h.packing == RLE4) {
        unpacked = calloc(h.height, h.width);
        if (unpacked == NULL)
            DPT_TRY(dpt_fail_memory(err, path, (double)h.height * h.width));
        if (!unpack(&h, bytes + h.pixels, bytes + n, unpacked))
            DPT_TRY(dpt_picture_damaged(path, what, cut_off, err));
        h.bits = 8;
        take_rows(&h, unpacked, h.width, p);
    } else {
        take_rows(&h, bytes + h.pixels, ((size_t)h.width * h.bits + 31) / 32 * 4, p);
    }
out:
    free(unpacked);
    return status;
}

const struct dpt_picture_decoder dpt_picture_bmp = {is, decode};

/*
 * BMP through stb_image, which does not notice where a file ends, so that its size is looked at
 * here; nor that a palette has nothing but greys, as all grey BMP files have. The library itself is
 * compiled here, for GIF (picture_gif.c) too.
 */
#include <string.h>

#include "data/pictures/picture_decode.h"

#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_BMP
#define STBI_ONLY_GIF
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_MAX_DIMENSIONS (1 << 15)
#include <stb/stb_image.h>

enum { FILE_HEADER = 14, OLD_HEADER = 12 };

static uint32_t number(const uint8_t *at, int bytes)
{
    uint32_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << 8 * i;
    return value;
}

/* The size of the second header is one of those that there are: else a text may begin so. */
static bool is(const uint8_t *bytes, size_t n)
{
    static const uint32_t sizes[] = {OLD_HEADER, 40, 52, 56, 64, 108, 124};
    bool known = false;

    for (size_t i = 0; n >= 16 && i < sizeof sizes / sizeof sizes[0]; i++)
        known = known || (number(bytes + FILE_HEADER, 2) == sizes[i]);
    return known && memcmp(bytes, "BM", 2) == 0;
}

/* What the two headers say. */
struct header {
    uint32_t pixels, header, width, height, bits, colours;
    bool packed;
};

static bool read_header(struct header *h, const uint8_t *bytes, size_t n)
{
    const uint8_t *at = bytes + FILE_HEADER;
    int32_t height;

    if (n < FILE_HEADER + OLD_HEADER)
        return false;
    h->pixels = number(bytes + 10, 4);
    h->header = number(at, 4);
    if (h->header == OLD_HEADER) {
        h->width = number(at + 4, 2);
        h->height = number(at + 6, 2);
        h->bits = number(at + 10, 2);
        return true;
    }
    if (n < FILE_HEADER + 40)
        return false;
    height = (int32_t)number(at + 8, 4);
    h->width = number(at + 4, 4);
    h->height = height < 0 ? 0U - (uint32_t)height : (uint32_t)height; /* rows from the top */
    h->bits = number(at + 14, 2);
    h->packed = number(at + 16, 4) == 1 || number(at + 16, 4) == 2;
    h->colours = number(at + 32, 4);
    return true;
}

/* Whether all pixels are there, each row filled up to whole words. */
static bool is_whole(const struct header *h, size_t n)
{
    const uint64_t row = ((uint64_t)h->width * h->bits + 31) / 32 * 4;

    return h->packed || (uint64_t)h->pixels + row * h->height <= n;
}

static bool is_grey(const struct header *h, const uint8_t *bytes, size_t n)
{
    const size_t entry = h->header == OLD_HEADER ? 3 : 4, at = FILE_HEADER + h->header;
    const size_t all = h->bits <= 8 ? (size_t)1 << h->bits : 0;
    const size_t colours = h->colours > 0 && h->colours < all ? h->colours : all;

    if (colours == 0 || at + colours * entry > n)
        return false;
    for (const uint8_t *c = bytes + at; c < bytes + at + colours * entry; c += entry)
        if (c[0] != c[1] || c[1] != c[2])
            return false;
    return true;
}

static enum dpt_status damaged(const char *path, const char *why, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: is a damaged BMP file, or of a rare kind (%s)", path,
                    why);
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct header h = {0};
    stbi_uc *pixels = NULL;
    int width = 0, height = 0, stored = 0, channels;
    size_t count;

    if (!read_header(&h, bytes, n))
        DPT_TRY(damaged(path, "the file is cut off", err));
    DPT_TRY(dpt_picture_room(p, path, h.width, h.height, is_grey(&h, bytes, n) ? 1 : 3, true, err));
    if (!is_whole(&h, n))
        DPT_TRY(damaged(path, "the file is cut off", err));
    if (!stbi_info_from_memory(bytes, (int)n, &width, &height, &stored))
        DPT_TRY(damaged(path, stbi_failure_reason(), err));
    if (header_only)
        goto out;
    channels = stored == 4 ? 4 : p->channels;
    pixels = stbi_load_from_memory(bytes, (int)n, &width, &height, &stored, channels);
    if (pixels == NULL || width != p->width || height != p->height)
        DPT_TRY(damaged(path, pixels == NULL ? stbi_failure_reason() : "two sizes", err));
    DPT_TRY(dpt_picture_room(p, path, h.width, h.height, p->channels, false, err));
    count = (size_t)width * (size_t)height;
    if (channels == 4)
        dpt_picture_flatten(pixels, count, (size_t)p->channels, p->pixels);
    else
        memcpy(p->pixels, pixels, count * (size_t)channels);
out:
    stbi_image_free(pixels);
    return status;
}

const struct dpt_picture_decoder dpt_picture_bmp = {is, decode};

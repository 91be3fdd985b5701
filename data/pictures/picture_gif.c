/*
 * GIF through stb_image: the first picture of a file. The library neither notices where a file ends
 * nor that a palette has nothing but greys, so that the blocks up to the end of that picture are
 * walked here (GIF89a specification, W3C 1990).
 */
#include <string.h>

#include "data/pictures/picture_decode.h"

#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_GIF
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_MAX_DIMENSIONS (1 << 15)
#include <stb/stb_image.h>

enum { HEADER = 13, DESCRIPTOR = 10, EXTENSION = 0x21, IMAGE = 0x2C };

static bool is(const uint8_t *bytes, size_t n)
{
    return n >= 6 && (memcmp(bytes, "GIF87a", 6) == 0 || memcmp(bytes, "GIF89a", 6) == 0);
}

static uint32_t number(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

/* Bytes of the palette that a field of flags says there is. */
static size_t palette_size(uint8_t flags)
{
    return (flags & 0x80) != 0 ? (size_t)3 << ((flags & 7) + 1) : 0;
}

/* Moves behind blocks that end with an empty one; false: the file ends before. */
static bool skip_blocks(const uint8_t *bytes, size_t n, size_t *at)
{
    while (*at < n && bytes[*at] != 0)
        *at += (size_t)bytes[*at] + 1;
    return (*at)++ < n;
}

/* Finds the first picture, all of whose bytes must be there, and its palette. */
static bool find_picture(const uint8_t *bytes, size_t n, const uint8_t **palette, size_t *size)
{
    size_t at = HEADER;

    if (n < HEADER)
        return false;
    *size = palette_size(bytes[10]);
    *palette = bytes + at;
    at += *size;
    while (at + 2 <= n && bytes[at] == EXTENSION) {
        at += 2;
        if (!skip_blocks(bytes, n, &at))
            return false;
    }
    if (at + DESCRIPTOR > n || bytes[at] != IMAGE)
        return false;
    at += DESCRIPTOR;
    if (palette_size(bytes[at - 1]) > 0) { /* one of its own */
        *size = palette_size(bytes[at - 1]);
        *palette = bytes + at;
        at += *size;
    }
    at++; /* the length of the codes */
    return skip_blocks(bytes, n, &at);
}

static bool is_grey(const uint8_t *palette, size_t size)
{
    for (const uint8_t *c = palette; c < palette + size; c += 3)
        if (c[0] != c[1] || c[1] != c[2])
            return false;
    return size > 0;
}

static enum dpt_status damaged(const char *path, const char *why, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: is a damaged GIF file, or of a rare kind (%s)", path,
                    why);
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const uint8_t *palette = NULL;
    stbi_uc *pixels = NULL;
    int width = 0, height = 0, stored = 0;
    size_t size = 0, count;

    if (!find_picture(bytes, n, &palette, &size))
        DPT_TRY(damaged(path, "the file is cut off, or holds no picture", err));
    DPT_TRY(dpt_picture_room(p, path, number(bytes + 6), number(bytes + 8),
                             is_grey(palette, size) ? 1 : 3, true, err));
    if (header_only)
        return DPT_OK;
    pixels = stbi_load_from_memory(bytes, (int)n, &width, &height, &stored, p->channels + 1);
    if (pixels == NULL || width != p->width || height != p->height)
        DPT_TRY(damaged(path, pixels == NULL ? stbi_failure_reason() : "two sizes", err));
    count = (size_t)width * (size_t)height;
    DPT_TRY(dpt_picture_room(p, path, (uint32_t)width, (uint32_t)height, p->channels, false, err));
    dpt_picture_flatten(pixels, count, (size_t)p->channels, p->pixels);
out:
    stbi_image_free(pixels);
    return status;
}

const struct dpt_picture_decoder dpt_picture_gif = {is, decode};

/*
 * GIF through stb_image: the first image of a file. The library neither notices where a file ends
 * nor that a palette has nothing but greys, so that the blocks up to the end of that image are
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

enum { HEADER = 13, DESCRIPTOR = 10, EXTENSION = 0x21, CONTROL = 0xF9, IMAGE = 0x2C };
static const char what[] = "GIF file, or of a rare kind";

/* The first image of a file, which may fill only a part of it. */
struct first {
    const uint8_t *palette;
    size_t size; /* bytes of the palette */
    uint32_t x, y, width, height;
    bool transparent; /* one of its colours is */
};

static bool is(const uint8_t *bytes, size_t n)
{
    return n >= 6 && (memcmp(bytes, "GIF87a", 6) == 0 || memcmp(bytes, "GIF89a", 6) == 0);
}

static uint32_t number(const uint8_t *at)
{
    return dpt_picture_number(at, 2, true);
}

/* The bytes of the palette that a field of flags announces. */
static size_t palette_size(uint8_t flags)
{
    return (flags & 0x80) != 0 ? (size_t)3 << ((flags & 7) + 1) : 0;
}

/* Skips blocks up to an empty one; false: the file ends before. */
static bool skip_blocks(const uint8_t *bytes, size_t n, size_t *at)
{
    while (*at < n && bytes[*at] != 0)
        *at += (size_t)bytes[*at] + 1;
    return (*at)++ < n;
}

/* Finds the first image, all of whose bytes must be there. */
static bool find_picture(struct first *f, const uint8_t *bytes, size_t n)
{
    size_t at = HEADER;

    if (n < HEADER)
        return false;
    f->size = palette_size(bytes[10]);
    f->palette = bytes + at;
    at += f->size;
    while (at + 2 <= n && bytes[at] == EXTENSION) {
        if (bytes[at + 1] == CONTROL && at + 4 <= n)
            f->transparent = (bytes[at + 3] & 1) != 0;
        at += 2;
        if (!skip_blocks(bytes, n, &at))
            return false;
    }
    if (at + DESCRIPTOR > n || bytes[at] != IMAGE)
        return false;
    f->x = number(bytes + at + 1);
    f->y = number(bytes + at + 3);
    f->width = number(bytes + at + 5);
    f->height = number(bytes + at + 7);
    at += DESCRIPTOR;
    if (palette_size(bytes[at - 1]) > 0) { /* one of its own */
        f->size = palette_size(bytes[at - 1]);
        f->palette = bytes + at;
        at += f->size;
    }
    at++; /* the length of the codes */
    return skip_blocks(bytes, n, &at);
}

/* What the image leaves of the whole is of its first colour, or transparent where it has such a
 * colour, as Pillow has it. */
static void fill_around(const struct first *f, const struct dpt_picture *p, uint8_t *pixel)
{
    const size_t colours = (size_t)p->channels;

    for (uint32_t y = 0; y < (uint32_t)p->height; y++)
        for (uint32_t x = 0; x < (uint32_t)p->width; x++, pixel += colours + 1) {
            if (x >= f->x && x - f->x < f->width && y >= f->y && y - f->y < f->height)
                continue;
            memcpy(pixel, f->palette, f->size > 0 ? colours : 0);
            pixel[colours] = f->transparent || f->size == 0 ? 0 : 255;
        }
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct first first = {0};
    stbi_uc *pixels = NULL;
    int width = 0, height = 0, stored = 0;
    size_t count;
    bool grey;

    if (!find_picture(&first, bytes, n))
        DPT_TRY(dpt_picture_damaged(path, what, "the file is cut off, or holds no image", err));
    grey = dpt_picture_all_grey(first.palette, first.size / 3, 3);
    DPT_TRY(
        dpt_picture_room(p, path, number(bytes + 6), number(bytes + 8), grey ? 1 : 3, true, err));
    if (header_only)
        return DPT_OK;
    pixels = stbi_load_from_memory(bytes, (int)n, &width, &height, &stored, p->channels + 1);
    if (pixels == NULL || width != p->width || height != p->height)
        DPT_TRY(dpt_picture_damaged(path, what,
                                    pixels == NULL ? stbi_failure_reason() : "two sizes", err));
    fill_around(&first, p, pixels);
    count = (size_t)width * (size_t)height;
    DPT_TRY(dpt_picture_room(p, path, (uint32_t)width, (uint32_t)height, p->channels, false, err));
    dpt_picture_flatten(pixels, count, (size_t)p->channels, p->pixels);
out:
    stbi_image_free(pixels);
    return status;
}

const struct dpt_picture_decoder dpt_picture_gif = {is, decode};

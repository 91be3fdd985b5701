/*
 * PNG through libpng. The library leaves a decoding that goes wrong by longjmp, so the jump's
 * buffer and all that changes between stands in one struct that is not on the jumping function's
 * own frame.
 */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/pictures/picture_decode.h"

struct reading {
    const uint8_t *bytes;
    size_t n, at;
    png_structp png;
    png_infop info;
    png_bytep *rows;
    uint8_t *with_alpha; /* pixels with their opacity, where there is any */
    bool no_memory;
    char said[128];
};

static void fail(png_structp png, png_const_charp text)
{
    struct reading *r = png_get_error_ptr(png);

    snprintf(r->said, sizeof r->said, "%s", text);
    png_longjmp(png, 1);
}

/* What libpng can live with: a damaged time stamp, a doubtful profile. */
static void warn(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void give(png_structp png, png_bytep out, size_t n)
{
    struct reading *r = png_get_io_ptr(png);

    if (n > r->n - r->at)
        png_error(png, "the file is cut off");
    memcpy(out, r->bytes + r->at, n);
    r->at += n;
}

/* Reads up to where the size is known, and says what is to become of the pixels. False where libpng
 * jumped out of it. */
static bool head_of(struct reading *r, uint32_t size[2], int *channels)
{
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return false;
    png_read_info(r->png, r->info);
    png_set_expand(r->png); /* palettes, fewer than 8 bits, transparent colours */
    png_set_scale_16(r->png);
    png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    size[0] = png_get_image_width(r->png, r->info);
    size[1] = png_get_image_height(r->png, r->info);
    *channels = png_get_channels(r->png, r->info);
    return true;
}

/* Reads the pixels into r->rows; false likewise. */
static bool rows_of(struct reading *r)
{
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return false;
    png_read_image(r->png, r->rows);
    png_read_end(r->png, NULL);
    return true;
}

static enum dpt_status damaged(const struct reading *r, const char *path, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: is a damaged PNG file (%s)", path, r->said);
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading r = {.bytes = bytes, .n = n};
    uint32_t size[2] = {0};
    int channels = 0;
    size_t pixels;

    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, fail, warn);
    r.info = r.png != NULL ? png_create_info_struct(r.png) : NULL;
    if (r.info == NULL)
        DPT_TRY(dpt_fail_memory(err, path, 0));
    png_set_read_fn(r.png, &r, give);
    png_set_user_limits(r.png, DPT_PICTURE_SIDE, DPT_PICTURE_SIDE);
    if (!head_of(&r, size, &channels))
        DPT_TRY(damaged(&r, path, err));
    DPT_TRY(dpt_picture_room(p, path, size[0], size[1], channels > 2 ? 3 : 1, header_only, err));
    if (header_only)
        goto out;
    pixels = (size_t)size[0] * size[1];
    r.rows = calloc(size[1], sizeof *r.rows);
    r.with_alpha = channels % 2 == 0 ? malloc(pixels * (size_t)channels) : NULL;
    if (r.rows == NULL || (channels % 2 == 0 && r.with_alpha == NULL))
        DPT_TRY(dpt_fail_memory(err, path, (double)pixels * channels));
    for (uint32_t y = 0; y < size[1]; y++)
        r.rows[y] =
            (r.with_alpha != NULL ? r.with_alpha : p->pixels) + y * png_get_rowbytes(r.png, r.info);
    if (!rows_of(&r))
        DPT_TRY(damaged(&r, path, err));
    if (r.with_alpha != NULL)
        dpt_picture_flatten(r.with_alpha, pixels, (size_t)p->channels, p->pixels);
out:
    png_destroy_read_struct(&r.png, &r.info, NULL);
    free(r.rows);
    free(r.with_alpha);
    return status;
}

static bool is(const uint8_t *bytes, size_t n)
{
    return n >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0;
}

const struct dpt_picture_decoder dpt_picture_png = {is, decode};

/* --- writing ---------------------------------------------------------------------------------- */

static void add_bytes(png_structp png, png_bytep bytes, size_t n)
{
    dpt_str_add(png_get_io_ptr(png), (const char *)bytes, n);
}

static void no_flush(png_structp png)
{
    (void)png;
}

static void leave(png_structp png, png_const_charp text)
{
    (void)text;
    png_longjmp(png, 1);
}

void dpt_picture_write(struct dpt_str *out, const uint8_t *pixels, int width, int height,
                       int channels)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, leave, warn);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;

    if (info == NULL || setjmp(png_jmpbuf(png)) != 0) {
        out->failed = true;
        png_destroy_write_struct(&png, &info);
        return;
    }
    png_set_write_fn(png, out, add_bytes, no_flush);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE); /* drawings pack best as they are */
    png_set_compression_level(png, 9);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8,
                 channels == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int y = 0; y < height; y++)
        png_write_row(png, pixels + (size_t)y * (size_t)width * (size_t)channels);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
}

/*
 * picture: PNG, JPEG, TIFF, BMP, GIF and WebP files as bytes.
 *
 * Decoded by libpng, libjpeg, and where the build has them libtiff, stb_image (GIF) and libwebp: 8
 * bits per channel, grey or RGB. 16 bits are cut to 8, palettes and fewer bits widened, transparent
 * pixels blended with white, inks (CMYK) made RGB as Pillow does, embedded colour profiles and
 * gamma ignored. PNG, JPEG, TIFF and WebP are rotated as their orientation says; of several
 * images in a TIFF or GIF the first one counts. An image of another kind, or of one that this
 * build leaves out, is refused by its name. They are untrusted input: what the libraries report is
 * an error with the file's name, and a size is used only once the memory for it is allocated.
 */
#ifndef DPT_DATA_PICTURE_H
#define DPT_DATA_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/str.h"

/* The formats of this build, and the ends of their files' names. */
#ifdef DPT_WITH_TIFF
#define DPT_PICTURE_TIFF      ", TIFF"
#define DPT_PICTURE_TIFF_ENDS ", .tif, .tiff"
#else
#define DPT_PICTURE_TIFF
#define DPT_PICTURE_TIFF_ENDS
#endif
#ifdef DPT_WITH_BMP
#define DPT_PICTURE_BMP      ", BMP, GIF"
#define DPT_PICTURE_BMP_ENDS ", .bmp, .gif"
#else
#define DPT_PICTURE_BMP
#define DPT_PICTURE_BMP_ENDS
#endif
#ifdef DPT_WITH_WEBP
#define DPT_PICTURE_WEBP      ", WebP"
#define DPT_PICTURE_WEBP_ENDS ", .webp"
#else
#define DPT_PICTURE_WEBP
#define DPT_PICTURE_WEBP_ENDS
#endif
#define DPT_PICTURE_FORMATS "PNG, JPEG" DPT_PICTURE_TIFF DPT_PICTURE_BMP DPT_PICTURE_WEBP
#define DPT_PICTURE_ENDS                                                                           \
    ".png, .jpg, .jpeg, .jpe, .jfif" DPT_PICTURE_TIFF_ENDS DPT_PICTURE_BMP_ENDS                    \
        DPT_PICTURE_WEBP_ENDS
/* The ends of all images' names, so that one which cannot be read is told and not left out. */
#define DPT_PICTURE_ALL_ENDS                                                                       \
    ".png, .jpg, .jpeg, .jpe, .jfif, .tif, .tiff, .bmp, .gif, .webp, .heic, .heif, .avif, .jxl"

/* Pixels of a side, and bytes of a decoded image, at most. */
enum { DPT_PICTURE_SIDE = 1 << 15, DPT_PICTURE_BYTES = 1 << 29 };

/* Zero-initialise; release. */
struct dpt_picture {
    int32_t width, height, channels; /* 1: grey, 3: red, green, blue */
    uint8_t *pixels;                 /* [height][width][channels] */
    /* The largest 16-bit value of a colour; 65535 if only the header was read; 0: fewer bits. */
    uint16_t deepest;
};

/* Whether a file's first bytes are those of an image, also of one that is refused; by its content,
 * not its name. */
bool dpt_picture_is(const uint8_t *bytes, size_t n);

/* A file's bytes, which the caller frees. Errors: BAD_DATA (also of a link that leads nowhere),
 * RANK. */
enum dpt_status dpt_picture_file(const char *path, char **bytes, size_t *n, struct dpt_error *err);
/* header_only: its size and channels alone; its pixels are NULL then. Errors: BAD_DATA (no image,
 * damaged, cut off, too large; names the file), RANK. */
enum dpt_status dpt_picture_read(struct dpt_picture *picture, const char *path, bool header_only,
                                 struct dpt_error *err);
/* Decodes the n bytes of a file; name: what messages call it. Any thread. Errors: BAD_DATA,
 * RANK. */
enum dpt_status dpt_picture_decode(struct dpt_picture *picture, const char *name,
                                   const uint8_t *bytes, size_t n, bool header_only,
                                   struct dpt_error *err);
void dpt_picture_release(struct dpt_picture *picture);

/* One of `channels` (1 or 3) of the n pixels from (x, y) on, in one row, as bytes that are written
 * as floats; grey and colour become each other as in dpt_picture_shape. */
void dpt_picture_line(const struct dpt_picture *picture, int32_t x, int32_t y, int32_t n,
                      int32_t channel, int32_t channels, float *line);

/* Adds the bytes of a PNG file to out: 8 bits per sample, rows from the top. channels: 1 (grey) or
 * 3 (red, green, blue), interleaved. Check out->failed. */
void dpt_picture_write(struct dpt_str *out, const uint8_t *pixels, int width, int height,
                       int channels);

/* What becomes of an image whose sides have another ratio than those that are wanted: it is
 * stretched, or cut to that about its middle, or gets black on both sides. */
#define DPT_PICTURE_FITS(X)                                                                        \
    X(DPT_PICTURE_STRETCH, "stretch") X(DPT_PICTURE_CROP, "crop") X(DPT_PICTURE_PAD, "pad")
enum dpt_picture_fit { DPT_PICTURE_FITS(DPT_LIST_NAME) DPT_PICTURE_FIT_COUNT };

/* The format that images are converted to. */
struct dpt_picture_format {
    int32_t channels; /* 1 or 3 */
    int32_t height, width;
    bool invert; /* 255 - x */
    enum dpt_picture_fit fit;
};

/*
 * out: [channels][height][width]. Grey from colour: 0.299 red + 0.587 green + 0.114 blue (ITU-R
 * BT.601); colour from grey: three times the same. Another size: each pixel an average
 * under a triangle that is as wide as two of the coarser pixels; so bilinear where it grows,
 * without aliases where it shrinks. Errors: RANK.
 */
enum dpt_status dpt_picture_shape(const struct dpt_picture *picture,
                                  const struct dpt_picture_format *format, uint8_t *out,
                                  struct dpt_error *err);

#endif

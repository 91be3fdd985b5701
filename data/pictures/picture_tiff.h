/*
 * picture_tiff: what a TIFF says of its pixels. Private to picture_tiff*.c.
 */
#ifndef DPT_DATA_PICTURE_TIFF_H
#define DPT_DATA_PICTURE_TIFF_H

#include <stdbool.h>
#include <stdint.h>

#include <tiffio.h>

#include "core/base/error.h"
#include "data/pictures/picture.h"

struct dpt_tiff_form {
    uint32_t width, height;
    uint16_t bits, samples;  /* of a sample; of a pixel */
    uint16_t colour, planes; /* PHOTOMETRIC_, PLANARCONFIG_ */
    uint16_t orientation;
    uint16_t inks;      /* samples per colour: 1 (grey, palette), 3 or 4 */
    uint16_t alpha;     /* which sample is the opacity; 0: none is */
    bool premultiplied; /* colours are multiplied by it */
    uint16_t *palette[3];
};

/* Reads it. False: the pixels are of a kind that dpt_tiff_pixels does not take. */
bool dpt_tiff_form_read(struct dpt_tiff_form *f, TIFF *tiff);
/*
 * Fills p->pixels, of which there is room: grey, palettes, RGB and CMYK of 1 to 16 bits per sample,
 * in strips or tiles, of any compression. *good: whether libtiff could read all. Errors: RANK.
 */
enum dpt_status dpt_tiff_pixels(const struct dpt_tiff_form *f, TIFF *tiff, const char *path,
                                struct dpt_picture *p, bool *good, struct dpt_error *err);

#endif

/*
 * Pixels of a TIFF whose samples are whole numbers. libtiff's own way to RGBA has tiles of 16-bit
 * grey out of place, takes any fourth sample for an opacity, leaves out that of 16-bit grey, and
 * refuses 10, 12 and 14 bits; so its strips and tiles are read here (TIFF 6.0, sections 3 to 18).
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/pictures/picture_decode.h"
#include "data/pictures/picture_tiff.h"

/* A strip or a tile of one plane. */
struct block {
    uint32_t x, y, width, height; /* what of it lies in the image */
    uint16_t plane;
    tmsize_t row; /* bytes of one of its rows */
};

/* Where samples go, and what their values become. */
struct target {
    uint8_t *bytes;                  /* [height][width][kept] */
    uint16_t colours, kept;          /* bytes of a pixel: of its colour; and with its opacity */
    uint8_t *colour_of, *opacity_of; /* [1 << bits] */
    unsigned shift;                  /* of a palette's numbers */
    uint16_t most;                   /* the largest value of a colour */
};

/* Finds which sample is the opacity. A fourth one of RGB without any word about it is, as Pillow
 * has it; one that is said to be unspecified is not. */
static void find_alpha(struct dpt_tiff_form *f, TIFF *tiff)
{
    uint16_t n = 0, *kinds = NULL;

    TIFFGetFieldDefaulted(tiff, TIFFTAG_EXTRASAMPLES, &n, &kinds);
    for (uint16_t i = 0; i < n && n < f->samples && f->alpha == 0; i++)
        if (kinds[i] == EXTRASAMPLE_ASSOCALPHA || kinds[i] == EXTRASAMPLE_UNASSALPHA) {
            f->alpha = (uint16_t)(f->samples - n + i);
            f->premultiplied = kinds[i] == EXTRASAMPLE_ASSOCALPHA;
        }
    if (n == 0 && f->colour == PHOTOMETRIC_RGB && f->samples == 4)
        f->alpha = 3;
    if (f->alpha < f->inks || f->colour == PHOTOMETRIC_SEPARATED)
        f->alpha = 0;
}

bool dpt_tiff_form_read(struct dpt_tiff_form *f, TIFF *tiff)
{
    uint16_t numbers = SAMPLEFORMAT_UINT, ink_set = INKSET_CMYK;

    *f = (struct dpt_tiff_form){.orientation = ORIENTATION_TOPLEFT};
    TIFFGetField(tiff, TIFFTAG_IMAGEWIDTH, &f->width);
    TIFFGetField(tiff, TIFFTAG_IMAGELENGTH, &f->height);
    TIFFGetField(tiff, TIFFTAG_ORIENTATION, &f->orientation);
    TIFFGetFieldDefaulted(tiff, TIFFTAG_BITSPERSAMPLE, &f->bits);
    TIFFGetFieldDefaulted(tiff, TIFFTAG_SAMPLESPERPIXEL, &f->samples);
    TIFFGetFieldDefaulted(tiff, TIFFTAG_PLANARCONFIG, &f->planes);
    TIFFGetFieldDefaulted(tiff, TIFFTAG_SAMPLEFORMAT, &numbers);
    TIFFGetFieldDefaulted(tiff, TIFFTAG_INKSET, &ink_set);
    if (!TIFFGetField(tiff, TIFFTAG_PHOTOMETRIC, &f->colour))
        f->colour = f->samples < 3 ? PHOTOMETRIC_MINISBLACK : PHOTOMETRIC_RGB;
    f->inks = f->colour == PHOTOMETRIC_RGB ? 3 : f->colour == PHOTOMETRIC_SEPARATED ? 4 : 1;
    find_alpha(f, tiff);
    return f->colour <= PHOTOMETRIC_SEPARATED && f->colour != PHOTOMETRIC_MASK && f->bits >= 1 &&
           f->bits <= 16 && f->samples >= f->inks && ink_set == INKSET_CMYK &&
           (numbers <= SAMPLEFORMAT_INT || numbers == SAMPLEFORMAT_VOID) &&
           (f->colour != PHOTOMETRIC_PALETTE ||
            TIFFGetField(tiff, TIFFTAG_COLORMAP, &f->palette[0], &f->palette[1], &f->palette[2]));
}

/* libtiff has bytes and 16-bit numbers in this machine's order, others as the file has them. */
static uint16_t sample_at(const uint8_t *row, size_t i, unsigned bits)
{
    uint16_t value = 0;

    if (bits == 8)
        return row[i];
    if (bits == 16) {
        memcpy(&value, row + 2 * i, sizeof value);
        return value;
    }
    for (size_t bit = i * bits; bit < (i + 1) * bits; bit++)
        value = (uint16_t)(value << 1 | (row[bit / 8] >> (7 - bit % 8) & 1));
    return value;
}

/* Takes one sample of each pixel of a row of a block, from the first of them on. */
static void take_samples(const struct dpt_tiff_form *f, struct target *t, const uint8_t *row,
                         size_t n, uint16_t sample, uint8_t *out)
{
    const bool contiguous = f->planes == PLANARCONFIG_CONTIG, colour = sample < f->inks;
    const size_t step = contiguous ? f->samples : 1, first = contiguous ? sample : 0;
    const uint8_t *value_of = colour ? t->colour_of : t->opacity_of;

    out += colour ? sample : t->colours;
    for (size_t x = 0; x < n; x++, out += t->kept) {
        const uint16_t value = sample_at(row, first + x * step, f->bits);

        if (colour && f->palette[0] != NULL)
            for (int c = 0; c < 3; c++)
                out[c] = (uint8_t)(f->palette[c][value] >> t->shift);
        else
            *out = value_of[value];
        t->most = colour && value > t->most ? value : t->most;
    }
}

static bool is_kept(const struct dpt_tiff_form *f, uint16_t sample)
{
    return sample < f->inks || (f->alpha > 0 && sample == f->alpha);
}

static void take_block(const struct dpt_tiff_form *f, struct target *t, const struct block *b,
                       const uint8_t *bytes)
{
    const uint16_t first = f->planes == PLANARCONFIG_CONTIG ? 0 : b->plane;
    const uint16_t last = f->planes == PLANARCONFIG_CONTIG ? f->samples - 1 : b->plane;

    for (uint32_t y = 0; y < b->height; y++, bytes += b->row)
        for (unsigned s = first; s <= last; s++)
            if (is_kept(f, (uint16_t)s))
                take_samples(f, t, bytes, b->width, (uint16_t)s,
                             t->bytes + ((size_t)(b->y + y) * f->width + b->x) * t->kept);
}

/* Reads all strips or tiles of a size; false: libtiff could not read one. */
static bool read_blocks(const struct dpt_tiff_form *f, TIFF *tiff, struct target *t, uint8_t *bytes,
                        tmsize_t size, uint32_t width, uint32_t height)
{
    const bool tiled = TIFFIsTiled(tiff) != 0;
    const uint16_t planes = f->planes == PLANARCONFIG_CONTIG ? 1 : f->samples;
    struct block b = {.row = tiled ? TIFFTileRowSize(tiff) : TIFFScanlineSize(tiff)};

    for (b.plane = 0; b.plane < planes; b.plane++)
        for (b.y = 0; b.y < f->height && is_kept(f, b.plane); b.y += height)
            for (b.x = 0; b.x < f->width; b.x += width) {
                const uint32_t number = tiled ? TIFFComputeTile(tiff, b.x, b.y, 0, b.plane)
                                              : TIFFComputeStrip(tiff, b.y, b.plane);

                b.width = f->width - b.x < width ? f->width - b.x : width;
                b.height = f->height - b.y < height ? f->height - b.y : height;
                if ((tiled ? TIFFReadEncodedTile(tiff, number, bytes, size)
                           : TIFFReadEncodedStrip(tiff, number, bytes, size)) < 0)
                    return false;
                take_block(f, t, &b, bytes);
            }
    return true;
}

/* Values become 8 bits, rounded; 0 may be white. A palette has 16 bits, or as some programs write
 * it bytes. */
static void fill_tables(const struct dpt_tiff_form *f, struct target *t)
{
    const uint32_t most = (1u << f->bits) - 1;

    for (uint32_t v = 0; v <= most; v++) {
        const uint8_t byte = (uint8_t)((v * 255 + most / 2) / most);

        t->opacity_of[v] = byte;
        t->colour_of[v] = f->colour == PHOTOMETRIC_MINISWHITE ? 255 - byte : byte;
        for (int c = 0; c < 3 && f->palette[0] != NULL; c++)
            t->shift = f->palette[c][v] > 255 ? 8 : t->shift;
    }
}

/* Makes the image's bytes of those that were kept. */
static void finish(const struct dpt_tiff_form *f, const struct target *t, struct dpt_picture *p)
{
    const size_t n = (size_t)f->width * f->height, colours = t->colours;

    if (p->deepest > 0)
        p->deepest = t->most;
    if (f->inks == 4)
        dpt_picture_inks(t->bytes, n, false, p->pixels);
    else if (f->alpha > 0 && !f->premultiplied)
        dpt_picture_flatten(t->bytes, n, colours, p->pixels);
    else if (f->alpha > 0)
        for (size_t i = 0; i < n * colours; i++) {
            const uint8_t *pixel = t->bytes + i / colours * t->kept;
            const int value = pixel[i % colours] + 255 - pixel[colours];

            p->pixels[i] = (uint8_t)(value < 255 ? value : 255);
        }
}

enum dpt_status dpt_tiff_pixels(const struct dpt_tiff_form *f, TIFF *tiff, const char *path,
                                struct dpt_picture *p, bool *good, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool tiled = TIFFIsTiled(tiff) != 0;
    const tmsize_t size = tiled ? TIFFTileSize(tiff) : TIFFStripSize(tiff);
    const size_t values = (size_t)1 << f->bits, pixels = (size_t)f->width * f->height;
    uint32_t width = f->width, height = 0;
    uint8_t *block = NULL, *kept = NULL;
    struct target t = {.bytes = p->pixels, .colours = f->palette[0] != NULL ? 3 : f->inks};

    TIFFGetFieldDefaulted(tiff, tiled ? TIFFTAG_TILELENGTH : TIFFTAG_ROWSPERSTRIP, &height);
    if (tiled)
        TIFFGetField(tiff, TIFFTAG_TILEWIDTH, &width);
    height = height < f->height ? height : f->height;
    *good = size > 0 && size / 4 <= DPT_PICTURE_BYTES && width > 0 && height > 0;
    if (!*good)
        goto out;
    t.kept = t.colours + (f->alpha > 0);
    block = calloc(1, (size_t)size);
    t.opacity_of = malloc(2 * values);
    if (t.kept != p->channels)
        t.bytes = kept = malloc(pixels * t.kept);
    if (block == NULL || t.opacity_of == NULL || t.bytes == NULL)
        DPT_TRY(dpt_fail_memory(err, path, (double)size + (double)pixels * t.kept));
    t.colour_of = t.opacity_of + values;
    fill_tables(f, &t);
    *good = read_blocks(f, tiff, &t, block, size, width, height);
    if (*good)
        finish(f, &t, p);
out:
    free(block);
    free(kept);
    free(t.opacity_of);
    return status;
}

/*
 * transform: what can be done to the pixels of an image, each by numbers that are given.
 *
 * Images are planes of floats, [c][h][w]. What each function computes is torchvision's function
 * of that name (torchvision.transforms.v2.functional, on tensors of floats), to which the tests
 * compare them; nothing here is random (data/sets/augment.h). Pixel k lies at k + 1/2, so that an
 * image of n pixels reaches from 0 to n. No memory is kept and none allocated; any thread.
 */
#ifndef DPT_DATA_TRANSFORM_H
#define DPT_DATA_TRANSFORM_H

#include "core/backend/graph.h"
#include "data/pictures/picture.h"

/* A part of an image, in pixels. */
struct dpt_box {
    int32_t top, left, height, width;
};

/* The part of this size in the middle (torchvision's center_crop), which may be the whole. */
struct dpt_box dpt_box_middle(const struct dpt_shape *shape, int32_t height, int32_t width);

/* Floats that dpt_picture_resize needs to make `width` pixels of at most `most`. */
size_t dpt_picture_resize_scratch(int32_t most, int32_t width);
/*
 * Makes the part `box` of an image an image of height x width pixels, [c][height][width] into
 * `to`, which is other memory: bilinear, and where it becomes smaller with the triangle widened to
 * the pixels that one new pixel covers (resized_crop with antialias=True). shape: of `from`.
 * scratch: of dpt_picture_resize_scratch(box.width, width).
 */
void dpt_picture_resize(const float *from, const struct dpt_shape *shape, struct dpt_box box,
                        float *to, int32_t height, int32_t width, float *scratch);

/* Floats that dpt_picture_resize_bytes needs to make `width` pixels of at most `most`. */
size_t dpt_picture_resize_bytes_scratch(int32_t most, int32_t width);
/*
 * Resizes an image of bytes, which may be large: they become floats row by row, x * scale[c] +
 * shift[c] each, and no buffer has the whole image's size. The bits are those of
 * dpt_picture_resize of these floats. shape: of `to`.
 */
void dpt_picture_resize_bytes(const struct dpt_picture *picture, struct dpt_box box,
                              const float *scale, const float *shift, float *to,
                              const struct dpt_shape *shape, float *scratch);

/* [c][h][w] into other memory, mirrored top to bottom (vertical_flip). */
void dpt_picture_upside_down(const float *from, const struct dpt_shape *shape, float *to);

/*
 * How an image is turned, sheared, scaled and shifted about its middle, in this order's inverse:
 * the pixel at (x, y) from the middle is the old one at (m[0] x + m[1] y + m[2], m[3] x + m[4] y +
 * m[5]) from it. angle: degrees, clockwise. right, down: pixels. shear: degrees, along x.
 */
struct dpt_affine {
    double m[6];
};
struct dpt_affine dpt_affine_of(double angle, double right, double down, double scale,
                                double shear);

/* Floats that dpt_picture_affine needs. */
size_t dpt_picture_affine_scratch(const struct dpt_shape *shape);
/* [c][h][w] into `to` (affine, bilinear). outside: [c], the value of what lies outside of the old
 * image. */
void dpt_picture_affine(const float *from, const struct dpt_shape *shape,
                        const struct dpt_affine *affine, const float *outside, float *to,
                        float *scratch);

/*
 * Colours, in place. Values are light, 0 is black. most: they are cut to [0, most], which is 1 of
 * images that were bytes; INFINITY: nobody knows it, and they are left as they come out. The grey
 * of 3 channels is 0.2989 R + 0.587 G + 0.114 B, of others the mean of the channels.
 */
/* factor x the value (adjust_brightness). */
void dpt_picture_brightness(float *image, const struct dpt_shape *shape, float factor, float most);
/* factor x the distance from the mean grey of the image (adjust_contrast). */
void dpt_picture_contrast(float *image, const struct dpt_shape *shape, float factor, float most);
/* factor x the distance from a pixel's grey (adjust_saturation). 3 channels. */
void dpt_picture_saturation(float *image, const struct dpt_shape *shape, float factor, float most);
/* Turns the hue by so many whole turns, -0.5 to 0.5 (adjust_hue). 3 channels, values from 0
 * to 1. */
void dpt_picture_hue(float *image, const struct dpt_shape *shape, float turns);

/* A number cut to [0, most]. */
static inline float dpt_cut(float x, float most)
{
    x = x > 0 ? x : 0;
    return x < most ? x : most;
}

/* Sets a part of all channels to a value (erase). */
void dpt_picture_erase(float *image, const struct dpt_shape *shape, struct dpt_box box,
                       float value);

#endif

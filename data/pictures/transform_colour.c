/* What becomes of pixels where they are: light, colour, holes. */
#include <math.h>

#include "core/base/vector.h"
#include "data/pictures/transform.h"

enum { LANES = 16 };

static size_t pixels_of(const struct dpt_shape *shape)
{
    return (size_t)shape->h * (size_t)shape->w;
}

/* x + (value - x) of n values, cut where it is known to what. */
static void scale_about(float *x, size_t n, float factor, float about, float most)
{
    const float rest = (1 - factor) * about;

    if (most < INFINITY)
        for (size_t i = 0; i < n; i++)
            x[i] = dpt_cut(factor * x[i] + rest, most);
    else
        for (size_t i = 0; i < n; i++)
            x[i] = factor * x[i] + rest;
}

void dpt_picture_brightness(float *image, const struct dpt_shape *shape, float factor, float most)
{
    scale_about(image, (size_t)dpt_shape_size(shape), factor, 0, most);
}

/* The sum in an order that vector units can take. */
static double sum_of(const float *x, size_t n)
{
    float lane[LANES] = {0};
    double sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += x[i + (size_t)k];
    for (int k = 0; k < LANES; k++)
        sum += (double)lane[k];
    for (; i < n; i++)
        sum += (double)x[i];
    return sum;
}

static const double grey[3] = {0.2989, 0.587, 0.114};

void dpt_picture_contrast(float *image, const struct dpt_shape *shape, float factor, float most)
{
    const size_t n = pixels_of(shape);
    double mean = 0;

    for (int32_t c = 0; c < shape->c; c++)
        mean += (shape->c == 3 ? grey[c] : 1.0 / shape->c) * sum_of(image + (size_t)c * n, n);
    scale_about(image, n * (size_t)shape->c, factor, (float)(mean / (double)n), most);
}

void dpt_picture_saturation(float *image, const struct dpt_shape *shape, float factor, float most)
{
    const size_t n = pixels_of(shape);
    float *red = image, *green = image + n, *blue = image + 2 * n;

    for (size_t i = 0; i < n; i++) {
        const float about = (1 - factor) * ((float)grey[0] * red[i] + (float)grey[1] * green[i] +
                                            (float)grey[2] * blue[i]);

        red[i] = factor * red[i] + about;
        green[i] = factor * green[i] + about;
        blue[i] = factor * blue[i] + about;
    }
    for (size_t i = 0; most < INFINITY && i < 3 * n; i++)
        image[i] = dpt_cut(image[i], most);
}

/* How much of the range between a colour's least and greatest channel one channel has, at a hue of
 * -8 to 8 sixths of a turn from where it is the greatest. */
static float share_at(float sixths)
{
    const float once = fabsf(sixths), around = fabsf(once - 6);

    return dpt_cut(2 - (once < around ? once : around), 1);
}

DPT_VECTOR void dpt_picture_hue(float *image, const struct dpt_shape *shape, float turns)
{
    const size_t n = pixels_of(shape);
    float *red = image, *green = image + n, *blue = image + 2 * n;

    for (size_t i = 0; i < n; i++) {
        const float r = red[i], g = green[i], b = blue[i];
        const float more = g > b ? g : b, less = g < b ? g : b;
        const float most = r > more ? r : more, least = r < less ? r : less;
        const float range = most - least, inverse = range > 0 ? 1 / range : 0;
        /* In sixths of a turn from red (Smith 1978). */
        const float hue = most == r   ? (g - b) * inverse
                          : most == g ? 2 + (b - r) * inverse
                                      : 4 + (r - g) * inverse;
        const float turned = hue + 6 * turns;

        red[i] = least + range * share_at(turned);
        green[i] = least + range * share_at(turned - 2);
        blue[i] = least + range * share_at(turned - 4);
    }
}

void dpt_picture_erase(float *image, const struct dpt_shape *shape, struct dpt_box box, float value)
{
    for (int32_t c = 0; c < shape->c; c++)
        for (int32_t y = box.top; y < box.top + box.height; y++) {
            float *row = image + ((size_t)c * (size_t)shape->h + (size_t)y) * (size_t)shape->w;

            for (int32_t x = box.left; x < box.left + box.width; x++)
                row[x] = value;
        }
}

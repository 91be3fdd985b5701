/* Where pixels go: resized, mirrored, turned. */
#include <math.h>
#include <string.h>

#include "data/pictures/transform.h"

struct dpt_box dpt_box_middle(const struct dpt_shape *shape, int32_t height, int32_t width)
{
    return (struct dpt_box){
        /* As Python rounds: a half to the even number. */
        .top = (int32_t)lrint((shape->h - height) / 2.0),
        .left = (int32_t)lrint((shape->w - width) / 2.0),
        .height = height,
        .width = width,
    };
}

/* --- resizing --------------------------------------------------------------------------------- */

/* Old pixels that one new pixel is made of, at most. */
static int32_t most_taps(int32_t from, int32_t to)
{
    return from > to ? 2 * ((from + to - 1) / to) + 1 : 3;
}

/*
 * The weights of the old pixels of which new pixel number i is made: *n of them, from the returned
 * one on. They are a triangle about the middle of the new pixel, as wide to each side as the
 * distance of new pixels, or of old ones where these are farther apart.
 */
static int32_t taps_of(int32_t i, int32_t from, int32_t to, float *weight, int32_t *n)
{
    const double scale = (double)from / to, reach = scale > 1 ? scale : 1;
    const double middle = scale * (i + 0.5);
    int32_t first = (int32_t)(middle - reach + 0.5), last = (int32_t)(middle + reach + 0.5);
    double sum = 0;

    first = middle - reach + 0.5 < 0 ? 0 : first;
    last = last < from ? last : from;
    *n = last - first;
    for (int32_t k = 0; k < *n; k++)
        sum += fmax(0, 1 - fabs((k + first - middle + 0.5) / reach));
    for (int32_t k = 0; k < *n; k++)
        weight[k] = (float)(fmax(0, 1 - fabs((k + first - middle + 0.5) / reach)) / sum);
    return first;
}

size_t dpt_picture_resize_scratch(int32_t most, int32_t width)
{
    const size_t taps = (size_t)most_taps(most, width);

    return 2 * taps + (size_t)most + (taps + 1) * (size_t)width;
}

/* The columns' weights, tap after tap, and where each begins; those that a column has less are 0
 * and read from within the row. Gives the most that one has. */
static int32_t columns_of(int32_t from, int32_t to, int32_t taps, float *weight, int32_t *first,
                          float *one)
{
    int32_t most = 0;

    for (int32_t x = 0; x < to; x++) {
        int32_t n;

        first[x] = taps_of(x, from, to, one, &n);
        for (int32_t k = 0; k < taps; k++)
            weight[(size_t)k * (size_t)to + (size_t)x] = k < n ? one[k] : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* A part of an image of floats, or of bytes that become floats. */
struct source {
    const float *planes; /* [c][height][width]; NULL: bytes */
    int32_t height, width;
    const struct dpt_picture *bytes;
    const float *scale, *shift;
    float *line; /* a row of bytes as floats */
    struct dpt_box box;
    int32_t channels;
};

static const float *row_of(const struct source *s, int32_t c, int32_t y)
{
    const int32_t n = s->box.width, row = s->box.top + y;
    float *const line = s->line;

    if (s->planes != NULL)
        return s->planes + ((size_t)c * (size_t)s->height + (size_t)row) * (size_t)s->width +
               s->box.left;
    dpt_picture_line(s->bytes, s->box.left, row, n, c, s->channels, line);
    for (int32_t x = 0; x < n; x++)
        line[x] = line[x] * s->scale[c] + s->shift[c];
    return line;
}

/* The rows from `first` on under one new row, weighed and added. */
static void blend_rows(const struct source *s, int32_t c, int32_t first, int32_t rows,
                       const float *weight, float *out)
{
    const int32_t width = s->box.width;

    for (int32_t k = 0; k < rows; k++) {
        const float *row = row_of(s, c, first + k);
        const float factor = weight[k];

        if (k == 0)
            for (int32_t x = 0; x < width; x++)
                out[x] = factor * row[x];
        else
            for (int32_t x = 0; x < width; x++)
                out[x] += factor * row[x];
    }
}

static void resize(const struct source *s, float *to, int32_t height, int32_t width, float *scratch)
{
    const struct dpt_box box = s->box;
    const int32_t taps = most_taps(box.width, width);
    float *const one = scratch; /* weights of one pixel */
    float *const row = one + taps;
    float *const weight = row + box.width + taps; /* [taps][width] */
    int32_t *const first = (int32_t *)(void *)(weight + (size_t)taps * (size_t)width);

    const int32_t used = columns_of(box.width, width, taps, weight, first, one);

    /* A column that has fewer taps reads past the row's end, and drops it. */
    memset(row + box.width, 0, (size_t)taps * sizeof *row);
    for (int32_t y = 0; y < height; y++) {
        float rows[most_taps(box.height, height)];
        int32_t n;
        const int32_t first_row = taps_of(y, box.height, height, rows, &n);

        for (int32_t c = 0; c < s->channels; c++) {
            float *out = to + ((size_t)c * (size_t)height + (size_t)y) * (size_t)width;

            blend_rows(s, c, first_row, n, rows, row);
            for (int32_t x = 0; x < width; x++)
                out[x] = weight[x] * row[first[x]];
            for (int32_t k = 1; k < used; k++) {
                const float *factor = weight + (size_t)k * (size_t)width;

                for (int32_t x = 0; x < width; x++)
                    out[x] += factor[x] * row[first[x] + k];
            }
        }
    }
}

void dpt_picture_resize(const float *from, const struct dpt_shape *shape, struct dpt_box box,
                        float *to, int32_t height, int32_t width, float *scratch)
{
    const struct source s = {
        .planes = from, .height = shape->h, .width = shape->w, .box = box, .channels = shape->c};

    resize(&s, to, height, width, scratch);
}

size_t dpt_picture_resize_bytes_scratch(int32_t most, int32_t width)
{
    return (size_t)most + dpt_picture_resize_scratch(most, width);
}

void dpt_picture_resize_bytes(const struct dpt_picture *picture, struct dpt_box box,
                              const float *scale, const float *shift, float *to,
                              const struct dpt_shape *shape, float *scratch)
{
    const struct source s = {.bytes = picture,
                             .scale = scale,
                             .shift = shift,
                             .line = scratch,
                             .box = box,
                             .channels = shape->c};

    resize(&s, to, shape->h, shape->w, scratch + box.width);
}

void dpt_picture_upside_down(const float *from, const struct dpt_shape *shape, float *to)
{
    const size_t width = (size_t)shape->w, height = (size_t)shape->h;

    for (size_t c = 0; c < (size_t)shape->c; c++)
        for (size_t y = 0; y < height; y++)
            memcpy(to + (c * height + y) * width, from + (c * height + height - 1 - y) * width,
                   width * sizeof *to);
}

/* --- turning ---------------------------------------------------------------------------------- */

struct dpt_affine dpt_affine_of(double angle, double right, double down, double scale, double shear)
{
    const double radian = 3.14159265358979323846 / 180;
    const double turn = cos(angle * radian), over = sin(angle * radian), tilt = tan(shear * radian);
    /* Forward it is [turn, -(turn tilt + over); over, turn - over tilt] x scale, whose determinant
     * without the scale is 1. */
    struct dpt_affine a = {{(turn - over * tilt) / scale, (turn * tilt + over) / scale, 0,
                            -over / scale, turn / scale, 0}};

    a.m[2] = -(a.m[0] * right + a.m[1] * down);
    a.m[5] = -(a.m[3] * right + a.m[4] * down);
    return a;
}

enum { BORDER = 1, AT_ONCE = 64 };

/* A plane within pixels of what lies outside: one before it, two after it. */
static int32_t with_border(int32_t n)
{
    return n + BORDER + 2;
}

size_t dpt_picture_affine_scratch(const struct dpt_shape *shape)
{
    return (size_t)shape->c * (size_t)with_border(shape->h) * (size_t)with_border(shape->w);
}

static void put_border(const float *from, const struct dpt_shape *shape, const float *outside,
                       float *to)
{
    const size_t width = (size_t)shape->w, wide = (size_t)with_border(shape->w);

    for (int32_t c = 0; c < shape->c; c++)
        for (int32_t y = -BORDER; y < shape->h + 2; y++, to += wide) {
            const bool inside = y >= 0 && y < shape->h;

            for (size_t x = 0; x < wide; x++)
                to[x] = outside[c];
            if (inside)
                memcpy(to + BORDER, from + ((size_t)c * (size_t)shape->h + (size_t)y) * width,
                       width * sizeof *to);
        }
}

/* Where the pixels of a row lie in the old picture: the first of the four about each, and how far
 * to the right and down of it. */
struct places {
    int32_t at[AT_ONCE];
    float right[AT_ONCE], down[AT_ONCE];
};

static void find_places(const struct dpt_shape *shape, const struct dpt_affine *affine, int32_t y,
                        int32_t first, int32_t n, struct places *p)
{
    const double *m = affine->m, from_middle = y - (shape->h - 1) / 2.0;
    const float wide = (float)with_border(shape->w);
    /* The first pixel's source coordinates, counted with the border. */
    const float x0 = (float)(m[0] * (first - (shape->w - 1) / 2.0) + m[1] * from_middle + m[2] +
                             (shape->w - 1) / 2.0 + BORDER);
    const float y0 = (float)(m[3] * (first - (shape->w - 1) / 2.0) + m[4] * from_middle + m[5] +
                             (shape->h - 1) / 2.0 + BORDER);
    const float along = (float)m[0], down = (float)m[3];

    for (int32_t k = 0; k < n; k++) {
        /* What lies farther outside is like the border. */
        const float x_old = dpt_cut(x0 + (float)k * along, (float)(shape->w + BORDER));
        const float y_old = dpt_cut(y0 + (float)k * down, (float)(shape->h + BORDER));
        const float column = (float)(int32_t)x_old, row = (float)(int32_t)y_old;

        p->right[k] = x_old - column;
        p->down[k] = y_old - row;
        p->at[k] = (int32_t)row * (int32_t)wide + (int32_t)column;
    }
}

void dpt_picture_affine(const float *from, const struct dpt_shape *shape,
                        const struct dpt_affine *affine, const float *outside, float *to,
                        float *scratch)
{
    const size_t wide = (size_t)with_border(shape->w), high = (size_t)with_border(shape->h);
    struct places p;

    put_border(from, shape, outside, scratch);
    for (int32_t y = 0; y < shape->h; y++)
        for (int32_t first = 0, n; first < shape->w; first += n) {
            n = shape->w - first < AT_ONCE ? shape->w - first : AT_ONCE;
            find_places(shape, affine, y, first, n, &p);
            for (int32_t c = 0; c < shape->c; c++) {
                const float *plane = scratch + (size_t)c * wide * high;
                float *out =
                    to + ((size_t)c * (size_t)shape->h + (size_t)y) * (size_t)shape->w + first;

                for (int32_t k = 0; k < n; k++) {
                    const float *at = plane + p.at[k];
                    const float above = at[0] + p.right[k] * (at[1] - at[0]);
                    const float below = at[wide] + p.right[k] * (at[wide + 1] - at[wide]);

                    out[k] = above + p.down[k] * (below - above);
                }
            }
        }
}

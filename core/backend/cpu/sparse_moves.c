#include <string.h>

#include "core/backend/cpu/sparse_private.h"
#include "core/base/vector.h"

/* Activations in and out of the shapes that the lists point into. */

/* Channel c of a sample: its first element; elements are `block` floats apart. */
static int64_t channel_at(enum dpt_layout layout, int32_t channels, int32_t c, int64_t pixels)
{
    const int32_t block = dpt_layout_block(layout, channels);

    return c / block * block * pixels + c % block;
}

/* The rows and columns of the input that some patch reads. */
static int32_t inside(const struct dpt_sparse *s, int axis, int32_t padded)
{
    const int32_t most = padded - s->shape.before[axis];

    return s->shape.in[axis] < most ? s->shape.in[axis] : most;
}

/* Between a sample's input (or its gradient) and the middle of its padded planes; `in`: into them. */
DPT_INLINE void move(const struct dpt_sparse *s, bool in, float *x, float *padded)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *size = shape->in, width = s->padded[1];
    const int32_t rows = inside(s, 0, s->padded[0]), columns = inside(s, 1, width);
    const int64_t pixels = (int64_t)size[0] * size[1];
    const int32_t step = dpt_layout_block(shape->x, shape->in_channels);

    padded += ((int64_t)shape->before[0] * width + shape->before[1]) * LANES;
    for (int32_t row = 0; row < rows; row++, padded += (int64_t)width * LANES) {
        for (int32_t b = 0; shape->x == DPT_LAYOUT_C16 && b < s->in_blocks; b++) {
            float *line = padded + b * s->plane;
            float *plain = x + (b * pixels + (int64_t)row * size[1]) * LANES;

            memcpy(in ? line : plain, in ? plain : line, (size_t)columns * LANES * sizeof *line);
        }
        for (int32_t c = 0; shape->x != DPT_LAYOUT_C16 && c < shape->in_channels; c++) {
            float *line = padded + c / LANES * s->plane + c % LANES;
            float *plain = x + channel_at(shape->x, shape->in_channels, c, pixels) +
                           (int64_t)row * size[1] * step;

            for (int32_t k = 0; k < columns; k++) {
                if (in)
                    line[k * LANES] = plain[(int64_t)k * step];
                else
                    plain[(int64_t)k * step] = line[k * LANES];
            }
        }
    }
}

void dpt_sparse_pad(const struct dpt_sparse *s, const float *x, float *padded)
{
    move(s, true, (float *)(uintptr_t)x, padded); /* x is only read */
}

void dpt_sparse_unpad(const struct dpt_sparse *s, float *padded, float *x)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *in = shape->in;

    if (shape->x != DPT_LAYOUT_C16 || inside(s, 0, s->padded[0]) < in[0] ||
        inside(s, 1, s->padded[1]) < in[1])
        memset(x, 0,
               (size_t)dpt_layout_floats(shape->x, shape->in_channels, in[0], in[1]) * sizeof *x);
    move(s, false, x, padded);
}

/* Few channels: the rows of the input with channels side by side, between rows of zeros. */
static void side_by_side(const struct dpt_sparse *s, const float *x, float *to)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *in = shape->in, channels = shape->in_channels;
    const int32_t rows = inside(s, 0, shape->out[0] + shape->kernel[0] - 1);
    const int32_t columns = inside(s, 1, s->padded[1]);
    const int32_t step = dpt_layout_block(shape->x, channels);

    to += (int64_t)shape->before[0] * columns * channels;
    for (int32_t c = 0; c < channels; c++) {
        const float *from = x + channel_at(shape->x, channels, c, (int64_t)in[0] * in[1]);

        for (int32_t row = 0; row < rows; row++) {
            const float *line = from + (int64_t)row * in[1] * step;
            float *lane = to + (int64_t)row * columns * channels + c;

            for (int32_t i = 0; i < columns; i++)
                lane[i * channels] = line[(int64_t)i * step];
        }
    }
}

/* FEW floats are copied at once: what is too much is written over by the next, up to the last
 * column. */
void dpt_sparse_unroll(const struct dpt_sparse *s, const float *x, float *to, float *rows)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t channels = shape->in_channels, columns = inside(s, 1, s->padded[1]);

    side_by_side(s, x, rows);
    to += (int64_t)shape->before[1] * s->column;
    for (int32_t row = 0; row < shape->out[0]; row++, to += (int64_t)s->padded[1] * s->column) {
        const float *from = rows + (int64_t)row * columns * channels;

        int32_t i = 0;

        for (; i < columns - FEW; i++)
            for (int32_t k = 0; k < shape->kernel[0]; k++)
                memcpy(to + i * s->column + k * channels, from + (k * columns + i) * channels,
                       FEW * sizeof *to);
        for (; i < columns; i++)
            for (int32_t k = 0; k < shape->kernel[0]; k++)
                memcpy(to + i * s->column + k * channels, from + (k * columns + i) * channels,
                       (size_t)channels * sizeof *to);
    }
}

void dpt_sparse_to_blocks(const struct dpt_sparse *s, const void *from, void *to)
{
    const int32_t channels = s->shape.out_channels;
    const int32_t step = dpt_layout_block(s->shape.y, channels);

    for (int32_t c = 0; c < channels; c++) {
        const int32_t *x = (const int32_t *)from + channel_at(s->shape.y, channels, c, s->windows);
        int32_t *y = (int32_t *)to + (int64_t)c / LANES * LANES * s->windows + c % LANES;

        for (int32_t i = 0; i < s->windows; i++)
            y[i * LANES] = x[(int64_t)i * step];
    }
}

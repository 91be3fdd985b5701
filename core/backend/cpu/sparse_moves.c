#include <string.h>

#include "core/backend/cpu/sparse_private.h"

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

/* A sample's input into the middle of its padded planes. */
void dpt_sparse_pad(const struct dpt_sparse *s, const float *x, float *padded)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *in = shape->in, width = s->padded[1];
    const int32_t rows = inside(s, 0, s->padded[0]), columns = inside(s, 1, width);
    const int64_t pixels = (int64_t)in[0] * in[1];
    const int32_t step = dpt_layout_block(shape->x, shape->in_channels);

    padded += ((int64_t)shape->before[0] * width + shape->before[1]) * LANES;
    for (int32_t row = 0; row < rows; row++) {
        float *to = padded + (int64_t)row * width * LANES;

        if (shape->x == DPT_LAYOUT_C16) {
            for (int32_t b = 0; b < s->in_blocks; b++)
                memcpy(to + b * s->plane, x + (b * pixels + (int64_t)row * in[1]) * LANES,
                       (size_t)columns * LANES * sizeof *to);
            continue;
        }
        for (int32_t c = 0; c < shape->in_channels; c++) {
            const float *from = x + channel_at(shape->x, shape->in_channels, c, pixels) +
                                (int64_t)row * in[1] * step;
            float *lane = to + c / LANES * s->plane + c % LANES;

            for (int32_t k = 0; k < columns; k++)
                lane[k * LANES] = from[(int64_t)k * step];
        }
    }
}

/* The way back. What no patch reads has no gradient. */
void dpt_sparse_unpad(const struct dpt_sparse *s, const float *padded, float *x)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *in = shape->in, width = s->padded[1];
    const int32_t rows = inside(s, 0, s->padded[0]), columns = inside(s, 1, width);
    const int64_t pixels = (int64_t)in[0] * in[1];
    const int32_t step = dpt_layout_block(shape->x, shape->in_channels);

    if (shape->x != DPT_LAYOUT_C16 || rows < in[0] || columns < in[1])
        memset(x, 0,
               (size_t)dpt_layout_floats(shape->x, shape->in_channels, in[0], in[1]) * sizeof *x);
    padded += ((int64_t)shape->before[0] * width + shape->before[1]) * LANES;
    for (int32_t row = 0; row < rows; row++) {
        const float *from = padded + (int64_t)row * width * LANES;

        if (shape->x == DPT_LAYOUT_C16) {
            for (int32_t b = 0; b < s->in_blocks; b++)
                memcpy(x + (b * pixels + (int64_t)row * in[1]) * LANES, from + b * s->plane,
                       (size_t)columns * LANES * sizeof *x);
            continue;
        }
        for (int32_t c = 0; c < shape->in_channels; c++) {
            const float *lane = from + c / LANES * s->plane + c % LANES;
            float *to = x + channel_at(shape->x, shape->in_channels, c, pixels) +
                        (int64_t)row * in[1] * step;

            for (int32_t k = 0; k < columns; k++)
                to[(int64_t)k * step] = lane[k * LANES];
        }
    }
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

/* Then [row of outputs][column][row of the kernel][channel], so that a patch is one piece. FEW
 * floats are copied at once: what is too much is written over by the next, up to the last column.
 */
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

/* Blocks of LANES channels out of any layout, words of 4 bytes. */
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

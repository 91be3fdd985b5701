#include "core/backend/cpu/fp32/depthwise.h"

#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/numbers.h"

enum {
    LANES = DPT_LANES,
    SIDE = 8, /* outputs side by side whose sums are in registers */
    TAPS = 4, /* taps of a row likewise */
};

typedef float lanes __attribute__((vector_size(64)));

/* A block's planes, with zeros around them and as much after each row as the last outputs of it,
 * which are computed SIDE at a time, would read. */
struct planes {
    int32_t rows, columns;
    int64_t taps;
    lanes *plane, *weights, *sums; /* of the scratch */
};

static struct planes planes_of(const struct dpt_conv_shape *s, float *scratch)
{
    const struct dpt_window *w = &s->window;
    struct planes p = {
        .rows = (s->out[0] - 1) * w->stride[0] + (w->kernel[0] - 1) * w->dilation[0] + 1,
        .columns = ((int32_t)up(s->out[1], SIDE) - 1) * w->stride[1] +
                   (w->kernel[1] - 1) * w->dilation[1] + 1,
        .taps = (int64_t)w->kernel[0] * w->kernel[1],
    };

    p.plane = (lanes *)(void *)scratch;
    p.weights = p.plane + (int64_t)p.rows * p.columns;
    p.sums = p.weights + p.taps;
    return p;
}

bool dpt_depthwise_fits(const struct dpt_conv_shape *s)
{
    return s->window.groups > 1 && s->window.groups == s->in_channels &&
           s->window.groups == s->out_channels;
}

int64_t dpt_depthwise_scratch(const struct dpt_conv_shape *s)
{
    const struct planes p = planes_of(s, NULL);

    return ((int64_t)p.rows * p.columns + 2 * p.taps) * LANES;
}

static int32_t blocks_of(const struct dpt_conv_shape *s)
{
    return (int32_t)parts(s->in_channels, LANES);
}

static int64_t in_floats(const struct dpt_conv_shape *s)
{
    return (int64_t)s->in[0] * s->in[1] * LANES;
}

static int64_t out_floats(const struct dpt_conv_shape *s)
{
    return (int64_t)s->out[0] * s->out[1] * LANES;
}

/* A row of the input within the planes: where it is there, and how many pixels of it. */
static float *row_of(const struct dpt_conv_shape *s, const struct planes *p, int32_t row,
                     int64_t *pixels)
{
    const int32_t y = row + s->window.before[0], x = s->window.before[1];

    *pixels = most(0, least(s->in[1], p->columns - x));
    return y < p->rows ? (float *)(void *)(p->plane + (int64_t)y * p->columns + x) : NULL;
}

static void take_block(const struct dpt_conv_shape *s, const struct planes *p, const float *x)
{
    int64_t pixels;

    memset(p->plane, 0, (size_t)p->rows * (size_t)p->columns * sizeof *p->plane);
    for (int32_t i = 0; i < s->in[0]; i++) {
        float *to = row_of(s, p, i, &pixels);

        if (to != NULL)
            memcpy(to, x + (int64_t)i * s->in[1] * LANES, (size_t)pixels * sizeof(lanes));
    }
}

/* [tap][channel] of a block */
static void take_weights(const struct dpt_conv_shape *s, const struct planes *p, int32_t block,
                         const float *weights)
{
    const int64_t n = least(s->in_channels - block * LANES, LANES);
    float *to = (float *)(void *)p->weights;

    for (int64_t tap = 0; tap < p->taps; tap++)
        for (int64_t lane = 0; lane < LANES; lane++)
            to[tap * LANES + lane] = lane < n ? weights[(block * LANES + lane) * p->taps + tap] : 0;
}

DPT_VECTOR static void forward_row(const struct dpt_conv_shape *s, const struct planes *p,
                                   const float *bias, int32_t row, float *y)
{
    const struct dpt_window *w = &s->window;
    const lanes *line = p->plane + (int64_t)row * w->stride[0] * p->columns;
    const int32_t stride = w->stride[1];
    lanes start;

    memcpy(&start, bias, sizeof start);
    for (int32_t x = 0; x < s->out[1]; x += SIDE) {
        const lanes *weight = p->weights;
        lanes sum[SIDE];

        for (int i = 0; i < SIDE; i++)
            sum[i] = start;
        for (int32_t i = 0; i < w->kernel[0]; i++)
            for (int32_t k = 0; k < w->kernel[1]; k++, weight++) {
                const lanes *from = line + (int64_t)i * w->dilation[0] * p->columns + x * stride +
                                    k * w->dilation[1];

                DPT_UNROLL for (int n = 0; n < SIDE; n++) sum[n] += from[n * stride] * *weight;
            }
        memcpy(y + (int64_t)x * LANES, sum, (size_t)least(s->out[1] - x, SIDE) * sizeof(lanes));
    }
}

void dpt_depthwise_forward(const struct dpt_conv_shape *s, const float *x, const float *weights,
                           const float *bias, float *scratch, float *y)
{
    const struct planes p = planes_of(s, scratch);
    const int32_t blocks = blocks_of(s);

    for (int32_t b = 0; b < blocks; b++) {
        float start[LANES] = {0};

        if (bias != NULL)
            memcpy(start, bias + b * LANES,
                   (size_t)least(s->in_channels - b * LANES, LANES) * sizeof *start);
        take_weights(s, &p, b, weights);
        for (int32_t i = 0; i < s->n; i++) {
            const int64_t at = (int64_t)i * blocks + b;

            take_block(s, &p, x + at * in_floats(s));
            for (int32_t row = 0; row < s->out[0]; row++)
                forward_row(s, &p, start, row,
                            y + at * out_floats(s) + (int64_t)row * s->out[1] * LANES);
        }
    }
}

/* Adds what a row of the gradient passes back to the planes. */
DPT_VECTOR static void spread_row(const struct dpt_conv_shape *s, const struct planes *p,
                                  int32_t row, const float *restrict dy)
{
    const struct dpt_window *w = &s->window;
    const lanes *weight = p->weights;

    for (int32_t i = 0; i < w->kernel[0]; i++)
        for (int32_t k = 0; k < w->kernel[1]; k++, weight++) {
            lanes *restrict to =
                p->plane +
                ((int64_t)row * w->stride[0] + (int64_t)i * w->dilation[0]) * p->columns +
                k * w->dilation[1];

            for (int32_t x = 0; x < s->out[1]; x++, to += w->stride[1]) {
                lanes gradient;

                memcpy(&gradient, dy + (int64_t)x * LANES, sizeof gradient);
                *to += gradient * *weight;
            }
        }
}

static void give_block(const struct dpt_conv_shape *s, const struct planes *p, float *dx)
{
    int64_t pixels;

    memset(dx, 0, (size_t)in_floats(s) * sizeof *dx);
    for (int32_t i = 0; i < s->in[0]; i++) {
        const float *from = row_of(s, p, i, &pixels);

        if (from != NULL)
            memcpy(dx + (int64_t)i * s->in[1] * LANES, from, (size_t)pixels * sizeof(lanes));
    }
}

void dpt_depthwise_data(const struct dpt_conv_shape *s, const float *dy, const float *weights,
                        float *scratch, float *dx)
{
    const struct planes p = planes_of(s, scratch);
    const int32_t blocks = blocks_of(s);

    for (int32_t b = 0; b < blocks; b++) {
        take_weights(s, &p, b, weights);
        for (int32_t i = 0; i < s->n; i++) {
            const int64_t at = (int64_t)i * blocks + b;

            memset(p.plane, 0, (size_t)p.rows * (size_t)p.columns * sizeof *p.plane);
            for (int32_t row = 0; row < s->out[0]; row++)
                spread_row(s, &p, row, dy + at * out_floats(s) + (int64_t)row * s->out[1] * LANES);
            give_block(s, &p, dx + at * in_floats(s));
        }
    }
}

/* Adds the products of a row of the gradient with what it read to the sums of the taps. */
DPT_VECTOR static void sum_row(const struct dpt_conv_shape *s, const struct planes *p, int32_t row,
                               const float *restrict dy)
{
    const struct dpt_window *w = &s->window;
    const int32_t stride = w->stride[1], kernel = w->kernel[1];

    for (int32_t i = 0; i < w->kernel[0]; i++)
        for (int32_t k = 0; k < kernel; k += TAPS) {
            const int32_t n = kernel - k < TAPS ? kernel - k : TAPS;
            const lanes *from =
                p->plane + ((int64_t)row * w->stride[0] + (int64_t)i * w->dilation[0]) * p->columns;
            int32_t at[TAPS];
            lanes sum[TAPS] = {{0}};

            for (int32_t t = 0; t < TAPS; t++) /* those that are not there read the last one */
                at[t] = (k + (t < n ? t : n - 1)) * w->dilation[1];
            for (int32_t x = 0; x < s->out[1]; x++, from += stride) {
                lanes gradient;

                memcpy(&gradient, dy + (int64_t)x * LANES, sizeof gradient);
                DPT_UNROLL for (int t = 0; t < TAPS; t++) sum[t] += from[at[t]] * gradient;
            }
            for (int32_t t = 0; t < n; t++)
                p->sums[i * kernel + k + t] += sum[t];
        }
}

void dpt_depthwise_weights(const struct dpt_conv_shape *s, const float *x, const float *dy,
                           bool add, float *scratch, float *dw)
{
    const struct planes p = planes_of(s, scratch);
    const float *sums = (const float *)(const void *)p.sums;
    const int32_t blocks = blocks_of(s);

    for (int32_t b = 0; b < blocks; b++) {
        memset(p.sums, 0, (size_t)p.taps * sizeof *p.sums);
        for (int32_t i = 0; i < s->n; i++) {
            const int64_t at = (int64_t)i * blocks + b;

            take_block(s, &p, x + at * in_floats(s));
            for (int32_t row = 0; row < s->out[0]; row++)
                sum_row(s, &p, row, dy + at * out_floats(s) + (int64_t)row * s->out[1] * LANES);
        }
        for (int64_t lane = 0; lane < least(s->in_channels - b * LANES, LANES); lane++)
            for (int64_t tap = 0; tap < p.taps; tap++) {
                float *to = dw + (b * LANES + lane) * p.taps + tap;

                *to = add ? *to + sums[tap * LANES + lane] : sums[tap * LANES + lane];
            }
    }
}

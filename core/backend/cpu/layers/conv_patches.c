#include "core/backend/cpu/layers/conv_ways.h"

#include <string.h>

/*
 * The gradient of the weights as one product (gemm.h) of the output's gradient and the unrolled
 * patches of the input, which writes it where it belongs. It is taken if a micro-batch has fewer
 * output pixels than the convolution has outputs: oneDNN's kernel does little work for each weight
 * there, and all weights go to memory and back. For 512 to 512 channels of 2 x 2 pixels the product
 * takes a third of the time.
 */

enum { LANES = DPT_LANES, MOST_TAPS = 49 };

static int32_t taps_of(const struct dpt_conv_shape *s)
{
    return s->window.kernel[0] * s->window.kernel[1];
}

static int32_t pixels_of(const struct dpt_conv_shape *s)
{
    return s->out[0] * s->out[1];
}

static enum dpt_status fits_patches(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    const struct dpt_conv_shape *s = &((const struct dpt_conv *)node->own)->shape;

    (void)program, (void)pass, (void)err;
    *fits = node->x_layout == DPT_LAYOUT_C16 && node->y_layout == DPT_LAYOUT_C16 &&
            s->window.groups == 1 && taps_of(s) <= MOST_TAPS && s->in_channels % LANES == 0 &&
            s->out_channels % LANES == 0 && (int64_t)s->n * pixels_of(s) <= s->out_channels;
    return DPT_OK;
}

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const struct dpt_conv_shape *s = &conv->shape;
    struct dpt_gemm *product = &conv->patches.product;

    (void)pass, (void)err;
    *product = (struct dpt_gemm){.rows = (int64_t)s->n * pixels_of(s),
                                 .inputs = (int64_t)s->in_channels * taps_of(s),
                                 .outputs = s->out_channels,
                                 .isa = dpt_cpu_isa()};
    conv->patches.x = dpt_cpu_take(program, product->rows * product->inputs);
    conv->patches.rows = dpt_cpu_take(program, product->rows * product->outputs);
    dpt_cpu_give(program, conv->patches.x);
    dpt_cpu_give(program, conv->patches.rows);
    dpt_cpu_want_scratch(program, dpt_gemm_scratch(product));
    return DPT_OK;
}

/* to[i] = from[at[i]] */
DPT_VECTOR static void gather(const float *restrict from, const int32_t *restrict at, int64_t n,
                              float *restrict to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[at[i]];
}

/* The 16 channels of a block that each tap of an output pixel reads; zeros outside the input. */
static void read_taps(const struct dpt_conv_shape *s, const float *block, int32_t row,
                      int32_t column, float *to)
{
    const struct dpt_window *w = &s->window;

    for (int32_t i = 0; i < w->kernel[0]; i++)
        for (int32_t k = 0; k < w->kernel[1]; k++, to += LANES) {
            const int32_t y = row * w->stride[0] - w->before[0] + i * w->dilation[0];
            const int32_t x = column * w->stride[1] - w->before[1] + k * w->dilation[1];

            if (y >= 0 && y < s->in[0] && x >= 0 && x < s->in[1])
                memcpy(to, block + ((int64_t)y * s->in[1] + x) * LANES, LANES * sizeof *to);
            else
                memset(to, 0, LANES * sizeof *to);
        }
}

/* x in blocks of channels -> [sample and output pixel][input][tap]. */
static void unroll(const struct dpt_conv_shape *s, const float *x, float *patches)
{
    const int64_t pixels = (int64_t)s->in[0] * s->in[1], blocks = s->in_channels / LANES;
    const int32_t n = LANES * taps_of(s);
    _Alignas(64) float taps[MOST_TAPS * LANES];
    int32_t at[MOST_TAPS * LANES];

    for (int32_t i = 0; i < n; i++)
        at[i] = i % taps_of(s) * LANES + i / taps_of(s);
    for (int32_t sample = 0; sample < s->n; sample++, x += blocks * pixels * LANES)
        for (int32_t p = 0; p < pixels_of(s); p++)
            for (int64_t b = 0; b < blocks; b++, patches += n) {
                read_taps(s, x + b * pixels * LANES, p / s->out[1], p % s->out[1], taps);
                gather(taps, at, n, patches);
            }
}

/* dy in blocks of channels -> [sample and pixel][output]. */
static void put_rows(const struct dpt_conv_shape *s, const float *dy, float *rows)
{
    const int32_t blocks = s->out_channels / LANES, pixels = pixels_of(s);

    for (int64_t i = 0; i < (int64_t)s->n * blocks; i++)
        for (int64_t p = 0; p < pixels; p++, dy += LANES)
            memcpy(rows + (i / blocks * pixels + p) * s->out_channels + i % blocks * LANES, dy,
                   LANES * sizeof *dy);
}

static void weights(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_gemm *p = &conv->patches.product;
    float *patches = dpt_cpu_buffer(run, conv->patches.x);
    float *rows = dpt_cpu_buffer(run, conv->patches.rows);

    unroll(&conv->shape, dpt_cpu_buffer(run, conv->back_x), patches);
    put_rows(&conv->shape, dpt_cpu_buffer(run, conv->dy), rows);
    dpt_gemm_weights(p, rows, patches, run->add, 0, p->outputs, run->scratch,
                     dpt_cpu_gradient(run, node->graph->weight));
    if (conv->shape.bias)
        dpt_gemm_bias(p, rows, run->add, 0, p->outputs, dpt_cpu_gradient(run, node->graph->bias));
}

const struct dpt_conv_way dpt_conv_patches = {
    .name = "patches",
    .fits = fits_patches,
    .plan = plan,
    .weights = weights,
};

#include "core/backend/cpu/layers/conv_ways.h"

#include <string.h>

#include "core/backend/cpu/numbers.h"
#include "core/base/memory.h"

/*
 * The gradient of the weights where they are more than the pixels of a micro-batch: what counts
 * there is that they go to memory once. Tiles of direct.h sum 16 inputs' weights of up to 48
 * outputs, each tap over the pixels whose patch has it inside the plane, and none of the zeros
 * around it. All micro-batches whose sum is wanted are kept, if their operands are smaller than the
 * gradient.
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

/* Floats of the operands of a micro-batch. */
static int64_t x_floats(const struct dpt_conv_shape *s)
{
    return (int64_t)s->n * s->in[0] * s->in[1] * s->in_channels;
}

static int64_t dy_floats(const struct dpt_conv_shape *s)
{
    return (int64_t)s->n * pixels_of(s) * s->out_channels;
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

/* --- planning --------------------------------------------------------------------------------- */

/* Where the pixel lies that an output pixel's tap reads, on one axis; -1: outside of the plane. */
static int32_t read_at(const struct dpt_conv_shape *s, int axis, int32_t pixel, int32_t tap)
{
    const struct dpt_window *w = &s->window;
    const int32_t at = pixel * w->stride[axis] - w->before[axis] + tap * w->dilation[axis];

    return at >= 0 && at < s->in[axis] ? at : -1;
}

/* The pixels over which a tap is summed. Returns the memory after them. */
static int64_t *plan_tap(const struct dpt_conv_shape *s, int32_t tap, struct dpt_direct_sum *sum,
                         int64_t *numbers)
{
    const int64_t all = (int64_t)s->n * pixels_of(s);
    int64_t *offsets = numbers, *first = numbers + all, n = 0;

    for (int64_t row = 0; row < all; row++) {
        const int32_t pixel = (int32_t)(row % pixels_of(s));
        const int32_t y = read_at(s, 0, pixel / s->out[1], tap / s->window.kernel[1]),
                      x = read_at(s, 1, pixel % s->out[1], tap % s->window.kernel[1]);

        if (y < 0 || x < 0)
            continue;
        offsets[n] = ((row / pixels_of(s) * s->in[0] + y) * s->in[1] + x) * LANES;
        first[n++] = row;
    }
    *sum = (struct dpt_direct_sum){
        .offsets = offsets, .first = first, .segments = n, .k = 1, .step = 1};
    return numbers + 2 * all;
}

static enum dpt_status open_taps(struct dpt_conv *conv, struct dpt_error *err)
{
    const struct dpt_conv_shape *s = &conv->shape;
    const size_t n = (size_t)taps_of(s) * 2 * (size_t)s->n * (size_t)pixels_of(s);
    enum dpt_status status = DPT_OK;
    int64_t *numbers;

    DPT_TRY(DPT_ALLOCATE(conv->patches.taps, (size_t)taps_of(s), "a convolution", err));
    DPT_TRY(DPT_ALLOCATE(conv->patches.numbers, n, "a convolution", err));
    numbers = conv->patches.numbers;
    for (int32_t tap = 0; tap < taps_of(s); tap++)
        numbers = plan_tap(s, tap, &conv->patches.taps[tap], numbers);
out:
    return status;
}

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const struct dpt_conv_shape *s = &conv->shape;
    const int64_t floats = x_floats(s) + dy_floats(s), kept = dpt_cpu_kept(program);
    enum dpt_status status = DPT_OK;

    (void)pass;
    DPT_TRY(open_taps(conv, err));
    conv->patches.keeps = kept > 1 && kept * floats <= conv->n_weights;
    if (conv->patches.keeps) {
        program->keeps = true;
        conv->patches.operands = dpt_cpu_reserve(program, kept * floats);
    } else {
        conv->patches.operands = dpt_cpu_take(program, floats);
        dpt_cpu_give(program, conv->patches.operands);
    }
    dpt_cpu_want_scratch(program, (int64_t)LANES * taps_of(s) * DPT_TILE_MOST);
out:
    return status;
}

/* --- running ---------------------------------------------------------------------------------- */

/* x -> [block of inputs][sample and pixel][input of the block]: what is read together lies
 * together. */
static void put_input(const struct dpt_conv_shape *s, const float *x, float *to)
{
    const int64_t blocks = s->in_channels / LANES, plane = (int64_t)s->in[0] * s->in[1] * LANES;

    for (int64_t i = 0; i < s->n * blocks; i++, x += plane)
        memcpy(to + (i % blocks * s->n + i / blocks) * plane, x, (size_t)plane * sizeof *x);
}

/* The sums of 16 inputs' weights of a block of outputs: c [input][tap][width]. dw: where they go in
 * the gradient, which is fetched meanwhile. */
static void sum_weights(const struct dpt_conv *conv, const float *x, const float *dy,
                        int32_t several, bool add, int64_t width, float *c, float *dw)
{
    const struct dpt_conv_shape *s = &conv->shape;
    const int64_t taps = taps_of(s), floats = x_floats(s) + dy_floats(s);
    dpt_direct_tile *tile = dpt_direct_tile_for(dpt_cpu_isa(), (int)(width / LANES));

    for (int64_t tap = 0; tap < taps; tap++) {
        for (int64_t o = 0; o < width; o++)
            __builtin_prefetch(dw + o * s->in_channels * taps + tap * LANES, 1);
        for (int64_t first = 0; first < LANES; first += DPT_TILE_ROWS)
            for (int32_t k = 0; k < several; k++) {
                const float *rows[DPT_TILE_ROWS];

                for (int64_t i = 0; i < DPT_TILE_ROWS; i++)
                    rows[i] = x + k * floats + first + i;
                tile(&conv->patches.taps[tap], rows, dy + k * floats, NULL, add || k > 0,
                     c + (first * taps + tap) * width, taps * width, LANES);
            }
    }
}

/* operands: of the first micro-batch. */
static void sum_all(const struct dpt_conv *conv, const float *operands, int32_t several, bool add,
                    float *c, float *dw)
{
    const struct dpt_conv_shape *s = &conv->shape;
    const int64_t block = dpt_gemm_block(s->out_channels),
                  row = (int64_t)s->in_channels * taps_of(s), n = (int64_t)LANES * taps_of(s);

    for (int64_t o = 0; o < s->out_channels; o += block) {
        const int64_t width = least(s->out_channels - o, block);
        const float *dy = operands + x_floats(s) + (int64_t)s->n * pixels_of(s) * o;

        for (int64_t i = 0; i < s->in_channels; i += LANES) {
            float *to = dw + o * row + i * taps_of(s);

            if (add)
                dpt_transpose(to, row, width, n, c, width);
            sum_weights(conv, operands + i * s->n * s->in[0] * s->in[1], dy, several, add, width, c,
                        to);
            dpt_transpose(c, width, n, width, to, row);
        }
    }
}

static void sum_bias(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                     const float *dy)
{
    const struct dpt_conv_shape *s = &((const struct dpt_conv *)node->own)->shape;
    const int64_t block = dpt_gemm_block(s->out_channels), rows = (int64_t)s->n * pixels_of(s);
    float *db = dpt_cpu_gradient(run, node->graph->bias);

    for (int64_t o = 0; o < s->out_channels; o += block) {
        const struct dpt_gemm p = {.rows = rows, .outputs = least(s->out_channels - o, block)};

        dpt_gemm_bias(&p, dy + rows * o, run->add, 0, p.outputs, db + o);
    }
}

static void weights(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_conv_shape *s = &conv->shape;
    const int32_t before = conv->patches.keeps ? run->batch->before : 0;
    float *operands = dpt_cpu_buffer(run, conv->patches.operands);
    float *own = operands + before * (x_floats(s) + dy_floats(s));

    put_input(s, dpt_cpu_buffer(run, conv->back_x), own);
    dpt_direct_copy_gradient(s, dpt_cpu_buffer(run, conv->dy), 0, s->n, 0, own + x_floats(s));
    if (s->bias)
        sum_bias(run, node, own + x_floats(s));
    if (!(conv->patches.keeps && run->batch->more))
        sum_all(conv, operands, before + 1, conv->patches.keeps ? run->adds : run->add,
                run->scratch, dpt_cpu_gradient(run, node->graph->weight));
}

const struct dpt_conv_way dpt_conv_patches = {
    .name = "patches",
    .fits = fits_patches,
    .plan = plan,
    .weights = weights,
};

#include "core/backend/cpu/layers/conv_weights.h"

#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"

enum { LANES = DPT_LANES, MOST_TAPS = 49 };

static int32_t taps_of(const struct dpt_conv_shape *s)
{
    return s->window.kernel[0] * s->window.kernel[1];
}

static int32_t pixels_of(const struct dpt_conv_shape *s)
{
    return s->out[0] * s->out[1];
}

/* Whether the product of patches is faster. */
static bool unrolls(const struct dpt_cpu_node *node, const struct dpt_conv_shape *s)
{
    return node->x_layout == DPT_LAYOUT_C16 && node->y_layout == DPT_LAYOUT_C16 &&
           s->window.groups == 1 && taps_of(s) <= MOST_TAPS && s->in_channels % LANES == 0 &&
           s->out_channels % LANES == 0 && (int64_t)s->n * pixels_of(s) <= s->out_channels;
}

static int64_t unpacked_floats(const struct dpt_conv_shape *s)
{
    return (int64_t)s->out_channels * (s->in_channels / s->window.groups) * taps_of(s);
}

/* oneDNN 3 cannot add to the gradient if its own order pads the channels: it unpacks into a buffer
 * then, and dpt_accumulate adds, with the same bits. */
static enum dpt_status plan_call(struct dpt_cpu_program *program, struct dpt_kernel **kernel,
                                 struct dpt_conv_weights *w, struct dpt_error *err)
{
    struct dpt_kernel *own = *kernel, *unpack;
    enum dpt_status status = DPT_OK;

    w->dw = dpt_cpu_take(program, own->floats[DPT_ROLE_W]);
    w->db = dpt_cpu_take(program, w->shape.out_channels);
    w->unpacked = DPT_CPU_NONE;
    for (int add = 0; add < 2; add++) {
        status = dpt_kernel_reorder_weights(program->dnnl, &w->shape, own,
                                            add ? DPT_WEIGHTS_UNPACK_ADD : DPT_WEIGHTS_UNPACK,
                                            &unpack, err);
        if (status == DPT_BAD_JOB && add) {
            w->unpacked = dpt_cpu_take(program, unpacked_floats(&w->shape));
            w->unpack[add] = w->unpack[0];
            status = DPT_OK;
            break;
        }
        DPT_TRY(status);
        w->unpack[add] =
            dpt_cpu_call(program, unpack, w->dw, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE);
    }
    *kernel = NULL;
    w->call = dpt_cpu_call(program, own, w->x, w->dy, w->dw, w->shape.bias ? w->db : DPT_CPU_NONE);
    dpt_cpu_give(program, w->dw);
    dpt_cpu_give(program, w->db);
    dpt_cpu_give(program, w->unpacked);
out:
    return status;
}

static void plan_product(struct dpt_cpu_program *program, struct dpt_conv_weights *w)
{
    const struct dpt_conv_shape *s = &w->shape;

    w->product = (struct dpt_gemm){.rows = (int64_t)s->n * pixels_of(s),
                                   .inputs = (int64_t)s->in_channels * taps_of(s),
                                   .outputs = s->out_channels,
                                   .isa = dpt_dnnl_isa()};
    w->patches = dpt_cpu_take(program, w->product.rows * w->product.inputs);
    w->rows = dpt_cpu_take(program, w->product.rows * w->product.outputs);
    dpt_cpu_give(program, w->patches);
    dpt_cpu_give(program, w->rows);
    dpt_cpu_want_scratch(program, dpt_gemm_scratch(&w->product));
}

enum dpt_status dpt_conv_weights_plan(struct dpt_cpu_program *program,
                                      const struct dpt_cpu_node *node,
                                      const struct dpt_conv_shape *shape,
                                      struct dpt_kernel **kernel, int x, int dy,
                                      struct dpt_conv_weights *w, struct dpt_error *err)
{
    const struct dpt_graph *graph = program->spec.graph;

    *w = (struct dpt_conv_weights){.shape = *shape, .x = x, .dy = dy, .call = DPT_CPU_NONE};
    if (!dpt_graph_updates(graph, node->graph->weight) &&
        !dpt_graph_updates(graph, node->graph->bias))
        return DPT_OK;
    w->unrolls = unrolls(node, shape);
    if (!w->unrolls)
        return plan_call(program, kernel, w, err);
    plan_product(program, w);
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

static void run_product(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                        const struct dpt_conv_weights *w)
{
    const struct dpt_gemm *p = &w->product;
    float *patches = dpt_cpu_buffer(run, w->patches), *rows = dpt_cpu_buffer(run, w->rows);

    unroll(&w->shape, dpt_cpu_buffer(run, w->x), patches);
    put_rows(&w->shape, dpt_cpu_buffer(run, w->dy), rows);
    dpt_gemm_weights(p, rows, patches, run->add, 0, p->outputs, run->scratch,
                     dpt_cpu_gradient(run, node->graph->weight));
    if (w->shape.bias)
        dpt_gemm_bias(p, rows, run->add, 0, p->outputs, dpt_cpu_gradient(run, node->graph->bias));
}

void dpt_conv_weights_run(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                          const struct dpt_conv_weights *w)
{
    const int unpack = w->unpack[run->add];
    const bool adds = run->add && w->unpacked != DPT_CPU_NONE;
    float *dw;

    if (w->unrolls)
        run_product(run, node, w);
    if (w->unrolls || w->call == DPT_CPU_NONE)
        return;
    dpt_cpu_execute(run, w->call);
    dw = dpt_cpu_gradient(run, node->graph->weight);
    dpt_cpu_set(run, unpack, DPT_ROLE_Y, adds ? dpt_cpu_buffer(run, w->unpacked) : dw);
    dpt_cpu_execute(run, unpack);
    if (adds)
        dpt_accumulate(unpacked_floats(&w->shape), dpt_cpu_buffer(run, w->unpacked), true, dw);
    if (w->shape.bias)
        dpt_accumulate(w->shape.out_channels, dpt_cpu_buffer(run, w->db), run->add,
                       dpt_cpu_gradient(run, node->graph->bias));
}

#include "core/backend/ref/ref.h"

#include <math.h>

/* The part of a pool's window that lies on the input: rows [first[0], last[0]), columns [first[1],
 * last[1]). */
struct patch {
    int32_t first[2], last[2];
};

/* A pool without a window, the global one, takes all that there is; an upsampling is an adaptive
 * pool whose patches are one number. */
static struct patch patch_of(const struct dpt_graph_node *node, int32_t row, int32_t column)
{
    const int32_t output[2] = {row, column}, inputs[2] = {node->in.h, node->in.w};
    const struct dpt_window *w = &node->window;
    const int64_t outputs[2] = {node->out.h, node->out.w};
    const bool adaptive = node->op == DPT_OP_ADAPTIVE_AVGPOOL || node->op == DPT_OP_UPSAMPLE;
    struct patch p;

    for (int axis = 0; adaptive && axis < 2; axis++) {
        const int64_t i = output[axis], in = inputs[axis], n = outputs[axis];

        p.first[axis] = (int32_t)(i * in / n);
        p.last[axis] = (int32_t)(((i + 1) * in + n - 1) / n);
    }
    for (int axis = 0; !adaptive && axis < 2; axis++) {
        const int64_t start = (int64_t)output[axis] * w->stride[axis] - w->before[axis];
        const int64_t end = start + w->kernel[axis];

        p.first[axis] = start > 0 ? (int32_t)start : 0;
        p.last[axis] = w->kernel[axis] > 0 && end < inputs[axis] ? (int32_t)end : inputs[axis];
    }
    return p;
}

/* --- max -------------------------------------------------------------------------------------- */

static size_t max_saved(const struct dpt_graph_node *node)
{
    return (size_t)dpt_shape_size(&node->out);
}

/* Saves where in its plane each maximum was. */
static void max_window(const struct dpt_ref_call *call, int32_t row, int32_t column, size_t input,
                       size_t output)
{
    const struct patch p = patch_of(call->node, row, column);
    const int32_t width = call->node->in.w;
    const float *x = call->x + input;
    int32_t *saved = call->saved, best = p.first[0] * width + p.first[1];
    float top = x[best];

    for (int32_t i = p.first[0]; i < p.last[0]; i++) {
        for (int32_t j = p.first[1]; j < p.last[1]; j++) {
            const float value = x[i * width + j];

            /* Larger, or the first NaN: a NaN wins, so that it reaches the outputs. */
            if (!(value <= top) && !isnan(top)) {
                best = i * width + j;
                top = value;
            }
        }
    }
    call->y[output] = top;
    if (saved != NULL)
        saved[output] = best;
}

static void max_forward(const struct dpt_ref_call *call)
{
    dpt_ref_each_output(call, max_window);
}

static void max_window_back(const struct dpt_ref_call *call, int32_t row, int32_t column,
                            size_t input, size_t output)
{
    const int32_t *saved = call->saved;

    (void)row;
    (void)column;
    call->dx[input + (size_t)saved[output]] += call->dy[output];
}

static void max_backward(const struct dpt_ref_call *call)
{
    dpt_ref_each_output(call, max_window_back);
}

/* --- average ---------------------------------------------------------------------------------- */

static double area_of(const struct dpt_graph_node *node)
{
    const struct dpt_window *w = &node->window;

    return w->kernel[0] > 0 ? (double)w->kernel[0] * w->kernel[1] : (double)node->in.h * node->in.w;
}

static double sum_of(const struct dpt_ref_call *call, const struct patch *p, size_t input)
{
    double sum = 0;

    for (int32_t i = p->first[0]; i < p->last[0]; i++)
        for (int32_t j = p->first[1]; j < p->last[1]; j++)
            sum += call->x[input + (size_t)(i * call->node->in.w + j)];
    return sum;
}

static void average_window(const struct dpt_ref_call *call, int32_t row, int32_t column,
                           size_t input, size_t output)
{
    const struct patch p = patch_of(call->node, row, column);

    call->y[output] = (float)(sum_of(call, &p, input) / area_of(call->node));
}

static void average_forward(const struct dpt_ref_call *call)
{
    dpt_ref_each_output(call, average_window);
}

static void share_out(const struct dpt_ref_call *call, const struct patch *p, size_t input,
                      float share)
{
    for (int32_t i = p->first[0]; i < p->last[0]; i++)
        for (int32_t j = p->first[1]; j < p->last[1]; j++)
            call->dx[input + (size_t)(i * call->node->in.w + j)] += share;
}

static void average_window_back(const struct dpt_ref_call *call, int32_t row, int32_t column,
                                size_t input, size_t output)
{
    const struct patch p = patch_of(call->node, row, column);

    share_out(call, &p, input, (float)(call->dy[output] / area_of(call->node)));
}

static void average_backward(const struct dpt_ref_call *call)
{
    dpt_ref_each_output(call, average_window_back);
}

const struct dpt_ref_op dpt_ref_maxpool = {
    .forward = max_forward,
    .backward = max_backward,
    .saved = max_saved,
};

#define AVERAGE                                                                                    \
    {                                                                                              \
        .forward = average_forward, .backward = average_backward                                   \
    }
const struct dpt_ref_op dpt_ref_avgpool = AVERAGE, dpt_ref_global_avgpool = AVERAGE;

/* --- adaptive --------------------------------------------------------------------------------- */

static double area_of_patch(const struct patch *p)
{
    return (double)(p->last[0] - p->first[0]) * (p->last[1] - p->first[1]);
}

static void adaptive_window(const struct dpt_ref_call *call, int32_t row, int32_t column,
                            size_t input, size_t output)
{
    const struct patch p = patch_of(call->node, row, column);

    call->y[output] = (float)(sum_of(call, &p, input) / area_of_patch(&p));
}

static void adaptive_forward(const struct dpt_ref_call *call)
{
    dpt_ref_each_output(call, adaptive_window);
}

static void adaptive_window_back(const struct dpt_ref_call *call, int32_t row, int32_t column,
                                 size_t input, size_t output)
{
    const struct patch p = patch_of(call->node, row, column);

    share_out(call, &p, input, (float)(call->dy[output] / area_of_patch(&p)));
}

static void adaptive_backward(const struct dpt_ref_call *call)
{
    dpt_ref_each_output(call, adaptive_window_back);
}

#define ADAPTIVE                                                                                   \
    {                                                                                              \
        .forward = adaptive_forward, .backward = adaptive_backward                                 \
    }
const struct dpt_ref_op dpt_ref_adaptive_avgpool = ADAPTIVE, dpt_ref_upsample = ADAPTIVE;

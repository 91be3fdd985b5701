#include "core/backend/ref/ref.h"

#include <math.h>

/* The part of a pool's window that lies on the input: rows [first[0], last[0]), columns [first[1],
 * last[1]). */
struct patch {
    int32_t first[2], last[2];
    double area; /* of the average; the padding that is under a window counts */
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
    p.area = adaptive || w->kernel[0] == 0
                 ? (double)(p.last[0] - p.first[0]) * (p.last[1] - p.first[1])
                 : (double)w->kernel[0] * w->kernel[1];
    return p;
}

/* --- max -------------------------------------------------------------------------------------- */

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

static void max_window_back(const struct dpt_ref_call *call, int32_t row, int32_t column,
                            size_t input, size_t output)
{
    const int32_t *saved = call->saved;

    (void)row;
    (void)column;
    call->dx[input + (size_t)saved[output]] += call->dy[output];
}

const struct dpt_ref_op dpt_ref_maxpool = {
    .forward_each = max_window,
    .backward_each = max_window_back,
    .saved = dpt_ref_save_outputs,
};

/* --- average ---------------------------------------------------------------------------------- */

static void average_window(const struct dpt_ref_call *call, int32_t row, int32_t column,
                           size_t input, size_t output)
{
    const struct patch p = patch_of(call->node, row, column);
    double sum = 0;

    for (int32_t i = p.first[0]; i < p.last[0]; i++)
        for (int32_t j = p.first[1]; j < p.last[1]; j++)
            sum += call->x[input + (size_t)(i * call->node->in.w + j)];
    call->y[output] = (float)(sum / p.area);
}

static void average_window_back(const struct dpt_ref_call *call, int32_t row, int32_t column,
                                size_t input, size_t output)
{
    const struct patch p = patch_of(call->node, row, column);
    const float share = (float)(call->dy[output] / p.area);

    for (int32_t i = p.first[0]; i < p.last[0]; i++)
        for (int32_t j = p.first[1]; j < p.last[1]; j++)
            call->dx[input + (size_t)(i * call->node->in.w + j)] += share;
}

#define AVERAGE                                                                                    \
    {                                                                                              \
        .forward_each = average_window, .backward_each = average_window_back                       \
    }
const struct dpt_ref_op dpt_ref_avgpool = AVERAGE, dpt_ref_global_avgpool = AVERAGE,
                        dpt_ref_adaptive_avgpool = AVERAGE, dpt_ref_upsample = AVERAGE;

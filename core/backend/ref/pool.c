#include "core/backend/ref/ref.h"

#include <math.h>

/* The part of a pool's window that lies on the input: rows [top, bottom), columns [left, right). */
struct patch {
    int32_t top, bottom, left, right;
};

static void clip(const struct dpt_window *w, int axis, int32_t output, int32_t inputs,
                 int32_t *first, int32_t *last)
{
    const int64_t start = (int64_t)output * w->stride[axis] - w->before[axis];
    const int64_t end = start + w->kernel[axis];

    *first = start > 0 ? (int32_t)start : 0;
    *last = end < inputs ? (int32_t)end : inputs;
}

static struct patch patch_of(const struct dpt_graph_node *node, int32_t row, int32_t column)
{
    struct patch p;

    clip(&node->window, 0, row, node->in.h, &p.top, &p.bottom);
    clip(&node->window, 1, column, node->in.w, &p.left, &p.right);
    return p;
}

/* Calls work for each plane (a channel of a sample); outputs are numbered through all planes. */
static void each_plane(const struct dpt_ref_call *call,
                       void (*work)(const struct dpt_ref_call *call, size_t input, size_t output))
{
    const size_t channels = (size_t)call->node->in.c;
    const size_t in = call->in / channels, out = call->out / channels;

    for (size_t plane = 0; plane < call->count * channels; plane++)
        work(call, plane * in, plane * out);
}

static size_t max_saved(const struct dpt_graph_node *node)
{
    return (size_t)dpt_shape_size(&node->out);
}

static int32_t max_of(const float *x, int32_t width, const struct patch *p)
{
    int32_t best = p->top * width + p->left;
    float top = x[best];

    for (int32_t i = p->top; i < p->bottom; i++) {
        for (int32_t j = p->left; j < p->right; j++) {
            const float value = x[i * width + j];

            /* Larger, or the first that is not a number: that wins, so that it is seen at the end.
             */
            if (!(value <= top) && !isnan(top)) {
                best = i * width + j;
                top = value;
            }
        }
    }
    return best;
}

/* Saves where in its plane each maximum was. */
static void max_plane(const struct dpt_ref_call *call, size_t input, size_t output)
{
    const struct dpt_graph_node *node = call->node;
    const float *x = call->x + input;
    int32_t *saved = call->saved;

    for (int32_t i = 0; i < node->out.h; i++) {
        for (int32_t j = 0; j < node->out.w; j++, output++) {
            const struct patch p = patch_of(node, i, j);
            const int32_t best = max_of(x, node->in.w, &p);

            call->y[output] = x[best];
            if (saved != NULL)
                saved[output] = best;
        }
    }
}

static void max_plane_back(const struct dpt_ref_call *call, size_t input, size_t output)
{
    const int32_t *saved = call->saved;
    const size_t n = (size_t)call->node->out.h * (size_t)call->node->out.w;

    for (size_t o = output; o < output + n; o++)
        call->dx[input + (size_t)saved[o]] += call->dy[o];
}

static void average_plane(const struct dpt_ref_call *call, size_t input, size_t output)
{
    const struct dpt_graph_node *node = call->node;
    const double area = (double)node->window.kernel[0] * node->window.kernel[1];

    for (int32_t i = 0; i < node->out.h; i++) {
        for (int32_t j = 0; j < node->out.w; j++, output++) {
            const struct patch p = patch_of(node, i, j);
            double sum = 0;

            for (int32_t r = p.top; r < p.bottom; r++) {
                const float *row = call->x + input + (size_t)r * (size_t)node->in.w;

                for (int32_t c = p.left; c < p.right; c++)
                    sum += row[c];
            }
            call->y[output] = (float)(sum / area);
        }
    }
}

static void average_plane_back(const struct dpt_ref_call *call, size_t input, size_t output)
{
    const struct dpt_graph_node *node = call->node;
    const double area = (double)node->window.kernel[0] * node->window.kernel[1];

    for (int32_t i = 0; i < node->out.h; i++) {
        for (int32_t j = 0; j < node->out.w; j++, output++) {
            const struct patch p = patch_of(node, i, j);
            const float share = (float)(call->dy[output] / area);

            for (int32_t r = p.top; r < p.bottom; r++) {
                float *row = call->dx + input + (size_t)r * (size_t)node->in.w;

                for (int32_t c = p.left; c < p.right; c++)
                    row[c] += share;
            }
        }
    }
}

static void mean_plane(const struct dpt_ref_call *call, size_t input, size_t output)
{
    const size_t n = (size_t)call->node->in.h * (size_t)call->node->in.w;
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += call->x[input + i];
    call->y[output] = (float)(sum / (double)n);
}

static void mean_plane_back(const struct dpt_ref_call *call, size_t input, size_t output)
{
    const size_t n = (size_t)call->node->in.h * (size_t)call->node->in.w;
    const float share = (float)(call->dy[output] / (double)n);

    for (size_t i = 0; i < n; i++)
        call->dx[input + i] += share;
}

static void max_forward(const struct dpt_ref_call *call)
{
    each_plane(call, max_plane);
}

static void max_backward(const struct dpt_ref_call *call)
{
    each_plane(call, max_plane_back);
}

static void average_forward(const struct dpt_ref_call *call)
{
    each_plane(call, average_plane);
}

static void average_backward(const struct dpt_ref_call *call)
{
    each_plane(call, average_plane_back);
}

static void mean_forward(const struct dpt_ref_call *call)
{
    each_plane(call, mean_plane);
}

static void mean_backward(const struct dpt_ref_call *call)
{
    each_plane(call, mean_plane_back);
}

const struct dpt_ref_op dpt_ref_maxpool = {
    .forward = max_forward,
    .backward = max_backward,
    .saved = max_saved,
};

const struct dpt_ref_op dpt_ref_avgpool = {
    .forward = average_forward,
    .backward = average_backward,
};

const struct dpt_ref_op dpt_ref_global_avgpool = {
    .forward = mean_forward,
    .backward = mean_backward,
};

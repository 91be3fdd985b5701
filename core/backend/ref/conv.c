#include "core/backend/ref/ref.h"

#include <string.h>

#include "core/base/vector.h"

/*
 * A convolution as matrix products: the patches under the kernel are copied out as columns, so that
 * padding, stride and dilation are the copy's matter alone. Columns are made for a band of output
 * rows at a time, which stays in the cache.
 */
enum { BAND_FLOATS = 1 << 15 };

/* One group of one convolution. */
struct conv {
    const struct dpt_graph_node *node;
    size_t channels;            /* input channels of a group */
    size_t filters;             /* output channels of a group */
    size_t patch;               /* channels x kernel height x kernel width: rows of the columns */
    size_t in_plane, out_plane; /* height x width */
    int32_t band;               /* output rows at a time */
};

static struct conv conv_of(const struct dpt_graph_node *node)
{
    const struct dpt_window *w = &node->window;
    struct conv c = {.node = node};
    size_t rows;

    c.channels = (size_t)(node->in.c / w->groups);
    c.filters = (size_t)(node->out.c / w->groups);
    c.patch = c.channels * (size_t)w->kernel[0] * (size_t)w->kernel[1];
    c.in_plane = (size_t)node->in.h * (size_t)node->in.w;
    c.out_plane = (size_t)node->out.h * (size_t)node->out.w;
    rows = BAND_FLOATS / (c.patch * (size_t)node->out.w);
    if (rows > (size_t)node->out.h)
        rows = (size_t)node->out.h;
    c.band = rows == 0 ? 1 : (int32_t)rows;
    return c;
}

static size_t scratch(const struct dpt_graph_node *node)
{
    const struct conv c = conv_of(node);

    return c.patch * (size_t)c.band * (size_t)node->out.w;
}

/* The outputs [*first, *last) of a row whose kernel element lies on the input, not on its padding;
 * `start` is where it lies for output 0. */
static void inside(int64_t start, int32_t stride, int32_t inputs, int32_t outputs, int32_t *first,
                   int32_t *last)
{
    const int64_t lowest = start >= 0 ? 0 : (stride - 1 - start) / stride;
    const int64_t end = start >= inputs ? 0 : (inputs - 1 - start) / stride + 1;

    *last = end < outputs ? (int32_t)end : outputs;
    *first = lowest < *last ? (int32_t)lowest : *last;
}

/* Walks the columns [patch][rows x out.w] of the output rows `top` … `top + rows - 1` together with
 * one group's input planes. The planes are copied into the columns; `back`: the columns are added
 * to the planes. */
DPT_INLINE void walk(const struct conv *c, int32_t top, int32_t rows, bool back, float *columns,
                     float *input)
{
    const struct dpt_window *w = &c->node->window;
    const int32_t in_h = c->node->in.h, in_w = c->node->in.w, out_w = c->node->out.w;

    for (size_t p = 0; p < c->patch; p++) {
        const int32_t kx = (int32_t)(p % (size_t)w->kernel[1]);
        const int32_t ky = (int32_t)(p / (size_t)w->kernel[1] % (size_t)w->kernel[0]);
        float *plane = input + p / ((size_t)w->kernel[0] * (size_t)w->kernel[1]) * c->in_plane;
        const int64_t left = (int64_t)kx * w->dilation[1] - w->before[1];
        int32_t first, last;

        inside(left, w->stride[1], in_w, out_w, &first, &last);
        for (int32_t row = 0; row < rows; row++) {
            const int64_t y =
                (int64_t)(top + row) * w->stride[0] + (int64_t)ky * w->dilation[0] - w->before[0];
            const int32_t end = y >= 0 && y < in_h ? last : first;
            float *from =
                plane + (first < end ? y * in_w + left + (int64_t)first * w->stride[1] : 0);

            if (!back)
                memset(columns, 0, (size_t)out_w * sizeof *columns);
            for (int32_t o = first; o < end; o++) {
                if (back)
                    from[(int64_t)(o - first) * w->stride[1]] += columns[o];
                else
                    columns[o] = from[(int64_t)(o - first) * w->stride[1]];
            }
            columns += out_w;
        }
    }
}

/* y += W columns, over the bands of one sample's group. */
static void forward_group(const struct dpt_ref_call *call, const struct conv *c, const float *x,
                          const float *weight, float *y)
{
    const size_t width = (size_t)c->node->out.w;

    for (int32_t top = 0; top < c->node->out.h; top += c->band) {
        const int32_t left = c->node->out.h - top, rows = left < c->band ? left : c->band;
        const size_t n = (size_t)rows * width;

        walk(c, top, rows, false, call->scratch, (float *)x); /* x is only read */
        dpt_ref_matmul_add(c->filters, n, c->patch, (struct dpt_ref_matrix){weight, c->patch, 1},
                           (struct dpt_ref_matrix){call->scratch, n, 1}, y + (size_t)top * width,
                           c->out_plane);
    }
}

/* dW += dy columns'; the columns' gradient is W' dy and goes back to where the columns came from.
 */
static void backward_group(const struct dpt_ref_call *call, const struct conv *c, const float *x,
                           const float *weight, const float *dy, float *dweight, float *dx)
{
    const size_t width = (size_t)c->node->out.w;

    for (int32_t top = 0; top < c->node->out.h; top += c->band) {
        const int32_t left = c->node->out.h - top, rows = left < c->band ? left : c->band;
        const size_t n = (size_t)rows * width;
        const float *from = dy + (size_t)top * width;

        walk(c, top, rows, false, call->scratch, (float *)x);
        dpt_ref_matmul_add(c->filters, c->patch, n, (struct dpt_ref_matrix){from, c->out_plane, 1},
                           (struct dpt_ref_matrix){call->scratch, 1, n}, dweight, c->patch);
        if (dx == NULL)
            continue;
        memset(call->scratch, 0, c->patch * n * sizeof *call->scratch);
        dpt_ref_matmul_add(c->patch, n, c->filters, (struct dpt_ref_matrix){weight, 1, c->patch},
                           (struct dpt_ref_matrix){from, c->out_plane, 1}, call->scratch, n);
        walk(c, top, rows, true, call->scratch, dx);
    }
}

static void forward(const struct dpt_ref_call *call)
{
    const struct conv c = conv_of(call->node);
    const size_t groups = (size_t)call->node->window.groups;

    for (size_t i = 0; i < call->count; i++) {
        float *y = call->y + i * call->out;

        for (size_t o = 0; o < c.filters * groups; o++) {
            for (size_t p = 0; p < c.out_plane; p++)
                y[o * c.out_plane + p] = call->bias != NULL ? call->bias[o] : 0;
        }
        for (size_t g = 0; g < groups; g++)
            forward_group(call, &c, call->x + i * call->in + g * c.channels * c.in_plane,
                          call->weight + g * c.filters * c.patch, y + g * c.filters * c.out_plane);
    }
}

static void backward(const struct dpt_ref_call *call)
{
    const struct conv c = conv_of(call->node);
    const size_t groups = (size_t)call->node->window.groups;

    for (size_t o = 0; call->dbias != NULL && o < c.filters * groups; o++) {
        double sum = 0;

        for (size_t i = 0; i < call->count; i++) {
            for (size_t p = 0; p < c.out_plane; p++)
                sum += call->dy[i * call->out + o * c.out_plane + p];
        }
        call->dbias[o] += (float)sum;
    }
    for (size_t i = 0; i < call->count; i++) {
        for (size_t g = 0; g < groups; g++) {
            const size_t in = i * call->in + g * c.channels * c.in_plane;
            const size_t weights = g * c.filters * c.patch;

            backward_group(call, &c, call->x + in, call->weight + weights,
                           call->dy + i * call->out + g * c.filters * c.out_plane,
                           call->dweight + weights, call->dx != NULL ? call->dx + in : NULL);
        }
    }
}

const struct dpt_ref_op dpt_ref_conv = {
    .forward = forward,
    .backward = backward,
    .scratch = scratch,
};

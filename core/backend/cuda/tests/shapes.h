/*
 * shapes: convolutions for tests. To be included once in a program.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_SHAPES_H
#define DPT_BACKEND_CUDA_TESTS_SHAPES_H

#include "core/backend/cuda/libraries/plan.h"

/* Samples, a window, channels and size: the shapes of the job files' networks, and others. */
static const struct shape {
    const char *what;
    int32_t n, c, h, w, out;
    struct dpt_window window;
} shapes[] = {
#define SQUARE(k, s, p, g)                                                                         \
    {                                                                                              \
        {k, k}, {s, s}, {1, 1}, {p, p}, {p, p}, g                                                  \
    }
    {"mnist conv1", 128, 1, 28, 28, 32, SQUARE(3, 1, 1, 1)},
    {"mnist conv2", 128, 32, 14, 14, 64, SQUARE(3, 1, 1, 1)},
    {"cifar conv1", 128, 3, 32, 32, 32, SQUARE(3, 1, 1, 1)},
    {"cifar conv2", 128, 32, 16, 16, 64, SQUARE(3, 1, 1, 1)},
    {"large batch", 1024, 32, 16, 16, 64, SQUARE(3, 1, 1, 1)},
    {"one sample", 1, 64, 16, 16, 64, SQUARE(3, 1, 1, 1)},
    {"7x7 stride 2", 32, 3, 224, 224, 64, SQUARE(7, 2, 3, 1)},
    {"3x3 stride 2", 32, 64, 56, 56, 128, SQUARE(3, 2, 1, 1)},
    {"1x1", 32, 64, 56, 56, 128, SQUARE(1, 1, 0, 1)},
    {"1x1 stride 2", 32, 64, 56, 56, 128, SQUARE(1, 2, 0, 1)},
    {"5x5", 64, 16, 28, 28, 48, SQUARE(5, 1, 2, 1)},
    {"odd channels", 16, 7, 13, 11, 9, SQUARE(3, 1, 1, 1)},
    {"one output", 16, 10, 9, 9, 1, SQUARE(3, 1, 0, 1)},
    {"odd and uneven", 5, 7, 13, 11, 9, {{3, 2}, {2, 1}, {1, 1}, {0, 1}, {1, 0}, 1}},
    {"even kernel, same", 16, 16, 17, 17, 24, {{2, 2}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"dilated", 16, 16, 17, 17, 24, {{3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}, 1}},
    {"row kernel", 8, 24, 20, 30, 24, {{1, 7}, {1, 1}, {1, 1}, {0, 3}, {0, 3}, 1}},
    {"groups of 8", 16, 32, 15, 15, 64, SQUARE(3, 1, 1, 4)},
    {"groups of 4", 16, 12, 15, 15, 12, SQUARE(3, 1, 1, 3)},
    {"each channel", 16, 32, 15, 15, 32, SQUARE(3, 1, 1, 32)},
    {"whole image", 64, 64, 7, 7, 128, SQUARE(7, 1, 0, 1)},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static inline struct dpt_graph_node node_of(const struct shape *s)
{
    struct dpt_graph_node node = {.op = DPT_OP_CONV,
                                  .in = {s->c, s->h, s->w, false},
                                  .window = s->window,
                                  .weight = 0,
                                  .bias = 1};

    node.out = (struct dpt_shape){s->out, dpt_window_extent(&s->window, 0, s->h),
                                  dpt_window_extent(&s->window, 1, s->w), false};
    return node;
}

static inline void describe_conv(const struct dpt_graph_node *node, int64_t n,
                                 enum dpt_precision precision, struct dpt_cuda_conv *conv)
{
    dpt_cuda_conv_describe(node, n, precision, dpt_cuda_pitch(precision, node->in.c),
                           dpt_cuda_pitch(precision, node->out.c), conv);
}

#endif

/*
 * layout: how activations lie in memory, and the shape of a convolution, as all kernels here take
 * them.
 */
#ifndef DPT_BACKEND_CPU_LAYOUT_H
#define DPT_BACKEND_CPU_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/graph.h"

/*
 * The memory layout of activations [n][c][h][w]: [n][c / block][h][w][block], the last block padded
 * with zeros. The block is 1 in NCHW, c in NHWC, 8 and 16 in the other two.
 */
enum dpt_memory_layout {
    DPT_LAYOUT_ANY, /* as a request: oneDNN chooses; as an answer: none of these */
    DPT_LAYOUT_NCHW,
    DPT_LAYOUT_NHWC,
    DPT_LAYOUT_C8,
    DPT_LAYOUT_C16,
};

/* Channels in a block. */
static inline int32_t dpt_layout_block(enum dpt_memory_layout layout, int32_t channels)
{
    const int32_t blocks[] = {1, 1, channels, 8, 16};

    return blocks[layout];
}

/* Floats of one sample, padding included. */
static inline int64_t dpt_layout_floats(enum dpt_memory_layout layout, int32_t c, int32_t h,
                                        int32_t w)
{
    const int64_t block = dpt_layout_block(layout, c);

    return (c + block - 1) / block * block * h * w;
}

enum dpt_conv_pass {
    DPT_CONV_FORWARD,
    DPT_CONV_BACKWARD_DATA,    /* the gradient of the input */
    DPT_CONV_BACKWARD_WEIGHTS, /* those of weights and bias */
    DPT_CONV_PASSES
};

struct dpt_conv_shape {
    int32_t n, in_channels, out_channels, in[2], out[2];
    struct dpt_window window;
    bool bias;
};

#endif

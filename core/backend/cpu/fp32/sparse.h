/*
 * sparse: backward through convolution, relu and max-pool at once.
 *
 * If a max-pool of 2 x 2 follows, at most one of four outputs of the convolution has a gradient;
 * the others are exact zeros. So instead of a dense gradient there is, for each output channel, a
 * list of (where, how much), and both products are sums over lists: an entry adds a multiple of a
 * patch of the input to the gradient of the weights, and a multiple of the weights to a patch of
 * the gradient of the input. A quarter of the multiplications or less, and nothing is unpooled.
 *
 * It serves convolutions of stride, dilation and groups 1 with kernels of 3 x 3 or 5 x 5; and with
 * any kernel if the input has few channels and no gradient is wanted (the first layer).
 *
 * Sums run in an order that depends on shapes and on the instruction set only. What the relu cut
 * off takes no part; everything else does, whatever its value, so NaN is passed on.
 */
#ifndef DPT_BACKEND_CPU_SPARSE_H
#define DPT_BACKEND_CPU_SPARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/cpu/layout.h"
#include "core/base/error.h"
#include "core/base/isa.h"

struct dpt_sparse_shape {
    int32_t in_channels, out_channels;
    int32_t in[2], out[2], kernel[2], before[2]; /* of the convolution */
    int32_t pooled[2];
    enum dpt_memory_layout x, y; /* of the input and its gradient; of the pool's output */
    bool wants_dx;
};

/* One micro-batch. All pointers are borrowed; arrays of activations are in the shape's layouts. */
struct dpt_sparse_work {
    int32_t count, micro; /* samples that there are; dx has zeros after them */
    const float *x, *dy;
    const int32_t *argmax; /* 0 to 3: which of the window won; -1: none */
    const float *packed;   /* from dpt_sparse_pack; for dx */
    float *scratch; /* dpt_sparse_scratch floats, zero before the first call; a thread's own */
    bool add;       /* to dw and db, which are overwritten else */
    float *dw, *db; /* canonical; db may be NULL */
    float *dx;      /* if wants_dx */
};

struct dpt_sparse;

bool dpt_sparse_fits(const struct dpt_sparse_shape *shape);
/* Immutable and shared by all threads; for dpt_free. It uses the best instructions that this
 * machine has up to `isa`. Errors: RANK. */
enum dpt_status dpt_sparse_open(const struct dpt_sparse_shape *shape, enum dpt_isa isa,
                                struct dpt_sparse **sparse, struct dpt_error *err);

int64_t dpt_sparse_scratch(const struct dpt_sparse *sparse);
/* Floats of the weights as the gradient of the input reads them; and puts them so. */
int64_t dpt_sparse_packed(const struct dpt_sparse *sparse);
void dpt_sparse_pack(const struct dpt_sparse *sparse, const float *weights, float *packed);

void dpt_sparse_backward(const struct dpt_sparse *sparse, const struct dpt_sparse_work *work);

#endif

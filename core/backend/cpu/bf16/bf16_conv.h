/*
 * bf16_conv: convolutions as products of bf16_tile.h, without unrolling patches.
 *
 * What is read lies in memory as one long line of pixels, row after row, with zeros between rows
 * and around: so 16 outputs side by side, whichever rows they are in, read 16 pixels side by side
 * for each tap of the kernel. With a stride, each of its phases is a line of its own; the gradient
 * of the input has the phases on the other side. Between two rows a few outputs are computed that
 * do not exist, and are dropped.
 *
 * The passes take the relu and the max-pool of 2 x 2 after the convolution with them: forward never
 * writes the convolution's own output, and backward spreads the pool's gradient where it is packed.
 *
 * Groups are 1. Activations are in blocks of 16 channels (DPT_LAYOUT_C16); x may also be in planes
 * (DPT_LAYOUT_NCHW) if it has few channels and no gradient is wanted. Bits depend on the shape and
 * on the instructions only.
 */
#ifndef DPT_BACKEND_CPU_BF16_CONV_H
#define DPT_BACKEND_CPU_BF16_CONV_H

#include "core/backend/cpu/bf16/bf16_tile.h"
#include "core/backend/cpu/layout.h"
#include "core/base/error.h"

enum { DPT_BF16_FEW = 8 }; /* channels that x may have in planes, at most */

struct dpt_bf16_conv_shape {
    int32_t in_channels, out_channels, in[2], out[2];
    struct dpt_window window;
    enum dpt_memory_layout x;
    bool x_bf16;       /* rounded already, in half the space; in blocks */
    bool relu, pool;   /* after it, the relu first */
    int32_t pooled[2]; /* with `pool` */
    bool backward, wants_dx;
};

/* One micro-batch's backward passes. All pointers are borrowed. */
struct dpt_bf16_conv_work {
    int32_t count, micro; /* samples that there are; dx has zeros after them */
    const void *x, *dy;   /* dy: of the pool, if there is one */
    bool dy_bf16;         /* as x_bf16; not of a pool */
    const int8_t *argmax; /* of the pool: 0 to 3; -1: none */
    const float *packed;  /* from dpt_bf16_conv_pack, for dx */
    float *scratch;
    bool add;       /* to dw and db, which are overwritten else */
    float *dw, *db; /* canonical; NULL: not wanted */
    float *dx;      /* if wants_dx */
    /* Laid out as dx, or NULL: what is added to it; and a relu's output, which lets pass the sum if
     * it is positive. */
    const float *added, *known;
};

struct dpt_bf16_conv;

/* For micro-batches of at most `micro` samples. Immutable and shared by all threads; for
 * dpt_bf16_conv_close. Errors: RANK. */
enum dpt_status dpt_bf16_conv_open(const struct dpt_bf16_conv_shape *shape,
                                   const struct dpt_bf16_kernels *kernels, int32_t micro,
                                   struct dpt_bf16_conv **opened, struct dpt_error *err);
void dpt_bf16_conv_close(struct dpt_bf16_conv *conv);

/* Floats of a thread's workspace. */
int64_t dpt_bf16_conv_scratch(const struct dpt_bf16_conv *conv);
/* Floats of the weights as forward, or (`data`) the gradient of the input, reads them; and rounds
 * and puts them so. weights: [out][in][kernel][kernel]. */
int64_t dpt_bf16_conv_packed(const struct dpt_bf16_conv *conv, bool data);
void dpt_bf16_conv_pack(const struct dpt_bf16_conv *conv, bool data, const float *weights,
                        float *packed);

/* bias: out_channels, and zeros up to a multiple of 16, or NULL. added: laid out as y, added before
 * the relu, or NULL; not with a pool. y, argmax: of the pool, if there is one; argmax NULL: not
 * wanted. */
void dpt_bf16_conv_forward(const struct dpt_bf16_conv *conv, int32_t samples, const void *x,
                           const float *packed, const float *bias, const float *added,
                           float *scratch, float *y, int8_t *argmax);
void dpt_bf16_conv_backward(const struct dpt_bf16_conv *conv,
                            const struct dpt_bf16_conv_work *work);

#endif

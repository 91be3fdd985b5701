/*
 * winograd: forward of 3 x 3 convolutions with a quarter of the multiplications, and the relu and
 * max-pool behind it in the same pass, so that the convolution's own output is never written.
 *
 * F(4 x 4, 3 x 3) of Lavin & Gray (2016): tiles of 6 x 6 inputs give 4 x 4 outputs. Rounding is
 * somewhat larger than that of the direct sum (about 1e-6 relative instead of 2e-7), and depends on
 * the shape only: an output has the same bits in any micro-batch and on any thread. A number that
 * is none spreads over its tile.
 *
 * Activations are in blocks of 16 channels (DPT_LAYOUT_C16). Stride, dilation and groups are 1.
 */
#ifndef DPT_BACKEND_CPU_WINOGRAD_H
#define DPT_BACKEND_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/cpu/winograd_kernels.h"
#include "core/base/error.h"

struct dpt_winograd {
    int32_t in_channels, out_channels, in[2], out[2], before[2];
    int32_t pooled[2]; /* where `pool` */
    bool pool, relu;   /* of 2 x 2, side by side; before it */
    const struct dpt_winograd_kernels *kernels;
};

/* Whether it is faster than the direct sum: by the shape alone, so that it is the same for all. */
bool dpt_winograd_pays(const struct dpt_winograd *w);

/* Floats of the scratch memory (a thread's own); of the transformed weights. */
int64_t dpt_winograd_scratch(const struct dpt_winograd *w);
int64_t dpt_winograd_packed(const struct dpt_winograd *w);
/* weights: [out][in][3][3]. */
void dpt_winograd_pack(const struct dpt_winograd *w, const float *weights, float *packed);

/* bias: out_channels, and zeros up to a multiple of 16; or NULL. argmax: as y; NULL: not wanted. */
void dpt_winograd_forward(const struct dpt_winograd *w, int32_t samples, const float *x,
                          const float *packed, const float *bias, float *scratch, float *y,
                          int32_t *argmax);

#endif

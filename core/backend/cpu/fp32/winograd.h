/*
 * winograd: forward of 3 x 3 convolutions, the gradient of their input, which is forward with
 * turned kernels, and that of their weights, with a quarter of the multiplications. A relu and a
 * max-pool after it are computed in the same pass, so that the convolution's own output is never
 * written.
 *
 * F(4 x 4, 3 x 3) of Lavin & Gray (2016): tiles of 6 x 6 inputs give 4 x 4 outputs. Rounding is
 * somewhat larger than that of the direct sum (about 1e-6 relative instead of 2e-7), and depends on
 * the shape only: an output has the same bits in any micro-batch and on any thread. A NaN or
 * infinity spreads over its tile.
 *
 * Activations are in blocks of 16 channels (DPT_LAYOUT_C16). Stride, dilation and groups are 1.
 */
#ifndef DPT_BACKEND_CPU_WINOGRAD_H
#define DPT_BACKEND_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/isa.h"

/* --- the loops, for several instruction sets -------------------------------------------------- */

/* The points of the transform (0 to 35, six rows of six) are the outermost index of all transformed
 * arrays. */
enum {
    DPT_WINOGRAD_LANES = 16, /* channels of a block */
    DPT_WINOGRAD_OUT = 4,    /* outputs of a tile along each axis */
    DPT_WINOGRAD_IN = 6,     /* inputs of it */
    DPT_WINOGRAD_POINTS = 36,
    DPT_WINOGRAD_BATCH = 16,    /* tiles of one matrix product */
    DPT_WINOGRAD_TOGETHER = 32, /* tiles whose gradients of the weights are summed at a time */
};

/* Where a tile's outputs go: a sample's block of 16 channels, [rows][columns][LANES]. */
struct dpt_winograd_target {
    float *y;
    int32_t *argmax; /* position of the maximum in its window; -1: none (relu); NULL: not wanted */
    int32_t size[2]; /* of y */
    int32_t row, column; /* the tile's first output in y */
    bool pool, relu;     /* y is the maximum of 2 x 2 windows; after a relu */
};

struct dpt_winograd_kernels {
    int32_t group; /* output channels of one matrix product */
    /* Transforms a tile of one block's plane [size][LANES]; `first` is its top left input, and the
     * plane is surrounded by zeros. Writes LANES floats at v + point * step. */
    void (*take)(const float *plane, const int32_t size[2], const int32_t first[2], float *v,
                 int64_t step);
    /* Computes m [BATCH][group] = v [BATCH][channels] u [channels][group] for each point; only the
     * first `tiles` rows and `outputs` columns are needed. */
    void (*multiply)(int32_t tiles, int32_t channels, int32_t outputs, const float *v,
                     const float *u, float *m);
    /* The inverse transform of LANES channels at m + point * step; then bias, relu and pool. */
    void (*give)(const float *m, int64_t step, const float *bias,
                 const struct dpt_winograd_target *target);
    /* As `take`, of a gradient's 4 x 4 outputs, with zeros after the plane. */
    void (*spread)(const float *plane, const int32_t size[2], const int32_t first[2], float *d,
                   int64_t step);
    /* Computes u [inputs][outputs] (+)= the transposed v [TOGETHER][inputs] times
     * d [TOGETHER][outputs] for each point, of which the first `tiles` rows count. */
    void (*accumulate)(int32_t tiles, bool add, int32_t inputs, int32_t outputs, const float *v,
                       const float *d, float *u);
};

/* The best version for this machine up to `most`; NULL: none is faster than the direct sum. */
const struct dpt_winograd_kernels *dpt_winograd_kernels(enum dpt_isa most);

/* --- a layer ---------------------------------------------------------------------------------- */

struct dpt_winograd {
    int32_t in_channels, out_channels, in[2], out[2], before[2];
    int32_t pooled[2]; /* with `pool` */
    /* a max-pool of 2 x 2 with stride 2 follows; a relu follows, before the pool */
    bool pool, relu;
    const struct dpt_winograd_kernels *kernels;
};

/* Whether it is faster than the direct sum, judged by the shape alone, so that all ranks decide
 * alike. */
bool dpt_winograd_pays(const struct dpt_winograd *w);

/* Floats of a thread's workspace; of the transformed weights. */
int64_t dpt_winograd_scratch(const struct dpt_winograd *w);
int64_t dpt_winograd_packed(const struct dpt_winograd *w);
/* weights: [out][in][3][3]; or `turned`: [in][out][3][3], each kernel turned by half a circle. */
void dpt_winograd_pack(const struct dpt_winograd *w, const float *weights, bool turned,
                       float *packed);

/* bias: out_channels, and zeros up to a multiple of 16; or NULL. argmax: as y; NULL: not wanted. */
void dpt_winograd_forward(const struct dpt_winograd *w, int32_t samples, const float *x,
                          const float *packed, const float *bias, float *scratch, float *y,
                          int32_t *argmax);

/* The gradient of the weights, by the same algorithm transposed: floats of a thread's workspace. */
int64_t dpt_winograd_weights_scratch(const struct dpt_winograd *w);
/* dw [out][in][3][3] (+)= the sum over all samples; dy is of the convolution's own output. */
void dpt_winograd_weights(const struct dpt_winograd *w, int32_t samples, const float *x,
                          const float *dy, bool add, float *scratch, float *dw);

#endif

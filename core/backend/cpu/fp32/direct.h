/*
 * direct: convolutions as products of patches that are never written.
 *
 * The samples are copied with zeros around them, pixel by pixel with all channels of one side by
 * side, so that an output's patch is a few segments of memory, at the same offsets from each pixel.
 * A tile sums 8 rows, which may begin anywhere, by up to 48 columns over all segments:
 *
 *     forward   8 pixels by outputs, over the patch
 *     data      8 pixels by inputs, over the part of the gradient that they went into; with a
 *               stride, pixels of each phase of it have a patch of their own
 *     weights   8 weights of each output by outputs, over all pixels
 *
 * Of few pixels a good part of what a window reads is zeros around the plane. Pixels that read the
 * same taps of the plane, in all samples, are then rows of the same tiles, without these zeros.
 *
 * Any window, stride, dilation and number of groups, each of which is a convolution of its own;
 * with few channels a group leaves most lanes idle (depthwise.h). The input is in blocks of 16
 * channels or in planes, all else in blocks. A sum is one chain of additions in an order that
 * depends on the shape only; AVX-512, AVX2 and NEON give the same bits. NaN and infinities are
 * propagated; within a block they may spread to the lanes after the last channel.
 */
#ifndef DPT_BACKEND_CPU_DIRECT_H
#define DPT_BACKEND_CPU_DIRECT_H

#include "core/backend/cpu/fp32/gemm.h"
#include "core/backend/cpu/layout.h"
#include "core/base/error.h"

struct dpt_direct_shape {
    struct dpt_conv_shape conv;
    enum dpt_memory_layout x; /* C16, or NCHW if wants_dx is not set */
    bool backward, wants_dx;
    enum dpt_isa isa;
};

struct dpt_direct;

/* Immutable and shared by all threads. Errors: RANK. */
enum dpt_status dpt_direct_open(const struct dpt_direct_shape *shape, struct dpt_direct **opened,
                                struct dpt_error *err);
void dpt_direct_close(struct dpt_direct *direct);

/* Floats of a thread's workspace, aligned to 64 bytes. */
int64_t dpt_direct_scratch(const struct dpt_direct *direct);
/* Floats of the weights as forward, or (`data`) the gradient of the input, reads them; and puts
 * them so. weights: canonical. */
int64_t dpt_direct_packed(const struct dpt_direct *direct, bool data);
void dpt_direct_pack(const struct dpt_direct *direct, bool data, const float *weights,
                     float *packed);

/* bias: out_channels; NULL: none. */
void dpt_direct_forward(const struct dpt_direct *direct, const float *x, const float *packed,
                        const float *bias, float *scratch, float *y);
void dpt_direct_data(const struct dpt_direct *direct, const float *dy, const float *packed,
                     float *scratch, float *dx);
/* Writes, or adds, the gradients of the weights and (NULL: not wanted) the bias. */
void dpt_direct_weights(const struct dpt_direct *direct, const float *x, const float *dy, bool add,
                        float *scratch, float *dw, float *db);

/* Copies a group's channels of the output's gradient, of `samples` samples from `first` on, as
 * tiles read them: [block of outputs (dpt_gemm_block)][sample and pixel][output of the block]. */
void dpt_direct_copy_gradient(const struct dpt_conv_shape *shape, const float *dy, int32_t first,
                              int32_t samples, int32_t group, float *to);

/* db[c] (+)= the sum of the channel's numbers in blocks of 16 channels. */
void dpt_direct_bias(const struct dpt_conv_shape *shape, const float *dy, bool add, float *db);

/* --- the loops, for several instruction sets -------------------------------------------------- */

/* The numbers of a row that are multiplied: k of each segment, `step` floats apart, from its offset
 * on, by as many rows of b from its `first` on. */
struct dpt_direct_sum {
    const int64_t *offsets, *first;
    int64_t segments, k, step;
};

/* c (+)= start + the sum over all segments of a column of the rows times a row of b. b: [row]
 * [16 v], aligned; start: [16 v], or NULL: zeros. Element [m][16 n + lane] of c is at m * row +
 * n * block + lane. */
typedef void dpt_direct_tile(const struct dpt_direct_sum *s, const float *const *rows,
                             const float *b, const float *start, bool add, float *c, int64_t row,
                             int64_t block);

/* The tile of 8 rows by 16 v columns; v is 1, 2 or 3. */
dpt_direct_tile *dpt_direct_tile_for(enum dpt_isa isa, int v);

#endif

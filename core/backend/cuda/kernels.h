/*
 * kernels: what runs on the device where no library has it.
 *
 * Each kernel is a row of DPT_CUDA_KERNELS: its name in the module ("dpt_cuda_" in front), the
 * struct that is its one argument, its threads a block, and whether its threads wait for each
 * other. A launch follows from these: dpt_cuda_kernel_grid gives the blocks, a function of the
 * argument alone, so that sums have the same order on every device. dpt_cuda_kernel_bytes is what a
 * launch must move at least.
 *
 * Activations are NHWC; a pixel's channels begin every `pitch` elements, which is a multiple of 16
 * bytes (only gather also writes less), and what is behind the last channel is zero or unused.
 * _f32 is float, _b16 bfloat16, _h16 IEEE half; sums are float or double. Contraction is off
 * (-fmad=false): what takes each element by itself gives the bits of the host's loops. No atomics
 * on floats: the same bits in each run. Pointers are to device memory, aligned to 16 bytes;
 * counters are zero before the first launch and after each.
 *
 * The source, kernels.cu, is C and CUDA at once: tests/emulate.h runs it on the host.
 */
#ifndef DPT_BACKEND_CUDA_KERNELS_H
#define DPT_BACKEND_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend/loss_scale.h"

/* What the host says of a micro-batch, in device memory: a captured step reads it anew each time.
 */
struct dpt_cuda_control {
    uint64_t seed, step; /* key the dropout */
    int64_t first;       /* place of its first sample in `index` of gather */
    int32_t count;       /* samples; rows behind them are zero and do not count */
    /* Of the step, from here on (dpt_cuda_control_rates). update: its number, 1 is the first. */
    int64_t update;
    float lr, keep, rate, root;
};

/*
 * What the device says; the host reads it now and then.
 *
 * loss_scale: as core/backend/loss_scale.h has it, which says when it changes: a power of two, 1
 * where nothing is scaled, to be set by the host before the first step. The loss kernels multiply
 * dy by it; from_layout and bias_back divide by it, so that arenas hold gradients without a scale.
 * norm changes it, once all ranks' gradients are added up: it is the same on all of them.
 */
struct dpt_cuda_state {
    double norm;                      /* of the mean gradient, before clipping */
    int64_t withheld_update, skipped; /* the first one that was withheld; how many were skipped */
    float scale;                      /* of the gradient in the next update */
    int32_t withheld;                 /* not 0: no update is applied; JUST_NOW: this one alone */
    float loss_scale;
    int32_t good;      /* finite norms since loss_scale last changed */
    int64_t overflows; /* updates left out as loss_scale was too large; not in skipped */
    /* Over all updates that were not withheld, where norm is told `sums`. */
    double loss, correct;
    int64_t samples;
    double weight;
    int64_t weightless; /* updates left out as their samples weigh nothing; not in skipped */
};

enum { DPT_CUDA_WITHHELD = 1, DPT_CUDA_JUST_NOW }; /* dpt_cuda_state.withheld */

/* As struct dpt_tally. */
struct dpt_cuda_tally {
    double loss, correct;
    int64_t samples;
    double weight;
};

/* The words behind a gradient (core/train/trainer.h). */
enum {
    DPT_CUDA_TAIL_LOSS,
    DPT_CUDA_TAIL_SAMPLES,
    DPT_CUDA_TAIL_CORRECT,
    DPT_CUDA_TAIL_WEIGHT,
    DPT_CUDA_TAIL_SUMS
};

/* y = f(x) for vectors of 16 bytes. 2 reads and writes of the tensor: in place allowed. */
struct dpt_cuda_act_args {
    const void *x;
    void *y;
    int64_t vectors;
};

/* dx = dy f'; x: the input for gelu, the output for the others. dx may be dy. 3 passes; 4 where it
 * adds to dx. */
struct dpt_cuda_act_back_args {
    const void *x, *dy;
    void *dx;
    int64_t vectors;
    int32_t add;
};

/* y[row][c] = x[row][c] + bias[c], or the ReLU of it. bias: `pitch` elements of the tensor's type.
 * In place allowed. 2 passes. */
struct dpt_cuda_bias_args {
    const void *x, *bias;
    void *y;
    int64_t rows;
    int32_t pitch;
};

/*
 * dbias[c] = sum over rows of dy[row][c], for c < channels. With ReLU: dx = dy where y > 0, else 0,
 * and the sum is of dx, in the same pass: 3 passes instead of 5. partial:
 * dpt_cuda_bias_back_partial floats; counter: one for each 128 channels, at least. add: to what is
 * in dbias. state: dbias is divided by its loss_scale (dx is not); NULL: there is none.
 */
struct dpt_cuda_bias_back_args {
    const void *dy, *y;
    void *dx; /* may be dy; only with ReLU */
    float *dbias, *partial;
    uint32_t *counter;
    int64_t rows;
    int32_t pitch, channels, add;
    const struct dpt_cuda_state *state;
};

/*
 * Pools. Forward reads x, writes y; max also writes where in its window the maximum was (index: 2
 * bytes for each element of y). Backward reads y as dY and index, writes x as dX (adds to it where
 * `add`): each input looks for the outputs whose windows it lies in, in their order. meanpool
 * is over all of h x w: oh = ow = 1.
 *
 * With a ReLU in front of a max-pool both are one pass. maxpool_relu: x is the ReLU's input.
 * maxpool_relu_back: dX is the gradient of the ReLU's input; it needs the pool's output (y), not
 * its input, since what was passed on is positive in both or in neither. The bits are those of two
 * kernels.
 */
struct dpt_cuda_pool_args {
    const void *from; /* x, or dy */
    void *to;         /* y, or dx */
    uint16_t *index;
    int32_t n, h, w, oh, ow, pitch;
    int32_t kernel[2], stride[2], before[2];
    int32_t add;
    const void *y; /* maxpool_relu_back: the pool's output */
};

/* y = x mask, the mask of dpt_dropout_mask; forward on values, backward on gradients: 2 passes, no
 * mask is kept. An element's number is c x area + pixel, also behind a flatten. Rows behind `count`
 * get zeros. */
struct dpt_cuda_dropout_args {
    const void *x;
    void *y;
    const int64_t *sample; /* for each row */
    const struct dpt_cuda_control *control;
    int32_t n, channels, pitch, area;
    int32_t node, add;
    float rate;
};

/*
 * dpt_loss_rows for logits of the tensor's type. labels or targets: the other is NULL. dy: NULL:
 * not wanted. weights: NULL: 1 each. tally: added to; its sum is over blocks of 8 rows. partial:
 * DPT_CUDA_LOSS_SUMS doubles for each 8 rows. state: dy is multiplied by its loss_scale (loss is
 * not); NULL: there is none.
 */
struct dpt_cuda_loss_args {
    const void *y;
    void *dy;
    const int32_t *labels;
    const float *targets; /* [n][outputs] */
    const float *weights; /* [n] */
    const struct dpt_cuda_control *control;
    struct dpt_cuda_tally *tally;
    double *partial;
    uint32_t *counter;
    int32_t n, outputs, pitch;
    float smoothing;
    const struct dpt_cuda_state *state;
};

/* A tensor of the canonical arena, [outputs][inputs][area], and its copy [padded_outputs][area]
 * [padded_inputs], zero where it is padded. Dense layers behind a flatten of h x w: area = h w. */
struct dpt_cuda_layout {
    int64_t canonical, copy; /* elements from the start of each */
    int32_t outputs, inputs, area, padded_outputs, padded_inputs;
};

/* to_layout: all copies from the arena, cast (4 bytes a parameter read, 2 or 4 written).
 * from_layout: gradients of that layout into the canonical arena, cast; add: to what is there;
 * state: divided by its loss_scale; NULL: there is none. */
struct dpt_cuda_layout_args {
    float *arena;
    void *copies;
    const struct dpt_cuda_layout *list; /* device */
    int32_t n;
    int64_t largest; /* elements of the largest copy */
    int32_t add;
    int64_t total; /* elements of all copies, for dpt_cuda_kernel_bytes */
    const struct dpt_cuda_state *state;
};

/* A crop and flip of one sample; see dpt_augment_sample. */
struct dpt_cuda_move {
    int16_t top, left; /* of the window, in pixels of the image: -padding … padding */
    int32_t flip;
};

/*
 * Samples index[control->first + row] of a data set on the device, normalised (x scale[c] +
 * shift[c]) and laid out as activations. Reads a sample once, writes it once. labels_out,
 * sample_out: the labels and numbers of these samples; NULL: not wanted. moves: for each row, or
 * NULL.
 */
struct dpt_cuda_gather_args {
    const void *data; /* uint8 or float */
    const int64_t *index;
    const int32_t *labels;
    const float *scale, *shift;
    const struct dpt_cuda_move *moves;
    const struct dpt_cuda_control *control;
    void *out;
    int32_t *labels_out;
    int64_t *sample_out;
    int64_t channel_stride, pixel_stride; /* of the data, in elements */
    int32_t n, channels, h, w, pitch;
};

/* nonfinite: *found = the number of the first element that is not finite, or stays as it is (the
 * caller sets it to INT64_MAX). hash: *found += dpt_hash_floats(x, n, first), modulo 2^64. Read
 * once. */
struct dpt_cuda_scan_args {
    const void *x;
    int64_t n, first;
    uint64_t *found;
};

/* y += x; n: a multiple of 4. 3 passes. */
struct dpt_cuda_add_args {
    const float *x;
    float *y;
    int64_t n;
};

/*
 * Norm of the gradient (a sum over samples) and what follows from it: state->scale = 1 / weight,
 * times clip / norm where the mean's norm is above clip > 0; state->withheld where norm or loss is
 * not finite (skip: for this update only, else for all that follow), or for this update only where
 * weight is 0. Reads the gradient once. tail: the words behind it, of all ranks. partial: one
 * double for each DPT_CUDA_NORM_RUN. n: a multiple of 4.
 *
 * scaled: the gradients of this run have a loss scale. Then state->loss_scale, good and overflows
 * follow the rule of dpt_loss_scale_step: a norm that is not finite beside a loss that is withholds
 * this update only, whatever `skip` says, and halves the scale; where the scale was 1 already, or
 * the loss is not finite either, a smaller scale mends nothing, and it goes as without one.
 *
 * sums: the tail is added to the sums in `state`, unless the update is withheld.
 */
struct dpt_cuda_norm_args {
    const float *gradient, *tail;
    const struct dpt_cuda_control *control;
    struct dpt_cuda_state *state;
    double *partial;
    uint32_t *counter;
    int64_t n;
    double clip;
    int32_t skip;
    int32_t scaled;
    int32_t sums;
};

/* What a step counted, as the words behind the gradient, then zeros up to n of them. Clears the
 * tally. */
struct dpt_cuda_tail_args {
    struct dpt_cuda_tally *tally;
    float *tail;
    int32_t n;
};

/* Copies some ranges at once; from: the device's memory, or pinned memory of the host, which it
 * sees under the same address. Multiples of 4 bytes, in vectors of 16 where both ends lie so. */
enum { DPT_CUDA_FEEDS = 6 };
struct dpt_cuda_feed {
    const void *from;
    void *to;
    int64_t bytes;
};
struct dpt_cuda_feed_args {
    struct dpt_cuda_feed feed[DPT_CUDA_FEEDS];
    int32_t n;
};

/*
 * One optimizer's step over the arena, bit for bit that of core/train/optimizers/; nothing where
 * state->withheld. decays: for each 16 floats whether they decay. l2: weight decay into the
 * gradient; decoupled decay is control->keep. Moves 12 bytes a parameter (sgd), 20 (momentum,
 * nesterov), 28 (adam).
 */
struct dpt_cuda_update_args {
    float *params;
    const float *gradient;
    float *slot[2];
    const uint8_t *decays;
    const struct dpt_cuda_control *control;
    const struct dpt_cuda_state *state;
    int64_t n;
    float momentum, l2;             /* sgd's; l2 also adam's */
    float gain1, keep2, gain2, eps; /* adam's: 1 - beta1, beta2, 1 - beta2 */
};

enum {
    DPT_CUDA_THREADS = 256,
    DPT_CUDA_NORM_RUN = 16384, /* floats a block of norm sums */
    DPT_CUDA_LOSS_ROWS = 8,    /* a warp each */
    DPT_CUDA_LOSS_SUMS = 3,    /* of a block's rows: loss, correct, weight */
};

/* X(name, kind of launch, argument, elements of 16 bytes, whether a block's threads wait for each
 * other) */
// clang-format off
#define DPT_CUDA_TYPED(X, t, lanes)                                                                \
    X(relu_##t, act, act, lanes, false) X(gelu_##t, act, act, lanes, false)                        \
    X(tanh_##t, act, act, lanes, false) X(sigmoid_##t, act, act, lanes, false)                     \
    X(relu_back_##t, act_back, act_back, lanes, false)                                             \
    X(gelu_back_##t, act_back, act_back, lanes, false)                                             \
    X(tanh_back_##t, act_back, act_back, lanes, false)                                             \
    X(sigmoid_back_##t, act_back, act_back, lanes, false) X(bias_##t, bias, bias, lanes, false)    \
    X(bias_relu_##t, bias, bias, lanes, false)                                                     \
    X(bias_back_##t, bias_back, bias_back, lanes, true)                                            \
    X(bias_relu_back_##t, bias_back, bias_back, lanes, true)                                       \
    X(maxpool_##t, pool, pool, lanes, false) X(maxpool_back_##t, pool_back, pool, lanes, false)    \
    X(maxpool_relu_##t, pool, pool, lanes, false)                                                  \
    X(maxpool_relu_back_##t, pool_back, pool, lanes, false)                                        \
    X(avgpool_##t, pool, pool, lanes, false) X(avgpool_back_##t, pool_back, pool, lanes, false)    \
    X(meanpool_##t, pool, pool, lanes, false) X(meanpool_back_##t, pool_back, pool, lanes, false)  \
    X(dropout_##t, dropout, dropout, lanes, false) X(cross_entropy_##t, loss, loss, lanes, true)   \
    X(mse_##t, loss, loss, lanes, true) X(to_layout_##t, layout, layout, lanes, false)             \
    X(from_layout_##t, from_layout, layout, lanes, false)                                          \
    X(gather_u8_##t, gather_u8, gather, lanes, false)                                              \
    X(gather_f32_##t, gather_f32, gather, lanes, false)                                            \
    X(nonfinite_##t, scan, scan, lanes, false)
#define DPT_CUDA_KERNELS(X)                                                                        \
    DPT_CUDA_TYPED(X, f32, 4) DPT_CUDA_TYPED(X, b16, 8) DPT_CUDA_TYPED(X, h16, 8)                  \
    X(hash, scan, scan, 4, true) X(add, add, add, 4, false) X(norm, norm, norm, 4, true)           \
    X(sgd, sgd, update, 4, false) X(momentum, momentum, update, 4, false)                          \
    X(nesterov, momentum, update, 4, false) X(adam, adam, update, 4, false)                        \
    X(tail, tail, tail, 4, false) X(feed, feed, feed, 4, false)
// clang-format on

enum dpt_cuda_kernel {
#define X(name, kind, argument, lanes, meets) DPT_CUDA_K_##name,
    DPT_CUDA_KERNELS(X)
#undef X
        DPT_CUDA_KERNEL_COUNT
};

/* "dpt_cuda_relu_f32" */
const char *dpt_cuda_kernel_name(enum dpt_cuda_kernel kernel);
/* sizeof of its argument. */
size_t dpt_cuda_kernel_argument(enum dpt_cuda_kernel kernel);

/* Blocks of DPT_CUDA_THREADS threads; all 0 where there is nothing to do. false: it is too large
 * for one launch (a tensor of more than 2^31 vectors of 16 bytes). */
struct dpt_cuda_grid {
    uint32_t x, y;
};
bool dpt_cuda_kernel_grid(enum dpt_cuda_kernel kernel, const void *argument,
                          struct dpt_cuda_grid *grid);

/* What a launch reads and writes of tensors and arenas, each byte once. */
int64_t dpt_cuda_kernel_bytes(enum dpt_cuda_kernel kernel, const void *argument);

/* Floats of `partial` for a bias gradient over so many rows. lanes: 4 for f32, 8 for the others. */
int64_t dpt_cuda_bias_back_partial(int64_t rows, int32_t pitch, int lanes);

/* How a bias gradient's block is cut: `columns` threads side by side (a power of 2), each with a
 * vector; `rows` in a block, in `chunks` blocks. */
struct dpt_cuda_cut {
    int32_t columns, groups;
    int64_t chunk, chunks;
};
struct dpt_cuda_cut dpt_cuda_bias_back_cut(int64_t rows, int32_t pitch, int lanes);

/* The rates of one optimizer step, as core/train/optimizers/ prepares them on the host. beta1,
 * beta2: 0 for sgd; decoupled: AdamW's decay, else 0. */
void dpt_cuda_control_rates(struct dpt_cuda_control *control, double lr, int64_t update,
                            double beta1, double beta2, double decoupled);

#endif

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

#include "core/backend/activations.h"
#include "core/backend/loss_scale.h"
#include "core/backend/optimizers.inc"

/* What the host says of a micro-batch, in device memory: a captured step reads it anew each time.
 */
struct dpt_cuda_control {
    uint64_t seed, step; /* key the dropout */
    int64_t first;       /* place of its first sample in `index` of gather */
    int32_t count;       /* samples; rows behind them are zero and do not count */
    /* Of the step, from here on. update: its number, 1 is the first. */
    int64_t update;
    float lr, keep, rate[2];
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

/* As struct dpt_metric_sums. */
struct dpt_cuda_metric_sums {
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

/* Blocks of DPT_CUDA_THREADS threads; all 0 where there is nothing to do. */
struct dpt_cuda_grid {
    uint32_t x, y;
};

/* The kind of launch whose argument begins with how many blocks it has and what it moves, for
 * kernels whose program knows. */
struct dpt_cuda_counted {
    int64_t blocks, bytes;
};

#include "core/backend/cuda/kernels_typed.h"

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
 * double for each DPT_CUDA_NORM_CHUNK. n: a multiple of 4. state_n: floats of state behind
 * these: no norm has them, but where one is not finite, it is not.
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
    int64_t n, state_n;
    double clip;
    int32_t skip;
    int32_t scaled;
    int32_t sums;
};

/* What a step counted, as the words behind the gradient, then zeros up to n of them. Clears the
 * metric sums. */
struct dpt_cuda_tail_args {
    struct dpt_cuda_metric_sums *metric_sums;
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
 * One optimizer's step over the arena by a rule of core/backend/optimizers.inc; nothing where
 * state->withheld. decays: for each 16 floats whether they decay. scalars: l2 and factor; the
 * others change with the step and are control's. Moves 12 bytes a parameter, and 8 more for each
 * slot.
 */
struct dpt_cuda_update_args {
    float *params;
    const float *gradient;
    float *slot[DPT_RULE_MOST_SLOTS];
    const uint8_t *decays;
    const struct dpt_cuda_control *control;
    const struct dpt_cuda_state *state;
    int64_t n;
    struct dpt_scalars scalars;
};

/*
 * Running statistics after a step, as dpt_graph_update_state has them; nothing where
 * state->withheld. sum: what all micro-batches gave; decays: for each 16 floats how much of it is
 * kept. n: a multiple of 4.
 */
struct dpt_cuda_running_args {
    float *params;
    const float *sum, *decays, *tail;
    const struct dpt_cuda_state *state;
    int64_t n;
};

enum {
    DPT_CUDA_THREADS = 256,
    DPT_CUDA_NORM_CHUNK = 16384, /* floats a block of norm sums */
    DPT_CUDA_LOSS_ROWS = 8,      /* a warp each */
    DPT_CUDA_LOSS_SUMS = 3,      /* of a block's rows: loss, correct, weight */
};

/* X(name, kind of launch, argument, elements of 16 bytes, whether a block's threads wait for each
 * other) */
// clang-format off
#define DPT_CUDA_KERNELS(X)                                                                        \
    DPT_CUDA_TYPED(X, f32, 4) DPT_CUDA_TYPED(X, b16, 8) DPT_CUDA_TYPED(X, h16, 8)                  \
    X(add, add, add, 4, false) X(norm, norm, norm, 4, true)                                        \
    X(tail, tail, tail, 4, false) X(feed, feed, feed, 4, false)                                    \
    X(running, running, running, 4, false)                                                         \
    DPT_RULES(DPT_CUDA_UPDATE, X)
#define DPT_CUDA_UPDATE(X, NAME, name, slots) X(name, update, update, 4, false)
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

/* false: it is too large for one launch (a tensor of more than 2^31 vectors of 16 bytes). */
bool dpt_cuda_kernel_grid(enum dpt_cuda_kernel kernel, const void *argument,
                          struct dpt_cuda_grid *grid);

/* What a launch reads and writes of tensors and arenas, each byte once. */
int64_t dpt_cuda_kernel_bytes(enum dpt_cuda_kernel kernel, const void *argument);

/* How a bias gradient's block is cut: `columns` threads side by side (a power of 2), each with a
 * vector; `chunk` rows in a block, in `chunks` blocks. `partial` has chunks x pitch floats. */
struct dpt_cuda_cut {
    int32_t columns, groups;
    int64_t chunk, chunks;
};
struct dpt_cuda_cut dpt_cuda_bias_back_cut(int64_t rows, int32_t pitch, int lanes);

/* How the sums over `rows` for `vectors` weights of dpt_cuda_scales_args are cut: `groups` blocks side
 * by side, `chunks` of `chunk` rows below one another. `partial` has chunks x 2 x vectors x lanes
 * floats where there are several. */
struct dpt_cuda_cut dpt_cuda_scales_cut(int64_t rows, int64_t vectors);

/* What runs a rule. DPT_CUDA_KERNEL_COUNT: none. */
enum dpt_cuda_kernel dpt_cuda_kernel_of_rule(enum dpt_rule_kind rule);

#endif

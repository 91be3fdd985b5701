/*
 * kernels: the device code that is not in a library.
 *
 * Each kernel is a row of DPT_CUDA_KERNELS: its name in the module (without "dpt_cuda_"), the
 * struct that is its one argument, and whether the threads of a block synchronise. The launch
 * follows from these: dpt_cuda_kernel_grid computes the blocks from the argument alone, so that
 * sums have the same order on every device; dpt_cuda_kernel_bytes is the least memory traffic of a
 * launch.
 *
 * Activations are NHWC. The channels of a pixel begin every `pitch` elements; a pitch is a multiple
 * of 16 bytes (only gather also writes smaller ones), and what follows the last channel is zero or
 * unused. The suffixes _f32, _b16 and _h16 mean float, bfloat16 and IEEE half; sums are float or
 * double. Contraction is off (-fmad=false), so elementwise kernels give the bits of the host's
 * loops. There are no atomics on floats, so every run gives the same bits. Pointers are to device
 * memory, aligned to 16 bytes; counters are zero before the first launch and after each one.
 *
 * The source, kernels.cu, is both C and CUDA: tests/emulate.h runs it on the host.
 */
#ifndef DPT_BACKEND_CUDA_KERNELS_H
#define DPT_BACKEND_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend/graph.h"
#include "core/backend/loss_scale.h"
#include "core/backend/optimizers.inc"

/* What the host tells the device about a micro-batch. It is in device memory, so a replayed graph
 * reads the current values. */
struct dpt_cuda_control {
    uint64_t seed, step; /* key the dropout */
    int64_t first;       /* position of its first sample in gather's `index` */
    int32_t count;       /* samples; later rows are zero and not counted */
};

/* What the host tells the device about a step: the scalars of a group of tensors. update: the
 * step's number, from 1, the same in all groups. */
struct dpt_cuda_rates {
    int64_t update;
    float lr, keep, rate[2], l2;
};

/*
 * What the device tells the host, which reads it now and then.
 *
 * loss_scale: a power of two, which follows the rule of core/backend/loss_scale.h; 1 if nothing is
 * scaled. The host sets it before the first step. The loss kernels multiply dy by it; from_layout
 * and bias_back divide by it, so that arenas hold unscaled gradients. norm updates it from the
 * gradient of all ranks, so it is the same on all of them.
 */
struct dpt_cuda_state {
    double norm; /* of the mean gradient, before clipping */
    /* number of the first withheld update; how many were skipped */
    int64_t withheld_update, skipped;
    float scale;      /* of the gradient in the next update */
    int32_t withheld; /* not 0: no update is applied; JUST_NOW: only this one is not */
    float loss_scale;
    int32_t good;      /* finite norms since loss_scale last changed */
    int64_t overflows; /* updates skipped for a too large loss_scale; not in `skipped` */
    /* Sums over all updates that were not withheld since the host last read them, if norm has
     * `sums` set. */
    double loss, correct;
    int64_t samples;
    double weight;
    int64_t weightless; /* updates skipped for sample weights of 0; not in `skipped` */
    /* A parameter or running statistic is not finite: set by the host, and by updates that write
     * such a number. */
    int32_t unsound;
    double shown; /* written by norm_in_order alone, beside updates */
};

enum { DPT_CUDA_WITHHELD = 1, DPT_CUDA_JUST_NOW }; /* dpt_cuda_state.withheld */

/* As struct dpt_metric_sums. */
struct dpt_cuda_metric_sums {
    double loss, correct;
    int64_t samples;
    double weight;
};

/* The words after a gradient (enum dpt_tail in core/train/trainer.h). */
enum {
    DPT_CUDA_TAIL_LOSS,
    DPT_CUDA_TAIL_SAMPLES,
    DPT_CUDA_TAIL_CORRECT,
    DPT_CUDA_TAIL_WEIGHT,
    DPT_CUDA_TAIL_SUMS
};

/* Blocks of DPT_CUDA_THREADS threads; 0 x 0 if there is nothing to do. */
struct dpt_cuda_grid {
    uint32_t x, y;
};

/* The beginning of the arguments of kernels whose blocks and bytes the program computes. */
struct dpt_cuda_counted {
    int64_t blocks, bytes;
};

#include "core/backend/cuda/kernels/kernels_typed.h"

/* y += x. n: floats, a multiple of 4. Memory traffic: 3 n floats. */
struct dpt_cuda_add_args {
    const float *x;
    float *y;
    int64_t n;
};

/*
 * Computes the norm of the mean gradient, from the sum over samples, and decides about the update:
 * state->scale = 1 / weight, times clip / norm if the norm is above clip > 0; state->withheld is
 * set if norm or loss is not finite (with `skip` for this update only, else also for all later
 * ones), or for this update only if weight is 0. Reads the gradient once. tail: the words after it,
 * summed over the ranks. partial: a double for each block (dpt_cuda_norm_blocks). n: floats, a
 * multiple of 4. state_n: floats of state after these; they do not count in the norm, but if one is
 * not finite, neither is the norm. If state->unsound is set the loss counts as not finite. A
 * library's ReLU may make zeros of what NaNs in the weights give, so that neither loss nor gradient
 * shows them.
 *
 * scaled: the gradients have a loss scale. Then state->loss_scale, good and overflows follow the
 * rule of dpt_loss_scale_step: an infinite norm with a finite loss withholds this update only,
 * whatever `skip` says, and halves the scale. If the scale is 1 already, or the loss is not finite
 * either, a smaller scale does not help, and the norm is treated as one without scale.
 *
 * sums: adds the tail to the sums in `state`, unless the update is withheld.
 *
 * copies: gradients that lie in the layers' layout. Before it reads them from the arena the kernel
 * writes them there, as from_layout does; add: adds them to what is there.
 *
 * norm_chunks is for sums whose bits count, and for ranks that have a part of the gradient each:
 * squares are added up within chunks as dpt_sum_of_squares does, and the chunks' sums in their
 * order, if `ordered`, or else in one that depends on how many they are alone. chunk: [listed],
 * those that are added up here; all are numbered below `chunks`. statistics: where the floats of
 * state are. It takes no copies. partial: a double for each chunk, two more, and one for each block
 * (dpt_cuda_chunk_blocks).
 *
 * shared: the other ranks have other chunks, so nothing is decided: norm_chunks writes the two
 * doubles after the chunks, a sum that needs no order, and state->unsound. Once they are summed
 * over the ranks norm_decide decides. The chunks' sums are in that sum (SUM), or are summed over
 * the ranks as well (CHUNKS), to which each gives zeros for those of others.
 */
enum dpt_cuda_shared { DPT_CUDA_SHARED_NOT, DPT_CUDA_SHARED_SUM, DPT_CUDA_SHARED_CHUNKS };
struct dpt_cuda_chunk {
    int64_t begin; /* floats [begin, begin + n) of `gradient` */
    int32_t n, number;
};
struct dpt_cuda_norm_args {
    float *gradient;
    const float *tail;
    const struct dpt_cuda_rates *rates;
    struct dpt_cuda_state *state;
    double *partial;
    uint32_t *counter;
    int64_t n, state_n;
    struct dpt_cuda_copies copies;
    int32_t add;
    double clip;
    int32_t skip;
    int32_t scaled;
    int32_t sums;
    const float *statistics;
    const struct dpt_cuda_chunk *chunk;
    int64_t listed, chunks;
    int32_t ordered, shared; /* shared: enum dpt_cuda_shared */
};

/*
 * The norm that `ordered` would give, of an update that was decided without: for those who read it.
 * It is written to `norm`, 0 if the step's samples have no weight. partial: of norm_chunks, for
 * each chunk.
 */
struct dpt_cuda_shown_args {
    const double *partial;
    const float *tail;
    double *norm;
    int64_t chunks;
};

/* A leaf of the tree that sums ranks' gradients (core/comm/sums/tree.h). place: where its value is.
 * number: which one it is there. merges: how often the value so far is merged with the one to its
 * left once this leaf has come. A value that waits for its right neighbour lies where its last leaf
 * was; below: the leaf at which the one to its left waits, of a leaf at which one does; -1: there
 * is none (dpt_cuda_link_leaves). */
enum dpt_cuda_place { DPT_CUDA_IN_SUM, DPT_CUDA_IN_BLOCKS, DPT_CUDA_IN_MERGED, DPT_CUDA_RECEIVED };
struct dpt_cuda_leaf {
    int32_t place, number, merges, below; /* place: enum dpt_cuda_place */
};

/*
 * Adds up leaves along the tree, for slices of an arena: the first one has the floats [first, first
 * + width), a multiple of 4, and each next one those `skip` floats later. leaf: [n], from left to
 * right, on the device; in the end one value is left, which is written to `to`, [slices][width],
 * where a leaf may have been. sum: an arena; blocks: arenas, `stride` floats apart; merged: values
 * like `to`, `apart` floats from one to the next; received: [number][slices][width]. What these
 * floats of the leaves were is lost. Reads each leaf once, and writes and reads each value that
 * waits.
 */
struct dpt_cuda_tree_args {
    const struct dpt_cuda_leaf *leaf;
    float *sum, *blocks, *merged, *received, *to;
    int64_t first, width, stride, skip, apart;
    int32_t n, slices;
};

/* How running statistics are updated. decay: the value's decay. each: dpt_graph_variance_samples
 * for a variance; else 0. */
struct dpt_cuda_running {
    float decay;
    int32_t each;
};

/*
 * One optimizer update of the arena by a rule of core/backend/optimizers.inc; does nothing if
 * state->withheld is set. Sets state->unsound if a number that it writes is not finite, for the
 * next norm. group: for each 16 floats, the number of their row in `rates`, or DPT_CUDA_FROZEN if
 * they stay unchanged. scalars: only `factor` is read; the others are in `rates`. copies: what is
 * updated is written there, too, as to_layout does, padding apart. Memory traffic: 12 bytes per
 * parameter, 8 more for each slot, and the copies.
 *
 * The running statistics are the state_n floats (a multiple of 4) after the n parameters. They are
 * updated as dpt_graph_update_state does, from the sums over all micro-batches, which follow the
 * gradient. running: for each 16 floats, how. whole: samples of a whole step.
 *
 * Only the floats [first, end) of all these are updated, multiples of 4.
 */
enum { DPT_CUDA_FROZEN = UINT16_MAX };
struct dpt_cuda_update_args {
    float *params;
    const float *gradient;
    float *slot[DPT_RULE_MOST_SLOTS];
    const uint16_t *group;
    const struct dpt_cuda_rates *rates;
    struct dpt_cuda_state *state;
    const struct dpt_cuda_running *running;
    const float *tail;
    int64_t n, state_n, whole;
    int64_t first, end;
    struct dpt_cuda_copies copies;
    struct dpt_scalars scalars;
};

enum {
    DPT_CUDA_THREADS = 256,
    DPT_CUDA_NORM_ROUND = 4096, /* floats that a block of `norm` has in flight */
    DPT_CUDA_NORM_BLOCKS = 528, /* blocks of `norm` at most: four per multiprocessor of an H200 */
    DPT_CUDA_SUMS_AHEAD = 1024, /* sums of chunks that are fetched before one thread adds them */
    DPT_CUDA_LOSS_ROWS = 8,     /* rows of a block of the loss, one warp per row */
    DPT_CUDA_LOSS_SUMS = 3,     /* sums of a block's rows: loss, correct, weight */
    DPT_CUDA_SUM_BLOCKS = 264,  /* blocks of sums over rows, all groups together */
    DPT_CUDA_SUM_ROWS = 8,      /* rows that a thread of these adds in float */
    DPT_CUDA_SUM_COLUMNS = 8,   /* the most threads side by side: 128 bytes of a row */
};

/* X(name, kind of launch, argument, elements in 16 bytes, whether a block's threads synchronise) */
// clang-format off
#define DPT_CUDA_KERNELS(X)                                                                        \
    DPT_CUDA_TYPED(X, f32, 4) DPT_CUDA_TYPED(X, b16, 8) DPT_CUDA_TYPED(X, h16, 8)                  \
    X(add, add, add, 4, false) X(tree, tree, tree, 4, false)                                       \
    X(norm, norm, norm, 4, true) X(norm_chunks, norm_chunks, norm, 4, true)                        \
    X(norm_decide, norm_decide, norm, 4, true) X(norm_in_order, norm_in_order, shown, 4, true)     \
    X(feed, feed, feed, 4, false)                                                                  \
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
/* Bytes of its argument. */
size_t dpt_cuda_kernel_argument(enum dpt_cuda_kernel kernel);

/* *grid: out. Returns false if the tensor is too large for one launch (more than 2^31 vectors of 16
 * bytes). */
bool dpt_cuda_kernel_grid(enum dpt_cuda_kernel kernel, const void *argument,
                          struct dpt_cuda_grid *grid);

/* The bytes of tensors and arenas that a launch reads or writes, each counted once. */
int64_t dpt_cuda_kernel_bytes(enum dpt_cuda_kernel kernel, const void *argument);

/* The blocks of a launch of to_layout or from_layout, of any type, that convert this tensor. */
int64_t dpt_cuda_layout_blocks(enum dpt_cuda_kernel kernel, const struct dpt_cuda_layout *l);

/*
 * How sums over rows are divided: `columns` threads of a block are side by side (a power of 2),
 * each with one vector; `groups` such blocks are as wide as a row; a block sums `chunk` rows, and
 * `chunks` blocks together all rows. Up to about DPT_CUDA_SUM_BLOCKS blocks, two for each
 * multiprocessor of an H200, share the rows, so that the last block of a group has few partial sums
 * to add.
 *
 * The order of a sum follows from this division alone. A thread adds 8 rows at a time in float, and
 * these sums to its own in double; the threads below one another are added as a binary tree, in
 * double. In the last block to end thread t adds partial sums t / w, t / w + 256 / w ... of channel
 * t % w of the `w` channels of a group (a power of 2), and these stripes are added as such a tree.
 *
 * For a bias' gradient `partial` has chunks x pitch doubles, and there are `groups` counters.
 */
struct dpt_cuda_cut {
    int32_t columns, groups;
    int64_t chunk, chunks;
};
struct dpt_cuda_cut dpt_cuda_bias_back_cut(int64_t rows, int32_t pitch, int lanes);

/* How the sums over `rows` for `vectors` vectors of weights are divided in kernels of
 * dpt_cuda_scales_args: `groups` blocks side by side, and `chunks` of `chunk` rows. `partial` has
 * chunks x 2 x vectors x lanes doubles if there are several chunks. */
struct dpt_cuda_cut dpt_cuda_scales_cut(int64_t rows, int64_t vectors);

/* The blocks of `norm` for n + state_n floats. Small arenas have a block for every
 * DPT_CUDA_NORM_ROUND floats, since a block's rounds are a chain of latencies. */
int64_t dpt_cuda_norm_blocks(int64_t floats);
/* Those of `norm_chunks`: a warp sums a chunk. */
int64_t dpt_cuda_chunk_blocks(int64_t chunks);

/* Fills in `below` of n leaves of the whole tree. */
void dpt_cuda_link_leaves(struct dpt_cuda_leaf *leaf, int n);

/* Appends a range to what is copied, if it has any bytes. */
void dpt_cuda_add_feed(struct dpt_cuda_feed_args *a, void *to, const void *from, size_t bytes);

/* The kernel of an optimizer's rule; DPT_CUDA_KERNEL_COUNT: none. */
enum dpt_cuda_kernel dpt_cuda_kernel_of_rule(enum dpt_rule_kind rule);

#endif

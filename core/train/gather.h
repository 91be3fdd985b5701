/*
 * gather: how the gradients of a step's micro-batches become one sum on all ranks.
 *
 * Two ways, a row each, chosen by comm.reduction. `allreduce` adds up what a thread computes as it
 * comes, and then all threads' of all ranks (core/comm/summation.h). `reproducible` keeps to one
 * tree over the micro-batches' numbers (core/comm/tree.h), so the sum has the same bits however
 * they are dealt. A rank whose threads are a team computes several micro-batches at once where they
 * are a node of that tree, whose value comes out of the products (backend.h, `leaf`): so it writes
 * a gradient no more often than with `allreduce`. The shortest of 800 steps of an MLP 784-256-10,
 * batch 128, 2 ranks, microseconds (AMD EPYC 9004, 2 cores): allreduce 586, reproducible 626; one
 * micro-batch after another 747. Either way the sum carries the tail (enum dpt_tail) behind the
 * gradient, and what the ranks have to tell each other (t->reduction.said) is known on
 * all of them afterwards.
 */
#ifndef DPT_TRAIN_GATHER_H
#define DPT_TRAIN_GATHER_H

#include "core/train/trainer.h"

struct dpt_gather_type {
    const char *name;
    /* Collective. Makes the buffers, and t->reduction.sum. Errors: RANK. */
    enum dpt_status (*open)(struct dpt_trainer *t, struct dpt_error *err);
    /* Bytes of the buffers on a node where `ranks` ranks run, of a trainer that is only planned: of
     * each rank by itself, and what they share. */
    void (*bytes)(const struct dpt_trainer *t, int ranks, double *own, double *shared);
    /* Collective; also after a failed open. */
    void (*close)(struct dpt_trainer *t);
    /* Before a step's micro-batches, once. */
    void (*begin)(struct dpt_trainer *t, const struct dpt_step_view *view);
    /* Where a thread's next micro-batch puts its gradient (with room for the tail), and whether it
     * adds to what is there. */
    float *(*target)(struct dpt_trainer *t, int thread, bool *add);
    /* It was computed, or n of them from that one on, an aligned run of a power of two or what
     * there is of one: the gradient is their sum along the tree. tally: [n], of each. */
    void (*done)(struct dpt_trainer *t, int thread, int32_t micro_batch, int32_t n, float *gradient,
                 const struct dpt_tally *tally);
    /*
     * Collective. Sums over threads and ranks into t->reduction.sum. flags: this rank's;
     * t->reduction.said: their sums over the ranks. A rank that failed adds nothing, and the sum is
     * then of no use. Errors: RANK.
     */
    enum dpt_status (*sum)(struct dpt_trainer *t, const struct dpt_step_view *view,
                           const float flags[DPT_FLAGS], struct dpt_error *err);
    /* Of the gradient's sum the squares, one for each run (core/base/squares.h), where they were
     * made on the way; else NULL. */
    const double *(*squares)(const struct dpt_trainer *t);
};

/* What was counted, as words of the tail. */
static inline void dpt_tail_write(float *tail, const struct dpt_tally *tally)
{
    tail[DPT_TAIL_LOSS] = (float)tally->loss;
    tail[DPT_TAIL_SAMPLES] = (float)tally->samples;
    tail[DPT_TAIL_CORRECT] = (float)tally->correct;
    tail[DPT_TAIL_WEIGHT] = (float)tally->weight;
}

extern const struct dpt_gather_type dpt_gather_allreduce, dpt_gather_reproducible;
/* By enum dpt_reduction_kind. */
extern const struct dpt_gather_type *const dpt_gather_types[];

#endif

/*
 * gradient_reduction: reduces the gradients of a step's micro-batches to one sum on all ranks.
 *
 * There are two ways to add, chosen by comm.reduction. `allreduce` adds up the gradients of a
 * thread as they are computed, and then those of all threads of all ranks
 * (core/comm/sums/hierarchical_allreduce.h). `reproducible` adds along one tree over the
 * micro-batches' numbers (core/comm/sums/tree.h), so the sum has the same bits however the
 * micro-batches are partitioned. With shards, each of which has one owner, three more rows add
 * along this tree: `sharded`, `round_robin` if ranks take rounds round-robin, and `units` if they
 * also keep slices of the weights. A rank whose threads are a team computes several micro-batches
 * at once if they are a node of that tree; the matrix products give the node's value (backend.h,
 * `sub_batch`). So it writes a gradient no more often than with `allreduce`. The shortest of 800
 * steps of an MLP 784-256-10, batch 128, 2 ranks, microseconds (AMD EPYC 9004, 2 cores): allreduce
 * 586, reproducible 626; one micro-batch after another 747. Either way the tail (enum dpt_tail)
 * follows the gradient in the sum, and all ranks then know the sums of the ranks' flags
 * (t->reduction.reduced_flags).
 */
#ifndef DPT_TRAIN_GRADIENT_REDUCTION_H
#define DPT_TRAIN_GRADIENT_REDUCTION_H

#include "core/comm/sums/deterministic_allreduce.h"
#include "core/train/trainer.h"

/* The floats [begin, end) of a gradient with its tail. */
struct dpt_gradient_range {
    size_t begin, end;
};

/* The whole gradient, with its tail. */
static inline struct dpt_gradient_range dpt_gradient_whole(const struct dpt_trainer *t)
{
    return (struct dpt_gradient_range){0, (size_t)dpt_trainer_graph(t)->arena + DPT_TAIL_WORDS};
}

/* What follows floats [0, end). */
static inline struct dpt_gradient_range dpt_gradient_after(const struct dpt_trainer *t, int64_t end)
{
    return (struct dpt_gradient_range){(size_t)end, dpt_gradient_whole(t).end};
}

struct dpt_gradient_reduction_type {
    /* Collective. Makes the buffers, and t->reduction.sum. Errors: RANK. */
    enum dpt_status (*open)(struct dpt_trainer *t, struct dpt_error *err);
    /* Bytes of the buffers of a stage's ranks on a node: each rank's own, and what they share. */
    void (*bytes)(const struct dpt_layout *layout, const struct dpt_layout_stage *stage,
                  double *own, double *shared);
    /* Collective; also after a failed open. */
    void (*close)(struct dpt_trainer *t);
    /* Collective. To be called once, before a step's micro-batches. */
    void (*begin)(struct dpt_trainer *t, int64_t epoch_step);
    /* Gives the buffer for a range of the gradient of a thread's next micro-batch, with space for
     * the tail, and says whether the gradient is added to its content. What follows the learned
     * floats may be ahead of them, since several micro-batches' learned floats may be one sum. */
    float *(*target)(struct dpt_trainer *t, int thread, struct dpt_gradient_range range, bool *add);
    /* To be called when a micro-batch was computed, or n of them from that one on (an aligned run
     * of a power of two, or the rest of one): the gradient is their sum along the tree. range: the
     * floats of it that were, as `target` has it. metric_sums: [n], of each; NULL: the tail is not
     * among them. */
    void (*done)(struct dpt_trainer *t, int thread, int32_t micro_batch, int32_t n, float *gradient,
                 struct dpt_gradient_range range, const struct dpt_metric_sums *metric_sums);
    /* Says that in this step nothing is added any more to the learned floats from `from` on of a
     * worker's gradient, and whether it has any micro-batch. Called by threads of that worker.
     * NULL: nobody asks. */
    void (*pass)(struct dpt_trainer *t, int worker, size_t from, bool has);
    /* Starts a thread's micro-batches of the step again, for another range of floats: it gets the
     * same targets as before. The last range begins with the first float. NULL if ranks take rounds
     * round-robin. */
    void (*again)(struct dpt_trainer *t, int thread);
    /*
     * Collective. Sums over threads and ranks into t->reduction.sum. flags: this rank's; their sums
     * are then in t->reduction.reduced_flags. A rank that failed adds nothing, and the sum is then
     * meaningless. Errors: RANK.
     */
    enum dpt_status (*sum)(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                           struct dpt_error *err);
    /* How often a rank sends all but its own part of the gradient, or of the updated weights, in
     * `sum` and `share`: twice, to who adds up and back to all; once, if rounds have summed the
     * gradient, so that only the weights are sent; never, if units gather these. */
    double sends;
    /* The sums of squares of the reduced gradient, one for each chunk (core/base/sum_of_squares.h),
     * if the reduction computed them; else NULL. */
    const double *(*sums_of_squares)(const struct dpt_trainer *t);
    /*
     * Each rank owns all parameters or, with shards (dpt_layout.owners), a slice of them.
     *
     * slice: what a rank owns of a range of the floats, of which there are `ranges`, by units if
     * several. slice_sum: the gradient's sum for what this rank owns of one. weights: where its
     * updated parameters are to be written, too, or NULL (dpt_deterministic_weights).
     *
     * share, gather_chunks: collective. They give all ranks the owners' parameters, and `each`
     * numbers for each of the owners' chunks; if each rank owns all, they do nothing. With units
     * nothing is copied: share waits until the ranks have written everything in their shared
     * memory, including the state. Errors: RANK.
     */
    int (*ranges)(const struct dpt_trainer *t);
    struct dpt_slice (*slice)(const struct dpt_trainer *t, int rank, int range);
    const float *(*slice_sum)(const struct dpt_trainer *t, int range);
    float *(*weights)(const struct dpt_trainer *t);
    enum dpt_status (*share)(struct dpt_trainer *t, struct dpt_error *err);
    enum dpt_status (*gather_chunks)(struct dpt_trainer *t, double *values, int each,
                                     struct dpt_error *err);
    /* Collective. Adds the gradients of a round, of which each thread has computed one group, to
     * what their owners have. NULL if ranks do not take rounds round-robin. unit: a unit of the
     * gradient's floats (dpt_layout_stage.edge), or, after the last unit, the state and the
     * tail. */
    enum dpt_status (*round)(struct dpt_trainer *t, int32_t round, int unit, struct dpt_error *err);
    /* These are NULL unless ranks take rounds round-robin. extra: the begin of a whole arena whose
     * state and tail are those of the thread's `target`, which has room for only one unit before
     * them. gather: collective, gives all ranks a unit's weights until the next one's. *params:
     * out, where those of all units would be. */
    float *(*extra)(struct dpt_trainer *t, int thread);
    enum dpt_status (*gather)(struct dpt_trainer *t, int unit, const float **params,
                              struct dpt_error *err);
    bool of_rows;   /* the norm's chunks are t->reduction.chunks, not all of one size */
    bool in_slices; /* a rank has only the sum of what it owns, in slice_sum until the next step */
};

/* What this rank owns of a range. */
static inline struct dpt_slice dpt_gradient_own(const struct dpt_trainer *t, int range)
{
    return t->reduction.type->slice(t, dpt_trainer_replicas(t)->world.rank, range);
}

/* The range in which a learned float is. */
static inline int dpt_gradient_range_of(const struct dpt_trainer *t, size_t at)
{
    int range = 0;

    while (range + 1 < t->reduction.type->ranges(t) && at >= t->stage->edge[range + 1])
        range++;
    return range;
}

/* Writes metric sums as words of the tail. */
static inline void dpt_tail_write(float *tail, const struct dpt_metric_sums *metric_sums)
{
    tail[DPT_TAIL_LOSS] = (float)metric_sums->loss;
    tail[DPT_TAIL_SAMPLES] = (float)metric_sums->samples;
    tail[DPT_TAIL_CORRECT] = (float)metric_sums->correct;
    tail[DPT_TAIL_WEIGHT] = (float)metric_sums->weight;
}

/* The functions of rows in which each rank owns all parameters (gradient_reduction_allreduce.c). */
int dpt_gradient_one_range(const struct dpt_trainer *t);
struct dpt_slice dpt_gradient_all(const struct dpt_trainer *t, int rank, int range);
const float *dpt_gradient_sum(const struct dpt_trainer *t, int range);
float *dpt_gradient_no_weights(const struct dpt_trainer *t);
enum dpt_status dpt_gradient_no_share(struct dpt_trainer *t, struct dpt_error *err);
enum dpt_status dpt_gradient_no_gather(struct dpt_trainer *t, double *values, int each,
                                       struct dpt_error *err);
#define DPT_GRADIENT_OWNS_ALL                                                                      \
    .ranges = dpt_gradient_one_range, .slice = dpt_gradient_all, .slice_sum = dpt_gradient_sum,    \
    .weights = dpt_gradient_no_weights, .share = dpt_gradient_no_share,                            \
    .gather_chunks = dpt_gradient_no_gather

/* In how many buckets a layout's `allreduce` is summed between so many nodes, where it overlaps
 * backward (comm.overlap); 0: at once. */
int dpt_gradient_buckets(const struct dpt_layout *layout, int nodes);

extern const struct dpt_gradient_reduction_type dpt_gradient_reduction_allreduce,
    dpt_gradient_reduction_reproducible, dpt_gradient_reduction_sharded,
    dpt_gradient_reduction_round_robin, dpt_gradient_reduction_units;
/* The reduction of a layout, if so many of its replicas own parts. */
static inline const struct dpt_gradient_reduction_type *
dpt_gradient_reduction_among(const struct dpt_layout *l, int owners)
{
    static const struct dpt_gradient_reduction_type
        *const whole[] = {[DPT_REDUCTION_ALLREDUCE] = &dpt_gradient_reduction_allreduce,
                          [DPT_REDUCTION_REPRODUCIBLE] = &dpt_gradient_reduction_reproducible},
               *const owned[] = {[DPT_SHARD_OPTIMIZER] = &dpt_gradient_reduction_sharded,
                                 [DPT_SHARD_GRADIENTS] = &dpt_gradient_reduction_round_robin,
                                 [DPT_SHARD_PARAMETERS] = &dpt_gradient_reduction_units};

    return owners > 1 ? owned[l->job->parallel.shard] : whole[l->job->comm.reduction];
}
/* The reduction that the host makes. */
static inline const struct dpt_gradient_reduction_type *
dpt_gradient_reduction_choose(const struct dpt_layout *l)
{
    return dpt_gradient_reduction_among(l, l->owners);
}
/* How often a rank sends a step's gradient or its weights, on devices, too: its `sends`. */
static inline double dpt_gradient_reduction_sends(const struct dpt_layout *l)
{
    return dpt_gradient_reduction_among(l, l->updaters)->sends;
}

#endif

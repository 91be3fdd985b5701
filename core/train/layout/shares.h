/*
 * shares: which micro-batches of a step each rank, and each of its workers, takes.
 *
 * A rank has a run of a step's micro-batches, which its workers divide, or, if owners keep no more
 * of a gradient than their part of it, all workers of all ranks take them round-robin. A round is
 * what each worker takes next: a micro-batch, or a team's group of them.
 */
#ifndef DPT_TRAIN_LAYOUT_SHARES_H
#define DPT_TRAIN_LAYOUT_SHARES_H

#include "core/train/layout/actions.h"
#include "core/train/layout/layout.h"

/* The micro-batches of a step that a replica's workers take. */
struct dpt_share {
    const struct dpt_sampler *sampler; /* borrowed */
    int replica, replicas;
    int workers;     /* of this replica */
    int32_t at_once; /* micro-batches of a round */
    bool round_robin;
    int64_t step;             /* of the sampler's epoch */
    int32_t samples;          /* of the step */
    int32_t all, first, last; /* the step's micro-batches; this replica's run of them */
};

/* sampler: of the split, with l's micro-batches. step: of its epoch. infers: for an evaluation. */
struct dpt_share dpt_share_of(const struct dpt_layout *l, const struct dpt_sampler *sampler,
                              int64_t step, int replica, bool infers);
/* How many rounds this replica takes part in. */
int32_t dpt_share_rounds(const struct dpt_layout *l, const struct dpt_share *share, bool infers);
/* The first micro-batch of a worker's round, and how many they are; -1: it has no such round. */
int32_t dpt_share_take(const struct dpt_share *share, int worker, int32_t round, int32_t *n);
/* The k-th run of micro-batches that follow one another, [*first, *last), of the replicas
 * [replica, end) together. Returns false if they have no such run. */
bool dpt_share_run(const struct dpt_share *share, int replica, int end, int32_t k, int32_t *first,
                   int32_t *last);

/* The part [*begin, *end) of a rank's micro-batches [first, last) that one of `threads` threads
 * takes; the first thread has one whenever the rank has. */
void dpt_share_thread(int32_t first, int32_t last, int thread, int threads, int32_t *begin,
                      int32_t *end);
/* How many micro-batches from i on, of a run that ends at `end`, are computed at once: a node of
 * the tree over all of the step's, as large as `most` allows. */
int32_t dpt_share_at_once(int32_t most, int32_t all, int32_t i, int32_t end);

/* The most rounds that any replica has in a training step. */
int32_t dpt_layout_most_rounds(const struct dpt_layout *l);
/* Micro-batches of the replica that has most of a full step. */
int64_t dpt_layout_most_micros(const struct dpt_layout *l);

/* The most blocks of core/comm/sums/tree.h that any `each` replicas which follow one another have
 * of a full step's micro-batches, or of its first round's. */
int dpt_share_blocks(const struct dpt_layout *l, int each);
/* The most blocks that a replica keeps until its next micro-batch or, if rounds are taken
 * round-robin, that all have until the next round. */
int dpt_share_waiting(const struct dpt_layout *l);

/* The planners' input for the list of a stage's ranks, for that many rounds. gathers: whether the
 * weights of its units come by messages, as l says or, on this rank, otherwise. */
struct dpt_division dpt_layout_division(const struct dpt_layout *l,
                                        const struct dpt_layout_stage *stage, bool gathers,
                                        int32_t rounds, bool infers);
#endif

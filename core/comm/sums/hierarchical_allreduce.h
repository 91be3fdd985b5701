/*
 * hierarchical_allreduce: the sum of all threads' gradients of all ranks, equal up to rounding for
 * any number of ranks and threads.
 *
 * The ranks of a node exchange their gradients through shared memory: each rank writes its threads'
 * sum of every other rank's slice to that rank, adds up the parts of its own slice in the order of
 * the ranks, and writes the result to shared memory, where all ranks read it. Both are written with
 * non-temporal stores (core/base/nontemporal.h), and the gradients themselves stay in the rank's
 * own memory: lines that two cores wrote and read in turn took 27 ns each, three times as long as
 * all of this (2 ranks, 421 642 floats: 350 us for the sum and 360 us for the next step's first
 * write of the gradient, now 110 and 37). Between nodes each rank exchanges its part of its node's
 * sum (internode.h), so that all of a node's cores feed its links; a small sum MPI_Allreduce adds,
 * over the nodes' first ranks. So on one node no message is sent. A small gradient is added up by
 * each rank for itself, which saves waiting a second time; all add in the same order, so all get
 * the same bits. A gradient that is larger than the caches is added up where it lies, and needs no
 * other memory: on one node the buffers themselves are then in shared memory, and each rank adds
 * its slice into the first one of all, where all read the sum. (Where each fetched it into a buffer
 * of its own, a sum of 20 million floats took 2 ranks 14 ms, now 9.)
 *
 * Without hierarchy every rank adds up its own threads' gradients, and MPI_Allreduce those of all
 * ranks. core/comm/tests/bench_allreduce.c compares the two (deterministic_allreduce.h has its
 * table).
 *
 * Several nodes can sum the first floats of their buffers in buckets, from the last one to the
 * first, by a thread beside those that still write the buffers (buckets.h). It has communicators of
 * its own. Each number is added in the same order as where all is summed at once: threads, ranks of
 * a node, and then along a tree over the nodes, wherever slices and buckets begin. So it gives the
 * same bits.
 */
#ifndef DPT_COMM_HIERARCHICAL_ALLREDUCE_H
#define DPT_COMM_HIERARCHICAL_ALLREDUCE_H

#include "core/base/pool.h"
#include "core/comm/comm.h"

struct dpt_hierarchical_allreduce;

struct dpt_hierarchical_spec {
    size_t n;               /* floats of a sum, the same on all ranks */
    int buffers;            /* of this rank, one per thread; at least 1 */
    bool hierarchical;      /* the same on all ranks */
    bool spin;              /* every thread of the node has a core: waiting may be active */
    size_t sums_of_squares; /* floats of the sum whose squares are summed too, if it is cheap */
    size_t large; /* floats from which on a sum is large; 0: where caches hold little of it */
    size_t early; /* floats at the beginning, whole cache lines, that are summed in buckets, if
                     there are several nodes and MPI allows it; the same on all ranks; 0: none */
};

/*
 * Collective over comm->world. *hierarchical: out, or NULL: whether the allreduce is hierarchical.
 * It is not if the ranks of some node cannot share that much memory, and err then says why. Errors:
 * RANK.
 */
enum dpt_status dpt_hierarchical_open(struct dpt_hierarchical_allreduce **allreduce,
                                      const struct dpt_comm *comm,
                                      const struct dpt_hierarchical_spec *spec, bool *hierarchical,
                                      struct dpt_error *err);
/* Collective. */
void dpt_hierarchical_close(struct dpt_hierarchical_allreduce *allreduce);

/* Collective. To be called before buffers are written: none of the node's ranks reads the last sum
 * any more. */
void dpt_hierarchical_begin(struct dpt_hierarchical_allreduce *allreduce);

/* Buffer i for the next sum: n floats aligned to a cache line, with any content. The address may
 * change with each sum. */
float *dpt_hierarchical_buffer(const struct dpt_hierarchical_allreduce *allreduce, int i);
/* The buffer in which the sum will be: n floats, always the same. It may be the first buffer
 * of a rank, and holds the sum until buffers are written again. */
float *dpt_hierarchical_result(const struct dpt_hierarchical_allreduce *allreduce);

/* The sums of squares of the sum, one for each chunk (core/base/sum_of_squares.h), valid as long as
 * the sum: each rank computes those of its slice while that is in its cache. NULL: they are not
 * computed here, and the caller computes them itself. */
const double *dpt_hierarchical_sums_of_squares(const struct dpt_hierarchical_allreduce *allreduce);

/* How many buckets a sum has; 0: it is made at once. Of a spec on several nodes, and how many
 * floats a bucket has at most (floats: out, or NULL), if MPI allows it; and of what was opened. */
int dpt_hierarchical_plan_buckets(const struct dpt_hierarchical_spec *spec, size_t *floats);
int dpt_hierarchical_buckets(const struct dpt_hierarchical_allreduce *allreduce);
/* Says that nobody writes floats from `from` on of buffer i any more before the next sum, and
 * whether that buffer will be filled. Once all of a rank's buffers are past a bucket it is summed;
 * dpt_hierarchical_sum does the rest, and each rank has to call it then. Not collective, for any
 * thread; does nothing where there are no buckets. */
void dpt_hierarchical_pass(struct dpt_hierarchical_allreduce *allreduce, int i, size_t from,
                           bool filled);
/* How many buckets have begun before the sum's call on this rank, of all sums so far. */
int64_t dpt_hierarchical_early(const struct dpt_hierarchical_allreduce *allreduce);

/* Bytes that the allreduce takes on a node where `ranks` of the job's `all` ranks run: own: of each
 * rank; shared: of the node. */
void dpt_hierarchical_bytes(const struct dpt_hierarchical_spec *spec, int ranks, int all,
                            double *own, double *shared);

/*
 * Collective. filled: [buffers], which of this rank's buffers are added; the first one always is,
 * and of one that has passed floats dpt_hierarchical_pass has said it.
 * pool: this rank's threads, which help if the sum is large enough; NULL: none. The sum is in
 * dpt_hierarchical_result; else the buffers' contents are lost. Errors: RANK.
 */
enum dpt_status dpt_hierarchical_sum(struct dpt_hierarchical_allreduce *allreduce,
                                     const bool *filled, struct dpt_pool *pool,
                                     struct dpt_error *err);

#endif

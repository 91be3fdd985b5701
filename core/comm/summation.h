/*
 * summation: the sum of all threads' gradients of all ranks, equal to rounding for any number of
 * them.
 *
 * The ranks of a node give each other their gradients through memory that they share: each rank
 * gives every other one its threads' sum for that one's slice, adds up what all have for its own,
 * in the order of the ranks, and writes the sum where all read it. Both are streamed past the
 * caches (core/base/stream.h), and the gradients themselves stay the rank's own: lines that two
 * cores wrote and read in turn took 27 ns each, three times as long as all of this (2 ranks, 421
 * 642 floats: 350 us for the sum and 360 us for the next step's first write of the gradient, now
 * 110 and 37). Between the nodes MPI_Allreduce adds up the sums of the nodes' first ranks. So on
 * one node no message is sent, and on several only as many take part as there are nodes. A small
 * gradient is added up by each rank for itself, which saves waiting a second time; all add in the
 * same order, so all get the same bits.
 *
 * Without hierarchy every rank adds up its own threads' gradients, and MPI_Allreduce those of all
 * ranks. core/comm/tests/bench_reduce.c compares the two (reduce.h has its table).
 */
#ifndef DPT_COMM_SUMMATION_H
#define DPT_COMM_SUMMATION_H

#include "core/base/pool.h"
#include "core/comm/comm.h"

struct dpt_summation;

struct dpt_summation_spec {
    size_t n;          /* floats of a sum, the same on all ranks */
    int buffers;       /* of this rank, one a thread; at least 1 */
    bool hierarchical; /* the same on all ranks */
    bool spin;         /* a core for every thread of the node: waiting may be active */
    size_t squares; /* of so many floats the squares of the sum are wanted, where it costs little */
};

/*
 * Collective over comm->world. *hierarchical: out, NULL or whether it is; it is not where the ranks
 * of some node cannot share that much memory, and err then says why. Errors: RANK.
 */
enum dpt_status dpt_summation_open(struct dpt_summation **summation, const struct dpt_comm *comm,
                                   const struct dpt_summation_spec *spec, bool *hierarchical,
                                   struct dpt_error *err);
/* Collective. */
void dpt_summation_close(struct dpt_summation *summation);

/* Where buffer i is for the next sum: n floats on cache lines of their own, whatever they held. The
 * place may change with each sum. */
float *dpt_summation_buffer(const struct dpt_summation *summation, int i);
/* Where the sum will be: n floats, a place that stays. */
float *dpt_summation_result(const struct dpt_summation *summation);

/* The sum's squares, one for each run of `squares` floats (core/base/squares.h), for as long as the
 * sum: each rank computes those of its slice while that is in its cache. NULL: the caller may do it
 * itself. */
const double *dpt_summation_squares(const struct dpt_summation *summation);

/* Bytes that it takes on a node where `ranks` of the job's `all` ranks run: of each rank by itself,
 * and what they share. */
void dpt_summation_bytes(const struct dpt_summation_spec *spec, int ranks, int all, double *own,
                         double *shared);

/*
 * Collective. filled: [buffers], which of this rank's count; the first one always does. pool: this
 * rank's threads, which help where it pays; NULL: none do. The sum is in dpt_summation_result until
 * the next call's beginning; the buffers' contents are lost. Errors: RANK.
 */
enum dpt_status dpt_summation_sum(struct dpt_summation *summation, const bool *filled,
                                  struct dpt_pool *pool, struct dpt_error *err);

#endif

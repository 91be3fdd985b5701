/*
 * reduce: the sum over all ranks' micro-batches along the fixed tree (tree.h), the same bits for
 * any number of ranks.
 *
 * Each rank has the values of its blocks (one, where the micro-batches divide evenly by a power of
 * two, else a few). The floats are cut into as many slices as there are ranks; each rank gets all
 * blocks of its own slice, adds them in the tree's order, and all get all slices back. For one
 * block a rank this moves what the best all-reduce for long messages moves (Rabenseifner 2004);
 * each further block travels once more, in the first half only.
 *
 * Where all ranks share memory the values lie in it from the start (dpt_reduction_buffer), so
 * nothing is sent at all: each rank reads the others' slices in place and writes the sum where all
 * read it. Measured against the alternatives (core/comm/tests/bench_reduce.c; 2 ranks on 2 cores,
 * microseconds a sum, median): see the table there.
 */
#ifndef DPT_COMM_REDUCE_H
#define DPT_COMM_REDUCE_H

#include "core/comm/comm.h"
#include "core/comm/tree.h"

enum dpt_reduce_way { DPT_REDUCE_AUTO, DPT_REDUCE_WINDOW, DPT_REDUCE_MESSAGES };

struct dpt_reduction;

/*
 * Collective over comm->world. n: floats of a sum; buffers: how many this rank wants (the threads'
 * together). AUTO takes the window where all ranks share memory and there is enough of it. Errors:
 * RANK.
 */
enum dpt_status dpt_reduction_open(struct dpt_reduction **reduction, const struct dpt_comm *comm,
                                   size_t n, int buffers, enum dpt_reduce_way way,
                                   struct dpt_error *err);
/* Collective. */
void dpt_reduction_close(struct dpt_reduction *reduction);

/* One of this rank's buffers, n floats on cache lines of their own; and where the sum will be, the
 * same on every rank or not. */
float *dpt_reduction_buffer(const struct dpt_reduction *reduction, int i);
float *dpt_reduction_result(const struct dpt_reduction *reduction);

/* Makes room for sums over these runs of leaves (as for dpt_reduction_sum), so that a sum allocates
 * nothing. Errors: RANK. */
enum dpt_status dpt_reduction_reserve(struct dpt_reduction *reduction, const int32_t *first,
                                      struct dpt_error *err);

/*
 * Collective. mine: this rank's blocks, values in buffers of the reduction. first: [ranks + 1]
 * where each rank's run of leaves begins; mine's total is the last of them. The sum is in
 * dpt_reduction_result until the next call's beginning; the buffers' contents are lost. Errors:
 * RANK.
 */
enum dpt_status dpt_reduction_sum(struct dpt_reduction *reduction, const struct dpt_tree *mine,
                                  const int32_t *first, struct dpt_error *err);

#endif

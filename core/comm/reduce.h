/*
 * reduce: the sum over all ranks' micro-batches along the fixed tree (tree.h), the same bits for
 * any number of ranks.
 *
 * Each rank has the values of its blocks: one, where the micro-batches divide evenly by a power of
 * two, else a few.
 *
 * Where each has one, of one size, and there are 2^k ranks, the tree joins ranks as recursive
 * halving does, the best all-reduce for long messages (Rabenseifner 2004): with its neighbour a
 * rank exchanges half of the floats and adds up the other half, with the next pair a quarter, and
 * so on; then the sums go back the same way. 2k messages a rank, and most of the bytes stay on a
 * node where that has several ranks.
 *
 * Else the floats are cut into as many slices as there are ranks; each rank gets all blocks of its
 * own slice, adds them in the tree's order, and all get all slices back. For one block a rank this
 * moves the same bytes, in as many messages as there are ranks; each further block travels once
 * more, in the first half only.
 *
 * Where all ranks share memory the values lie in it from the start (dpt_reduction_buffer), so
 * nothing is sent at all: each rank reads the others' slices in place and writes the sum where all
 * read it.
 *
 * Measured against the alternatives, microseconds a sum (core/comm/tests/bench_reduce.c, Open MPI
 * 4.1.4, 2 ranks on 2 cores, medians, the quickest of three sittings; `hierarchy` is summation.h):
 *
 *        floats | allreduce  hierarchy | window  messages  doubling | fixed point
 *            32 |      0.61       0.12 |   0.27      1.29      0.55 |        1.36
 *         1 024 |      2.82       0.20 |   0.34      2.82      2.39 |        8.20
 *        60 362 |        74          4 |      6        67        68 |         524
 *       421 642 |       373         42 |     50       375       441 |       2 621
 *    25 000 000 |    80 547      7 866 | 11 258    40 909    50 367 |     244 326
 *
 * So: the window on one node, 7 times as fast as MPI_Allreduce, which has to copy. Messages on
 * several: as fast as MPI_Allreduce, or faster, and for any number of ranks and any deal, where
 * recursive doubling sends all of the array log2(ranks) times, and in the tree's order only for
 * powers of two. Sums in 64-bit fixed point would let MPI_Allreduce serve and need no tree, but
 * take two conversions, twice the bytes and another collective for the common exponent: 3 to 7
 * times as long, and what is below 2^-52 of the largest element is lost.
 */
#ifndef DPT_COMM_REDUCE_H
#define DPT_COMM_REDUCE_H

#include "core/comm/comm.h"
#include "core/comm/tree.h"

/* At most this many words beside a sum. */
enum { DPT_REDUCTION_WORDS = 8 };

enum dpt_reduce_way { DPT_REDUCE_AUTO, DPT_REDUCE_WINDOW, DPT_REDUCE_MESSAGES };

struct dpt_reduction;

/*
 * Collective over comm->world. n: floats of a sum; buffers: how many this rank wants (the threads'
 * together); spin: a core for every thread of the node, so that waiting may be active. AUTO takes
 * the window where all ranks share memory and there is enough of it. Errors: RANK.
 */
enum dpt_status dpt_reduction_open(struct dpt_reduction **reduction, const struct dpt_comm *comm,
                                   size_t n, int buffers, enum dpt_reduce_way way, bool spin,
                                   struct dpt_error *err);
/* Collective. */
void dpt_reduction_close(struct dpt_reduction *reduction);

/* One of this rank's buffers, n floats on cache lines of their own; and where the sum will be, the
 * same on every rank or not. */
float *dpt_reduction_buffer(const struct dpt_reduction *reduction, int i);
float *dpt_reduction_result(const struct dpt_reduction *reduction);

/* From here on the squares of the sum's first n floats are wanted, where they cost little: one for
 * each run (core/base/squares.h), for as long as the sum; NULL: the caller may make them itself. */
void dpt_reduction_want_squares(struct dpt_reduction *reduction, size_t n);
const double *dpt_reduction_squares(const struct dpt_reduction *reduction);

/* Makes room for sums over these runs of leaves (as for dpt_reduction_sum), so that a sum allocates
 * nothing. Errors: RANK. */
enum dpt_status dpt_reduction_reserve(struct dpt_reduction *reduction, const int32_t *first,
                                      struct dpt_error *err);

/*
 * Collective. Before each sum: this rank's blocks, their values in buffers of the reduction, which
 * may not be touched from now on. Also n words that the ranks tell each other: said gets their sums
 * over the ranks. Where these speak against it the sum may be left out, by all ranks, and nothing
 * be summed any more. Errors: RANK.
 */
enum dpt_status dpt_reduction_offer(struct dpt_reduction *reduction, const struct dpt_tree *mine,
                                    const float *words, float *said, int n, struct dpt_error *err);

/*
 * Collective. mine: as it was offered. first: [ranks + 1] where each rank's run of leaves begins;
 * mine's total is the last of them. The sum is in dpt_reduction_result until the next sum's
 * beginning; the buffers' contents are lost. Errors: RANK.
 */
enum dpt_status dpt_reduction_sum(struct dpt_reduction *reduction, const struct dpt_tree *mine,
                                  const int32_t *first, struct dpt_error *err);

#endif

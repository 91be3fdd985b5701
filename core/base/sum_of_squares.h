/*
 * sum_of_squares: the sum of squares of an array of floats, in double.
 *
 * The norm of a gradient is computed from the sums of squares of chunks of about
 * DPT_SUM_OF_SQUARES_CHUNK floats, added in the chunks' order. So it has the same bits whichever
 * thread or rank sums which chunk; ranks do so while they reduce the gradient itself. Under
 * `allreduce` each chunk has that many floats; under `reproducible` chunks are whole rows of a
 * tensor (dpt_graph_chunks), so that a chunk has one owner wherever a model is cut.
 */
#ifndef DPT_BASE_SUM_OF_SQUARES_H
#define DPT_BASE_SUM_OF_SQUARES_H

#include <stddef.h>

enum { DPT_SUM_OF_SQUARES_CHUNK = 1024 };

/* Where chunks begin: chunk k is the floats [begin[k], begin[k + 1]). */
struct dpt_chunks {
    size_t n;
    size_t *begin; /* [n + 1] */
};

/* Sums the squares of n floats in a fixed order. The result is not finite where any of the floats
 * is not. */
double dpt_sum_of_squares(const float *x, size_t n);

/* The order: the squares of floats that many apart are added up in a lane, which begins with 0, and
 * at the end the lanes. dpt_sum_of_lanes gives the sum for whoever filled lanes by itself, of a
 * number of floats that has no rest. */
enum { DPT_SUM_OF_SQUARES_LANES = 32 };
double dpt_sum_of_lanes(const double *lane);

/* The number of chunks in n floats. */
static inline size_t dpt_sum_of_squares_chunks(size_t n)
{
    return (n + DPT_SUM_OF_SQUARES_CHUNK - 1) / DPT_SUM_OF_SQUARES_CHUNK;
}

#endif

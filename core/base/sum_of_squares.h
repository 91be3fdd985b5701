/*
 * sum_of_squares: the sum of squares of an array of floats, in double.
 *
 * The norm of a gradient is computed from the sums of squares of chunks of DPT_SUM_OF_SQUARES_CHUNK
 * floats. So it has the same bits whichever thread or rank sums which chunk; ranks do so while they
 * reduce the gradient itself.
 */
#ifndef DPT_BASE_SUM_OF_SQUARES_H
#define DPT_BASE_SUM_OF_SQUARES_H

#include <stddef.h>

enum { DPT_SUM_OF_SQUARES_CHUNK = 1024 };

/* Sums the squares of n floats in a fixed order. The result is not finite where any of the floats
 * is not. */
double dpt_sum_of_squares(const float *x, size_t n);

/* The number of chunks in n floats, and the sum of squares of chunk number `chunk`. */
static inline size_t dpt_sum_of_squares_chunks(size_t n)
{
    return (n + DPT_SUM_OF_SQUARES_CHUNK - 1) / DPT_SUM_OF_SQUARES_CHUNK;
}
double dpt_sum_of_squares_of_chunk(const float *x, size_t n, size_t run);

#endif

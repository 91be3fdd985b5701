/*
 * squares: the sum of squares of an array of floats, in double.
 *
 * The norm of a gradient is made of the sums of runs of DPT_SQUARES_RUN floats, so that it has the
 * same bits whoever adds up which of them: several threads, or several ranks while they add up the
 * gradient itself.
 */
#ifndef DPT_BASE_SQUARES_H
#define DPT_BASE_SQUARES_H

#include <stddef.h>

enum { DPT_SQUARES_RUN = 1024 };

/* Of n floats: in a fixed order, not finite where any of them is not. */
double dpt_sum_squares(const float *x, size_t n);

/* How many runs n floats make, and the sum of one of them, the run-th. */
static inline size_t dpt_squares_runs(size_t n)
{
    return (n + DPT_SQUARES_RUN - 1) / DPT_SQUARES_RUN;
}
double dpt_squares_of_run(const float *x, size_t n, size_t run);

#endif

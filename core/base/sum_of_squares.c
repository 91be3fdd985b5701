#include "core/base/sum_of_squares.h"

#include "core/base/prefetch.h"
#include "core/base/vector.h"

/* The square of a float is exact in double, so adding it is rounded once, contracted or not: the
 * same bits with half the instructions. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

DPT_VECTOR double dpt_sum_of_squares(const float *x, size_t n)
{
    enum { LANES = DPT_SUM_OF_SQUARES_LANES };
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;

    _Static_assert((int)LANES == 2 * (int)DPT_LINE, "lines that are asked for");

    for (; i + LANES <= n; i += LANES) {
        dpt_prefetch(x + i);
        dpt_prefetch(x + i + DPT_LINE);
        for (size_t k = 0; k < LANES; k++)
            lane[k] += (double)x[i + k] * x[i + k];
    }
    for (; i < n; i++)
        sum += (double)x[i] * x[i];
    for (size_t k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

double dpt_sum_of_lanes(const double *lane)
{
    double sum = 0;

    for (int k = 0; k < DPT_SUM_OF_SQUARES_LANES; k++)
        sum += lane[k];
    return sum;
}

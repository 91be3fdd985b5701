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
    enum { LANES = 2 * DPT_LINE };
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;

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

double dpt_sum_of_squares_of_chunk(const float *x, size_t n, size_t run)
{
    const size_t begin = run * DPT_SUM_OF_SQUARES_CHUNK, left = n - begin;

    return dpt_sum_of_squares(x + begin,
                              left < DPT_SUM_OF_SQUARES_CHUNK ? left : DPT_SUM_OF_SQUARES_CHUNK);
}

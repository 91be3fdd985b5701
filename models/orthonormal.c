/* The orthogonal factor of a matrix. */
#include <math.h>

#include "core/base/vector.h"
#include "models/layer.h"

/* Vectors that are taken off the others in one pass, and sums that a dot product has side by side:
 * their order is part of the result, so that it does not depend on the instructions. */
enum { PANEL = 8, SUMS = 8 };

DPT_INLINE double dot(const double *x, const double *y, int64_t n)
{
    double sums[SUMS] = {0}, sum = 0;
    int64_t i = 0;

    for (; i + SUMS <= n; i += SUMS)
        for (int k = 0; k < SUMS; k++)
            sums[k] += x[i + k] * y[i + k];
    for (; i < n; i++)
        sum += x[i] * y[i];
    for (int k = 0; k < SUMS; k++)
        sum += sums[k];
    return sum;
}

/* Takes off x its parts along m orthonormal vectors. */
DPT_INLINE void subtract(const double *vectors, int64_t m, int64_t length, double *x)
{
    double along[PANEL];

    for (int64_t k = 0; k < m; k++)
        along[k] = dot(vectors + k * length, x, length);
    for (int64_t k = 0; k < m; k++)
        for (int64_t i = 0; i < length; i++)
            x[i] -= along[k] * vectors[k * length + i];
}

/* Modified Gram-Schmidt, a panel of vectors at a time: those after it are read once for all of
 * it. */
DPT_VECTOR void dpt_orthonormalize(double *vectors, int64_t n, int64_t length)
{
    for (int64_t first = 0; first < n; first += PANEL) {
        const int64_t end = first + PANEL < n ? first + PANEL : n;

        for (int64_t i = first; i < end; i++) {
            double *x = vectors + i * length, scale;

            for (int64_t k = first; k < i; k++)
                subtract(vectors + k * length, 1, length, x);
            scale = 1 / sqrt(dot(x, x, length));
            for (int64_t j = 0; j < length; j++)
                x[j] *= scale;
        }
        for (int64_t i = end; i < n; i++)
            subtract(vectors + first * length, end - first, length, vectors + i * length);
    }
}

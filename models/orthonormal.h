/*
 * orthonormal: the orthogonal factor of a matrix. Private to models/.
 */
#ifndef DPT_MODELS_ORTHONORMAL_H
#define DPT_MODELS_ORTHONORMAL_H

#include <stdint.h>

/*
 * Makes n consecutive vectors of `length` >= n numbers orthonormal by Gram-Schmidt. The result is
 * the Q of the QR decomposition whose R has a positive diagonal: vector k is in the span of vectors
 * 0 … k, with a positive component along vector k. Linearly dependent vectors give meaningless
 * numbers.
 */
void dpt_orthonormalize(double *vectors, int64_t n, int64_t length);

#endif

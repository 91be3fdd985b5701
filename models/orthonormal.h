/*
 * orthonormal: the orthogonal factor of a matrix. Private to models/.
 */
#ifndef DPT_MODELS_ORTHONORMAL_H
#define DPT_MODELS_ORTHONORMAL_H

#include <stdint.h>

/*
 * Makes n vectors of `length` >= n numbers, one behind the other, orthonormal, each in the span of
 * itself and those before it and on its own side of theirs: Gram-Schmidt, which is the Q of the QR
 * decomposition whose R has a positive diagonal. Vectors that depend on each other give numbers that
 * mean nothing.
 */
void dpt_orthonormalize(double *vectors, int64_t n, int64_t length);

#endif

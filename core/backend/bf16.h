/*
 * bf16: numbers with 8 bits of significand and fp32's exponent, to which the operands of products
 * are rounded if the job's precision is bf16.
 *
 * A backend on the host keeps all values in fp32. Dense layers and convolutions round what they
 * multiply: their inputs, their weights (a batch norm folded into them first) and the gradient of
 * their outputs, from which they also compute the bias' gradient. Sums are fp32. Rounding is to the
 * nearest, to even in the middle; numbers below 2^-126 count as zero, as in the CPU's own
 * instructions; infinities and NaN stay what they are.
 */
#ifndef DPT_BACKEND_BF16_H
#define DPT_BACKEND_BF16_H

#include <stdint.h>
#include <string.h>

#include "core/backend/graph.h"
#include "core/base/vector.h"

DPT_INLINE float dpt_bf16_nearest(float x)
{
    uint32_t bits, rounded;

    memcpy(&bits, &x, sizeof bits);
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    rounded = (bits & 0x7f800000) == 0 ? bits & 0x80000000 : rounded;
    rounded = (bits & 0x7fffffff) > 0x7f800000 ? (bits & 0xffff0000) | 0x400000 : rounded;
    memcpy(&x, &rounded, sizeof x);
    return x;
}

/* Rounds n floats; y may be x. */
void dpt_bf16_round(int64_t n, const float *x, float *y);

/* Whether the node multiplies by weights, so that its operands are rounded. */
bool dpt_bf16_rounds(const struct dpt_graph_node *node);

#endif

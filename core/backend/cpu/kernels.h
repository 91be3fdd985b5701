/*
 * kernels: the loops of our own, over whole micro-batches in any layout of dnnl.h.
 *
 * Arrays are aligned to 64 bytes and hold a multiple of 16 floats; what lies between an array's
 * last element and that multiple may be read and written. x86: compiled for several instruction
 * sets, chosen when the program starts.
 */
#ifndef DPT_BACKEND_CPU_KERNELS_H
#define DPT_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/activations.h"
#include "core/base/vector.h"

enum { DPT_LANES = 16 };

/* Activations, elementwise; y may be x, dx may be dy. NaN stays NaN. a: the node's first attribute.
 * known: what their row says that the slope is computed from. */
#define X(C, NAME, name, ...)                                                                      \
    void dpt_##name(int64_t n, float a, const float *x, float *y);                                 \
    void dpt_##name##_back(int64_t n, float a, const float *known, const float *dy, float *dx);
DPT_ACTIVATIONS(X, 0)
#undef X

/* Exactly n elements, which need not be aligned; y may be a or b. */
void dpt_multiply(int64_t n, const float *a, const float *b, float *y);
void dpt_add(int64_t n, const float *a, const float *b, float *y);
void dpt_add_relu(int64_t n, const float *a, const float *b, float *y);

/* y (+)= x, exactly n elements of each. */
void dpt_accumulate(int64_t n, const float *x, bool add, float *y);

/* Blocks of 16 lanes: sum[lane] += dy, over those of the n rows whose argmax is not -1. */
void dpt_sum_chosen(int64_t n, const int32_t *argmax, const float *dy, float *sum);

/* Windows over planes [planes][h][w][block]; a plane is a sample's channel block. */
struct dpt_pool_shape {
    int64_t planes;
    int32_t block, in[2], out[2], kernel[2], stride[2], before[2];
};

/* argmax: which element of the window won, row-major; -1: none gets the gradient (relu cut it off).
 * NULL: not wanted. */
void dpt_maxpool(const struct dpt_pool_shape *shape, bool relu, const float *x, float *y,
                 int32_t *argmax);
void dpt_maxpool_back(const struct dpt_pool_shape *shape, const float *dy, const int32_t *argmax,
                      float *dx);
void dpt_avgpool(const struct dpt_pool_shape *shape, const float *x, float *y);
void dpt_avgpool_back(const struct dpt_pool_shape *shape, const float *dy, float *dx);

#endif

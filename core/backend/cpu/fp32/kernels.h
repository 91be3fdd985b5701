/*
 * kernels: this program's own loops over whole micro-batches, in any layout of layout.h.
 *
 * Arrays are aligned to 64 bytes and hold a multiple of 16 floats; what is between an array's last
 * element and that multiple may be read and written. On x86 they are compiled for several
 * instruction sets, of which one is chosen when the program starts.
 */
#ifndef DPT_BACKEND_CPU_KERNELS_H
#define DPT_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/activations.h"
#include "core/base/vector.h"

enum { DPT_LANES = 16 };

/* A loop over lanes that the compiler vectorises: GCC 12 at -O3 would unroll it first, which is
 * many times slower. */
#if defined(__GNUC__) && !defined(__clang__)
#define DPT_EACH_LANE(c, lanes) _Pragma("GCC unroll 1") for (int c = 0; c < (lanes); c++)
#else
#define DPT_EACH_LANE(c, lanes) for (int c = 0; c < (lanes); c++)
#endif

/* Activations, elementwise; y may be x, and dx may be dy. NaN stays NaN. a: the node's attribute 0.
 * known: the input or output from which the derivative is computed, as their row says. */
#define X(C, NAME, name, ...)                                                                      \
    void dpt_##name(int64_t n, float a, const float *x, float *y);                                 \
    void dpt_##name##_back(int64_t n, float a, const float *known, const float *dy, float *dx);
DPT_ACTIVATIONS(X, 0)
#undef X

/* Exactly n elements, which need not be aligned; y may be a or b. */
void dpt_multiply(int64_t n, const float *a, const float *b, float *y);
void dpt_add(int64_t n, const float *a, const float *b, float *y);
void dpt_add_relu(int64_t n, const float *a, const float *b, float *y);
/* a + b if a relu's output is positive, and else 0. */
void dpt_add_relu_back(int64_t n, const float *known, const float *a, const float *b, float *y);

/* Moves blocks of 16 channels, the last one filled with zeros, to planes [channel][pixel], or back;
 * x and y do not overlap. dpt_moves_blocks: whether there is a fast kernel. */
bool dpt_moves_blocks(int32_t channels, int64_t pixels);
void dpt_move_blocks(int32_t samples, int32_t channels, int64_t pixels, bool to_planes,
                     const float *x, float *y);

/* y (+)= x, exactly n elements of each. */
void dpt_accumulate(int64_t n, const float *x, bool add, float *y);

/* Windows over planes [planes][h][w][block]; a plane is a sample's channel block. */
struct dpt_pool_shape {
    int64_t planes;
    int32_t block, in[2], out[2], kernel[2], stride[2], before[2];
};

/* argmax: the position of the maximum in its window, row-major; -1: the relu made it zero, so no
 * input gets the gradient; NULL: not wanted. */
void dpt_maxpool(const struct dpt_pool_shape *shape, bool relu, const float *x, float *y,
                 int32_t *argmax);
void dpt_maxpool_back(const struct dpt_pool_shape *shape, const float *dy, const int32_t *argmax,
                      float *dx);
void dpt_avgpool(const struct dpt_pool_shape *shape, const float *x, float *y);
void dpt_avgpool_back(const struct dpt_pool_shape *shape, const float *dy, float *dx);

#endif

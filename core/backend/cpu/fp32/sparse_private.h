/*
 * sparse_private: what the sparse files share, including the loops for several instruction sets.
 * `at` counts floats.
 */
#ifndef DPT_BACKEND_CPU_SPARSE_PRIVATE_H
#define DPT_BACKEND_CPU_SPARSE_PRIVATE_H

#include "core/backend/cpu/fp32/sparse.h"

enum {
    LANES = 16, /* channels side by side, whatever the instruction set */
    GROUP =
        32, /* output channels whose weights are read together: they stay in the nearest cache */
};

/* A pool's output position, a group of channels: for each element of its window those channels
 * that won there. */
struct dpt_sparse_bucket {
    int32_t n[4];
    int32_t at[4][GROUP]; /* where a channel's weights are */
    float dy[4][GROUP];
};

struct dpt_sparse_kernels {
    enum dpt_isa isa;
    /* One list for each of `used` channels side by side: the windows that have a winner, where it
     * was, start[window] + corner[argmax], and dy. Lists are `step` entries apart, a multiple of
     * LANES that is at least `windows`; what follows a list's end is undefined. */
    void (*list)(int32_t used, int32_t windows, const int32_t *argmax, const float *dy,
                 const int32_t *start, const int32_t *corner, int32_t step, int32_t *n, int32_t *at,
                 float *much);
    /* dw[row][column][lane] += dy[i] * x[at[i] + row * pitch + column * LANES + lane] over n
     * entries and a patch of kernel x kernel. */
    void (*patch)(int32_t kernel, int32_t n, const int32_t *at, const float *dy, const float *x,
                  int64_t pitch, float *dw);
    /* dw[k] += dy[i] * x[at[i] + k] over n entries and k < width, a multiple of LANES. */
    void (*line)(int32_t width, int32_t n, const int32_t *at, const float *dy, const float *x,
                 float *dw);
    /* dx[row][column][lane] += dy * weights over a bucket: the window's four patches make one of
     * (kernel + 1) x (kernel + 1). w: [channel][kernel][kernel][LANES]. */
    void (*spread)(int32_t kernel, const struct dpt_sparse_bucket *bucket, const float *w,
                   int64_t pitch, float *dx);
    /* sum[lane] += dy over those of n rows of LANES numbers whose argmax is not -1. */
    void (*sum)(int64_t n, const int32_t *argmax, const float *dy, float *sum);
    /* Puts `used` channels into a bucket, channel c with its weights at first + c * step; channels
     * whose argmax is -1 into none. */
    void (*sort)(int32_t used, const int32_t *argmax, const float *dy, int32_t first, int32_t step,
                 struct dpt_sparse_bucket *bucket);
};

/* The best that this machine has and that is not above `most`. */
const struct dpt_sparse_kernels *dpt_sparse_kernels(enum dpt_isa most);

#endif

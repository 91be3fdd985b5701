/*
 * sparse_private: what the sparse files share among themselves, the loops for several instruction
 * sets among it. `at` counts floats.
 */
#ifndef DPT_BACKEND_CPU_SPARSE_PRIVATE_H
#define DPT_BACKEND_CPU_SPARSE_PRIVATE_H

#include "core/backend/cpu/sparse.h"

enum {
    LANES = 16, /* channels side by side, whatever the instruction set */
    GROUP =
        32, /* output channels whose weights are read together: they stay in the nearest cache */
    FEW = 4,
    MOST_TAPS = 25,
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
     * LANES that is at least `windows`; what is behind a list's end is undefined. */
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
    /* Puts `used` channels into a bucket, channel c with its weights at first + c * step; channels
     * whose argmax is -1 into none. */
    void (*sort)(int32_t used, const int32_t *argmax, const float *dy, int32_t first, int32_t step,
                 struct dpt_sparse_bucket *bucket);
};

/* The best that this machine has and that is not above `most`. */
const struct dpt_sparse_kernels *dpt_sparse_kernels(enum dpt_isa most);

struct dpt_sparse {
    struct dpt_sparse_shape shape;
    const struct dpt_sparse_kernels *kernels;
    bool few;     /* the first layer's way: a patch lies in one piece */
    int32_t taps; /* of a channel */
    int32_t in_blocks, out_blocks, windows;
    int32_t chunk; /* windows that are listed together: whole rows */
    int32_t step;  /* from a channel's list to the next */
    int32_t padded[2];
    int32_t line, column; /* few: floats of a patch, rounded up; of one column of it */
    int64_t plane;        /* floats of a padded input block */
    int32_t corner[4];    /* from a window's first element to each, in floats of the padded input */
    int32_t start[];      /* of each window, as an offset too */
};

/* A sample's input into the middle of its padded planes; the way back: what no patch reads has no
 * gradient. */
void dpt_sparse_pad(const struct dpt_sparse *s, const float *x, float *padded);
void dpt_sparse_unpad(const struct dpt_sparse *s, float *padded, float *x);

/* Few channels: [row of outputs][column][row of the kernel][channel], so that a patch is one piece.
 * rows: scratch memory. */
void dpt_sparse_unroll(const struct dpt_sparse *s, const float *x, float *to, float *rows);

/* Blocks of LANES channels out of the layout of the pool's output, words of 4 bytes. */
void dpt_sparse_to_blocks(const struct dpt_sparse *s, const void *from, void *to);

#endif

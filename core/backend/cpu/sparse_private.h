/*
 * sparse_private: what the sparse files share among themselves.
 */
#ifndef DPT_BACKEND_CPU_SPARSE_PRIVATE_H
#define DPT_BACKEND_CPU_SPARSE_PRIVATE_H

#include "core/backend/cpu/sparse.h"

enum {
    LANES = DPT_SPARSE_LANES,
    GROUP = DPT_SPARSE_GROUP,
    FEW = 4,
    MOST_TAPS = 25,
};

/* Offsets in the workspace, in floats. */
struct offsets {
    int64_t x;          /* one sample's input, padded; zeros stay around it */
    int64_t rows;       /* few: one sample's input, rows of zeros around it */
    int64_t dx;         /* as x */
    int64_t dy, argmax; /* one sample's, blocks of LANES channels; only for other layouts */
    int64_t list_n, list_at, list_dy;
    int64_t buckets;
    int64_t dw, db; /* a micro-batch's */
    int64_t end;
};

struct dpt_sparse {
    struct dpt_sparse_shape shape;
    const struct dpt_sparse_kernels *kernels;
    struct offsets at;
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
void dpt_sparse_unpad(const struct dpt_sparse *s, const float *padded, float *x);

/* Few channels: [row of outputs][column][row of the kernel][channel], so that a patch is one piece.
 * rows: scratch memory. */
void dpt_sparse_unroll(const struct dpt_sparse *s, const float *x, float *to, float *rows);

/* Blocks of LANES channels out of the layout of the pool's output, words of 4 bytes. */
void dpt_sparse_to_blocks(const struct dpt_sparse *s, const void *from, void *to);

#endif

/*
 * winograd_kernels: the loops of winograd.h, for several instruction sets. Numbers of the transform
 * (0 to 35, six rows of six) are the outermost index of all that is transformed.
 */
#ifndef DPT_BACKEND_CPU_WINOGRAD_KERNELS_H
#define DPT_BACKEND_CPU_WINOGRAD_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/isa.h"

enum {
    DPT_WINOGRAD_LANES = 16, /* channels of a block */
    DPT_WINOGRAD_OUT = 4,    /* outputs of a tile along each axis */
    DPT_WINOGRAD_IN = 6,     /* inputs of it */
    DPT_WINOGRAD_POINTS = 36,
    DPT_WINOGRAD_BATCH = 16, /* tiles that are worked on together */
};

/* Where a tile's outputs go: a sample's block of 16 channels, [rows][columns][LANES]. */
struct dpt_winograd_target {
    float *y;
    int32_t *argmax;     /* which of a window's four won; -1: none (relu). NULL: not wanted */
    int32_t size[2];     /* of y */
    int32_t row, column; /* the tile's first output in y */
    bool pool, relu;     /* y is the maximum of 2 x 2 windows; of nothing below zero */
};

struct dpt_winograd_kernels {
    enum dpt_isa isa;
    int32_t group; /* output channels of a product */
    /* The transform of a tile of one block's plane [size][LANES]; `first` is its top left input,
     * zeros lie around the plane. Writes LANES floats at v + point * step. */
    void (*take)(const float *plane, const int32_t size[2], const int32_t first[2], float *v,
                 int64_t step);
    /* For each point m [BATCH][group] = v [BATCH][channels] u [channels][group]; only the first
     * `tiles` rows are wanted. */
    void (*multiply)(int32_t tiles, int32_t channels, const float *v, const float *u, float *m);
    /* The transform back, of LANES channels at m + point * step; the bias; relu and pool. */
    void (*give)(const float *m, int64_t step, const float *bias,
                 const struct dpt_winograd_target *target);
};

/* The best that this machine has and that is not above `most`; NULL: none that is worth it. */
const struct dpt_winograd_kernels *dpt_winograd_kernels(enum dpt_isa most);

#endif

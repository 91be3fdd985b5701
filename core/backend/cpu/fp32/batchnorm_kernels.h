/*
 * batchnorm_kernels: sums over all pixels of some samples for at most 16 channels each by itself,
 * and the passes that use the sums; in any layout of layout.h. The order of the sums depends on
 * neither the instruction set nor the threads. Arrays of channels hold 16 numbers, of which the
 * first view.lanes count.
 */
#ifndef DPT_BACKEND_CPU_BATCHNORM_KERNELS_H
#define DPT_BACKEND_CPU_BATCHNORM_KERNELS_H

#include "core/backend/cpu/fp32/kernels.h"

/* Where the numbers of a group of channels lie. */
struct dpt_lanes {
    int32_t lanes;      /* channels: 1 to 16, side by side */
    bool planar;        /* or each with its pixels side by side */
    int64_t pixels;     /* of a sample */
    int64_t row, pixel; /* from one sample, and one pixel, to the next */
};

/* y = (x - center) scale + shift; relu: and 0 if that is negative. */
struct dpt_lanes_map {
    float center[DPT_LANES], scale[DPT_LANES], shift[DPT_LANES];
    bool relu;
};

/* Mean and biased variance. */
void dpt_lanes_moments(const struct dpt_lanes *v, int64_t rows, const float *x, double *mean,
                       double *variance);
/* added: values laid out as y that are added to the map's result before the relu; or NULL. */
void dpt_lanes_apply(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                     const float *x, const float *added, float *y);
/* Computes the sums of g, and of g (x - center); g is dy where the relu lets it pass. */
void dpt_lanes_sums(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                    const float *x, const float *dy, double *sum, double *inner);
/* dx = (g - less - (x - center) slope) scale */
void dpt_lanes_back(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                    const float *slope, const float *less, const float *x, const float *dy,
                    float *dx);

#endif

/*
 * bf16_norm: the passes of batchnorm_kernels.h whose results only bf16_conv.h reads, and rounds
 * anyway: they are written rounded, in half the space. They take groups of 16 channels that are not
 * planar, and exist if dpt_bf16_kernels gives kernels.
 */
#ifndef DPT_BACKEND_CPU_BF16_NORM_H
#define DPT_BACKEND_CPU_BF16_NORM_H

#include "core/backend/cpu/fp32/batchnorm_kernels.h"

void dpt_bf16_norm_apply(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                         const float *x, uint16_t *y);
void dpt_bf16_norm_back(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                        const float *slope, const float *less, const float *x, const float *dy,
                        uint16_t *dx);

#endif

/*
 * plan_gpu: the share of a plan that is a GPU's. None needs to be there.
 *
 * Memory is what the backend says that it would allocate, and what the steps on the device take
 * beside it. Seconds are bounds by the data sheet's peaks, with what kernels reach of these; no
 * graph replay is modelled but for a kernel's own start.
 */
#ifndef DPT_PLAN_PLAN_GPU_H
#define DPT_PLAN_PLAN_GPU_H

#include "core/backend/backend.h"
#include "core/backend/devices.h"

/* By the data sheets; operations without sparsity. */
struct dpt_gpu_type {
    const char *key;              /* for the command line */
    char name[96];                /* as the driver calls it */
    double memory;                /* bytes */
    double bandwidth;             /* bytes a second */
    double flops[DPT_PRECISIONS]; /* a second; 0: it computes as with the one before */
};

extern const struct dpt_gpu_type dpt_gpu_types[]; /* ends with a row without a key */

/* "h100", or NULL. */
const struct dpt_gpu_type *dpt_gpu_type_find(const char *key);

/* A device of this machine: the row of its name, or a guess by its size, with what the driver says.
 */
void dpt_gpu_describe(const struct dpt_device_info *info, struct dpt_gpu_type *gpu);

/* Its peak at a precision (enum dpt_precision). */
double dpt_gpu_peak(const struct dpt_gpu_type *gpu, int precision);

struct dpt_plan;
struct dpt_plan_step;

/* The type that the spec names, or the GPU of this machine, or, where there is none, an H200. */
void dpt_plan_gpu_choose(struct dpt_plan *plan, const struct dpt_backend *backend);
/* Ranks that share a node where nobody says how many: its GPUs. */
int dpt_plan_gpu_node(const struct dpt_backend *backend);
/* Fills plan->device. */
void dpt_plan_gpu_memory(struct dpt_plan *plan);
/* Seconds of a step in which the busiest rank has so many micro-batches. */
void dpt_plan_gpu_step(const struct dpt_plan *plan, int ranks, int node_ranks, int64_t micros,
                       int32_t micro, struct dpt_plan_step *step);

#endif

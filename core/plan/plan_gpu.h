/*
 * plan_gpu: what the files that estimate GPUs share: plan_gpu.c has kinds of GPUs, memory and
 * passes, plan_gpu_sums.c what ranks exchange. For these only.
 */
#ifndef DPT_PLAN_PLAN_GPU_H
#define DPT_PLAN_PLAN_GPU_H

#include "core/plan/plan.h"

/* The part of the memory's peak that kernels reach; seconds to start one within a graph. */
#define DPT_GPU_REACHED_BYTES 0.75
#define DPT_GPU_START         2.5e-6
/* Bytes of a call of NCCL at most. */
enum { DPT_GPU_CALL = 32 << 20 };

/* Whether the devices sum along the tree of core/comm/sums/tree.h. */
static inline bool dpt_plan_gpu_along_tree(const struct dpt_layout *l)
{
    return l->on_device && dpt_layout_along_tree(l);
}

/* Seconds of a node's passes (DPT_COMPUTES_) on a micro-batch. */
double dpt_plan_gpu_node(const struct dpt_plan *plan, int32_t node, int32_t micro, int computes);

#endif

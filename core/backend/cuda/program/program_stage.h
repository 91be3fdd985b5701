/*
 * program_stage: what whole steps in passes take of programs: of a pipeline's stage those of its
 * micro-batches in flight, and what crosses its edges; of a model in units the passes through one.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_STAGE_H
#define DPT_BACKEND_CUDA_PROGRAM_STAGE_H

#include "core/backend/cuda/program/program.h"

/* The program of one of a team's micro-batches in flight, from 0 on. */
struct dpt_cuda_program *dpt_cuda_flight(const struct dpt_cuda_program *p, int flight);
/* Where the value at an edge is on the device, or its gradient. *bytes: out, a multiple of 4. NULL:
 * there is no such edge, or nothing wants the gradient. */
void *dpt_cuda_edge_of(const struct dpt_cuda_program *p, enum dpt_cuda_edge edge, bool gradient,
                       size_t *bytes);

/* With units: the one that a node is in. */
static inline int dpt_cuda_unit_of(const struct dpt_cuda_program *p, int32_t node)
{
    int k = 0;

    while (node >= p->spec.unit[k + 1])
        k++;
    return k;
}

/* Where an arena would begin of which float `first` is at `at`. */
static inline float *dpt_cuda_begin_of(float *at, int64_t first)
{
    return (float *)((uintptr_t)at - (uintptr_t)first * sizeof *at);
}

/* Enqueues a unit's training pass of whole steps forward, or back, after which its gradient is
 * there. The loss is between the last one forward and the first one back. */
enum dpt_status dpt_cuda_enqueue_unit(struct dpt_cuda_program *p, bool back, int unit,
                                      struct dpt_error *err);

#endif

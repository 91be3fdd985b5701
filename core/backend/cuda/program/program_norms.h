/*
 * program_norms: batch norms that the sum after them computes, as in residual networks: a norm, the
 * sum of it and another value, and the sum's ReLU are one kernel. In backward one kernel computes
 * the sum of what several readers pass back, its way through the ReLU, and the norm's own sums. The
 * bits are those of one kernel for each. For program*.c only.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_NORMS_H
#define DPT_BACKEND_CUDA_PROGRAM_NORMS_H

#include "core/backend/cuda/program/program.h"

/* Whether a node is a batch norm that a sum computes. */
static inline bool dpt_cuda_is_joined(const struct dpt_cuda_memory_layout *m, int32_t i)
{
    return m->node[i].joined > i;
}

/* Finds such norms, in programs that train; in other programs they are part of the weights before
 * them. */
void dpt_cuda_join_norms(const struct dpt_program_spec *spec,
                         struct dpt_cuda_memory_layout *memory_layout);
/* Appends the forward pass of sum i together with its norm's. Errors: RANK. */
enum dpt_status dpt_cuda_joined_forward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err);
/* Appends the sums of a norm's backward. node: it, or the sum that computes it, which may have a
 * ReLU: the sum of what several readers passed back, after that ReLU's backward, is written to dz.
 * Errors: RANK. */
enum dpt_status dpt_cuda_norm_weights(struct dpt_cuda_program *p, int32_t node, int32_t norm,
                                      struct dpt_error *err);
/* Enqueues such a norm alone, by its running statistics, and writes its output to where its
 * gradient is. Errors: RANK. */
enum dpt_status dpt_cuda_norm_alone(struct dpt_cuda_program *p, int32_t norm,
                                    struct dpt_error *err);

#endif

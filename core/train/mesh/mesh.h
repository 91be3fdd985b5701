/*
 * mesh: the groups of ranks that share the model and a step's samples, from the layout, and what
 * they exchange besides gradients.
 */
#ifndef DPT_TRAIN_MESH_H
#define DPT_TRAIN_MESH_H

#include "core/train/trainer.h"

/* Sets t->mesh from the layout, without communicators: the groups have only their sizes. */
void dpt_mesh_plan(struct dpt_trainer *t);
/* Collective over t->comm: splits the ranks. Errors: RANK. */
enum dpt_status dpt_mesh_open(struct dpt_trainer *t, struct dpt_error *err);
/* Collective. */
void dpt_mesh_close(struct dpt_trainer *t);

/* The pair of this stage with the next stage, whose number in it is 1, or with the previous stage,
 * whose number is 0. */
const struct dpt_group *dpt_mesh_link(const struct dpt_trainer *t, bool next);

/* Collective. Sums the gradient (dpt_gradient_reduction_type.sum). If ranks divide the model, each
 * stage sums its own gradient, once all ranks of the job know that none has failed. Errors:
 * RANK. */
enum dpt_status dpt_mesh_sum(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                             struct dpt_error *err);

/* Whether this rank reports on its part of a tensor of its stage: of the ranks that have the same
 * part, and the same micro-batches, only one reports. */
bool dpt_mesh_tells(const struct dpt_trainer *t, int32_t tensor);

#endif

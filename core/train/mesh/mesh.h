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
enum dpt_status dpt_mesh_sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                             const float flags[DPT_FLAGS], struct dpt_error *err);

/* What the stages exchange after the sum of a step's gradients. */
struct dpt_mesh_words {
    double squares;
    float words[8];
};
/* Collective. The chunks' squares are added up in the order of the stages: *squares becomes the sum
 * of the stages before this one, from which this stage continues. Errors: RANK. */
enum dpt_status dpt_mesh_before(const struct dpt_trainer *t, double *squares,
                                struct dpt_error *err);
/* Collective. Hands this stage's sum on; then all ranks get the last stage's sum and words.
 * finite_state: whether what the step adds to the state is a number here; if ranks divide the model
 * and it is not a number on one of them, the sum is NAN, so that all know. Errors: RANK. */
enum dpt_status dpt_mesh_share(const struct dpt_trainer *t, bool finite_state,
                               struct dpt_mesh_words *words, struct dpt_error *err);

/* Whether this rank reports on its part of a tensor of its stage: of the ranks that have the same
 * part, and the same micro-batches, only one reports. */
bool dpt_mesh_tells(const struct dpt_trainer *t, int32_t tensor);

#endif

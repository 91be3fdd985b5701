/*
 * nonfinite: where a value first was not finite, in a step or an evaluation.
 */
#ifndef DPT_TRAIN_NONFINITE_H
#define DPT_TRAIN_NONFINITE_H

#include "core/train/trainer.h"

/*
 * Collective, after a step whose reduced gradient or loss is not finite and before the next one:
 * finds the rank, layer and sample where that began, fills err and returns FAILED. view: the
 * step's. gradient: memory for a gradient of this rank.
 */
enum dpt_status dpt_trainer_find_nonfinite(struct dpt_trainer *t, const struct dpt_step_view *view,
                                           float *gradient, struct dpt_error *err);

/* Fails if samples of the last evaluation, which was of this split, have outputs that are not
 * finite: reports how many, and names the first. All ranks get the same result. Errors: FAILED. */
enum dpt_status dpt_trainer_check_outputs(const struct dpt_trainer *t,
                                          const struct dpt_split *split, struct dpt_error *err);

#endif

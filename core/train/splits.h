/*
 * splits: the samples that train, validate and test, as the job names them: data sets of their own,
 * or a fraction of one. A struct dpt_split (trainer.h) borrows its set from the trainer.
 */
#ifndef DPT_TRAIN_SPLITS_H
#define DPT_TRAIN_SPLITS_H

#include "core/train/trainer.h"

/* Opens the job's data sets of `parts` (DPT_PART_...) into t, or describes them where t is planned.
 * Collective unless it is. Errors: as dpt_dataset_open; BAD_JOB (data.valid). */
enum dpt_status dpt_trainer_open_data(struct dpt_trainer *t, unsigned parts, struct dpt_error *err);

/* A mean over samples none of which counts is nothing: told before the first step, not as NaN.
 * Errors: BAD_DATA. */
enum dpt_status dpt_split_check_weights(const struct dpt_split *split, struct dpt_error *err);

#endif

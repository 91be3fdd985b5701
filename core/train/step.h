/*
 * step: what every step has, whoever takes it (engine.h), below all engines.
 */
#ifndef DPT_TRAIN_STEP_H
#define DPT_TRAIN_STEP_H

#include "core/train/trainer.h"

/* What this rank tells the others with the step: all but whether its part failed. */
void dpt_step_flags(const struct dpt_trainer *t, float flags[DPT_FLAGS]);
/* What they told, once t->reduction.reduced_flags holds the sums of the flags. */
void dpt_step_hear(const struct dpt_trainer *t, struct dpt_step_result *result);

/* The rate of the next update. */
double dpt_step_rate(const struct dpt_trainer *t);

/* All samples of the step were counted, each once. Errors: INTERNAL. */
enum dpt_status dpt_step_check_count(const struct dpt_trainer *t, int64_t counted, int32_t total,
                                     struct dpt_error *err);
/* A failure of the next step says so: returns `status`, err with the step's number in front. */
enum dpt_status dpt_step_fail(const struct dpt_trainer *t, enum dpt_status status,
                              struct dpt_error *err);

/* A step of so many samples is done: t->progress but for its updates. */
void dpt_step_advance(struct dpt_trainer *t, int64_t samples);

#endif

/* warnings: warns of what is likely unintended in a job, its data or its division, and shows in no
 * number of a run. */
#ifndef DPT_TRAIN_WARNINGS_H
#define DPT_TRAIN_WARNINGS_H

#include "core/base/log.h"
#include "core/train/trainer_parts.h"

/* Warns of a last layer that the loss already contains, and of a learning rate that is 0 or never
 * reached. */
void dpt_warn_job(const struct dpt_job *job, const struct dpt_trainer_model *model, int64_t steps,
                  int64_t steps_per_epoch, double lr, struct dpt_log *log);
/* Warns if a step takes more samples than there are, if a batch norm gets a single sample, and if
 * classes are learned as numbers. */
void dpt_warn_data(const struct dpt_job *job, const struct dpt_splits *data,
                   const struct dpt_trainer_model *model, struct dpt_log *log);
/* Warns of ranks that have no micro-batch in a whole step, and says which size would give them one.
 */
void dpt_warn_idle(const struct dpt_layout *layout, struct dpt_log *log);

#endif

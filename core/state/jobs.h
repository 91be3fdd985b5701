/* jobs: in what the job of a checkpoint and the present one differ. */
#ifndef DPT_STATE_JOBS_H
#define DPT_STATE_JOBS_H

#include <stdbool.h>

#include "core/conf/option.h"

/*
 * Compares the job of a checkpoint with the present one. table: the rows of a job, which say what
 * the keys mean to a run that goes on, and the defaults of those that a text lacks; size: of the
 * struct that they fill. Without a table every key counts. *changes: one line a difference, "key:
 * old -> new". Returns whether only such keys differ as a continued run may change. Memory that ran
 * out is in changes->failed.
 */
bool dpt_jobs_compare(const char *old_job, const char *new_job, const struct dpt_option *table,
                      size_t size, struct dpt_str *changes);

#endif

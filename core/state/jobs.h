/* jobs: in what the job of a checkpoint and the present one differ. */
#ifndef DPT_STATE_JOBS_H
#define DPT_STATE_JOBS_H

#include <stdbool.h>

#include "core/base/str.h"

/*
 * Compares the job of a checkpoint with the present one. *changes: one line a difference, "key: old
 * -> new". Returns whether only such keys differ as a continued run may change (how long). Memory
 * that ran out is in changes->failed.
 */
bool dpt_jobs_compare(const char *old_job, const char *new_job, struct dpt_str *changes);

#endif

/*
 * run_files: which files of a run's folder dptrain wrote itself.
 *
 * A run replaces files of its folder and appends to them by their names; what lies there under such
 * a name may be somebody else's, as where the folder is the one that the hand-written job.yaml lies
 * in. A file is known as ours by how it begins, or ends; also one of an older version, one that a
 * crash cut, one that begins with zeros, as a power failure leaves it, and an empty one. A step's
 * checkpoint is ours whatever damage it has, unless it is a whole HDF5 file of somebody else's.
 */
#ifndef DPT_STATE_RUN_FILES_H
#define DPT_STATE_RUN_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

/* The comment that the resolved job of a run folder begins with. */
#define DPT_RUN_JOB_MARK                                                                           \
    "# The job of this run with all its defaults. dptrain wrote this file, and replaces it when "  \
    "the run goes on.\n"

/* The i-th of the files that a run writes in its folder, beside checkpoints/ and its lock; the
 * metrics come last, as a folder that has them holds a run. NULL after the last. */
const char *dpt_run_file_name(size_t i);

/* Whether FOLDER/NAME may be replaced: false for a regular file that dptrain did not write. True
 * for what is no regular file, which opening it for writing refuses. name: one of those above, or
 * "checkpoints/...", where a checkpoint is ours. */
bool dpt_run_file_ours(const char *folder, const char *name);

/* Whether a run may write FOLDER/NAME. Errors: USAGE (names the file, and what to do). */
enum dpt_status dpt_run_file_check(const char *folder, const char *name, struct dpt_error *err);

/* Checks likewise all that lies in FOLDER/checkpoints under a checkpoint's name. Errors: USAGE. */
enum dpt_status dpt_run_checkpoints_check(const char *folder, struct dpt_error *err);

#endif

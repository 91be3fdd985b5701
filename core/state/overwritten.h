/*
 * overwritten: the run that a folder held before, until a new one can stand in its place.
 *
 * `--overwrite` starts from scratch in a folder that holds a run. That run's files (those that
 * dptrain writes there, and no others) move into FOLDER/overwritten, and are removed once the new
 * run has a checkpoint or has ended. The move is made under another name, FOLDER/.overwriting, and
 * counts only as a whole: one that a crash broke off is undone by the next start. So either the old
 * run or a checkpoint of the new one is always there. All of this belongs to whoever has the
 * folder's lock.
 */
#ifndef DPT_STATE_OVERWRITTEN_H
#define DPT_STATE_OVERWRITTEN_H

#include <stdbool.h>

#include "core/base/error.h"

/* Whether a run lies in FOLDER/overwritten, which is then a run folder like any other. */
bool dpt_overwritten_exists(const char *folder);

/* Undoes a move that was broken off; called at every start. Errors: IO. */
enum dpt_status dpt_overwritten_restore(const char *folder, struct dpt_error *err);

/* Moves the folder's run to FOLDER/overwritten; where one lies there already, this one has come to
 * nothing and is removed. Nothing happens in a folder without a run. Errors: IO, USAGE (other files
 * lie there). */
enum dpt_status dpt_overwritten_put(const char *folder, struct dpt_error *err);

/* Removes the run in FOLDER/overwritten. Errors: IO. */
enum dpt_status dpt_overwritten_remove(const char *folder, struct dpt_error *err);

#endif

/*
 * saver: checkpoints written beside the training.
 *
 * Rank 0 keeps one. Starting a save copies the state (the only time that training waits for) and
 * leaves the rest to a thread of its own: file, sync, links, clearing away; where all ranks write
 * parts of the file meanwhile (struct dpt_state), once they have (dpt_saver_complete). There is at
 * most one save at a time; starting another waits for the one before. What went wrong in the
 * background is told at the next call, once. Where the state names a lock, nothing gets a final
 * name and no link moves unless the lock is still ours.
 */
#ifndef DPT_STATE_SAVER_H
#define DPT_STATE_SAVER_H

#include <limits.h>

#include "core/base/pool.h"
#include "core/base/span.h"
#include "core/state/checkpoint.h"

struct dpt_saver;

/* A save that has come to its end. */
struct dpt_saved {
    char path[PATH_MAX];
    int64_t step;
    double seconds; /* from the copy to the end */
    double copying; /* of these, training waited */
};

/* state: of the model and job that will be saved; folder: the run folder, borrowed. Errors: RANK,
 * IO. */
enum dpt_status dpt_saver_open(struct dpt_saver **saver, const struct dpt_state *state,
                               const char *folder, int64_t keep, struct dpt_error *err);
/* Waits for a save in flight. */
void dpt_saver_close(struct dpt_saver *saver);

/* Waits for the save before, copies the state, and continues in the background. pool: whose threads
 * copy; NULL: the caller alone. Errors: those of the save before. */
enum dpt_status dpt_saver_start(struct dpt_saver *saver, const struct dpt_state *state,
                                struct dpt_pool *pool, struct dpt_error *err);

/* Once all ranks have written their parts of a save that was started: continues it, or, if one
 * could not, leaves nothing of it. done: as struct dpt_state's `write` gives it. Does nothing to a
 * save that does not wait for that. Errors: RANK. */
enum dpt_status dpt_saver_complete(struct dpt_saver *saver, bool written,
                                   const struct dpt_stretch *done, size_t n, struct dpt_error *err);

/* Bytes of the file of a save. */
uint64_t dpt_saver_bytes(const struct dpt_saver *saver);

/* Waits for a save in flight, for at most so many seconds; whether it still is. NULL:
 * false. */
bool dpt_saver_busy(struct dpt_saver *saver, double seconds);

/*
 * Whether a save ended since the last call; then *saved is filled. wait: for one in flight, unless
 * that waits for dpt_saver_complete.
 * Errors: IO, RANK: that of the save; the checkpoints before it are whole, and `latest` names one.
 */
enum dpt_status dpt_saver_poll(struct dpt_saver *saver, bool wait, bool *ended,
                               struct dpt_saved *saved, struct dpt_error *err);

/* From here on the saver's thread tells `spans` when it saves; NULL: no longer. Borrowed. */
void dpt_saver_observe(struct dpt_saver *saver, struct dpt_spans *spans);

#endif

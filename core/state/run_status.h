/*
 * run_status: whether the run of a run folder is still running, and how it ended.
 *
 * From its history and its lock (see lock.h): a run that was stopped by force leaves no end in
 * metrics.jsonl and a lock that nobody renews.
 */
#ifndef DPT_STATE_RUN_STATUS_H
#define DPT_STATE_RUN_STATUS_H

#include "core/state/history.h"
#include "core/state/owner.h"

enum dpt_run_state {
    DPT_RUN_RUNNING,
    DPT_RUN_DONE,    /* made all its steps */
    DPT_RUN_STOPPED, /* on request: started again, it goes on */
    DPT_RUN_FAILED,  /* and said why */
    DPT_RUN_LOST,    /* stopped by force, or its node is gone */
    DPT_RUN_STATES
};

struct dpt_run_status {
    enum dpt_run_state state;
    const char *reason; /* why it ended, the history's; "" */
    bool held;          /* a process holds the lock: */
    struct dpt_owner owner;
    double silent; /* seconds since its last sign of life */
};

/* One word each: "running", "done", "stopped", "failed", "lost". */
extern const char *const dpt_run_state_names[DPT_RUN_STATES];

/* Reads the run's status from its history and the lock of its folder. */
void dpt_run_status_read(const struct dpt_history *h, struct dpt_run_status *run_status);

#endif

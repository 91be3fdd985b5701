/*
 * life: whether the run of a run folder still runs, and how it ended.
 *
 * From its history and its lock (see lock.h): a run that was stopped by force leaves no end in
 * metrics.jsonl and a lock that nobody renews.
 */
#ifndef DPT_STATE_LIFE_H
#define DPT_STATE_LIFE_H

#include "core/state/history.h"
#include "core/state/owner.h"

enum dpt_life_state {
    DPT_LIFE_RUNNING,
    DPT_LIFE_DONE,    /* made all its steps */
    DPT_LIFE_STOPPED, /* on request: started again, it goes on */
    DPT_LIFE_FAILED,  /* and said why */
    DPT_LIFE_LOST,    /* stopped by force, or its node is gone */
    DPT_LIFE_STATES
};

struct dpt_life {
    enum dpt_life_state state;
    const char *reason; /* why it ended, the history's; "" */
    bool held;          /* somebody has the lock: */
    struct dpt_owner owner;
    double silent; /* seconds since its last sign of life */
};

/* One word each: "running", "done", "stopped", "failed", "lost". */
extern const char *const dpt_life_words[DPT_LIFE_STATES];

/* Looks at the lock of the history's folder. */
void dpt_life_look(const struct dpt_history *h, struct dpt_life *life);

#endif

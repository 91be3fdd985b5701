/*
 * lists: runs the lists of all ranks of a step against each other, without MPI and without time.
 *
 * Each rank goes through its list as far as it can: what it receives must have been sent, and
 * collective actions need all replicas of the stage. On the way every action is checked: a
 * micro-batch goes forward through all units in order, and back; a place in flight holds one of
 * them at a time; a unit's weights are there only during its passes; each gradient is added once,
 * and collectives come in one order. So errors of a planner, and lists that wait for each other,
 * are found before a job runs.
 */
#ifndef DPT_TRAIN_LAYOUT_LISTS_H
#define DPT_TRAIN_LAYOUT_LISTS_H

#include "core/base/str.h"
#include "core/train/layout/actions.h"

struct dpt_lists_rank;

/* The ranks of a step: [stages][replicas]. Begins as {0}. */
struct dpt_lists {
    int stages, replicas;
    struct dpt_lists_rank *rank;
    int64_t collective; /* actions of a stage's replicas together, so far */
};

/* Makes the lists of all ranks: of(arg, stage, replica) gives the input of the planner. Errors:
 * RANK. */
enum dpt_status dpt_lists_open(struct dpt_lists *lists, int stages, int replicas,
                               struct dpt_division (*of)(void *arg, int stage, int replica),
                               void *arg, struct dpt_error *err);
void dpt_lists_close(struct dpt_lists *lists);
const struct dpt_actions *dpt_lists_of(const struct dpt_lists *lists, int stage, int replica);

/*
 * Runs them. done: NULL, or called for each action of the first replicas once it has taken place; a
 * RECEIVE comes after its SEND. grid: NULL, or gets a line of each rank with what it did, "F0" for
 * forward of round 0, "B0" for backward, "!" at its position after a failure. Errors: INTERNAL
 * (names rank, action and rule).
 */
enum dpt_status dpt_lists_run(struct dpt_lists *lists,
                              void (*done)(void *arg, int stage, const struct dpt_action *action),
                              void *arg, struct dpt_str *grid, struct dpt_error *err);

#endif

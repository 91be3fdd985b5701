/*
 * schedules: the order in which a stage of a pipeline takes its micro-batches.
 *
 * A schedule says how many micro-batches a stage has in flight at most. One is in flight after its
 * forward and before its backward there. A stage goes forward as long as it may, then back with
 * the first micro-batch, and so on; backward comes in the order of forward, 0, 1, ..., so that
 * gradients are added up in one order, whichever schedule it is. gpipe (Huang et al. 2019): all
 * forward, then all back. 1f1b (Narayanan et al. 2019, PipeDream-Flush): stage k of S has S - k in
 * flight, however many there are. forward: for evaluation, nothing goes back.
 */
#ifndef DPT_TRAIN_LAYOUT_SCHEDULES_H
#define DPT_TRAIN_LAYOUT_SCHEDULES_H

#include "core/train/job/job.h"

/* A schedule beside those of enum dpt_pipeline_kind (job.h). */
enum { DPT_PIPELINE_FORWARD = DPT_PIPELINE_KIND_COUNT };

/* How many of so many micro-batches a stage has in flight at most. */
int32_t dpt_pipeline_in_flight(int schedule, int stages, int stage, int32_t micro_batches);

struct dpt_pipeline_action {
    bool back;
    int32_t micro_batch; /* from 0 */
};

/* The position of a stage in its schedule; begins as {schedule, stages, stage, micro_batches}. */
struct dpt_pipeline_walk {
    int schedule, stages, stage;
    int32_t micro_batches;
    int32_t forward, back; /* so many have gone */
};

/* The stage's next action; false: there are no more. */
bool dpt_pipeline_next(struct dpt_pipeline_walk *walk, struct dpt_pipeline_action *action);

#endif

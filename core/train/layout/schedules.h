/*
 * schedules: the order in which a stage of a pipeline takes its micro-batches.
 *
 * A schedule is a row: how many micro-batches a stage has in flight at most. One is in flight after
 * its forward and before its backward there. A stage goes forward as long as it may, then back with
 * the first micro-batch, and so on; backward comes in the order of forward, 0, 1, ..., so that
 * gradients are added up in one order, whichever schedule it is. gpipe (Huang et al. 2019): all
 * forward, then all back. 1f1b (Narayanan et al. 2019, PipeDream-Flush): stage k of S has S - k in
 * flight, however many there are. forward: for evaluation, nothing goes back.
 */
#ifndef DPT_TRAIN_LAYOUT_SCHEDULES_H
#define DPT_TRAIN_LAYOUT_SCHEDULES_H

#include <stdbool.h>
#include <stdint.h>

struct dpt_pipeline_schedule {
    const char *name;
    bool back; /* what has gone forward goes back */
    int32_t (*under_way)(int stages, int stage, int32_t micro_batches);
};

/* The first ones by enum dpt_pipeline_kind (job.h). */
enum { DPT_PIPELINE_FORWARD = 2, DPT_PIPELINE_SCHEDULES };
extern const struct dpt_pipeline_schedule dpt_pipeline_schedules[DPT_PIPELINE_SCHEDULES];

struct dpt_pipeline_action {
    bool back;
    int32_t micro_batch; /* from 0 */
};

/* The position of a stage in its schedule; begins as {schedule, stages, stage, micro_batches}. */
struct dpt_pipeline_walk {
    const struct dpt_pipeline_schedule *schedule;
    int stages, stage;
    int32_t micro_batches;
    int32_t forward, back; /* so many have gone */
};

/* The stage's next action; false: there are no more. */
bool dpt_pipeline_next(struct dpt_pipeline_walk *walk, struct dpt_pipeline_action *action);

#endif

/*
 * schedules: in which order a stage of a pipeline takes its micro-batches.
 *
 * A schedule is a row: how many micro-batches a stage has under way at most, each of which has gone
 * forward there and not yet back. A stage goes forward as long as it may, then back with the first
 * one, and so on; backward comes in the order of forward, 0, 1, ..., so that gradients are added up
 * in one order, whichever schedule it is. gpipe (Huang et al. 2019): all forward, then all back.
 * 1f1b (Narayanan et al. 2019, PipeDream-Flush): stage k of S has S - k under way, however many
 * there are. forward: as in evaluation, nothing goes back.
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

/* Where a stage is in its schedule; begins as {schedule, stages, stage, micro_batches}. */
struct dpt_pipeline_walk {
    const struct dpt_pipeline_schedule *schedule;
    int stages, stage;
    int32_t micro_batches;
    int32_t forward, back; /* so many have gone */
};

/* The stage's next action; false: it has had all. */
bool dpt_pipeline_next(struct dpt_pipeline_walk *walk, struct dpt_pipeline_action *action);

#endif

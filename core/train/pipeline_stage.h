/* pipeline_stage: what a pipeline's stage computes with an action of its schedule. Only for
 * pipeline.c. */
#ifndef DPT_TRAIN_PIPELINE_STAGE_H
#define DPT_TRAIN_PIPELINE_STAGE_H

#include "core/train/pipeline.h"
#include "core/train/pipeline_schedule.h"

/* A micro-batch under way on a thread, or a team's group of them. */
struct dpt_pipeline_slot {
    struct dpt_batch_buffer *buffer;
    struct dpt_batch batch;
    struct dpt_pass pass;
    struct dpt_metric_sums metric_sums[DPT_GROUP_MOST];
    /* What forward gives for the running statistics: like a gradient's part of them. */
    float *state;
    struct dpt_sending forward, back;
};

/* What all threads do now. */
struct dpt_pipeline_work {
    const struct dpt_split *split;
    const struct dpt_step_view *view;
    const struct dpt_pipeline_pass *infers; /* NULL: it trains */
    struct dpt_pipeline_action action;
    int unit; /* of the stage (units.h) */
};

struct dpt_pipeline {
    struct dpt_trainer *t;            /* borrowed */
    int takers;                       /* threads that take micro-batches of their own in training */
    int n_slots;                      /* of each of them */
    struct dpt_pipeline_slot *slots;  /* [threads][n_slots] */
    struct dpt_pipeline_slot *infer;  /* [threads]: of evaluations, on the workers' buffers */
    struct dpt_batch_buffer *buffers; /* [threads][n_slots] */
    int32_t first, last;              /* this rank's micro-batches */
    int32_t all;                      /* those of the step, where it trains */
    int64_t step;                     /* of the epoch, or of the evaluation */
    int32_t *begin; /* [run + 2]: of a team, where each of its groups begins, and the end */
    struct dpt_pipeline_work work;
    double waited;
};

/* Whether this rank's stage has the outputs. */
static inline bool dpt_pipeline_is_last(const struct dpt_trainer *t)
{
    return t->mesh.stage == t->mesh.stages - 1;
}

/* Whether the threads compute together, a group of micro-batches with an action. */
bool dpt_pipeline_in_groups(const struct dpt_pipeline *p);
/* Threads that take micro-batches of their own: in evaluation all do. */
int dpt_pipeline_takers(const struct dpt_pipeline *p);
/* Whether an action is a round of the replicas, which take micro-batches in turn. */
bool dpt_pipeline_in_rounds(const struct dpt_pipeline *p);
/* The micro-batch that a thread takes with the present action, or the first one of a team's group;
 * -1: it has no more. */
int32_t dpt_pipeline_micro_batch(const struct dpt_pipeline *p, int taker);
/* How many micro-batches the action takes. */
int32_t dpt_pipeline_group(const struct dpt_pipeline *p, int taker);
int dpt_pipeline_slot_number(const struct dpt_pipeline *p);
struct dpt_pipeline_slot *dpt_pipeline_slot(const struct dpt_pipeline *p, int taker);
/* Collective. All of the stage's nodes, unit by unit where it has some. */
enum dpt_status dpt_pipeline_pass_stage(struct dpt_pipeline *p, enum dpt_status status,
                                        struct dpt_error *err);

#endif

/*
 * pipeline: a rank's micro-batches through its stage of the model (mesh.h).
 *
 * A stage takes its replica's micro-batches as its schedule says (pipeline_schedule.h): each value
 * that the next stage reads is sent there as soon as it is computed, and each gradient back. What
 * is sent lies in the program's own buffers on both sides, as every rank's program lays them out
 * alike. Where the threads of a rank take micro-batches of their own, an action of the schedule is
 * one of each thread's; a team takes a group of them at once (dpt_trainer_choose_group), which
 * waits for the stage before it as one. Messages are the main thread's.
 *
 * A rank that fails still sends and receives all that the others expect, whatever it is, and says
 * so with the step's flags.
 */
#ifndef DPT_TRAIN_PIPELINE_H
#define DPT_TRAIN_PIPELINE_H

#include "core/train/trainer.h"

struct dpt_pipeline;

/* For a trainer with stages whose program and reduction are open, on this rank. On failure
 * *pipeline is to be closed. Errors: RANK. */
enum dpt_status dpt_pipeline_open(struct dpt_pipeline **pipeline, struct dpt_trainer *t,
                                  struct dpt_error *err);
void dpt_pipeline_close(struct dpt_pipeline *pipeline);

/* Of a step, how many times a thread goes forward at most, as often as back: with micro-batches one
 * by one, or a team's groups of them. Here and below also of a trainer that is only planned. */
int32_t dpt_pipeline_actions(const struct dpt_trainer *t, int32_t micro);
/* How many of these each of this rank's threads has under way at most. */
int dpt_pipeline_slots(const struct dpt_trainer *t, int32_t micro);

/* Collective. Computes this rank's micro-batches of the step, whose gradients' sum has begun.
 * status: this rank's so far; where it failed, view is not read, and nothing is computed. Gives the
 * rank's own status, which the others do not know yet. Errors: as dpt_trainer_step's. */
enum dpt_status dpt_pipeline_compute(struct dpt_pipeline *pipeline,
                                     const struct dpt_step_view *view, enum dpt_status status,
                                     struct dpt_error *err);
/* Seconds of the last step that this rank waited for other stages. */
double dpt_pipeline_waited(const struct dpt_pipeline *pipeline);

/* Forward as in evaluation, over a step's micro-batches of a split. */
struct dpt_pipeline_pass {
    const struct dpt_split *split;
    const struct dpt_step_view *view;
    /* For each micro-batch, by one of the threads: in the last stage what the outputs are and the
     * loss, in the others the value that the next stage gets, in the program's layout; floats: as
     * many of it as have samples. */
    enum dpt_status (*take)(void *arg, int thread, int32_t micro_batch,
                            const struct dpt_batch *batch, const float *value, size_t floats,
                            const struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    void *arg;
    /* [threads]: where each finds a value that is not finite, for `take` to read and to set back to
     * -1; NULL: nobody asks. */
    struct dpt_nonfinite *nonfinite;
};
/* Collective. status, and what it gives: as above; where it failed, only the split's step is
 * read. */
enum dpt_status dpt_pipeline_infer(struct dpt_pipeline *pipeline,
                                   const struct dpt_pipeline_pass *pass, int64_t step,
                                   enum dpt_status status, struct dpt_error *err);

/* Collective. Each stage sums its own gradient (dpt_gradient_reduction_type.sum), once all ranks of
 * the job know that none has failed. Errors: RANK. */
enum dpt_status dpt_pipeline_sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                                 const float flags[DPT_FLAGS], struct dpt_error *err);

/* What the stages learn of each other after the sum of a step's gradients. */
struct dpt_pipeline_words {
    double squares;
    float words[8];
};
/* Collective. The chunks' squares are added up in the order of the stages: *squares becomes the sum
 * of those before this one, from which it goes on. Errors: RANK. */
enum dpt_status dpt_pipeline_before(const struct dpt_trainer *t, double *squares,
                                    struct dpt_error *err);
/* Collective. Hands this stage's sum on; then all ranks get the last stage's sum and words. Errors:
 * RANK. */
enum dpt_status dpt_pipeline_share(const struct dpt_trainer *t, struct dpt_pipeline_words *words,
                                   struct dpt_error *err);

#endif

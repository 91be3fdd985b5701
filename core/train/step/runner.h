/*
 * runner: takes a rank's micro-batches of a step through a list of actions (actions.h).
 *
 * It does once what every way of dividing the work needs: it finds which micro-batches a worker
 * takes, keeps what is in flight, notes for the watchdog what is waited for, and counts that time.
 * A rank that fails takes part in all collective actions, whatever it has to give, and reports the
 * failure with the step's flags. Only the main thread sends messages.
 *
 * What one stage sends another lies in the program's own buffers on both sides, as every rank's
 * program lays them out alike.
 */
#ifndef DPT_TRAIN_STEP_RUNNER_H
#define DPT_TRAIN_STEP_RUNNER_H

#include "core/train/layout/actions.h"
#include "core/train/trainer.h"

struct dpt_runner;

/* For a trainer whose program is open, on this rank: makes the lists of full and of short steps and
 * evaluations. On failure *runner is to be closed. Errors: BAD_JOB (what stages send is more than a
 * message takes), RANK. */
enum dpt_status dpt_runner_open(struct dpt_runner **runner, struct dpt_trainer *t,
                                struct dpt_error *err);
void dpt_runner_close(struct dpt_runner *runner);

/* Collective if the list is. Computes this rank's micro-batches of the next step, for which the
 * reduction has begun (gradient_reduction.h). status: this rank's so far; where it failed, view is
 * not read and nothing is computed. Gives the rank's own status, which the others do not know yet.
 * Errors: as dpt_trainer_step's. */
enum dpt_status dpt_runner_train(struct dpt_runner *runner, const struct dpt_step_view *view,
                                 enum dpt_status status, struct dpt_error *err);
/* Seconds of the last step that this rank waited for others. */
double dpt_runner_waited(const struct dpt_runner *runner);

/* An evaluation's pass over a step's micro-batches of a split. */
struct dpt_runner_pass {
    const struct dpt_split *split;
    const struct dpt_step_view *view;
    /* For each micro-batch, by one of the threads: in the last stage what the outputs are and the
     * loss, in the others the value that the next stage gets, in the program's layout. */
    void (*take)(void *arg, int thread, int32_t micro_batch, const struct dpt_batch *batch,
                 const float *value, const struct dpt_metric_sums *metric_sums);
    void *arg;
    /* Where a thread's outputs go that are computed by the whole model at once: [threads][stride];
     * NULL: `take` does not want them. */
    float *outputs;
    size_t stride;
    /* [threads]: where each finds a value that is not finite, for `take` to read and to set back to
     * -1; NULL: nobody asks. Of a model that is computed at once it is not set. */
    struct dpt_nonfinite *nonfinite;
};
/* Collective if the list is. step: of the split. status, and what it gives: as above. */
enum dpt_status dpt_runner_infer(struct dpt_runner *runner, const struct dpt_runner_pass *pass,
                                 int64_t step, enum dpt_status status, struct dpt_error *err);

/* Doubles that a rank has for the largest exchange of a synchronized batch norm, and for one
 * micro-batch's part of it; 0: there is none. */
void dpt_step_exchange_room(const struct dpt_layout *layout, const struct dpt_layout_stage *stage,
                            size_t *all, size_t *one);
/* Bytes that the rank which sends most sends for the exchange of a norm of so many channels. */
double dpt_step_exchange_bytes(const struct dpt_layout *layout, int32_t channels);

#endif

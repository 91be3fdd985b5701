/*
 * runner: takes a rank's micro-batches of a step through a list of actions (actions.h).
 *
 * It does once what every way of dividing the work needs: it finds which micro-batches a worker
 * takes, keeps what is in flight, notes for the watchdog what is waited for,
 * and counts that time. A rank that fails takes part in all actions that are collective, whatever
 * it has to give, and says so with the step's flags. Messages are the main thread's.
 *
 * What one stage sends another lies in the program's own buffers on both sides, as every rank's
 * program lays them out alike.
 */
#ifndef DPT_TRAIN_STEP_RUNNER_H
#define DPT_TRAIN_STEP_RUNNER_H

#include "core/train/step/actions.h"
#include "core/train/trainer.h"

struct dpt_runner;

/* For a trainer whose program is open, on this rank: makes the lists of full and of short steps and
 * evaluations. On failure *runner is to be closed. Errors: BAD_JOB (what stages send is more than a
 * message takes), RANK. */
enum dpt_status dpt_runner_open(struct dpt_runner **runner, struct dpt_trainer *t,
                                struct dpt_error *err);
void dpt_runner_close(struct dpt_runner *runner);

/* Collective where the list is. Computes this rank's micro-batches of the next step, for which the
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
     * loss, in the others the value that the next stage gets, in the program's layout; floats: as
     * many of it as have samples. */
    enum dpt_status (*take)(void *arg, int thread, int32_t micro_batch,
                            const struct dpt_batch *batch, const float *value, size_t floats,
                            const struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    void *arg;
    /* Where a thread's outputs go that are computed by the whole model at once: [threads][stride];
     * NULL: `take` does not want them. */
    float *outputs;
    size_t stride;
    /* [threads]: where each finds a value that is not finite, for `take` to read and to set back to
     * -1; NULL: nobody asks. Of a model that is computed at once it is not set. */
    struct dpt_nonfinite *nonfinite;
};
/* Collective where the list is. step: of the split. status, and what it gives: as above. */
enum dpt_status dpt_runner_infer(struct dpt_runner *runner, const struct dpt_runner_pass *pass,
                                 int64_t step, enum dpt_status status, struct dpt_error *err);

/* --- how the work is divided (division.c), also of a planned trainer -------------------------- */

/*
 * How many micro-batches of size `micro` a rank's team computes at once under `reproducible`: as
 * many as form a node of the reduction's tree, whose gradients it adds on the way (backend.h,
 * `sub_batch`). The bits are the same, and weights and gradient are read and written once. In
 * stages it has several such groups under way, which are smaller so that few stages wait.
 */
int32_t dpt_step_choose_group(const struct dpt_trainer *t, int32_t micro);
/* Of how many the backend is to add the gradients before it gives their sum: of all that a rank, or
 * a thread by itself, has in a step, unless the ranks exchange them in rounds, or something looks
 * at each. */
int32_t dpt_step_choose_adds(const struct dpt_trainer *t, int32_t micro);
/* Whether a round takes the workers of all ranks, so that all must have as many: stages take the
 * same micro-batches at once, and rounds in turn go round all workers. */
bool dpt_step_takes_all(const struct dpt_trainer *t);
/* The most workers that a rank may have: a divided layer has one, which tells the other ranks of
 * it. */
int dpt_step_most_workers(const struct dpt_trainer *t);
/* What the planners make this rank's list from, for that many rounds. */
struct dpt_division dpt_step_division(const struct dpt_trainer *t, int32_t rounds, bool infers);
/* Micro-batches that a rank takes in its turn; 0: it takes a run of a step's. */
int32_t dpt_step_turn(const struct dpt_trainer *t);
/* The most rounds that any replica has in a training step with micro-batches of that size. */
int32_t dpt_step_most_rounds(const struct dpt_trainer *t, int32_t micro);
/* The most micro-batches, or groups of them, that a worker has in flight then. */
int32_t dpt_step_in_flight(const struct dpt_trainer *t, int32_t micro);
/* Doubles that the largest exchange of a synchronized batch norm takes, and one micro-batch's part
 * of it; 0: there is none. */
void dpt_step_exchange_room(const struct dpt_trainer *t, size_t *all, size_t *one);
/* Makes the list of a full training step of a trainer that is planned or open. *rounds: out.
 * Errors: RANK. */
enum dpt_status dpt_step_list(const struct dpt_trainer *t, struct dpt_actions *list,
                              int32_t *rounds, struct dpt_error *err);

#endif

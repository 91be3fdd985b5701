/*
 * step: what the runner's files share. For core/train/step only.
 */
#ifndef DPT_TRAIN_STEP_STEP_H
#define DPT_TRAIN_STEP_STEP_H

#include "core/train/step/actions.h"
#include "core/train/step/runner.h"

/* A micro-batch in flight, or a team's group of them. */
struct dpt_step_flight {
    struct dpt_batch_buffer own, *buffer; /* the worker's, or one of its own */
    struct dpt_batch batch;
    struct dpt_pass pass;
    struct dpt_metric_sums metric_sums[DPT_GROUP_MOST];
    float *
        extra; /* behind the learned floats of its gradient: for the running statistics, the tail */
    double *sums; /* [2][channels]: of the synchronized norm at which it stands; else NULL */
    struct dpt_sending forward, back;
};

/* A list, and for what it is. */
struct dpt_step_list {
    bool infers;
    int32_t rounds;
    struct dpt_actions actions;
};

/* Which micro-batches of a step a rank's workers take. */
struct dpt_step_share {
    const struct dpt_sampler *sampler;
    struct dpt_group ranks; /* that divide the samples */
    int workers;            /* of this rank */
    int32_t group;          /* micro-batches of a round */
    bool round_robin;
    int64_t step;             /* of the sampler's epoch */
    int32_t samples;          /* of the step */
    int32_t all, first, last; /* its micro-batches; this rank's run of them */
};

struct dpt_runner {
    struct dpt_trainer *t; /* borrowed */
    struct dpt_step_list *lists;
    int32_t n_lists;
    size_t list_room;
    int workers, in_flight;          /* in training; micro-batches in flight of each */
    struct dpt_step_flight *flights; /* [workers][in_flight] */
    struct dpt_step_flight *infer;   /* [threads]: of evaluations */
    float *extras;                   /* the flights' */
    double *sums;                    /* the flights' */
    double *exchanged;               /* [blocks][2][channels]: of the whole step, of all ranks */
    int64_t exchanges;               /* so far in this step */

    /* The step that is taken. */
    const struct dpt_split *split;
    const struct dpt_step_view *view;
    const struct dpt_runner_pass *infers; /* NULL: it trains */
    struct dpt_step_share share;
    const struct dpt_actions *list;
    bool full; /* these are of a full training step */
    const struct dpt_action *action;
    bool failed; /* this rank has */
    double waited;
};

/* The micro-batch in flight of the present action's k-th round on a worker. */
static inline struct dpt_step_flight *dpt_step_flight_of(const struct dpt_runner *r, int worker,
                                                         int32_t k)
{
    return r->infers != NULL ? &r->infer[worker]
                             : &r->flights[worker * r->in_flight + r->action->flight + k];
}

/*
 * Run the present action (kinds.c). Those of passes.c compute on all threads. Those of messages.c
 * and exchange.c are the main thread's, collectively over the ranks that the kind says. exchange
 * gives all ranks the sums over the whole step of the action's norm, in r->exchanged; a rank that
 * has failed adds nothing. Errors: as dpt_trainer_step's.
 */
enum dpt_status dpt_step_run_train(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_infer(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_pass(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_state(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_receive(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_send(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_exchange(struct dpt_runner *r, struct dpt_error *err);

/* --- division.c ------------------------------------------------------------------------------- */

/* How a step's micro-batches are shared. step: of the split's epoch. */
struct dpt_step_share dpt_step_share_of(const struct dpt_trainer *t, const struct dpt_split *split,
                                        int64_t step, bool infers);
/* How many rounds this rank takes part in. */
int32_t dpt_step_rounds(const struct dpt_trainer *t, const struct dpt_step_share *share,
                        bool infers);
/* The first micro-batch of a worker's round, and how many they are; -1: it has no such round. */
int32_t dpt_step_take(const struct dpt_step_share *share, int worker, int32_t round, int32_t *n);
/* A rank's k-th run of micro-batches that follow one another, [*first, *last). Gives false where it
 * has no such run. */
bool dpt_step_run_of(const struct dpt_step_share *share, int rank, int32_t k, int32_t *first,
                     int32_t *last);
/* Whether the threads compute each micro-batch of an evaluation together: where layers are divided,
 * since the main thread tells the other ranks of them, and where a device computes one micro-batch
 * after the other. */
bool dpt_step_infers_as_team(const struct dpt_trainer *t);
/* In which order a stage takes its micro-batches. One stage, which waits for no other, takes them
 * one by one, whatever the job says of stages. */
const struct dpt_pipeline_schedule *dpt_step_schedule(const struct dpt_trainer *t);

/* --- passes.c --------------------------------------------------------------------------------- */

/* Whether the threads compute each micro-batch of the present step together. */
bool dpt_step_together(const struct dpt_runner *r);

/* --- messages.c ------------------------------------------------------------------------------- */

/* Waits until the messages of a micro-batch have gone, so that its memory may be written over.
 * Errors: RANK. */
enum dpt_status dpt_step_await(const struct dpt_runner *r, struct dpt_step_flight *flight,
                               struct dpt_error *err);

#endif

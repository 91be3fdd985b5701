/*
 * step: what the runner's files share. For core/train/step only.
 */
#ifndef DPT_TRAIN_STEP_STEP_H
#define DPT_TRAIN_STEP_STEP_H

#include "core/train/layout/actions.h"
#include "core/train/layout/shares.h"
#include "core/train/step/runner.h"

/* A micro-batch in flight, or a team's group of them. */
struct dpt_step_flight {
    struct dpt_batch_buffer own, *buffer; /* the worker's, or one of its own */
    struct dpt_batch batch;
    struct dpt_pass pass;
    struct dpt_metric_sums metric_sums[DPT_MOST_AT_ONCE];
    float *extra; /* after its gradient's learned floats: for the running statistics, the tail */
    double *sums; /* [2][channels]: of the synchronized norm that it has reached; else NULL */
    struct dpt_sending forward, back;
};

/* A list, and for what it is. */
struct dpt_step_list {
    bool infers;
    int32_t rounds;
    struct dpt_actions actions;
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
    double *exchanged;    /* [exchange_room]: what an exchange works in, and then [2][channels], */
    size_t exchange_room; /* of the whole step */
    int64_t exchanges;    /* in this step so far */

    /* The step that is taken. */
    const struct dpt_split *split;
    const struct dpt_step_view *view;
    const struct dpt_runner_pass *infers; /* NULL: it trains */
    struct dpt_share share;
    const struct dpt_actions *list;
    bool full; /* the list and share are of a full training step */
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
enum dpt_status dpt_step_run_whole(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_pass(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_state(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_receive(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_send(struct dpt_runner *r, struct dpt_error *err);
enum dpt_status dpt_step_run_exchange(struct dpt_runner *r, struct dpt_error *err);

/* --- fill.c: called by a thread, with its number ---------------------------------------------- */

/*
 * Loads and computes n micro-batches of a step, at most t->layout.at_once. metric_sums: [n]. In a
 * team all threads call it with the first worker's buffer, gradient and metric sums; a failure on
 * one of them then fails on all. Errors: BAD_DATA, INTERNAL, RANK.
 */
enum dpt_status dpt_trainer_train(struct dpt_trainer *t, int thread,
                                  const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                  struct dpt_batch *batch, float *gradient, bool add,
                                  struct dpt_metric_sums *metric_sums, struct dpt_error *err);
/* Only loads the micro-batches, for this thread or for a team, into a buffer that has room for
 * them. */
enum dpt_status dpt_trainer_fill(struct dpt_trainer *t, int thread,
                                 const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                 struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                 struct dpt_error *err);

/* --- messages.c ------------------------------------------------------------------------------- */

/* Waits until the messages of a micro-batch have gone, so that its memory may be written over.
 * Errors: RANK. */
enum dpt_status dpt_step_await(const struct dpt_runner *r, struct dpt_step_flight *flight,
                               struct dpt_error *err);

#endif

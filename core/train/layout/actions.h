/*
 * actions: the list of what a rank does with the micro-batches of a step.
 *
 * A planner makes the list from numbers alone: it knows no rank, no memory and no MPI. Each way of
 * dividing the work has a planner. The runner (runner.h) goes through the list. A plain step is one
 * action, since an action costs some 0.2 us and a small step takes 4 us.
 *
 * Workers are the threads of a rank that take micro-batches of their own, or the team that computes
 * each of them together. A round is what each worker takes next: a micro-batch, or a team's group
 * of them. A unit is a range of the stage's nodes that passes take one after another: an FSDP unit,
 * whose weights are there only during its passes, or the nodes between two synchronized batch
 * norms; else the whole stage is one unit.
 */
#ifndef DPT_TRAIN_LAYOUT_ACTIONS_H
#define DPT_TRAIN_LAYOUT_ACTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/train/job/job.h"

/* The kinds of actions; kinds.c has a row for each. A collective action also runs on a rank that
 * has failed. */
#define DPT_ACTIONS(X)                                                                             \
    X(TRAIN)    /* rounds forward and back through the model */                                    \
    X(INFER)    /* an evaluation's rounds through the model */                                     \
    X(FORWARD)  /* rounds through the unit's nodes */                                              \
    X(BACKWARD) /* rounds back through the unit's nodes */                                         \
    X(STATE)    /* what rounds gave for statistics and the tail */                                 \
    X(RECEIVE)  /* a round's values, or their gradients */                                         \
    X(SEND)     /* values to the next stage, or gradients to the previous */                       \
    X(GATHER)   /* the unit's weights from their owners */                                         \
    X(RELEASE)  /* gives back the weights of others */                                             \
    X(ADD)      /* a round's gradient of the unit to its owners */                                 \
    X(EXCHANGE) /* the sums of a synchronized batch norm */

enum dpt_action_kind {
#define X(NAME) DPT_ACTION_##NAME,
    DPT_ACTIONS(X)
#undef X
        DPT_ACTION_KINDS
};

/* The ranks over which an action is collective. */
enum dpt_action_group {
    DPT_OVER_NOBODY,
    DPT_OVER_STAGES,
    DPT_OVER_REPLICAS,
    DPT_OVER_EVERYBODY,
    DPT_OVER_GROUPS
};

struct dpt_action;
struct dpt_layout;
struct dpt_layout_stage;
struct dpt_runner;

/* The passes in which an action computes its nodes. */
enum { DPT_COMPUTES_FORWARD = 1, DPT_COMPUTES_BACK = 2 };

/* The properties of a kind. */
struct dpt_action_type {
    const char *name;
    enum dpt_action_group over;
    int computes; /* the passes, or 0 */
    /* Runs the runner's present action (step.h). Errors: as dpt_trainer_step's. */
    enum dpt_status (*run)(struct dpt_runner *r, struct dpt_error *err);
    /* What this rank does after it, once it no longer waits; NULL: nothing. */
    enum dpt_status (*then)(struct dpt_runner *r, struct dpt_error *err);
    bool
        agreed; /* the ranks that divide a layer agree on it first: they all run it, or none does */
    bool always; /* a rank that has failed runs it, though it is not collective */
    /* How a profile counts the time of a collective action (core/base/span.h). DPT_SPAN_OTHER: it
     * returns at once. The time of all other kinds is waiting. */
    int span;
    /* Bytes that a rank of the stage sends with it or, for RECEIVE and GATHER, gets. */
    double (*bytes)(const struct dpt_layout *layout, const struct dpt_layout_stage *stage,
                    const struct dpt_action *action);
    /* The watchdog's words, in front of the first node's name: what the rank waits for and, [back],
     * what it does after it. NULL: nothing is noted. */
    const char *waits_for, *goes_on[2];
};

extern const struct dpt_action_type dpt_action_types[DPT_ACTION_KINDS];

struct dpt_action {
    enum dpt_action_kind kind;
    bool back;             /* of gradients, from the outputs to the inputs */
    int32_t round, rounds; /* the first one, and how many */
    int32_t flight;        /* per worker: which of its micro-batches in flight is the first one's */
    int32_t unit;          /* its number; ADD also has units: what follows the last one */
    int32_t first, last;   /* nodes that are computed; EXCHANGE: the norm, else the unit's;
                              0, 0 for what follows the last unit */
    /* Members for passes only. */
    bool begins, ends; /* the rounds' first and last one in its direction on this rank */
    bool from_norm;    /* it continues with the sums exchanged last */
    bool hands_over;   /* at its end a round gives what STATE would */
    bool again;        /* workers go through the step's rounds once more, for other floats */
};

/* A list. Begins as {0}. */
struct dpt_actions {
    struct dpt_action *at;
    int32_t n;
    size_t room;
    bool failed; /* there was no memory for one */
};

void dpt_actions_release(struct dpt_actions *list);

/*
 * The order in which a stage of a pipeline takes its micro-batches.
 *
 * A schedule says how many micro-batches a stage has in flight at most. One is in flight after its
 * forward and before its backward there. A stage goes forward as long as it may, then back with
 * the first micro-batch, and so on; backward comes in the order of forward, 0, 1, ..., so that
 * gradients are added up in one order, whichever schedule it is. gpipe (Huang et al. 2019): all
 * forward, then all back. 1f1b (Narayanan et al. 2019, PipeDream-Flush): stage k of S has S - k in
 * flight, however many there are. forward: for evaluation, nothing goes back.
 */

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

/* A micro-batch's pass through a unit of a stage. */
struct dpt_unit_pass {
    int32_t micro_batch;
    int unit, next; /* next: the unit of the pass that follows, else the same */
    bool back;
    bool ends; /* it was the micro-batch's last one in this direction */
    bool last; /* nothing follows it */
};

/* The position of a stage whose micro-batches go through so many units, in the order of the
 * schedule; begins as {{...}, units}. */
struct dpt_unit_walk {
    struct dpt_pipeline_walk pipeline;
    int units;
    int left;         /* passes of `action` that follow */
    bool begun, more; /* more: `follows` is known */
    struct dpt_pipeline_action action, follows;
};

/* The next pass; false: there are no more. */
bool dpt_unit_next(struct dpt_unit_walk *walk, struct dpt_unit_pass *pass);

/* The input of a planner. */
struct dpt_division {
    int schedule; /* enum dpt_pipeline_kind, of stages */
    int stages, stage;
    int units;
    const int32_t *node; /* [units + 1]: the first node of each, and the end; borrowed */
    int32_t rounds;      /* rounds that this rank takes part in */
    bool infers;         /* an evaluation */
    bool in_passes;      /* a micro-batch goes by FORWARD and BACKWARD, else at once */
    bool gathers;        /* the units' weights are gathered for their passes */
    bool round_robin;    /* ranks take rounds round-robin; owners get the gradient of each */
    bool synchronized;   /* units end at batch norms that take statistics of the whole step */
};

/* Makes the list. Pure. Errors: RANK (memory). */
enum dpt_status dpt_actions_plan(const struct dpt_division *d, struct dpt_actions *list,
                                 struct dpt_error *err);
/* How many micro-batches each worker has in flight at most. */
int32_t dpt_actions_in_flight(const struct dpt_actions *list);

#endif

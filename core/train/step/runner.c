#include "core/train/step/runner.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/mesh/mesh.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/step/engine.h"
#include "core/train/step/step.h"

/* --- opening ---------------------------------------------------------------------------------- */

/* The list for so many rounds; NULL: there is none yet. */
static const struct dpt_actions *find_list(const struct dpt_runner *r, int32_t rounds, bool infers)
{
    for (int32_t i = 0; i < r->n_lists; i++)
        if (r->lists[i].rounds == rounds && r->lists[i].infers == infers)
            return &r->lists[i].actions;
    return NULL;
}

/* Makes the list of a step of a split, unless it is there. */
static enum dpt_status make_list(struct dpt_runner *r, const struct dpt_split *split, int64_t step,
                                 bool infers, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = r->t;
    const struct dpt_share share = dpt_share_of(&t->layout, &split->sampler, step,
                                                dpt_trainer_replicas(t)->world.rank, infers);
    const int32_t rounds = dpt_share_rounds(&t->layout, &share, infers);
    const struct dpt_division division =
        dpt_layout_division(&t->layout, t->stage, t->units.gathers, rounds, infers);
    struct dpt_step_list *list;

    if (find_list(r, rounds, infers) != NULL)
        return DPT_OK;
    DPT_GROW(r->lists, &r->list_room, (size_t)r->n_lists + 1, "a step's actions", err);
    list = &r->lists[r->n_lists++];
    *list = (struct dpt_step_list){.infers = infers, .rounds = rounds};
    DPT_TRY(dpt_actions_plan(&division, &list->actions, err));
out:
    return status;
}

/* Makes the lists of the first step of each split, and of the last one, which may be short. */
static enum dpt_status make_lists(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_split *train = &r->t->data.train;

    for (const struct dpt_split *s = r->t->data.split; s < r->t->data.split + DPT_SPLITS; s++) {
        const int64_t steps = s->present ? dpt_sampler_steps(&s->sampler) : 0;

        for (int which = 0; which < 2 && steps > 0; which++) {
            const int64_t step = which == 0 ? 0 : steps - 1;

            DPT_TRY(make_list(r, s, step, true, err)); /* training: for the search for a NaN */
            if (s == train)
                DPT_TRY(make_list(r, s, step, false, err));
        }
    }
out:
    return status;
}

/* Checks that a message takes what crosses from one stage to the next. */
static enum dpt_status check_messages(const struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t floats;

    for (int k = 1; k < t->layout.stages; k++) {
        t->backend->value(t->model.program, 0, 0, t->layout.stage[k].first, false, &floats);
        if (floats > DPT_MESSAGE_BYTES / sizeof(float))
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                             "parallel.pipeline: %zu numbers go to %s with each micro-batch, more "
                             "than a message takes: a smaller batch.micro would do",
                             floats, t->model.graph.nodes[t->layout.stage[k].first].name));
    }
out:
    return status;
}

/* Opens the micro-batches in flight. The first one of a worker uses the worker's buffer. Stages
 * after the first read no samples, only what is known of them. */
static enum dpt_status open_flights(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = r->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t n = (size_t)r->workers * (size_t)r->in_flight,
                 extra = (size_t)(graph->arena - graph->floats) + DPT_TAIL_WORDS;
    const int32_t rows = t->data.train.sampler.micro * t->layout.at_once;
    size_t all, one;

    dpt_step_exchange_room(&t->layout, t->stage, &all, &one);
    DPT_TRY(DPT_ALLOCATE(r->flights, n, "micro-batches", err));
    DPT_TRY(DPT_ALLOCATE(r->extras, n * extra, "micro-batches", err));
    if (all > 0) {
        DPT_TRY(DPT_ALLOCATE(r->sums, n * one, "the statistics of steps", err));
        DPT_TRY(DPT_ALLOCATE(r->exchanged, all, "the statistics of steps", err));
        r->exchange_room = all;
    }
    for (size_t i = 0; i < n; i++) {
        struct dpt_step_flight *flight = &r->flights[i];

        flight->extra = r->extras + i * extra;
        flight->sums = all > 0 ? r->sums + i * one : NULL;
        flight->buffer = i % (size_t)r->in_flight == 0
                             ? &t->team.workers[i / (size_t)r->in_flight].buffer
                             : &flight->own;
        if (flight->buffer != &flight->own)
            continue;
        DPT_TRY(dpt_batch_buffer_open(&flight->own, &t->data.train.form, rows, err));
        if (t->stage->number > 0) {
            dpt_free(flight->own.input);
            flight->own.input = NULL;
        }
    }
out:
    return status;
}

enum dpt_status dpt_runner_open(struct dpt_runner **runner, struct dpt_trainer *t,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_runner *r;

    DPT_TRY(DPT_ALLOCATE(*runner, 1, "the step", err));
    r = *runner;
    r->t = t;
    r->workers = t->layout.gradient_workers;
    r->in_flight = t->stage->in_flight;
    DPT_TRY(DPT_ALLOCATE(r->infer, (size_t)t->layout.threads, "micro-batches", err));
    for (int i = 0; i < t->layout.threads; i++)
        r->infer[i].buffer = &t->team.workers[i].buffer;
    if (t->data.train.present && !t->layout.on_device)
        DPT_TRY(open_flights(r, err));
    DPT_TRY(check_messages(t, err));
    DPT_TRY(make_lists(r, err));
out:
    return status;
}

void dpt_runner_close(struct dpt_runner *r)
{
    if (r == NULL)
        return;
    for (int i = 0; r->flights != NULL && i < r->workers * r->in_flight; i++)
        dpt_batch_buffer_close(&r->flights[i].own);
    for (int32_t i = 0; i < r->n_lists; i++)
        dpt_actions_release(&r->lists[i].actions);
    dpt_free(r->lists);
    dpt_free(r->flights);
    dpt_free(r->infer);
    dpt_free(r->extras);
    dpt_free(r->sums);
    dpt_free(r->exchanged);
    dpt_free(r);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Notes for the watchdog what this rank does with the action's first node. */
static void note(const struct dpt_runner *r, const char *words)
{
    if (words != NULL)
        dpt_comm_note_of(r->t->comm, words, r->t->model.graph.nodes[r->action->first].name);
}

/* Runs an action that is collective over some ranks. */
static enum dpt_status run_collective(struct dpt_runner *r, const struct dpt_action_type *type,
                                      struct dpt_error *err)
{
    struct dpt_trainer *t = r->t;
    enum dpt_status status;
    double start;

    note(r, type->waits_for);
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, type->span);
    start = dpt_now();
    status = type->run(r, err);
    if (type->span != DPT_SPAN_OTHER)
        r->waited += dpt_now() - start;
    dpt_profile_switch(t->profile, type->span, DPT_SPAN_OTHER);
    note(r, type->goes_on[r->action->back]);
    return status;
}

/* Goes through the list. What fails first on this rank is its status. */
static enum dpt_status run(struct dpt_runner *r, const struct dpt_actions *list,
                           enum dpt_status status, struct dpt_error *err)
{
    struct dpt_error later;

    r->waited = 0;
    r->exchanges = 0;
    for (int32_t i = 0; i < list->n; i++) {
        const struct dpt_action_type *type = &dpt_action_types[list->at[i].kind];
        enum dpt_status done = DPT_OK;
        struct dpt_error *to;

        r->action = &list->at[i];
        if (type->agreed) /* of the ranks that compute a pass together all do, or none */
            status = dpt_group_agree(&r->t->mesh.tensor_group.world, status, err);
        r->failed = status != DPT_OK;
        to = r->failed ? &later : err;
        if (type->over != DPT_OVER_NOBODY)
            done = run_collective(r, type, to);
        else if (!r->failed || type->always)
            done = type->run(r, to);
        if (type->then != NULL && status == DPT_OK && done == DPT_OK)
            done = type->then(r, err);
        status = status == DPT_OK ? done : status;
    }
    for (int k = 0; k < r->share.workers; k++)
        for (int32_t i = 0; i < (r->infers != NULL ? 1 : r->in_flight); i++) {
            struct dpt_step_flight *flight =
                r->infers != NULL ? &r->infer[k] : &r->flights[k * r->in_flight + i];

            if (dpt_step_await(r, flight, &later) != DPT_OK && status == DPT_OK) {
                *err = later;
                status = later.status;
            }
        }
    return status;
}

static enum dpt_status run_step(struct dpt_runner *r, const struct dpt_split *split,
                                const struct dpt_step_view *view,
                                const struct dpt_runner_pass *infers, int64_t step,
                                enum dpt_status status, struct dpt_error *err)
{
    /* Every full training step has the same share and list. */
    const bool full = infers == NULL && step < r->t->steps_per_epoch - 1;
    int32_t rounds;

    r->split = split;
    r->view = view;
    r->infers = infers;
    if (!full || !r->full) {
        r->share = dpt_share_of(&r->t->layout, &split->sampler, step,
                                dpt_trainer_replicas(r->t)->world.rank, infers != NULL);
        rounds = dpt_share_rounds(&r->t->layout, &r->share, infers != NULL);
        r->list = find_list(r, rounds, infers != NULL);
        if (r->list == NULL)
            return dpt_fail(err, DPT_INTERNAL, "no list of actions for %d rounds", rounds);
    }
    r->full = full;
    r->share.step = step;
    return run(r, r->list, status, err);
}

enum dpt_status dpt_runner_train(struct dpt_runner *r, const struct dpt_step_view *view,
                                 enum dpt_status status, struct dpt_error *err)
{
    struct dpt_trainer *t = r->t;

    return run_step(r, &t->data.train, view, NULL, t->progress.epoch_step, status, err);
}

enum dpt_status dpt_runner_infer(struct dpt_runner *r, const struct dpt_runner_pass *pass,
                                 int64_t step, enum dpt_status status, struct dpt_error *err)
{
    return run_step(r, pass->split, pass->view, pass, step, status, err);
}

double dpt_runner_waited(const struct dpt_runner *r)
{
    return r->waited;
}

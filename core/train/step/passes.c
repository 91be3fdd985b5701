/* The actions that compute: micro-batches through the model, or through a unit's nodes, on all
 * threads of a rank. */
#include <string.h>

#include "core/base/clock.h"
#include "core/trace/profile.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/step/engine.h"
#include "core/train/step/step.h"
#include "core/train/team.h"
#include "models/model.h"

/* Whether the threads compute each micro-batch of the present step together. */
static bool computes_together(const struct dpt_runner *r)
{
    return r->infers != NULL ? dpt_layout_infers_as_team(&r->t->layout) : r->t->layout.together;
}

/* The worker that a thread is, or is part of. */
static int worker_of(const struct dpt_runner *r, int thread)
{
    return computes_together(r) ? 0 : thread;
}

/* --- the whole model at once ------------------------------------------------------------------ */

/* A worker's pass in which its gradient becomes whole. */
struct last_pass {
    struct dpt_trainer *t;
    int worker;
};

static void pass_node(void *arg, int32_t node)
{
    const struct last_pass *p = arg;

    p->t->reduction.type->pass(p->t, p->worker,
                               dpt_graph_from(dpt_trainer_graph(p->t), node, false), true);
}

/* Says that a worker's gradient is whole from a float on; has: whether it has a micro-batch. */
static void pass(const struct dpt_runner *r, int thread, size_t from, bool has)
{
    struct dpt_trainer *t = r->t;

    if (r->infers == NULL && t->reduction.type->pass != NULL && thread == worker_of(r, thread) &&
        t->team.workers[thread].status == DPT_OK)
        t->reduction.type->pass(t, thread, from, has);
}

/* Trains n micro-batches from i on, together with the others of a team, whose first thread records
 * what they gave. The backend may keep the gradient until more are in it. last: the thread has no
 * more in this step. */
static enum dpt_status train(struct dpt_runner *r, int thread, int32_t i, int32_t n, bool last,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = r->t;
    struct dpt_worker *worker = &t->team.workers[worker_of(r, thread)];
    const bool leads = worker == &t->team.workers[thread];
    struct dpt_batch batch = {.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};
    const bool keeps = t->team.adds > t->layout.at_once;
    struct dpt_gradient_range range = dpt_gradient_whole(t), tail = range;
    struct last_pass passing = {t, worker_of(r, thread)};
    bool add;

    if (keeps) {
        int32_t begin, end;

        dpt_share_thread(r->share.first, r->share.last, worker_of(r, thread), r->share.workers,
                         &begin, &end);
        dpt_step_sum(t, r->share.all, begin, end, i, n, &batch);
        range.end = tail.begin = (size_t)dpt_trainer_graph(t)->arena;
    }
    if (i == batch.before && i + n == r->share.all) /* the batch is the whole step */
        batch.squares = t->reduction.squares;
    if (last && leads && t->reduction.type->pass != NULL && !t->layout.each_gradient) {
        batch.passed = pass_node;
        batch.arg = &passing;
    }
    if (leads)
        memset(worker->own, 0, (size_t)n * sizeof worker->own[0]);
    if (leads && batch.before == 0)
        worker->target = t->reduction.type->target(t, thread, range, &worker->add);
    if (t->layout.together)
        dpt_trainer_barrier(t, thread);
    DPT_TRY(dpt_trainer_train(t, thread, r->view, i, n, &batch, worker->target, worker->add,
                              worker->own, err));
    if (!leads)
        return DPT_OK;
    if (i == r->share.first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  worker->target, 0, dpt_trainer_graph(t)->floats);
    if (keeps)
        t->reduction.type->done(t, thread, i, n, t->reduction.type->target(t, thread, tail, &add),
                                tail, worker->own);
    if (!batch.more)
        t->reduction.type->done(t, thread, i - batch.before, batch.before + n, worker->target,
                                range, keeps ? NULL : worker->own);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_REDUCTION); /* `done` may add up gradients */
out:
    return status;
}

/* Takes a micro-batch forward, as in an evaluation. */
static enum dpt_status infer(struct dpt_runner *r, int thread, int32_t i, int32_t n,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = r->t;
    const struct dpt_runner_pass *pass = r->infers;
    float *outputs = pass->outputs != NULL ? pass->outputs + (size_t)thread * pass->stride : NULL;
    struct dpt_metric_sums metric_sums = {0};
    struct dpt_batch batch = {0};

    (void)n; /* one */
    DPT_TRY(dpt_loader_fill(pass->split->loader, r->view, i, &t->team.workers[thread].buffer,
                            &batch, err));
    dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    DPT_TRY(t->backend->infer(t->model.program, thread, &batch, t->arenas.params, outputs,
                              &metric_sums, err));
    pass->take(pass->arg, thread, i, &batch, outputs, &metric_sums);
out:
    return status;
}

/* A worker's micro-batches of the action's k-th round, n of them; -1: there are none. */
static int32_t take(const struct dpt_runner *r, int worker, int32_t k, int32_t *n)
{
    return k < r->action->rounds ? dpt_share_take(&r->share, worker, r->action->round + k, n) : -1;
}

/* A thread's micro-batches of the action's rounds. */
static void take_rounds(void *arg, int thread)
{
    struct dpt_runner *r = arg;
    struct dpt_worker *worker = &r->t->team.workers[thread];
    const int of = worker_of(r, thread);
    int32_t k = 0, n, next;

    for (int32_t i = take(r, of, 0, &n); i >= 0 && worker->status == DPT_OK;
         i = take(r, of, k, &n)) {
        const bool last = take(r, of, ++k, &next) < 0;

        worker->status = r->infers != NULL ? infer(r, thread, i, n, &worker->err)
                                           : train(r, thread, i, n, last, &worker->err);
    }
    pass(r, thread, 0, k > 0);
}

enum dpt_status dpt_step_run_whole(struct dpt_runner *r, struct dpt_error *err)
{
    return dpt_trainer_run(r->t, take_rounds, r, err);
}

/* --- through a unit's nodes ------------------------------------------------------------------- */

/* A large message waits for both sides: without this the next stage would wait until this one has
 * computed another micro-batch. */
static void get_on(void *arg)
{
    const struct dpt_runner *r = arg;

    dpt_group_progress(&r->t->mesh.model_group.world);
}

/* Prepares what the backend's pass takes for n micro-batches from i on. */
static void prepare(struct dpt_runner *r, int worker, int32_t k, int32_t i, int32_t n)
{
    struct dpt_trainer *t = r->t;
    const struct dpt_action *a = r->action;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const struct dpt_runner_pass *infers = r->infers;
    const size_t *edge = &t->stage->edge[a->unit];
    const struct dpt_gradient_range range = {edge[0], edge[1]};
    struct dpt_step_flight *flight = dpt_step_flight_of(r, worker, k);

    flight->pass = (struct dpt_pass){
        .flight = infers != NULL ? 0 : a->flight + k,
        .first = a->first,
        .last = a->last,
        .infers = infers != NULL,
        .nonfinite =
            infers != NULL && infers->nonfinite != NULL ? &infers->nonfinite[worker] : NULL,
        .batch = &flight->batch,
        .params = dpt_units_params(t),
        .state = t->arenas.params,
        .all = a->from_norm ? r->exchanged : NULL,
        .own = flight->sums,
        .samples = r->share.samples,
        .between = worker == 0 ? get_on : NULL,
        .arg = r,
        .divided = dpt_tensor_parallel_passes(t->mesh.divided),
    };
    if (a->back) /* as the address of what would be a whole one */
        flight->pass.gradient = dpt_units_gradient(
            t, a->unit, t->reduction.type->target(t, worker, range, &flight->pass.add));
    if (a->back && infers == NULL)
        dpt_step_sum(t, r->share.all, r->share.first, r->share.last, i, n, &flight->batch);
    else if (infers == NULL) /* forward writes no other floats than those of the state */
        flight->pass.gradient = flight->extra - graph->floats;
}

/* Fills in, in stages after the first, the labels or targets of n micro-batches' samples. */
static enum dpt_status fill_labels(struct dpt_runner *r, int32_t i, int32_t n,
                                   struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_batch_form *form = &r->split->form;
    const struct dpt_sampler *sampler = &r->split->sampler;
    const bool classes = form->targets == 0;

    DPT_TRY(dpt_batch_buffer_widen(buffer, form, sampler->micro, err));
    for (int32_t k = 0; k < n; k++) {
        struct dpt_batch_buffer from =
            dpt_batch_buffer_from(buffer, form, (size_t)k * (size_t)sampler->micro);
        int32_t count;

        dpt_loader_fill_labels(r->split->loader, r->view, i + k, &from, NULL, &count);
        batch->count += count;
    }
    batch->sample = buffer->sample;
    batch->labels = classes ? buffer->labels : NULL;
    batch->targets = classes ? NULL : buffer->targets;
    batch->weights = form->set->weights != NULL ? buffer->weights : NULL;
out:
    return status;
}

/* Fills in n micro-batches, one after the other. Each thread of a team fills some of the samples.
 */
static enum dpt_status fill(struct dpt_runner *r, int thread, int32_t i, int32_t n,
                            struct dpt_step_flight *flight, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = r->t;
    const bool leads = thread == worker_of(r, thread);
    struct dpt_batch batch = {0};

    if (r->infers == NULL) {
        batch.seed = (uint64_t)t->job->seed;
        batch.step = (uint64_t)t->progress.step;
    }
    if (t->stage->number == 0 && r->infers == NULL)
        status = dpt_trainer_fill(t, thread, r->view, i, n, flight->buffer, &batch, err);
    else if (t->stage->number == 0 && leads)
        status = dpt_loader_fill(r->split->loader, r->view, i, flight->buffer, &batch, err);
    else if (leads)
        status = fill_labels(r, i, n, flight->buffer, &batch, err);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    if (leads) {
        flight->batch = batch;
        memset(flight->metric_sums, 0, sizeof flight->metric_sums);
    }
    return status;
}

/* Whether the action computes the model's outputs, which have a loss. */
static bool gives_outputs(const struct dpt_runner *r)
{
    return r->action->last == r->t->model.graph.n_nodes;
}

/* Hands over what forward gave in an evaluation: the loss of its outputs, or the value for the next
 * stage. */
static enum dpt_status take_value(const struct dpt_runner *r, int thread, int32_t i,
                                  struct dpt_step_flight *flight, struct dpt_error *err)
{
    const struct dpt_trainer *t = r->t;
    const struct dpt_runner_pass *infers = r->infers;
    enum dpt_status status = DPT_OK;
    size_t floats;
    const float *value = t->backend->value(t->model.program, thread, flight->pass.flight,
                                           r->action->last, false, &floats);

    if (gives_outputs(r))
        DPT_TRY(
            t->backend->loss(t->model.program, thread, &flight->pass, flight->metric_sums, err));
    infers->take(infers->arg, thread, i, &flight->batch, value, flight->metric_sums);
out:
    return status;
}

static enum dpt_status forward(struct dpt_runner *r, int thread, int32_t i,
                               struct dpt_step_flight *flight, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = r->t;

    DPT_TRY(t->backend->forward(t->model.program, thread, &flight->pass, err));
    if (!r->action->ends)
        return DPT_OK;
    if (r->infers != NULL && thread == worker_of(r, thread))
        DPT_TRY(take_value(r, thread, i, flight, err));
    else if (r->infers == NULL && gives_outputs(r))
        DPT_TRY(
            t->backend->loss(t->model.program, thread, &flight->pass, flight->metric_sums, err));
out:
    return status;
}

/* Hands over what n micro-batches gave after the learned floats: the state's part of their
 * gradient, and their metric sums. */
static void hand_over(struct dpt_runner *r, int thread, int32_t i, int32_t n,
                      const struct dpt_step_flight *flight)
{
    struct dpt_trainer *t = r->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const struct dpt_gradient_range extra = dpt_gradient_after(t, graph->floats);
    bool add = false;
    float *whole = t->reduction.type->extra != NULL
                       ? t->reduction.type->extra(t, thread)
                       : t->reduction.type->target(t, thread, extra, &add);
    float *state = whole + graph->floats;

    for (int64_t k = 0; k < graph->arena - graph->floats; k++)
        state[k] = add ? state[k] + flight->extra[k] : flight->extra[k];
    t->reduction.type->done(t, thread, i, n, whole, extra, flight->metric_sums);
}

/* Computes backward, on the threads of a team or on one alone. The first thread adds up. */
static enum dpt_status backward(struct dpt_runner *r, int thread, int32_t i, int32_t n,
                                const struct dpt_step_flight *flight, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = r->t;
    const size_t *edge = &t->stage->edge[r->action->unit];
    const struct dpt_gradient_range learned = {edge[0], edge[1]};

    DPT_TRY(t->backend->backward(t->model.program, thread, &flight->pass, err));
    if (thread != worker_of(r, thread))
        return DPT_OK;
    if (i == r->share.first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  flight->pass.gradient, (int64_t)edge[0], (int64_t)edge[1]);
    if (r->action->hands_over)
        hand_over(r, thread, i, n, flight);
    if (!flight->batch.more)
        t->reduction.type->done(t, thread, i - flight->batch.before, flight->batch.before + n,
                                flight->pass.gradient, learned, NULL);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_REDUCTION);
out:
    return status;
}

static bool fills(const struct dpt_runner *r)
{
    return !r->action->back && r->action->begins;
}

/* A thread's micro-batches of the action's rounds. */
static void pass_part(void *arg, int thread)
{
    struct dpt_runner *r = arg;
    struct dpt_trainer *t = r->t;
    const struct dpt_action *a = r->action;
    struct dpt_worker *worker = &t->team.workers[thread];
    const bool alone = !computes_together(r);
    bool has = false;

    if (a->again && t->reduction.type->again != NULL)
        t->reduction.type->again(t, thread);
    for (int32_t k = 0, n; k < a->rounds && worker->status == DPT_OK; k++) {
        const int32_t i = dpt_share_take(&r->share, worker_of(r, thread), a->round + k, &n);
        struct dpt_step_flight *flight = dpt_step_flight_of(r, worker_of(r, thread), k);

        if (i < 0)
            break;
        has = true;
        if (alone && fills(r))
            worker->status = fill(r, thread, i, n, flight, &worker->err);
        if (alone)
            prepare(r, thread, k, i, n);
        if (worker->status == DPT_OK)
            worker->status = a->back ? backward(r, thread, i, n, flight, &worker->err)
                                     : forward(r, thread, i, flight, &worker->err);
    }
    if (a->again) /* all of the step's rounds have gone back through the unit */
        pass(r, thread, t->stage->edge[a->unit], has);
}

static void fill_part(void *arg, int thread)
{
    struct dpt_runner *r = arg;
    struct dpt_worker *worker = &r->t->team.workers[thread];
    int32_t n;
    const int32_t i = dpt_share_take(&r->share, 0, r->action->round, &n);

    if (i >= 0)
        worker->status = fill(r, thread, i, n, dpt_step_flight_of(r, 0, 0), &worker->err);
}

enum dpt_status dpt_step_run_pass(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = r->t;
    const struct dpt_action *a = r->action;
    int32_t i, n;

    for (int k = 0; k < r->share.workers; k++)
        DPT_TRY(dpt_step_await(r, dpt_step_flight_of(r, k, 0), err));
    if (computes_together(r) && fills(r))
        DPT_TRY(dpt_trainer_run(t, fill_part, r, err));
    i = dpt_share_take(&r->share, 0, a->round, &n);
    if (computes_together(r) && i >= 0)
        prepare(r, 0, 0, i, n);
    if (a->back)
        DPT_TRY(dpt_tensor_parallel_derive(t->mesh.divided, a->first, a->last, err));
    status = dpt_trainer_run(t, pass_part, r, err);
    if (status == DPT_OK)
        status = dpt_tensor_parallel_status(t->mesh.divided, err);
    if (a->back)
        dpt_tensor_parallel_release(t->mesh.divided, a->first, a->last);
out:
    return status;
}

/* --- the state -------------------------------------------------------------------------------- */

static void state_part(void *arg, int thread)
{
    struct dpt_runner *r = arg;
    struct dpt_trainer *t = r->t;

    if (t->reduction.type->again != NULL)
        t->reduction.type->again(t, thread);
    for (int32_t k = 0, n; k < r->action->rounds; k++) {
        const int32_t i = dpt_share_take(&r->share, thread, r->action->round + k, &n);

        if (i < 0)
            break;
        hand_over(r, thread, i, n, dpt_step_flight_of(r, thread, k));
    }
    dpt_profile_mark(t->profile, thread, DPT_SPAN_REDUCTION);
}

enum dpt_status dpt_step_run_state(struct dpt_runner *r, struct dpt_error *err)
{
    return dpt_trainer_run(r->t, state_part, r, err);
}

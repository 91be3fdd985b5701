#include "core/train/units.h"

#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engine.h"
#include "core/train/gradient_reduction.h"
#include "core/train/mesh.h"
#include "models/model.h"

/* A unit ends where it has this part of the weights, or so many floats: more of them would take
 * less memory and wait more often. */
enum { PARTS = 32, ENOUGH = 4 << 20 };

struct dpt_units_run {
    struct dpt_batch *batch; /* [threads]: under way */
    const struct dpt_step_view *view;
    const struct dpt_pipeline_pass *infers; /* NULL: it trains */
    int32_t all, number;                    /* of the step's micro-batches; of the round */
    int unit;
};

/* --- the cut ---------------------------------------------------------------------------------- */

enum dpt_status dpt_units_plan(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    const int32_t first = t->mesh.stages > 0 ? t->mesh.first[t->mesh.stage] : 0,
                  last = t->mesh.stages > 0 ? t->mesh.first[t->mesh.stage + 1] : graph->n_nodes;
    struct dpt_units *u = &t->units;
    size_t enough = (size_t)graph->floats / PARTS;

    if (!dpt_trainer_sharded(t) || t->job->parallel.shard != DPT_SHARD_PARAMETERS)
        return DPT_OK;
    enough = enough < ENOUGH ? enough : ENOUGH;
    dpt_free(u->node); /* of another stage, where it is planned */
    dpt_free(u->edge);
    *u = (struct dpt_units){0};
    DPT_TRY(DPT_ALLOCATE(u->node, (size_t)graph->n_nodes + 1, "the units", err));
    DPT_TRY(DPT_ALLOCATE(u->edge, (size_t)graph->n_nodes + 1, "the units", err));
    u->node[0] = first;
    for (int32_t i = first + 1; i < last; i++) {
        const size_t at = dpt_graph_from(graph, i, false);

        if (!dpt_mesh_may_begin(graph, i) || at - u->edge[u->n] < enough || at == u->edge[u->n])
            continue;
        u->n++;
        u->node[u->n] = i;
        u->edge[u->n] = at;
    }
    u->gathers = replicas->node.size < replicas->world.size; /* once there are ranks: join_arena */
    u->n++;
    u->node[u->n] = last;
    u->edge[u->n] = (size_t)graph->floats;
out:
    return status;
}

size_t dpt_units_largest(const struct dpt_trainer *t)
{
    const size_t *edge = t->units.edge;
    size_t most = 0;

    for (int k = 0; k < t->units.n; k++)
        most = edge[k + 1] - edge[k] > most ? edge[k + 1] - edge[k] : most;
    return most;
}

bool dpt_units_begins(const struct dpt_trainer *t, int32_t node)
{
    int k = 0;

    while (k < t->units.n && t->units.node[k] != node)
        k++;
    return k < t->units.n;
}

/* They have it together, where there is memory for that. */
static void join_arena(struct dpt_trainer *t)
{
    const size_t bytes = (size_t)dpt_trainer_graph(t)->arena * sizeof(float);
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    struct dpt_error ignored;

    t->units.gathers = replicas->node.size < replicas->world.size;
    if (!t->units.gathers)
        t->units.gathers =
            dpt_shared_open(&t->units.weights, &replicas->node, bytes, &ignored) != DPT_OK;
    if (!t->units.gathers) {
        dpt_unreserve(t->arenas.params, bytes);
        t->arenas.params = t->units.weights.bytes;
    }
}

enum dpt_status dpt_units_open(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->units.n == 0)
        return DPT_OK;
    join_arena(t);
    DPT_TRY(DPT_ALLOCATE(t->units.run, 1, "the units", err));
    DPT_TRY(DPT_ALLOCATE(t->units.run->batch, (size_t)t->team.threads, "the units", err));
out:
    return status;
}

void dpt_units_close(struct dpt_trainer *t)
{
    struct dpt_units *u = &t->units;

    if (u->run != NULL)
        dpt_free(u->run->batch);
    dpt_free(u->run);
    dpt_free(u->node);
    dpt_free(u->edge);
    dpt_shared_close(&u->weights);
    *u = (struct dpt_units){0};
}

static struct dpt_slice own_slice(const struct dpt_trainer *t)
{
    return t->reduction.type->slice(t, dpt_trainer_replicas(t)->world.rank);
}

enum dpt_status dpt_units_init(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t bytes = (size_t)graph->arena * sizeof(float);
    const struct dpt_slice own = own_slice(t);
    float *whole = dpt_reserve(bytes); /* one tensor of it is there at a time */

    if (whole == NULL)
        status = dpt_fail_memory(err, "the parameters", (double)bytes);
    for (int32_t k = 0; k < graph->n_tensors && status == DPT_OK; k++) {
        const struct dpt_tensor *tensor = &graph->tensors[k];
        const size_t at = (size_t)tensor->offset, next = at + (size_t)tensor->count;
        size_t begin = at > own.begin ? at : own.begin, end = next < own.end ? next : own.end;

        if (tensor->state) {
            begin = at;
            end = dpt_units_has_state(t) ? next : at;
        }
        if (begin >= end)
            continue;
        status = dpt_model_init_tensor(graph, k, (uint64_t)t->job->seed, whole, err);
        memcpy(t->arenas.params + begin, whole + begin, (end - begin) * sizeof *whole);
        dpt_forget(whole + at, whole + next);
    }
    dpt_unreserve(whole, bytes);
    return dpt_group_agree(&t->comm->world, status, err);
}

/* --- a unit's weights ------------------------------------------------------------------------- */

static void renew(void *arg, int thread)
{
    struct dpt_trainer *t = arg;
    struct dpt_worker *worker = &t->team.workers[thread];
    const int32_t *node = &t->units.node[t->units.run->unit];

    worker->status = t->backend->renew(t->model.program, thread, t->arenas.params, node[0], node[1],
                                       &worker->err);
}

enum dpt_status dpt_units_take(struct dpt_trainer *t, int unit, enum dpt_status status,
                               double *waited, struct dpt_error *err)
{
    const double start = dpt_now();
    enum dpt_status gathered;
    struct dpt_error other;
    char text[DPT_NAME + 32];

    t->units.run->unit = unit;
    if (!t->units.gathers)
        return status;
    snprintf(text, sizeof text, "gathering the weights from %s on",
             t->model.graph.nodes[t->units.node[unit]].name);
    dpt_comm_note(t->comm, -1, text);
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    gathered = t->reduction.type->gather(t, unit, status == DPT_OK ? err : &other);
    *waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_LAYOUTS);
    if (status == DPT_OK)
        status = gathered;
    if (status == DPT_OK && t->backend->renew != NULL)
        status = dpt_trainer_run(t, renew, t, err);
    dpt_profile_switch(t->profile, DPT_SPAN_LAYOUTS, DPT_SPAN_OTHER);
    return status;
}

void dpt_units_drop(struct dpt_trainer *t)
{
    const int unit = t->units.run->unit;
    const size_t begin = t->units.edge[unit], end = t->units.edge[unit + 1];
    const struct dpt_slice own = own_slice(t);
    float *const params = t->arenas.params;

    if (!t->units.gathers)
        return;
    dpt_forget(params + begin, params + (own.begin < end ? own.begin : end));
    dpt_forget(params + (own.end > begin ? own.end : begin), params + end);
    if (t->backend->forget != NULL)
        t->backend->forget(t->model.program, t->units.node[unit], t->units.node[unit + 1]);
}

/* --- passes of a micro-batch ------------------------------------------------------------------ */

static struct dpt_pass pass_of(const struct dpt_trainer *t, int thread)
{
    const struct dpt_units_run *run = t->units.run;

    return (struct dpt_pass){
        .first = t->units.node[run->unit],
        .last = t->units.node[run->unit + 1],
        .infers = run->infers != NULL,
        .nonfinite = run->infers != NULL && run->infers->nonfinite != NULL
                         ? &run->infers->nonfinite[thread]
                         : NULL,
        .batch = &run->batch[thread],
        .params = t->arenas.params,
    };
}

/* Whether the unit that is computed has the outputs. */
static bool is_last(const struct dpt_trainer *t)
{
    return t->units.run->unit == t->units.n - 1;
}

static enum dpt_status forward(struct dpt_trainer *t, int thread, int lane, int32_t begin,
                               int32_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_units_run *run = t->units.run;
    struct dpt_worker *leader = &t->team.workers[lane];
    struct dpt_pass pass = pass_of(t, thread);

    if (run->unit == 0) {
        if (thread == lane)
            memset(leader->own, 0, (size_t)n * sizeof leader->own[0]);
        run->batch[thread] =
            (struct dpt_batch){.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};
        DPT_TRY(dpt_trainer_fill(t, thread, run->view, begin, n, &run->batch[thread], err));
    }
    pass.gradient = t->reduction.type->rest(t, lane); /* nothing but the state's is written */
    DPT_TRY(t->backend->forward(t->model.program, thread, &pass, err));
    if (is_last(t))
        DPT_TRY(t->backend->loss(t->model.program, thread, &pass, leader->own, err));
out:
    return status;
}

/* Where the gradient of the unit that is computed is to go, as the address of what would be a whole
 * one. */
static float *target(struct dpt_trainer *t, int taker, bool *add)
{
    return t->reduction.type->target(t, taker, add) - t->units.edge[t->units.run->unit];
}

/* Another unit's gradient was in that memory. */
static void clear_frozen(const struct dpt_trainer *t, float *gradient)
{
    const size_t *edge = &t->units.edge[t->units.run->unit];

    dpt_graph_clear_frozen(dpt_trainer_graph(t), edge[0], edge[1], gradient);
}

float *dpt_units_target(struct dpt_trainer *t, int taker, bool *add)
{
    float *gradient = target(t, taker, add);

    clear_frozen(t, gradient);
    return gradient;
}

static enum dpt_status back(struct dpt_trainer *t, int thread, int lane, int32_t begin, int32_t n,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_units_run *run = t->units.run;
    const size_t *edge = &t->units.edge[run->unit];
    struct dpt_pass pass = pass_of(t, thread);

    pass.gradient = target(t, lane, &pass.add);
    if (thread == lane)
        clear_frozen(t, pass.gradient);
    DPT_TRY(t->backend->backward(t->model.program, thread, &pass, err));
    if (thread == lane && begin == run->view->first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  pass.gradient, (int64_t)edge[0], (int64_t)edge[1]);
    if (thread == lane && run->unit == 0)
        t->reduction.type->done(t, thread, begin, n, t->reduction.type->rest(t, lane),
                                dpt_gradient_whole(t), t->team.workers[lane].own);
out:
    return status;
}

/* What a thread does with the unit: its micro-batches of the round, or its part of the team's. */
static void compute(struct dpt_trainer *t, int thread,
                    enum dpt_status (*pass)(struct dpt_trainer *t, int thread, int lane,
                                            int32_t begin, int32_t n, struct dpt_error *err))
{
    const struct dpt_units_run *run = t->units.run;
    struct dpt_worker *worker = &t->team.workers[thread];
    const int lane = t->team.together ? 0 : thread;
    int32_t begin;
    const int32_t n = dpt_step_deal(t, run->all, run->number, lane, &begin);

    if (n > 0)
        worker->status = pass(t, thread, lane, begin, n, &worker->err);
}

static void forward_part(void *arg, int thread)
{
    compute(arg, thread, forward);
}

static void back_part(void *arg, int thread)
{
    compute(arg, thread, back);
}

/* --- training --------------------------------------------------------------------------------- */

/* Collective. Gives the owners the gradient of a unit, or, behind all units, of the rest. */
static enum dpt_status add(struct dpt_trainer *t, int unit, enum dpt_status status, double *waited,
                           struct dpt_error *err)
{
    const double start = dpt_now();
    struct dpt_error other;
    enum dpt_status added;

    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    added =
        t->reduction.type->round(t, t->units.run->number, unit, status == DPT_OK ? err : &other);
    *waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OTHER);
    return status == DPT_OK ? added : status;
}

/* Collective. */
static enum dpt_status take_round(struct dpt_trainer *t, enum dpt_status status, double *waited,
                                  struct dpt_error *err)
{
    for (int k = 0; k < t->units.n; k++) {
        status = dpt_units_take(t, k, status, waited, err);
        if (status == DPT_OK)
            status = dpt_trainer_run(t, forward_part, t, err);
        if (k < t->units.n - 1)
            dpt_units_drop(t);
    }
    for (int k = t->units.n - 1; k >= 0; k--) {
        if (k < t->units.n - 1)
            status = dpt_units_take(t, k, status, waited, err);
        if (status == DPT_OK)
            status = dpt_trainer_run(t, back_part, t, err);
        dpt_units_drop(t);
        status = add(t, k, status, waited, err);
    }
    return add(t, t->units.n, status, waited, err);
}

enum dpt_status dpt_units_compute(struct dpt_trainer *t, const struct dpt_step_view *view,
                                  enum dpt_status status, double *waited, struct dpt_error *err)
{
    struct dpt_units_run *run = t->units.run;
    int32_t rounds;

    run->view = view;
    run->infers = NULL;
    run->all = dpt_sampler_micro_batches(&t->data.train.sampler, t->progress.epoch_step);
    rounds = dpt_step_rounds(t, run->all);
    for (run->number = 0; run->number < rounds; run->number++)
        status = take_round(t, status, waited, err);
    return status;
}

/* --- evaluation ------------------------------------------------------------------------------- */

static enum dpt_status infer(struct dpt_trainer *t, int thread, int32_t micro_batch,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_units_run *run = t->units.run;
    const struct dpt_pipeline_pass *infers = run->infers;
    const struct dpt_pass pass = pass_of(t, thread);
    struct dpt_batch *batch = &run->batch[thread];
    struct dpt_metric_sums metric_sums = {0};
    const float *value;
    size_t floats;

    if (run->unit == 0) {
        *batch = (struct dpt_batch){0};
        DPT_TRY(dpt_loader_fill(infers->split->loader, run->view, micro_batch,
                                &t->team.workers[thread].buffer, batch, err));
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    }
    DPT_TRY(t->backend->forward(t->model.program, thread, &pass, err));
    if (!is_last(t))
        return DPT_OK;
    value = t->backend->value(t->model.program, thread, 0, pass.last, false, &floats);
    DPT_TRY(t->backend->loss(t->model.program, thread, &pass, &metric_sums, err));
    floats = floats / (size_t)(infers->split->sampler.micro * t->team.group) * (size_t)batch->count;
    DPT_TRY(
        infers->take(infers->arg, thread, micro_batch, batch, value, floats, &metric_sums, err));
out:
    return status;
}

/* Each thread takes one micro-batch of the rank at a time. */
static void infer_part(void *arg, int thread)
{
    struct dpt_trainer *t = arg;
    const struct dpt_units_run *run = t->units.run;
    struct dpt_worker *worker = &t->team.workers[thread];
    const int32_t k = run->number * t->team.threads + thread;

    if (k < run->view->last - run->view->first)
        worker->status = infer(
            t, thread,
            dpt_sampler_nth(&run->infers->split->sampler, t->comm->world.size, run->view->first, k),
            &worker->err);
}

enum dpt_status dpt_units_infer(struct dpt_trainer *t, const struct dpt_pipeline_pass *pass,
                                int64_t step, enum dpt_status status, struct dpt_error *err)
{
    struct dpt_units_run *run = t->units.run;
    int32_t most = 0;
    double waited = 0;

    for (int r = 0; r < t->comm->world.size; r++) {
        int32_t first, last;

        dpt_sampler_partition(&pass->split->sampler, step, r, t->comm->world.size, &first, &last);
        most = last - first > most ? last - first : most;
    }
    run->view = pass->view;
    run->infers = pass;
    for (run->number = 0; run->number * t->team.threads < most; run->number++)
        for (int k = 0; k < t->units.n; k++) {
            status = dpt_units_take(t, k, status, &waited, err);
            if (status == DPT_OK)
                status = dpt_trainer_run(t, infer_part, t, err);
            dpt_units_drop(t);
        }
    return status;
}

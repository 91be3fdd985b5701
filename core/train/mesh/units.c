#include "core/train/mesh/units.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/mesh/mesh.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/team.h"
#include "models/model.h"

/* A unit ends where it has this part of the weights, or so many floats: more of them would take
 * less memory and wait more often. */
enum { PARTS = 32, ENOUGH = 4 << 20 };

/* --- the cut ---------------------------------------------------------------------------------- */

bool dpt_units_by_messages(const struct dpt_trainer *t)
{
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);

    return t->units.sliced && replicas->node.size < replicas->world.size;
}

/* Whether a unit is to begin with node i, behind one that begins with the learned floats at
 * `from`: at a norm that takes statistics of the whole step, or where the weights so far are
 * enough. */
static bool begins_unit(const struct dpt_trainer *t, int32_t i, size_t from, size_t enough)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t at = dpt_graph_from(graph, i, false);

    if (t->team.synchronized)
        return graph->nodes[i].whole_step;
    return t->units.sliced && dpt_mesh_may_begin(graph, i) && at - from >= enough && at > from;
}

enum dpt_status dpt_units_plan(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const int32_t *stage = &t->mesh.first[t->mesh.stage];
    const size_t part = (size_t)graph->floats / PARTS, enough = part < ENOUGH ? part : ENOUGH;
    struct dpt_units *u = &t->units;

    dpt_free(u->node); /* of another stage, where it is planned */
    dpt_free(u->edge);
    *u = (struct dpt_units){.sliced = dpt_trainer_owners(t) > 1 &&
                                      t->job->parallel.shard == DPT_SHARD_PARAMETERS};
    if (u->sliced && t->team.synchronized)
        return dpt_fail(err, DPT_BAD_JOB,
                        "parallel.shard: parameters does not go with a batch norm over the whole "
                        "step (statistics: batch), for which all micro-batches are under way at "
                        "once; gradients and optimizer do, or statistics: micro");
    DPT_TRY(DPT_ALLOCATE(u->node, (size_t)graph->n_nodes + 1, "the units", err));
    DPT_TRY(DPT_ALLOCATE(u->edge, (size_t)graph->n_nodes + 1, "the units", err));
    u->node[0] = stage[0];
    for (int32_t i = stage[0] + 1; i < stage[1]; i++)
        if (begins_unit(t, i, u->edge[u->n], enough)) {
            u->n++;
            u->node[u->n] = i;
            u->edge[u->n] = dpt_graph_from(graph, i, false);
        }
    u->gathers = dpt_units_by_messages(t); /* once there are ranks: join_arena */
    u->n++;
    u->node[u->n] = stage[1];
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

bool dpt_units_on_node(const struct dpt_trainer *t)
{
    return t->units.sliced && !t->units.gathers;
}

double dpt_units_room(const struct dpt_trainer *t)
{
    const double whole = (double)dpt_trainer_graph(t)->arena;

    return t->units.sliced ? whole / dpt_trainer_owners(t) + (double)dpt_units_largest(t) : whole;
}

size_t dpt_units_alike(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);

    if (!t->units.sliced)
        return 0;
    return (size_t)(t->units.gathers ? graph->floats : graph->arena);
}

float *dpt_units_gradient(const struct dpt_trainer *t, int unit, float *target)
{
    const size_t begin = t->units.edge[unit], end = t->units.edge[unit + 1];

    if (!t->units.sliced)
        return target;
    dpt_graph_clear_frozen(dpt_trainer_graph(t), begin, end, target - begin);
    return target - begin;
}

bool dpt_units_begins(const struct dpt_trainer *t, int32_t node)
{
    int k = 0;

    while (k < t->units.n && t->units.node[k] != node)
        k++;
    return k < t->units.n;
}

float *dpt_units_open_arena(size_t floats, int owners)
{
    return owners > 1 ? dpt_reserve(floats * sizeof(float))
                      : dpt_alloc_array(floats, sizeof(float));
}

void dpt_units_close_arena(float *arena, size_t floats, int owners)
{
    if (owners > 1)
        dpt_unreserve(arena, floats * sizeof(float));
    else
        dpt_free(arena);
}

enum dpt_status dpt_units_open_params(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t bytes = (size_t)graph->arena * sizeof(float);

    t->arenas.params = dpt_units_open_arena((size_t)graph->arena, dpt_units_owners(t));
    if (t->arenas.params == NULL)
        DPT_TRY(dpt_fail_memory(err, "the parameters", (double)bytes));
    if (!t->units.sliced && !t->loads &&
        dpt_trainer_replicas(t)->world.rank == 0) /* a tensor's numbers do not depend on others */
        DPT_TRY(dpt_model_init(graph, (uint64_t)t->job->seed, t->arenas.params, err));
out:
    return status;
}

void dpt_units_close_params(struct dpt_trainer *t)
{
    if (t->units.weights.bytes == NULL) /* else it is these */
        dpt_units_close_arena(t->arenas.params, (size_t)dpt_trainer_graph(t)->arena,
                              dpt_units_owners(t));
}

/* The ranks have one arena together, where there is memory for that. */
static void join_arena(struct dpt_trainer *t)
{
    const size_t bytes = (size_t)dpt_trainer_graph(t)->arena * sizeof(float);
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    struct dpt_error ignored;

    t->units.gathers = dpt_units_by_messages(t);
    if (!t->units.gathers)
        t->units.gathers =
            dpt_shared_open(&t->units.weights, &replicas->node, bytes, &ignored) != DPT_OK;
    if (!t->units.gathers) {
        dpt_unreserve(t->arenas.params, bytes);
        t->arenas.params = t->units.weights.bytes;
    }
}

void dpt_units_open(struct dpt_trainer *t)
{
    if (t->units.sliced)
        join_arena(t);
}

void dpt_units_close(struct dpt_trainer *t)
{
    struct dpt_units *u = &t->units;

    dpt_free(u->node);
    dpt_free(u->edge);
    dpt_shared_close(&u->weights);
    *u = (struct dpt_units){0};
}

static struct dpt_slice own_slice(const struct dpt_trainer *t)
{
    return t->reduction.type->slice(t, dpt_trainer_replicas(t)->world.rank);
}

static enum dpt_status init_slice(struct dpt_trainer *t, struct dpt_error *err)
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

enum dpt_status dpt_units_init(struct dpt_trainer *t, struct dpt_error *err)
{
    return t->units.sliced
               ? init_slice(t, err)
               : dpt_group_broadcast(&dpt_trainer_replicas(t)->world, 0, t->arenas.params,
                                     (size_t)dpt_trainer_graph(t)->arena * sizeof(float), err);
}

enum dpt_status dpt_units_share(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->backend->share == NULL)
        return DPT_OK;
    if (!t->units.gathers)
        status = t->backend->share(t->model.program, &dpt_trainer_replicas(t)->node,
                                   &t->model.shared, err);
    return dpt_group_agree(&t->comm->world, status, err);
}

enum dpt_status dpt_units_await(struct dpt_trainer *t, struct dpt_error *err)
{
    return t->units.gathers ? DPT_OK : dpt_group_barrier(&dpt_trainer_replicas(t)->node, err);
}

static void refresh(void *arg, int thread)
{
    struct dpt_trainer *t = arg;
    struct dpt_worker *worker = &t->team.workers[thread];

    worker->status = t->backend->refresh(t->model.program, thread, t->arenas.params, &worker->err);
}

enum dpt_status dpt_units_refresh(struct dpt_trainer *t, struct dpt_error *err)
{
    return t->units.gathers ? DPT_OK : dpt_trainer_run(t, refresh, t, err);
}

/* --- a unit's weights ------------------------------------------------------------------------- */

enum dpt_status dpt_units_gather(struct dpt_trainer *t, int unit, struct dpt_error *err)
{
    return t->reduction.type->gather(t, unit, err);
}

/* The argument of derive. */
struct derived {
    struct dpt_trainer *t;
    int unit;
};

static void derive(void *arg, int thread)
{
    const struct derived *d = arg;
    struct dpt_trainer *t = d->t;
    struct dpt_worker *worker = &t->team.workers[thread];
    const int32_t *node = &t->units.node[d->unit];

    worker->status = t->backend->renew(t->model.program, thread, t->arenas.params, node[0], node[1],
                                       &worker->err);
}

enum dpt_status dpt_units_derive(struct dpt_trainer *t, int unit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct derived derived = {t, unit};

    if (t->backend->renew != NULL)
        status = dpt_trainer_run(t, derive, &derived, err);
    dpt_profile_switch(t->profile, DPT_SPAN_LAYOUTS, DPT_SPAN_OTHER);
    return status;
}

void dpt_units_release(struct dpt_trainer *t, int unit)
{
    const size_t begin = t->units.edge[unit], end = t->units.edge[unit + 1];
    const struct dpt_slice own = own_slice(t);
    float *const params = t->arenas.params;

    dpt_forget(params + begin, params + (own.begin < end ? own.begin : end));
    dpt_forget(params + (own.end > begin ? own.end : begin), params + end);
    if (t->backend->forget != NULL)
        t->backend->forget(t->model.program, t->units.node[unit], t->units.node[unit + 1]);
}

#include "core/train/mesh/units.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/mesh/mesh.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/team.h"
#include "models/model.h"

size_t dpt_units_alike(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);

    if (!t->layout.sliced)
        return 0;
    return (size_t)(t->units.gathers ? graph->floats : graph->arena);
}

float *dpt_units_gradient(const struct dpt_trainer *t, int unit, float *target)
{
    const size_t begin = t->stage->edge[unit], end = t->stage->edge[unit + 1];

    if (!t->layout.sliced)
        return target;
    dpt_graph_clear_frozen(dpt_trainer_graph(t), begin, end, target - begin);
    return target - begin;
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

/* How many ranks hold the arena of the parameters together, if any do. */
static int holders(const struct dpt_trainer *t)
{
    return dpt_layout_shares_state(&t->layout, t->stage) ? t->layout.node_replicas
                                                         : dpt_units_owners(t);
}

enum dpt_status dpt_units_open_params(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t bytes = (size_t)graph->arena * sizeof(float);

    t->arenas.params = dpt_units_open_arena((size_t)graph->arena, holders(t));
    if (t->arenas.params == NULL)
        DPT_TRY(dpt_fail_memory(err, "the parameters", (double)bytes));
out:
    return status;
}

void dpt_units_close_params(struct dpt_trainer *t)
{
    if (t->units.weights.bytes == NULL && t->arenas.shared.bytes == NULL) /* else it is in these */
        dpt_units_close_arena(t->arenas.params, (size_t)dpt_trainer_graph(t)->arena, holders(t));
}

void dpt_units_open(struct dpt_trainer *t)
{
    const size_t bytes = (size_t)dpt_trainer_graph(t)->arena * sizeof(float);
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    struct dpt_error ignored;

    if (!t->layout.sliced)
        return;
    /* Else not all ranks that have slices of the same weights share a node's memory. */
    t->units.gathers = replicas->node.size < replicas->world.size;
    if (!t->units.gathers)
        t->units.gathers =
            dpt_shared_open(&t->units.weights, &replicas->node, bytes, &ignored) != DPT_OK;
    if (!t->units.gathers) {
        dpt_unreserve(t->arenas.params, bytes);
        t->arenas.params = t->units.weights.bytes;
    }
}

void dpt_units_close(struct dpt_trainer *t)
{
    dpt_shared_close(&t->units.weights);
    t->units = (struct dpt_units){0};
}

static enum dpt_status init_slice(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t bytes = (size_t)graph->arena * sizeof(float);
    float *whole = dpt_reserve(bytes); /* one tensor of it is there at a time */

    if (whole == NULL)
        status = dpt_fail_memory(err, "the parameters", (double)bytes);
    for (int32_t k = 0; k < graph->n_tensors && status == DPT_OK; k++) {
        const struct dpt_tensor *tensor = &graph->tensors[k];
        const size_t at = (size_t)tensor->offset, next = at + (size_t)tensor->count;
        size_t begin = at, end = dpt_units_has_state(t) ? next : at;

        if (!tensor->state) {
            const struct dpt_slice own = dpt_gradient_own(t, dpt_gradient_range_of(t, at));

            begin = at > own.begin ? at : own.begin;
            end = next < own.end ? next : own.end;
        }
        if (begin >= end)
            continue;
        status = dpt_model_init_tensor(graph, k, (uint64_t)t->job->seed, whole, err);
        memcpy(t->arenas.params + begin, whole + begin, (end - begin) * sizeof *whole);
        dpt_decommit(whole + at, whole + next);
    }
    dpt_unreserve(whole, bytes);
    return dpt_group_agree(&t->comm->world, status, err);
}

enum dpt_status dpt_units_init(struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    enum dpt_status status = DPT_OK;

    if (t->layout.sliced)
        return init_slice(t, err);
    if (replicas->rank == 0) /* a tensor's numbers do not depend on others */
        status = dpt_model_init(graph, (uint64_t)t->job->seed, t->arenas.params, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    DPT_TRY(dpt_group_broadcast(replicas, 0, t->arenas.params, (size_t)graph->arena * sizeof(float),
                                err));
out:
    return status;
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
    const int32_t *node = &t->stage->node[d->unit];

    worker->status = t->backend->refresh_nodes(t->model.program, thread, dpt_units_params(t),
                                               t->arenas.params, node[0], node[1], &worker->err);
}

enum dpt_status dpt_units_gather(struct dpt_trainer *t, int unit, struct dpt_error *err)
{
    return t->reduction.type->gather(t, unit, &t->units.unit, err);
}

enum dpt_status dpt_units_derive(struct dpt_trainer *t, int unit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct derived derived = {t, unit};

    if (t->backend->refresh_nodes != NULL)
        status = dpt_trainer_run(t, derive, &derived, err);
    dpt_profile_switch(t->profile, DPT_SPAN_LAYOUTS, DPT_SPAN_OTHER);
    return status;
}

void dpt_units_release(struct dpt_trainer *t, int unit)
{
    if (t->backend->forget != NULL)
        t->backend->forget(t->model.program, t->stage->node[unit], t->stage->node[unit + 1]);
}

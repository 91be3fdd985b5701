/* What a trainer holds, to and from checkpoints. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/gradient_reduction.h"
#include "core/train/mesh.h"

/* Floats of a message with the owners of shards: MPI's counts are int. */
enum { PIECE = 1 << 24 };

static size_t piece_of(const struct dpt_trainer *t)
{
    return t->units.n > 0 ? DPT_CHECKPOINT_PIECE : PIECE;
}

/* Who has what of a whole arena: floats [begins[r], ends[r]) each of the owners, who are the ranks
 * of a group, this one's from `own` on. */
struct owners {
    const struct dpt_group *group;
    const int64_t *begins, *ends;
    float *own;
};

/* The tensor of the whole model that a float is of. */
static int32_t tensor_at(const struct dpt_graph *graph, size_t at)
{
    int32_t i = 0;

    while ((int64_t)at < graph->tensors[i].offset ||
           (int64_t)at >= graph->tensors[i].offset + graph->tensors[i].count)
        i++;
    return i;
}

/* Of slot k, each rank's slice, and in units of the parameters (-1), too; or of a tensor of the
 * parameters or a slot, which has the float `at`, what each rank of the model has. */
static struct owners owners_of(const struct dpt_trainer *t, int k, size_t at)
{
    const struct dpt_mesh *m = &t->mesh;
    float *arena = k < 0 ? t->arenas.params : t->arenas.slot[k];
    const int rank = t->comm->world.rank, owners = m->line.world.size;
    int32_t tensor;

    if ((k >= 0 && dpt_trainer_sharded(t)) || t->units.n > 0)
        return (struct owners){
            &t->comm->world, t->arenas.owned, t->arenas.owned + t->comm->world.size,
            arena + (t->arenas.owned[rank] - (m->stages > 0 ? m->learned[m->stage] : 0))};
    tensor = tensor_at(&t->model.graph, at);
    for (int r = 0; r < owners; r++) {
        const struct dpt_range piece = dpt_mesh_piece(t, r, tensor);

        t->arenas.pieces[r] = piece.first;
        t->arenas.pieces[owners + r] = piece.last;
    }
    return (struct owners){&m->line.world, t->arenas.pieces, t->arenas.pieces + owners,
                           arena + m->graph.tensors[tensor].offset};
}

/* Finds each owner's part of the floats [at, at + n); gives where this one's is. */
static float *find_parts(const struct dpt_trainer *t, const struct owners *o, size_t at, size_t n)
{
    const int rank = o->group->rank;
    const struct dpt_parts *parts = &t->arenas.parts;

    for (int r = 0; r < o->group->size; r++) {
        const size_t from = (size_t)o->begins[r], to = (size_t)o->ends[r];
        const size_t begin = from > at ? from : at, end = to < at + n ? to : at + n;

        parts->count[r] = begin < end ? (int)(end - begin) : 0;
        parts->at[r] = begin < end ? (int)(begin - at) : 0;
    }
    if (parts->count[rank] == 0)
        return o->own;
    return o->own + (at + (size_t)parts->at[rank] - (size_t)o->begins[rank]);
}

/* Whether this rank takes part in messages with the owners: with shards all do, of a stage's
 * replicas the first. */
static bool takes_part(const struct dpt_trainer *t, int k)
{
    return (k >= 0 && dpt_trainer_sharded(t)) || t->units.gathers
               ? true
               : t->mesh.stages > 0 && t->mesh.replicas.world.rank == 0;
}

/* Collective over the owners. Gives rank 0 the n floats from `at` on of the whole arena, which are
 * a tensor's, all of them. to: used there only. */
static enum dpt_status gather(const void *trainer, int k, size_t at, size_t n, float *to,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = trainer;
    const bool state = at >= (size_t)t->model.graph.floats;
    const struct owners o = owners_of(t, k, at);
    const size_t piece = piece_of(t);

    if (t->units.n > 0 && state) { /* rank 0 has it */
        if (o.group->rank == 0)
            memcpy(to, t->arenas.params + at, n * sizeof *to);
        return DPT_OK;
    }
    for (size_t i = 0; i < n; i += piece) {
        const float *own = find_parts(t, &o, at + i, n - i < piece ? n - i : piece);

        DPT_TRY(dpt_group_gatherv(o.group, 0, own, o.group->rank == 0 ? to + i : NULL,
                                  &t->arenas.parts, err));
    }
out:
    return status;
}

/* Collective over the owners. The other way round, of a whole arena that rank 0 has, floats [at,
 * end), which are a tensor's, or a slot's in shards. */
static enum dpt_status scatter(const struct dpt_trainer *t, int k, const float *whole, size_t at,
                               size_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct owners o = owners_of(t, k, at);

    for (size_t n; at < end; at += n) {
        float *own;

        n = end - at < piece_of(t) ? end - at : piece_of(t);
        own = find_parts(t, &o, at, n);
        if (o.group->rank == 0 && own != whole + at + t->arenas.parts.at[0])
            memcpy(own, whole + at + t->arenas.parts.at[0],
                   (size_t)t->arenas.parts.count[0] * sizeof *whole);
        DPT_TRY(dpt_group_scatterv(o.group, 0, o.group->rank == 0 ? whole + at : NULL, own,
                                   &t->arenas.parts, err));
    }
out:
    return status;
}

/* Collective over the ranks of the model. Gives each its part of a tensor that rank 0 has. */
static enum dpt_status deal_tensor(const struct dpt_trainer *t, int k, const float *whole,
                                   int32_t number, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_tensor *tensor = &t->model.graph.tensors[number],
                            *own = &t->mesh.graph.tensors[number];

    DPT_TRY(scatter(t, k, whole, (size_t)tensor->offset, (size_t)(tensor->offset + tensor->count),
                    err));
    if (t->mesh.tensor > 1 && own->whole > 0 && dpt_graph_divided(&t->model.graph, number) == NULL)
        DPT_TRY(dpt_group_broadcast(&t->mesh.parts.world, 0,
                                    (k < 0 ? t->arenas.params : t->arenas.slot[k]) + own->offset,
                                    (size_t)own->count * sizeof *whole, err));
out:
    return status;
}

/* Collective. Gives each rank its part of an arena that rank 0 has: those of one replica of the
 * model, and they the others. */
static enum dpt_status deal(struct dpt_trainer *t, int k, const float *whole, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = &t->model.graph, *own = dpt_trainer_graph(t);

    if (k >= 0 && dpt_trainer_sharded(t))
        return scatter(t, k, whole, 0, (size_t)graph->floats, err);
    for (int32_t i = 0; i < graph->n_tensors && takes_part(t, k); i++)
        if (k < 0 || !graph->tensors[i].state)
            DPT_TRY(deal_tensor(t, k, whole, i, err));
    DPT_TRY(dpt_group_broadcast(&t->mesh.replicas.world, 0,
                                k < 0 ? t->arenas.params : t->arenas.slot[k],
                                (size_t)(k < 0 ? own->arena : own->floats) * sizeof *whole, err));
out:
    return status;
}

/* --- units: rank 0 reads a tensor, and gives it to its owners --------------------------------- */

/* What rank 0 tells the others: which floats come next. */
struct gift {
    int64_t at, n; /* n < 0: none */
    int k;
};

/* Collective. from: on rank 0, which has its own copy of the state; else NULL. */
static enum dpt_status hand_out(const struct dpt_trainer *t, const struct gift *gift,
                                const float *from, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t at = (size_t)gift->at, n = (size_t)gift->n;
    float *const to = t->arenas.params + at;

    if (at < (size_t)t->model.graph.floats)
        return scatter(t, gift->k, from != NULL ? from - at : NULL, at, at + n, err);
    if (t->units.gathers)
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, to, n * sizeof *to, err));
out:
    return status;
}

/* On rank 0; the others are in dpt_trainer_follow. */
static enum dpt_status give(const void *trainer, int k, size_t at, size_t n, float *from,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = trainer;
    struct gift gift = {.at = (int64_t)at, .n = (int64_t)n, .k = k};

    if (at >= (size_t)t->model.graph.floats)
        memcpy(t->arenas.params + at, from, n * sizeof *from);
    DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, &gift, sizeof gift, err));
    DPT_TRY(hand_out(t, &gift, from, err));
    dpt_forget(from, from + n);
out:
    return status;
}

enum dpt_status dpt_trainer_follow(const struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct gift gift = {.n = -1};
    bool ends = t->units.n == 0;

    while (!ends) {
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, &gift, sizeof gift, err));
        ends = gift.n < 0;
        if (!ends)
            DPT_TRY(hand_out(t, &gift, NULL, err));
    }
out:
    return status;
}

enum dpt_status dpt_trainer_open_whole(const struct dpt_trainer *t, struct dpt_state *state,
                                       struct dpt_error *err)
{
    const struct dpt_graph *graph = &t->model.graph;
    const size_t bytes = (size_t)graph->arena * sizeof(float);

    if ((t->mesh.stages == 0 && t->units.n == 0) || t->comm->world.rank != 0)
        return DPT_OK;
    state->give = t->units.n > 0 ? give : NULL;
    state->owners = t;
    for (int k = 0; k < t->arenas.slots; k++)
        state->slot[k] = NULL;
    state->params = dpt_reserve(bytes);
    for (int k = 0; k < t->arenas.slots && state->params != NULL; k++)
        if ((state->slot[k] = dpt_reserve(bytes)) == NULL)
            return dpt_fail_memory(err, "the whole model", (double)bytes);
    return state->params != NULL ? DPT_OK : dpt_fail_memory(err, "the whole model", (double)bytes);
}

void dpt_trainer_close_whole(const struct dpt_trainer *t, struct dpt_state *state)
{
    const size_t bytes = (size_t)t->model.graph.arena * sizeof(float);

    if ((t->mesh.stages == 0 && t->units.n == 0) || t->comm->world.rank != 0)
        return;
    dpt_unreserve(state->params, bytes);
    for (int k = 0; k < t->arenas.slots; k++)
        dpt_unreserve(state->slot[k], bytes);
}

enum dpt_status dpt_trainer_deal(struct dpt_trainer *t, const struct dpt_state *whole, bool slots,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->units.n > 0) /* each tensor as it was read */
        return DPT_OK;
    if (t->mesh.stages == 0)
        return dpt_group_broadcast(&t->comm->world, 0, t->arenas.params,
                                   (size_t)t->model.graph.arena * sizeof(float), err);
    for (int k = -1; k < (slots ? t->arenas.slots : 0); k++)
        DPT_TRY(deal(t, k, k < 0 ? whole->params : whole->slot[k], err));
out:
    return status;
}

/* --- saving and loading ----------------------------------------------------------------------- */

enum dpt_status dpt_trainer_give_slots(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    /* As rank 0 asks for them: dpt_image_take. */
    for (int k = -1; k < t->arenas.slots; k++)
        for (int pass = 0; pass < (k < 0 ? 2 : 1) && takes_part(t, k); pass++)
            for (int32_t i = 0; i < t->model.graph.n_tensors; i++) {
                const struct dpt_tensor *tensor = &t->model.graph.tensors[i];

                if (tensor->state == (pass == 1))
                    DPT_TRY(gather(t, k, (size_t)tensor->offset, (size_t)tensor->count, NULL, err));
            }
out:
    return status;
}

enum dpt_status dpt_trainer_share_slots(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    const size_t n = (size_t)dpt_trainer_graph(t)->floats;

    for (int k = 0; k < t->arenas.slots && t->units.n == 0; k++) {
        float *slot = t->arenas.slot[k];

        if (t->mesh.stages == 0 && dpt_trainer_sharded(t))
            DPT_TRY(scatter(t, k, slot, 0, n, err));
        else if (t->mesh.stages == 0)
            DPT_TRY(dpt_group_broadcast(world, 0, slot, n * sizeof *slot, err));
        if (dpt_trainer_sharded(t)) {
            const struct dpt_slice own =
                t->reduction.type->slice(t, dpt_trainer_replicas(t)->world.rank);

            dpt_forget(slot, slot + own.begin);
            dpt_forget(slot + own.end, slot + n);
        }
    }
out:
    return status;
}

struct dpt_state dpt_trainer_state(struct dpt_trainer *t, const char *job_text)
{
    struct dpt_state state = {
        .graph = &t->model.graph,
        .params = t->arenas.params,
        .slots = t->arenas.slots,
        .slot_names = dpt_optimizer_slot_names(&t->job->optimizer),
        .targets = &t->targets,
        .progress = t->progress,
        .seed = t->job->seed,
        .job_text = job_text,
        .version = DPT_VERSION,
        .plans = t->model.plans.text,
        .columns = t->data.train.present ? dpt_dataset_columns(t->data.train.set, NULL) : NULL,
        .clips_rows =
            t->job->train.clip_norm > 0 && t->job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE,
        .backend = t->backend->name,
        .library = t->backend->describe(),
        .scaled = t->job->device.precision == DPT_PRECISION_FP16,
        .scale = t->scale,
    };

    memcpy(state.slot, t->arenas.slot, sizeof state.slot);
    if (!t->planned && (dpt_trainer_sharded(t) || t->mesh.stages > 0)) {
        state.gather = gather;
        state.gathers_params = t->mesh.stages > 0 || t->units.gathers;
        state.streams = t->units.n > 0;
        state.owners = t;
    }
    return state;
}

enum dpt_status dpt_trainer_share_targets(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_target_scale *scale = &t->targets;
    const size_t bytes = (size_t)scale->outputs * sizeof(float);

    if (scale->outputs == 0)
        return DPT_OK;
    DPT_TRY(dpt_group_broadcast(world, 0, &scale->used, sizeof scale->used, err));
    DPT_TRY(dpt_group_broadcast(world, 0, scale->mean, bytes, err));
    DPT_TRY(dpt_group_broadcast(world, 0, scale->std, bytes, err));
out:
    return status;
}

enum dpt_status dpt_trainer_share_params(struct dpt_trainer *t, const struct dpt_state *whole,
                                         enum dpt_status status, struct dpt_error *err)
{
    const struct dpt_group *world = &t->comm->world;

    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_trainer_deal(t, whole, false, err));
    DPT_TRY(dpt_trainer_share_targets(t, err));
    DPT_TRY(dpt_group_agree(world, dpt_trainer_refresh(t, err), err));
out:
    return status;
}

enum dpt_status dpt_trainer_check_columns(const struct dpt_trainer *t,
                                          const struct dpt_checkpoint *file, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *columns = NULL;

    DPT_TRY(dpt_checkpoint_text(file, "/columns", &columns, err));
    for (size_t i = 0; i < DPT_SPLITS; i++)
        if (t->data.split[i].present)
            DPT_TRY(dpt_dataset_check_columns(t->data.split[i].set, columns, file->path, err));
out:
    free(columns);
    return status;
}

/* On rank 0. */
static enum dpt_status load_params(struct dpt_trainer *t, const char *path, bool any,
                                   struct dpt_error *err)
{
    struct dpt_state state = {
        .graph = &t->model.graph, .params = t->arenas.params, .targets = &t->targets};
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint file = {0};

    DPT_TRY(dpt_checkpoint_verify(path, err));
    DPT_TRY(dpt_checkpoint_open(&file, path, err));
    DPT_TRY(
        dpt_checkpoint_read(&file, &state, DPT_LOAD_PARAMS | (any ? DPT_LOAD_ANY : 0), NULL, err));
    DPT_TRY(dpt_trainer_check_columns(t, &file, err));
out:
    dpt_checkpoint_close(&file);
    return status;
}

enum dpt_status dpt_trainer_load_params(struct dpt_trainer *t, const char *path, bool any,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char file[PATH_MAX];

    if (t->comm->world.rank == 0)
        status = load_params(t, dpt_checkpoint_resolve(path, file), any, err);
    return dpt_trainer_share_params(t, NULL, status, err); /* it does not train: no stages */
}

/* What a trainer holds, to and from checkpoints. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/state.h"

/* The tensor of the whole model that a float is of. */
static int32_t tensor_at(const struct dpt_graph *graph, size_t at)
{
    int32_t i = 0;

    while ((int64_t)at < graph->tensors[i].offset ||
           (int64_t)at >= graph->tensors[i].offset + graph->tensors[i].count)
        i++;
    return i;
}

/* How many replicas keep slices of an arena; 1: all have what the first one has. */
static int owners_of(const struct dpt_trainer *t, int k)
{
    const struct dpt_gradient_reduction_type *type = t->reduction.type;

    if (k == DPT_PARAMS)
        return dpt_units_owners(t);
    return k == DPT_GRADIENT && (type == NULL || !type->in_slices) ? 1 : t->layout.owners;
}

float *dpt_trainer_arena(const struct dpt_trainer *t, int k, int64_t at)
{
    if (k >= 0)
        return t->arenas.slot[k];
    if (k == DPT_PARAMS)
        return t->arenas.params;
    if (owners_of(t, k) == 1)
        return t->reduction.sum;
    return (float *)t->reduction.type->slice_sum(t, dpt_gradient_range_of(t, (size_t)at));
}

bool dpt_trainer_has_all(const struct dpt_trainer *t, int k)
{
    const bool here = k == DPT_PARAMS && t->units.weights.bytes != NULL;

    return t->layout.model_ranks * (here ? 1 : owners_of(t, k)) == 1;
}

struct dpt_slice dpt_trainer_kept(const struct dpt_trainer *t, int k, int replica, int64_t at)
{
    if (owners_of(t, k) > 1)
        return t->reduction.type->slice(t, replica, dpt_gradient_range_of(t, (size_t)at));
    return (struct dpt_slice){.end = replica == 0 ? (size_t)dpt_trainer_graph(t)->floats : 0};
}

/* The floats that both have, or none. */
static struct dpt_range common(struct dpt_range a, struct dpt_range b)
{
    const int64_t first = a.first > b.first ? a.first : b.first;
    const int64_t last = a.last < b.last ? a.last : b.last;

    return (struct dpt_range){first, last > first ? last : first};
}

/* Finds which of the floats [at, end) of the whole arena, which are a tensor's, this rank's part of
 * the model has. *from: out, where the first of them is. */
static struct dpt_range part_floats(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                    float **from)
{
    const int32_t i = tensor_at(&t->model.graph, at);
    const struct dpt_tensor *own = &dpt_trainer_graph(t)->tensors[i];
    const int64_t begins = t->model.graph.tensors[i].offset + own->first;
    const struct dpt_range here = common((struct dpt_range){begins, begins + own->count},
                                         (struct dpt_range){(int64_t)at, (int64_t)end});

    *from = dpt_trainer_arena(t, k, own->offset);
    if (here.last > here.first)
        *from += own->offset + (here.first - begins);
    return here;
}

/* Finds which of those floats a replica of this rank's part of the model keeps for the others.
 * part: the one that keeps a tensor that is on all parts. */
static struct dpt_range own_floats(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                   int part, int replica, float **from)
{
    const int32_t i = tensor_at(&t->model.graph, at);
    const struct dpt_tensor *whole = &t->model.graph.tensors[i],
                            *own = &dpt_trainer_graph(t)->tensors[i];
    const struct dpt_range here = part_floats(t, k, at, end, from);
    const struct dpt_range none = {here.first, here.first};
    struct dpt_range has = here;

    if (t->mesh.part != part && dpt_graph_divided(&t->model.graph, i) == NULL)
        return none;
    if (!whole->state) {
        const struct dpt_slice kept = dpt_trainer_kept(t, k, replica, own->offset);
        const int64_t to_whole = whole->offset + own->first - own->offset;

        has = common(
            here, (struct dpt_range){(int64_t)kept.begin + to_whole, (int64_t)kept.end + to_whole});
    } else if (replica > 0) {
        return none;
    }
    if (has.last > has.first)
        *from += has.first - here.first;
    return has;
}

/* Finds which of the floats [at, end) each rank keeps. Where each rank is a replica of the whole
 * model all know that; else it is collective. *here: out, where this rank's are. */
static enum dpt_status list_parts(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                  int part, struct dpt_range *own, float **here,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    const struct dpt_parts *parts = &t->arenas.parts;
    int *const count = parts->count, *const begins = parts->at, me = world->rank;
    float *ignored;

    for (int r = 0; r < world->size && t->layout.model_ranks == 1; r++) {
        const struct dpt_range has = own_floats(t, k, at, end, part, r, &ignored);

        count[r] = (int)(has.last - has.first);
        begins[r] = count[r] > 0 ? (int)(has.first - (int64_t)at) : 0;
    }
    *own = own_floats(t, k, at, end, part, dpt_trainer_replicas(t)->world.rank, here);
    if (t->layout.model_ranks == 1)
        return DPT_OK;
    count[me] = (int)(own->last - own->first);
    begins[me] = count[me] > 0 ? (int)(own->first - (int64_t)at) : 0;
    DPT_TRY(dpt_group_allgather(world, &count[me], count, sizeof *count, err));
    DPT_TRY(dpt_group_allgather(world, &begins[me], begins, sizeof *begins, err));
out:
    return status;
}

/* Collective. Rank 0 gets the floats [at, end) of the whole arena, which are a tensor's, from the
 * ranks that keep them for the others, or gives them theirs. whole: on rank 0 the arena; else
 * unused. part: as in own_floats. */
static enum dpt_status move(const struct dpt_trainer *t, int k, bool gives, float *whole, size_t at,
                            size_t end, int part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    const size_t piece = DPT_CHECKPOINT_PIECE;

    for (size_t next; at < end; at = next) {
        struct dpt_range own;
        float *all, *here;

        next = end - at < piece ? end : at + piece;
        all = world->rank == 0 ? whole + at : NULL;
        DPT_TRY(list_parts(t, k, at, next, part, &own, &here, err));
        if (gives && world->rank == 0 && own.last > own.first && here != whole + own.first)
            memcpy(here, whole + own.first, (size_t)(own.last - own.first) * sizeof *whole);
        DPT_TRY(gives ? dpt_group_scatterv(world, 0, all, here, &t->arenas.parts, err)
                      : dpt_group_gatherv(world, 0, here, all, &t->arenas.parts, err));
    }
out:
    return status;
}

/* Collective. Gives rank 0 the n floats from `at` on of the whole arena, which are a tensor's. to:
 * used there only. */
static enum dpt_status gather(const void *trainer, int k, size_t at, size_t n, float *to,
                              struct dpt_error *err)
{
    const struct dpt_trainer *t = trainer;

    return move(t, k, false, t->comm->world.rank == 0 ? to - at : NULL, at, at + n, 0, err);
}

/* Collective. Gives all ranks that keep floats [at, end) of slot k or the parameters (-1), which
 * are a tensor's, theirs of rank 0's arena. */
static enum dpt_status scatter(const struct dpt_trainer *t, int k, float *whole, size_t at,
                               size_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t tensor = tensor_at(&t->model.graph, at);
    const bool divided = dpt_graph_divided(&t->model.graph, tensor) != NULL;
    const bool has_owners = !t->model.graph.tensors[tensor].state && owners_of(t, k) > 1;
    const int parts = divided ? 1 : t->layout.tensor;
    struct dpt_range here;
    float *to;

    for (int part = 0; part < parts; part++) /* no float is sent twice by a message */
        DPT_TRY(move(t, k, true, whole, at, end, part, err));
    here = part_floats(t, k, at, end, &to);
    /* All replicas get what each of them has. Replicas that share one arena of the parameters have
     * it by now. */
    if (!has_owners && t->units.weights.bytes == NULL)
        DPT_TRY(dpt_group_broadcast(&dpt_trainer_replicas(t)->world, 0, to,
                                    (size_t)(here.last - here.first) * sizeof *to, err));
out:
    return status;
}

/* --- rank 0 reads a tensor, and gives it to its owners ---------------------------------------- */

/* What rank 0 tells the others: which floats come next. */
struct gift {
    int64_t at, n; /* n < 0: none */
    int k;
};

/* Rank 0 calls it while the others are in `follow`. */
static enum dpt_status give(const void *trainer, int k, size_t at, size_t n, float *from,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = trainer;
    struct gift gift = {.at = (int64_t)at, .n = (int64_t)n, .k = k};

    DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, &gift, sizeof gift, err));
    DPT_TRY(scatter(t, k, from - at, at, at + n, err));
    dpt_decommit(from, from + n);
out:
    return status;
}

/* If ranks keep parts, collective once rank 0 has read a state or failed: the others take what they
 * keep of each tensor that it reads. */
static enum dpt_status follow(const struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct gift gift = {.n = -1};
    bool ends = !t->layout.streams;

    while (!ends) {
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, &gift, sizeof gift, err));
        ends = gift.n < 0;
        if (!ends)
            DPT_TRY(scatter(t, gift.k, NULL, (size_t)gift.at, (size_t)(gift.at + gift.n), err));
    }
out:
    return status;
}

/* If ranks keep parts, the state gets address space for the whole model, on rank 0, in place of its
 * own arenas, and gives each tensor away at once. */
static enum dpt_status open_whole(const struct dpt_trainer *t, struct dpt_state *state,
                                  struct dpt_error *err)
{
    const struct dpt_graph *graph = &t->model.graph;
    const size_t bytes = (size_t)graph->arena * sizeof(float);

    if (!t->layout.streams || t->comm->world.rank != 0)
        return DPT_OK;
    state->give = give;
    state->owners = t;
    for (int k = 0; k < t->arenas.slots; k++)
        state->slot[k] = NULL;
    state->params = dpt_reserve(bytes);
    for (int k = 0; k < t->arenas.slots && state->params != NULL; k++)
        if ((state->slot[k] = dpt_reserve(bytes)) == NULL)
            return dpt_fail_memory(err, "the whole model", (double)bytes);
    return state->params != NULL ? DPT_OK : dpt_fail_memory(err, "the whole model", (double)bytes);
}

enum dpt_status dpt_trainer_read(struct dpt_trainer *t, struct dpt_state *state,
                                 enum dpt_status (*read)(void *arg, struct dpt_state *state,
                                                         struct dpt_error *err),
                                 void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, followed;
    struct dpt_error other;

    if (t->comm->world.rank == 0)
        status = open_whole(t, state, err);
    if (t->comm->world.rank == 0 && status == DPT_OK)
        status = read(arg, state, err);
    followed = follow(t, status == DPT_OK ? err : &other);
    for (int k = DPT_PARAMS; state->give != NULL && k < t->arenas.slots; k++)
        dpt_unreserve(k == DPT_PARAMS ? state->params : state->slot[k],
                      (size_t)t->model.graph.arena * sizeof(float));
    return status == DPT_OK ? followed : status;
}

enum dpt_status dpt_trainer_broadcast(struct dpt_trainer *t, bool slots, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = &t->model.graph;

    for (int k = DPT_PARAMS; k < (slots ? t->arenas.slots : 0) && !t->layout.streams; k++)
        DPT_TRY(dpt_group_broadcast(
            &t->comm->world, 0, dpt_trainer_arena(t, k, 0),
            (size_t)(k == DPT_PARAMS ? graph->arena : graph->floats) * sizeof(float), err));
out:
    return status;
}

/* --- saving and loading ----------------------------------------------------------------------- */

enum dpt_status dpt_trainer_give_slots(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    /* The order is that in which rank 0 asks for them (dpt_image_take). */
    for (int k = dpt_trainer_has_all(t, DPT_PARAMS) ? 0 : DPT_PARAMS;
         k < t->arenas.slots && t->layout.streams; k++)
        for (int pass = 0; pass < (k < 0 ? 2 : 1); pass++)
            for (int32_t i = 0; i < t->model.graph.n_tensors; i++) {
                const struct dpt_tensor *tensor = &t->model.graph.tensors[i];

                if (tensor->state == (pass == 1))
                    DPT_TRY(gather(t, k, (size_t)tensor->offset, (size_t)tensor->count, NULL, err));
            }
out:
    return status;
}

enum dpt_status dpt_trainer_tensor(const struct dpt_trainer *t, bool gradient, int32_t number,
                                   float *room, const float **x, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int k = gradient ? DPT_GRADIENT : DPT_PARAMS;
    const struct dpt_tensor *tensor = &t->model.graph.tensors[number];

    *x = NULL;
    if (!dpt_trainer_has_all(t, k)) {
        DPT_TRY(gather(t, k, (size_t)tensor->offset, (size_t)tensor->count, room, err));
        *x = t->comm->world.rank == 0 ? room : NULL;
    } else if (t->comm->world.rank == 0) {
        *x = dpt_trainer_arena(t, k, tensor->offset) + tensor->offset;
    }
out:
    return status;
}

struct dpt_state dpt_state_of(const struct dpt_layout *l, const struct dpt_splits *data,
                              const struct dpt_trainer_model *model, struct dpt_arenas *arenas,
                              struct dpt_target_scale *targets, const char *job_text)
{
    const struct dpt_job *job = l->job;
    const struct dpt_dataset *set = data->train.present ? data->train.set : NULL;
    struct dpt_state state = {
        .graph = &model->graph,
        .params = arenas->params,
        .slots = arenas->slots,
        .slot_names = arenas->slot_names,
        .targets = targets,
        .seed = job->seed,
        .job_text = job_text,
        .version = DPT_VERSION,
        .plans = model->plans.text,
        .columns = set != NULL ? dpt_dataset_columns(set, NULL) : NULL,
        .stored = set != NULL && set->views ? &set->stored : NULL,
        .classes = data->classes.text,
        .training_data = data->identity,
        .input_type = set == NULL ? NULL
                      : set->u8   ? "uint8"
                                  : "float32",
        .clips_rows = job->train.clip_norm > 0 && job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE,
        .backend = l->backend->name,
        .library = l->backend->describe(),
        .scaled = job->device.precision == DPT_PRECISION_FP16,
    };

    memcpy(state.slot, arenas->slot, sizeof state.slot);
    return state;
}

struct dpt_state dpt_trainer_state(struct dpt_trainer *t, const char *job_text)
{
    struct dpt_state state =
        dpt_state_of(&t->layout, &t->data, &t->model, &t->arenas, &t->targets, job_text);

    state.progress = t->progress;
    state.scale = t->scale;
    if (t->layout.streams) {
        state.gather = gather;
        state.gathers_params = !dpt_trainer_has_all(t, DPT_PARAMS);
        state.streams = true;
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
    DPT_TRY(dpt_group_broadcast(world, 0, &scale->transform, sizeof scale->transform, err));
    DPT_TRY(dpt_group_broadcast(world, 0, scale->mean, bytes, err));
    DPT_TRY(dpt_group_broadcast(world, 0, scale->std, bytes, err));
out:
    return status;
}

enum dpt_status dpt_trainer_share_params(struct dpt_trainer *t, enum dpt_status status,
                                         struct dpt_error *err)
{
    const struct dpt_group *world = &t->comm->world;

    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_trainer_broadcast(t, false, err));
    DPT_TRY(dpt_trainer_share_targets(t, err));
    DPT_TRY(dpt_group_agree(world, dpt_trainer_refresh(t, err), err));
out:
    return status;
}

/* Holds a text of a checkpoint, "/columns", against each of the opened sets. Errors: those of
 * `compare`, BAD_DATA, RANK. */
static enum dpt_status
check_text(const struct dpt_trainer *t, const struct dpt_checkpoint *file, const char *name,
           enum dpt_status (*compare)(const struct dpt_dataset *set, const char *text,
                                      const char *from, struct dpt_error *err),
           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *text = NULL;

    DPT_TRY(dpt_checkpoint_text(file, name, &text, err));
    for (size_t i = 0; i < DPT_SPLITS; i++)
        if (t->data.split[i].present)
            DPT_TRY(compare(t->data.split[i].set, text, file->path, err));
out:
    free(text);
    return status;
}

enum dpt_status dpt_trainer_check_columns(const struct dpt_trainer *t,
                                          const struct dpt_checkpoint *file, struct dpt_error *err)
{
    return check_text(t, file, "/columns", dpt_dataset_check_columns, err);
}

/* The arguments of load_params. */
struct loading {
    struct dpt_trainer *t;
    const char *path;
    unsigned how;
};

/* Loads the parameters, on rank 0. */
static enum dpt_status load_params(void *arg, struct dpt_state *state, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct loading *loading = arg;
    const struct dpt_trainer *t = loading->t;
    struct dpt_checkpoint file = {0};
    char path[PATH_MAX];

    dpt_checkpoint_resolve(loading->path, path);
    DPT_TRY(dpt_checkpoint_verify(path, err));
    DPT_TRY(dpt_checkpoint_open(&file, path, err));
    DPT_TRY(dpt_checkpoint_read(&file, state, DPT_LOAD_PARAMS | loading->how, NULL, err));
    DPT_TRY(dpt_trainer_check_columns(t, &file, err));
    /* A number must mean the same class to the model and in the sets. */
    DPT_TRY(check_text(t, &file, "/classes", dpt_dataset_compare_classes, err));
    if (state->averaged)
        dpt_log_info(t->log, "weights: their moving average (train.ema)");
out:
    dpt_checkpoint_close(&file);
    return status;
}

enum dpt_status dpt_trainer_load_params(struct dpt_trainer *t, const char *path, unsigned how,
                                        struct dpt_error *err)
{
    struct loading loading = {t, path, how};
    struct dpt_state state = {
        .graph = &t->model.graph, .params = t->arenas.params, .targets = &t->targets};

    return dpt_trainer_share_params(t, dpt_trainer_read(t, &state, load_params, &loading, err),
                                    err);
}

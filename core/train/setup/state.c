/* What a trainer holds, to and from checkpoints. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"
#include "core/train/setup/kept.h"
#include "core/train/setup/state.h"
#include "core/train/setup/state_file.h"

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
        const struct dpt_range has = dpt_trainer_own_floats(
            t, k, at, end, &(struct dpt_keeper){.part = part, .replica = r}, &ignored);

        count[r] = (int)(has.last - has.first);
        begins[r] = count[r] > 0 ? (int)(has.first - (int64_t)at) : 0;
    }
    *own = dpt_trainer_own_floats(
        t, k, at, end,
        &(struct dpt_keeper){.part = part, .replica = dpt_trainer_replicas(t)->world.rank}, here);
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
 * unused. part: as in struct dpt_keeper. */
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
static enum dpt_status gather(const struct dpt_trainer *t, int k, size_t at, size_t n, float *to,
                              struct dpt_error *err)
{
    return move(t, k, false, t->comm->world.rank == 0 ? to - at : NULL, at, at + n, 0, err);
}

/* Collective. Gives all ranks that keep floats [at, end) of slot k or the parameters (-1), which
 * are a tensor's, theirs of rank 0's arena. */
static enum dpt_status scatter(const struct dpt_trainer *t, int k, float *whole, size_t at,
                               size_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t tensor = dpt_graph_tensor_at(&t->model.graph, at);
    const bool divided = dpt_graph_divided(&t->model.graph, tensor) != NULL;
    const bool has_owners = !t->model.graph.tensors[tensor].state && dpt_trainer_owners(t, k) > 1;
    const int parts = divided ? 1 : t->layout.tensor;
    struct dpt_range here;
    float *to;

    for (int part = 0; part < parts; part++) /* no float is sent twice by a message */
        DPT_TRY(move(t, k, true, whole, at, end, part, err));
    here = dpt_trainer_part_floats(t, k, at, end, &to);
    /* All replicas get what each of them has. Replicas that share one arena of the parameters have
     * it by now. */
    if (!has_owners && t->units.weights.bytes == NULL)
        DPT_TRY(dpt_group_broadcast(&dpt_trainer_replicas(t)->world, 0, to,
                                    (size_t)(here.last - here.first) * sizeof *to, err));
out:
    return status;
}

/* --- what rank 0 asks of the others, while they are in dpt_trainer_serve ---------------------- */

enum { MOST = 128 }; /* stretches that are asked for at once */

/* Rank 0 calls ask, then all ranks do the same. */
struct question {
    enum { END, GATHER, GIVE, WRITE, VERIFY, READ } what;
    int k;
    int64_t at, n;
};

static enum dpt_status ask(const struct dpt_trainer *t, struct question question,
                           struct dpt_error *err)
{
    return dpt_group_broadcast(&t->comm->world, 0, &question, sizeof question, err);
}

/* Gathers one stretch after the other. wanted: [MOST], on rank 0 filled. */
static enum dpt_status
gather_list(const struct dpt_trainer *t, struct dpt_stretch *wanted, size_t n, float *room,
            enum dpt_status (*take)(void *arg, size_t i, const float *x, struct dpt_error *err),
            void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, taken = DPT_OK;

    DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, wanted, n * sizeof *wanted, err));
    for (size_t i = 0; i < n; i++) {
        const struct dpt_stretch *w = &wanted[i];
        const struct dpt_tensor *tensor = &t->model.graph.tensors[w->tensor];

        DPT_TRY(gather(t, w->arena, (size_t)(tensor->offset + w->at), (size_t)w->n, room,
                       taken == DPT_OK ? err : &(struct dpt_error){0}));
        if (take != NULL && taken == DPT_OK) /* else the others give the rest for nothing */
            taken = take(arg, i, room, err);
    }
    status = taken;
out:
    return status;
}

static enum dpt_status
ask_gather(void *trainer, const struct dpt_stretch *wanted, size_t n, float *room,
           enum dpt_status (*take)(void *arg, size_t i, const float *x, struct dpt_error *err),
           void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_stretch list[MOST];
    size_t some;

    for (size_t i = 0; i < n; i += some) {
        some = n - i < MOST ? n - i : MOST;
        memcpy(list, wanted + i, some * sizeof *list);
        DPT_TRY(ask(trainer, (struct question){.what = GATHER, .n = (int64_t)some}, err));
        DPT_TRY(gather_list(trainer, list, some, room, take, arg, err));
    }
out:
    return status;
}

static enum dpt_status ask_give(void *trainer, int k, size_t at, size_t n, float *from,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct question give = {.what = GIVE, .k = k, .at = (int64_t)at, .n = (int64_t)n};

    DPT_TRY(ask(trainer, give, err));
    DPT_TRY(scatter(trainer, k, from - at, at, at + n, err));
    dpt_decommit(from, from + n);
out:
    return status;
}

static enum dpt_status ask_write(void *trainer, struct dpt_shared_file *file, int fd,
                                 const int64_t *offset, bool *later,
                                 const struct dpt_stretch **done, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = trainer;

    DPT_TRY(dpt_shared_file_mark(file, fd, t->comm->nodes > 1, err));
    DPT_TRY(ask(t, (struct question){.what = WRITE, .n = *later}, err));
    DPT_TRY(dpt_state_file_write(t, file, offset, *later, n, err));
    *later = t->file.pending;
    *done = t->file.all;
out:
    return status;
}

static enum dpt_status ask_verify(void *trainer, int fd, const struct dpt_shared_file *file,
                                  int64_t size, uint32_t *crc, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = trainer;

    DPT_TRY(ask(t, (struct question){.what = VERIFY}, err));
    DPT_TRY(dpt_state_file_verify(t, file, size, crc, err));
    if (!t->file.seen)
        DPT_TRY(dpt_shared_file_crc(file->path, fd, 0, size, crc, err));
out:
    return status;
}

static enum dpt_status ask_read(void *trainer, const int64_t *offset, size_t sets,
                                const struct dpt_stretch **done, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = trainer;

    DPT_TRY(ask(t, (struct question){.what = READ}, err));
    DPT_TRY(dpt_state_file_read(t, offset, sets, n, err));
    *done = t->file.all;
out:
    return status;
}

/* The other ranks' part in what rank 0 asks. */
static enum dpt_status answer(struct dpt_trainer *t, const struct question *q,
                              struct dpt_error *err)
{
    struct dpt_stretch wanted[MOST];
    size_t n;

    switch (q->what) {
    case GATHER:
        return gather_list(t, wanted, (size_t)q->n, NULL, NULL, NULL, err);
    case GIVE:
        return scatter(t, q->k, NULL, (size_t)q->at, (size_t)(q->at + q->n), err);
    case WRITE:
        return dpt_state_file_write(t, NULL, NULL, q->n != 0, &n, err);
    case VERIFY:
        return dpt_state_file_verify(t, NULL, 0, NULL, err);
    case READ:
        return dpt_state_file_read(t, NULL, 0, &n, err);
    case END:
        break;
    }
    return DPT_OK;
}

enum dpt_status dpt_trainer_serve(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, failed = DPT_OK;
    struct question question = {.what = END};
    struct dpt_error other;
    bool ends = !t->layout.streams;

    while (!ends) {
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, &question, sizeof question,
                                    failed == DPT_OK ? err : &other));
        ends = question.what == END;
        status = answer(t, &question, failed == DPT_OK ? err : &other);
        if (failed == DPT_OK) /* rank 0 knows of it, and comes to an end */
            failed = status;
    }
    if (t->file.seen)
        dpt_state_file_forget(t);
    status = failed;
out:
    return status;
}

enum dpt_status dpt_trainer_verify(struct dpt_trainer *t, const char *path, struct dpt_error *err)
{
    return t->layout.streams ? dpt_checkpoint_verify_by(path, ask_verify, t, err)
                             : dpt_checkpoint_verify(path, err);
}

/* If ranks keep parts, the state gets address space for the whole model, on rank 0, in place of its
 * own arenas, and gives each tensor away at once. */
static enum dpt_status open_whole(struct dpt_trainer *t, struct dpt_state *state,
                                  struct dpt_error *err)
{
    const struct dpt_graph *graph = &t->model.graph;
    const size_t bytes = (size_t)graph->arena * sizeof(float);

    if (!t->layout.streams || t->comm->world.rank != 0)
        return DPT_OK;
    state->give = ask_give;
    state->read = ask_read;
    state->seen = &t->file.seen;
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
    followed = dpt_trainer_serve(t, status == DPT_OK ? err : &other);
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
        .numerics = l->backend->numerics,
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
        state.gather = ask_gather;
        state.write = ask_write;
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
    DPT_TRY(dpt_trainer_verify(loading->t, path, err));
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

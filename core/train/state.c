/* What a trainer holds, to and from checkpoints. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/trainer.h"

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

enum dpt_status dpt_trainer_share_params(struct dpt_trainer *t, enum dpt_status status,
                                         struct dpt_error *err)
{
    const struct dpt_group *world = &t->comm->world;

    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_broadcast(world, 0, t->arenas.params,
                                (size_t)t->model.graph.arena * sizeof(float), err));
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
    return dpt_trainer_share_params(t, status, err);
}

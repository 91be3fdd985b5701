/* What a trainer holds, to and from checkpoints. */
#include <limits.h>
#include <string.h>

#include "core/train/trainer.h"

struct dpt_state dpt_trainer_state(struct dpt_trainer *t, const char *job_text)
{
    struct dpt_state state = {
        .graph = &t->model.graph,
        .params = t->arenas.params,
        .slots = t->arenas.slots,
        .slot_names = dpt_optimizer_slot_names(&t->job->optimizer),
        .progress = t->progress,
        .seed = t->job->seed,
        .job_text = job_text,
        .version = DPT_VERSION,
        .plans = t->model.plans.text,
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

enum dpt_status dpt_trainer_share_params(struct dpt_trainer *t, enum dpt_status status,
                                         struct dpt_error *err)
{
    const struct dpt_group *world = &t->comm->world;

    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_broadcast(world, 0, t->arenas.params,
                                (size_t)t->model.graph.arena * sizeof(float), err));
    DPT_TRY(dpt_group_agree(world, dpt_trainer_refresh(t, err), err));
out:
    return status;
}

enum dpt_status dpt_trainer_load_params(struct dpt_trainer *t, const char *path, bool any,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char file[PATH_MAX];

    if (t->comm->world.rank == 0) {
        struct dpt_state state = {.graph = &t->model.graph, .params = t->arenas.params};

        status = dpt_checkpoint_load(&state, dpt_checkpoint_resolve(path, file),
                                     DPT_LOAD_PARAMS | (any ? DPT_LOAD_ANY : 0), NULL, err);
    }
    return dpt_trainer_share_params(t, status, err);
}

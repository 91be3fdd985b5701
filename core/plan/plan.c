#include "core/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/process.h"
#include "core/state/checkpoint.h"
#include "core/train/setup/choose.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"
#include "core/train/update/optimizer.h"
#include "core/train/update/schedule.h"
#include "data/sets/augment.h"

/* --- who runs where --------------------------------------------------------------------------- */

/* Counts the ranks of a node, and the nodes. */
static void count_nodes(struct dpt_plan *p)
{
    enum { NODE = 8 }; /* GPUs, if none is here */
    struct dpt_plan_spec *spec = &p->spec;
    const int here = p->backend->devices != NULL ? dpt_choose_count(DPT_DEVICE_CUDA) : 0;

    p->assumes_nodes = spec->node_ranks == 0;
    if (spec->node_ranks == 0)
        spec->node_ranks = p->backend->devices == NULL ? spec->ranks : here > 0 ? here : NODE;
    if (spec->node_ranks > spec->ranks)
        spec->node_ranks = spec->ranks;
    p->nodes = (spec->ranks + spec->node_ranks - 1) / spec->node_ranks;
}

enum dpt_status dpt_plan_layout(const struct dpt_plan *p, const struct dpt_job *job, int ranks,
                                int node_ranks, struct dpt_layout *layout, struct dpt_error *err)
{
    *layout = (struct dpt_layout){
        .job = job,
        .backend = p->backend,
        .graph = &p->model.graph,
        .files = p->data.train.set->files,
        .linked = p->linked,
        .ranks = ranks,
        .node_ranks = node_ranks,
    };
    /* No part is larger than that of the last rank. */
    return dpt_layout_open(layout, &p->data.train.sampler, ranks - 1, p->cores / node_ranks, err);
}

/* --- the whole -------------------------------------------------------------------------------- */

/* The bytes that the ranks of a part of the model put into a step's sums, and those of the weights
 * that are there on a node, or on a device: the actions' bytes with a rank's and a node's own
 * part. */
static void fill_sums(struct dpt_plan *p)
{
    const double *kind = p->stages[p->stage->number].traffic.kind;
    const double ranks = p->layout.replicas;
    const double all = ranks / fmax(ranks - 1, 1);
    const double nodes = dpt_layout_nodes(&p->layout);

    if (ranks > 1)
        p->reduced = kind[DPT_ACTION_ADD] > 0
                         ? round(kind[DPT_ACTION_ADD] * all)
                         : ((double)p->stage->graph.arena + DPT_TAIL_WORDS) * sizeof(float);
    if (p->layout.sliced_there)
        p->gathered =
            dpt_plan_gpu_gathered(p, &p->layout, dpt_layout_most_micros(&p->layout), NULL);
    else
        p->gathered =
            round(kind[DPT_ACTION_GATHER] * p->layout.node_replicas * nodes / fmax(nodes - 1, 1));
}

/* Halves a micro-batch that does not fit, as training does, if the job leaves its size open; else
 * notes which size would fit. */
static enum dpt_status fit_device(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool ours = dpt_layout_micro_is_open(p->job, &p->model.graph);
    const int32_t wanted = p->layout.micro;
    int32_t micro = wanted;

    dpt_plan_gpu_memory(p);
    while (p->device_bytes > p->gpu.memory && micro > 1) {
        micro /= 2;
        dpt_layout_set_micro(&p->layout, micro);
        DPT_TRY(dpt_plan_measure(p, err));
        dpt_plan_gpu_memory(p);
    }
    if (ours && micro < wanted && p->device_bytes <= p->gpu.memory) {
        p->micro_most = micro;
        return dpt_splits_plan(&p->data, &p->layout, err);
    }
    if (micro < wanted) {
        p->device_micro = p->device_bytes <= p->gpu.memory ? micro : 0;
        dpt_layout_set_micro(&p->layout, wanted);
        DPT_TRY(dpt_plan_measure(p, err));
        dpt_plan_gpu_memory(p);
    }
out:
    return status;
}

void dpt_plan_assumption(const struct dpt_plan *p, char text[DPT_PLAN_TEXT])
{
    const bool gpus = p->gpu.name[0] != '\0';
    const int n = gpus ? p->spec.node_ranks : (int)p->cores;

    text[0] = '\0';
    if (p->assumes_nodes && (gpus ? p->nodes > 1 : p->spec.node_ranks > p->cores))
        snprintf(text, DPT_PLAN_TEXT,
                 "assumed: %s %d %s%s; --nodes N or --ranks-per-node N plans for others\n",
                 gpus ? "nodes of" : "one node of", n, gpus ? "GPU" : "core", n == 1 ? "" : "s");
}

/* Describes the data, builds the model and finds how the work is divided, as dpt_trainer_open does,
 * for ranks that need not exist. Only graphs are allocated; no sample is read. */
static enum dpt_status describe(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_job *job = p->job;

    p->model.loss = dpt_job_loss(job);
    DPT_TRY(dpt_numerics_limit(p->backend, job, err));
    DPT_TRY(dpt_splits_open(&p->data, job, DPT_PART_TRAIN | DPT_PART_VALID | DPT_PART_TEST, NULL,
                            NULL, err));
    DPT_TRY(dpt_numerics_precision(p->backend, job, err));
    DPT_TRY(dpt_model_of_splits(&p->model, job, &p->data, err));
    DPT_TRY(dpt_plan_layout(p, job, p->spec.ranks, p->spec.node_ranks, &p->layout, err));
    DPT_TRY(dpt_splits_open_targets(&p->data, job, &p->model, false, &p->targets, err));
    DPT_TRY(dpt_splits_plan(&p->data, &p->layout, err));
    dpt_splits_length(&p->data, job, &p->steps_per_epoch, &p->steps);
    p->lr =
        dpt_schedule_scale(&job->schedule, dpt_optimizer_lr(&job->optimizer), job->batch.global);
    DPT_TRY(dpt_splits_identify(&p->data, err));
out:
    return status;
}

static enum dpt_status size_checkpoint(struct dpt_plan *p, const char *job_text,
                                       struct dpt_error *err)
{
    struct dpt_arenas arenas = {0};
    struct dpt_state state;

    dpt_arenas_count_slots(&arenas, &p->layout);
    state = dpt_state_of(&p->layout, &p->data, &p->model, &arenas, &p->targets, job_text);
    state.progress.best_step = -1;
    return dpt_checkpoint_size(&state, p->job->output, &p->checkpoint, err);
}

enum dpt_status dpt_plan_open(struct dpt_plan *p, const struct dpt_job *job,
                              const struct dpt_plan_spec *spec, const char *job_text,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(p, 0, sizeof *p);
    p->spec = *spec;
    p->job = job;
    p->available = dpt_memory_available();
    p->process = spec->process;
    p->cores = dpt_process_cores();
    DPT_TRY(dpt_choose_planned((enum dpt_device_kind)job->device.kind, &p->backend, err));
    count_nodes(p);
    if (p->backend->devices != NULL) {
        dpt_plan_gpu_choose(p);
        dpt_plan_gpu_links(p);
    }
    DPT_TRY(describe(p, err));
    if (p->backend->devices != NULL)
        dpt_plan_gpu_transport(p);
    if (dpt_augment_wanted(&job->data.augment))
        DPT_TRY(dpt_augment_check(&job->data.augment, p->data.train.set, err));
    if (p->layout.together) /* only its presence counts, it is never run */
        DPT_TRY(dpt_pool_open(&p->pool, 1, false, err));
    DPT_TRY(size_checkpoint(p, job_text, err));
    p->libraries = dpt_process_memory("RssFile"); /* once: it grows while libraries are used */
    if (p->process <= 0)
        p->process = dpt_process_memory("VmHWM") - p->libraries;
    DPT_TRY(dpt_plan_stages(p, err));
    if (p->backend->devices != NULL)
        DPT_TRY(fit_device(p, err));
    fill_sums(p);
    dpt_plan_fill_memory(p);
    dpt_plan_fill_mesh(p);
out:
    return status;
}

void dpt_plan_close(struct dpt_plan *p)
{
    dpt_free(p->stages);
    dpt_pool_close(p->pool);
    dpt_layout_close(&p->layout);
    dpt_graph_release(&p->model.graph);
    dpt_target_scale_release(&p->targets);
    dpt_splits_close(&p->data);
}

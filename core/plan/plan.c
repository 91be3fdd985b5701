#include "core/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/process.h"
#include "core/state/checkpoint.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/setup/choose.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"
#include "core/train/step/engine.h"
#include "core/train/step/runner.h"
#include "core/train/update/optimizer.h"
#include "data/sets/augment.h"

/* --- who runs where --------------------------------------------------------------------------- */

/* Rank 0 of ranks that need not be there. */
static void make_comm(struct dpt_plan *p, const struct dpt_backend *backend)
{
    struct dpt_plan_spec *spec = &p->spec;

    p->assumes_nodes = spec->node_ranks == 0;
    if (spec->node_ranks == 0)
        spec->node_ranks = backend->devices != NULL ? dpt_plan_gpu_node() : spec->ranks;
    if (spec->node_ranks > spec->ranks)
        spec->node_ranks = spec->ranks;
    p->nodes = (spec->ranks + spec->node_ranks - 1) / spec->node_ranks;
    p->comm.world.size = spec->ranks;
    p->comm.node.size = spec->node_ranks;
    p->comm.leaders.size = p->nodes;
    p->comm.nodes = p->nodes;
}

/* Counts them as dpt_trainer_open does. */
static int threads_of(const struct dpt_plan *p)
{
    const double share = p->cores / p->spec.node_ranks;

    return share < 2 ? 1 : (int)(share + 1e-6);
}

/* --- the whole -------------------------------------------------------------------------------- */

/* What the ranks of a part of the model put into a step's sums, and get of each other's weights: of
 * the actions' bytes one's own part is left out. */
static void fill_sums(struct dpt_plan *p)
{
    const struct dpt_trainer *t = &p->t;
    const double *kind = p->stages[t->mesh.stage].traffic.kind;
    const double ranks = dpt_trainer_replicas(t)->world.size;
    const double all = ranks / fmax(ranks - 1, 1);

    if (ranks > 1)
        p->reduced = kind[DPT_ACTION_ADD] > 0
                         ? round(kind[DPT_ACTION_ADD] * all)
                         : ((double)dpt_trainer_graph(t)->arena + DPT_TAIL_WORDS) * sizeof(float);
    p->gathered = round(kind[DPT_ACTION_GATHER] * all);
}

/* Halves a micro-batch that does not fit, as training does, where the job leaves its size open;
 * else notes which size would fit. */
static enum dpt_status fit_device(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool ours = dpt_trainer_micro_is_open(&p->t);
    const int32_t wanted = p->t.data.train.sampler.micro;
    int32_t micro = wanted;

    dpt_plan_gpu_memory(p);
    while (p->device_bytes > p->gpu.memory && micro > 1) {
        micro /= 2;
        DPT_TRY(dpt_plan_measure(p, micro, err));
        p->t.data.train.sampler.micro = micro;
        dpt_plan_gpu_memory(p);
    }
    if (ours && micro < wanted && p->device_bytes <= p->gpu.memory) {
        p->t.model.micro_most = micro;
        for (size_t i = 0; i < DPT_SPLITS; i++)
            p->t.data.split[i].sampler.micro = micro;
    } else if (micro < wanted) {
        p->device_micro = p->device_bytes <= p->gpu.memory ? micro : 0;
        p->t.data.train.sampler.micro = wanted;
        DPT_TRY(dpt_plan_measure(p, wanted, err));
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

enum dpt_status dpt_plan_open(struct dpt_plan *p, const struct dpt_job *job,
                              const struct dpt_plan_spec *spec, const char *job_text,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_backend *backend;
    struct dpt_state state;

    memset(p, 0, sizeof *p);
    p->spec = *spec;
    p->available = dpt_memory_available();
    p->process = spec->process;
    p->cores = dpt_process_cores();
    DPT_TRY(dpt_choose_planned((enum dpt_device_kind)job->device.kind, &backend, err));
    make_comm(p, backend);
    if (backend->devices != NULL)
        dpt_plan_gpu_choose(p, backend);
    DPT_TRY(dpt_trainer_plan(&p->t, job, &p->comm, threads_of(p),
                             DPT_PART_TRAIN | DPT_PART_VALID | DPT_PART_TEST, err));
    if (dpt_augment_wanted(&job->data.augment))
        DPT_TRY(dpt_augment_check(&job->data.augment, p->t.data.train.set, err));
    if (p->t.team.together) /* only its presence counts, it is never run */
        DPT_TRY(dpt_pool_open(&p->t.team.pool, 1, false, err));
    DPT_TRY(dpt_trainer_identify(&p->t, err));
    state = dpt_trainer_state(&p->t, job_text);
    DPT_TRY(dpt_checkpoint_size(&state, job->output, &p->checkpoint, err));
    p->libraries = dpt_process_memory("RssFile"); /* once: it grows while libraries are used */
    if (p->process <= 0)
        p->process = dpt_process_memory("VmHWM") - p->libraries;
    DPT_TRY(dpt_plan_stages(p, err));
    if (backend->devices != NULL)
        DPT_TRY(fit_device(p, err));
    fill_sums(p);
    dpt_plan_fill_memory(p);
    dpt_plan_fill_mesh(p);
out:
    return status;
}

void dpt_plan_close(struct dpt_plan *p)
{
    dpt_plan_release_stages(p);
    dpt_trainer_close(&p->t);
}

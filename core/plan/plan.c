#include "core/plan/plan.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/process.h"
#include "core/state/checkpoint.h"
#include "core/train/choose.h"
#include "core/train/engine.h"
#include "core/train/gradient_reduction.h"
#include "core/train/lockstep.h"
#include "core/train/optimizer.h"
#include "core/train/parts.h"
#include "data/sets/augment.h"

enum { WORD = sizeof(float) };

/* Bytes that a process gains once it trains (MPI, threads and their stacks), where there are
 * several ranks, and on rank 0 where it writes checkpoints, beside their own bytes: measured with
 * Open MPI 4.1 on two cores, 1 to 4 ranks. */
static const double started = 6e6, several = 2.5e6, saving = 2.5e6;
/* What the driver, cuDNN and cuBLASLt usually take on the host. */
static const double gpu_started = 0.9e9;

/* --- who runs where --------------------------------------------------------------------------- */

/* Rank 0 of ranks that need not be there. */
static void make_comm(struct dpt_plan *p, const struct dpt_backend *backend)
{
    struct dpt_plan_spec *spec = &p->spec;

    if (spec->node_ranks == 0 && backend->devices != NULL)
        spec->node_ranks = dpt_plan_gpu_node();
    if (spec->node_ranks == 0)
        spec->node_ranks = p->cores > 1 ? (int)p->cores : 1;
    if (spec->node_ranks > spec->ranks)
        spec->node_ranks = spec->ranks;
    p->nodes = (spec->ranks + spec->node_ranks - 1) / spec->node_ranks;
    p->comm.world.size = spec->ranks;
    p->comm.node.size = spec->node_ranks;
    p->comm.leaders.size = p->nodes;
    p->comm.nodes = p->nodes;
}

/* As dpt_trainer_open counts them. */
static int threads_of(const struct dpt_plan *p)
{
    const double share = p->cores / p->spec.node_ranks;

    return share < 2 ? 1 : (int)(share + 1e-6);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* What one rank reads of each step, for several steps ahead (data/sets/loader.c). */
static double read_ahead(const struct dpt_plan *p)
{
    double bytes = 0;

    for (size_t i = 0; i < DPT_SPLITS; i++) {
        const struct dpt_split *split = &p->t.data.split[i];
        const struct dpt_sampler *s = &split->sampler;
        int64_t batches, most;
        double samples, stored;

        if (!split->present || dpt_dataset_in_memory(split->set, &p->t.job->data, p->available))
            continue;
        batches = ((int64_t)s->global + s->micro - 1) / s->micro;
        most = (batches + p->spec.ranks - 1) / p->spec.ranks * s->micro;
        samples = fmin((double)most, s->global);
        stored = samples * (double)split->set->stride;
        bytes += dpt_loader_ahead(stored) * (stored + samples * sizeof(int64_t));
    }
    return bytes;
}

/* All samples that a node keeps. */
static double node_data(const struct dpt_plan *p)
{
    double bytes = 0;

    for (size_t i = 0; i < DPT_SPLITS; i++) {
        const struct dpt_dataset *set = &p->t.data.sets[i];

        if (set->samples == 0)
            continue;
        bytes += dpt_dataset_target_bytes(set);
        if (dpt_dataset_in_memory(set, &p->t.job->data, p->available))
            bytes += (double)set->samples * (double)set->stride;
    }
    return bytes;
}

/* What batch norms exchange, and what each micro-batch under way has for that. */
static double statistics_bytes(const struct dpt_plan *p)
{
    const struct dpt_trainer *t = &p->t;
    double widest = 0;

    for (int32_t i = 0; i < t->model.graph.n_nodes; i++)
        if (t->model.graph.nodes[i].whole_step)
            widest = fmax(widest, t->model.graph.nodes[i].in.c);
    return p->exchanged +
           (t->team.lockstep ? 2.0 * widest * sizeof(double) * t->team.threads * t->team.slots : 0);
}

/* Each thread's micro-batches under way (dpt_batch_buffer_open). */
static double input_bytes(const struct dpt_trainer *t)
{
    const struct dpt_dataset *set = t->data.train.set;
    const double size = (double)dpt_shape_size(&set->shape),
                 micro = t->data.train.sampler.micro * t->team.group;
    const double targets = set->target == DPT_TARGET_VECTOR ? set->target_width : 0;

    if (t->mesh.stages > 0) /* each slot's, and each thread's for an evaluation */
        return (t->team.gradient_workers * t->team.slots * (t->mesh.stage == 0) + t->team.threads) *
               micro * size * WORD;
    return t->team.threads * t->team.slots *
           (micro * (size * WORD + sizeof(int32_t) + sizeof(int64_t) + targets * WORD) +
            size * WORD);
}

/* Norms, losses of an evaluation, hashes. */
static double bookkeeping(const struct dpt_trainer *t)
{
    double most = 0;

    for (size_t i = 0; i < DPT_SPLITS; i++)
        most = fmax(most, t->data.split[i].present ? (double)t->data.split[i].sampler.samples : 0);
    return sizeof(double) * (2 * (double)dpt_graph_chunk_count(&t->model.graph) + 1 +
                             most / t->data.train.sampler.micro + 1 + t->comm->world.size);
}

static void sum_memory(struct dpt_plan *p)
{
    double rank = 0, first = 0, node = 0;

    for (int i = 0; i < DPT_PLAN_MEMORY; i++) {
        const struct dpt_plan_memory *m = &p->memory[i];

        rank += m->scope == DPT_PLAN_RANK ? m->bytes : 0;
        first += m->scope == DPT_PLAN_FIRST ? m->bytes : 0;
        node += m->scope == DPT_PLAN_NODE ? m->bytes : 0;
    }
    /* A rank's pages include those that it shares, since it reads all of them in an epoch. */
    p->other_rank = rank + node;
    p->first_rank = p->other_rank + first;
    p->node = rank * p->spec.node_ranks + first + node;
}

void dpt_plan_fill_memory(struct dpt_plan *p)
{
    const struct dpt_trainer *t = &p->t;
    const double arena = (double)dpt_trainer_graph(t)->arena * WORD;
    const double learned = (double)dpt_trainer_graph(t)->floats * WORD;
    const bool saves = t->job->checkpoint.every.unit != DPT_NEVER;
    const bool gpu = t->backend->devices != NULL;
    const struct dpt_program_bytes program = gpu ? (struct dpt_program_bytes){0} : p->program;
    const double libraries = dpt_process_memory("RssFile");
    const int owners = dpt_trainer_sharded(t) ? dpt_trainer_replicas(t)->world.size : 1;
    double gradients, shared;

    t->reduction.type->bytes(t, dpt_trainer_replicas(t)->node.size, &gradients, &shared);
    if (t->engine->on_device) { /* the host sums the gradients, but does not make them */
        gradients = p->spec.ranks > 1 ? arena : 0;
        shared = 0;
    }
    memcpy(
        p->memory,
        (const struct dpt_plan_memory[DPT_PLAN_MEMORY]){
            {"program", "base", DPT_PLAN_RANK,
             p->process + started + (p->spec.ranks > 1 ? several : 0) + (gpu ? gpu_started : 0)},
            {"weights", "weights", DPT_PLAN_RANK, arena},
            {"weights in other layouts", "copies",
             program.shares_copies && p->spec.node_ranks > 1 ? DPT_PLAN_NODE : DPT_PLAN_RANK,
             (double)program.copies},
            {"gradients", "gradients", DPT_PLAN_RANK, gradients},
            {"optimizer", "optimizer", dpt_trainer_shares_slots(t) ? DPT_PLAN_NODE : DPT_PLAN_RANK,
             t->arenas.slots * learned / owners},
            {"activations", "activations", DPT_PLAN_RANK, (double)program.values},
            {"workspace", "workspace", DPT_PLAN_RANK, (double)program.scratch},
            {"input buffers", "input", DPT_PLAN_RANK, input_bytes(t)},
            {"samples read ahead", "read_ahead", DPT_PLAN_RANK, read_ahead(p)},
            {"norms, losses", "books", DPT_PLAN_RANK, bookkeeping(t) + statistics_bytes(p)},
            {"checkpoint being saved", "saver", DPT_PLAN_FIRST,
             saves ? (double)p->checkpoint + saving : 0},
            {"libraries, shared", "libraries", DPT_PLAN_NODE, libraries},
            {"gradients, shared", "gradients_shared", DPT_PLAN_NODE, shared},
            {"samples", "samples", DPT_PLAN_NODE, node_data(p)},
        },
        sizeof p->memory);
    sum_memory(p);
}

/* --- the whole -------------------------------------------------------------------------------- */

enum dpt_status dpt_plan_measure(struct dpt_plan *p, int32_t micro, struct dpt_error *err)
{
    struct dpt_program_spec spec;

    p->t.team.slots = dpt_trainer_choose_slots(&p->t, micro);
    spec = dpt_trainer_program_spec(&p->t, micro);
    return p->t.backend->measure(&spec, &p->program, err);
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

enum dpt_status dpt_plan_open(struct dpt_plan *p, const struct dpt_job *job,
                              const struct dpt_plan_spec *spec, const char *job_text,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_backend *backend;
    struct dpt_state state;
    int64_t micros, replicas;
    cpu_set_t mine;

    memset(p, 0, sizeof *p);
    p->spec = *spec;
    p->available = dpt_memory_available();
    p->process = spec->process;
    p->cores = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
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
    DPT_TRY(dpt_plan_measure(p, p->t.data.train.sampler.micro, err));
    if (backend->devices != NULL)
        DPT_TRY(fit_device(p, err));
    state = dpt_trainer_state(&p->t, job_text);
    DPT_TRY(dpt_checkpoint_size(&state, job->output, &p->checkpoint, err));
    if (p->process <= 0)
        p->process = dpt_process_memory("VmHWM") - dpt_process_memory("RssFile");
    if (p->t.mesh.stages > 0)
        DPT_TRY(dpt_plan_stages(p, err));
    replicas = dpt_trainer_replicas(&p->t)->world.size;
    micros = (dpt_sampler_micro_batches(&p->t.data.train.sampler, 0) + replicas - 1) / replicas;
    if (replicas > 1)
        p->reduced = dpt_plan_rounds(p, micros) *
                     ((double)dpt_trainer_graph(&p->t)->arena + DPT_TAIL_WORDS) * WORD;
    if (p->t.team.lockstep) {
        dpt_lockstep_count(&p->t, &p->exchanges, &p->exchanged);
        p->exchanges *= 2; /* forward and backward */
    }
    dpt_plan_fill_memory(p);
    dpt_plan_fill_mesh(p);
out:
    return status;
}

void dpt_plan_close(struct dpt_plan *p)
{
    dpt_free(p->stages);
    dpt_trainer_close(&p->t);
}

/* The memory of a plan: of a rank, of rank 0 beside it, and of a node. */
#include <math.h>
#include <string.h>

#include "core/base/process.h"
#include "core/plan/plan.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"
#include "core/train/step/engine.h"
#include "core/train/step/runner.h"

enum { WORD = sizeof(float) };

/* Bytes that a process gains once it trains (MPI, threads and their stacks), where there are
 * several ranks, and on rank 0 where it writes checkpoints, beside their own bytes: measured with
 * Open MPI 4.1 on two cores, 1 to 4 ranks. */
static const double started = 6e6, several = 2.5e6, saving = 2.5e6;
/* What the driver, cuDNN and cuBLASLt usually take on the host. */
static const double gpu_started = 0.9e9;

/* What one rank reads of each step, for several steps ahead (data/sets/loader.c). */
static double read_ahead(const struct dpt_plan *p)
{
    const int ranks = dpt_trainer_replicas(&p->t)->world.size;
    double bytes = 0;

    if (p->t.mesh.stage > 0) /* it takes labels alone */
        return 0;
    for (size_t i = 0; i < DPT_SPLITS; i++) {
        const struct dpt_split *split = &p->t.data.split[i];
        const struct dpt_sampler *s = &split->sampler;
        int64_t batches, most;
        double samples, stored;

        if (!split->present || dpt_dataset_in_memory(split->set, &p->t.job->data, p->available))
            continue;
        batches = ((int64_t)s->global + s->micro - 1) / s->micro;
        most = (batches + ranks - 1) / ranks * s->micro;
        samples = fmin((double)most, s->global) * dpt_batch_sources(&split->form);
        stored = samples * (double)split->set->bytes / (double)split->set->samples;
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
            bytes += (double)set->bytes;
    }
    return bytes;
}

/* What batch norms exchange, and what each micro-batch under way has for that. */
static double statistics_bytes(const struct dpt_plan *p)
{
    const struct dpt_trainer *t = &p->t;
    size_t all, one;

    dpt_step_exchange_room(t, &all, &one);
    return (double)(all + one * (size_t)(t->team.gradient_workers * t->team.in_flight)) *
           sizeof(double);
}

/* Each thread's micro-batches under way (dpt_batch_buffer_open). */
static double input_bytes(const struct dpt_trainer *t)
{
    const struct dpt_batch_form *form = &t->data.train.form;
    const double size = (double)dpt_batch_size(form),
                 micro = t->data.train.sampler.micro * t->team.group;
    const double targets = form->targets, scratch = (double)dpt_batch_scratch(form);

    /* Each thread has one, and the other slots have their own, without samples behind the first
     * stage. */
    const double others = t->team.gradient_workers * (t->team.in_flight - 1.0);
    const double said = sizeof(int32_t) + sizeof(int64_t) + targets * WORD;

    return (t->team.threads + others * (t->mesh.stage == 0)) * (micro * size + scratch) * WORD +
           (t->team.threads + others) * micro * said;
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
    const int owners = dpt_trainer_owners(t);
    const bool once = dpt_units_on_node(t);
    double gradients, shared, divided, told, sent;

    dpt_tensor_parallel_bytes(t, &divided, &told, &sent);
    told /= t->mesh.tensor; /* the parts of a layer have it together */
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
            {"weights", "weights", once ? DPT_PLAN_NODE : DPT_PLAN_RANK,
             once ? arena : dpt_units_room(t) * WORD},
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
            {"columns of divided layers", "divided", DPT_PLAN_RANK, divided},
            {"divided layers, shared", "divided_shared", DPT_PLAN_RANK, told},
            {"norms, losses", "books", DPT_PLAN_RANK, bookkeeping(t) + statistics_bytes(p)},
            {"checkpoint being saved", "saver", DPT_PLAN_FIRST,
             saves ? (dpt_trainer_streams(t) ? 0 : (double)p->checkpoint) + saving : 0},
            {"libraries, shared", "libraries", DPT_PLAN_NODE, p->libraries},
            {"gradients, shared", "gradients_shared", DPT_PLAN_NODE, shared},
            {"samples", "samples", DPT_PLAN_NODE, node_data(p)},
        },
        sizeof p->memory);
    sum_memory(p);
}

enum dpt_status dpt_plan_measure(struct dpt_plan *p, int32_t micro, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_program_spec spec;
    int64_t copies = 0;

    p->t.team.in_flight = dpt_step_in_flight(&p->t, micro);
    p->t.team.adds = dpt_step_choose_adds(&p->t, micro);
    spec = dpt_trainer_program_spec(&p->t, micro);
    DPT_TRY(p->t.backend->measure(&spec, &p->program, err));
    for (int k = 0; k < dpt_units_gathered(&p->t); k++) { /* those of one are there at a time */
        struct dpt_program_bytes unit;

        spec.first = p->t.units.node[k];
        spec.last = p->t.units.node[k + 1];
        DPT_TRY(p->t.backend->measure(&spec, &unit, err));
        copies = unit.copies > copies ? unit.copies : copies;
        p->program.copies = copies;
        p->program.shares_copies = false;
    }
out:
    return status;
}

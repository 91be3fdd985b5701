/* The memory of a plan: of a rank, of rank 0 beside it, and of a node. */
#include <math.h>
#include <string.h>

#include "core/base/process.h"
#include "core/plan/plan.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/parts.h"
#include "core/train/step/evaluate.h"
#include "core/train/step/runner.h"

enum { WORD = sizeof(float) };

/* Bytes that a process gains once it trains (MPI, threads and their stacks), if there are several
 * ranks, and on rank 0 if it writes checkpoints, beside their own bytes: measured with Open MPI 4.1
 * on two cores, 1 to 4 ranks. */
static const double started = 6e6, several = 2.5e6, saving = 2.5e6;
/* What the driver, cuDNN and cuBLASLt usually take on the host. */
static const double gpu_started = 0.9e9;

/* What one rank reads of each step, for several steps ahead (data/sets/loader.c). */
static double read_ahead(const struct dpt_plan *p)
{
    const int ranks = p->layout.replicas;
    double bytes = 0;

    if (p->stage->number > 0) /* later stages take labels alone */
        return 0;
    for (size_t i = 0; i < DPT_SPLITS; i++) {
        const struct dpt_split *split = &p->data.split[i];
        const struct dpt_sampler *s = &split->sampler;
        int64_t batches, most;
        double samples, stored;

        if (!split->present || dpt_dataset_in_memory(split->set, &p->job->data, p->available))
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
        const struct dpt_dataset *set = &p->data.sets[i];

        if (set->samples == 0)
            continue;
        bytes += dpt_dataset_target_bytes(set);
        if (dpt_dataset_in_memory(set, &p->job->data, p->available))
            bytes += (double)set->bytes;
    }
    return bytes;
}

/* What batch norms exchange, and what each micro-batch in flight has for that. */
static double statistics_bytes(const struct dpt_plan *p)
{
    size_t all, one;

    dpt_step_exchange_room(&p->layout, p->stage, &all, &one);
    return (double)(all + one * (size_t)(p->layout.gradient_workers * p->stage->in_flight)) *
           sizeof(double);
}

/* Each thread's micro-batches in flight (dpt_batch_buffer_open). */
static double input_bytes(const struct dpt_plan *p)
{
    const struct dpt_batch_form *form = &p->data.train.form;
    const double size = (double)dpt_batch_size(form), micro = p->layout.micro * p->layout.at_once;
    const double targets = form->targets, scratch = (double)dpt_batch_scratch(form);

    /* Each thread has one, and the other slots have their own, without samples after the first
     * stage. */
    const double others = p->layout.gradient_workers * (p->stage->in_flight - 1.0);
    const double said = sizeof(int32_t) + sizeof(int64_t) + targets * WORD;

    return (p->layout.threads + others * (p->stage->number == 0)) * (micro * size + scratch) *
               WORD +
           (p->layout.threads + others) * micro * said;
}

/* Norms, losses of an evaluation, hashes. */
static double bookkeeping(const struct dpt_plan *p)
{
    double most = 0;

    for (size_t i = 0; i < DPT_SPLITS; i++)
        most = fmax(most, p->data.split[i].present ? (double)p->data.split[i].sampler.samples : 0);
    return sizeof(double) *
           (2 * (double)dpt_graph_chunk_count(&p->model.graph) + 1 +
            fmin(most / p->data.train.sampler.micro + 1, DPT_EVALUATION_SUMS) + p->layout.ranks);
}

/* Adds up what a rank touches. Its pages include those that it shares, since it reads all of them
 * in an epoch. */
static void sum_memory(struct dpt_plan *p)
{
    double own = 0, shared = 0;

    for (int i = 0; i < DPT_PLAN_MEMORY; i++) {
        const struct dpt_plan_memory *m = &p->memory[i];

        own += m->scope == DPT_PLAN_RANK ? m->bytes : 0;
        shared += m->scope == DPT_PLAN_NODE || m->scope == DPT_PLAN_ONCE ? m->bytes : 0;
    }
    p->other_rank = own + shared;
}

void dpt_plan_fill_memory(struct dpt_plan *p)
{
    const struct dpt_layout *l = &p->layout;
    const struct dpt_layout_stage *stage = p->stage;
    const double arena = (double)stage->graph.arena * WORD;
    const double learned = (double)stage->graph.floats * WORD;
    const bool saves = p->job->checkpoint.every.unit != DPT_NEVER;
    const bool gpu = p->backend->devices != NULL;
    const struct dpt_program_bytes program = gpu ? (struct dpt_program_bytes){0} : p->program;
    /* A node's ranks have one arena of weights, or of them and the slots. */
    const bool shares = dpt_layout_shares_state(l, stage);
    const bool once = shares || (l->sliced && !l->by_messages);
    double gradients, shared, divided, told, sent;

    dpt_tensor_parallel_bytes(l, stage, &divided, &told, &sent);
    told /= l->tensor; /* the parts of a layer have it together */
    dpt_gradient_reduction_choose(l)->bytes(l, stage, &gradients, &shared);
    if (l->on_device) { /* at most the host sums the gradients, and does not make them */
        gradients = p->spec.ranks > 1 && p->by_host != NULL ? arena : 0;
        shared = 0;
    }
    memcpy(
        p->memory,
        (const struct dpt_plan_memory[DPT_PLAN_MEMORY]){
            {"program", "base", DPT_PLAN_OTHER, DPT_PLAN_RANK,
             p->process + started + (p->spec.ranks > 1 ? several : 0) + (gpu ? gpu_started : 0)},
            {"weights", "weights", DPT_PLAN_WEIGHTS, once ? DPT_PLAN_NODE : DPT_PLAN_RANK,
             once ? arena : dpt_layout_parameters(l, stage) * WORD},
            {"weights of a unit", "weights_unit", DPT_PLAN_WEIGHTS, DPT_PLAN_NODE,
             l->by_messages ? dpt_layout_unit(l, stage) * WORD : 0},
            {"weights in other layouts", "copies", DPT_PLAN_WEIGHTS,
             program.shares_copies && p->spec.node_ranks > 1 ? DPT_PLAN_NODE : DPT_PLAN_RANK,
             (double)program.copies},
            {"gradients", "gradients", DPT_PLAN_GRADIENTS, DPT_PLAN_RANK, gradients},
            {"optimizer", "optimizer", DPT_PLAN_OPTIMIZER, shares ? DPT_PLAN_NODE : DPT_PLAN_RANK,
             l->slots * learned / l->owners},
            {"activations", "activations", DPT_PLAN_VALUES, DPT_PLAN_RANK, (double)program.values},
            {"workspace", "workspace", DPT_PLAN_VALUES, DPT_PLAN_RANK, (double)program.scratch},
            {"input buffers", "input", DPT_PLAN_VALUES, DPT_PLAN_RANK, input_bytes(p)},
            {"samples read ahead", "read_ahead", DPT_PLAN_VALUES, DPT_PLAN_RANK, read_ahead(p)},
            {"columns of divided layers", "divided", DPT_PLAN_WEIGHTS, DPT_PLAN_RANK, divided},
            {"divided layers, shared", "divided_shared", DPT_PLAN_VALUES, DPT_PLAN_RANK, told},
            {"norms, losses", "books", DPT_PLAN_OTHER, DPT_PLAN_RANK,
             bookkeeping(p) + statistics_bytes(p)},
            /* The copies of what ranks write themselves are made where memory is free. */
            {"checkpoint being saved", "saver", DPT_PLAN_OTHER, DPT_PLAN_FIRST,
             saves ? (l->streams ? 0 : (double)p->checkpoint) + saving : 0},
            {"libraries, shared", "libraries", DPT_PLAN_OTHER, DPT_PLAN_ONCE, p->libraries},
            {"gradients, shared", "gradients_shared", DPT_PLAN_GRADIENTS, DPT_PLAN_NODE, shared},
            {"samples", "samples", DPT_PLAN_OTHER, DPT_PLAN_ONCE, node_data(p)},
        },
        sizeof p->memory);
    sum_memory(p);
}

enum dpt_status dpt_plan_measure(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int gathered = p->layout.by_messages ? p->stage->units : 0;
    struct dpt_program_spec spec =
        dpt_layout_program(&p->layout, p->stage, &p->model.loss, p->pool);
    int64_t copies = 0;

    p->adds = p->layout.adds;
    DPT_TRY(p->backend->measure(&spec, &p->program, err));
    for (int k = 0; k < gathered; k++) { /* only one unit's copies are there at a time */
        struct dpt_program_bytes unit;

        spec.first = p->stage->node[k];
        spec.last = p->stage->node[k + 1];
        DPT_TRY(p->backend->measure(&spec, &unit, err));
        copies = unit.copies > copies ? unit.copies : copies;
        p->program.copies = copies;
        p->program.shares_copies = false;
    }
out:
    return status;
}

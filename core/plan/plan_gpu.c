#include "core/plan/plan.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/backend/operation.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/choose.h"

enum { WORD = sizeof(float), ROOMS = 3 };

// clang-format off
static const struct dpt_gpu_type gpu_types[] = {
    {"v100", "Tesla V100-SXM2-32GB", 34.1e9, 0.90e12,
     {15.7e12, 0, 0, 125e12}},
    {"t4", "Tesla T4", 15.8e9, 0.32e12,
     {8.1e12, 0, 0, 65e12}},
    {"a100", "NVIDIA A100-SXM4-80GB", 85.0e9, 2.04e12,
     {19.5e12, 156e12, 312e12, 312e12}},
    {"a10", "NVIDIA A10", 23.7e9, 0.60e12,
     {31.2e12, 62.5e12, 125e12, 125e12}},
    {"l4", "NVIDIA L4", 23.7e9, 0.30e12,
     {30.3e12, 60e12, 121e12, 121e12}},
    {"l40s", "NVIDIA L40S", 47.7e9, 0.864e12,
     {91.6e12, 183e12, 362e12, 362e12}},
    {"h100", "NVIDIA H100 80GB HBM3", 85.0e9, 3.35e12,
     {66.9e12, 494e12, 989e12, 989e12}},
    {"h200", "NVIDIA H200", 150.1e9, 4.8e12,
     {66.9e12, 494e12, 989e12, 989e12}},
    {"b200", "NVIDIA B200", 191e9, 8.0e12,
     {75e12, 1.1e15, 2.25e15, 2.25e15}},
    {0},
};
// clang-format on

/* Bytes: the context, the kernels and what libraries keep there, and on the host. */
static const double context = 0.6e9;
/* The parts of the peaks that kernels reach; seconds to start a kernel within a graph, and a step.
 * */
static const double reached[DPT_PRECISIONS] = {0.75, 0.5, 0.5, 0.5}, reached_bytes = 0.75;
static const double start = 2.5e-6, a_step = 15e-6;
/* Bytes per second between host and device, and of a rank's part of a sum in the host's memory; the
 * part of forward and backward that hides the sum of the buckets that are ready. */
static const double bus = 20e9, host_sum = 8e9, beside = 0.6;
/* The share of the device's memory that the data set leaves free (core/backend/cuda). */
static const double margin = 1.0 / 16;

/* --- which ------------------------------------------------------------------------------------ */

const struct dpt_gpu_type *dpt_gpu_type_find(const char *key)
{
    for (const struct dpt_gpu_type *type = gpu_types; type->key != NULL; type++)
        if (strcasecmp(type->key, key) == 0)
            return type;
    return NULL;
}

/* The row whose key ends a word of a driver's name, so that "NVIDIA L40" is not taken for an L4. */
static const struct dpt_gpu_type *find_name(const char *name)
{
    for (const struct dpt_gpu_type *type = gpu_types; type->key != NULL; type++) {
        const char *at = strcasestr(name, type->key);

        if (at != NULL && !isalnum((unsigned char)at[strlen(type->key)]))
            return type;
    }
    return NULL;
}

/* Guesses the speed of a GPU that is in no table by its size. */
static void guess_flops(const struct dpt_device_info *info, struct dpt_gpu_type *gpu)
{
    const int cores = info->major < 8 || (info->major == 8 && info->minor == 0) ? 64 : 128;

    gpu->flops[DPT_PRECISION_FP32] = 2 * 1.6e9 * cores * info->multiprocessors;
    gpu->flops[DPT_PRECISION_TF32] = 2 * gpu->flops[DPT_PRECISION_FP32];
    gpu->flops[DPT_PRECISION_BF16] = 4 * gpu->flops[DPT_PRECISION_FP32];
    gpu->flops[DPT_PRECISION_FP16] = gpu->flops[DPT_PRECISION_BF16];
}

/* The precision that a GPU uses for a requested one. */
static int precision_at(const struct dpt_gpu_type *gpu, int precision)
{
    while (precision > 0 && gpu->flops[precision] <= 0)
        precision--;
    return precision;
}

double dpt_gpu_peak(const struct dpt_gpu_type *gpu, int precision)
{
    return gpu->flops[precision_at(gpu, precision)];
}

void dpt_gpu_describe(const struct dpt_device_info *info, struct dpt_gpu_type *gpu)
{
    const struct dpt_gpu_type *type = find_name(info->name);

    *gpu = type != NULL ? *type : *dpt_gpu_type_find("h200");
    if (type == NULL && info->multiprocessors > 0)
        guess_flops(info, gpu);
    memcpy(gpu->name, info->name, sizeof gpu->name);
    gpu->memory = (double)info->memory;
    if (info->bandwidth > 0)
        gpu->bandwidth = info->bandwidth;
}

void dpt_plan_gpu_choose(struct dpt_plan *p)
{
    const struct dpt_gpu_type *type = p->spec.gpu;
    struct dpt_device_info info;
    struct dpt_error ignored;

    p->gpu_here = type == NULL && dpt_choose_count(DPT_DEVICE_CUDA) > 0 &&
                  p->backend->devices->info(0, &info, &ignored) == DPT_OK;
    p->gpu = type != NULL ? *type : *dpt_gpu_type_find("h200");
    if (p->gpu_here)
        dpt_gpu_describe(&info, &p->gpu);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A step's samples as they come from the host. */
static double step_samples(const struct dpt_plan *p)
{
    const struct dpt_sampler *s = &p->data.train.sampler;
    const double micros = ceil((double)s->global / s->micro);
    const double rows = ceil(micros / p->spec.ranks) * s->micro;

    return rows * (double)dpt_shape_size(&p->data.train.set->shape) * WORD;
}

void dpt_plan_gpu_memory(struct dpt_plan *p)
{
    const struct dpt_dataset *set = p->data.train.set;
    const double arena = (double)p->stage->graph.arena * WORD;
    const double learned = (double)p->stage->graph.floats * WORD;
    const double copies = fmax(0, (double)p->program.copies - 2 * arena);
    const double stored = (double)set->bytes;
    /* Else the host updates, and sends one micro-batch after the other. */
    const bool steps = p->layout.on_device;
    const double slots = steps ? p->layout.slots * learned : 0;
    const double sum = context + 2 * arena + copies + slots + (double)p->program.values +
                       (double)p->program.scratch;

    /* The device adds gradients if there is memory for that. */
    const bool adds = sum + (double)p->program.sums + margin * p->gpu.memory <= p->gpu.memory;
    const double sums = adds ? (double)p->program.sums : 0;

    if (!adds)
        p->adds = p->layout.at_once;
    p->stored = steps && !set->files && dpt_dataset_in_memory(set, &p->job->data, p->available) &&
                sum + stored + margin * p->gpu.memory <= p->gpu.memory;
    memcpy(
        p->device,
        (const struct dpt_plan_memory[DPT_PLAN_DEVICE]){
            {"context and libraries", "context", DPT_PLAN_OTHER, DPT_PLAN_RANK, context},
            {"weights", "weights", DPT_PLAN_WEIGHTS, DPT_PLAN_RANK, arena},
            {"weights in other layouts", "copies", DPT_PLAN_WEIGHTS, DPT_PLAN_RANK, copies},
            {"gradients", "gradients", DPT_PLAN_GRADIENTS, DPT_PLAN_RANK, arena + sums},
            {"optimizer", "optimizer", DPT_PLAN_OPTIMIZER, DPT_PLAN_RANK, slots},
            {"activations", "activations", DPT_PLAN_VALUES, DPT_PLAN_RANK,
             (double)p->program.values},
            {"workspace", "workspace", DPT_PLAN_VALUES, DPT_PLAN_RANK, (double)p->program.scratch},
            {"steps ahead", "input", DPT_PLAN_VALUES, DPT_PLAN_RANK,
             steps && !p->stored ? ROOMS * step_samples(p) : 0},
            {"samples", "samples", DPT_PLAN_OTHER, DPT_PLAN_RANK, p->stored ? stored : 0},
        },
        sizeof p->device);
    p->device_bytes = 0;
    for (int i = 0; i < DPT_PLAN_DEVICE; i++)
        p->device_bytes += p->device[i].bytes;
}

/* --- time ------------------------------------------------------------------------------------- */

static double flops_of(const struct dpt_plan *p)
{
    const int precision = p->job->device.precision;

    return dpt_gpu_peak(&p->gpu, precision) * reached[precision_at(&p->gpu, precision)];
}

/* Seconds of a layer's pass. */
static double pass(const struct dpt_plan *p, const struct dpt_cost *cost, double bytes_part)
{
    const double bytes = cost->move[0].bytes * bytes_part + cost->move[1].bytes;

    return start + fmax(cost->flop / flops_of(p), bytes / p->gpu.bandwidth / reached_bytes);
}

double dpt_plan_gpu_micro(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                          int computes)
{
    const bool half = p->job->device.precision >= DPT_PRECISION_BF16;
    const double part = half ? 0.5 : 1;
    const struct dpt_workload all = dpt_workload_of(&p->layout, p->data.train.set),
                              one = dpt_workload_alone(&all, micro);
    double seconds = 0;

    for (int32_t i = first; i < last; i++) {
        const struct dpt_graph_node *node = &one.graph->nodes[i];
        const bool own =
            dpt_graph_updates(one.graph, node->weight) || dpt_graph_updates(one.graph, node->bias);
        const bool trains = dpt_graph_wants_dx(one.graph, i);
        const struct dpt_cost forward = dpt_cost_of_nodes(&one, &i, 1, DPT_COST_FORWARD, trains);
        const struct dpt_cost back = dpt_cost_of_nodes(&one, &i, 1, DPT_COST_BACKWARD, trains);

        if (dpt_operation_of(node)->traits & DPT_FUSED)
            continue;
        if (computes & DPT_COMPUTES_FORWARD)
            seconds += pass(p, &forward, part);
        if (computes & DPT_COMPUTES_BACK && (own || trains))
            seconds += pass(p, &back, part) + (own && trains ? start : 0);
    }
    return seconds + (computes & DPT_COMPUTES_BACK ? 2 * start : 0);
}

void dpt_plan_gpu_step(const struct dpt_plan *p, const struct dpt_layout *l, int64_t micros,
                       struct dpt_plan_step *step)
{
    const double n = (double)p->stage->graph.floats, arena = n * WORD;
    const double rows = (double)micros * l->micro;
    const double sample = (double)dpt_shape_size(&p->data.train.set->shape) * WORD;
    const int nodes = (l->replicas + l->node_replicas - 1) / l->node_replicas;
    const double memory = p->gpu.bandwidth * reached_bytes;
    const bool steps = p->layout.on_device;
    double hidden, network;

    step->data = p->stored ? 0 : fmax(0, rows * sample / bus - step->compute);
    hidden = steps ? beside * step->compute : 0;
    if (l->replicas > 1) {
        /* To the host and back, and each rank's slice of the node's sum; a CUDA-aware MPI may be
         * faster. */
        step->local = 2 * arena / bus + (l->node_replicas > 1 ? 3 * arena / host_sum : 0);
        network = dpt_fabric_allreduce(&p->spec.fabric, n, nodes, 3 * WORD / host_sum) *
                  dpt_gradient_reduction_choose(&p->layout)->sends / 2;
        step->local -= fmin(step->local, hidden);
        hidden = fmax(0, hidden - 2 * arena / bus);
        step->network += network - fmin(network, hidden);
    }
    if (!steps) { /* the host gets the device's sums of gradients, and adds them up */
        const double n_sums = ceil((double)micros / p->adds);

        step->local +=
            n_sums * (arena / bus + 2 * arena / host_sum) + (n_sums - 1) * 3 * arena / host_sum;
        /* Gathered weights go to the device, too. */
        step->local += p->stages[p->stage->number].traffic.kind[DPT_ACTION_GATHER] / bus;
    }
    if (steps)
        step->update = ((4 + 2 * p->layout.slots) * arena + 2 * arena) / memory + 4 * start;
    else /* the host updates what a rank owns, and the device gets the weights */
        step->update =
            (3 + 2 * p->layout.slots) * arena / p->layout.owners / host_sum + arena / bus;
    step->total = a_step + step->compute + step->wait + step->between + step->data + step->local +
                  step->network + step->update;
}

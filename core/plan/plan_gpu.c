#include "core/plan/plan_gpu.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/backend/operation.h"
#include "core/train/layout/shares.h"
#include "core/train/setup/choose.h"

enum { WORD = sizeof(float), ROOMS = 3 };

/* PCIe's 16 lanes, by its generation: 8, 16 and 32 GT/s, of 130 bits 128 data. */
#define PCIE3 15.75e9
#define PCIE4 31.5e9
#define PCIE5 63e9

// clang-format off
static const struct dpt_gpu_type gpu_types[] = {
    {"v100", "Tesla V100-SXM2-32GB", 34.1e9, 0.90e12, 150e9, PCIE3,
     {15.7e12, 0, 0, 125e12}},
    {"t4", "Tesla T4", 15.8e9, 0.32e12, 0, PCIE3,
     {8.1e12, 0, 0, 65e12}},
    {"a100", "NVIDIA A100-SXM4-80GB", 85.0e9, 2.04e12, 300e9, PCIE4,
     {19.5e12, 156e12, 312e12, 312e12}},
    {"a10", "NVIDIA A10", 23.7e9, 0.60e12, 0, PCIE4,
     {31.2e12, 62.5e12, 125e12, 125e12}},
    {"l4", "NVIDIA L4", 23.7e9, 0.30e12, 0, PCIE4,
     {30.3e12, 60e12, 121e12, 121e12}},
    {"l40s", "NVIDIA L40S", 47.7e9, 0.864e12, 0, PCIE4,
     {91.6e12, 183e12, 362e12, 362e12}},
    {"h100", "NVIDIA H100 80GB HBM3", 85.0e9, 3.35e12, 450e9, PCIE5,
     {66.9e12, 494e12, 989e12, 989e12}},
    {"h200", "NVIDIA H200", 150.1e9, 4.8e12, 450e9, PCIE5,
     {66.9e12, 494e12, 989e12, 989e12}},
    {"b200", "NVIDIA B200", 191e9, 8.0e12, 900e9, PCIE5,
     {75e12, 1.1e15, 2.25e15, 2.25e15}},
    {0},
};
// clang-format on

/* Bytes: the context, the kernels and what libraries keep there, and NCCL for its connections. */
static const double context = 0.6e9, connections = 0.3e9;
/* The parts of the peaks that kernels reach. */
static const double reached[DPT_PRECISIONS] = {0.75, 0.5, 0.5, 0.5};
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

/* Guesses the speed of a GPU that is in no table by its size, and its link by its age. */
static void guess(const struct dpt_device_info *info, struct dpt_gpu_type *gpu)
{
    const int cores = info->major < 8 || (info->major == 8 && info->minor == 0) ? 64 : 128;

    gpu->flops[DPT_PRECISION_FP32] = 2 * 1.6e9 * cores * info->multiprocessors;
    gpu->flops[DPT_PRECISION_TF32] = 2 * gpu->flops[DPT_PRECISION_FP32];
    gpu->flops[DPT_PRECISION_BF16] = 4 * gpu->flops[DPT_PRECISION_FP32];
    gpu->flops[DPT_PRECISION_FP16] = gpu->flops[DPT_PRECISION_BF16];
    gpu->nvlink = 0;
    gpu->pcie = info->major < 8 ? PCIE3 : info->major == 8 ? PCIE4 : PCIE5;
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
        guess(info, gpu);
    if (strcasestr(info->name, "PCIe") != NULL || strstr(info->name, " NVL") != NULL)
        gpu->nvlink = 0; /* cards, of which bridges join a few at most */
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

static bool has_links(const struct dpt_device_links *links)
{
    struct dpt_error missing;
    void *link;
    int version;

    if (links == NULL || links->open(&link, &version, &missing) != DPT_OK)
        return false;
    links->close(link);
    return true;
}

void dpt_plan_gpu_links(struct dpt_plan *p)
{
    p->by_host = NULL;
    if (p->job->comm.transport == DPT_TRANSPORT_MPI)
        p->by_host = "comm.transport: mpi";
    else if (p->gpu_here && p->spec.node_ranks > dpt_choose_count(DPT_DEVICE_CUDA))
        p->by_host = "ranks share a GPU";
    else if (p->gpu_here && !has_links(p->backend->devices->links))
        p->by_host = "NCCL is not here";
    p->linked = p->by_host == NULL;
}

void dpt_plan_gpu_transport(struct dpt_plan *p)
{
    if (p->linked && !p->layout.on_device)
        p->by_host = "the host takes part in the steps";
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A step's samples as they come from the host; stages after the first get none. */
static double step_samples(const struct dpt_plan *p)
{
    const struct dpt_sampler *s = &p->data.train.sampler;
    const double micros = ceil((double)s->global / s->micro);
    const double rows = ceil(micros / p->layout.replicas) * s->micro;

    return p->stage->number > 0 ? 0
                                : rows * (double)dpt_shape_size(&p->data.train.set->shape) * WORD;
}

void dpt_plan_gpu_memory(struct dpt_plan *p)
{
    const struct dpt_dataset *set = p->data.train.set;
    const struct dpt_layout *l = &p->layout;
    const double whole = (double)p->stage->graph.arena * WORD;
    const double learned = (double)p->stage->graph.floats * WORD;
    /* Of units two are there, and a slice of all. */
    const double unit = dpt_layout_unit(l, p->stage) * WORD;
    const double arena = l->sliced_there ? 2 * unit + whole - learned : whole;
    const double slice = l->sliced_there ? learned / l->replicas : 0;
    const double copies = fmax(0, (double)p->program.copies - 2 * arena);
    const double stored = (double)set->bytes;
    /* Else the host updates, and sends one micro-batch after the other. */
    const bool steps = p->layout.on_device;
    /* Ranks that divide the slots have room for what they gather by a call. */
    const double piece = l->updaters > 1 ? fmin(l->sliced_there ? unit : whole, DPT_GPU_CALL) : 0;
    const double slots = steps ? p->layout.slots * learned / p->layout.updaters + piece : 0;
    const bool nccl = p->spec.ranks > 1 && p->by_host == NULL;
    const double libraries = context + (nccl ? connections : 0);
    const double sum = libraries + 2 * (arena + slice) + copies + slots +
                       (double)p->program.values + (double)p->program.scratch;

    /* The device adds gradients if there is memory for that. */
    const bool adds = sum + (double)p->program.sums + margin * p->gpu.memory <= p->gpu.memory;
    double sums = adds ? (double)p->program.sums : 0;

    if (dpt_plan_gpu_along_tree(&p->layout))
        sums += dpt_share_waiting(&p->layout) * whole /
                (p->layout.round_robin ? p->layout.replicas : 1);

    if (!adds)
        p->adds = p->layout.at_once;
    p->stored = steps && p->stage->number == 0 && !set->files &&
                dpt_dataset_in_memory(set, &p->job->data, p->available) &&
                sum + stored + margin * p->gpu.memory <= p->gpu.memory;
    memcpy(
        p->device,
        (const struct dpt_plan_memory[DPT_PLAN_DEVICE]){
            {"context and libraries", "context", DPT_PLAN_OTHER, DPT_PLAN_RANK, libraries},
            {"weights", "weights", DPT_PLAN_WEIGHTS, DPT_PLAN_RANK, arena + slice},
            {"weights in other layouts", "copies", DPT_PLAN_WEIGHTS, DPT_PLAN_RANK, copies},
            {"gradients", "gradients", DPT_PLAN_GRADIENTS, DPT_PLAN_RANK, arena + slice + sums},
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

    return DPT_GPU_START +
           fmax(cost->flop / flops_of(p), bytes / p->gpu.bandwidth / DPT_GPU_REACHED_BYTES);
}

/* Seconds of a node's passes (DPT_COMPUTES_) on a micro-batch. */
static double node_seconds(const struct dpt_plan *p, const struct dpt_workload *one, int32_t i,
                           int computes)
{
    const double part = p->job->device.precision >= DPT_PRECISION_BF16 ? 0.5 : 1;
    const struct dpt_graph_node *node = &one->graph->nodes[i];
    const bool own =
        dpt_graph_updates(one->graph, node->weight) || dpt_graph_updates(one->graph, node->bias);
    const bool trains = dpt_graph_wants_dx(one->graph, i);
    const struct dpt_cost forward = dpt_cost_of_nodes(one, &i, 1, DPT_COST_FORWARD, trains);
    const struct dpt_cost back = dpt_cost_of_nodes(one, &i, 1, DPT_COST_BACKWARD, trains);
    double seconds = 0;

    if (dpt_operation_of(node)->traits & DPT_FUSED)
        return 0;
    if (computes & DPT_COMPUTES_FORWARD)
        seconds += pass(p, &forward, part);
    if (computes & DPT_COMPUTES_BACK && (own || trains))
        seconds += pass(p, &back, part) + (own && trains ? DPT_GPU_START : 0);
    return seconds;
}

static struct dpt_workload alone(const struct dpt_plan *p, int32_t micro)
{
    const struct dpt_workload all = dpt_workload_of(&p->layout, p->data.train.set);

    return dpt_workload_alone(&all, micro);
}

double dpt_plan_gpu_node(const struct dpt_plan *p, int32_t i, int32_t micro, int computes)
{
    const struct dpt_workload one = alone(p, micro);

    return node_seconds(p, &one, i, computes);
}

double dpt_plan_gpu_micro(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                          int computes)
{
    const struct dpt_workload one = alone(p, micro);
    double seconds = computes & DPT_COMPUTES_BACK ? 2 * DPT_GPU_START : 0;

    for (int32_t i = first; i < last; i++)
        seconds += node_seconds(p, &one, i, computes);
    return seconds;
}

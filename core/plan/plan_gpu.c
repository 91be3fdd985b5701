#include "core/plan/plan.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/backend/operation.h"
#include "core/train/layout/shares.h"
#include "core/train/reduction/gradient_reduction.h"
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
/* The parts of the peaks that kernels reach; seconds to start a kernel within a graph, and a step.
 * */
static const double reached[DPT_PRECISIONS] = {0.75, 0.5, 0.5, 0.5}, reached_bytes = 0.75;
static const double start = 2.5e-6, a_step = 15e-6;
/* Bytes per second of a rank's part of a sum in the host's memory. */
static const double host_sum = 8e9;
/*
 * Of links nothing is measured here. What copies and sums of many bytes reach of a link is what
 * nccl-tests are published to: about 360 of an H100's 450 GB/s. A call of NCCL, of so many bytes at
 * most, takes some microseconds to start, and while it goes on beside backward, its blocks keep
 * about so much of the multiprocessors.
 */
static const double reached_link = 0.8, call_start = 15e-6, call_takes = 0.125;
static const double call_bytes = 32 << 20;
/* Bytes from which on a bucket ends with a node. */
static const double bucket_bytes = 4 << 20;
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

/* --- sums along the tree ---------------------------------------------------------------------- */

/* Whether the devices sum along the tree of core/comm/sums/tree.h. */
static bool along_tree(const struct dpt_layout *l)
{
    return l->on_device && dpt_layout_along_tree(l);
}

/* Whether the ranks of a node merge their blocks before these go to other nodes. */
static bool merges_on_nodes(const struct dpt_layout *l)
{
    return l->node_replicas > 1 && dpt_layout_nodes(l) > 1 && l->replicas % l->node_replicas == 0;
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
    const double arena = (double)p->stage->graph.arena * WORD;
    const double learned = (double)p->stage->graph.floats * WORD;
    const double copies = fmax(0, (double)p->program.copies - 2 * arena);
    const double stored = (double)set->bytes;
    /* Else the host updates, and sends one micro-batch after the other. */
    const bool steps = p->layout.on_device;
    /* Ranks that divide the slots have room for what they gather by a call. */
    const double piece = p->layout.updaters > 1 ? fmin(arena, call_bytes) : 0;
    const double slots = steps ? p->layout.slots * learned / p->layout.updaters + piece : 0;
    const bool nccl = p->spec.ranks > 1 && p->by_host == NULL;
    const double libraries = context + (nccl ? connections : 0);
    const double sum = libraries + 2 * arena + copies + slots + (double)p->program.values +
                       (double)p->program.scratch;

    /* The device adds gradients if there is memory for that. */
    const bool adds = sum + (double)p->program.sums + margin * p->gpu.memory <= p->gpu.memory;
    double sums = adds ? (double)p->program.sums : 0;

    if (along_tree(&p->layout))
        sums += dpt_share_waiting(&p->layout) * arena /
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
        seconds += pass(p, &back, part) + (own && trains ? start : 0);
    return seconds;
}

static struct dpt_workload alone(const struct dpt_plan *p, int32_t micro)
{
    const struct dpt_workload all = dpt_workload_of(&p->layout, p->data.train.set);

    return dpt_workload_alone(&all, micro);
}

double dpt_plan_gpu_micro(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                          int computes)
{
    const struct dpt_workload one = alone(p, micro);
    double seconds = computes & DPT_COMPUTES_BACK ? 2 * start : 0;

    for (int32_t i = first; i < last; i++)
        seconds += node_seconds(p, &one, i, computes);
    return seconds;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* The link between GPUs of a node, and its rate. */
static enum dpt_plan_link node_link(const struct dpt_plan *p, double *rate)
{
    *rate = p->gpu.nvlink > 0 ? p->gpu.nvlink : p->gpu.pcie;
    return p->gpu.nvlink > 0 ? DPT_PLAN_LINK_NVLINK : DPT_PLAN_LINK_PCIE;
}

/* The link that limits NCCL's sums over the ranks of a layout, and what they reach of it. */
static enum dpt_plan_link slowest_link(const struct dpt_plan *p, const struct dpt_layout *l,
                                       double *rate)
{
    const double network = p->spec.fabric.bandwidth, pcie = p->gpu.pcie * l->node_replicas;
    enum dpt_plan_link link = node_link(p, rate);

    if (dpt_layout_nodes(l) > 1 && (l->node_replicas == 1 || fmin(network, pcie) < *rate)) {
        link = network < pcie ? DPT_PLAN_LINK_NETWORK : DPT_PLAN_LINK_PCIE;
        *rate = fmin(network, pcie); /* all GPUs of a node send at once */
    }
    *rate *= reached_link;
    return link;
}

double dpt_plan_gpu_message(const struct dpt_plan *p, const struct dpt_layout *l, bool crosses,
                            double bytes)
{
    const struct dpt_fabric *f = &p->spec.fabric;
    double rate;

    node_link(p, &rate);
    if (crosses) /* those of all replicas that a node has go at once */
        rate = fmin(f->bandwidth / l->node_replicas, p->gpu.pcie);
    return call_start + (crosses ? f->latency + 2 * f->overhead : 0) +
           bytes / (rate * reached_link);
}

/* What linked ranks do with a gradient or weights: the bytes that each sends of every byte, and the
 * messages between nodes that wait for one another. */
struct exchange {
    double sent, messages, most; /* most: bytes of a call */
    double before;               /* the bytes that each sends on its node before that */
};
/* Of the buckets of a gradient; of the weights, with shards; and of few numbers. */
enum { OF_GRADIENT, OF_WEIGHTS, OF_FEW, EXCHANGES };

/* A sum goes up a tree and down again with a ring's bytes; NCCL's reduce-scatter and gathering go
 * around a ring. All weights are gathered by one call. */
static void find_exchanges(const struct dpt_plan *p, const struct dpt_layout *l,
                           struct exchange exchange[EXCHANGES])
{
    const double others = (l->replicas - 1.0) / l->replicas;
    const int nodes = dpt_layout_nodes(l);
    const struct exchange ring = {others, nodes - 1, call_bytes, 0},
                          sum = {2 * others, 2 * ceil(log2(nodes)), call_bytes, 0};
    struct exchange to_owners = ring;
    double rate;

    if (along_tree(l) && merges_on_nodes(l)) { /* what their node has goes on to the others */
        const bool network = slowest_link(p, l, &rate) == DPT_PLAN_LINK_NETWORK;

        to_owners.before = dpt_share_blocks(l, 1) * (1 - 1.0 / l->node_replicas);
        to_owners.sent = dpt_share_blocks(l, l->node_replicas) * (1 - 1.0 / nodes) /
                         (network ? 1 : l->node_replicas);
        to_owners.messages = 1;
    } else if (along_tree(l)) { /* they send their blocks, past each other also between nodes */
        const bool network = slowest_link(p, l, &rate) == DPT_PLAN_LINK_NETWORK;

        to_owners.sent *= dpt_share_blocks(l, 1) * (network ? l->node_replicas : 1);
        to_owners.messages = nodes > 1;
    }
    exchange[OF_WEIGHTS] = ring;
    exchange[OF_WEIGHTS].most = INFINITY;
    exchange[OF_FEW] = sum;
    if (l->updaters > 1)
        exchange[OF_GRADIENT] = to_owners;
    else if (along_tree(l))
        exchange[OF_GRADIENT] =
            (struct exchange){to_owners.sent + ring.sent, to_owners.messages + ring.messages,
                              call_bytes, to_owners.before};
    else
        exchange[OF_GRADIENT] = sum;
}

/* Seconds that so many floats take on each link: of linked devices by that exchange, else of their
 * sum in the hosts' memory. */
static void sum_seconds(const struct dpt_plan *p, const struct dpt_layout *l,
                        const struct exchange *exchange, double floats,
                        double seconds[DPT_PLAN_LINKS])
{
    const struct dpt_fabric *f = &p->spec.fabric;
    const double bytes = floats * WORD;

    memset(seconds, 0, DPT_PLAN_LINKS * sizeof *seconds);
    if (p->by_host == NULL) {
        double rate;
        const enum dpt_plan_link link = slowest_link(p, l, &rate);
        const double calls = fmax(1, ceil(bytes / exchange->most));
        const double call = call_start + exchange->messages * (f->latency + 2 * f->overhead);

        seconds[link] = calls * call + exchange->sent * bytes / rate;
        if (exchange->before > 0)
            seconds[node_link(p, &rate)] +=
                calls * call_start + exchange->before * bytes / rate / reached_link;
        return;
    }
    /* To the host and back, and each rank's slice of the node's sum; a CUDA-aware MPI may be
     * faster. */
    seconds[DPT_PLAN_LINK_PCIE] = 2 * bytes / p->gpu.pcie / reached_link;
    seconds[DPT_PLAN_LINK_MEMORY] = l->node_replicas > 1 ? 3 * bytes / host_sum : 0;
    seconds[DPT_PLAN_LINK_NETWORK] =
        dpt_fabric_allreduce(f, floats, dpt_layout_nodes(l), 3 * WORD / host_sum);
}

static double total(const double seconds[DPT_PLAN_LINKS])
{
    double all = 0;

    for (int i = 0; i < DPT_PLAN_LINKS; i++)
        all += seconds[i];
    return all;
}

/* Splits `left`, the part of a sum that nothing hides, which takes `seconds` on the links. */
static void add_sum(const struct dpt_plan *p, const struct dpt_layout *l,
                    const double seconds[DPT_PLAN_LINKS], double left, struct dpt_plan_step *step)
{
    const double all = total(seconds);
    double most = 0, between;

    for (int i = 0; i < DPT_PLAN_LINKS; i++) {
        /* Copies go both ways at once. */
        const double busy = seconds[i] / (p->by_host != NULL && i == DPT_PLAN_LINK_PCIE ? 2 : 1);

        step->link = busy > most ? (enum dpt_plan_link)i : step->link;
        most = fmax(most, busy);
    }
    between = p->by_host == NULL ? dpt_layout_nodes(l) > 1
              : all > 0          ? seconds[DPT_PLAN_LINK_NETWORK] / all
                                 : 0;
    step->network += left * between;
    step->local += left * (1 - between);
}

static void add_seconds(double all[DPT_PLAN_LINKS], const double seconds[DPT_PLAN_LINKS])
{
    for (int i = 0; i < DPT_PLAN_LINKS; i++)
        all[i] += seconds[i];
}

/* The sum of a step on the device: a bucket begins once backward of the last micro-batch is through
 * with its nodes, and each of copying down, summing and copying up takes one after another. Ranks
 * that divide the update gather the weights after it, beside nothing, and sum few numbers before it
 * twice: what they tell each other, and the norm. So do stages, whose sums begin when all of
 * backward has ended. rounds: so many are summed, each before the next begins. */
static void sum_buckets(const struct dpt_plan *p, const struct dpt_layout *l, double rounds,
                        struct dpt_plan_step *step)
{
    const struct dpt_graph *g = &p->stage->graph;
    const struct dpt_workload one = alone(p, l->micro);
    double now = 0, down = 0, sum = 0, up = 0, floats = 0, gathered = 0;
    const bool gathers = l->updaters > 1, apart = gathers || l->stages > 1;
    double all[DPT_PLAN_LINKS] = {0}, after[DPT_PLAN_LINKS] = {0}, seconds[DPT_PLAN_LINKS], left;
    struct exchange exchange[EXCHANGES];

    find_exchanges(p, l, exchange);
    for (int32_t i = g->n_nodes - 1; i > 0; i--) {
        const int32_t tensors[2] = {g->nodes[i].weight, g->nodes[i].bias};
        double copy;

        now += l->stages > 1 ? 0 : node_seconds(p, &one, i, DPT_COMPUTES_BACK);
        for (int k = 0; k < 2; k++)
            if (dpt_graph_updates(g, tensors[k]))
                floats += (double)g->tensors[tensors[k]].count;
        if (floats <= 0 || (i > 1 && floats * WORD < bucket_bytes))
            continue;
        gathered += floats;
        sum_seconds(p, l, &exchange[OF_GRADIENT], floats, seconds);
        add_seconds(all, seconds);
        copy = p->by_host != NULL ? seconds[DPT_PLAN_LINK_PCIE] / 2 : 0;
        down = fmax(down, now) + copy;
        sum = fmax(sum, down) + total(seconds) - 2 * copy;
        up = fmax(up, sum) + copy;
        floats = 0;
    }
    left = up - now;
    if (p->by_host == NULL)
        left += call_takes * fmax(0, total(all) - left);
    left *= rounds;
    for (int i = 0; i < DPT_PLAN_LINKS; i++)
        all[i] *= rounds;
    for (int i = 0; apart && i < 2; i++) {
        sum_seconds(p, l, &exchange[OF_FEW], 1, seconds);
        add_seconds(after, seconds);
    }
    if (gathers) {
        sum_seconds(p, l, &exchange[OF_WEIGHTS], gathered, seconds);
        add_seconds(after, seconds);
    }
    add_seconds(all, after);
    add_sum(p, l, all, left + total(after), step);
}

/* The sums of a step in which the host takes part: nothing hides them. */
static void sum_on_host(const struct dpt_plan *p, const struct dpt_layout *l, int64_t micros,
                        struct dpt_plan_step *step)
{
    const double n = (double)p->stage->graph.floats, arena = n * WORD;
    const double n_sums = ceil((double)micros / p->adds);
    const double bus = p->gpu.pcie * reached_link;
    double seconds[DPT_PLAN_LINKS];

    step->link = DPT_PLAN_LINK_MEMORY;
    if (l->replicas > 1) {
        sum_seconds(p, l, NULL, n, seconds);
        seconds[DPT_PLAN_LINK_NETWORK] *= dpt_gradient_reduction_sends(&p->layout) / 2.0;
        add_sum(p, l, seconds, total(seconds), step);
    }
    /* The host gets the device's sums of gradients, and adds them up. */
    step->local +=
        n_sums * (arena / bus + 2 * arena / host_sum) + (n_sums - 1) * 3 * arena / host_sum;
    /* Gathered weights go to the device, too. */
    step->local += p->stages[p->stage->number].traffic.kind[DPT_ACTION_GATHER] / bus;
    if (step->network > step->local)
        step->link = DPT_PLAN_LINK_NETWORK;
}

void dpt_plan_gpu_step(const struct dpt_plan *p, const struct dpt_layout *l, int64_t micros,
                       struct dpt_plan_step *step)
{
    const double arena = (double)p->stage->graph.floats * WORD;
    const double rows = (double)micros * l->micro;
    const double sample = (double)dpt_shape_size(&p->data.train.set->shape) * WORD;
    const double memory = p->gpu.bandwidth * reached_bytes, bus = p->gpu.pcie * reached_link;

    step->data = p->stored ? 0 : fmax(0, rows * sample / bus - step->compute);
    if (l->on_device)
        step->network = 0; /* which lists of rounds have for hosts */
    if (!l->on_device)
        sum_on_host(p, l, micros, step);
    else if (l->replicas > 1 || l->stages > 1)
        sum_buckets(p, l, l->round_robin ? (double)micros : 1, step);
    if (along_tree(l)) /* each micro-batch's gradient is added to what waits, or waits itself */
        step->local +=
            (double)(micros - 1) * 3 * arena / (l->round_robin ? l->replicas : 1) / memory;
    if (l->on_device) /* what layers read is derived from all weights */
        step->update = ((4 + 2 * l->slots) * arena / l->updaters + 2 * arena) / memory +
                       (4 + (l->updaters > 1 ? ceil(arena / call_bytes) : 0)) * start;
    else /* the host updates what a rank owns, and the device gets the weights */
        step->update = (3 + 2 * l->slots) * arena / l->owners / host_sum + arena / bus;
    step->total = a_step + step->compute + step->wait + step->between + step->data + step->local +
                  step->network + step->update;
}

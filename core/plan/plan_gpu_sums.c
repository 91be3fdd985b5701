#include "core/plan/plan_gpu.h"

#include <math.h>
#include <string.h>

#include "core/train/reduction/gradient_reduction.h"

enum { WORD = sizeof(float) };

/* Seconds to start a step. */
static const double a_step = 15e-6;
/* Bytes per second of a rank's part of a sum in the host's memory. */
static const double host_sum = 8e9;
/*
 * Of links nothing is measured here. What copies and sums of many bytes reach of a link is what
 * nccl-tests are published to: about 360 of an H100's 450 GB/s. A call of NCCL, of so many bytes at
 * most, takes some microseconds to start, and while it goes on beside backward, its blocks keep
 * about so much of the multiprocessors.
 */
static const double reached_link = 0.8, call_start = 15e-6, call_takes = 0.125;
/* Bytes from which on a bucket ends with a node. */
static const double bucket_bytes = 4 << 20;

/* Whether the ranks of a node merge their blocks before these go to other nodes. */
static bool merges_on_nodes(const struct dpt_layout *l)
{
    return l->node_replicas > 1 && dpt_layout_nodes(l) > 1 && l->replicas % l->node_replicas == 0;
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
    const struct exchange ring = {others, nodes - 1, DPT_GPU_CALL, 0},
                          sum = {2 * others, 2 * ceil(log2(nodes)), DPT_GPU_CALL, 0};
    struct exchange to_owners = ring;
    double rate;

    if (dpt_plan_gpu_along_tree(l) &&
        merges_on_nodes(l)) { /* what their node has goes on to the others */
        const bool network = slowest_link(p, l, &rate) == DPT_PLAN_LINK_NETWORK;

        to_owners.before = dpt_share_blocks(l, 1) * (1 - 1.0 / l->node_replicas);
        to_owners.sent = dpt_share_blocks(l, l->node_replicas) * (1 - 1.0 / nodes) /
                         (network ? 1 : l->node_replicas);
        to_owners.messages = 1;
    } else if (dpt_plan_gpu_along_tree(
                   l)) { /* they send their blocks, past each other also between nodes */
        const bool network = slowest_link(p, l, &rate) == DPT_PLAN_LINK_NETWORK;

        to_owners.sent *= dpt_share_blocks(l, 1) * (network ? l->node_replicas : 1);
        to_owners.messages = nodes > 1;
    }
    exchange[OF_WEIGHTS] = ring;
    exchange[OF_WEIGHTS].sent *= dpt_layout_gathered_weight(l) / WORD;
    exchange[OF_WEIGHTS].most = INFINITY;
    exchange[OF_FEW] = sum;
    if (l->updaters > 1)
        exchange[OF_GRADIENT] = to_owners;
    else if (dpt_plan_gpu_along_tree(l))
        exchange[OF_GRADIENT] =
            (struct exchange){to_owners.sent + ring.sent, to_owners.messages + ring.messages,
                              DPT_GPU_CALL, to_owners.before};
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
 * backward has ended. rounds: so many are summed, each before the next way back begins; a stage
 * sums all but the last beside a forward, unless that writes statistics, which are summed, too. */
static void sum_buckets(const struct dpt_plan *p, const struct dpt_layout *l, double rounds,
                        struct dpt_plan_step *step)
{
    const struct dpt_graph *g = &p->stage->graph;
    double now = 0, down = 0, sum = 0, up = 0, floats = 0, gathered = 0, beside = 0;
    const bool gathers = l->updaters > 1, apart = gathers || l->stages > 1;
    double all[DPT_PLAN_LINKS] = {0}, after[DPT_PLAN_LINKS] = {0}, seconds[DPT_PLAN_LINKS], left;
    struct exchange exchange[EXCHANGES];

    find_exchanges(p, l, exchange);
    for (int32_t i = g->n_nodes - 1; i > 0; i--) {
        const int32_t tensors[2] = {g->nodes[i].weight, g->nodes[i].bias};
        double copy;

        now += l->stages > 1 ? 0 : dpt_plan_gpu_node(p, i, l->micro, DPT_COMPUTES_BACK);
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
    if (l->stages > 1 && g->arena == g->floats)
        beside = dpt_plan_gpu_micro(p, p->stage->first > 0 ? p->stage->first : 1, p->stage->last,
                                    l->micro, DPT_COMPUTES_FORWARD);
    left += (rounds - 1) * fmax(0, left - beside);
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

/* The device's windows for units, on the way through a step (core/backend/cuda/steps). */
struct windows {
    int there[2];         /* the unit whose weights are in each; -1: none */
    double gathered[2];   /* the seconds at which they are, */
    double passed[2];     /* at which the pass that reads them has ended, */
    double summed[2];     /* and at which the gradient there has been summed */
    double round;         /* so has the round's last sum */
    double link, compute; /* at which all has ended that was enqueued so far */
    double floats;        /* gathered */
};

/* A unit's weights are gathered, if they are not there. all: NULL: no time is of interest. */
static void gather(const struct dpt_plan *p, const struct dpt_layout *l,
                   const struct exchange *exchange, int unit, struct windows *w,
                   double all[DPT_PLAN_LINKS])
{
    const size_t *edge = &p->stage->edge[unit];
    const double floats = (double)(edge[1] - edge[0]);
    double seconds[DPT_PLAN_LINKS];

    if (w->there[unit % 2] == unit)
        return;
    w->there[unit % 2] = unit;
    w->floats += floats;
    if (all == NULL)
        return;
    sum_seconds(p, l, &exchange[OF_WEIGHTS], floats, seconds);
    add_seconds(all, seconds);
    w->link = fmax(w->link, w->passed[unit % 2]) + total(seconds);
    w->gathered[unit % 2] = w->link;
}

/* A unit's gradient is summed once its pass has ended. */
static void sum_unit(const struct dpt_plan *p, const struct dpt_layout *l,
                     const struct exchange *exchange, int unit, struct windows *w,
                     double all[DPT_PLAN_LINKS])
{
    const size_t *edge = &p->stage->edge[unit];
    double seconds[DPT_PLAN_LINKS];

    sum_seconds(p, l, &exchange[OF_GRADIENT], (double)(edge[1] - edge[0]), seconds);
    add_seconds(all, seconds);
    w->link = fmax(w->link, w->passed[unit % 2]) + total(seconds);
    w->summed[unit % 2] = w->link;
    w->round = unit == 0 ? w->link : w->round;
}

double dpt_plan_gpu_gathered(const struct dpt_plan *p, const struct dpt_layout *l, int64_t rounds,
                             struct dpt_plan_step *step)
{
    const struct dpt_layout_stage *stage = p->stage;
    const bool state = stage->graph.arena > stage->graph.floats;
    struct windows w = {.there = {-1, -1}};
    struct exchange exchange[EXCHANGES];
    double all[DPT_PLAN_LINKS] = {0}, seconds[DPT_PLAN_LINKS], computed = 0, after = 0, left;
    struct dpt_unit_walk walk = {
        {l->schedule, l->stages, stage->number, .micro_batches = (int32_t)rounds},
        .units = stage->units};
    struct dpt_unit_pass at;
    int given = -1; /* the unit whose gradient is to be summed */

    find_exchanges(p, l, exchange);
    while (dpt_unit_next(&walk, &at)) {
        double *const links = step != NULL ? all : NULL;
        double pass;

        if (step != NULL && given >= 0)
            sum_unit(p, l, exchange, given, &w, all);
        gather(p, l, exchange, at.unit, &w, links);
        gather(p, l, exchange, at.next, &w, links);
        given = at.back ? at.unit : -1;
        if (step == NULL)
            continue;
        pass = dpt_plan_gpu_micro(p, stage->node[at.unit] > 0 ? stage->node[at.unit] : 1,
                                  stage->node[at.unit + 1], l->micro,
                                  at.back ? DPT_COMPUTES_BACK : DPT_COMPUTES_FORWARD);
        w.compute =
            fmax(fmax(w.compute, w.gathered[at.unit % 2]), at.back ? w.summed[at.unit % 2] : 0);
        /* What lies behind the units is summed after the first one's gradient. */
        if (at.back ? at.unit == stage->units - 1 : at.unit == 0 && state)
            w.compute = fmax(w.compute, w.round);
        w.compute += pass;
        w.passed[at.unit % 2] = w.compute;
        computed += pass;
    }
    if (step == NULL)
        return w.floats * dpt_layout_gathered_weight(l);
    if (given >= 0)
        sum_unit(p, l, exchange, given, &w, all);
    left = fmax(w.link, w.compute) - computed;
    left += call_takes * fmax(0, total(all) - left);
    for (int i = 0; i < 2; i++) {
        sum_seconds(p, l, &exchange[OF_FEW], 1, seconds);
        add_seconds(all, seconds);
        after += total(seconds);
    }
    add_sum(p, l, all, left + after, step);
    return w.floats * dpt_layout_gathered_weight(l);
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
    const double memory = p->gpu.bandwidth * DPT_GPU_REACHED_BYTES,
                 bus = p->gpu.pcie * reached_link;

    step->data = p->stored ? 0 : fmax(0, rows * sample / bus - step->compute);
    if (l->on_device)
        step->network = 0; /* which lists of rounds have for hosts */
    if (!l->on_device)
        sum_on_host(p, l, micros, step);
    else if (l->sliced_there)
        dpt_plan_gpu_gathered(p, l, micros, step);
    else if (l->replicas > 1 || l->stages > 1)
        sum_buckets(p, l, l->round_robin ? (double)micros : 1, step);
    if (dpt_plan_gpu_along_tree(
            l)) /* each micro-batch's gradient is added to what waits, or waits itself */
        step->local +=
            (double)(micros - 1) * 3 * arena / (l->round_robin ? l->replicas : 1) / memory;
    if (l->on_device) /* what layers read is derived from all weights, with units in each pass */
        step->update = ((4 + 2 * l->slots) * arena / l->updaters +
                        (l->sliced_there ? 4 * (double)micros : 2) * arena) /
                           memory +
                       (4 + (l->updaters > 1 ? ceil(arena / DPT_GPU_CALL) : 0)) * DPT_GPU_START;
    else /* the host updates what a rank owns, and the device gets the weights */
        step->update = (3 + 2 * l->slots) * arena / l->owners / host_sum + arena / bus;
    step->total = a_step + step->compute + step->wait + step->between + step->data + step->local +
                  step->network + step->update;
}

/* The share of a plan that is the mesh's: what each stage needs, and what each axis sends. */
#include <math.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"
#include "core/plan/plan.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/reduction/gradient_reduction.h"

enum { WORD = sizeof(float) };

/* --- memory ----------------------------------------------------------------------------------- */

/* Adds up a scope of the memory that was filled in last. */
static double sum_scope(const struct dpt_plan *p, enum dpt_plan_scope scope)
{
    double sum = 0;

    for (int i = 0; i < DPT_PLAN_MEMORY; i++)
        if (p->memory[i].scope == scope)
            sum += p->memory[i].bytes;
    return sum;
}

/* All parts of all replicas. */
static int ranks_of_stage(const struct dpt_plan *p)
{
    return p->layout.replicas * p->layout.tensor;
}

/* The memory of the node whose ranks need most; they have stages of different sizes. */
static double largest_node(const struct dpt_plan *p)
{
    const int ranks = ranks_of_stage(p), each = p->spec.node_ranks;
    double most = 0;

    for (int begin = 0; begin < p->spec.ranks; begin += each) {
        double node = begin == 0 ? sum_scope(p, DPT_PLAN_FIRST) : 0;
        int before = -1;

        for (int r = begin; r < begin + each && r < p->spec.ranks; r++) {
            const struct dpt_plan_stage *stage = &p->stages[r / ranks];

            node += stage->own + (r / ranks != before ? stage->shared : 0);
            before = r / ranks;
        }
        most = fmax(most, node);
    }
    return most + sum_scope(p, DPT_PLAN_ONCE);
}

/* Plans the memory of a stage's ranks. */
static enum dpt_status take_stage(struct dpt_plan *p, int k, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    p->stage = &p->layout.stage[k];
    DPT_TRY(dpt_plan_measure(p, err));
    dpt_plan_fill_memory(p);
    if (p->backend->devices != NULL)
        dpt_plan_gpu_memory(p);
out:
    return status;
}

/* Notes what the stage that was planned last needs. */
static enum dpt_status fill_stage(struct dpt_plan *p, int k, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_layout *l = &p->layout;
    const struct dpt_layout_stage *own = &l->stage[k];
    const struct dpt_graph_node *nodes = l->graph->nodes;
    struct dpt_plan_stage *stage = &p->stages[k];

    DPT_TRY(dpt_plan_read_list(l, own, &stage->traffic, err));
    stage->first = nodes[own->first].name;
    stage->bytes = p->other_rank;
    stage->own = sum_scope(p, DPT_PLAN_RANK);
    stage->shared = sum_scope(p, DPT_PLAN_NODE) * fmin(l->tensor, p->spec.node_ranks);
    stage->device = p->device_bytes;
    stage->in_flight =
        (int)fmin(stage->traffic.in_flight * l->at_once, (double)dpt_layout_most_micros(l));
    for (int32_t i = own->first; i < own->last; i++)
        stage->flop += dpt_operation_flops(&nodes[i]);
out:
    return status;
}

enum dpt_status dpt_plan_stages(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int stages = p->layout.stages;
    const bool device = p->backend->devices != NULL;
    double all = 0;
    int largest = 0;

    DPT_TRY(DPT_ALLOCATE(p->stages, (size_t)stages, "the stages", err));
    for (int k = 0; k < stages; k++) {
        const struct dpt_plan_stage *stage = &p->stages[k], *most = &p->stages[largest];

        DPT_TRY(take_stage(p, k, err));
        DPT_TRY(fill_stage(p, k, err));
        all += stage->flop;
        if (device ? stage->device > most->device : stage->bytes > most->bytes)
            largest = k;
    }
    for (int k = 0; k < stages; k++)
        p->stages[k].flop /= all;
    DPT_TRY(take_stage(p, largest, err));
    DPT_TRY(dpt_plan_find_bubble(p, err));
out:
    return status;
}

static void add_shares(const struct dpt_plan *p, const struct dpt_plan_memory *memory, int n,
                       struct dpt_plan_share *share)
{
    const int sharers[] = {[DPT_PLAN_RANK] = 1,
                           [DPT_PLAN_FIRST] = 1,
                           [DPT_PLAN_NODE] = p->layout.node_replicas,
                           [DPT_PLAN_ONCE] = p->spec.node_ranks};

    for (int i = 0; i < n; i++) {
        const double bytes = memory[i].bytes / sharers[memory[i].scope];

        if (memory[i].scope == DPT_PLAN_FIRST) {
            share->first += bytes;
            continue;
        }
        share->bytes[memory[i].part] += bytes;
        share->all += bytes;
    }
}

struct dpt_plan_share dpt_plan_share(const struct dpt_plan *p)
{
    struct dpt_plan_share host = {0}, device = {0};

    add_shares(p, p->memory, DPT_PLAN_MEMORY, &host);
    if (p->gpu.name[0] == '\0')
        return host;
    add_shares(p, p->device, DPT_PLAN_DEVICE, &device);
    device.first = host.first;
    device.host = host.all;
    return device;
}

/* --- what is sent ----------------------------------------------------------------------------- */

static void data_axis(const struct dpt_plan *p, struct dpt_plan_axis *axis)
{
    const struct dpt_layout *l = &p->layout;
    /* Of what is sent the last part are weights, if owners update them. */
    const double owned = l->updaters > 1 ? 1 - dpt_layout_gathered_weight(l) / WORD : 0;
    const double ranks = l->replicas, sends = fmax(0, dpt_gradient_reduction_sends(l) - owned);
    const int of_stage = ranks_of_stage(p);

    axis->ranks = l->replicas;
    for (int k = 0; k < l->stages; k++) {
        const double *kind = p->stages[k].traffic.kind;
        const double summed = sends * (double)l->stage[k].graph.arena * WORD * (ranks - 1) / ranks;

        axis->bytes = fmax(axis->bytes, kind[DPT_ACTION_ADD] + kind[DPT_ACTION_GATHER] + summed);
        axis->crosses = axis->crosses || k * of_stage / p->spec.node_ranks !=
                                             ((k + 1) * of_stage - 1) / p->spec.node_ranks;
    }
}

static void pipeline_axis(const struct dpt_plan *p, struct dpt_plan_axis *axis)
{
    axis->ranks = p->layout.stages;
    for (int k = 0; k < axis->ranks; k++) {
        axis->bytes = fmax(axis->bytes, p->stages[k].traffic.kind[DPT_ACTION_SEND]);
        if (k + 1 < axis->ranks)
            axis->crosses = axis->crosses || dpt_plan_link_crosses(p, ranks_of_stage(p), k);
    }
}

static void tensor_axis(const struct dpt_plan *p, struct dpt_plan_axis *axis)
{
    double own, shared;

    axis->ranks = p->layout.tensor;
    if (axis->ranks == 1)
        return;
    dpt_tensor_parallel_bytes(&p->layout, p->stage, &own, &shared, &axis->bytes);
    axis->crosses = p->spec.node_ranks % axis->ranks != 0 && p->spec.ranks > p->spec.node_ranks;
}

static const struct {
    const char *name, *part, *what;
    void (*fill)(const struct dpt_plan *p, struct dpt_plan_axis *axis);
} axes[DPT_PLAN_AXES] = {
    {"data", "replica", "gradients, and what is made of them", data_axis},
    {"tensor", "part", "values of divided layers, and columns of weights", tensor_axis},
    {"pipeline", "stage", "values, and their gradients back", pipeline_axis},
};

void dpt_plan_fill_mesh(struct dpt_plan *p)
{
    for (int i = 0; i < DPT_PLAN_AXES; i++) {
        p->axes[i] = (struct dpt_plan_axis){
            .name = axes[i].name, .part = axes[i].part, .what = axes[i].what};
        axes[i].fill(p, &p->axes[i]);
    }
    p->first_rank = p->stages[0].bytes + sum_scope(p, DPT_PLAN_FIRST);
    p->node = largest_node(p);
}

/* --- seconds ---------------------------------------------------------------------------------- */

double dpt_plan_part_seconds(const struct dpt_plan *p, double slower)
{
    struct dpt_plan_axis axis = {0};

    tensor_axis(p, &axis);
    if (axis.ranks == 1)
        return 0;
    return axis.crosses ? axis.bytes / p->spec.fabric.bandwidth
                        : dpt_plan_copy_seconds(p, axis.bytes) * slower;
}

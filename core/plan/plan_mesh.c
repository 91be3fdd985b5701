/* The share of a plan that is the mesh's: what each stage needs, what each axis sends, and how long
 * micro-batches take through the stages. */
#include <math.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"
#include "core/plan/plan.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/mesh/units.h"
#include "core/train/step/runner.h"

enum { WORD = sizeof(float) };

/* A message between ranks of a node is written and read twice, through memory that they share;
 * where the memory was not measured it has this rate. */
static const double passes = 4, memory_rate = 8e9;

/* --- memory ----------------------------------------------------------------------------------- */

/* A node has it once for all stages. */
static bool is_once(const struct dpt_plan_memory *memory)
{
    return memory->scope == DPT_PLAN_NODE &&
           (strcmp(memory->key, "libraries") == 0 || strcmp(memory->key, "samples") == 0);
}

/* Adds up a scope of the memory that was filled in last: what a node has once, or all the rest. */
static double sum_scope(const struct dpt_plan *p, enum dpt_plan_scope scope, bool once)
{
    double sum = 0;

    for (int i = 0; i < DPT_PLAN_MEMORY; i++)
        if (p->memory[i].scope == scope && is_once(&p->memory[i]) == once)
            sum += p->memory[i].bytes;
    return sum;
}

static int tensor_of(const struct dpt_plan *p)
{
    return p->t.mesh.tensor;
}

/* All parts of all replicas. */
static int ranks_of_stage(const struct dpt_plan *p)
{
    return dpt_trainer_replicas(&p->t)->world.size * tensor_of(p);
}

/* The memory of the node whose ranks need most; they have stages of different sizes. */
static double largest_node(const struct dpt_plan *p)
{
    const int ranks = ranks_of_stage(p), each = p->spec.node_ranks;
    double most = 0;

    for (int begin = 0; begin < p->spec.ranks; begin += each) {
        double node = begin == 0 ? sum_scope(p, DPT_PLAN_FIRST, false) : 0;
        int before = -1;

        for (int r = begin; r < begin + each && r < p->spec.ranks; r++) {
            const struct dpt_plan_stage *stage = &p->stages[r / ranks];

            node += stage->own + (r / ranks != before ? stage->shared : 0);
            before = r / ranks;
        }
        most = fmax(most, node);
    }
    return most + sum_scope(p, DPT_PLAN_NODE, true);
}

/* Micro-batches of the busiest replica in a step. */
static int64_t most_micros(const struct dpt_plan *p)
{
    const struct dpt_sampler *s = &p->t.data.train.sampler;
    const int64_t replicas = dpt_trainer_replicas(&p->t)->world.size;

    return (((int64_t)s->global + s->micro - 1) / s->micro + replicas - 1) / replicas;
}

/* The bytes of a micro-batch's value between stage k and the next. */
static double link_bytes(const struct dpt_plan *p, int k)
{
    const bool half =
        p->t.backend->devices != NULL && p->t.job->device.precision >= DPT_PRECISION_BF16;

    return (double)dpt_mesh_link_floats(&p->t, k) * (half ? WORD / 2 : WORD);
}

enum dpt_status dpt_plan_stages(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &p->t;
    const struct dpt_graph *graph = &t->model.graph;
    const int stages = t->mesh.stages;
    const int64_t run = most_micros(p);
    const int64_t turns = dpt_step_most_rounds(t, t->data.train.sampler.micro);
    double all = 0;
    int largest = 0;

    DPT_TRY(DPT_ALLOCATE(p->stages, (size_t)stages, "the stages", err));
    for (int32_t i = 0; i < graph->n_nodes; i++)
        all += dpt_operation_flops(&graph->nodes[i]);
    for (int k = 0; k <= stages; k++) {
        struct dpt_plan_stage *stage = &p->stages[k < stages ? k : largest];

        DPT_TRY(dpt_mesh_take(t, k < stages ? k : largest, err));
        DPT_TRY(dpt_units_plan(t, err));
        DPT_TRY(dpt_plan_measure(p, t->data.train.sampler.micro, err));
        dpt_plan_fill_memory(p);
        if (t->backend->devices != NULL)
            dpt_plan_gpu_memory(p);
        if (k == stages)
            break;
        stage->first = graph->nodes[t->mesh.first[k]].name;
        stage->bytes = p->other_rank;
        stage->own = sum_scope(p, DPT_PLAN_RANK, false);
        stage->shared = sum_scope(p, DPT_PLAN_NODE, false) * fmin(tensor_of(p), p->spec.node_ranks);
        stage->device = p->device_bytes;
        stage->in_flight = (int)fmin((double)t->team.in_flight * t->team.group, (double)run);
        for (int32_t i = t->mesh.first[k]; i < t->mesh.first[k + 1]; i++)
            stage->flop += dpt_operation_flops(&graph->nodes[i]) / all;
        if (k + 1 < stages)
            stage->sent = (double)run * link_bytes(p, k);
        if (t->backend->devices != NULL ? stage->device > p->stages[largest].device
                                        : stage->bytes > p->stages[largest].bytes)
            largest = k;
    }
    p->bubble = (stages - 1) / (double)(turns + stages - 1);
out:
    return status;
}

/* A row for each of the host's and the device's, but for what rank 0 has alone. */
static const struct {
    const char *key;
    enum dpt_plan_part part;
} parts[] = {
    {"weights", DPT_PLAN_WEIGHTS},       {"copies", DPT_PLAN_WEIGHTS},
    {"gradients", DPT_PLAN_GRADIENTS},   {"gradients_shared", DPT_PLAN_GRADIENTS},
    {"optimizer", DPT_PLAN_OPTIMIZER},   {"activations", DPT_PLAN_VALUES},
    {"workspace", DPT_PLAN_VALUES},      {"input", DPT_PLAN_VALUES},
    {"read_ahead", DPT_PLAN_VALUES},     {"divided", DPT_PLAN_WEIGHTS},
    {"divided_shared", DPT_PLAN_VALUES},
};

static enum dpt_plan_part part_of(const char *key)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(parts[i].key, key) == 0)
            return parts[i].part;
    return DPT_PLAN_OTHER;
}

static void add_shares(const struct dpt_plan *p, const struct dpt_plan_memory *memory, int n,
                       struct dpt_plan_share *share)
{
    const int node = p->spec.node_ranks, replicas = dpt_trainer_replicas(&p->t)->node.size;

    for (int i = 0; i < n; i++) {
        const int all = is_once(&memory[i]) ? node : replicas;
        const double bytes = memory[i].bytes / (memory[i].scope == DPT_PLAN_NODE ? all : 1);

        if (memory[i].scope == DPT_PLAN_FIRST) {
            share->first += bytes;
            continue;
        }
        share->bytes[part_of(memory[i].key)] += bytes;
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

/* Whether ranks of a stage, or of neighbouring stages, are on several nodes. */
static bool replicas_cross(const struct dpt_plan *p, int replicas, int stage)
{
    return stage * replicas / p->spec.node_ranks !=
           ((stage + 1) * replicas - 1) / p->spec.node_ranks;
}

static bool link_crosses(const struct dpt_plan *p, int replicas, int stage)
{
    for (int r = stage * replicas; r < (stage + 1) * replicas; r++)
        if (r / p->spec.node_ranks != (r + replicas) / p->spec.node_ranks)
            return true;
    return false;
}

/* How often a rank sends (D - 1) / D of its part of the model, where it has so many rounds. */
static double twice(const struct dpt_plan *p, double rounds)
{
    (void)p, (void)rounds;
    return 2; /* the gradient's parts to who adds them up, and sums or weights to all */
}

static double each_round(const struct dpt_plan *p, double rounds)
{
    (void)p;
    return rounds + 1;
}

/* What each unit adds: its weights before each pass, where they are not in memory that all share.
 * */
static double each_unit(const struct dpt_plan *p, double rounds)
{
    return rounds + p->gathered / ((double)dpt_trainer_graph(&p->t)->arena * WORD);
}

static double (*const times_sent[])(const struct dpt_plan *p, double rounds) = {
    [DPT_SHARD_NONE] = twice,
    [DPT_SHARD_OPTIMIZER] = twice,
    [DPT_SHARD_GRADIENTS] = each_round,
    [DPT_SHARD_PARAMETERS] = each_unit,
};
_Static_assert(sizeof times_sent / sizeof *times_sent == DPT_SHARD_COUNT, "a row for each kind");

double dpt_plan_rounds(const struct dpt_plan *p, int64_t micros)
{
    const int32_t turn = dpt_step_turn(&p->t);

    return turn > 0 ? ceil((double)micros / turn) : 1;
}

static void data_axis(const struct dpt_plan *p, struct dpt_plan_axis *axis)
{
    const double ranks = dpt_trainer_replicas(&p->t)->world.size;
    const double arena = (double)dpt_trainer_graph(&p->t)->arena * WORD;

    axis->ranks = (int)ranks;
    axis->bytes = times_sent[p->t.job->parallel.shard](p, dpt_plan_rounds(p, most_micros(p))) *
                  arena * (ranks - 1) / ranks;
    for (int k = 0; k < (p->stages != NULL ? p->t.mesh.stages : 1); k++)
        axis->crosses = axis->crosses || replicas_cross(p, ranks_of_stage(p), k);
}

static void pipeline_axis(const struct dpt_plan *p, struct dpt_plan_axis *axis)
{
    const int replicas = ranks_of_stage(p);

    axis->ranks = p->t.mesh.stages;
    for (int k = 0; p->stages != NULL && k < p->t.mesh.stages; k++) {
        const double back = k > 0 ? p->stages[k - 1].sent : 0;

        axis->bytes = fmax(axis->bytes, p->stages[k].sent + back);
        if (k + 1 < p->t.mesh.stages)
            axis->crosses = axis->crosses || link_crosses(p, replicas, k);
    }
}

static void tensor_axis(const struct dpt_plan *p, struct dpt_plan_axis *axis)
{
    double own, shared;

    axis->ranks = tensor_of(p);
    if (axis->ranks == 1)
        return;
    dpt_tensor_parallel_bytes(&p->t, &own, &shared, &axis->bytes);
    axis->crosses = p->spec.node_ranks % axis->ranks != 0 && p->spec.ranks > p->spec.node_ranks;
}

static const struct {
    const char *name, *what;
    void (*fill)(const struct dpt_plan *p, struct dpt_plan_axis *axis);
} axes[DPT_PLAN_AXES] = {
    {"data", "gradients, and what is made of them", data_axis},
    {"tensor", "values of divided layers, and columns of weights", tensor_axis},
    {"pipeline", "values, and their gradients back", pipeline_axis},
};

void dpt_plan_fill_mesh(struct dpt_plan *p)
{
    for (int i = 0; i < DPT_PLAN_AXES; i++) {
        p->axes[i] = (struct dpt_plan_axis){.name = axes[i].name, .what = axes[i].what};
        axes[i].fill(p, &p->axes[i]);
    }
    if (p->stages == NULL)
        return;
    p->first_rank = p->stages[0].bytes + sum_scope(p, DPT_PLAN_FIRST, false);
    p->node = largest_node(p);
}

/* --- seconds ---------------------------------------------------------------------------------- */

/* The seconds of a message of so many samples from a stage to the next one: those in which the
 * processor is busy with it, and those on the way. */
static void message_seconds(const struct dpt_plan *p, int replicas, int stage, int32_t samples,
                            double *busy, double *away)
{
    const double bytes = link_bytes(p, stage) * samples / p->t.data.train.sampler.micro;
    const struct dpt_fabric *f = &p->spec.fabric;
    const double rate =
        p->machine.flops > 0 ? dpt_machine_bandwidth(&p->machine, bytes) : memory_rate;
    const bool crosses = link_crosses(p, replicas, stage);

    *busy = crosses ? f->overhead : passes / 2 * bytes / rate;
    *away = crosses ? f->latency + bytes / f->bandwidth : 0;
}

/* The seconds in which ranks tell each other their parts of divided layers in a step; nothing hides
 * them. */
static double part_seconds(const struct dpt_plan *p, double slower)
{
    struct dpt_plan_axis axis = {0};
    const struct dpt_fabric *f = &p->spec.fabric;
    double rate;

    tensor_axis(p, &axis);
    if (axis.ranks == 1)
        return 0;
    rate = p->machine.flops > 0 ? dpt_machine_bandwidth(&p->machine, axis.bytes) : memory_rate;
    return axis.crosses ? axis.bytes / f->bandwidth : passes / 2 * axis.bytes / rate * slower;
}

void dpt_plan_pass_stages(const struct dpt_plan *p, int replicas,
                          const struct dpt_plan_turns *turns, struct dpt_plan_step *step)
{
    const struct dpt_mesh *m = &p->t.mesh;
    double all = 0, slowest = 0, messages = 0, longest = 0;

    for (int k = 0; k < m->stages; k++) {
        const double own =
            turns->seconds(p, m->first[k] > 0 ? m->first[k] : 1, m->first[k + 1], turns->micro) *
            turns->slower;
        double busy = 0, away = 0;

        all += own;
        slowest = fmax(slowest, own);
        if (k + 1 < m->stages)
            message_seconds(p, replicas * tensor_of(p), k, turns->micro, &busy, &away);
        /* There and back; the next stage waits for it (scripts/simulate). */
        messages += 2 * turns->together * (busy * turns->slower + away);
        longest = fmax(longest, 2 * turns->together * (2 * busy * turns->slower + away));
    }
    step->compute = turns->n * slowest;
    step->wait = all - slowest;
    step->between = messages + (turns->n - 1) * longest + part_seconds(p, turns->slower);
}

/* Predicts the seconds of a plan. */
#include <math.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/comm/tree.h"
#include "core/plan/plan.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/setup/parts.h"
#include "core/train/step/runner.h"

enum { WORD = sizeof(float), MAX_THREADS = 256 };

/* Up to so many floats of a node's gradients each rank adds up all of them, behind one barrier
 * (core/comm/hierarchical_allreduce.c). */
enum { SMALL = 4096 };

/* A trial may take this much memory, and this part of what is available. */
static const double trial_most = 256e6, trial_part = 0.25;

/*
 * What is reached of the limits of cost.h, and what else a call takes, where no trial can be made:
 * from the rows of `dptrain bench` over the shipped jobs, AVX-512, one thread. That of layers
 * stands in their operations' rows; this is what is no layer. A sample's own work, and a float's; a
 * step's. A barrier of a node's ranks that have a core each and wait actively, and what it
 * takes a rank to give its core to another one where they have not.
 */
static const double reached_update = 0.8, reached_norm = 0.35, reached_sum = 0.5;
static const double fill_sample = 20e-9, fill_float = 0.6e-9, a_step = 0.5e-6;
static const double barrier = 0.3e-6, taking_turns = 1.5e-6;

/* --- computing -------------------------------------------------------------------------------- */

void dpt_plan_flop(const struct dpt_plan *p, int32_t node, double *forward, double *backward)
{
    struct dpt_comm comm;
    const struct dpt_trainer one = dpt_cost_alone(&p->t, &comm, 1);
    const bool dx = dpt_graph_wants_dx(&p->t.model.graph, node);

    *forward = dpt_cost_of_nodes(&one, &node, 1, DPT_COST_FORWARD, dx).flop;
    *backward = p->t.model.graph.nodes[node].learns
                    ? dpt_cost_of_nodes(&one, &node, 1, DPT_COST_BACKWARD, dx).flop
                    : 0;
}

/* Estimates the seconds of a micro-batch's passes on one thread, through nodes [first, last).
 * parts: ranks that divide its layers. */
static double estimate_micro(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                             int computes, int parts)
{
    struct dpt_comm comm;
    const struct dpt_trainer one = dpt_cost_alone(&p->t, &comm, micro);
    double seconds = 0;
    bool by_bytes;

    for (int32_t i = first; i < last; i++) {
        const struct dpt_graph_node *node = &one.model.graph.nodes[i];
        const struct dpt_operation *operation = dpt_operation_of(node);
        const bool dx = dpt_graph_wants_dx(&one.model.graph, i);
        const struct dpt_cost forward = dpt_cost_of_nodes(&one, &i, 1, DPT_COST_FORWARD, dx);
        const struct dpt_cost back = dpt_cost_of_nodes(&one, &i, 1, DPT_COST_BACKWARD, dx);

        const bool divided =
            node->weight >= 0 && dpt_graph_divided(&one.model.graph, node->weight) != NULL;
        double own = 0;

        if (computes & DPT_COMPUTES_FORWARD) {
            own += dpt_cost_limit(&forward, &p->machine, 1, &by_bytes) / operation->reached.forward;
            seconds += operation->reached.call;
        }
        if (computes & DPT_COMPUTES_BACK && node->learns)
            own += dpt_cost_limit(&back, &p->machine, 1, &by_bytes) / operation->reached.backward;
        seconds += own / (divided ? parts : 1);
    }
    return seconds;
}

/* --- a step ----------------------------------------------------------------------------------- */

struct partition {
    int ranks, node_ranks, nodes;
    int64_t global, micros; /* micros: of the busiest rank */
    int32_t micro, group;   /* group: micro-batches that are computed at once */
    double owners;          /* that divide the update */
    double slower;          /* how much sharing cores slows it */
};

/* The seconds of a micro-batch's passes by one thread, or by a team: a part of the trial's time, or
 * an estimate. */
static double micro_seconds(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                            int computes)
{
    const double part = estimate_micro(p, first, last, micro, computes, p->t.mesh.tensor);
    const int32_t end = p->t.model.graph.n_nodes;

    if (p->trial.done)
        return p->trial.micro_batch * micro / p->trial.micro * part /
               estimate_micro(p, 1, end, micro, DPT_COMPUTES_FORWARD | DPT_COMPUTES_BACK, 1);
    return part / (p->t.team.together ? p->t.team.threads : 1);
}

/* Seconds to add a float to another one. */
static double add_seconds(const struct dpt_plan *p, const struct partition *d)
{
    const double arena = (double)dpt_trainer_graph(&p->t)->floats * WORD;
    const double all = (double)p->t.team.gradient_workers * d->node_ranks;
    const double bytes = (all + 1) * arena / fmin(all, p->cores);

    return 3 * WORD / dpt_machine_bandwidth(&p->machine, bytes) / reached_sum;
}

static enum dpt_status compute(const struct dpt_plan *p, const struct partition *d,
                               const struct dpt_trainer *other, struct dpt_plan_step *step,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &p->t;
    const bool device = t->backend->devices != NULL, alone = device || t->team.together;
    const int32_t rounds = dpt_step_most_rounds(other, d->micro);
    const struct dpt_plan_pace pace = {
        /* The last group may be smaller. */
        .micro = alone ? (int32_t)ceil((double)d->micros / rounds * d->micro) : d->micro,
        .slower = device ? 1 : d->slower,
        .seconds = device ? dpt_plan_gpu_micro : micro_seconds,
        .replicas = d->ranks,
        .nodes = d->nodes,
        .add = device ? 0 : add_seconds(p, d),
    };

    DPT_TRY(dpt_plan_run_lists(p, other, &pace, rounds, step, err));
    step->between += dpt_plan_part_seconds(p, pace.slower);
out:
    return status;
}

static void fill(const struct dpt_plan *p, const struct partition *d, struct dpt_plan_step *step)
{
    const struct dpt_trainer *t = &p->t;
    const double floats = (double)dpt_shape_size(&t->data.train.set->shape);
    const double samples = fmin((double)d->micros * d->micro, (double)d->global);

    step->data = samples * (fill_sample + fmax(p->sample, floats * fill_float)) * d->slower /
                 fmin(t->team.threads, t->team.together ? t->team.threads : (double)d->micros);
}

/* Whether all ranks have as many micro-batches, and these make one block each. */
static bool has_pairs(const struct partition *d)
{
    return dpt_tree_pairs(d->ranks, d->micros) &&
           (d->global + d->micro - 1) / d->micro == d->micros * d->ranks;
}

/* Whether a node's ranks reduce the gradient, and its sum of squares, in memory that they share. */
static bool sums_in_memory(const struct dpt_plan *p, const struct partition *d)
{
    const struct dpt_job *job = p->t.job;

    return d->node_ranks > 1 && d->nodes == 1 && job->comm.reduction == DPT_REDUCTION_ALLREDUCE &&
           job->comm.hierarchical == DPT_HIERARCHICAL_AUTO;
}

static void reduce(const struct dpt_plan *p, const struct partition *d, struct dpt_plan_step *step)
{
    const struct dpt_trainer *t = &p->t;
    const double n = (double)dpt_trainer_graph(t)->floats;
    const double all = (double)t->team.gradient_workers * d->node_ranks, busy = fmin(all, p->cores);
    const double add = add_seconds(p, d);
    const bool tree = t->job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE;
    const bool flat = tree || t->job->comm.hierarchical == DPT_HIERARCHICAL_OFF;
    const bool small = sums_in_memory(p, d) && all * n <= SMALL;
    const double arenas =
        (all + d->node_ranks) / busy; /* that a core reads or writes; 2 in a trial */
    const double meet = d->slower > 1          ? d->slower * taking_turns
                        : p->trial.barrier > 0 ? p->trial.barrier
                                               : barrier;
    const int parties = flat ? d->ranks : d->nodes;
    /* Gradients of a thread that the tree adds up, each in a buffer of its own. */
    const double leaves = ceil((double)d->micros / d->group / t->team.gradient_workers);

    if (tree)
        step->local = (leaves - 1) * add * n * (all > p->cores ? all / p->cores : 1);
    if (all > 1 && p->trial.sum > 0 && !small)
        step->local += p->trial.sum * arenas / 2;
    else if (all > 1)
        step->local += arenas * n * add / 3;
    if (d->node_ranks > 1)
        step->local += ((small ? 1 : 2) + step->meetings) * meet;
    if (d->nodes > 1)
        step->network += (tree ? dpt_fabric_tree(&p->spec.fabric, n, parties, has_pairs(d), add)
                               : dpt_fabric_allreduce(&p->spec.fabric, n, parties, add)) *
                         t->reduction.type->sends(t) / 2;
}

static void update(const struct dpt_plan *p, const struct partition *d, struct dpt_plan_step *step)
{
    struct dpt_comm comm;
    const struct dpt_trainer one = dpt_cost_alone(&p->t, &comm, d->micro);
    const struct dpt_cost norm = dpt_cost_of_part(&one, DPT_SPAN_NORM);
    const struct dpt_cost optimizer = dpt_cost_of_part(&one, DPT_SPAN_OPTIMIZER);
    const int threads = p->t.team.threads;
    double seconds, whole;
    bool by_bytes;

    /* Each rank computes the norm of the slice which it adds up. */
    step->update = dpt_cost_limit(&norm, &p->machine, threads, &by_bytes) / reached_norm *
                   d->slower / (sums_in_memory(p, d) ? d->node_ranks : 1);
    seconds = dpt_cost_limit(&optimizer, &p->machine, threads, &by_bytes) / reached_update;
    whole = p->trial.done ? p->trial.update : seconds;
    /* Shards divide the optimizer's part of it. */
    step->update += fmax(whole - seconds * (1 - 1 / d->owners), whole / d->owners) * d->slower;
    step->update *= (double)dpt_trainer_graph(&p->t)->floats / (double)p->t.model.graph.floats;
}

enum dpt_status dpt_plan_predict(const struct dpt_plan *p, int ranks, int64_t global,
                                 struct dpt_plan_step *step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int tensor = p->t.mesh.tensor;
    const int node_ranks = ranks < p->spec.node_ranks ? ranks : p->spec.node_ranks;
    /* Those of a part of the model, of which each adds up its own gradient. */
    struct partition d = {.ranks = ranks / dpt_trainer_model_ranks(&p->t), .global = global};
    struct dpt_comm comm = p->comm, replicas = p->comm;
    struct dpt_job job = *p->t.job;
    struct dpt_trainer other = p->t;

    memset(step, 0, sizeof *step);
    if (d.ranks == 0)
        return DPT_OK;
    d.node_ranks = node_ranks / tensor > 1 ? node_ranks / tensor : 1;
    d.node_ranks = d.ranks < d.node_ranks ? d.ranks : d.node_ranks;
    d.nodes = (d.ranks + d.node_ranks - 1) / d.node_ranks;
    d.slower = fmax(1, (double)p->t.team.threads * node_ranks / p->cores);
    comm.world.size = ranks;
    comm.node.size = node_ranks;
    job.batch.global = global;
    other.comm = &comm;
    replicas.world.size = d.ranks;
    replicas.node.size = d.node_ranks;
    other.mesh.replicas = &replicas;
    other.job = &job;
    d.owners = dpt_trainer_owners(&other);
    other.team.all_threads = (int64_t)ranks * p->t.team.threads;
    d.micro = dpt_trainer_choose_micro(&other);
    d.micros = ((global + d.micro - 1) / d.micro + d.ranks - 1) / d.ranks;
    d.group = p->t.team.group;
    while (d.group > 1 && d.group / 2 >= d.micros)
        d.group /= 2;
    if (global > other.data.train.sampler.samples) /* a step is full */
        other.data.train.sampler.samples = global;
    other.data.train.sampler.global = (int32_t)global;
    other.data.train.sampler.micro = step->micro = d.micro;
    DPT_TRY(compute(p, &d, &other, step, err));
    if (p->t.backend->devices != NULL) {
        dpt_plan_gpu_step(p, d.ranks, d.node_ranks, d.micros, d.micro, step);
        return DPT_OK;
    }
    fill(p, &d, step);
    reduce(p, &d, step);
    update(p, &d, step);
    step->total = a_step + step->compute + step->wait + step->between + step->data + step->local +
                  step->network + step->update;
out:
    return status;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* A lone rank with so many threads, for dpt_machine_measure. */
static enum dpt_status measure_machine(struct dpt_plan *p, int threads, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_comm comm = {.world.size = 1, .node.size = 1, .leaders.size = 1, .nodes = 1};
    struct dpt_trainer lone = p->t;

    lone.comm = &comm;
    lone.team = (struct dpt_team){.threads = threads, .all_threads = threads, .spin = true};
    DPT_TRY(dpt_trainer_open_team(&lone, 1, err));
    DPT_TRY(dpt_machine_measure(&lone, &p->machine, err));
out:
    dpt_trainer_close_team(&lone);
    dpt_pool_close(lone.team.pool);
    return status;
}

/* What a trial on so many threads would allocate. */
static double trial_bytes(const struct dpt_plan *p, int threads)
{
    const struct dpt_trainer *t = &p->t;
    const double arena = (double)t->model.graph.floats * WORD;
    const double parts = t->mesh.stages; /* the program is of the largest */
    const double each =
        ((double)p->program.values * parts + (double)p->program.scratch) / t->team.threads +
        (double)dpt_shape_size(&t->data.train.set->shape) * t->data.train.sampler.micro *
            t->team.group * WORD;

    return arena * (1 + t->arenas.slots + (t->team.together ? 1 : threads)) + threads * each +
           (double)p->program.copies * parts;
}

enum dpt_status dpt_plan_time(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &p->t;
    const struct dpt_batch_form *form = &t->data.train.form;
    const double wanted = fmin(p->cores, (double)t->team.threads * p->spec.node_ranks);
    const int busy = (int)fmax(1, fmin(wanted, MAX_THREADS)),
              threads = t->team.together ? t->team.threads : busy;
    const double bytes = trial_bytes(p, threads);
    struct dpt_trainer whole = *t;

    if (t->backend->devices != NULL) /* the data sheet says it */
        return dpt_plan_predict(p, p->spec.ranks, t->job->batch.global, &p->step, err);
    if (form->augment != NULL || form->set->files || form->set->views)
        DPT_TRY(dpt_batch_cost(form, &p->sample, err));
    if (p->spec.machine != NULL)
        p->machine = *p->spec.machine;
    else
        DPT_TRY(measure_machine(p, busy, err));
    if (p->spec.trial)
        DPT_TRY(dpt_trial_sum((size_t)dpt_trainer_graph(t)->floats, busy, &p->trial, err));
    if (p->spec.trial && t->team.threads <= p->cores && bytes <= trial_most &&
        (p->available < 0 || bytes <= trial_part * p->available)) {
        whole.mesh = dpt_mesh_whole(whole.comm); /* a stage takes a part of that */
        whole.mesh.graph = whole.model.graph;
        whole.units = (struct dpt_units){.n = 1};
        DPT_TRY(dpt_trial_run(&whole, threads, &p->trial, err));
        p->trial.update *= (double)threads / t->team.threads;
    }
    DPT_TRY(dpt_plan_predict(p, p->spec.ranks, t->job->batch.global, &p->step, err));
out:
    return status;
}

/* Predicts the seconds of a plan. */
#include <math.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/comm/sums/tree.h"
#include "core/plan/plan.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/parts.h"

enum { WORD = sizeof(float), MAX_THREADS = 256 };

/* Up to so many floats of a node's gradients each rank adds up all of them, after one barrier
 * (core/comm/sums/hierarchical_allreduce.c). */
enum { SMALL = 4096 };

/* A trial may take this much memory, and this part of what is available. */
static const double trial_most = 256e6, trial_part = 0.25;

/*
 * The share of cost.h's limits that is reached, and what else a call takes, if no trial can be
 * made: from the rows of `dptrain bench` over the shipped jobs, AVX-512, one thread. Layers have
 * theirs in their operations' rows; these are for all else. The work per sample, per float and per
 * step. A barrier of a node's ranks that have a core each and wait actively, and what it takes a
 * rank to give its core to another one if they have not.
 */
static const double reached_update = 0.8, reached_norm = 0.35, reached_sum = 0.5;
static const double fill_sample = 20e-9, fill_float = 0.6e-9, a_step = 0.5e-6;
static const double barrier = 0.3e-6, taking_turns = 1.5e-6;
/* Backward's part of what computing takes. */
static const double back = 2.0 / 3;

/* A micro-batch of a rank alone. */
static struct dpt_workload alone(const struct dpt_plan *p, int32_t micro)
{
    const struct dpt_workload all = dpt_workload_of(&p->layout, p->data.train.set);

    return dpt_workload_alone(&all, micro);
}

/* --- computing -------------------------------------------------------------------------------- */

void dpt_plan_flop(const struct dpt_plan *p, int32_t node, double *forward, double *backward)
{
    const struct dpt_workload one = alone(p, 1);
    const bool dx = dpt_graph_wants_dx(&p->model.graph, node);

    *forward = dpt_cost_of_nodes(&one, &node, 1, DPT_COST_FORWARD, dx).flop;
    *backward = p->model.graph.nodes[node].learns
                    ? dpt_cost_of_nodes(&one, &node, 1, DPT_COST_BACKWARD, dx).flop
                    : 0;
}

/* Estimates the seconds of a micro-batch's passes on one thread, through nodes [first, last).
 * parts: ranks that divide its layers. */
static double estimate_micro(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                             int computes, int parts)
{
    const struct dpt_workload one = alone(p, micro);
    double seconds = 0;
    bool by_bytes;

    for (int32_t i = first; i < last; i++) {
        const struct dpt_graph_node *node = &one.graph->nodes[i];
        const struct dpt_operation *operation = dpt_operation_of(node);
        const bool dx = dpt_graph_wants_dx(one.graph, i);
        const struct dpt_cost forward = dpt_cost_of_nodes(&one, &i, 1, DPT_COST_FORWARD, dx);
        const struct dpt_cost back = dpt_cost_of_nodes(&one, &i, 1, DPT_COST_BACKWARD, dx);

        const bool divided =
            node->weight >= 0 && dpt_graph_divided(one.graph, node->weight) != NULL;
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

/* The step that is predicted. */
struct step {
    const struct dpt_layout *layout; /* on its ranks, of its samples */
    int nodes;                       /* with ranks of one part of the model */
    int64_t micros;                  /* of the busiest rank */
    double slower;                   /* how much sharing cores slows it */
};

/* The seconds of a micro-batch's passes by one thread, or by a team: a part of the trial's time, or
 * an estimate. */
static double micro_seconds(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                            int computes)
{
    const double part = estimate_micro(p, first, last, micro, computes, p->layout.tensor);
    const int32_t end = p->model.graph.n_nodes;

    if (p->trial.done)
        return p->trial.micro_batch * micro / p->trial.micro * part /
               estimate_micro(p, 1, end, micro, DPT_COMPUTES_FORWARD | DPT_COMPUTES_BACK, 1);
    return part / (p->layout.together ? p->layout.threads : 1);
}

/* Seconds to add a float to another one. */
static double add_seconds(const struct dpt_plan *p, const struct step *d)
{
    const double arena = (double)p->stage->graph.floats * WORD;
    const double all = (double)p->layout.gradient_workers * d->layout->node_replicas;
    const double bytes = (all + 1) * arena / fmin(all, p->cores);

    return 3 * WORD / dpt_machine_bandwidth(&p->machine, bytes) / reached_sum;
}

static enum dpt_status compute(const struct dpt_plan *p, const struct step *d,
                               struct dpt_plan_step *step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_layout *l = d->layout;
    const bool device = p->backend->devices != NULL, at_once = device || l->together;
    const int32_t rounds = dpt_layout_most_rounds(l);
    const struct dpt_plan_pace pace = {
        /* The last group may be smaller. */
        .micro = at_once ? (int32_t)ceil((double)d->micros / rounds * l->micro) : l->micro,
        .slower = device ? 1 : d->slower,
        .seconds = device ? dpt_plan_gpu_micro : micro_seconds,
        .replicas = l->replicas,
        .nodes = d->nodes,
        .add = device ? 0 : add_seconds(p, d),
    };

    DPT_TRY(dpt_plan_run_lists(p, l, &pace, rounds, step, err));
    step->between += dpt_plan_part_seconds(p, pace.slower);
out:
    return status;
}

static void fill(const struct dpt_plan *p, const struct step *d, struct dpt_plan_step *step)
{
    const double floats = (double)dpt_shape_size(&p->data.train.set->shape);
    const double samples =
        fmin((double)d->micros * d->layout->micro, (double)d->layout->job->batch.global);

    step->data =
        samples * (fill_sample + fmax(p->sample, floats * fill_float)) * d->slower /
        fmin(p->layout.threads, p->layout.together ? p->layout.threads : (double)d->micros);
}

/* The most blocks of the tree that a node has whose micro-batches follow each other. */
static int most_blocks(const struct step *d)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    const int32_t run = d->micros * d->layout->node_replicas,
                  total = (int32_t)fmin((double)run * d->nodes, INT32_MAX / 2);
    int most = 1;

    for (int32_t i = 0; i < DPT_TREE_BLOCKS && (int64_t)(i + 1) * run <= total; i++) {
        const int n = dpt_tree_blocks(i * run, (i + 1) * run, total, blocks);

        most = n > most ? n : most;
    }
    return most;
}

/* Whether a node's ranks reduce the gradient, and its sum of squares, in memory that they share. */
static bool sums_in_memory(const struct dpt_plan *p, const struct step *d)
{
    return d->layout->node_replicas > 1 && d->nodes == 1 && !dpt_layout_along_tree(d->layout) &&
           p->job->comm.hierarchical == DPT_HIERARCHICAL_AUTO;
}

/* The part of the sum between nodes that may go on while the last round goes back. */
static double overlapped(const struct dpt_plan *p, const struct step *d)
{
    const struct dpt_layout *l = d->layout;
    const int wanted = p->job->comm.overlap;
    const int buckets = dpt_layout_along_tree(l) ? 0 : dpt_gradient_buckets(l, d->nodes);
    const bool free = p->cores >= (double)l->node_ranks * (l->threads + 1) - 1e-6;

    if (buckets == 0 || wanted == DPT_OVERLAP_NEVER || (wanted == DPT_OVERLAP_AUTO && !free))
        return 0;
    return 1 - 1.0 / buckets;
}

static void reduce(const struct dpt_plan *p, const struct step *d, struct dpt_plan_step *step)
{
    const double n = (double)p->stage->graph.floats;
    const struct dpt_layout *l = d->layout;
    const double all = (double)p->layout.gradient_workers * l->node_replicas,
                 busy = fmin(all, p->cores);
    const double add = add_seconds(p, d);
    const bool tree = dpt_layout_along_tree(l);
    const bool flat = !tree && p->job->comm.hierarchical == DPT_HIERARCHICAL_OFF;
    const bool small = sums_in_memory(p, d) && all * n <= SMALL;
    const double arenas =
        (all + l->node_replicas) / busy; /* gradients that a core reads or writes; 2 in a trial */
    const double meet = d->slower > 1          ? d->slower * taking_turns
                        : p->trial.barrier > 0 ? p->trial.barrier
                                               : barrier;
    const int parties = flat ? l->replicas : d->nodes;
    /* Gradients of a thread that the tree adds up, each in a buffer of its own. */
    const double leaves = ceil((double)d->micros / l->at_once / p->layout.gradient_workers);
    double network = 0;

    if (tree)
        step->local = (leaves - 1) * add * n * (all > p->cores ? all / p->cores : 1);
    if (all > 1 && p->trial.sum > 0 && !small)
        step->local += p->trial.sum * arenas / 2;
    else if (all > 1)
        step->local += arenas * n * add / 3;
    if (l->node_replicas > 1)
        step->local += ((small ? 1 : 2) + step->meetings) * meet;
    if (d->nodes > 1)
        network = (tree ? dpt_fabric_tree(&p->spec.fabric, n, parties, most_blocks(d), add)
                        : dpt_fabric_allreduce(&p->spec.fabric, n, parties, add)) *
                  dpt_gradient_reduction_choose(&p->layout)->sends / 2;
    step->network += network - fmin(network * overlapped(p, d),
                                    back * step->compute / dpt_layout_most_rounds(l));
    step->link = step->network > step->local ? DPT_PLAN_LINK_NETWORK : DPT_PLAN_LINK_MEMORY;
}

static void update(const struct dpt_plan *p, const struct step *d, struct dpt_plan_step *step)
{
    const struct dpt_layout *l = d->layout;
    const struct dpt_workload one = alone(p, l->micro);
    const struct dpt_cost norm = dpt_cost_of_part(&one, DPT_SPAN_NORM);
    const struct dpt_cost optimizer = dpt_cost_of_part(&one, DPT_SPAN_OPTIMIZER);
    const int threads = p->layout.threads, dividers = dpt_layout_dividers(l, p->stage);
    double seconds, whole;
    bool by_bytes;

    /* Each rank computes the norm of the slice that it adds up. */
    step->update = dpt_cost_limit(&norm, &p->machine, threads, &by_bytes) / reached_norm *
                   d->slower / (sums_in_memory(p, d) ? l->node_replicas : 1);
    seconds = dpt_cost_limit(&optimizer, &p->machine, threads, &by_bytes) / reached_update;
    whole = p->trial.done ? p->trial.update : seconds;
    /* They divide the optimizer's part of it. */
    step->update += fmax(whole - seconds * (1 - 1.0 / dividers), whole / dividers) * d->slower;
    step->update *= (double)p->stage->graph.floats / (double)p->model.graph.floats;
}

/* The layout on so many ranks with steps of so many samples, with the plan's threads. */
static enum dpt_status layout_on(const struct dpt_plan *p, const struct dpt_job *job, int ranks,
                                 struct dpt_layout *l, struct dpt_error *err)
{
    const int node_ranks = ranks < p->spec.node_ranks ? ranks : p->spec.node_ranks;
    const enum dpt_status status = dpt_plan_layout(p, job, ranks, node_ranks, l, err);

    if (status != DPT_OK)
        return status;
    if (job->batch.global > l->sampler.samples) /* a step is full */
        l->sampler.samples = job->batch.global;
    dpt_layout_set_threads(l, p->layout.threads, (int64_t)ranks * p->layout.threads, p->micro_most);
    return DPT_OK;
}

enum dpt_status dpt_plan_predict(const struct dpt_plan *p, int ranks, int64_t global,
                                 struct dpt_plan_step *step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_job job = *p->job;
    struct dpt_layout l = {0};
    struct step d;

    memset(step, 0, sizeof *step);
    if (ranks < p->layout.model_ranks)
        return DPT_OK;
    job.batch.global = global;
    job.parallel.data = 0; /* as many replicas as there are ranks for */
    DPT_TRY(layout_on(p, &job, ranks, &l, err));
    /* The ranks that have one part of the model: each part's gradient is summed by itself. */
    d = (struct step){
        .layout = &l,
        .nodes = dpt_layout_nodes(&l),
        .micros = dpt_layout_most_micros(&l),
        .slower = fmax(1, (double)l.threads * l.node_ranks / p->cores),
    };
    step->micro = l.micro;
    DPT_TRY(compute(p, &d, step, err));
    if (p->backend->devices != NULL) {
        dpt_plan_gpu_step(p, &l, d.micros, step);
        goto out;
    }
    fill(p, &d, step);
    reduce(p, &d, step);
    update(p, &d, step);
    step->total = a_step + step->compute + step->wait + step->between + step->data + step->local +
                  step->network + step->update;
out:
    dpt_layout_close(&l);
    return status;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* Measures what so many threads of a lone rank can do. */
static enum dpt_status measure_machine(struct dpt_plan *p, int threads, struct dpt_error *err)
{
    struct dpt_lone lone;
    enum dpt_status status = dpt_lone_open(&lone, p, threads, 1, err);

    if (status == DPT_OK)
        status = dpt_machine_measure(&lone.t, &p->machine, err);
    dpt_lone_close(&lone);
    return status;
}

/* What a trial on so many threads would allocate. */
static double trial_bytes(const struct dpt_plan *p, int threads)
{
    const double arena = (double)p->model.graph.floats * WORD;
    const double parts = p->layout.stages; /* the program is of the largest */
    const double each =
        ((double)p->program.values * parts + (double)p->program.scratch) / p->layout.threads +
        (double)dpt_shape_size(&p->data.train.set->shape) * p->layout.micro * p->layout.at_once *
            WORD;

    return arena * (1 + p->layout.slots + (p->layout.together ? 1 : threads)) + threads * each +
           (double)p->program.copies * parts;
}

enum dpt_status dpt_plan_time(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_batch_form *form = &p->data.train.form;
    const double wanted = fmin(p->cores, (double)p->layout.threads * p->spec.node_ranks);
    const int busy = (int)fmax(1, fmin(wanted, MAX_THREADS)),
              threads = p->layout.together ? p->layout.threads : busy;
    const double bytes = trial_bytes(p, threads);

    if (p->backend->devices != NULL) /* the data sheet has it */
        return dpt_plan_predict(p, p->spec.ranks, p->job->batch.global, &p->step, err);
    if (form->augment != NULL || form->set->files || form->set->views)
        DPT_TRY(dpt_batch_cost(form, &p->sample, err));
    if (p->spec.machine != NULL)
        p->machine = *p->spec.machine;
    else
        DPT_TRY(measure_machine(p, busy, err));
    if (p->spec.trial)
        DPT_TRY(dpt_trial_sum((size_t)p->stage->graph.floats, busy, &p->trial, err));
    if (p->spec.trial && p->layout.threads <= p->cores && bytes <= trial_most &&
        (p->available < 0 || bytes <= trial_part * p->available)) {
        DPT_TRY(dpt_trial_run(p, threads, &p->trial, err));
        p->trial.update *= (double)threads / p->layout.threads;
    }
    DPT_TRY(dpt_plan_predict(p, p->spec.ranks, p->job->batch.global, &p->step, err));
out:
    return status;
}

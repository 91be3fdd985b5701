#include <string.h>

#include "core/base/memory.h"
#include "core/comm/sums/hierarchical_allreduce.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/team.h"

struct dpt_gradient_reduction_state {
    struct dpt_hierarchical_allreduce *allreduce;
    bool *filled; /* [gradient_workers] */
};

static struct dpt_hierarchical_spec spec_of(const struct dpt_layout *l)
{
    return (struct dpt_hierarchical_spec){
        .n = (size_t)l->graph->arena + DPT_TAIL_WORDS,
        .buffers = l->gradient_workers,
        .hierarchical = l->job->comm.hierarchical == DPT_HIERARCHICAL_AUTO,
        .sums_of_squares = (size_t)l->graph->floats,
    };
}

/* Whether sums between nodes go on beside backward, if they can: where a thread for them has a core
 * on every rank, or the job wants it. Collective. */
static enum dpt_status choose_overlap(const struct dpt_trainer *t, bool *overlaps,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int wanted = t->job->comm.overlap;
    double cores, least;

    *overlaps = wanted == DPT_OVERLAP_ALWAYS;
    if (wanted != DPT_OVERLAP_AUTO || t->comm->nodes == 1)
        return DPT_OK;
    DPT_TRY(dpt_core_share(&t->comm->node, &cores, err));
    DPT_TRY(dpt_group_max(&t->comm->world, t->layout.threads + 1 - cores, &least, err));
    *overlaps = least < 1e-6;
out:
    return status;
}

int dpt_gradient_buckets(const struct dpt_layout *l, int nodes)
{
    struct dpt_hierarchical_spec spec = spec_of(l);

    spec.early = spec.sums_of_squares;
    return l->job->comm.reduction == DPT_REDUCTION_ALLREDUCE && nodes > 1
               ? dpt_hierarchical_plan_buckets(&spec, NULL)
               : 0;
}

static void bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage, double *own,
                  double *shared)
{
    const struct dpt_hierarchical_spec spec = spec_of(l);

    (void)stage; /* there is one */
    dpt_hierarchical_bytes(&spec, l->node_replicas, l->ranks, own, shared);
}

static enum dpt_status open_sums(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_hierarchical_spec spec = spec_of(&t->layout);
    const bool wanted = spec.hierarchical;
    bool hierarchical = wanted, overlaps;

    spec.spin = t->team.spin;
    status = DPT_ALLOCATE(t->reduction.state, 1, "the reduction", err);
    if (status == DPT_OK)
        status = DPT_ALLOCATE(t->reduction.state->filled, (size_t)t->layout.gradient_workers,
                              "the reduction", err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    DPT_TRY(dpt_group_agree(&t->comm->world, choose_overlap(t, &overlaps, err), err));
    spec.early = overlaps ? spec.sums_of_squares : 0;
    DPT_TRY(
        dpt_hierarchical_open(&t->reduction.state->allreduce, t->comm, &spec, &hierarchical, err));
    if (wanted && !hierarchical)
        dpt_log_warn(t->log, "%s; so all ranks sum with MPI_Allreduce, which is slower", err->text);
    t->reduction.sum = dpt_hierarchical_result(t->reduction.state->allreduce);
    t->reduction.buckets = dpt_hierarchical_buckets(t->reduction.state->allreduce);
    if (t->job->comm.overlap == DPT_OVERLAP_ALWAYS && hierarchical && t->reduction.buckets == 0 &&
        dpt_gradient_buckets(&t->layout, t->comm->nodes) > 0)
        dpt_log_warn(t->log, "comm.overlap: always: gradients are summed after backward, since %s",
                     dpt_comm_has_threads() ? "the ranks of a node do not follow each other"
                                            : "this MPI allows calls by one thread only");
out:
    return status;
}

static void close_sums(struct dpt_trainer *t)
{
    if (t->reduction.state == NULL)
        return;
    dpt_hierarchical_close(t->reduction.state->allreduce);
    dpt_free(t->reduction.state->filled);
    dpt_free(t->reduction.state);
}

static void begin(struct dpt_trainer *t, int64_t epoch_step)
{
    (void)epoch_step;
    dpt_hierarchical_begin(t->reduction.state->allreduce);
    for (int i = 0; i < t->layout.gradient_workers; i++) {
        t->team.workers[i].done = 0;
        memset(&t->team.workers[i].metric_sums, 0, sizeof t->team.workers[i].metric_sums);
    }
}

static float *target(struct dpt_trainer *t, int thread, struct dpt_gradient_range range, bool *add)
{
    (void)range;
    *add = t->team.workers[thread].done > 0;
    return dpt_hierarchical_buffer(t->reduction.state->allreduce, thread);
}

static void done(struct dpt_trainer *t, int thread, int32_t micro_batch, int32_t n, float *gradient,
                 struct dpt_gradient_range range, const struct dpt_metric_sums *metric_sums)
{
    struct dpt_worker *worker = &t->team.workers[thread];

    (void)micro_batch;
    (void)gradient, (void)range;
    worker->done++;
    for (int32_t i = 0; metric_sums != NULL && i < n; i++)
        dpt_metric_sums_add(&worker->metric_sums, &metric_sums[i]);
}

/* A rank without a micro-batch writes its first gradient itself (finish_rank). */
static void pass(struct dpt_trainer *t, int worker, size_t from, bool has)
{
    if (has || worker > 0)
        dpt_hierarchical_pass(t->reduction.state->allreduce, worker, from, has);
}

static void again(struct dpt_trainer *t, int thread)
{
    t->team.workers[thread].done = 0;
}

/* Marks the threads whose gradients count, and writes this rank's tail after the first thread's
 * gradient: that thread has a micro-batch whenever the rank has one. */
static void finish_rank(struct dpt_trainer *t, const float flags[DPT_FLAGS])
{
    const bool failed = flags[DPT_FLAG_FAILED] > 0;
    const size_t arena = (size_t)t->model.graph.arena;
    float *const first = dpt_hierarchical_buffer(t->reduction.state->allreduce, 0),
                 *tail = first + arena;
    struct dpt_metric_sums all = {0};

    /* Of a failed rank buckets may be under way: their sum does not matter. */
    if (t->team.workers[0].done == 0 && !failed)
        memset(first, 0, arena * sizeof *first);
    for (int i = 0; i < t->layout.gradient_workers; i++) {
        memset(dpt_hierarchical_buffer(t->reduction.state->allreduce, i) + arena, 0,
               DPT_TAIL_WORDS * sizeof(float));
        t->reduction.state->filled[i] = !failed && t->team.workers[i].done > 0;
        if (!failed)
            dpt_metric_sums_add(&all, &t->team.workers[i].metric_sums);
    }
    dpt_tail_write(tail, &all);
    memcpy(tail + DPT_TAIL_FLAGS, flags, DPT_FLAGS * sizeof *flags);
}

static enum dpt_status sum(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    finish_rank(t, flags);
    DPT_TRY(dpt_hierarchical_sum(t->reduction.state->allreduce, t->reduction.state->filled,
                                 t->team.pool, err));
    t->reduction.early = dpt_hierarchical_early(t->reduction.state->allreduce);
    memcpy(t->reduction.reduced_flags, t->reduction.sum + t->model.graph.arena + DPT_TAIL_FLAGS,
           sizeof t->reduction.reduced_flags);
out:
    return status;
}

static const double *sums_of_squares(const struct dpt_trainer *t)
{
    return dpt_hierarchical_sums_of_squares(t->reduction.state->allreduce);
}

/* --- the functions of rows in which each rank owns all parameters ----------------------------- */

int dpt_gradient_one_range(const struct dpt_trainer *t)
{
    (void)t;
    return 1;
}

struct dpt_slice dpt_gradient_all(const struct dpt_trainer *t, int rank, int range)
{
    (void)rank, (void)range;
    return (struct dpt_slice){0, (size_t)dpt_trainer_graph(t)->floats, 0, t->reduction.chunks.n};
}

const float *dpt_gradient_sum(const struct dpt_trainer *t, int range)
{
    (void)range;
    return t->reduction.sum;
}

float *dpt_gradient_no_weights(const struct dpt_trainer *t)
{
    (void)t;
    return NULL;
}

enum dpt_status dpt_gradient_no_share(struct dpt_trainer *t, struct dpt_error *err)
{
    (void)t, (void)err;
    return DPT_OK;
}

enum dpt_status dpt_gradient_no_gather(struct dpt_trainer *t, double *values, int each,
                                       struct dpt_error *err)
{
    (void)t, (void)values, (void)each, (void)err;
    return DPT_OK;
}

const struct dpt_gradient_reduction_type dpt_gradient_reduction_allreduce = {
    .open = open_sums,
    .bytes = bytes,
    .close = close_sums,
    .begin = begin,
    .target = target,
    .done = done,
    .pass = pass,
    .again = again,
    .sum = sum,
    .sends = 2,
    .sums_of_squares = sums_of_squares,
    DPT_GRADIENT_OWNS_ALL,
};

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/train/gradient_reduction.h"
#include "core/train/mesh.h"
#include "core/train/units.h"

/* Where a rank found its first value that is not finite. */
struct finding {
    enum { NOTHING, IN_OUTPUT, IN_GRADIENT } kind;
    int32_t location; /* node, or tensor */
    int64_t sample;   /* the first one of the micro-batch of a gradient */
    char host[DPT_HOST_TEXT];
};

struct search {
    struct dpt_trainer *t;
    const struct dpt_step_view *view;
    float *gradient; /* a buffer for one */
    struct finding found;
    atomic_bool seen; /* in stages: by one of the threads */
};

/* The rank's k-th micro-batch of the step. */
static int32_t nth(const struct search *s, int32_t k)
{
    return dpt_sampler_nth(&s->t->data.train.sampler, s->t->comm->world.size, s->view->first, k);
}

/* Computes forward once more over the rank's samples of the step, with the weights that it had. */
static enum dpt_status search_outputs(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = s->t;
    struct dpt_batch batch = {.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};

    for (int32_t k = 0; k < s->view->last - s->view->first && s->found.kind == NOTHING; k++) {
        const int32_t i = nth(s, k);
        int32_t node, position;

        DPT_TRY(dpt_loader_fill(t->data.train.loader, s->view, i, &t->team.workers[0].buffer,
                                &batch, err));
        DPT_TRY(t->backend->find_nonfinite(t->model.program, 0, &batch, t->arenas.params, &node,
                                           &position, err));
        if (node >= 0)
            s->found = (struct finding){
                .kind = IN_OUTPUT, .location = node, .sample = batch.sample[position]};
    }
out:
    return status;
}

static bool is_finite(const struct dpt_tensor *tensor, const float *gradient)
{
    for (int64_t k = 0; k < tensor->count; k++)
        if (!isfinite(gradient[tensor->offset + k]))
            return false;
    return true;
}

/* The tensor whose values were the first that are not finite; -1: there is none. Statistics come
 * before gradients, in the order of the layers; backward came through the last gradient first. */
static int32_t bad_tensor(const struct dpt_graph *graph, const float *gradient)
{
    int32_t bad = -1;

    for (int32_t i = graph->n_tensors - 1; i >= 0; i--)
        if (!is_finite(&graph->tensors[i], gradient) && (bad < 0 || graph->tensors[i].state))
            bad = i;
    return bad;
}

/* All outputs are finite: computes backward once more, micro-batch by micro-batch, on the first
 * thread, or the whole team. */
static void search_gradients(void *arg, int thread)
{
    struct search *s = arg;
    struct dpt_trainer *t = s->t;
    struct dpt_worker *worker = &t->team.workers[thread];
    struct dpt_batch batch = {.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};

    if (thread != 0 && !t->team.together)
        return;
    for (int32_t k = 0; k < s->view->last - s->view->first; k++) {
        const int32_t i = nth(s, k);
        struct dpt_metric_sums metric_sums = {0};
        int32_t tensor = -1;

        worker->status = dpt_trainer_train(t, thread, s->view, i, 1, &batch, s->gradient, false,
                                           &metric_sums, &worker->err);
        if (worker->status != DPT_OK)
            return;
        if (thread == 0)
            tensor = bad_tensor(&t->model.graph, s->gradient);
        if (tensor >= 0) {
            s->found.kind = IN_GRADIENT;
            s->found.location = tensor;
            s->found.sample = batch.sample[0];
        }
        /* all threads read what the first one found before the next pass changes it */
        if (t->team.together)
            dpt_pool_barrier(t->team.pool);
        if (s->found.kind != NOTHING)
            return;
    }
}

/* By which statistics norms went in the search, where that is not those of the step. */
static const char *by_statistics(const struct dpt_trainer *t, const struct finding *f)
{
    const struct dpt_graph *graph = &t->model.graph;

    for (int32_t i = 0; f->kind == IN_OUTPUT && i <= f->location; i++)
        if (graph->nodes[i].op == DPT_OP_BATCHNORM && !graph->nodes[i].by_running)
            return " (norms by their running statistics)";
    return f->kind == IN_GRADIENT && t->team.lockstep ? " (norms by its own statistics)" : "";
}

static const char *advice(const struct dpt_trainer *t)
{
    return t->job->train.on_nan == DPT_ON_NAN_SKIP
               ? "the step is skipped"
               : "its update was withheld; a lower learning rate or train.clip_norm may help";
}

static enum dpt_status tell(const struct dpt_trainer *t, const struct finding *f, int rank,
                            struct dpt_error *err)
{
    const long long step = (long long)t->progress.step + 1;
    const char *what = advice(t);
    const char *by = by_statistics(t, f);
    char where[256] = "";

    if (f->kind != NOTHING)
        dpt_dataset_where(t->data.train.set, f->sample, where);
    if (f->kind == IN_OUTPUT)
        return dpt_fail(err, DPT_FAILED,
                        "step %lld: not a number: rank %d (%s), output of layer %s, %s%s; %s", step,
                        rank, f->host, t->model.graph.nodes[f->location].name, where, by, what);
    if (f->kind == IN_GRADIENT)
        return dpt_fail(
            err, DPT_FAILED,
            "step %lld: not a number: rank %d (%s), %s%s, micro-batch that begins with %s%s; %s",
            step, rank, f->host, t->model.graph.tensors[f->location].state ? "" : "gradient of ",
            t->model.graph.tensors[f->location].name, where, by, what);
    if (t->team.lockstep)
        return dpt_fail(err, DPT_FAILED,
                        "step %lld: not a number: no micro-batch by itself gives one, so the "
                        "statistics of the whole batch or the sums over the ranks overflow; %s",
                        step, what);
    return dpt_fail(
        err, DPT_FAILED,
        "step %lld: not a number: the sum of the ranks' losses or gradients overflows; %s", step,
        what);
}

/* --- in stages -------------------------------------------------------------------------------- */

/* Whether a value's numbers are finite: outputs are floats, and what stages give each other has the
 * job's precision. */
static bool are_finite(const struct dpt_trainer *t, const float *value, size_t floats)
{
    const int precision = t->job->device.precision;
    const unsigned exponent = precision == DPT_PRECISION_BF16 ? 0x7f80 : 0x7c00;
    const bool halves = precision >= DPT_PRECISION_BF16 && t->mesh.stage < t->mesh.stages - 1;
    bool finite = true;

    for (size_t i = 0; i < floats && !halves; i++)
        finite = finite && isfinite(value[i]);
    for (size_t i = 0; i < 2 * floats && halves; i++) {
        uint16_t bits;

        memcpy(&bits, (const char *)value + i * sizeof bits, sizeof bits);
        finite = finite && (bits & exponent) != exponent;
    }
    return finite;
}

/* Whether what a stage gives the next one, or the outputs, are numbers. */
static enum dpt_status look_at(void *arg, int thread, int32_t micro_batch,
                               const struct dpt_batch *batch, const float *value, size_t floats,
                               const struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct search *s = arg;

    (void)micro_batch, (void)metric_sums, (void)err;
    /* Of several threads that find something one may tell of it. */
    if (!are_finite(s->t, value, floats) && !atomic_exchange(&s->seen, true))
        s->found = (struct finding){.kind = IN_OUTPUT, .sample = batch->sample[0]};
    (void)thread;
    return DPT_OK;
}

/* Whether what this rank has of the step's gradient, and of what it adds to the state, is. */
static bool gradient_is_finite(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const bool sharded = dpt_trainer_sharded(t);
    const float *sum = sharded ? t->reduction.type->slice_sum(t) : t->reduction.sum;
    const struct dpt_slice all = {.end = (size_t)graph->floats};
    const struct dpt_slice own =
        sharded ? t->reduction.type->slice(t, dpt_trainer_replicas(t)->world.rank) : all;
    bool finite = true;

    for (size_t i = own.begin; i < own.end; i++)
        finite = finite && isfinite(sum[i]);
    for (int64_t i = graph->floats; i < graph->arena; i++)
        finite = finite && isfinite(t->reduction.sum[i]);
    return finite;
}

/* Collective. Names the first stage whose values are not finite or, where all are, the last one
 * whose gradient is not. */
static enum dpt_status find_in_stages(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = s->t;
    const struct dpt_pipeline_pass pass = {
        .split = &t->data.train, .view = s->view, .take = look_at, .arg = s};
    const int ranks = t->comm->world.size;
    struct finding worst = {0};
    char where[256] = "", place[48];
    double best;
    int mine = 2 * ranks; /* lower ones are told of first */

    status = dpt_pipeline_infer(t->mesh.pipeline, &pass, t->progress.epoch_step, DPT_OK, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    if (s->found.kind == IN_OUTPUT)
        mine = t->comm->world.rank;
    else if (!gradient_is_finite(t))
        s->found.kind = IN_GRADIENT;
    if (s->found.kind == IN_GRADIENT)
        mine = 2 * ranks - 1 - t->comm->world.rank;
    snprintf(s->found.host, sizeof s->found.host, "%s", t->comm->host);
    s->found.location = t->mesh.stage;
    DPT_TRY(dpt_group_max(&t->comm->world, -(double)mine, &best, err));
    if (-best >= 2 * ranks)
        return tell(t, &worst, 0, err);
    mine = (int)-best < ranks ? (int)-best : 2 * ranks - 1 - (int)-best;
    worst = s->found;
    DPT_TRY(dpt_group_broadcast(&t->comm->world, mine, &worst, sizeof worst, err));
    if (worst.kind == IN_OUTPUT)
        dpt_dataset_where(t->data.train.set, worst.sample, where);
    if (t->mesh.stages > 1)
        snprintf(place, sizeof place, "stage %d of %d", worst.location + 1, t->mesh.stages);
    else
        snprintf(place, sizeof place, "the model");
    status = dpt_fail(
        err, DPT_FAILED, "step %lld: not a number: rank %d (%s), %s of %s, from %s on%s%s; %s",
        (long long)t->progress.step + 1, mine, worst.host,
        worst.kind == IN_OUTPUT ? "values" : "gradient", place,
        t->model.graph.nodes[t->mesh.first[worst.location]].name,
        worst.kind == IN_OUTPUT ? ", micro-batch that begins with " : "", where, advice(t));
out:
    return status;
}

/* --- in units --------------------------------------------------------------------------------- */

/* Whether what a unit gives the next one, or the outputs, are numbers. */
static enum dpt_status look_behind(void *arg, int thread, int32_t micro_batch,
                                   const struct dpt_batch *batch, const float *value, size_t floats,
                                   const struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct search *s = arg;
    const bool seen = atomic_load(&s->seen);

    look_at(arg, thread, micro_batch, batch, value, floats, metric_sums, err);
    if (!seen && s->found.kind == IN_OUTPUT)
        s->found.location = dpt_units_now(s->t);
    return DPT_OK;
}

/* Of the tensors in what this rank owns of the gradient, the last one that is not finite; -1. */
static int32_t last_bad(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = &t->model.graph;
    const struct dpt_slice own = t->reduction.type->slice(t, t->comm->world.rank);
    const float *sum = t->reduction.type->slice_sum(t);
    int32_t bad = -1;

    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const size_t at = (size_t)graph->tensors[k].offset,
                     end = at + (size_t)graph->tensors[k].count;

        for (size_t i = at > own.begin ? at : own.begin; i < end && i < own.end; i++)
            bad = !isfinite(sum[i]) ? k : bad;
    }
    return bad;
}

/* Collective. Names the first layers whose values are not finite or, where all are, the tensor at
 * whose gradient that began. */
static enum dpt_status find_in_units(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = s->t;
    const struct dpt_group *world = &t->comm->world;
    const struct dpt_pipeline_pass pass = {
        .split = &t->data.train, .view = s->view, .take = look_behind, .arg = s};
    const long long step = (long long)t->progress.step + 1;
    struct finding worst;
    char where[256];
    double first, last;

    status = dpt_units_infer(t, &pass, true, t->progress.epoch_step, DPT_OK, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    snprintf(s->found.host, sizeof s->found.host, "%s", t->comm->host);
    worst = s->found;
    DPT_TRY(dpt_group_max(world,
                          s->found.kind == IN_OUTPUT ? -(double)world->rank : -(double)world->size,
                          &first, err));
    DPT_TRY(dpt_group_max(world, last_bad(t), &last, err));
    if (-first < world->size) {
        DPT_TRY(dpt_group_broadcast(world, (int)-first, &worst, sizeof worst, err));
        dpt_dataset_where(t->data.train.set, worst.sample, where);
        return dpt_fail(err, DPT_FAILED,
                        "step %lld: not a number: rank %d (%s), values of the layers from %s on, "
                        "micro-batch that begins with %s (norms by their running statistics); %s",
                        step, (int)-first, worst.host,
                        t->model.graph.nodes[t->units.node[worst.location]].name, where, advice(t));
    }
    if (last >= 0)
        return dpt_fail(err, DPT_FAILED, "step %lld: not a number: gradient of %s; %s", step,
                        t->model.graph.tensors[(int32_t)last].name, advice(t));
    status = tell(t, &(struct finding){.kind = NOTHING}, 0, err);
out:
    return status;
}

enum dpt_status dpt_trainer_find_nonfinite(struct dpt_trainer *t, const struct dpt_step_view *view,
                                           float *gradient, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct search s = {.t = t, .view = view, .gradient = gradient};
    struct finding worst = {0};
    int64_t first = t->comm->world.size, lowest;
    double largest;

    dpt_comm_note(t->comm, -1, "looking for what is not a number");
    if (t->mesh.stages > 0)
        return find_in_stages(&s, err);
    if (t->units.n > 0)
        return find_in_units(&s, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, search_outputs(&s, err), err));
    status = s.found.kind == NOTHING ? dpt_trainer_run(t, search_gradients, &s, err) : DPT_OK;
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    snprintf(s.found.host, sizeof s.found.host, "%s", t->comm->host);
    if (s.found.kind != NOTHING)
        first = t->comm->world.rank;
    DPT_TRY(dpt_group_max(&t->comm->world, -(double)first, &largest, err));
    lowest = (int64_t)-largest;
    if (lowest < t->comm->world.size) {
        worst = s.found;
        DPT_TRY(dpt_group_broadcast(&t->comm->world, (int)lowest, &worst, sizeof worst, err));
    }
    status = tell(t, &worst, (int)lowest, err);
out:
    return status;
}

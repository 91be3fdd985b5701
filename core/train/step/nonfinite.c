#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/step/engine.h"
#include "core/train/step/evaluate.h"
#include "core/train/step/step.h"
#include "core/train/team.h"

/* Where a rank found its first value that is not finite. */
struct finding {
    enum { NOTHING, IN_OUTPUT, IN_GRADIENT, IN_SUM } kind;
    int32_t location; /* node, or tensor */
    int32_t micro_batch;
    int64_t sample; /* the first one of the micro-batch of a gradient */
};

struct search {
    struct dpt_trainer *t;
    const struct dpt_step_view *view;
    float *gradient; /* a buffer for one */
    struct finding found;
    /* [threads]: where ranks or stages have parts of the weights */
    struct finding *found_by;
    struct dpt_nonfinite *nonfinite;
};

/* Computes forward once more over the rank's samples of the step, with the weights that it had. */
static enum dpt_status search_outputs(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = s->t;
    struct dpt_batch batch = {.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};

    for (int32_t k = 0; k < s->view->last - s->view->first && s->found.kind == NOTHING; k++) {
        const int32_t i = dpt_loader_nth(s->t->data.train.loader, s->view, k);
        struct dpt_nonfinite bad;

        DPT_TRY(dpt_loader_fill(t->data.train.loader, s->view, i, &t->team.workers[0].buffer,
                                &batch, err));
        DPT_TRY(
            t->backend->find_nonfinite(t->model.program, 0, &batch, t->arenas.params, &bad, err));
        if (bad.node >= 0)
            s->found = (struct finding){
                .kind = IN_OUTPUT, .location = bad.node, .sample = batch.sample[bad.position]};
    }
out:
    return status;
}

/* The tensor whose values were the first that are not finite; -1: there is none. Statistics come
 * before gradients, in the order of the layers; backward came through the last gradient first. */
static int32_t bad_tensor(const struct dpt_graph *graph, const float *gradient)
{
    int32_t bad = -1;

    for (int32_t i = graph->n_tensors - 1; i >= 0; i--)
        if (!dpt_is_finite(gradient + graph->tensors[i].offset, graph->tensors[i].count) &&
            (bad < 0 || graph->tensors[i].state))
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

    if (thread != 0 && !t->layout.together)
        return;
    for (int32_t k = 0; k < s->view->last - s->view->first; k++) {
        const int32_t i = dpt_loader_nth(s->t->data.train.loader, s->view, k);
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
        if (t->layout.together)
            dpt_pool_barrier(t->team.pool);
        if (s->found.kind != NOTHING)
            return;
    }
}

/* The statistics that norms used in the search, if not those of the step. */
static const char *by_statistics(const struct dpt_trainer *t, const struct finding *f)
{
    const struct dpt_graph *graph = &t->model.graph;

    for (int32_t i = 0; f->kind == IN_OUTPUT && i <= f->location; i++)
        if (graph->nodes[i].op == DPT_OP_BATCHNORM && !graph->nodes[i].by_running)
            return " (norms by their running statistics)";
    return f->kind == IN_GRADIENT && t->layout.synchronized ? " (norms by its own statistics)" : "";
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
    char where[256] = "", place[DPT_WHERE_TEXT] = "";

    if (f->kind == IN_OUTPUT || f->kind == IN_GRADIENT) {
        dpt_dataset_where(t->data.train.set, f->sample, where);
        dpt_comm_where(t->comm, rank, place);
    }
    if (f->kind == IN_OUTPUT)
        return dpt_fail(err, DPT_FAILED,
                        "step %lld: not a number: rank %d (%s), output of layer %s, %s%s; %s", step,
                        rank, place, t->model.graph.nodes[f->location].name, where, by, what);
    if (f->kind == IN_GRADIENT)
        return dpt_fail(
            err, DPT_FAILED,
            "step %lld: not a number: rank %d (%s), %s%s, micro-batch that begins with %s%s; %s",
            step, rank, place, t->model.graph.tensors[f->location].state ? "" : "gradient of ",
            t->model.graph.tensors[f->location].name, where, by, what);
    if (f->kind == IN_SUM)
        return dpt_fail(err, DPT_FAILED, "step %lld: not a number: %s%s; %s", step,
                        t->model.graph.tensors[f->location].state ? "" : "gradient of ",
                        t->model.graph.tensors[f->location].name, what);
    if (t->layout.synchronized)
        return dpt_fail(err, DPT_FAILED,
                        "step %lld: not a number: no micro-batch by itself gives one, so the "
                        "statistics of the whole batch or the sums over the ranks overflow; %s",
                        step, what);
    return dpt_fail(
        err, DPT_FAILED,
        "step %lld: not a number: the sum of the ranks' losses or gradients overflows; %s", step,
        what);
}

/* --- in parts --------------------------------------------------------------------------------- */

/* Notes the first value that is not finite in a micro-batch, which has gone through all that this
 * rank computes. */
static void note(void *arg, int thread, int32_t micro_batch, const struct dpt_batch *batch,
                 const float *value, const struct dpt_metric_sums *metric_sums)
{
    struct search *s = arg;
    struct finding *found = &s->found_by[thread];
    struct dpt_nonfinite *bad = &s->nonfinite[thread];

    (void)value, (void)metric_sums;
    if (bad->node >= 0 && found->kind == NOTHING)
        *found = (struct finding){.kind = IN_OUTPUT,
                                  .location = bad->node,
                                  .micro_batch = micro_batch,
                                  .sample = batch->sample[bad->position]};
    bad->node = -1;
}

/* Whether what this rank has of a tensor in the step's sum is finite. */
static bool is_finite_here(const struct dpt_trainer *t, const struct dpt_tensor *tensor)
{
    const size_t at = (size_t)tensor->offset, end = at + (size_t)tensor->count;
    const int range = tensor->state ? 0 : dpt_gradient_range_of(t, at);
    const float *sum = tensor->state ? t->reduction.sum : t->reduction.type->slice_sum(t, range);
    const struct dpt_slice all = {.end = (size_t)dpt_trainer_graph(t)->arena};
    const struct dpt_slice own = tensor->state ? all : dpt_gradient_own(t, range);
    const size_t begin = at > own.begin ? at : own.begin, last = end < own.end ? end : own.end;

    return dpt_is_finite(sum + begin, (int64_t)last - (int64_t)begin);
}

/* Collective, if all values are finite. Finds the tensor whose part of the step's sum is not, in
 * the order of bad_tensor. The sum does not show which rank gave it. */
static enum dpt_status search_sum(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(s->t);
    double mine = -1, worst; /* a tensor's number; of state, which comes first, above all others */

    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const double k = graph->tensors[i].state ? 2 * graph->n_tensors - i : i;

        if (k > mine && !is_finite_here(s->t, &graph->tensors[i]))
            mine = k;
    }
    DPT_TRY(dpt_group_max(&s->t->comm->world, mine, &worst, err));
    if (worst >= 0)
        s->found = (struct finding){
            .kind = IN_SUM,
            .location = (int32_t)(worst > graph->n_tensors ? 2 * graph->n_tensors - worst : worst)};
out:
    return status;
}

/* Collective. If ranks have parts of the weights, computes forward once more and finds the first of
 * this rank's micro-batches whose values are not finite or, if there is none, the part of the sum
 * that is not. */
static enum dpt_status search_parts(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = s->t;
    const size_t threads = (size_t)t->layout.threads;
    struct dpt_runner_pass pass = {
        .split = &t->data.train, .view = s->view, .take = note, .arg = s};
    double any;

    status = DPT_ALLOCATE(s->found_by, threads, "the search", err);
    if (status == DPT_OK)
        status = DPT_ALLOCATE(s->nonfinite, threads, "the search", err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    for (size_t k = 0; k < threads; k++)
        s->nonfinite[k].node = -1;
    pass.nonfinite = s->nonfinite;
    status = dpt_runner_infer(t->runner, &pass, t->progress.epoch_step, DPT_OK, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    for (size_t k = 0; k < threads; k++)
        if (s->found_by[k].kind != NOTHING &&
            (s->found.kind == NOTHING || s->found_by[k].micro_batch < s->found.micro_batch))
            s->found = s->found_by[k];
    DPT_TRY(dpt_group_max(&t->comm->world, s->found.kind != NOTHING, &any, err));
    if (any == 0)
        DPT_TRY(search_sum(s, err));
out:
    dpt_free(s->found_by);
    dpt_free(s->nonfinite);
    return status;
}

/* --- both ------------------------------------------------------------------------------------- */

/* Collective. Finds what this rank can find by itself, where each has all of the weights. */
static enum dpt_status search_alone(struct search *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_group_agree(&s->t->comm->world, search_outputs(s, err), err));
    status = s->found.kind == NOTHING ? dpt_trainer_run(s->t, search_gradients, s, err) : DPT_OK;
    DPT_TRY(dpt_group_agree(&s->t->comm->world, status, err));
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
    DPT_TRY(t->layout.in_parts ? search_parts(&s, err) : search_alone(&s, err));
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

enum dpt_status dpt_trainer_check_outputs(const struct dpt_trainer *t,
                                          const struct dpt_split *split, struct dpt_error *err)
{
    char where[256];

    if (t->nonfinite.samples == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_FAILED,
                    "data.%s: not a number: outputs for %lld of %lld samples; the first is %s",
                    split->name, (long long)t->nonfinite.samples, (long long)split->sampler.samples,
                    dpt_dataset_where(split->set, t->nonfinite.first, where));
}

#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/parts.h"

/* What is kept of a micro-batch, each a double, so that the ranks can add them up. */
enum { LOSS, CORRECT, SAMPLES, WEIGHT, SUMS };

struct eval_work {
    struct dpt_trainer *t;
    struct dpt_split *split;
    struct dpt_step_view view;
    int64_t micros; /* micro-batches of a whole step */
};

static int64_t micro_batches(const struct dpt_split *split)
{
    const struct dpt_sampler *s = &split->sampler;

    return (s->samples + s->micro - 1) / s->micro;
}

enum dpt_status dpt_trainer_open_evaluation(struct dpt_trainer *t, struct dpt_error *err)
{
    int64_t most = 1;

    for (size_t i = 0; i < DPT_SPLITS; i++)
        if (t->data.split[i].present && micro_batches(&t->data.split[i]) > most)
            most = micro_batches(&t->data.split[i]);
    return DPT_ALLOCATE(t->sums, (size_t)most * SUMS, "an evaluation", err);
}

void dpt_trainer_close_evaluation(struct dpt_trainer *t)
{
    dpt_free(t->sums);
    t->sums = NULL;
}

static void evaluate_part(void *arg, int thread)
{
    struct eval_work *w = arg;
    struct dpt_trainer *t = w->t;
    struct dpt_worker *worker = &t->team.workers[thread];
    const int32_t n = w->view.last - w->view.first;
    const int32_t end = w->view.first + n * (thread + 1) / t->team.threads;
    struct dpt_batch batch = {0};

    for (int32_t i = w->view.first + n * thread / t->team.threads; i < end; i++) {
        struct dpt_metric_sums metric_sums = {0};
        double *sums;

        worker->status =
            dpt_loader_fill(w->split->loader, &w->view, i, &worker->buffer, &batch, &worker->err);
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
        if (worker->status == DPT_OK)
            worker->status = t->backend->infer(t->model.program, thread, &batch, t->arenas.params,
                                               NULL, &metric_sums, &worker->err);
        if (worker->status != DPT_OK)
            return;
        sums = t->sums + (w->view.step * w->micros + i) * SUMS;
        sums[LOSS] = metric_sums.loss;
        sums[CORRECT] = metric_sums.correct;
        sums[SAMPLES] = (double)metric_sums.samples;
        sums[WEIGHT] = metric_sums.weight;
    }
}

/* This rank's part of the split. */
static enum dpt_status evaluate_rank(struct eval_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t steps = dpt_sampler_steps(&w->split->sampler);

    DPT_TRY(dpt_fault_strike_evaluation(&w->t->fault, w->t->comm->world.rank, w->t->progress.step,
                                        err));
    memset(w->t->sums, 0, (size_t)micro_batches(w->split) * SUMS * sizeof *w->t->sums);
    DPT_TRY(dpt_loader_seek(w->split->loader, 0, 0, err));
    for (int64_t step = 0; step < steps; step++) {
        DPT_TRY(dpt_loader_next(w->split->loader, &w->view, err));
        DPT_TRY(dpt_trainer_run(w->t, evaluate_part, w, err));
    }
out:
    return status;
}

enum dpt_status dpt_evaluate_split(struct dpt_trainer *t, struct dpt_split *split,
                                   struct dpt_metric_sums *total, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct eval_work w = {
        .t = t, .split = split, .micros = split->sampler.global / split->sampler.micro};
    const int64_t n = micro_batches(split);
    char word[32];

    snprintf(word, sizeof word, "evaluating data.%s", split->name);
    dpt_comm_note(t->comm, t->progress.step, word);
    mine = evaluate_rank(&w, err);
    if (mine != DPT_OK)
        dpt_error_prefix(err, "%s after step %lld: ", word, (long long)t->progress.step);
    DPT_TRY(dpt_group_agree(&t->comm->world, mine, err));
    /* Each number is on one rank and zero on the others, so the ranks' sum is exact; then all add
     * in the same order. */
    DPT_TRY(dpt_group_sum_doubles(&t->comm->world, t->sums, t->sums, (size_t)n * SUMS, err));
    *total = (struct dpt_metric_sums){0};
    for (int64_t i = 0; i < n; i++) {
        const double *sums = t->sums + i * SUMS;
        const struct dpt_metric_sums one = {sums[LOSS], sums[CORRECT], (int64_t)sums[SAMPLES],
                                            sums[WEIGHT]};

        dpt_metric_sums_add(total, &one);
    }
    if (total->samples != split->sampler.samples)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were evaluated", split->name,
                         (long long)total->samples, (long long)split->sampler.samples));
out:
    return status;
}

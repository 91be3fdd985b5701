#include <stdio.h>
#include <string.h>

#include "core/train/profile.h"
#include "core/train/trainer.h"

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

static void evaluate_part(void *arg, int thread)
{
    struct eval_work *w = arg;
    struct dpt_trainer *t = w->t;
    struct dpt_worker *worker = &t->workers[thread];
    const int32_t n = w->view.last - w->view.first;
    const int32_t end = w->view.first + n * (thread + 1) / t->threads;
    struct dpt_batch batch = {0};

    for (int32_t i = w->view.first + n * thread / t->threads; i < end; i++) {
        struct dpt_tally tally = {0};

        worker->status =
            dpt_loader_fill(w->split->loader, &w->view, i, &worker->buffer, &batch, &worker->err);
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
        if (worker->status == DPT_OK)
            worker->status = t->backend->infer(t->program, thread, &batch, t->params, NULL, &tally,
                                               &worker->err);
        if (worker->status != DPT_OK)
            return;
        t->losses[w->view.step * w->micros + i] = tally.loss;
        worker->tally.correct += tally.correct;
        worker->tally.samples += tally.samples;
    }
}

/* This rank's part of the split. */
static enum dpt_status evaluate_rank(struct eval_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t steps = dpt_sampler_steps(&w->split->sampler);

    memset(w->t->losses, 0, (size_t)micro_batches(w->split) * sizeof *w->t->losses);
    for (int i = 0; i < w->t->threads; i++)
        memset(&w->t->workers[i].tally, 0, sizeof w->t->workers[i].tally);
    DPT_TRY(dpt_loader_seek(w->split->loader, 0, 0, err));
    for (int64_t step = 0; step < steps; step++) {
        DPT_TRY(dpt_loader_next(w->split->loader, &w->view, err));
        DPT_TRY(dpt_trainer_run(w->t, evaluate_part, w, err));
    }
out:
    return status;
}

enum dpt_status dpt_trainer_evaluate(struct dpt_trainer *t, struct dpt_split *split,
                                     struct dpt_tally *total, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct eval_work w = {
        .t = t, .split = split, .micros = split->sampler.global / split->sampler.micro};
    const int64_t n = micro_batches(split);
    struct dpt_error plain;
    char word[32];
    int64_t counts[2] = {0};

    snprintf(word, sizeof word, "evaluating data.%s", split->name);
    dpt_comm_note(t->comm, t->progress.step, word);
    mine = evaluate_rank(&w, err);
    if (mine != DPT_OK) {
        plain = *err;
        dpt_fail(err, mine, "%s after step %lld: %s", word, (long long)t->progress.step,
                 plain.text);
    }
    DPT_TRY(dpt_group_agree(&t->comm->world, mine, err));
    for (int i = 0; i < t->threads; i++) {
        counts[0] += t->workers[i].tally.correct;
        counts[1] += t->workers[i].tally.samples;
    }
    /* Each loss is on one rank and zero on the others, so the ranks' sum is exact; then all add in
     * the same order. */
    DPT_TRY(dpt_group_sum_doubles(&t->comm->world, t->losses, t->losses, (size_t)n, err));
    total->loss = 0;
    for (int64_t i = 0; i < n; i++)
        total->loss += t->losses[i];
    DPT_TRY(dpt_group_sum_ints(&t->comm->world, counts, counts, 2, err));
    total->correct = counts[0];
    total->samples = counts[1];
    if (total->samples != split->sampler.samples)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were evaluated", split->name,
                         (long long)total->samples, (long long)split->sampler.samples));
out:
    return status;
}

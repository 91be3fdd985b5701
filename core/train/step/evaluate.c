#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/step/engine.h"
#include "core/train/step/evaluate.h"
#include "core/train/step/runner.h"
#include "models/model.h"

/* What is kept of a micro-batch, each a double, so that the ranks can add them up: metric sums, how
 * many samples have outputs that are not finite, and where the first of these stands; with loss mse
 * then each output's sums of absolute and of squared errors. */
enum { LOSS, CORRECT, SAMPLES, WEIGHT, NONFINITE, FIRST, SUMS };

enum { COLUMNS = 79 }; /* length of a line for a person */

struct eval_work {
    struct dpt_trainer *t;
    struct dpt_split *split;
    struct dpt_step_view view;
    int64_t micros; /* micro-batches of a whole step */
    int64_t window; /* steps whose sums are kept until all ranks have them and add them */
    int64_t step;   /* the present one */
    size_t sums;    /* sums per micro-batch */
    double *errors; /* a regression's, of all micro-batches so far */
    struct dpt_metric_sums total; /* likewise */
    int32_t outputs;
    struct dpt_said said; /* width 0: nothing is kept of each sample */
};

/* Whether a model's outputs are numbers to be compared with targets one by one. */
static bool is_regression(const struct dpt_trainer *t)
{
    return !dpt_loss_judges(t->model.loss.kind);
}

/* Whether the two classes are those of a single label. */
static bool is_pair(const struct dpt_trainer *t)
{
    return t->decision != NULL && t->decision->pair;
}

int32_t dpt_trainer_labels(const struct dpt_trainer *t)
{
    return t->model.loss.kind == DPT_LOSS_BINARY_CROSS_ENTROPY && !is_pair(t)
               ? dpt_graph_outputs(&t->model.graph)
               : 0;
}

int32_t dpt_trainer_classes(const struct dpt_trainer *t)
{
    return is_pair(t) ? 2 : dpt_graph_outputs(&t->model.graph);
}

/* Whether a sample has a class, also as a single label. */
static bool has_classes(const struct dpt_trainer *t)
{
    return dpt_loss_has_classes(t->model.loss.kind) || is_pair(t);
}

static bool has_labels(const struct dpt_trainer *t)
{
    return dpt_trainer_labels(t) > 0;
}

/* What is kept of each sample for the scores of classes or labels. */
static int32_t said_width(const struct dpt_trainer *t, const struct dpt_split *split)
{
    const int32_t classes = dpt_trainer_classes(t);
    const bool labels = has_labels(t);

    return labels || (has_classes(t) && classes >= 2)
               ? dpt_said_width(classes, split->sampler.samples, t->all_scores, labels)
               : 0;
}

/* Of what is kept of all samples. */
static size_t said_bytes(const struct eval_work *w)
{
    return (size_t)w->split->sampler.samples * (size_t)w->said.width * sizeof *w->said.rows;
}

static size_t count_sums(const struct dpt_trainer *t)
{
    return SUMS + (is_regression(t) ? 2 * (size_t)dpt_graph_outputs(&t->model.graph) : 0);
}

/* The micro-batches of a whole step, whose last one may be short. */
static int64_t step_micro_batches(const struct dpt_split *split)
{
    const struct dpt_sampler *s = &split->sampler;

    return ((int64_t)s->global + s->micro - 1) / s->micro;
}

static int64_t window_steps(const struct dpt_split *split, size_t sums)
{
    const int64_t steps = dpt_sampler_steps(&split->sampler),
                  room = DPT_EVALUATION_SUMS / ((int64_t)sums * step_micro_batches(split));

    return room < 1 ? 1 : room < steps ? room : steps;
}

enum dpt_status dpt_trainer_open_evaluation(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t most = 1;
    int32_t micro = 0;

    for (size_t i = 0; i < DPT_SPLITS; i++)
        if (t->data.split[i].present) {
            const struct dpt_split *split = &t->data.split[i];
            const int64_t n = window_steps(split, count_sums(t)) * step_micro_batches(split);

            most = n > most ? n : most;
            micro = split->sampler.micro;
        }
    DPT_TRY(DPT_ALLOCATE(t->sums, (size_t)(most + 1) * count_sums(t), "an evaluation", err));
    if (micro > 0)
        DPT_TRY(DPT_ALLOCATE(t->outputs,
                             (size_t)t->layout.threads * (size_t)micro *
                                 (size_t)dpt_graph_outputs(&t->model.graph),
                             "an evaluation", err));
out:
    return status;
}

void dpt_trainer_close_evaluation(struct dpt_trainer *t)
{
    dpt_free(t->sums);
    dpt_free(t->outputs);
    dpt_free(t->classes);
    dpt_free(t->confusion);
    t->sums = NULL;
    t->outputs = NULL;
    t->classes = NULL;
    t->confusion = NULL;
}

/* Adds a micro-batch's errors in the targets' units, which those of the data set have. */
static void add_errors(const struct eval_work *w, const struct dpt_batch *batch,
                       const float *outputs, double *absolute)
{
    const struct dpt_dataset *set = w->split->set;
    double *squared = absolute + w->outputs;

    for (int32_t i = 0; i < batch->count; i++, outputs += w->outputs) {
        const float *target = set->targets + batch->sample[i] * w->outputs;
        const double weight = batch->weights != NULL ? batch->weights[i] : 1;

        for (int32_t k = 0; weight != 0 && k < w->outputs; k++) {
            const double y = dpt_target_scale_undo(&w->t->targets, k, outputs[k]);

            absolute[k] += weight * fabs(y - target[k]);
            squared[k] += weight * (y - target[k]) * (y - target[k]);
        }
    }
}

/* Keeps what a micro-batch's classes are said to be, where its samples stand in the evaluation. */
static void keep_said(const struct eval_work *w, const struct dpt_batch *batch, int64_t first,
                      const float *outputs)
{
    if (has_labels(w->t))
        memcpy(w->said.rows + first * w->outputs, outputs,
               (size_t)batch->count * (size_t)w->outputs * sizeof *outputs);
    for (int32_t i = 0; !has_labels(w->t) && i < batch->count; i++, outputs += w->outputs) {
        const float logits[2] = {0, outputs[0]};

        dpt_said_put(&w->said, first + i, dpt_class_of(w->split->set, batch->sample[i]),
                     is_pair(w->t) ? logits : outputs);
    }
}

/* Counts a micro-batch's samples whose outputs are not finite, and notes the first one. */
static void note_nonfinite(const struct eval_work *w, const struct dpt_batch *batch, int64_t first,
                           const float *outputs, double *sums)
{
    for (int32_t i = 0; i < batch->count; i++, outputs += w->outputs) {
        if (dpt_is_finite(outputs, w->outputs) ||
            (batch->weights != NULL && batch->weights[i] == 0))
            continue;
        if (sums[NONFINITE]++ == 0)
            sums[FIRST] = (double)(first + i);
    }
}

/* Keeps what a micro-batch gave in an evaluation's pass (struct dpt_runner_pass), if this rank has
 * the outputs. */
static void take(void *arg, int thread, int32_t micro_batch, const struct dpt_batch *batch,
                 const float *outputs, const struct dpt_metric_sums *metric_sums)
{
    struct eval_work *w = arg;
    const struct dpt_trainer *t = w->t;
    const struct dpt_sampler *s = &w->split->sampler;
    const int64_t first = w->view.step * s->global + (int64_t)micro_batch * s->micro;
    double *sums = t->sums + (size_t)(w->step % w->window * w->micros + micro_batch) * w->sums;

    (void)thread;
    if (t->stage->number < t->layout.stages - 1 || t->mesh.part > 0)
        return;
    sums[LOSS] = metric_sums->loss;
    sums[CORRECT] = metric_sums->correct;
    sums[SAMPLES] = (double)metric_sums->samples;
    sums[WEIGHT] = metric_sums->weight;
    note_nonfinite(w, batch, first, outputs, sums);
    if (w->said.width > 0)
        keep_said(w, batch, first, outputs);
    else if (is_regression(t))
        add_errors(w, batch, outputs, sums + SUMS);
}

/* Adds up what all micro-batches of a window gave, on all ranks in the same order. Each number is
 * on one rank and zero on the others, so the ranks' sum of it is exact. Collective. */
static enum dpt_status end_window(struct eval_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = w->t;
    const int64_t n = w->window * w->micros;

    DPT_TRY(dpt_group_sum_doubles(&t->comm->world, t->sums, t->sums, (size_t)n * w->sums, err));
    for (int64_t i = 0; i < n; i++) {
        const double *sums = t->sums + (size_t)i * w->sums;
        const struct dpt_metric_sums one = {sums[LOSS], sums[CORRECT], (int64_t)sums[SAMPLES],
                                            sums[WEIGHT]};

        dpt_metric_sums_add(&w->total, &one);
        if (t->nonfinite.samples == 0 && sums[NONFINITE] > 0)
            dpt_sampler_samples(&w->split->sampler, 0, (int64_t)sums[FIRST], 1,
                                &t->nonfinite.first);
        t->nonfinite.samples += (int64_t)sums[NONFINITE];
        for (size_t k = SUMS; k < w->sums; k++)
            w->errors[k - SUMS] += sums[k];
    }
    memset(t->sums, 0, (size_t)n * w->sums * sizeof *t->sums);
out:
    return status;
}

/* Gets ready for the first step. */
static enum dpt_status begin_rank(struct eval_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    w->t->nonfinite.samples = 0;
    w->errors = w->t->sums + (size_t)(w->window * w->micros) * w->sums;
    memset(w->t->sums, 0, (size_t)(w->window * w->micros + 1) * w->sums * sizeof *w->t->sums);
    DPT_TRY(dpt_fault_strike(&w->t->fault, w->t->comm->world.rank, w->t->progress.step,
                             DPT_FAULT_EVALUATION, NULL, 0, err));
    /* Each rank writes its own samples' rows, and rank 0 gets all: others touch only their own. */
    if (w->said.width > 0 && (w->said.rows = dpt_reserve(said_bytes(w))) == NULL)
        DPT_TRY(dpt_fail_memory(err, "an evaluation", (double)said_bytes(w)));
    DPT_TRY(dpt_loader_seek(w->split->loader, 0, 0, err));
out:
    return status;
}

/* Evaluates this rank's part of the split. A rank that failed continues, as others may need it for
 * theirs; a single rank skips the rest of the step. Collective. */
static enum dpt_status evaluate_rank(struct eval_work *w, struct dpt_error *err)
{
    enum dpt_status status = begin_rank(w, err), other;
    struct dpt_error unused;
    const int64_t steps = dpt_sampler_steps(&w->split->sampler);
    const struct dpt_runner_pass pass = {
        .split = w->split,
        .view = &w->view,
        .take = take,
        .arg = w,
        .outputs = w->t->outputs,
        .stride = (size_t)w->split->sampler.micro * (size_t)w->outputs,
    };

    for (w->step = 0; w->step < steps; w->step++) {
        if (status == DPT_OK)
            status = dpt_loader_next(w->split->loader, &w->view, err);
        other = dpt_runner_infer(w->t->runner, &pass, w->step, status,
                                 status == DPT_OK ? err : &unused);
        status = status == DPT_OK ? other : status;
        if ((w->step + 1) % w->window != 0 && w->step + 1 < steps)
            continue;
        other = end_window(w, status == DPT_OK ? err : &unused);
        status = status == DPT_OK ? other : status;
    }
    return status;
}

/* Decides all samples by the thresholds, on rank 0: the chosen classes, and how many are right. */
static void decide(struct eval_work *w, struct dpt_metric_sums *total)
{
    const struct dpt_decision *d = w->t->decision;
    const struct dpt_dataset *set = w->split->set;

    total->correct = 0;
    for (int64_t i = 0; i < w->split->sampler.samples; i++) {
        float *row = w->said.rows + i * w->said.width;
        bool right = true;
        int64_t sample;

        dpt_sampler_samples(&w->split->sampler, 0, i, 1, &sample);
        if (d->labels) {
            for (int32_t k = 0; k < d->classes && right; k++)
                right = dpt_label_holds(row[k], d->odds[k]) == dpt_is_of(set, sample, true, k);
        } else {
            row[DPT_SAID_CHOSEN] = (float)dpt_decide(d, row + DPT_SAID_LOGITS);
            right = (int32_t)row[DPT_SAID_CHOSEN] == dpt_class_of(set, sample);
        }
        if (right)
            total->correct += set->weights != NULL ? set->weights[sample] : 1;
    }
}

/* Finds, on rank 0, the threshold of the positive class that gives the requested recall. */
static enum dpt_status find_threshold(const struct eval_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_decision *d = w->t->decision;
    struct dpt_curve curve = {0};

    DPT_TRY(dpt_curve_open(&curve, w->split->set, &w->split->sampler, &w->said, d->labels,
                           w->t->positive.class, err));
    if (curve.n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "--recall: none of the %s samples is of the positive class",
                         w->split->name));
    d->found = dpt_curve_find(&curve, d->wished);
out:
    dpt_free(curve.at);
    return status;
}

/* Computes, on rank 0, the scores of classes or labels, and their confusion matrix unless they are
 * too many. */
static enum dpt_status score_classes(struct eval_work *w, struct dpt_metric_sums *total,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = w->t;
    const struct dpt_split *split = w->split;
    const size_t n = (size_t)dpt_trainer_classes(t);
    const struct dpt_decision *d = t->decision;

    dpt_free(t->classes);
    dpt_free(t->confusion);
    t->confusion = NULL;
    DPT_TRY(DPT_ALLOCATE(t->classes, n, "an evaluation", err));
    if (d != NULL && !d->labels && (size_t)w->said.width < DPT_SAID_LOGITS + n)
        return dpt_fail(err, DPT_USAGE,
                        "%lld samples of %zu classes are too many to keep what is said of each: "
                        "thresholds are for fewer",
                        (long long)split->sampler.samples, n);
    if (d != NULL && d->decides)
        decide(w, total);
    if (d != NULL && d->wished > 0)
        DPT_TRY(find_threshold(w, err));
    if (has_labels(t))
        return dpt_scores_labels(&t->scores, split->set, &split->sampler, &w->said,
                                 d != NULL ? d->odds : NULL, &t->positive, t->classes, err);
    if (n <= DPT_SCORES_CLASSES)
        DPT_TRY(DPT_ALLOCATE(t->confusion, n * n, "an evaluation", err));
    DPT_TRY(dpt_scores_classes(&t->scores, split->set, &split->sampler, &w->said, &t->positive,
                               t->classes, t->confusion, err));
out:
    return status;
}

/* Computes the scores, on rank 0, from the sums of all micro-batches. */
static enum dpt_status score(struct eval_work *w, struct dpt_metric_sums *total,
                             struct dpt_error *err)
{
    if (w->t->nonfinite.samples > 0) { /* scores need finite outputs */
        dpt_free(w->t->classes);
        w->t->classes = NULL;
        return DPT_OK;
    }
    if (w->said.width > 0)
        return score_classes(w, total, err);
    if (w->t->decision != NULL)
        return dpt_fail(err, DPT_USAGE, "there are too many samples times labels for thresholds");
    if (!is_regression(w->t))
        return DPT_OK;
    return dpt_scores_regression(&w->t->scores, w->split->set, &w->split->sampler, w->errors,
                                 w->errors + w->outputs, total->weight, err);
}

void dpt_trainer_find_positive(struct dpt_trainer *t, const struct dpt_split *split)
{
    struct dpt_data_conf conf = t->job->data;
    const bool labels = has_labels(t);
    struct dpt_dataset_spec spec = dpt_job_dataset(t->job, &conf.train);
    struct dpt_dataset set = {0};
    struct dpt_error why = {0};

    if (t->positive.training ||
        !(t->positive.told || (has_classes(t) && dpt_trainer_classes(t) == 2)))
        return;
    if (t->data.train.present) {
        dpt_positive_count(&t->positive, t->data.train.set, NULL, labels);
        return;
    }
    spec.conf = &conf;
    conf.cache = DPT_CACHE_NONE; /* the labels alone */
    conf.verify = false;
    conf.class_weights.how = DPT_CLASSES_ALIKE;
    if (t->all_scores && dpt_dataset_open(&set, &spec, t->comm, &why) == DPT_OK &&
        dpt_dataset_check_targets(&set, dpt_graph_outputs(&t->model.graph), &why) == DPT_OK)
        dpt_positive_count(&t->positive, &set, NULL, labels);
    else
        dpt_positive_count(&t->positive, split->set, &split->sampler, labels);
    dpt_dataset_close(&set);
}

enum dpt_status dpt_evaluate_split(struct dpt_trainer *t, struct dpt_split *split,
                                   struct dpt_metric_sums *total, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct eval_work w = {
        .t = t,
        .split = split,
        .micros = step_micro_batches(split),
        .window = window_steps(split, count_sums(t)),
        .sums = count_sums(t),
        .outputs = dpt_graph_outputs(&t->model.graph),
        .said = {.outputs = dpt_trainer_classes(t), .width = said_width(t, split)},
    };
    char word[32];

    dpt_trainer_find_positive(t, split);
    snprintf(word, sizeof word, "evaluating data.%s", split->name);
    dpt_comm_note(t->comm, t->progress.step, word);
    dpt_comm_started(t->comm);
    mine = evaluate_rank(&w, err);
    if (mine != DPT_OK)
        dpt_error_prefix(err, "%s after step %lld: ", word, (long long)t->progress.step);
    DPT_TRY(dpt_group_agree(&t->comm->world, mine, err));
    if (w.said.width > 0)
        DPT_TRY(dpt_group_sum_floats_at_first(&t->comm->world, w.said.rows,
                                              said_bytes(&w) / sizeof(float), err));
    *total = w.total;
    if (total->samples != split->sampler.samples)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were evaluated", split->name,
                         (long long)total->samples, (long long)split->sampler.samples));
    dpt_scores_clear(&t->scores);
    DPT_TRY(dpt_group_agree(&t->comm->world,
                            t->comm->world.rank == 0 ? score(&w, total, err) : DPT_OK, err));
    if (t->decision != NULL)
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, total, sizeof *total, err));
out:
    dpt_unreserve(w.said.rows, said_bytes(&w));
    return status;
}

const char *dpt_trainer_accuracy_name(const struct dpt_trainer *t)
{
    return dpt_trainer_labels(t) > 1 ? "exact match" : "accuracy";
}

void dpt_trainer_tell(const struct dpt_trainer *t, const char *split,
                      const struct dpt_metric_sums *sums, const struct dpt_scores *scores,
                      int digits, struct dpt_str *out)
{
    char samples[32], scored[DPT_SCORES_TEXT];

    dpt_str_printf(out, "%s ", split);
    if (dpt_loss_judges(t->model.loss.kind))
        dpt_str_printf(out, "%s %.4f, ", dpt_trainer_accuracy_name(t),
                       dpt_metric_sums_accuracy(sums));
    dpt_str_printf(out, "loss %.*g%s%s on %s samples", digits, dpt_metric_sums_loss(sums),
                   dpt_target_scale_changes(&t->targets) ? " of scaled targets" : "",
                   dpt_scores_text(scores, false, ", ", ", ", scored),
                   dpt_group_digits(samples, sums->samples));
    if (dpt_target_scale_changes(&t->targets))
        dpt_str_printf(out, ", MAE and RMSE in their units");
    if (sums->weight != (double)sums->samples)
        dpt_str_printf(out, " (weights sum to %.6g)", sums->weight);
    dpt_str_printf(out, "\n");
    if (scores->uneven) {
        struct dpt_str text = {0};

        dpt_str_printf(&text, "classes are imbalanced: ");
        dpt_scores_uneven(scores, &t->called, "these", &text);
        dpt_str_printf(out, "  ");
        dpt_str_wrap(out, text.text != NULL ? text.text : "", 2, 2, COLUMNS);
        out->failed = out->failed || text.failed;
        dpt_str_release(&text);
    }
}

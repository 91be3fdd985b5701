/* What a run reports at its end: its summary, and the `end` event. */
#include <math.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/process.h"
#include "core/train/run/run.h"
#include "core/train/setup/state.h"
#include "core/train/step/engine.h"
#include "core/train/step/evaluate.h"
#include "data/sets/dataset.h"

enum { DIGITS = DPT_RATE_TEXT };

/* Synthetic regression has true weights to compare with, if the model is one dense layer. */
static void compare_weights(const struct dpt_trainer *t, struct dpt_str *out)
{
    const float *w = dpt_dataset_true_weights(t->data.train.set);
    const float *b = dpt_dataset_true_biases(t->data.train.set);
    const struct dpt_tensor *weight = &t->model.graph.tensors[0],
                            *bias = &t->model.graph.tensors[1];
    double worst = 0;

    if (w == NULL || t->targets.transform != DPT_TARGETS_PLAIN || t->model.graph.n_tensors != 2 ||
        weight->n_dims != 2 || !dpt_trainer_has_all(t, DPT_PARAMS))
        return;
    dpt_str_printf(out, "%-12s %10s %10s\n", "weight", "learned", "true");
    for (int64_t i = 0; i < weight->count + bias->count; i++) {
        const bool is_bias = i >= weight->count;
        const int64_t k = is_bias ? i - weight->count : i, inputs = weight->dims[1];
        const int64_t output = is_bias ? k : k / inputs;
        const float given = t->arenas.params[(is_bias ? bias : weight)->offset + k];
        const float std = t->targets.used ? t->targets.std[output] : 1;
        const float learned =
            given * std + (is_bias && t->targets.used ? t->targets.mean[output] : 0);
        const float truth = is_bias ? b[k] : w[k];
        char name[64];

        if (is_bias)
            snprintf(name, sizeof name, "b[%lld]", (long long)k);
        else
            snprintf(name, sizeof name, "w[%lld][%lld]", (long long)(k / inputs),
                     (long long)(k % inputs));
        worst = fmax(worst, fabs((double)learned - truth));
        if (i < 20 || is_bias)
            dpt_str_printf(out, "%-12s %10.5f %10.5f\n", name, learned, truth);
        else if (i == 20)
            dpt_str_printf(out, "…\n");
    }
    dpt_str_printf(out, "largest difference %.2g\n", worst);
}

/* Whether the run came to its end while it still learned: of several evaluations the last one was
 * the best. */
static bool still_learned(const struct dpt_run *run)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_progress *p = &t->progress;
    const struct dpt_every *every = &t->job->eval.every;

    return run->valid.samples > 0 && p->best_step == p->step && p->step == t->steps &&
           (double)p->step > dpt_run_steps_of(t, every) && every->unit != DPT_NEVER;
}

/* Reports by what value, and at which step, the best checkpoint was found, and its test result
 * beside that of the last one. */
static void tell_best(const struct dpt_run *run, struct dpt_str *out)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_progress *p = &t->progress;
    const bool tested = run->best_test.samples > 0, epochs = t->job->train.epochs > 0;

    if (run->test.samples > 0)
        dpt_trainer_tell(t, tested ? "last test" : "test", &run->test, &run->test_scores, 4, out);
    if (tested)
        dpt_trainer_tell(t, "best test", &run->best_test, &run->best_test_scores, 4, out);
    if (p->best_monitor[0] != '\0' && p->best_step >= 0)
        dpt_str_printf(out, "best by %s: %.4g at epoch %lld, step %lld%s\n", p->best_monitor,
                       dpt_monitor_falls(t->job->checkpoint.monitor) ? -p->best_metric
                                                                     : p->best_metric,
                       (long long)dpt_run_epoch(t, p->best_step), (long long)p->best_step,
                       p->best_step == p->step ? ", the last one" : "");
    if (still_learned(run))
        dpt_str_printf(
            out, "it still got better at its end: train longer, as by --set train.%s=%lld\n",
            epochs ? "epochs" : "steps", 2 * (long long)(epochs ? t->job->train.epochs : t->steps));
}

static void summarize(const struct dpt_run *run, double seconds, struct dpt_str *out)
{
    const struct dpt_trainer *t = &run->trainer;
    char steps[DIGITS], rate[DPT_RATE_TEXT], resumed[64] = "", skipped[128] = "";

    compare_weights(t, out);
    if (run->resumed > 0)
        snprintf(resumed, sizeof resumed, " (the first %lld before it was resumed)",
                 (long long)run->resumed);
    if (run->skipped > 0)
        snprintf(skipped, sizeof skipped, " (%lld skipped, not a number)", (long long)run->skipped);
    if (run->weightless > 0)
        snprintf(skipped + strlen(skipped), sizeof skipped - strlen(skipped),
                 " (%lld without an update: weights sum to 0)", (long long)run->weightless);
    dpt_str_printf(out, "%s steps%s%s in %.1f s", dpt_group_digits(steps, t->progress.step),
                   resumed, skipped, seconds);
    if (run->training > 0)
        dpt_str_printf(out, ", %s samples/s while training",
                       dpt_report_rate((double)run->counted / run->training, rate));
    dpt_str_printf(out, "\n");
    if (dpt_run_stops_early(run)) {
        dpt_str_printf(out,
                       "stopped early, of at most %s steps: ", dpt_group_digits(steps, t->steps));
        dpt_run_why_stopped(run, out);
        dpt_str_printf(out, "\n");
    }
    if (run->valid.samples > 0)
        dpt_trainer_tell(t, "valid", &run->valid, &run->valid_scores, 4, out);
    tell_best(run, out);
    if ((run->test_scores.uneven || run->valid_scores.uneven) &&
        t->job->data.class_weights.how == DPT_CLASSES_ALIKE)
        dpt_str_printf(out, "  data.class_weights: balanced has rare classes count more\n");
    dpt_str_printf(out, "results in %s\n", t->job->output);
}

/* A run whose loss ended far above that of its first epoch learned nothing, though all of it is
 * finite. In a run of one epoch a single step's loss decides, with a higher limit, since its
 * samples are few. */
static void warn_diverged(const struct dpt_run *run)
{
    static const double FAR = 1.5, FARTHER = 10;
    const struct dpt_trainer *t = &run->trainer;
    const bool epochs = run->last_epoch > run->first_epoch;
    char from[96] = "";

    if (epochs && run->last_epoch_loss > FAR * run->first_epoch_loss)
        snprintf(from, sizeof from, "%.4g in epoch %lld to %.4g in epoch %lld",
                 run->first_epoch_loss, (long long)run->first_epoch, run->last_epoch_loss,
                 (long long)run->last_epoch);
    if (!epochs && run->last_loss > FARTHER * run->first_loss)
        snprintf(from, sizeof from, "%.4g at the first step to %.4g", run->first_loss,
                 run->last_loss);
    if (run->resumed < 0 && from[0] != '\0')
        dpt_log_warn(t->log,
                     "the training loss rose from %s: a smaller optimizer.lr than %g, "
                     "schedule.warmup or train.clip_norm may help",
                     from, dpt_optimizer_lr(&t->job->optimizer));
}

enum dpt_status dpt_report_end(struct dpt_run *run, const char *reason, struct dpt_str *summary,
                               struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_metrics *m = &run->metrics;
    const double seconds = dpt_process_age();

    dpt_metrics_begin(m, "end");
    dpt_metrics_int(m, "step", t->progress.step);
    dpt_metrics_text(m, "reason", reason);
    dpt_metrics_real(m, "seconds", seconds);
    dpt_metrics_real(m, "first_step_s", run->first_step);
    dpt_metrics_real(m, "training_s", run->training);
    if (t->data.train.loader != NULL)
        dpt_metrics_real(m, "waited_s", t->engine->waited(t));
    if (t->reduction.buckets > 0) /* of all steps', so many were begun before backward was over */
        dpt_metrics_int(m, "early_buckets", t->reduction.early);
    if (strcmp(reason, "done") == 0) {
        struct dpt_str why = {0};

        if (dpt_run_stops_early(run))
            dpt_run_why_stopped(run, &why);
        if (why.text != NULL)
            dpt_metrics_text(m, "stopped_early", why.text);
        dpt_str_release(&why);
        warn_diverged(run);
        summarize(run, seconds, summary);
    }
    return dpt_report_line(run, err);
}

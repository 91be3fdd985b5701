/* What evaluations during a run decide: which checkpoint is the best, when the run stops early,
 * when the schedule `plateau` lowers the rate. And the test of the best checkpoint at the end. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/train/run/run.h"
#include "core/train/setup/state.h"
#include "core/train/step/engine.h"
#include "core/train/step/evaluate.h"
#include "core/train/update/schedule.h"

/* What may be monitored at once, each by a value of its own. */
enum { BEST, EARLY_STOP, ALSO, PLATEAU, MONITORED };

/* The values that the job monitors; -1: none. */
static void list_monitors(const struct dpt_job *job, int monitors[MONITORED])
{
    const struct dpt_patience *plateau = dpt_schedule_plateau(&job->schedule);
    const int best = job->checkpoint.monitor;

    monitors[BEST] = best != DPT_MONITOR_AUTO ? best : -1;
    monitors[EARLY_STOP] = monitors[ALSO] = -1;
    if (job->train.early_stop.patience > 0)
        monitors[EARLY_STOP] = job->train.early_stop.monitor;
    if (job->train.early_stop.patience > 0 && job->train.also != DPT_MONITOR_AUTO)
        monitors[ALSO] = job->train.also;
    monitors[PLATEAU] = plateau != NULL ? plateau->monitor : -1;
}

void dpt_run_watch(struct dpt_run *run)
{
    struct dpt_trainer *t = &run->trainer;
    struct dpt_progress *p = &t->progress;
    struct dpt_watch *const watches[MONITORED] = {NULL, &p->early_stop, &p->also, &p->plateau};
    int monitors[MONITORED];
    const char *best;

    list_monitors(t->job, monitors);
    for (int i = 0; i < MONITORED; i++) {
        t->all_scores = t->all_scores || monitors[i] == DPT_MONITOR_ROC_AUC;
        if (watches[i] != NULL)
            dpt_watch_begin(watches[i], monitors[i] >= 0 ? dpt_monitor_name(monitors[i]) : "");
    }
    best = monitors[BEST] >= 0 ? dpt_monitor_name(monitors[BEST]) : "";
    if (strcmp(best, p->best_monitor) == 0)
        return;
    if (p->best_step >= 0 && dpt_run_leads(run))
        dpt_log_info(t->log, "the best checkpoint is chosen again: by %s from here on, not by %s",
                     best[0] != '\0' ? best : "accuracy or loss",
                     p->best_monitor[0] != '\0' ? p->best_monitor : "accuracy or loss");
    p->best_step = -1;
    p->best_metric = p->best_loss = 0;
    snprintf(p->best_monitor, sizeof p->best_monitor, "%s", best);
}

void dpt_run_why_stopped(const struct dpt_run *run, struct dpt_str *out)
{
    const struct dpt_trainer *t = &run->trainer;

    dpt_monitor_waits(t->job->train.early_stop.monitor, &t->progress.early_stop, out);
    if (t->job->train.also == DPT_MONITOR_AUTO)
        return;
    dpt_str_printf(out, ", and ");
    dpt_monitor_waits(t->job->train.also, &t->progress.also, out);
}

void dpt_run_log_stop(const struct dpt_run *run)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_watch *watch = &t->progress.early_stop;
    struct dpt_str why = {0};

    if (!dpt_run_stops_early(run))
        return;
    dpt_run_why_stopped(run, &why);
    if (watch->step >= 0)
        dpt_str_printf(&why, "; it was best at epoch %lld, step %lld",
                       (long long)dpt_run_epoch(t, watch->step), (long long)watch->step);
    dpt_log_info(t->log, "stopped early at epoch %lld, step %lld of at most %lld: %s",
                 (long long)dpt_run_epoch(t, t->progress.step), (long long)t->progress.step,
                 (long long)t->steps, why.text != NULL ? why.text : "");
    dpt_str_release(&why);
}

/* Gives all ranks the monitored values, which rank 0 knows. Collective. */
static enum dpt_status share_values(const struct dpt_run *run, const int monitors[MONITORED],
                                    double values[MONITORED], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;

    for (int i = 0; i < MONITORED; i++)
        values[i] = monitors[i] < 0 || t->nonfinite.samples > 0
                        ? NAN
                        : dpt_monitor_value(monitors[i], &run->valid, &run->valid_scores);
    DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, values, MONITORED * sizeof *values, err));
    for (int i = 0; i < MONITORED; i++)
        if (monitors[i] >= 0 && isnan(values[i]) && isfinite(dpt_metric_sums_loss(&run->valid)))
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                             "%s is to be monitored, and the %lld samples of data.valid do not "
                             "give it for this model: monitor another value, as valid.loss",
                             dpt_monitor_name(monitors[i]), (long long)run->valid.samples));
out:
    return status;
}

/* data.valid decides which checkpoint is the best, never data.test. */
static void note_best(struct dpt_run *run, int monitor, double value)
{
    struct dpt_progress *p = &run->trainer.progress;
    const double loss = dpt_metric_sums_loss(&run->valid);
    double metric = dpt_loss_judges(run->trainer.model.loss.kind)
                        ? dpt_metric_sums_accuracy(&run->valid)
                        : -loss;
    bool better = p->best_step < 0 || metric > p->best_metric;

    if (monitor >= 0) {
        metric = dpt_monitor_falls(monitor) ? -value : value;
        better = p->best_step < 0
                     ? !isnan(metric)
                     : metric > p->best_metric || (metric == p->best_metric && loss < p->best_loss);
    }
    if (!better || run->trainer.nonfinite.samples > 0)
        return;
    p->best_metric = metric;
    p->best_loss = loss;
    p->best_step = p->step;
}

static void lower_rate(struct dpt_run *run, double value)
{
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_patience *how = dpt_schedule_plateau(&t->job->schedule);
    const double before = dpt_step_rate(t);
    struct dpt_str why = {0};
    double now;

    dpt_watch_take(&t->progress.plateau, how, value, t->progress.step);
    dpt_monitor_waits(how->monitor, &t->progress.plateau, &why);
    if (!dpt_schedule_lowers(how, &t->progress.plateau))
        goto out;
    now = dpt_step_rate(t);
    if (now < before)
        dpt_log_info(t->log, "step %lld: the learning rate goes from %.4g to %.4g: %s",
                     (long long)t->progress.step, before, now, why.text != NULL ? why.text : "");
out:
    dpt_str_release(&why);
}

/* Decides by the results on data.valid, alike on all ranks. Collective. */
static enum dpt_status decide(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    double values[MONITORED];
    int monitors[MONITORED];
    bool any = false;

    list_monitors(t->job, monitors);
    for (int i = 0; i < MONITORED; i++)
        any = any || monitors[i] >= 0;
    if (any)
        DPT_TRY(share_values(run, monitors, values, err));
    note_best(run, monitors[BEST], any ? values[BEST] : NAN);
    if (monitors[EARLY_STOP] >= 0)
        dpt_watch_take(&t->progress.early_stop, &t->job->train.early_stop, values[EARLY_STOP],
                       t->progress.step);
    if (monitors[ALSO] >= 0) {
        struct dpt_patience how = t->job->train.early_stop;

        how.monitor = monitors[ALSO];
        dpt_watch_take(&t->progress.also, &how, values[ALSO], t->progress.step);
    }
    if (monitors[PLATEAU] >= 0)
        lower_rate(run, values[PLATEAU]);
out:
    return status;
}

/* Ends the run if an evaluation gave NaN, or warns, as train.on_nan says. */
static enum dpt_status check_outputs(const struct dpt_run *run, const struct dpt_split *split,
                                     struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_error why;

    if (dpt_trainer_check_outputs(t, split, &why) == DPT_OK)
        return DPT_OK;
    dpt_error_prefix(&why, "step %lld: ", (long long)t->progress.step);
    if (t->job->train.on_nan == DPT_ON_NAN_STOP)
        return dpt_fail(err, DPT_FAILED, "%s; a lower learning rate or train.clip_norm may help",
                        why.text);
    if (dpt_run_leads(run))
        dpt_log_warn(t->log, "%s", why.text);
    return DPT_OK;
}

/* Evaluates a split, reports it, and decides by data.valid. step: whose weights the trainer has;
 * those of an earlier one are taken as they are. Collective. */
static enum dpt_status evaluate(struct dpt_run *run, struct dpt_split *split, int64_t step,
                                struct dpt_metric_sums *sums, struct dpt_scores *scores,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const bool stays = step != t->progress.step;
    const double start = dpt_now();
    double seconds;

    dpt_profile_begin(t->profile, t->progress.step);
    DPT_TRY((stays ? dpt_evaluate_split : dpt_trainer_evaluate)(t, split, sums, err));
    dpt_profile_end(t->profile, DPT_SPAN_EVALUATE);
    *scores = t->scores;
    seconds = dpt_now() - start;
    if (split == &t->data.valid)
        status = decide(run, err);
    if (dpt_run_leads(run) && status == DPT_OK)
        status = dpt_report_evaluation(run, split->name, step, sums, scores, seconds, err);
    DPT_TRY(dpt_run_agree(run, status, err));
    DPT_TRY(check_outputs(run, split, err));
out:
    return status;
}

enum dpt_status dpt_run_evaluate(struct dpt_run *run, struct dpt_split *split,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t step = run->trainer.progress.step;
    const bool valid = split == &run->trainer.data.valid;

    DPT_TRY(dpt_run_settle(run, err));
    if (!valid)
        run->tested_step = step;
    DPT_TRY(evaluate(run, split, step, valid ? &run->valid : &run->test,
                     valid ? &run->valid_scores : &run->test_scores, err));
out:
    return status;
}

/* Takes the weights of the best checkpoint. *there: out, whether the folder has it. Collective. */
static enum dpt_status load_best(struct dpt_run *run, bool *there, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    char path[PATH_MAX];

    dpt_checkpoint_path(t->job->output, t->progress.best_step, path, sizeof path);
    *there = dpt_run_leads(run) && dpt_file_exists(path);
    DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, there, sizeof *there, err));
    if (*there)
        DPT_TRY(dpt_trainer_load_params(t, path, DPT_LOAD_AVERAGE, err));
out:
    return status;
}

enum dpt_status dpt_run_test_best(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_progress *p = &t->progress;
    bool there = false;

    if (!t->data.test.present || p->best_monitor[0] == '\0' || p->best_step < 0 ||
        p->best_step == p->step || t->job->checkpoint.every.unit == DPT_NEVER)
        return DPT_OK;
    DPT_TRY(load_best(run, &there, err));
    if (there)
        DPT_TRY(evaluate(run, &t->data.test, p->best_step, &run->best_test, &run->best_test_scores,
                         err));
out:
    return status;
}

#include "core/train/run.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/train/checkpoint.h"

/* Seconds between two drawings of the live line. */
static const double LIVE = 0.1;

static bool leads(const struct dpt_run *run)
{
    return run->trainer.comm->world.rank == 0;
}

/* Whether something that happens every so many steps or epochs falls on the step just done. */
static bool due(const struct dpt_trainer *t, const struct dpt_every *every)
{
    const double steps =
        every->unit == DPT_EPOCHS ? every->n * (double)t->steps_per_epoch : every->n;
    const double step = (double)t->progress.step;

    if (every->unit != DPT_EPOCHS && every->unit != DPT_STEPS)
        return false;
    return floor(step / steps + 1e-9) > floor((step - 1) / steps + 1e-9);
}

/* The run folder, and in it the resolved job; refused where an earlier run lies there. */
static enum dpt_status open_folder(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *folder = run->trainer.job->output;
    struct dpt_str text = {0};
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/checkpoints", folder);
    DPT_TRY(dpt_make_folders(path, err));
    snprintf(run->metrics_path, sizeof run->metrics_path, "%s/metrics.jsonl", folder);
    if (dpt_file_exists(run->metrics_path))
        DPT_TRY(dpt_fail(
            err, DPT_USAGE,
            "%s holds an earlier run: choose another folder with --output, or remove it", folder));
    DPT_TRY(dpt_metrics_open(&run->metrics, run->metrics_path, err));
    snprintf(path, sizeof path, "%s/log.txt", folder);
    DPT_TRY(dpt_log_file(run->trainer.log, path, err));
    dpt_conf_write(run->conf->root, &text);
    dpt_job_essence(run->conf, &run->job_text);
    if (text.failed || run->job_text.failed)
        DPT_TRY(dpt_fail_memory(err, "the resolved job", 0));
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    DPT_TRY(dpt_file_write(path, text.text, text.length, err));
out:
    dpt_str_release(&text);
    return status;
}

/* Collective. */
static enum dpt_status save(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const double start = dpt_now();
    char path[PATH_MAX];

    DPT_TRY(dpt_trainer_check_replicas(t, err));
    if (leads(run)) {
        dpt_checkpoint_path(t->job->output, t->progress.step, path, sizeof path);
        status = dpt_checkpoint_save(t, run->job_text.text, path, err);
        if (status == DPT_OK)
            status = dpt_checkpoint_rotate(t->job->output, path, t->job->checkpoint.keep, err);
        if (status == DPT_OK) {
            const double seconds = dpt_now() - start;

            dpt_log_detail(t->log, "saved %s in %.3f s", path, seconds);
            dpt_metrics_begin(&run->metrics, "checkpoint");
            dpt_metrics_int(&run->metrics, "step", t->progress.step);
            dpt_metrics_text(&run->metrics, "path", path);
            dpt_metrics_real(&run->metrics, "seconds", seconds);
            status = dpt_metrics_end(&run->metrics, err);
        }
    }
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    run->saved_step = t->progress.step;
    run->saved_at = dpt_now();
    t->want_save = false;
out:
    return status;
}

/* Collective. */
static enum dpt_status evaluate(struct dpt_run *run, struct dpt_split *split, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_tally *tally = split == &run->trainer.valid ? &run->valid : &run->test;
    const double start = dpt_now();

    DPT_TRY(dpt_trainer_evaluate(&run->trainer, split, tally, err));
    if (split == &run->trainer.test)
        run->tested_step = run->trainer.progress.step;
    if (leads(run))
        status = dpt_report_evaluation(run, split->name, tally, dpt_now() - start, err);
    DPT_TRY(dpt_group_agree(&run->trainer.comm->world, status, err));
out:
    return status;
}

static void count(struct dpt_run *run, const struct dpt_step_result *result, double seconds)
{
    run->training += seconds;
    run->window.seconds += seconds;
    run->lr = result->lr;
    if (result->skipped) {
        run->skipped++;
        return;
    }
    run->window.loss += result->loss;
    run->window.correct += result->correct;
    run->window.samples += result->samples;
}

/* What rank 0 tells about the step just done. */
static enum dpt_status report(struct dpt_run *run, const struct dpt_step_result *result,
                              struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_every *every = &t->job->log.every;
    const double now = dpt_now();
    const bool line = every->unit == DPT_SECONDS ? run->window.seconds >= every->n : due(t, every);

    if (result->skipped)
        dpt_log_warn(t->log, "%s", err->text);
    if (!line && now - run->live_at < LIVE)
        return DPT_OK;
    run->live_at = now;
    return dpt_report_step(run, line, err);
}

/* One step and what is due after it. Collective. */
static enum dpt_status step(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_job *job = t->job;
    struct dpt_step_result result;
    const double start = dpt_now();

    if (job->checkpoint.every.unit == DPT_SECONDS)
        t->want_save = leads(run) && start - run->saved_at >= job->checkpoint.every.n;
    DPT_TRY(dpt_trainer_step(t, &result, err));
    count(run, &result, dpt_now() - start);
    if (run->first_step == 0)
        run->first_step = dpt_process_age();
    if (leads(run)) /* what fails here on rank 0 alone reaches the others with the next step */
        t->trouble = report(run, &result, err);
    if (due(t, &job->train.check_replicas))
        DPT_TRY(dpt_trainer_check_replicas(t, err));
    if (due(t, &job->eval.every) && (t->valid.present || t->test.present))
        DPT_TRY(evaluate(run, t->valid.present ? &t->valid : &t->test, err));
    if (due(t, &job->checkpoint.every) || result.save)
        DPT_TRY(save(run, err));
out:
    return status;
}

/* Collective. */
static enum dpt_status finish(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;

    DPT_TRY(dpt_group_agree(&t->comm->world, t->trouble, err));
    if (t->job->checkpoint.every.unit != DPT_NEVER && run->saved_step != t->progress.step)
        DPT_TRY(save(run, err));
    if (t->test.present && run->tested_step != t->progress.step)
        DPT_TRY(evaluate(run, &t->test, err));
out:
    return status;
}

enum dpt_status dpt_run_job(const struct dpt_job *job, const struct dpt_conf *conf,
                            const struct dpt_comm *comm, struct dpt_log *log, const char *version,
                            struct dpt_str *summary, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_run run = {.conf = conf, .version = version, .saved_step = -1, .tested_step = -1};
    struct dpt_trainer *t = &run.trainer;
    struct dpt_error second;

    DPT_TRY(
        dpt_trainer_open(t, job, comm, log, DPT_PART_TRAIN | DPT_PART_VALID | DPT_PART_TEST, err));
    DPT_TRY(dpt_group_agree(&comm->world, leads(&run) ? open_folder(&run, err) : DPT_OK, err));
    DPT_TRY(dpt_report_start(&run, err));
    DPT_TRY(dpt_group_agree(&comm->world, dpt_loader_seek(t->train.loader, 0, 0, err), err));
    run.start = run.saved_at = run.live_at = dpt_now();
    while (t->progress.step < t->steps)
        DPT_TRY(step(&run, err));
    DPT_TRY(finish(&run, err));
out:
    dpt_log_live(log, NULL);
    if (run.metrics.file != NULL) {
        const enum dpt_status ended = dpt_report_end(&run, status == DPT_OK ? "done" : err->text,
                                                     summary, status == DPT_OK ? err : &second);

        status = status == DPT_OK ? ended : status;
    }
    dpt_metrics_close(&run.metrics);
    dpt_str_release(&run.job_text);
    if (t->comm != NULL)
        dpt_trainer_close(t);
    return status;
}

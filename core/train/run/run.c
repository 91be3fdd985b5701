#include "core/train/run/run.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/process.h"
#include "core/train/run/stop.h"
#include "core/train/setup/state.h"
#include "core/train/setup/state_file.h"
#include "core/train/use/audit.h"

/* Seconds between two drawings of the live line. */
static const double LIVE = 0.1;
/* The most steps between two checks of all ranks for a NaN on a device. If log lines come by the
 * clock, which only rank 0 knows, the checks are at fixed steps. Each time the device waits for the
 * host for some microseconds. */
enum { LOOK_EVERY = 1000, LOOK_BESIDE_CLOCK = 50 };
/* Seconds kept in hand before the time is up, beside those for the step and the save. */
static const double MARGIN = 2;

/* Whether something that happens every so many steps or epochs falls on that step. */
static bool due_at(const struct dpt_trainer *t, const struct dpt_every *every, int64_t number)
{
    const double steps = dpt_run_steps_of(t, every);
    const double step = (double)number;

    if (every->unit != DPT_EPOCHS && every->unit != DPT_STEPS)
        return false;
    return floor(step / steps + 1e-9) > floor((step - 1) / steps + 1e-9);
}

/* Whether it falls on the step just done. */
static bool due(const struct dpt_trainer *t, const struct dpt_every *every)
{
    return due_at(t, every, t->progress.step);
}

/* Whether the means of an epoch are reported at its end. */
static bool reports_epoch(const struct dpt_run *run, int64_t epoch)
{
    return run->epochs_every > 0 && (epoch % run->epochs_every == 0 ||
                                     epoch * run->trainer.steps_per_epoch == run->trainer.steps);
}

/* Reports an epoch that ended, and restarts the count. A device's sums are fetched if that epoch or
 * the next one is reported; over other epochs they may continue. */
static enum dpt_status end_epoch(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_progress *p = &run->trainer.progress;

    if (p->epoch_step != 0)
        return DPT_OK;
    if (reports_epoch(run, p->epoch) || reports_epoch(run, p->epoch + 1))
        DPT_TRY(dpt_run_peek(run, err));
    if (reports_epoch(run, p->epoch))
        DPT_TRY(dpt_report_epoch(run, err));
    run->epoch = (struct dpt_run_sums){0};
out:
    return status;
}

/* Warns of files that changed: their samples are still read, but are not those that were
 * checked. */
static void warn_changed_shards(const struct dpt_trainer *t)
{
    const char *path;

    for (size_t i = 0; i < sizeof t->data.sets / sizeof t->data.sets[0]; i++)
        while ((path = dpt_dataset_changed(&t->data.sets[i])) != NULL)
            dpt_log_warn(t->log,
                         "%s was written to while this run reads it: samples may be others than "
                         "those that were checked, and the result cannot be repeated",
                         path);
}

/* Reports the step just done, on rank 0. */
static enum dpt_status report(struct dpt_run *run, const struct dpt_step_result *result,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_every *every = &run->log_every;
    const double now = dpt_now();
    const bool line = every->unit == DPT_SECONDS ? run->window.seconds >= every->n : due(t, every);

    if (run->hashes != NULL)
        DPT_TRY(dpt_audit_step(run->hashes, t, run->fingerprints, err));
    if (result->skipped)
        dpt_log_warn(t->log, "%s", err->text);
    if (line)
        warn_changed_shards(t);
    if (line || (now - run->live_at >= LIVE && (!result->deferred || t->log->terminal))) {
        DPT_TRY(dpt_run_peek(run, err));
        run->live_at = now;
        DPT_TRY(dpt_report_step(run, line, err));
    }
    DPT_TRY(end_epoch(run, err));
out:
    return status;
}

/* Sets what this rank asks of all with the next step. Only rank 0 looks at the clock: the ranks'
 * clocks differ. */
static void set_requests(struct dpt_run *run, double now)
{
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_every *every = &t->job->checkpoint.every;
    /* Until the first save its time is a guess: a slow disk's 100 MB/s. */
    const double bytes = (double)t->model.graph.floats * sizeof(float) * (1 + t->arenas.slots);
    const double saving = run->save_seconds > 0 ? run->save_seconds : bytes / 1e8;
    const int64_t next = t->progress.step + 1;

    t->requests.signal = dpt_stop_signal() != 0;
    t->requests.writes = dpt_state_file_writes(t, 0);
    t->requests.check = next == t->steps || due_at(t, &t->job->train.check_replicas, next) ||
                        due_at(t, every, next) || due_at(t, &t->job->eval.every, next);
    if (!dpt_run_leads(run))
        return;
    if (every->unit == DPT_SECONDS)
        t->requests.save = now - run->saved_at >= every->n;
    t->requests.clock = now + MARGIN + 2 * saving + 2 * run->step_seconds > run->deadline;
}

/* Saves and ends the run early. STOPPED is for what was saved: a batch file requeues that.
 * Collective. */
static enum dpt_status stop(struct dpt_run *run, const struct dpt_step_result *result,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;
    const char *why = !result->signal          ? "the time is up"
                      : dpt_stop_signal() != 0 ? dpt_stop_name(dpt_stop_signal())
                                               : "a signal to another rank";
    bool saved;

    DPT_TRY(dpt_run_settle(run, err));
    if (t->job->checkpoint.every.unit != DPT_NEVER && run->saved_step != t->progress.step)
        DPT_TRY(dpt_run_save(run, true, err));
    DPT_TRY(dpt_run_await_save(run, err));
    run->stopped = true;
    saved = run->saved_step == t->progress.step;
    if (saved)
        dpt_stop_done();
    status =
        dpt_fail(err, saved ? DPT_STOPPED : DPT_FAILED, "stopped after step %lld of %lld (%s), %s",
                 (long long)t->progress.step, (long long)t->steps, why,
                 saved ? "all is saved: start it again to continue"
                       : "nothing is saved, since checkpoint.every is never: it would begin "
                         "from scratch, so give checkpoint.every if it is to be requeued");
out:
    return status;
}

/*
 * Gathers what a line reports of every rank. Lines that come by the clock do without, since only
 * rank 0 knows of them. Collective.
 */
static enum dpt_status gather_ranks(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    struct dpt_rank_work mine;

    if (run->rank_work == NULL || !due(t, &run->log_every))
        return DPT_OK;
    dpt_comm_note(t->comm, -1, "telling how long its part of the steps took");
    mine = (struct dpt_rank_work){.seconds = t->busy, .bytes = dpt_process_memory("VmHWM")};
    DPT_TRY(dpt_group_allgather(&t->comm->world, &mine, run->rank_work, sizeof mine, err));
    t->busy = 0;
out:
    return status;
}

/* When TensorBoard gets histograms: with the evaluations, or each epoch. */
static const struct dpt_every *board_every(const struct dpt_trainer *t)
{
    static const struct dpt_every epoch = {.n = 1, .unit = DPT_EPOCHS};
    const struct dpt_every *every = &t->job->eval.every;

    return every->unit != DPT_NEVER && (t->data.valid.present || t->data.test.present) ? every
                                                                                       : &epoch;
}

/* Whether all ranks get a device's results now: after the first step, then whenever rank 0 has a
 * line. */
static bool due_to_learn(const struct dpt_run *run)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_every *every = &run->log_every;
    const bool clock = every->unit == DPT_SECONDS;

    return run->first_step == 0 || due(t, every) ||
           t->progress.step % (clock ? LOOK_BESIDE_CLOCK : LOOK_EVERY) == 0;
}

/* Collective. Makes TensorBoard's histograms, tensor by tensor; rank 0 gets each whole. What fails
 * on rank 0 alone reaches the others with the next step. Errors: RANK. */
static enum dpt_status show_weights(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_graph *graph = &t->model.graph;
    const bool shows = run->board.open && t->requests.deferred_error == DPT_OK &&
                       run->board.weights_step != t->progress.step;

    const bool all = dpt_layout_updates_apart(&t->layout);

    if (!t->job->log.tensorboard)
        return DPT_OK;
    if ((shows || all) && (t->requests.deferred_error = dpt_trainer_fetch(t, true, err)) != DPT_OK)
        return DPT_OK; /* on a device, if no other rank has a part of the tensor */
    dpt_profile_begin(t->profile, t->progress.step);
    for (int32_t i = 0; i < graph->n_tensors; i++)
        for (int gradient = 0; gradient < 2; gradient++) {
            const float *x = NULL;

            if (gradient == 0 || (t->reduction.weight > 0 && !graph->tensors[i].state))
                DPT_TRY(dpt_trainer_tensor(t, gradient == 1, i, run->counts.room, &x, err));
            if (shows)
                dpt_board_count(&run->counts, i, gradient == 1, x,
                                gradient == 1 ? 1 / t->reduction.weight : 1);
        }
    if (shows)
        dpt_board_weights(&run->board, t->progress.step, &run->counts);
    dpt_profile_end(t->profile, DPT_SPAN_EVALUATE);
out:
    return status;
}

/* Takes one step and does what is due after it. Collective. */
static enum dpt_status step(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_job *job = t->job;
    struct dpt_step_result result;
    const double start = dpt_now();
    bool improved = false;

    set_requests(run, start);
    DPT_TRY(dpt_trainer_step(t, &result, err));
    dpt_run_spend(run, dpt_now() - start);
    run->lr = result.lr;
    if (!result.deferred) {
        dpt_run_count_skipped(run, &result);
        if (!result.skipped && !result.overflows && !result.weightless)
            dpt_run_count(run, &result);
        if (result.weightless)
            run->norm = 0; /* of no sample */
    } else if (due_to_learn(run)) {
        DPT_TRY(dpt_run_settle(run, err));
    }
    if (run->first_step == 0) {
        run->first_step = dpt_process_age();
        dpt_comm_started(t->comm);
    }
    if (!result.writes)
        DPT_TRY(dpt_run_end_parts(run, err));
    DPT_TRY(gather_ranks(run, err));
    if (run->fingerprints != NULL)
        DPT_TRY(dpt_audit_take(t, run->fingerprints, err));
    /* What fails here on rank 0 alone reaches the others with the next step. */
    if (dpt_run_leads(run) && t->requests.deferred_error == DPT_OK) {
        t->requests.deferred_error = report(run, &result, err);
        if (t->requests.deferred_error == DPT_OK)
            t->requests.deferred_error = dpt_run_collect(run, false, err);
    }
    if (due(t, &job->train.check_replicas))
        DPT_TRY(dpt_run_check_replicas(run, err));
    if (due(t, &job->eval.every) && (t->data.valid.present || t->data.test.present)) {
        DPT_TRY(dpt_run_evaluate(run, t->data.valid.present ? &t->data.valid : &t->data.test, err));
        improved = t->progress.best_step == t->progress.step;
    }
    if (due(t, board_every(t)))
        DPT_TRY(show_weights(run, err));
    if (job->checkpoint.every.unit != DPT_NEVER &&
        (due(t, &job->checkpoint.every) || result.save || improved))
        DPT_TRY(dpt_run_save(run, !job->checkpoint.background, err));
    run->step_seconds = fmax(run->step_seconds, dpt_now() - start);
    if ((result.signal || result.clock) && t->progress.step < t->steps && !dpt_run_stops_early(run))
        DPT_TRY(stop(run, &result, err));
out:
    return status;
}

/* Collective. */
static enum dpt_status finish(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;

    DPT_TRY(dpt_run_agree(run, DPT_OK, err));
    dpt_run_log_stop(run);
    dpt_trainer_stop_prefetching(t);
    DPT_TRY(dpt_run_fetch(run, err));
    DPT_TRY(show_weights(run, err));
    DPT_TRY(dpt_run_agree(run, DPT_OK, err));
    if (t->job->checkpoint.every.unit != DPT_NEVER && run->saved_step != t->progress.step)
        DPT_TRY(dpt_run_save(run, true, err));
    DPT_TRY(dpt_run_await_save(run, err));
    if (t->data.test.present && run->tested_step != t->progress.step)
        DPT_TRY(dpt_run_evaluate(run, &t->data.test, err));
    DPT_TRY(dpt_run_test_best(run, err));
    warn_changed_shards(t);
out:
    return status;
}

/* Writes the trace of a run that came to its end or was stopped, on all ranks alike. Gives what the
 * run gave, or what failed here. Collective. */
static enum dpt_status write_trace(struct dpt_run *run, enum dpt_status ended,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_error own = {0};

    DPT_TRY(
        dpt_run_agree(run, dpt_run_leads(run) ? dpt_lock_check(run->lock, &own) : DPT_OK, &own));
    DPT_TRY(dpt_trace_write(run->trace, run->trainer.job->output, &own));
out:
    if (status == DPT_OK)
        return ended;
    *err = own;
    return status;
}

/*
 * Ends a run, successful or not: what is in progress in the background, the last line, the files,
 * the lock. Returns `status` or, if that is OK, what fails here.
 */
static enum dpt_status close_run(struct dpt_run *run, struct dpt_log *log, enum dpt_status status,
                                 struct dpt_str *summary, struct dpt_error *err)
{
    struct dpt_error second = {0};

    dpt_log_live(log, NULL);
    if (status != DPT_OK && dpt_run_end_parts(run, &second) != DPT_OK && dpt_run_leads(run))
        dpt_log_warn(log, "%s", second.text);
    if (status != DPT_OK && dpt_lock_check(run->lock, &second) == DPT_OK &&
        dpt_run_collect(run, true, &second) != DPT_OK)
        dpt_log_warn(log, "%s", second.text);
    dpt_saver_close(run->saver);
    if (run->metrics.file != NULL) {
        enum dpt_status ended = dpt_report_end(run, status == DPT_OK ? "done" : err->text, summary,
                                               status == DPT_OK ? err : &second);

        status = status == DPT_OK ? ended : status;
        ended = dpt_board_end(&run->board, run->trainer.progress.step, status,
                              status == DPT_OK ? err : &second);
        status = status == DPT_OK ? ended : status;
    }
    if (status == DPT_OK)
        dpt_run_drop_overwritten(run);
    if (run->overwritten)
        dpt_log_warn(
            log,
            "nothing was saved, so the run before this one still lies in %s/overwritten, a "
            "run folder like any other",
            run->trainer.job->output);
    dpt_board_close(&run->board);
    dpt_board_counts_close(&run->counts);
    dpt_metrics_close(&run->metrics);
    if (run->hashes != NULL)
        fclose(run->hashes);
    if (dpt_lock_check(run->lock, &second) != DPT_OK)
        dpt_log_close(log); /* log.txt is another run's now: further lines go to stderr alone */
    dpt_lock_release(run->lock);
    return status;
}

/* Writes the cause into the run's files. The watchdog's thread calls it, which then ends the job.
 * It uses nothing that rank 0 has open, since that rank may be the one that is gone. */
static void tell_end(void *arg, const char *line)
{
    const struct dpt_run *run = arg;
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_metrics metrics = {0};
    struct dpt_log log = {.level = DPT_LOG_QUIET};
    struct dpt_owner owner;
    struct dpt_error err;
    char path[PATH_MAX];
    double silent;
    bool alive;

    snprintf(path, sizeof path, "%s/metrics.jsonl", t->job->output);
    if (!dpt_file_exists(path) || dpt_metrics_open(&metrics, path, NULL, &err) != DPT_OK)
        return; /* a node that does not see the folder */
    dpt_metrics_begin(&metrics, "end");
    dpt_metrics_int(&metrics, "step", t->progress.step);
    dpt_metrics_text(&metrics, "reason", line);
    if (dpt_lock_holder(t->job->output, t->comm->host, &owner, &alive, &silent))
        dpt_metrics_int(&metrics, "generation", owner.generation);
    dpt_metrics_end(&metrics, &err);
    dpt_metrics_close(&metrics);
    snprintf(path, sizeof path, "%s/log.txt", t->job->output);
    if (dpt_log_file(&log, path, &err) == DPT_OK)
        dpt_log_info(&log, "%s", line);
    dpt_log_close(&log);
}

enum dpt_status dpt_run_job(const struct dpt_job *job, const struct dpt_conf *conf,
                            const struct dpt_comm *comm, struct dpt_log *log,
                            const struct dpt_resume *resume, struct dpt_str *summary,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_run run = {.conf = conf,
                          .saved_step = -1,
                          .tested_step = -1,
                          .checked_step = -1,
                          .first_loss = NAN,
                          .last_loss = NAN,
                          .learned_step = -1,
                          .deadline = INFINITY};
    struct dpt_trainer *t = &run.trainer;
    bool finished = false;

    /* The lock comes first, so that a second run in this folder neither waits nor reads
     * anything. */
    DPT_TRY(dpt_run_take_lock(&run, comm, log, job, err));
    if (comm->world.rank == 0)
        run.deadline = dpt_stop_deadline(job->train.max_time.n);
    DPT_TRY(dpt_trainer_open(t, job, comm, log, DPT_PART_TRAIN | DPT_PART_VALID | DPT_PART_TEST,
                             NULL, err));
    DPT_TRY(dpt_run_prepare(&run, resume, &finished, err));
    if (!finished)
        dpt_comm_on_end(comm, tell_end, &run);
    run.saved_at = run.live_at = dpt_now();
    while (!finished && t->progress.step < t->steps && !dpt_run_stops_early(&run))
        DPT_TRY(step(&run, err));
    if (!finished)
        DPT_TRY(finish(&run, err));
out:
    dpt_comm_on_end(comm, NULL, NULL);
    /* There is no advice on what would fit: all that a plan counts was allocated when the trainer
     * was opened, and planning takes memory, without which oneDNN crashes. */
    if (t->comm != NULL)
        err->memory = false;
    if (run.trace != NULL)
        dpt_run_observe(&run, false);
    if (run.trace != NULL && (status == DPT_OK || run.stopped))
        status = write_trace(&run, status, err);
    dpt_trace_close(run.trace);
    dpt_trainer_stop_prefetching(t);
    status = close_run(&run, log, status, summary, err);
    dpt_init_release(&run.init);
    dpt_str_release(&run.job_text);
    dpt_str_release(&run.resolved);
    dpt_free(run.rank_work);
    dpt_free(run.fingerprints);
    dpt_trainer_close(t);
    return status;
}

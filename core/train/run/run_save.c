/* A run's saves: beside the training or not, and what is checked before. */
#include <math.h>

#include "core/base/clock.h"
#include "core/state/overwritten.h"
#include "core/train/run/run.h"
#include "core/train/setup/state.h"
#include "core/train/setup/state_file.h"

/* Seconds that a rank waits for a save before it shows the others that it is well. */
static const double PATIENCE = 1;

void dpt_run_drop_overwritten(struct dpt_run *run)
{
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_error err;

    if (!run->overwritten || dpt_lock_check(run->lock, &err) != DPT_OK)
        return;
    run->overwritten = false;
    if (dpt_overwritten_remove(t->job->output, &err) != DPT_OK)
        dpt_log_warn(t->log, "the run before this one could not be removed: %s", err.text);
}

enum dpt_status dpt_run_collect(struct dpt_run *run, bool wait, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_saved saved;
    bool ended = false;

    if (run->saver == NULL)
        return DPT_OK;
    DPT_TRY(dpt_saver_poll(run->saver, wait, &ended, &saved, err));
    if (!ended)
        return DPT_OK;
    run->save_seconds = fmax(run->save_seconds, saved.seconds);
    DPT_TRY(dpt_report_saved(run, &saved, err));
    dpt_run_drop_overwritten(run);
out:
    return status;
}

enum dpt_status dpt_run_end_parts(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    double writes;
    size_t n;

    if (!t->file.pending)
        return DPT_OK;
    do /* in pieces that are short enough for the watchdogs, as below */
        DPT_TRY(dpt_group_max(&t->comm->world, dpt_state_file_writes(t, PATIENCE), &writes, err));
    while (writes > 0);
    status = dpt_state_file_end(t, &n, err);
    if (dpt_run_leads(run) && status != DPT_OK)
        dpt_saver_complete(run->saver, false, NULL, 0, err);
    DPT_TRY(status);
    if (dpt_run_leads(run) && t->requests.deferred_error == DPT_OK)
        t->requests.deferred_error = dpt_saver_complete(run->saver, true, t->file.all, n, err);
out:
    return status;
}

enum dpt_status dpt_run_await_save(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_comm *comm = run->trainer.comm;
    bool busy;

    dpt_comm_note(comm, run->trainer.progress.step, "saving a checkpoint");
    DPT_TRY(dpt_run_end_parts(run, err));
    do {
        busy = dpt_run_leads(run) && dpt_saver_busy(run->saver, PATIENCE);
        DPT_TRY(dpt_group_broadcast(&comm->world, 0, &busy, sizeof busy, err));
    } while (busy);
    DPT_TRY(dpt_run_agree(run, dpt_run_leads(run) ? dpt_run_collect(run, true, err) : DPT_OK, err));
out:
    return status;
}

/* Adds to a failure's message which checkpoint there is to resume from. */
static void name_newest(const struct dpt_run *run, struct dpt_error *err)
{
    const struct dpt_error plain = *err;

    if (run->saved_step >= 0)
        dpt_fail(err, plain.status, "%s; the checkpoint of step %lld is from before", plain.text,
                 (long long)run->saved_step);
    else
        dpt_fail(err, plain.status, "%s; no checkpoint was written before", plain.text);
}

enum dpt_status dpt_run_check_replicas(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;

    if (t->comm->world.size == 1 || run->checked_step == t->progress.step)
        return DPT_OK;
    DPT_TRY(dpt_run_fetch(run, err));
    dpt_profile_begin(t->profile, t->progress.step);
    status = dpt_trainer_check_replicas(t, err);
    if (status == DPT_FAILED)
        name_newest(run, err);
    DPT_TRY(status);
    dpt_profile_end(t->profile, DPT_SPAN_CHECK);
    run->checked_step = t->progress.step;
out:
    return status;
}

enum dpt_status dpt_run_save(struct dpt_run *run, bool wait, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, served;
    struct dpt_trainer *t = &run->trainer;
    struct dpt_error other;

    DPT_TRY(dpt_run_check_replicas(run, err));
    DPT_TRY(dpt_run_fetch(run, err));
    dpt_profile_begin(t->profile, t->progress.step);
    DPT_TRY(dpt_run_await_save(run, err));
    DPT_TRY(dpt_run_agree(
        run, dpt_run_leads(run) ? dpt_board_flush(&run->board, true, err) : DPT_OK, err));
    if (dpt_run_leads(run)) {
        struct dpt_state state = dpt_trainer_state(t, run->job_text.text);

        state.lock = run->lock;
        state.later = !wait;
        status = dpt_saver_start(run->saver, &state, t->team.pool, err);
    }
    served = dpt_trainer_serve(t, status == DPT_OK ? err : &other);
    DPT_TRY(dpt_run_agree(run, status == DPT_OK ? served : status, err));
    dpt_state_file_begin(t);
    if (wait)
        DPT_TRY(dpt_run_await_save(run, err));
    dpt_profile_end(t->profile, DPT_SPAN_SAVE);
    run->saved_step = t->progress.step;
    run->saved_at = dpt_now();
    t->requests.save = false;
out:
    return status;
}

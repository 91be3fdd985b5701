/* A run from its job to its first step: the lock, the folder with its files, what it resumes from.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "core/base/file.h"
#include "core/state/overwritten.h"
#include "core/state/run_files.h"
#include "core/train/run/run.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"
#include "core/train/team.h"
#include "core/train/use/audit.h"
#include "data/sets/dataset.h"

static enum dpt_status open_board(struct dpt_run *run, const char *folder, struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_str machine = {0};
    struct dpt_board_start start = {
        .lock = run->lock,
        .job = run->conf->root,
        .job_text = run->resolved.text,
        .ranks = t->comm->world.size,
    };
    enum dpt_status status;

    dpt_str_printf(&machine,
                   "- dptrain %s\n- ranks: %d, nodes: %d, threads per rank: %d\n- host: %s\n"
                   "- device: %s (%s)\n- %s\n- HDF5 %s\n- parameters: %lld\n",
                   DPT_VERSION, t->comm->world.size, t->comm->nodes, t->layout.threads,
                   t->comm->host, t->backend->name, t->backend->describe(), dpt_comm_version(),
                   dpt_h5_version(), (long long)t->model.graph.parameters);
    start.machine = machine.text;
    status = machine.failed ? dpt_fail_memory(err, "a text", 0)
                            : dpt_board_open(&run->board, folder, run->resumed, &start, err);
    dpt_str_release(&machine);
    return status;
}

/* How many checkpoints this run will add to those of its folder, at most at a time: one that is
 * being written counts, too. What it saves by the clock, or as the best, is not foreseen. */
static int64_t count_checkpoints(const struct dpt_run *run, int64_t there)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_every *every = &t->job->checkpoint.every;
    const double left = (double)(t->steps - (run->resumed > 0 ? run->resumed : 0));
    const double steps = dpt_run_steps_of(t, every);
    const double saves = every->unit == DPT_SECONDS ? 1 : fmax(ceil(left / steps), 1);
    const int64_t keep = t->job->checkpoint.keep;

    if (keep == 0)
        return (int64_t)saves;
    return (int64_t)fmin(saves, (double)(keep >= there ? keep + 1 - there : 1));
}

/* Warns at the start if the disk has no space for what the run will save. By rank 0. Errors: IO
 * (not for one checkpoint). */
static enum dpt_status check_space(const struct dpt_run *run, const char *path,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;
    const double bytes = (double)dpt_saver_bytes(run->saver);
    char one[32], rest[32];
    int64_t *steps = NULL, wanted;
    struct statvfs disk;
    size_t there;
    double space;

    DPT_TRY(dpt_checkpoint_list(t->job->output, &steps, &there, err));
    free(steps);
    if (statvfs(path, &disk) != 0 || disk.f_blocks == 0) /* the system does not report it */
        return DPT_OK;
    space = (double)disk.f_bavail * (double)disk.f_frsize;
    wanted = count_checkpoints(run, (int64_t)there);
    dpt_show_bytes(bytes, one);
    dpt_show_bytes(space, rest);
    if (space < bytes)
        DPT_TRY(dpt_fail(err, DPT_IO,
                         "%s: a checkpoint takes %s, and the disk has %s left: free some, or "
                         "choose another folder with --output",
                         path, one, rest));
    if (space < bytes * (double)wanted)
        dpt_log_warn(t->log,
                     "%s: this run will save %lld checkpoints of %s, and the disk has %s left, for "
                     "%.0f of them: lower checkpoint.keep, or choose another folder with --output",
                     path, (long long)wanted, one, rest, floor(space / bytes));
out:
    return status;
}

/* Opens the run folder with its files: cut back to the step that the run resumes from, or new. */
static enum dpt_status open_folder(struct dpt_run *run, bool overwrite, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_state state = dpt_trainer_state(t, run->job_text.text);
    const char *folder = t->job->output;
    char path[PATH_MAX];

    dpt_lock_keep(run->lock);
    if (overwrite)
        DPT_TRY(dpt_overwritten_put(folder, err));
    run->overwritten = dpt_overwritten_exists(folder);
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    DPT_TRY(dpt_make_folders(path, err));
    DPT_TRY(dpt_resume_trim(folder, "metrics.jsonl", run->resumed, err));
    snprintf(run->metrics_path, sizeof run->metrics_path, "%s/metrics.jsonl", folder);
    DPT_TRY(dpt_metrics_open(&run->metrics, run->metrics_path, t->log, err));
    if (t->job->log.tensorboard)
        DPT_TRY(open_board(run, folder, err));
    if (t->job->log.hashes) {
        DPT_TRY(dpt_resume_trim(folder, "hashes.jsonl", run->resumed, err));
        snprintf(path, sizeof path, "%s/hashes.jsonl", folder);
        DPT_TRY(dpt_file_stream(path, DPT_FILE_APPEND, DPT_IO, &run->hashes, err));
    }
    snprintf(path, sizeof path, "%s/log.txt", folder);
    DPT_TRY(dpt_log_file(t->log, path, err));
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    DPT_TRY(dpt_file_write_pieces(
        path,
        (const struct dpt_file_piece[]){{DPT_RUN_JOB_MARK, sizeof DPT_RUN_JOB_MARK - 1},
                                        {run->resolved.text, run->resolved.length}},
        2, err));
    if (t->job->checkpoint.every.unit != DPT_NEVER) {
        DPT_TRY(dpt_saver_open(&run->saver, &state, folder, t->job->checkpoint.keep, err));
        snprintf(path, sizeof path, "%s/checkpoints", folder);
        DPT_TRY(check_space(run, path, err));
    }
out:
    return status;
}

/* finished: there is nothing left to do. A run that has made all its steps may lack their end in
 * its metrics: it was stopped by force after its last save, and what comes then was lost. from: the
 * checkpoint that was asked for, or NULL: the folder's own. Collective. */
static enum dpt_status find_end(const struct dpt_run *run, const char *from, bool *finished,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_group *world = &t->comm->world;
    const bool early = dpt_run_stops_early(run) && t->progress.step < t->steps;
    struct dpt_str why = {0};
    bool lacks = false, stopped;
    int64_t end = 0;

    *finished = run->resumed >= 0 && (t->progress.step >= t->steps || early);
    if (*finished && dpt_run_leads(run))
        status = dpt_resume_end(t->job->output, &end, &stopped, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    lacks = end == -1; /* without metrics the checkpoint is all that is left */
    DPT_TRY(dpt_group_broadcast(world, 0, &lacks, sizeof lacks, err));
    *finished = *finished && !lacks;
    dpt_run_why_stopped(run, &why);
    if (*finished && early)
        dpt_log_info(t->log,
                     "%s stopped early at step %lld, as %s, so nothing is left to do%s%s: give it "
                     "more train.early_stop.patience to continue",
                     from != NULL ? from : t->job->output, (long long)t->progress.step,
                     why.text != NULL ? why.text : "train.early_stop wants it",
                     from != NULL ? " and nothing was written to " : "",
                     from != NULL ? t->job->output : "");
    else if (*finished && from != NULL)
        dpt_log_info(t->log,
                     "%s has made all %lld steps of this job, so nothing is left to do and nothing "
                     "was written to %s: give it more train.epochs or train.steps to continue",
                     from, (long long)t->steps, t->job->output);
    else if (*finished)
        dpt_log_info(
            t->log,
            "%s is finished, step %lld of %lld: give it more train.epochs or "
            "train.steps to continue, choose another --output, or start from scratch in its place "
            "with --overwrite",
            t->job->output, (long long)t->progress.step, (long long)t->steps);
out:
    dpt_str_release(&why);
    return status;
}

/* Writes the job as text: for its folder all of it, for its checkpoints what decides the result.
 * Both are read again some day, as job files are. */
static enum dpt_status write_job(struct dpt_run *run, struct dpt_error *err)
{
    dpt_job_signature(run->trainer.job, run->conf, &run->job_text);
    dpt_conf_write(run->conf->root, &run->resolved);
    if (run->job_text.failed || run->resolved.failed)
        return dpt_fail_memory(err, "the resolved job", 0);
    if (run->resolved.length + sizeof DPT_RUN_JOB_MARK > DPT_YAML_BYTES)
        return dpt_fail(err, DPT_BAD_JOB,
                        "%s: %zu bytes with all that it leaves to defaults; a job has at most %d: "
                        "patterns (shards/*.h5) say more than lists",
                        run->conf->path, run->resolved.length, DPT_YAML_BYTES);
    return DPT_OK;
}

/*
 * Chooses how often the log reports steps and epochs. `auto` gives a short run ten lines at least.
 * Each epoch is reported, unless there are many that are shorter than the steps between two lines:
 * then they are as rare as lines. In the log this starts at fewer epochs than in metrics.jsonl.
 */
static void choose_lines(struct dpt_run *run)
{
    enum { STEPS = 50, LINES = 10, EPOCHS = 100, SHOWN = 20 };
    const struct dpt_trainer *t = &run->trainer;
    const double few = fmax(1, fmin(STEPS, floor((double)t->steps / LINES)));
    const double epoch = (double)t->steps_per_epoch;
    double steps;

    run->log_every = t->job->log.every;
    if (run->log_every.unit == DPT_AUTO)
        run->log_every = (struct dpt_every){.n = few, .unit = DPT_STEPS};
    steps = run->log_every.unit == DPT_STEPS    ? run->log_every.n
            : run->log_every.unit == DPT_EPOCHS ? run->log_every.n * epoch
                                                : few;
    run->epochs_shown = (int64_t)ceil(steps / epoch);
    run->epochs_every = t->steps <= EPOCHS * t->steps_per_epoch ? 1 : run->epochs_shown;
    if (t->steps <= SHOWN * t->steps_per_epoch)
        run->epochs_shown = 1;
    if (run->log_every.unit == DPT_NEVER)
        run->epochs_every = 0;
}

void dpt_run_observe(struct dpt_run *run, bool on)
{
    struct dpt_trainer *t = &run->trainer;
    struct dpt_profile *p = dpt_trace_profile(run->trace);

    dpt_trainer_observe(t, on ? p : NULL);
    dpt_loader_observe(t->data.train.loader, on ? dpt_profile_helper(p, DPT_PROFILE_LOADER) : NULL);
    if (run->saver != NULL)
        dpt_saver_observe(run->saver, on ? dpt_profile_helper(p, DPT_PROFILE_SAVER) : NULL);
}

static enum dpt_status open_trace(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;

    DPT_TRY(dpt_trace_open(&run->trace,
                           &(struct dpt_trace_spec){.comm = t->comm,
                                                    .log = t->log,
                                                    .graph = &t->model.graph,
                                                    .backend = t->backend,
                                                    .program = t->model.program,
                                                    .threads = t->layout.threads,
                                                    .all_threads = t->layout.all_threads},
                           err));
    dpt_run_observe(run, true);
out:
    return status;
}

enum dpt_status dpt_run_prepare(struct dpt_run *run, const struct dpt_resume *resume,
                                bool *finished, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &run->trainer;
    const struct dpt_group *world = &t->comm->world;
    enum dpt_resumed resumed;

    DPT_TRY(dpt_group_agree(world, write_job(run, err), err));
    dpt_comm_note(t->comm, 0, "identifying data.train");
    DPT_TRY(dpt_group_agree(world, dpt_run_leads(run) ? dpt_splits_identify(&t->data, err) : DPT_OK,
                            err));
    DPT_TRY(dpt_resume_run(t, resume, run->job_text.text, &resumed, err));
    dpt_run_watch(run);
    run->resumed = run->saved_step = resumed == DPT_RESUMED ? t->progress.step : -1;
    DPT_TRY(find_end(run, resume->path, finished, err));
    *finished = *finished || resumed == DPT_RESUMED_ENDED;
    if (*finished)
        return DPT_OK;
    choose_lines(run);
    if (resumed == DPT_RESUMED_NOT)
        DPT_TRY(dpt_init_weights(t, &run->init, err));
    if (world->size > 1)
        DPT_TRY(dpt_group_agree(
            world, DPT_ALLOCATE(run->rank_work, (size_t)world->size, "the list of ranks", err),
            err));
    if (t->job->log.hashes)
        status = DPT_ALLOCATE(run->fingerprints, (size_t)dpt_audit_hashes(t), "fingerprints", err);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (t->job->log.tensorboard && dpt_run_leads(run))
        status = dpt_board_counts_open(&run->counts, &t->model.graph, t->team.pool, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_agree(
        world, dpt_run_leads(run) ? open_folder(run, resume->overwrite, err) : DPT_OK, err));
    DPT_TRY(dpt_report_start(run, err));
    if (run->overwritten)
        dpt_log_info(t->log, "  the run before lies in %s/overwritten until this one has %s",
                     t->job->output, run->saver != NULL ? "its first checkpoint" : "ended");
    if (t->job->log.trace)
        DPT_TRY(open_trace(run, err));
    DPT_TRY(dpt_group_agree(world, dpt_trainer_seek(t, err), err));
out:
    return status;
}

/* Completes an --overwrite that was interrupted: the previous run may be deleted once the present
 * one has a checkpoint, or has ended. */
static enum dpt_status tidy(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t *steps = NULL, end;
    bool early;
    size_t n;

    DPT_TRY(dpt_overwritten_restore(folder, err));
    if (!dpt_overwritten_exists(folder))
        goto out;
    DPT_TRY(dpt_checkpoint_list(folder, &steps, &n, err));
    DPT_TRY(dpt_resume_end(folder, &end, &early, err));
    if (n > 0 || end >= 0)
        DPT_TRY(dpt_overwritten_remove(folder, err));
out:
    free(steps);
    return status;
}

/* Whether all that the job's run writes into its folder may be written there. By rank 0. */
static enum dpt_status check_folder(const struct dpt_job *job, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct {
        const char *name;
        bool wanted;
    } asked[] = {
        {"hashes.jsonl", job->log.hashes},
        {"trace.json", job->log.trace},
        {DPT_TENSORBOARD_FILE, job->log.tensorboard},
    };

    for (size_t i = 0; dpt_run_file_name(i) != NULL; i++) {
        bool wanted = true;

        for (size_t k = 0; k < sizeof asked / sizeof asked[0]; k++)
            if (strcmp(asked[k].name, dpt_run_file_name(i)) == 0)
                wanted = asked[k].wanted;
        if (wanted)
            DPT_TRY(dpt_run_file_check(job->output, dpt_run_file_name(i), err));
    }
    DPT_TRY(dpt_run_checkpoints_check(job->output, err));
out:
    return status;
}

enum dpt_status dpt_run_take_lock(struct dpt_run *run, const struct dpt_comm *comm,
                                  struct dpt_log *log, const struct dpt_job *job,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, first = DPT_OK;
    const char *folder = job->output;

    if (comm->world.rank == 0)
        first = check_folder(job, err);
    if (comm->world.rank == 0 && first == DPT_OK)
        first = dpt_lock_take(&run->lock, folder, comm->host, log, err);
    if (comm->world.rank == 0 && first == DPT_OK)
        first = tidy(folder, err);
    /* The failure concerns all ranks, so the message need not name rank 0, which found it. */
    DPT_TRY(dpt_group_broadcast(&comm->world, 0, &first, sizeof first, err));
    DPT_TRY(dpt_group_agree(&comm->world, first, err));
out:
    return status;
}

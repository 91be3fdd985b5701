#include "core/train/run/resume.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/state/jobs.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"

struct dpt_resume dpt_resume_parse(const char *word, bool overwrite, bool any)
{
    const bool none = word != NULL && strcmp(word, "none") == 0;
    const bool path = word != NULL && !none && strcmp(word, "auto") != 0;

    return (struct dpt_resume){.path = path ? word : NULL,
                               .none = none || (overwrite && !path),
                               .any = any,
                               .overwrite = overwrite};
}

/* What rank 0 found, beside the state; and where it looks. */
struct found {
    struct dpt_trainer *t;
    const struct dpt_resume *resume;
    enum dpt_resumed resumed;
    char path[PATH_MAX]; /* the checkpoint's */
    char *plans;         /* the kernels that it was made with; NULL: it does not say */
    bool same;           /* made with the same libraries, for a job that makes the same steps */
};

/* Explains a difference in the samples of a step if it comes from the number of ranks. */
static void explain_batch(const struct dpt_trainer *t, struct dpt_str *changes)
{
    if (t->job->batch.per_rank == 0 || changes->text == NULL ||
        strstr(changes->text, "batch.global: ") == NULL)
        return;
    dpt_str_printf(changes,
                   "\nbatch.per_rank: %lld makes %lld samples per step on %d ranks: start as many "
                   "ranks as before, or give batch.global",
                   (long long)t->job->batch.per_rank, (long long)t->job->batch.global,
                   t->comm->world.size);
}

/* What a checkpoint was made from, beside ours. */
struct comparison {
    bool job, data; /* are they the same, as far as a resumed run needs them to be */
    struct dpt_str changes;
};

/* Compares data and job of a checkpoint with ours. Data that are the same may lie elsewhere. */
static enum dpt_status compare(const struct dpt_trainer *t, const struct dpt_checkpoint *file,
                               const char *old_job, const char *job, struct comparison *c,
                               struct dpt_error *err)
{
    static const char train[] = "data.train";
    char then[DPT_IDENTITY_TEXT];
    struct dpt_str told = {0};
    const enum dpt_identity_result data =
        dpt_identity_compare(dpt_checkpoint_attribute(file, "trained_on", then, sizeof then),
                             t->data.identity, train, &told);

    c->data = data != DPT_IDENTITY_OTHER;
    c->job = dpt_jobs_compare(old_job, job, dpt_job_options, sizeof *t->job,
                              data == DPT_IDENTITY_UNKNOWN ? NULL : train, false, &c->changes);
    explain_batch(t, &c->changes);
    if (told.length > 0)
        dpt_str_printf(&c->changes, "%s%s", c->changes.length > 0 ? "\n" : "", told.text);
    c->changes.failed = c->changes.failed || told.failed;
    dpt_str_release(&told);
    return c->changes.failed ? dpt_fail_memory(err, "comparing jobs", 0) : DPT_OK;
}

/* Takes a verified checkpoint: compares its job and data with ours, then reads its state. */
static enum dpt_status take(struct dpt_trainer *t, struct dpt_state *state, const char *path,
                            bool any_job, bool any, struct found *found, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct comparison c = {0};
    struct dpt_checkpoint file = {0};
    char *old_job = NULL, made_by[512], ours[512], backend[64], chunks[8];
    int64_t numerics;
    bool same, revised;

    DPT_TRY(dpt_checkpoint_open(&file, path, err));
    DPT_TRY(dpt_checkpoint_read(&file, state, DPT_LOAD_PROGRESS, &old_job, err));
    DPT_TRY(compare(t, &file, old_job, state->job_text, &c, err));
    same = c.job && c.data;
    if (!same && !any_job)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "%s was made %s:\n%s\ngive the job another --output, or start "
                         "from that checkpoint on purpose with --resume %s",
                         path, c.job ? "with other training data" : "by another job",
                         c.changes.text, path));
    if (same && !any_job && state->progress.epoch_step >= t->steps_per_epoch)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: its attribute epoch_step is %lld, an epoch has %lld steps: the data "
                         "are others than then, or "
                         "it is damaged; start from it on purpose with --resume %s",
                         path, (long long)state->progress.epoch_step, (long long)t->steps_per_epoch,
                         path));
    DPT_TRY(dpt_checkpoint_read(
        &file, state, DPT_LOAD_PARAMS | DPT_LOAD_SLOTS | (any ? DPT_LOAD_ANY : 0), NULL, err));
    if (!any_job)
        DPT_TRY(dpt_trainer_check_columns(t, &file, err));
    free(found->plans);
    DPT_TRY(dpt_checkpoint_text(&file, "/plans", &found->plans, err));
    snprintf(found->path, sizeof found->path, "%s", path);
    dpt_log_info(t->log, "resuming at step %lld from %s", (long long)state->progress.step, path);
    dpt_checkpoint_numerics(&file, made_by, sizeof made_by);
    snprintf(ours, sizeof ours, "%s %s, dptrain %s", state->backend, state->library,
             state->version);
    dpt_checkpoint_attribute(&file, "backend", backend, sizeof backend);
    numerics = dpt_checkpoint_arithmetic(&file);
    revised = strcmp(backend, state->backend) == 0 && numerics != state->numerics;
    found->same = same && !revised && strcmp(made_by, ours) == 0;
    if (revised)
        dpt_log_warn(t->log,
                     "%s was made with %s, whose numerics are version %lld, this is %s, with "
                     "version %d: from here on the bytes are those of version %d; to get those of "
                     "version %lld, resume with the dptrain that made it",
                     path, made_by, (long long)numerics, ours, state->numerics, state->numerics,
                     (long long)numerics);
    else if (strcmp(made_by, ours) != 0)
        dpt_log_warn(t->log,
                     "%s was made with %s, this is %s: from here on the bytes may differ from what "
                     "they would have been there",
                     path, made_by, ours);
    if (same && state->clips_rows &&
        strcmp(dpt_checkpoint_attribute(&file, "norm_chunks", chunks, sizeof chunks), "rows") != 0)
        dpt_log_warn(t->log,
                     "%s was made by a dptrain that added up clip_norm's norm in another order: "
                     "from here on the last bits may differ from what they would have been there",
                     path);
    if (c.changes.length > 0)
        dpt_log_info(t->log, "changed since then:\n%s", c.changes.text);
out:
    dpt_checkpoint_close(&file);
    free(old_job);
    dpt_str_release(&c.changes);
    return status;
}

static enum dpt_status take_newest(struct dpt_trainer *t, struct dpt_state *state, bool any,
                                   struct found *found, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *folder = t->job->output;
    int64_t *steps = NULL;
    char path[PATH_MAX], damaged[DPT_ERROR_TEXT] = "";
    size_t n;

    DPT_TRY(dpt_checkpoint_list(folder, &steps, &n, err));
    for (size_t i = 0; i < n && found->resumed == DPT_RESUMED_NOT; i++) {
        dpt_checkpoint_path(folder, steps[i], path, sizeof path);
        if (damaged[0] != '\0')
            dpt_log_warn(t->log, "%s; taking the one before it, of step %lld", damaged,
                         (long long)steps[i]);
        status = dpt_trainer_verify(t, path, err);
        if (status == DPT_BAD_DATA) {
            snprintf(damaged, sizeof damaged, "%s", err->text);
            status = DPT_OK;
            continue;
        }
        DPT_TRY(status);
        DPT_TRY(take(t, state, path, false, any, found, err));
        /* A run that was killed after writing it may not have updated the links. */
        DPT_TRY(dpt_checkpoint_prepare(folder, err));
        DPT_TRY(dpt_checkpoint_rotate(folder, path, t->job->checkpoint.keep,
                                      state->progress.best_step, err));
        found->resumed = DPT_RESUMED;
    }
    if (n > 0 && found->resumed == DPT_RESUMED_NOT)
        DPT_TRY(dpt_fail(
            err, DPT_BAD_DATA,
            "%s; no checkpoint in %s is intact: start from scratch in another --output, or "
            "with --overwrite in its place",
            damaged, folder));
out:
    free(steps);
    return status;
}

/* Whether a folder has metrics; path: out, theirs. */
static bool holds_run(const char *folder, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/metrics.jsonl", folder);
    return dpt_file_exists(path);
}

/* A checkpoint of another folder starts a new run; the run of a checkpoint in this folder continues
 * in it. */
static bool lies_in(const char *file, const char *folder)
{
    char checkpoints[PATH_MAX], *here, *there, *end;
    bool inside;

    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    here = realpath(checkpoints, NULL);
    there = realpath(file, NULL);
    end = there != NULL ? strrchr(there, '/') : NULL;
    if (end != NULL)
        *end = '\0';
    inside = here != NULL && end != NULL && strcmp(here, there) == 0;
    free(here);
    free(there);
    return inside;
}

static enum dpt_status refuse(const char *folder, struct dpt_error *err)
{
    return dpt_fail(
        err, DPT_USAGE,
        "%s holds an earlier run: choose another folder with --output, or start from scratch in "
        "its place with --overwrite",
        folder);
}

static enum dpt_status take_path(struct dpt_trainer *t, struct dpt_state *state,
                                 const struct dpt_resume *resume, struct found *found,
                                 struct dpt_error *err)
{
    const char *folder = t->job->output;
    enum dpt_status status;
    char file[PATH_MAX], path[PATH_MAX];

    dpt_checkpoint_newest(resume->path, file);
    if (holds_run(folder, path) && !lies_in(file, folder) && !resume->overwrite)
        return refuse(folder, err);
    status = dpt_trainer_verify(t, file, err);
    if (status == DPT_OK)
        status = take(t, state, file, true, resume->any, found, err);
    /* Later checkpoints belong to the steps that are now repeated. */
    if (status == DPT_OK && lies_in(file, folder) && !resume->overwrite)
        status = dpt_checkpoint_set_aside(folder, state->progress.step, err);
    return status;
}

/* The "step" of a line of metrics; -1: it has none (the `run` event). */
static int64_t line_step(const char *line, size_t n)
{
    static const char key[] = "\"step\": ";
    const char *at = memmem(line, n, key, sizeof key - 1);

    return at != NULL ? strtoll(at + sizeof key - 1, NULL, 10) : -1;
}

enum dpt_status dpt_resume_end(const char *folder, int64_t *step, bool *early,
                               struct dpt_error *err)
{
    static const char done[] = "\"reason\": \"done\"", stopped[] = "\"stopped_early\": ";
    char path[PATH_MAX], *text = NULL;
    const char *line;
    size_t length;

    *step = -2;
    *early = false;
    if (!holds_run(folder, path))
        return DPT_OK;
    *step = -1;
    if (dpt_file_read(path, SIZE_MAX / 2, DPT_IO, &text, &length, err) != DPT_OK)
        return err->status;
    if (length > 0 && text[length - 1] == '\n') { /* what a kill left of a line has no end */
        text[length - 1] = '\0';
        line = strrchr(text, '\n') != NULL ? strrchr(text, '\n') : text;
        if (strstr(line, done) != NULL)
            *step = line_step(line, strlen(line));
        *early = *step >= 0 && strstr(line, stopped) != NULL;
    }
    free(text);
    return DPT_OK;
}

/* Reads what the folder's job.yaml says of the result. Errors: whatever is wrong with that file. */
static enum dpt_status read_signature(const struct dpt_trainer *t, struct dpt_str *out,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conf conf = {0};
    struct dpt_job job;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/job.yaml", t->job->output);
    DPT_TRY(dpt_job_load(&job, &conf, path, NULL, 0, err));
    DPT_TRY(dpt_job_for_ranks(&job, t->comm->world.size, err));
    dpt_job_signature(&job, &conf, out);
    if (out->failed)
        DPT_TRY(dpt_fail_memory(err, "comparing jobs", 0));
out:
    dpt_conf_release(&conf);
    return status;
}

/* Handles a folder whose run ended with step `end`, its last one or an early stop, and saved
 * nothing: decides whether it is the run that is asked for. */
static enum dpt_status judge_ended(struct dpt_trainer *t, const char *job_text, int64_t end,
                                   bool early, struct found *found, struct dpt_error *err)
{
    const char *folder = t->job->output;
    struct dpt_str old = {0}, changes = {0};
    struct dpt_error unreadable;
    enum dpt_status status = DPT_OK;

    if (read_signature(t, &old, &unreadable) != DPT_OK)
        DPT_TRY(refuse(folder, err)); /* by another version, or changed since */
    if (!dpt_jobs_compare(old.text, job_text, dpt_job_options, sizeof *t->job, NULL, false,
                          &changes))
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "%s holds the run of another job:\n%s\ngive the job another --output, or "
                         "start from scratch in its place with --overwrite",
                         folder, changes.text));
    if (end < t->steps && !early)
        DPT_TRY(
            dpt_fail(err, DPT_USAGE,
                     "%s holds an earlier run, which ended at step %lld without a checkpoint to "
                     "resume from: choose another folder with --output, or start from scratch in "
                     "its place with --overwrite",
                     folder, (long long)end));
    found->resumed = DPT_RESUMED_ENDED;
    dpt_log_info(t->log,
                 "%s is finished, %s %lld%s, and has saved nothing to resume from: --overwrite "
                 "starts from scratch in its place, --output in another",
                 folder, early ? "stopped early at step" : "all", (long long)end,
                 early ? "" : " steps");
out:
    dpt_str_release(&old);
    dpt_str_release(&changes);
    return status;
}

static enum dpt_status choose(void *arg, struct dpt_state *state, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct found *found = arg;
    struct dpt_trainer *t = found->t;
    const struct dpt_resume *resume = found->resume;
    char path[PATH_MAX];
    int64_t end = -1;
    bool early = false;

    if (resume->path != NULL) {
        DPT_TRY(take_path(t, state, resume, found, err));
        found->resumed = DPT_RESUMED;
    } else if (!resume->none) {
        DPT_TRY(take_newest(t, state, resume->any, found, err));
        if (found->resumed == DPT_RESUMED_NOT)
            DPT_TRY(dpt_resume_end(t->job->output, &end, &early, err));
        if (end >= 0)
            DPT_TRY(judge_ended(t, state->job_text, end, early, found, err));
    } else if (holds_run(t->job->output, path) && !resume->overwrite) {
        DPT_TRY(refuse(t->job->output, err));
    }
out:
    return status;
}

/* With another batch or data set an epoch may have fewer steps, and then starts again; a run whose
 * length is given in epochs still makes those that are left. */
static void fit_epochs(struct dpt_trainer *t)
{
    struct dpt_progress *p = &t->progress;
    int64_t left;

    if (p->epoch_step >= t->steps_per_epoch) {
        p->epoch_step = 0;
        p->epoch++;
    }
    left = t->job->train.epochs - p->epoch;
    if (t->job->train.steps == 0)
        t->steps = p->step + (left > 0 ? left * t->steps_per_epoch - p->epoch_step : 0);
}

/* Rank 0 warns where some */
static void tell_plans(const struct dpt_trainer *t, const struct found *found)
{
    char first[128];
    int changed, total;

    if (!found->same || found->plans == NULL || t->model.plans.text == NULL)
        return;
    changed = dpt_plans_changed(found->plans, t->model.plans.text, &total, first, sizeof first);
    if (changed > 0)
        dpt_log_warn(t->log,
                     "%d of the %d convolutions and products that %s was made with (%s%s) are "
                     "computed in another way on this device: from here on the bytes may differ "
                     "from what they would have been there",
                     changed, total, found->path, first, changed > 1 ? ", ..." : "");
}

enum dpt_status dpt_resume_run(struct dpt_trainer *t, const struct dpt_resume *resume,
                               const char *job_text, enum dpt_resumed *resumed,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_state state = dpt_trainer_state(t, job_text);
    struct found found = {.t = t, .resume = resume, .resumed = DPT_RESUMED_NOT};

    DPT_TRY(dpt_group_agree(world, dpt_trainer_read(t, &state, choose, &found, err), err));
    *resumed = found.resumed;
    DPT_TRY(dpt_group_broadcast(world, 0, resumed, sizeof *resumed, err));
    if (*resumed != DPT_RESUMED)
        goto out;
    if (world->rank == 0) {
        t->progress = state.progress;
        t->scale = state.scale;
    }
    DPT_TRY(dpt_group_broadcast(world, 0, &t->progress, sizeof t->progress, err));
    DPT_TRY(dpt_group_broadcast(world, 0, &t->scale, sizeof t->scale, err));
    fit_epochs(t);
    DPT_TRY(dpt_trainer_share_targets(t, err));
    DPT_TRY(dpt_trainer_broadcast(t, true, err));
    DPT_TRY(dpt_trainer_share_plans(t, found.plans, err));
    tell_plans(t, &found);
    DPT_TRY(dpt_group_agree(world, dpt_trainer_refresh(t, err), err));
out:
    free(found.plans);
    return status;
}

enum dpt_status dpt_resume_trim(const char *folder, const char *name, int64_t step,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[PATH_MAX], *text = NULL;
    struct dpt_str kept = {0};
    size_t length;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    DPT_TRY(dpt_file_check_target(path, err));
    if (!dpt_file_exists(path))
        return DPT_OK;
    DPT_TRY(dpt_file_read(path, SIZE_MAX / 2, DPT_IO, &text, &length, err));
    for (const char *line = text, *end; (end = memchr(line, '\n', length - (size_t)(line - text)));
         line = end + 1) { /* what a kill left of a line has no end and goes too */
        const size_t n = (size_t)(end - line);

        /* A power cut may leave holes in data that were not yet synced. */
        if (step >= 0 && n > 2 && line[0] == '{' && line[n - 1] == '}' &&
            memchr(line, '\0', n) == NULL && line_step(line, n) <= step)
            dpt_str_add(&kept, line, n + 1);
    }
    if (kept.failed)
        DPT_TRY(dpt_fail_memory(err, name, (double)length));
    DPT_TRY(dpt_file_write(path, kept.text != NULL ? kept.text : "", kept.length, err));
out:
    free(text);
    dpt_str_release(&kept);
    return status;
}

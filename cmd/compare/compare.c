/* `dptrain compare`: results of runs, and the settings in which their jobs differ. */
#include "cmd/compare/compare.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "cmd/screen.h"
#include "core/base/json.h"
#include "core/base/memory.h"

/* A count that is not there is null. */
static void count(struct dpt_json *j, const char *key, int64_t value)
{
    if (value >= 0)
        dpt_json_int(j, key, value);
    else
        dpt_json_null(j, key);
}

static void write_eval(struct dpt_json *j, const char *key, const struct dpt_history_eval *e)
{
    if (e == NULL) {
        dpt_json_null(j, key);
        return;
    }
    dpt_json_object(j, key);
    dpt_json_int(j, "step", e->step);
    dpt_json_real(j, "loss", e->loss);
    dpt_json_real(j, "accuracy", e->accuracy);
    for (const struct dpt_history_score *s = dpt_history_scores; s->name != NULL; s++) {
        const double value = *(const double *)(const void *)((const char *)e + s->member);

        if (!isnan(value))
            dpt_json_real(j, s->name, value);
    }
    dpt_json_end(j);
}

static void write_start(struct dpt_json *j, const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    if (start == NULL)
        return;
    count(j, "steps", start->steps);
    count(j, "parameters", start->parameters);
    count(j, "ranks", start->ranks);
    count(j, "nodes", start->hosts);
    count(j, "threads", start->threads);
    count(j, "global", start->global);
    count(j, "micro", start->micro);
    dpt_json_text(j, "device", start->device);
    dpt_json_text(j, "library", start->library);
    dpt_json_text(j, "version", start->version);
    dpt_json_text(j, "mpi", start->mpi);
    dpt_json_text(j, "hdf5", start->hdf5);
}

static void write_run(struct dpt_json *j, const struct dpt_runs *c, size_t number)
{
    const struct dpt_run_folder *run = &c->at[number];
    const struct dpt_job_keys *jobs = &c->jobs;
    const struct dpt_history *h = &run->history;
    const struct dpt_history_train *train = h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    const struct dpt_history_start *start = dpt_history_start(h);

    dpt_json_object(j, NULL);
    dpt_json_text(j, "folder", h->folder);
    dpt_json_text(j, "name", start != NULL ? start->name : NULL);
    dpt_json_text(j, "state", dpt_run_state_names[run->run_status.state]);
    dpt_json_text(j, "reason", dpt_history_end(h) != NULL ? run->run_status.reason : NULL);
    count(j, "step", dpt_history_step(h));
    count(j, "starts", (int64_t)h->n_starts);
    dpt_json_real(j, "train_loss", train != NULL ? train->loss : NAN);
    dpt_json_real(j, "train_accuracy", train != NULL ? train->accuracy : NAN);
    write_eval(j, "epoch", dpt_history_last(h, DPT_HISTORY_EPOCH));
    write_eval(j, "valid", dpt_history_last(h, DPT_HISTORY_VALID));
    write_eval(j, "best_valid", dpt_history_best(h, DPT_HISTORY_VALID));
    write_eval(j, "test", dpt_history_last(h, DPT_HISTORY_TEST));
    dpt_json_real(j, "samples_per_s", dpt_history_rate(h));
    dpt_json_real(j, "seconds", dpt_history_seconds(h));
    count(j, "damaged_lines", h->damaged);
    write_start(j, h);
    dpt_json_object(j, "job");
    for (size_t k = 0; k < jobs->n_keys; k++)
        if (jobs->keys[k].value[number] != NULL)
            dpt_json_text(j, jobs->keys[k].path, jobs->keys[k].value[number]);
    dpt_json_end(j);
    dpt_json_end(j);
}

/* The sentences that a person reads. */
static void write_bases(const struct dpt_runs *c, struct dpt_json *j)
{
    const char *names[c->n + 1], *said[DPT_MOST_REASONS];
    struct dpt_region region = {0};
    size_t n;

    for (size_t i = 0; i < c->n; i++)
        names[i] = c->at[i].history.folder;
    n = dpt_runs_tell_bases(c, names, &region, said);
    dpt_json_array(j, "not_comparable");
    for (size_t i = 0; i < n; i++)
        dpt_json_text(j, NULL, said[i]);
    dpt_json_end(j);
    dpt_region_release(&region);
}

static void write_json(const struct dpt_runs *c, struct dpt_json *j)
{
    dpt_json_object(j, NULL);
    dpt_json_array(j, "differs");
    for (size_t k = 0; k < c->jobs.n_keys; k++)
        if (c->jobs.keys[k].differs)
            dpt_json_text(j, NULL, c->jobs.keys[k].path);
    dpt_json_end(j);
    write_bases(c, j);
    dpt_json_array(j, "runs");
    for (size_t i = 0; i < c->n; i++) {
        dpt_json_break(j);
        write_run(j, c, i);
    }
    dpt_json_break(j);
    dpt_json_end(j);
    dpt_json_end(j);
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_runs runs = {0};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    int columns, rows;

    if (cli->n_positional == 0)
        return dpt_cli_wrong(cli, "no run folder given;", err);
    DPT_TRY(
        dpt_runs_open(&runs, cli->positional, cli->n_positional, dpt_cli_has(cli, "--json"), err));
    for (size_t i = 0; i < runs.n; i++)
        if (runs.at[i].no_job != NULL)
            dpt_log_warn(&cli->log, "%s", runs.at[i].no_job);
    setlocale(LC_CTYPE, "");
    dpt_screen_size(&columns, &rows);
    if (dpt_cli_has(cli, "--json")) {
        write_json(&runs, &json);
        status = dpt_json_finish(&json, "the table", err);
    } else {
        dpt_compare_table(&runs, columns, strcmp(nl_langinfo(CODESET), "UTF-8") != 0, &out);
        status = dpt_output_text(&out, "the table", err);
    }
out:
    dpt_runs_close(&runs);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--json", NULL,
     "one JSON object: results and whole jobs of all runs, and the keys that differ"},
    {0},
};

const struct dpt_command dpt_cmd_compare = {
    .name = "compare",
    .usage = "RUN... [--json]",
    .summary = "compare runs: results, best first, and differing settings",
    .details = "Prints a table with a line for each run folder: results (accuracies, losses, "
               "steps, speed, time; regression: MAE, RMSE and R2 in the targets' units; "
               "multi-label: exact match and label accuracy; imbalanced classes: balanced "
               "accuracy and the rarest one's recall), then the keys of job.yaml in which the "
               "runs differ, then the ranks and versions in which they do. The best come first, "
               "by what the jobs monitor: the validation data's accuracy, or loss, unless "
               "checkpoint.monitor names another value. Runs that cannot be compared by it "
               "stand apart. Figures with other weights, another loss, other target scales or "
               "other samples are not comparable: a line below the table lists them, with the "
               "reason. Models of different kinds have one row for all that is not at its "
               "default, and lists of layers one for each layer; --json has all keys. Runs that "
               "still run, were stopped or resumed are compared by what they have logged so "
               "far.\n\n"
               "  dptrain compare runs/lr-*\n"
               "  dptrain compare --json runs/a runs/b",
    .options = options,
    .one_rank = true,
    .run = run,
};

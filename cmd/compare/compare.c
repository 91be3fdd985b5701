/* `dptrain compare`: what differs in the jobs of runs, beside what came of them. */
#include "cmd/compare/compare.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "cmd/screen.h"
#include "core/base/memory.h"

/* A folder without a job, or with one that cannot be read, can still be compared by its results. */
static enum dpt_status read_job(struct dpt_compare_run *run, struct dpt_log *log,
                                struct dpt_error *err)
{
    char path[PATH_MAX + 16];
    enum dpt_status status;

    snprintf(path, sizeof path, "%s/job.yaml", run->history.folder);
    status = dpt_conf_load(&run->job, path, err);
    if (status == DPT_BAD_JOB) {
        dpt_log_warn(log, "%s", err->text);
        return DPT_OK;
    }
    if (status != DPT_OK)
        return status;
    run->has_job = true;
    return DPT_OK;
}

static enum dpt_status compare_jobs(struct dpt_compare *c, struct dpt_error *err)
{
    const struct dpt_conf_node **jobs = dpt_alloc_array(c->n, sizeof *jobs);
    bool good = jobs != NULL;

    for (size_t i = 0; good && i < c->n; i++)
        jobs[i] = c->runs[i].has_job ? c->runs[i].job.root : NULL;
    good = good && dpt_job_keys_open(&c->jobs, jobs, c->n);
    dpt_free(jobs);
    return good ? DPT_OK : dpt_fail_memory(err, "the keys of the jobs", 0);
}

static enum dpt_status load(struct dpt_compare *c, struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < c->n; i++) {
        struct dpt_compare_run *run = &c->runs[i];

        DPT_TRY(dpt_history_open(&run->history, cli->positional[i], err));
        dpt_run_status_read(&run->history, &run->run_status);
        DPT_TRY(read_job(run, &cli->log, err));
    }
    DPT_TRY(compare_jobs(c, err));
out:
    return status;
}

static void release(struct dpt_compare *c)
{
    for (size_t i = 0; c->runs != NULL && i < c->n; i++) {
        dpt_history_close(&c->runs[i].history);
        dpt_conf_release(&c->runs[i].job);
    }
    dpt_free(c->runs);
    dpt_job_keys_close(&c->jobs);
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_compare c = {.n = cli->n_positional};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    int columns, rows;

    if (c.n == 0)
        return dpt_cli_wrong(cli, "which run folders?", err);
    c.runs = dpt_alloc_array(c.n, sizeof *c.runs);
    if (c.runs == NULL)
        return dpt_fail_memory(err, "the runs", 0);
    DPT_TRY(load(&c, cli, err));
    setlocale(LC_CTYPE, "");
    dpt_screen_size(&columns, &rows);
    if (dpt_cli_has(cli, "--json")) {
        dpt_compare_json(&c, &json);
        status = dpt_json_finish(&json, "the table", err);
    } else {
        dpt_compare_print(&c, columns, strcmp(nl_langinfo(CODESET), "UTF-8") != 0, &out);
        status = dpt_output_text(&out, "the table", err);
    }
out:
    release(&c);
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
    .summary = "what differs in the jobs of runs, beside their results",
    .details =
        "Prints a table with a column for each run folder: the keys of job.yaml in which they "
        "differ, then how each went: steps, losses, accuracies, speed, time, ranks and versions. "
        "Runs that still run, were stopped or resumed are compared by what they have told so "
        "far.\n\n"
        "  dptrain compare runs/lr-*\n"
        "  dptrain compare --json runs/a runs/b",
    .options = options,
    .one_rank = true,
    .run = run,
};

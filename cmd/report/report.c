/* `dptrain report`: runs as one HTML page. */
#include "cmd/report/report.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* Labels are the folders' names, or where two are alike their paths. */
static void name_runs(struct dpt_page *r)
{
    bool alike = false;

    for (size_t i = 0; i < r->runs.n; i++)
        for (size_t k = 0; k < i; k++)
            alike = alike || strcmp(last_part(r->runs.at[i].history.folder),
                                    last_part(r->runs.at[k].history.folder)) == 0;
    for (size_t i = 0; i < r->runs.n; i++) {
        const char *folder = r->runs.at[i].history.folder;

        r->labels[i] = alike ? folder : last_part(folder);
    }
}

static void write_job(struct dpt_page *r, size_t index)
{
    const struct dpt_run_folder *run = &r->runs.at[index];
    struct dpt_error why = {0};
    char path[PATH_MAX + 16], *text = NULL;
    size_t length;

    snprintf(path, sizeof path, "%s/job.yaml", run->history.folder);
    if (run->no_job != NULL ||
        dpt_file_read(path, DPT_YAML_BYTES, DPT_BAD_JOB, &text, &length, &why) != DPT_OK) {
        dpt_html_element(&r->out, "<p class=\"missing\">No job: ",
                         run->no_job != NULL ? run->no_job : why.text, "</p>\n");
        return;
    }
    dpt_str_printf(&r->out, "<details%s><summary>", r->runs.n == 1 ? " open" : "");
    dpt_page_prefix(r, index);
    dpt_str_printf(&r->out, "job.yaml, all defaults filled in</summary>\n");
    dpt_html_element(&r->out, "<pre tabindex=\"0\">", text, "</pre></details>\n");
    free(text);
}

static void write_jobs(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "<section id=\"job\"><h2>%s</h2>\n", r->runs.n == 1 ? "Job" : "Jobs");
    for (size_t i = 0; i < r->runs.n; i++)
        write_job(r, i);
    dpt_str_printf(&r->out, "</section>\n");
}

static enum dpt_status write_page(struct dpt_page *r, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_log *log = &r->cli->log;

    dpt_page_begin(&r->out, "report");
    for (size_t i = 0; i < r->runs.n; i++)
        dpt_html_element(&r->out, i > 0 ? ", " : "", r->labels[i], "");
    dpt_page_body(&r->out, "report");
    dpt_page_headline(r);
    dpt_page_curves(r);
    dpt_page_ranks(r);
    dpt_page_write_predictions(r);
    dpt_page_models(r);
    write_jobs(r);
    dpt_page_environment(r);
    dpt_page_end(&r->out);
    if (r->out.failed)
        DPT_TRY(dpt_fail_memory(err, "the page", (double)r->out.length));
    DPT_TRY(dpt_file_write(path, r->out.text, r->out.length, err));
    for (size_t i = 0; i < r->runs.n; i++)
        if (r->predictions[i].why != NULL && !r->no_predictions)
            dpt_log_warn(log, "%s: no predictions: %s", r->runs.at[i].history.folder,
                         r->predictions[i].why);
    dpt_log_info(log, "wrote %s, %.0f KB", path, (double)r->out.length / 1e3);
out:
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_page r = {.cli = cli};
    struct dpt_error why = {0};
    const char *path =
        dpt_cli_has(cli, "-o") ? dpt_cli_value(cli, "-o") : dpt_cli_value(cli, "--output");

    if (cli->n_positional == 0 || cli->n_positional > DPT_PAGE_RUNS)
        return dpt_cli_wrong(
            cli, cli->n_positional == 0 ? "no run folder given;" : "100 runs at most;", err);
    if (path == NULL)
        return dpt_cli_wrong(cli, "no output given: add -o report.html;", err);
    DPT_TRY(dpt_page_check_output(path, err));
    r.no_predictions = dpt_cli_has(cli, "--no-predictions");
    DPT_TRY(dpt_runs_open(&r.runs, cli->positional, cli->n_positional, false, err));
    r.labels = dpt_region_alloc(&r.region, r.runs.n * sizeof *r.labels);
    r.predictions = dpt_region_alloc(&r.region, r.runs.n * sizeof *r.predictions);
    r.models = dpt_region_alloc(&r.region, r.runs.n * sizeof *r.models);
    if (r.region.failed)
        DPT_TRY(dpt_fail_memory(err, "the report", 0));
    name_runs(&r);
    /* Where MPI does not start, that is why there are no predictions. */
    if (r.no_predictions)
        dpt_fail(&why, DPT_USAGE, "left out (--no-predictions)");
    else if (dpt_comm_open(&r.comm, &why) == DPT_OK)
        cli->log.silent = r.comm.world.rank != 0;
    for (size_t i = 0; i < r.runs.n; i++)
        DPT_TRY(why.status != DPT_OK ? dpt_page_leave_out(&r, i, why.text, err)
                                     : dpt_page_predict(&r, i, err));
    if (!cli->log.silent) /* of several ranks one does it */
        DPT_TRY(write_page(&r, path, err));
out:
    dpt_comm_close(&r.comm);
    for (size_t i = 0; r.predictions != NULL && i < r.runs.n; i++)
        dpt_importances_release(&r.predictions[i].importance);
    dpt_runs_close(&r.runs);
    dpt_region_release(&r.region);
    dpt_str_release(&r.out);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--output", "PATH", "the page to write; a report that is there is replaced"},
    {"-o", "PATH", "short for --output"},
    {"--no-predictions", NULL, "leave out what needs the checkpoint and the test data"},
    {"--set", "KEY=VALUE", "override a key of the jobs for the predictions; repeatable"},
    {0},
};

const struct dpt_command dpt_cmd_report = {
    .name = "report",
    .usage = "RUN [RUN...] -o report.html",
    .summary = "write an HTML report of one or more runs",
    .details = "Writes one HTML file that needs nothing beside it: loss, accuracy, learning "
               "rate and throughput, how evenly the ranks worked, where each is in a mesh, the "
               "confusion matrix of the classes with precision, recall, F1 and ROC AUC of each "
               "and the misclassified test samples with the highest loss, or each label of a "
               "multi-label job, precision against recall by the threshold for a class, or the "
               "errors of a regression and where they are largest, the columns of a table that "
               "matter, the model's layers, the job and where it ran. If classes are "
               "imbalanced, it shows how many of the rarest one are found. With several runs, "
               "up to 100, the curves share their charts, and a table shows results beside what "
               "differs in the jobs, the best first, by what they monitor; the best of a column "
               "is bold, unless figures have other weights, scales, losses or samples, which "
               "the page notes. A click on a name below a chart hides its curves. A run may "
               "still be running.\n\n"
               "The predictions are made again, on data.test, or data.valid if it is not set, "
               "with the run's best checkpoint if its job has checkpoint.monitor, else with its "
               "newest. Paths in the job are searched from this folder, then from the folders "
               "above the run's; --set data.test=PATH names others. The page lists what is "
               "missing.\n\n"
               "  dptrain report runs/mnist-cnn -o report.html\n"
               "  dptrain report runs/a runs/b runs/c -o compared.html",
    .options = options,
    .run = run,
};

/* `dptrain compare`: what differs in the jobs of runs, beside what came of them. */
#include "cmd/compare/compare.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "cmd/screen.h"

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_runs runs = {0};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    int columns, rows;

    if (cli->n_positional == 0)
        return dpt_cli_wrong(cli, "which run folders?", err);
    DPT_TRY(dpt_runs_open(&runs, cli->positional, cli->n_positional, err));
    for (size_t i = 0; i < runs.n; i++)
        if (runs.at[i].no_job != NULL)
            dpt_log_warn(&cli->log, "%s", runs.at[i].no_job);
    setlocale(LC_CTYPE, "");
    dpt_screen_size(&columns, &rows);
    if (dpt_cli_has(cli, "--json")) {
        dpt_compare_json(&runs, &json);
        status = dpt_json_finish(&json, "the table", err);
    } else {
        dpt_compare_print(&runs, columns, strcmp(nl_langinfo(CODESET), "UTF-8") != 0, &out);
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

/* `dptrain schema`: the job file as a JSON Schema, and whether job files are right. */
#include <stdio.h>

#include "cmd/cmd.h"
#include "core/train/job/job.h"

/* All of them; the code is that of the first that is wrong. */
static enum dpt_status check(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < cli->n_positional; i++) {
        struct dpt_conf conf = {0};
        struct dpt_error mistakes = {0};
        struct dpt_job job;
        const enum dpt_status one =
            dpt_job_load(&job, &conf, cli->positional[i], NULL, 0, &mistakes);

        if (one == DPT_OK)
            printf("%s: right\n", cli->positional[i]);
        else
            dpt_log_error(&cli->log, &mistakes);
        dpt_conf_release(&conf);
        if (status == DPT_OK)
            status = one;
    }
    err->text[0] = '\0'; /* told above */
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    struct dpt_json json = {.file = stdout, .indent = true};

    if (!dpt_cli_has(cli, "--check") && cli->n_positional > 0)
        return dpt_fail(err, DPT_USAGE, "dptrain schema: takes no file; --check %s checks it",
                        cli->positional[0]);
    if (!dpt_cli_has(cli, "--check")) {
        dpt_options_schema(dpt_job_options, "dptrain job", &json);
        return dpt_json_finish(&json, "the schema", err);
    }
    if (cli->n_positional == 0)
        return dpt_cli_wrong(cli, "no job file given;", err);
    return check(cli, err);
}

static const struct dpt_cli_option options[] = {
    {"--check", NULL, "instead check these job files: all errors, exit code 78"},
    {0},
};

const struct dpt_command dpt_cmd_schema = {
    .name = "schema",
    .usage = "[--check JOB.yaml...]",
    .summary = "print the job file's JSON Schema, for editors; check job files",
    .details = "Prints a JSON Schema (draft 7) of the job file: every key with its type, "
               "bounds, choices, default and meaning. Editors with a YAML language server "
               "complete and check with it as you type; their users save it once and begin a "
               "job file with\n"
               "  # yaml-language-server: $schema=dptrain.schema.json\n\n"
               "`x-effect` is for programs: what another value of a key changes. result: the "
               "weights; length: where the run ends; none, output: nothing in a checkpoint; "
               "kept: its job alone.\n\n"
               "The schema cannot express everything, as that the layers fit. --check also "
               "checks that, as far as it needs no data, and runs nothing.\n\n"
               "  dptrain schema > dptrain.schema.json\n"
               "  dptrain schema --check configs/*.yaml",
    .options = options,
    .one_rank = true,
    .run = run,
};

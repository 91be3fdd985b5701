/* Reads the command line, runs the command, turns its status into the exit code. */
#include <stdio.h>
#include <sys/resource.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "core/comm/comm.h"
#include "core/comm/launched.h"
#include "core/train/run/stop.h"

static enum dpt_status run(struct dpt_cli *cli, bool leads, struct dpt_error *err)
{
    enum dpt_status status;

    dpt_log_init(&cli->log,
                 dpt_cli_has(cli, "--quiet")     ? DPT_LOG_QUIET
                 : dpt_cli_has(cli, "--verbose") ? DPT_LOG_VERBOSE
                                                 : DPT_LOG_NORMAL,
                 !leads);
    status = cli->command->one_rank && !leads ? DPT_OK : cli->command->run(cli, err);
    if (status != DPT_OK && err->text[0] != '\0')
        dpt_log_error(&cli->log, err);
    dpt_log_close(&cli->log);
    return status;
}

/* Frames with paths and messages are large, and MPI's are, too: with less a call would end the
 * process without a word. */
static enum dpt_status check_stack(struct dpt_error *err)
{
    enum { LEAST = 256 << 10 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST)
        return DPT_OK;
    return dpt_fail(err, DPT_RANK,
                    "dptrain: the stack may have %lld kB here, %d are needed: ulimit -s 8192",
                    (long long)(limit.rlim_cur >> 10), LEAST >> 10);
}

int main(int argc, char **argv)
{
    enum dpt_status status;
    enum dpt_cli_action action;
    struct dpt_cli cli;
    struct dpt_error err = {0};
    bool leads;

    dpt_stop_catch();
    dpt_launched_join();
    leads = dpt_launcher_rank() == 0;
    dpt_output_begin();
    status = dpt_cli_parse(&cli, dpt_commands, argc, argv, &action, &err);
    if (status != DPT_OK || action != DPT_CLI_RUN || !cli.command->stops)
        dpt_stop_release();
    if (status == DPT_OK && action == DPT_CLI_RUN)
        status = check_stack(&err);
    if (status == DPT_OK && action == DPT_CLI_RUN) {
        status = run(&cli, leads, &err);
    } else if (status != DPT_OK) {
        if (leads)
            dpt_log_error(&cli.log, &err);
    } else if (leads && action == DPT_CLI_HELP) {
        status = dpt_cli_help(&cli, &err);
        if (status != DPT_OK)
            dpt_log_error(&cli.log, &err);
    } else if (leads) {
        dpt_cli_version();
    }
    dpt_cli_release(&cli);
    if (status == DPT_OK && (status = dpt_output_end(&err)) != DPT_OK)
        fprintf(stderr, "%s\n", err.text);
    dpt_launched_end(dpt_exit_code(status));
    if (status != DPT_OK)
        dpt_launcher_let_first_speak();
    return dpt_exit_code(status);
}

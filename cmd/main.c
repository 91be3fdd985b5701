/* Reads the command line, runs the command, turns its status into the exit code. */
#include <signal.h>
#include <stdio.h>

#include "cmd/cli.h"
#include "core/comm/comm.h"

int main(int argc, char **argv)
{
    enum dpt_status status;
    enum dpt_cli_wish wish;
    struct dpt_cli cli;
    struct dpt_error err = {0};
    const bool leads = dpt_launcher_rank() == 0;

    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error of write(), not the end */
    signal(SIGPIPE, SIG_IGN);
    status = dpt_cli_parse(&cli, argc, argv, &wish, &err);
    if (status == DPT_OK && wish != DPT_CLI_RUN) {
        if (leads && wish == DPT_CLI_HELP)
            dpt_cli_help(cli.command);
        else if (leads)
            dpt_cli_version();
    } else if (status == DPT_OK) {
        dpt_log_init(&cli.log,
                     dpt_cli_has(&cli, "--quiet")     ? DPT_LOG_QUIET
                     : dpt_cli_has(&cli, "--verbose") ? DPT_LOG_VERBOSE
                                                      : DPT_LOG_NORMAL,
                     !leads);
        status = cli.command->run(&cli, &err);
        if (status != DPT_OK && err.text[0] != '\0')
            dpt_log_error(&cli.log, &err);
        dpt_log_close(&cli.log);
    } else if (leads) {
        fprintf(stderr, "%s\n", err.text);
    }
    dpt_cli_release(&cli);
    if (fflush(stdout) != 0 && status == DPT_OK)
        status = DPT_IO;
    return dpt_exit_code(status);
}

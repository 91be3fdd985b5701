#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "core/base/str.h"

enum { COLUMNS = 79, OPTION_COLUMN = 23 };

const struct dpt_cli_option dpt_cli_common_options[] = {
    {"--quiet", NULL, "only warnings, errors and results"},
    {"--verbose", NULL, "more about what is done"},
    {"--help", NULL, "this text"},
    {0},
};

void dpt_cli_print(int indent, int column, const char *text)
{
    struct dpt_str lines = {0};

    dpt_str_wrap(&lines, text, (size_t)indent, (size_t)column, COLUMNS);
    fputs(lines.text != NULL ? lines.text : "", stdout);
    dpt_str_release(&lines);
}

static void print_options(const struct dpt_cli_option *options)
{
    for (const struct dpt_cli_option *o = options; o->name != NULL; o++) {
        const int column = printf("  %s%s%s  ", o->name, o->value != NULL ? " " : "",
                                  o->value != NULL ? o->value : "");

        dpt_cli_print(OPTION_COLUMN, column, o->help);
    }
}

static void help_of_all(const struct dpt_cli *cli)
{
    printf("dptrain trains a neural network on many ranks: one MPI rank a device, the\n"
           "gradients averaged with MPI_Allreduce, the job described by one YAML file.\n\n"
           "usage: dptrain [train] JOB.yaml [options]\n"
           "       mpirun -np N dptrain JOB.yaml [options]\n"
           "       dptrain COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        printf("  %-10s %s\n", cli->commands[i]->name, cli->commands[i]->summary);
    printf("\n`dptrain COMMAND --help` tells more; `dptrain --version` names the libraries.\n\n"
           "exit codes:\n");
    for (int i = 0; i < DPT_STATUS_COUNT; i++)
        printf("  %-4d %s\n", dpt_exit_code((enum dpt_status)i),
               dpt_status_text((enum dpt_status)i));
}

void dpt_cli_help(const struct dpt_cli *cli)
{
    const struct dpt_command *command = cli->command;

    if (command == NULL) {
        help_of_all(cli);
        return;
    }
    printf("dptrain %s: %s\n\n", command->name, command->summary);
    dpt_cli_print(7, printf("usage: dptrain %s", command->name), command->usage);
    putchar('\n');
    dpt_cli_print(0, 0, command->details);
    printf("\noptions:\n");
    print_options(command->options);
    print_options(dpt_cli_common_options);
    if (command->more_help != NULL)
        command->more_help();
}

/*
 * cli: reads the command line against the rows of cmd.h, and prints help from them.
 */
#ifndef DPT_CMD_CLI_H
#define DPT_CMD_CLI_H

#include "cmd/cmd.h"

/* What the command line asks the program to do. */
enum dpt_cli_action { DPT_CLI_RUN, DPT_CLI_HELP, DPT_CLI_VERSION };

/*
 * Fills *cli (release it in any case). The command `train` may be left out. Errors: USAGE, with a
 * suggestion for a misspelt name.
 */
enum dpt_status dpt_cli_parse(struct dpt_cli *cli, int argc, char **argv,
                              enum dpt_cli_action *action, struct dpt_error *err);
void dpt_cli_release(struct dpt_cli *cli);

/* Options of every command. */
extern const struct dpt_cli_option dpt_cli_common_options[];

/* Prints to stdout: the help of a command, or of the whole program (NULL); the versions. */
void dpt_cli_help(const struct dpt_command *command);
void dpt_cli_version(void);

#endif

/*
 * cmd: the command line. One file a subcommand, one row each; help, man page and errors follow from
 * the rows.
 *
 * The only place that turns a status into an exit code. Parsing does not start MPI: `--help` and
 * `--version` answer in milliseconds.
 */
#ifndef DPT_CMD_CMD_H
#define DPT_CMD_CMD_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/log.h"

/* One option of a subcommand; an array of them ends with a row without a name. */
struct dpt_cli_option {
    const char *name;  /* "--shards" */
    const char *value; /* what it takes ("N"), or NULL for a switch */
    const char *help;  /* one line */
};

struct dpt_cli_given {
    const struct dpt_cli_option *option;
    const char *value; /* NULL for a switch */
};

struct dpt_command;

/* A parsed command line. */
struct dpt_cli {
    const struct dpt_command *command;
    const char *program; /* argv[0] */
    char **argv;         /* as main got it, for starting ourselves again under mpirun */
    const char **positional;
    size_t n_positional;
    struct dpt_cli_given *given;
    size_t n_given;
    struct dpt_log log; /* level set from --quiet and --verbose; silent on every rank but 0 */
};

struct dpt_command {
    const char *name;
    const char *usage;   /* behind the name: "FORMAT IN… --output PREFIX [--shards N]" */
    const char *summary; /* one line */
    const char
        *details; /* paragraphs for --help (dpt_cli_print fills them), ends with an example */
    const struct dpt_cli_option *options; /* beside the common ones (--quiet, --verbose, --help) */
    /* Runs the command. Errors: any; the caller prints the text, and the status becomes the exit
     * code. */
    enum dpt_status (*run)(struct dpt_cli *cli, struct dpt_error *err);
    void (*more_help)(
        void); /* prints further help to stdout (a list of formats, the job's keys); may be NULL */
};

extern const struct dpt_command *const dpt_commands[]; /* ends with NULL */

/* The last value given for an option ("--shards"), or NULL; whether a switch was given. */
const char *dpt_cli_value(const struct dpt_cli *cli, const char *name);
bool dpt_cli_has(const struct dpt_cli *cli, const char *name);
/* The i-th value of a repeatable option, or NULL. */
const char *dpt_cli_nth(const struct dpt_cli *cli, const char *name, size_t i);
/* A whole number from an option, `fallback` where it was not given. Errors: USAGE (no number, or
 * not in [min, max]). */
enum dpt_status dpt_cli_int(const struct dpt_cli *cli, const char *name, long long min,
                            long long max, long long fallback, long long *value,
                            struct dpt_error *err);

/*
 * Prints text to stdout, filled to 79 columns behind an indent; `column`: where the cursor stands.
 * A newline ends a paragraph; a paragraph that begins with a space is an example and stays as it
 * is.
 */
void dpt_cli_print(int indent, int column, const char *text);

#endif

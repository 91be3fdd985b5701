/*
 * cmd: the command line. One file a subcommand, one row each; help, man page and errors follow from
 * the rows.
 *
 * The only place that turns a status into an exit code. Parsing does not start MPI: `--help` and
 * `--version` answer in milliseconds. Who needs the rows of all commands gets them with the parsed
 * command line, so that no command depends on the table that names it.
 */
#ifndef DPT_CMD_CMD_H
#define DPT_CMD_CMD_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/memory.h"

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
struct dpt_comm;
struct dpt_conf;
struct dpt_job;

/* What the command line asks the program to do. */
enum dpt_cli_action { DPT_CLI_RUN, DPT_CLI_HELP, DPT_CLI_VERSION };

/* A parsed command line. */
struct dpt_cli {
    const struct dpt_command *const *commands; /* all there are, ends with NULL */
    const struct dpt_command *command;
    char **argv; /* as main got it, for starting ourselves again under mpirun */
    const char **positional;
    size_t n_positional;
    struct dpt_cli_given *given;
    size_t n_given;
    /* Words that began with `~/`. */
    struct dpt_region paths;
    bool reads_input;            /* ranks that it starts get its standard input */
    const struct dpt_conf *conf; /* the job file, while the command's work runs */
    struct dpt_log log; /* level set from --quiet and --verbose; silent on every rank but 0 */
};

struct dpt_command {
    const char *name;
    const char *usage;   /* after the name: "FORMAT IN… --output PREFIX [--shards N]" */
    const char *summary; /* one line */
    const char
        *details; /* paragraphs for --help (dpt_cli_print fills them), ends with an example */
    const struct dpt_cli_option *options; /* beside the common ones (--quiet, --verbose, --help) */
    bool one_rank;                        /* started under mpirun, rank 0 alone does it */
    bool trains; /* so that a plan of the training says how many ranks are worth their while */
    bool
        stops; /* signals are requests to it (core/train/run/stop.h); they end other commands at once */
    /* Runs the command. Errors: any; the caller prints the text, and the status becomes the exit
     * code. */
    enum dpt_status (*run)(struct dpt_cli *cli, struct dpt_error *err);
    /* What dpt_job_command (job_command.h) runs on every rank; NULL: `run` does not call it. */
    enum dpt_status (*work)(struct dpt_cli *cli, const struct dpt_job *job,
                            const struct dpt_comm *comm, struct dpt_error *err);
    void (*more_help)(
        void); /* prints further help to stdout (a list of formats, the job's keys); may be NULL */
};

/* The rows of all commands, for main. */
extern const struct dpt_command *const dpt_commands[];
/* Options of every command. */
extern const struct dpt_cli_option dpt_cli_common_options[];

/*
 * Fills *cli (release it in any case). The command `train` may be left out. Errors: USAGE, with a
 * suggestion for a misspelt name.
 */
enum dpt_status dpt_cli_parse(struct dpt_cli *cli, const struct dpt_command *const *commands,
                              int argc, char **argv, enum dpt_cli_action *action,
                              struct dpt_error *err);
void dpt_cli_release(struct dpt_cli *cli);

/* Prints to stdout the help of the command, of the whole program where there is none, or of the
 * keys of the job file that stand after --help. Errors: USAGE, a word that is no key. */
enum dpt_status dpt_cli_help(const struct dpt_cli *cli, struct dpt_error *err);
/* Prints to stdout what a key of the job file means (core/conf/option.h), or all: "". Returns
 * whether there is such a key. */
bool dpt_cli_print_keys(const char *key);
/* Prints to stdout the versions. */
void dpt_cli_version(void);

/* The row of an option of a command, or of every command, by its name of n bytes; NULL: none. */
const struct dpt_cli_option *dpt_cli_option(const struct dpt_command *command, const char *name,
                                            size_t n);

/* The last value given for an option ("--shards"), or NULL; whether a switch was given. */
const char *dpt_cli_value(const struct dpt_cli *cli, const char *name);
bool dpt_cli_has(const struct dpt_cli *cli, const char *name);
/* Writes all values of a repeatable option, in their order; list: room for cli->n_given. Returns
 * how many there are. */
size_t dpt_cli_all(const struct dpt_cli *cli, const char *name, const char **list);
/* A whole number from an option, `fallback` where it was not given. Errors: USAGE (no number, or
 * not in [min, max]). */
enum dpt_status dpt_cli_int(const struct dpt_cli *cli, const char *name, long long min,
                            long long max, long long fallback, long long *value,
                            struct dpt_error *err);

/* USAGE: "dptrain layers: 'dens' is not known; did you mean 'dense'?", of n names, also where other
 * programs say 'Linear'; `otherwise` stands in place of the question where none of them is near. */
enum dpt_status dpt_cli_unknown(const char *command, const char *name, const char *is,
                                const char *const *names, size_t n, const char *otherwise,
                                struct dpt_error *err);

/* USAGE: "dptrain NAME: WHAT usage: dptrain NAME …". */
enum dpt_status dpt_cli_wrong(const struct dpt_cli *cli, const char *what, struct dpt_error *err);

/*
 * Prints text to stdout, filled to 79 columns after an indent; `column`: where the cursor stands.
 * A newline ends a paragraph; a paragraph that begins with a space is an example and stays as it
 * is.
 */
void dpt_cli_print(int indent, int column, const char *text);

#endif

#include "cmd/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/str.h"
#include "core/train/job/job.h"

enum { MAX_NAMES = 64 };

static const struct dpt_command *find_command(const struct dpt_cli *cli, const char *name)
{
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        if (strcmp(cli->commands[i]->name, name) == 0)
            return cli->commands[i];
    return NULL;
}

const struct dpt_cli_option *dpt_cli_option(const struct dpt_command *command, const char *name,
                                            size_t n)
{
    const struct dpt_cli_option *const tables[] = {dpt_cli_common_options, command->options};

    for (size_t t = 0; t < 2; t++)
        for (const struct dpt_cli_option *o = tables[t]; o != NULL && o->name != NULL; o++)
            if (strlen(o->name) == n && strncmp(o->name, name, n) == 0)
                return o;
    return NULL;
}

static bool takes_job(const struct dpt_command *command)
{
    return dpt_cli_option(command, "--set", strlen("--set")) != NULL;
}

/* meant: a name, a sentence, or NULL. */
static enum dpt_status unknown(const char *command, const char *name, const char *is,
                               const char *meant, const char *otherwise, struct dpt_error *err)
{
    const bool sentence = meant != NULL && strchr(meant, ' ') != NULL;

    return dpt_fail(err, DPT_USAGE, "%s: '%s' is %s%s%s%s", command, name, is,
                    sentence        ? "; "
                    : meant != NULL ? "; did you mean '"
                                    : otherwise,
                    meant != NULL ? meant : "", meant != NULL && !sentence ? "'?" : "");
}

enum dpt_status dpt_cli_unknown(const char *command, const char *name, const char *is,
                                const char *const *names, size_t n, const char *otherwise,
                                struct dpt_error *err)
{
    return unknown(command, name, is, dpt_word_meant(dpt_job_synonyms, NULL, name, names, n),
                   otherwise, err);
}

static enum dpt_status unknown_command(const struct dpt_cli *cli, const char *name,
                                       struct dpt_error *err)
{
    const char *names[MAX_NAMES];
    size_t n = 0;

    for (; n < MAX_NAMES && cli->commands[n] != NULL; n++)
        names[n] = cli->commands[n]->name;
    return dpt_cli_unknown("dptrain", name, "neither a command nor a job file", names, n,
                           "; `dptrain --help` lists the commands", err);
}

/* What other programs call an option; of several rows the first one that the command has counts. */
static const struct {
    const char *words, *option;
} synonyms[] = {
    {" -o --output --outfile ", "--out"},
    {" -o --out --outdir --output-dir --logdir ", "--output"},
    {" -c --model --ckpt --load --weights-file --from --resume ", "--checkpoint"},
    {" --checkpoint --ckpt --load --continue --from ", "--resume"},
    {" --force --restart --fresh ", "--overwrite"},
    {" --data --test --images ", "--input"},
    {" --proba --probs ", "--probabilities"},
    {" -q --silent ", "--quiet"},
    {" -v --debug ", "--verbose"},
};

static const char *find_synonym(const struct dpt_command *command, const char *word)
{
    char whole[80];

    snprintf(whole, sizeof whole, " %.64s ", word);
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (strstr(synonyms[i].words, whole) != NULL &&
            dpt_cli_option(command, synonyms[i].option, strlen(synonyms[i].option)) != NULL)
            return synonyms[i].option;
    return NULL;
}

/* The option whose name is near to a word, both without their dashes, by which all are alike. */
static const char *near_option(const struct dpt_command *command, const char *word)
{
    const struct dpt_cli_option *const tables[] = {dpt_cli_common_options, command->options};
    const char *names[MAX_NAMES], *options[MAX_NAMES], *near;
    size_t n = 0;

    for (size_t t = 0; t < 2; t++)
        for (const struct dpt_cli_option *o = tables[t]; o->name != NULL && n < MAX_NAMES; o++) {
            names[n] = o->name + strspn(o->name, "-");
            options[n++] = o->name;
        }
    near = dpt_nearest(word + strspn(word, "-"), names, n);
    return near != NULL ? options[dpt_find(near, names, n)] : NULL;
}

/* The key of the job file that an option is called as, or is a synonym of; or a sentence; or NULL.
 */
static const char *find_key(const char *word)
{
    const char *key = dpt_option_synonym(dpt_job_synonyms, word);

    for (const struct dpt_option *o = dpt_job_options; key == NULL && o->name != NULL; o++)
        if (o->type != DPT_OPT_SECTION && strcmp(o->name, word + strspn(word, "-")) == 0)
            key = o->name;
    return key;
}

static enum dpt_status unknown_option(const struct dpt_command *command, const char *name,
                                      struct dpt_error *err)
{
    const char *near, *key = NULL;
    char word[64];

    snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "="), name);
    near = find_synonym(command, word);
    if (near == NULL && takes_job(command))
        key = find_key(word);
    if (key != NULL && strchr(key, ' ') != NULL)
        return dpt_fail(err, DPT_USAGE, "dptrain %s: unknown option %s; %s", command->name, word,
                        key);
    if (key != NULL)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain %s: unknown option %s, did you mean --set %s=VALUE?",
                        command->name, word, key);
    if (near == NULL)
        near = near_option(command, word);
    return dpt_fail(err, DPT_USAGE,
                    "dptrain %s: unknown option %s%s%s%s; `dptrain %s --help` lists them",
                    command->name, name, near != NULL ? ", did you mean " : "",
                    near != NULL ? near : "", near != NULL ? "?" : "", command->name);
}

/* One option, as "--name value" or "--name=value"; *i moves past a value of its own. */
static enum dpt_status take_option(struct dpt_cli *cli, int argc, char **argv, int *i,
                                   struct dpt_error *err)
{
    const char *word = argv[*i], *equals = strchr(word, '=');
    const size_t n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const struct dpt_cli_option *option = dpt_cli_option(cli->command, word, n);
    const char *value = NULL;

    if (option == NULL)
        return unknown_option(cli->command, word, err);
    if ((option->value == NULL || option->value[0] == '[') && equals != NULL)
        return dpt_fail(err, DPT_USAGE, "dptrain %s: %s takes no value", cli->command->name,
                        option->name);
    if (option->value != NULL) {
        if (equals == NULL && *i + 1 >= argc)
            return dpt_fail(err, DPT_USAGE, "dptrain %s: %s needs a value: %s %s",
                            cli->command->name, option->name, option->name, option->value);
        value = equals != NULL ? equals + 1 : argv[++*i];
    }
    if (value != NULL && (value = dpt_file_from_home(value, &cli->paths)) == NULL)
        return dpt_fail_memory(err, "the command line", 0);
    cli->given[cli->n_given++] = (struct dpt_cli_given){option, value};
    return DPT_OK;
}

/* The command, or an option for help or version in its place. *i: the first word after it. */
static enum dpt_status take_command(struct dpt_cli *cli, int argc, char **argv, int *i,
                                    enum dpt_cli_action *action, struct dpt_error *err)
{
    const char *word = argc > 1 ? argv[1] : "--help";

    *i = 1;
    cli->command = find_command(cli, "train");
    if (argc <= 1 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ||
        strcmp(word, "help") == 0) {
        cli->command = argc > 2 ? find_command(cli, argv[2]) : NULL;
        *action = DPT_CLI_HELP;
        *i = cli->command != NULL ? 3 : 2;
        return DPT_OK;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        *action = DPT_CLI_VERSION;
        return DPT_OK;
    }
    if (word[0] == '-')
        return DPT_OK;
    if (find_command(cli, word) != NULL) {
        cli->command = find_command(cli, word);
        *i = 2;
        return DPT_OK;
    }
    /* A word that is no command is a job file if it looks like a path. */
    if (dpt_file_exists(word) || strchr(word, '/') != NULL || strchr(word, '.') != NULL)
        return DPT_OK;
    return unknown_command(cli, word, err);
}

enum dpt_status dpt_cli_parse(struct dpt_cli *cli, const struct dpt_command *const *commands,
                              int argc, char **argv, enum dpt_cli_action *action,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool only_words = false;
    int i;

    *cli = (struct dpt_cli){.commands = commands, .argv = argv};
    *action = DPT_CLI_RUN;
    cli->given = calloc((size_t)argc + 1, sizeof *cli->given);
    cli->positional = calloc((size_t)argc + 1, sizeof *cli->positional);
    if (cli->given == NULL || cli->positional == NULL)
        DPT_TRY(dpt_fail_memory(err, "the command line", 0));
    DPT_TRY(take_command(cli, argc, argv, &i, action, err));
    for (; *action != DPT_CLI_VERSION && i < argc; i++) {
        if (*action == DPT_CLI_HELP && argv[i][0] == '-') {
            break; /* keys stand right after --help */
        } else if (*action == DPT_CLI_HELP) {
            cli->positional[cli->n_positional++] = argv[i];
        } else if (!only_words && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            *action = DPT_CLI_HELP;
            cli->n_positional = 0;
        } else if (!only_words && strcmp(argv[i], "--version") == 0) {
            *action = DPT_CLI_VERSION;
        } else if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (!only_words && argv[i][0] == '-' && argv[i][1] != '\0') {
            DPT_TRY(take_option(cli, argc, argv, &i, err));
        } else {
            const char *word = dpt_file_from_home(argv[i], &cli->paths);

            if (word == NULL)
                DPT_TRY(dpt_fail_memory(err, "the command line", 0));
            cli->positional[cli->n_positional++] = word;
        }
    }
out:
    return status;
}

void dpt_cli_release(struct dpt_cli *cli)
{
    free(cli->given);
    free(cli->positional);
    dpt_region_release(&cli->paths);
}

size_t dpt_cli_all(const struct dpt_cli *cli, const char *name, const char **list)
{
    size_t n = 0;

    for (size_t i = 0; i < cli->n_given; i++)
        if (strcmp(cli->given[i].option->name, name) == 0)
            list[n++] = cli->given[i].value;
    return n;
}

/* The last time that an option was given, or NULL. */
static const struct dpt_cli_given *find_given(const struct dpt_cli *cli, const char *name)
{
    for (size_t i = cli->n_given; i-- > 0;)
        if (strcmp(cli->given[i].option->name, name) == 0)
            return &cli->given[i];
    return NULL;
}

const char *dpt_cli_value(const struct dpt_cli *cli, const char *name)
{
    const struct dpt_cli_given *given = find_given(cli, name);

    return given != NULL ? given->value : NULL;
}

bool dpt_cli_has(const struct dpt_cli *cli, const char *name)
{
    return find_given(cli, name) != NULL;
}

enum dpt_status dpt_cli_wrong(const struct dpt_cli *cli, const char *what, struct dpt_error *err)
{
    return dpt_fail(err, DPT_USAGE, "dptrain %s: %s usage: dptrain %s %s", cli->command->name, what,
                    cli->command->name, cli->command->usage);
}

enum dpt_status dpt_cli_int(const struct dpt_cli *cli, const char *name, long long min,
                            long long max, long long fallback, long long *value,
                            struct dpt_error *err)
{
    const char *text = dpt_cli_value(cli, name);
    char *end;

    *value = fallback;
    if (text == NULL)
        return DPT_OK;
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *value < min || *value > max)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain %s: %s %s: must be a whole number from %lld to %lld",
                        cli->command->name, name, text, min, max);
    return DPT_OK;
}

/* --- help ------------------------------------------------------------------------------------- */

enum { COLUMNS = 79, OPTION_COLUMN = 23 };

const struct dpt_cli_option dpt_cli_common_options[] = {
    {"--quiet", NULL, "only warnings, errors and results"},
    {"--verbose", NULL, "more messages about what is done"},
    {"--help", "[KEY...]", "this text, or the meaning of these keys of the job file"},
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
    printf("dptrain trains a neural network on many ranks: one MPI rank per device, the\n"
           "gradients averaged with MPI_Allreduce, the job described by one YAML file.\n\n"
           "usage: dptrain [train] JOB.yaml [options]\n"
           "       mpirun -np N dptrain JOB.yaml [options]\n"
           "       dptrain COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        printf("  %-10s %s\n", cli->commands[i]->name, cli->commands[i]->summary);
    printf("\n"
           "`dptrain COMMAND --help` explains a command, `dptrain --help KEY` a key of the\n"
           "job file; `dptrain --version` lists the libraries.\n\n"
           "exit codes:\n");
    for (int i = 0; i < DPT_STATUS_COUNT; i++)
        printf("  %-4d %s\n", dpt_exit_code((enum dpt_status)i),
               dpt_status_text((enum dpt_status)i));
}

bool dpt_cli_print_keys(const char *key)
{
    struct dpt_str text = {0};
    const bool found = dpt_options_help(dpt_job_options, key, &text);

    fputs(text.text != NULL ? text.text + strspn(text.text, "\n") : "", stdout);
    dpt_str_release(&text);
    return found;
}

/* The keys that stand after --help. Without a command the first one may be a misspelt command. */
static enum dpt_status help_of_keys(const struct dpt_cli *cli, struct dpt_error *err)
{
    const char *names[MAX_NAMES], *word;
    size_t n = 0;

    for (size_t i = 0; cli->command == NULL && cli->commands[i] != NULL && n < MAX_NAMES; i++)
        names[n++] = cli->commands[i]->name;
    for (const struct dpt_option *o = dpt_job_options; o->name != NULL && n < MAX_NAMES; o++)
        names[n++] = o->name;
    for (size_t i = 0; i < cli->n_positional; i++) {
        word = cli->positional[i];
        if (!dpt_cli_print_keys(word))
            return unknown("dptrain", word,
                           cli->command == NULL ? "neither a command nor a key of the job file"
                                                : "no key of the job file",
                           dpt_word_meant(dpt_job_synonyms, "", word, names, n),
                           "; `dptrain train --help` lists the keys", err);
    }
    return DPT_OK;
}

/* Commands whose name is also a key of the job file's have that, too. `train` lists all keys. */
static void print_section_of(const char *name)
{
    for (const struct dpt_option *o = dpt_job_options; o->name != NULL; o++)
        if (strcmp(o->name, name) == 0 && strcmp(name, "train") != 0) {
            printf("\n`%s` in the job file:\n", name);
            dpt_cli_print_keys(name);
        }
}

enum dpt_status dpt_cli_help(const struct dpt_cli *cli, struct dpt_error *err)
{
    const struct dpt_command *command = cli->command;
    const bool has_keys = command == NULL || takes_job(command);

    if (has_keys && cli->n_positional > 0)
        return help_of_keys(cli, err);
    if (command == NULL) {
        help_of_all(cli);
        return DPT_OK;
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
    print_section_of(command->name);
    if (has_keys && strcmp(command->name, "train") != 0)
        printf("\n"
               "keys of the job file: `dptrain train --help` lists them, `dptrain --help KEY`\n"
               "explains one (optimizer, batch.global)\n");
    return DPT_OK;
}

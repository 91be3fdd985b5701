/* `dptrain completion`: what a shell needs to complete the command line. */
#include "cmd/completion/completion.h"
#include "cmd/output.h"

#include <stdio.h>
#include <string.h>

const char *const dpt_completion_kinds[DPT_WORD_KINDS] = {
    [DPT_WORD_ANY] = "any", [DPT_WORD_FILE] = "file", [DPT_WORD_FOLDER] = "folder",
    [DPT_WORD_JOB] = "job", [DPT_WORD_HDF5] = "hdf5", [DPT_WORD_SETTING] = "setting",
};

void dpt_completion_quote(struct dpt_str *out, const char *text, const char *escape, bool doubled)
{
    dpt_str_printf(out, "'");
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            dpt_str_printf(out, "%s", escape);
        else if (*text == '\\' && doubled)
            dpt_str_printf(out, "\\\\");
        else
            dpt_str_add(out, text, 1);
    }
    dpt_str_printf(out, "'");
}

void dpt_completion_options(struct dpt_str *out, const char *begin,
                            void (*write)(struct dpt_str *out, const struct dpt_cli_option *option),
                            const char *end)
{
    dpt_str_printf(out, "_dptrain_options()\n{\n    case $1 in\n");
    for (size_t i = 0; dpt_commands[i] != NULL; i++) {
        const struct dpt_cli_option *const tables[] = {dpt_commands[i]->options,
                                                       dpt_cli_common_options};

        dpt_str_printf(out, "    %s) %s", dpt_commands[i]->name, begin);
        for (size_t t = 0; t < 2; t++)
            for (const struct dpt_cli_option *o = tables[t]; o->name != NULL; o++)
                write(out, o);
        dpt_str_printf(out, "%s ;;\n", end);
    }
    dpt_str_printf(out, "    esac\n}\n\n");
}

static const struct {
    const char *name;
    void (*write)(const struct dpt_word_keys *keys, struct dpt_str *out);
} shells[] = {
    {"bash", dpt_completion_bash},
    {"zsh", dpt_completion_zsh},
    {"fish", dpt_completion_fish},
};

enum { SHELLS = sizeof shells / sizeof shells[0] };

static enum dpt_status unknown_shell(const char *name, struct dpt_error *err)
{
    const char *names[SHELLS], *near;

    for (size_t i = 0; i < SHELLS; i++)
        names[i] = shells[i].name;
    near = dpt_nearest(name, names, SHELLS);
    return dpt_fail(err, DPT_USAGE, "dptrain completion: '%s' is none of bash, zsh, fish%s%s%s",
                    name, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                    near != NULL ? "'?" : "");
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    struct dpt_word_keys *keys = NULL;
    struct dpt_str text = {0};
    size_t i = 0;

    if (cli->log.silent) /* started under mpirun: one rank does it */
        return DPT_OK;
    if (cli->n_positional != 1)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain completion: which shell? usage: dptrain completion %s",
                        cli->command->usage);
    while (i < SHELLS && strcmp(shells[i].name, cli->positional[0]) != 0)
        i++;
    if (i == SHELLS)
        return unknown_shell(cli->positional[0], err);
    keys = dpt_word_keys_make();
    if (keys != NULL)
        shells[i].write(keys, &text);
    text.failed = text.failed || keys == NULL;
    dpt_word_keys_free(keys);
    return dpt_output_text(&text, "the script", err);
}

static const struct dpt_cli_option options[] = {{0}};

const struct dpt_command dpt_cmd_completion = {
    .name = "completion",
    .usage = "bash|zsh|fish",
    .summary = "a script that completes command lines in bash, zsh or fish",
    .details =
        "Prints a script for the shell: it completes subcommands, options, job files, checkpoints, "
        "and behind --set the keys of the job file and their values. `make install` puts the "
        "scripts where the shells look for them; by hand, for this session or for all:\n\n"
        "  source <(dptrain completion bash)\n"
        "  dptrain completion bash > ~/.local/share/bash-completion/completions/dptrain\n"
        "  dptrain completion zsh > \"${fpath[1]}/_dptrain\"\n"
        "  dptrain completion fish > ~/.config/fish/completions/dptrain.fish",
    .options = options,
    .run = run,
};

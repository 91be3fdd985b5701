/* `dptrain completion`: what a shell needs to complete the command line. */
#include "cmd/completion/completion.h"
#include "cmd/output.h"

#include <stdio.h>

static const struct {
    const char *name;
    void (*write)(const struct dpt_cli *cli, const struct dpt_word_keys *keys, struct dpt_str *out);
} shells[] = {
    {"bash", dpt_completion_bash},
    {"zsh", dpt_completion_zsh},
    {"fish", dpt_completion_fish},
};

enum { SHELLS = sizeof shells / sizeof shells[0] };

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_word_keys keys = {0};
    struct dpt_str text = {0};
    const char *names[SHELLS];
    size_t i;

    if (cli->n_positional != 1)
        return dpt_cli_wrong(cli, "give one shell;", err);
    for (i = 0; i < SHELLS; i++)
        names[i] = shells[i].name;
    i = dpt_find(cli->positional[0], names, SHELLS);
    if (i == SHELLS)
        return dpt_cli_unknown("dptrain completion", cli->positional[0], "none of bash, zsh, fish",
                               names, SHELLS, "", err);
    DPT_TRY(dpt_word_keys_open(&keys, err));
    shells[i].write(cli, &keys, &text);
    DPT_TRY(dpt_output_text(&text, "the script", err));
out:
    dpt_word_keys_close(&keys);
    return status;
}

static const struct dpt_cli_option options[] = {{0}};

const struct dpt_command dpt_cmd_completion = {
    .name = "completion",
    .usage = "bash|zsh|fish",
    .summary = "print the completion script of bash, zsh or fish",
    .details =
        "Prints a script for the shell: it completes subcommands, options, job files, checkpoints, "
        "and after --set the keys of the job file and their values. `make install` puts the "
        "scripts where the shells look for them; by hand, for this session or for all:\n\n"
        "  source <(dptrain completion bash)\n"
        "  dptrain completion bash > ~/.local/share/bash-completion/completions/dptrain\n"
        "  dptrain completion zsh > \"${fpath[1]}/_dptrain\"\n"
        "  dptrain completion fish > ~/.config/fish/completions/dptrain.fish",
    .options = options,
    .one_rank = true,
    .run = run,
};

#include <string.h>

#include "cmd/completion/completion.h"

// clang-format off
static const char head[] =
    "# fish completion for dptrain, made by `dptrain completion fish`\n\n";

static const char functions[] =
    "\n"
    "# The command, `train` where it is left out, or nothing while it is being typed.\n"
    "function __dptrain_command\n"
    "    set -l before (commandline -opc)\n"
    "    test (count $before) -gt 1; or return 1\n"
    "    if contains -- $before[2] $__dptrain_commands\n"
    "        echo $before[2]\n"
    "    else\n"
    "        echo train\n"
    "    end\n"
    "end\n"
    "\n"
    "function __dptrain_is\n"
    "    test \"$(__dptrain_command)\" = $argv[1]\n"
    "end\n"
    "\n"
    "# An option may be the first word: it is one of train's.\n"
    "function __dptrain_starts\n"
    "    not __dptrain_command >/dev/null\n"
    "end\n"
    "\n"
    "# Folders, and files that end so.\n"
    "function __dptrain_files\n"
    "    set -l start (commandline -ct | string replace -r '^--[a-z-]+=' '')\n"
    "    set -l found $start*/\n"
    "    for ending in $argv\n"
    "        set -a found $start*$ending\n"
    "    end\n"
    "    string join \\n $found\n"
    "end\n"
    "\n"
    "# KEY=VALUE of the job file.\n"
    "function __dptrain_settings\n"
    "    set -l start (commandline -ct | string replace -r '^--set=' '')\n"
    "    if not string match -q -- '*=*' $start\n"
    "        __dptrain_keys\n"
    "        return\n"
    "    end\n"
    "    set -l key (string replace -r '=.*' '' -- $start)\n"
    "    for value in (__dptrain_values $key)\n"
    "        echo $key=$value\n"
    "    end\n"
    "end\n"
    "\n"
    "complete -c dptrain -f\n"
    "complete -c dptrain -n __dptrain_starts -k -a '(__dptrain_files .yaml .yml)'\n"
    "complete -c dptrain -n __dptrain_starts -l version -d 'versions of dptrain and its libraries'\n";
// clang-format on

static void add_quoted(struct dpt_str *out, const char *text)
{
    dpt_completion_quote(out, text, "\\'", true);
}

/* What a value may be: ` -r -f -a '…'`, or of any file ` -r -F`. */
static void write_word(struct dpt_str *out, enum dpt_word_kind kind, struct dpt_str *words,
                       bool option)
{
    static const char *const offers[DPT_WORD_KINDS] = {
        [DPT_WORD_FOLDER] = "(__fish_complete_directories (commandline -ct))",
        [DPT_WORD_JOB] = "(__dptrain_files .yaml .yml)",
        [DPT_WORD_HDF5] = "(__dptrain_files .h5)",
        [DPT_WORD_SETTING] = "(__dptrain_settings)",
        [DPT_WORD_KEY] = "(__dptrain_keys | string replace = '')",
    };

    dpt_str_printf(words, "%s", offers[kind] == NULL ? "" : offers[kind]);
    dpt_str_printf(out, " %s%s", option ? "-r " : "", kind == DPT_WORD_FILE ? "-F" : "-f");
    if (words->length > 0) {
        dpt_str_printf(out, " -a ");
        add_quoted(out, words->text);
    }
    dpt_str_release(words);
}

static void write_option(struct dpt_str *out, const struct dpt_command *command,
                         const struct dpt_cli_option *option)
{
    const bool starts = strcmp(command->name, "train") == 0;
    const bool is_long = option->name[1] == '-';
    struct dpt_str words = {0};

    dpt_str_printf(out, "complete -c dptrain -n '__dptrain_is %s%s' -%s %s -d ", command->name,
                   starts ? "; or __dptrain_starts" : "", is_long ? "l" : "s",
                   option->name + 1 + is_long);
    add_quoted(out, option->help);
    if (option->value != NULL)
        write_word(out, dpt_word_of_value(option->value, &words), &words, true);
    dpt_str_printf(out, "\n");
}

static void write_command(struct dpt_str *out, const struct dpt_command *command)
{
    const struct dpt_cli_option *const tables[] = {command->options, dpt_cli_common_options};
    struct dpt_str words = {0};

    dpt_str_printf(out, "\ncomplete -c dptrain -n __dptrain_starts -a %s -d ", command->name);
    add_quoted(out, command->summary);
    dpt_str_printf(out, "\ncomplete -c dptrain -n '__dptrain_is %s'", command->name);
    write_word(out, dpt_word_of_command(command, &words), &words, false);
    dpt_str_printf(out, "\n");
    for (size_t t = 0; t < 2; t++)
        for (const struct dpt_cli_option *o = tables[t]; o->name != NULL; o++)
            write_option(out, command, o);
}

static void write_keys(const struct dpt_word_keys *keys, struct dpt_str *out)
{
    dpt_str_printf(out, "function __dptrain_keys\n");
    for (size_t i = 0; i < keys->n; i++) {
        dpt_str_printf(out, "    echo %s=\\t", keys->at[i].path);
        add_quoted(out, keys->at[i].help);
        dpt_str_printf(out, "\n");
    }
    dpt_str_printf(out, "end\n\nfunction __dptrain_values\n    switch $argv[1]\n");
    for (size_t i = 0; i < keys->n; i++)
        if (keys->at[i].values[0] != '\0')
            dpt_str_printf(out, "    case %s\n        string split -n ' ' '%s'\n", keys->at[i].path,
                           keys->at[i].values);
    dpt_str_printf(out, "    end\nend\n");
}

void dpt_completion_fish(const struct dpt_cli *cli, const struct dpt_word_keys *keys,
                         struct dpt_str *out)
{
    dpt_str_printf(out, "%sset -g __dptrain_commands", head);
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        dpt_str_printf(out, " %s", cli->commands[i]->name);
    dpt_str_printf(out, "\n\n");
    write_keys(keys, out);
    dpt_str_printf(out, "%s", functions);
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        write_command(out, cli->commands[i]);
}

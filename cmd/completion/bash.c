#include "cmd/completion/completion.h"

// clang-format off
static const char head[] =
    "# bash completion for dptrain, made by `dptrain completion bash`\n\n";

static const char tail[] =
    "# Adds to COMPREPLY what $3 can become: words of $2, and files of kind $1; $4 stands before each.\n"
    "_dptrain_offer()\n"
    "{\n"
    "    local files=()\n"
    "\n"
    "    mapfile -t COMPREPLY < <(compgen -P \"$4\" -W \"$2\" -- \"$3\")\n"
    "    case $1 in\n"
    "    file) mapfile -t files < <(compgen -f -- \"$3\") ;;\n"
    "    folder) mapfile -t files < <(compgen -d -- \"$3\") ;;\n"
    "    job) mapfile -t files < <(for x in '*.yaml' '*.yml'; do compgen -f -X \"!$x\" -- \"$3\"; done\n"
    "        compgen -d -- \"$3\") ;;\n"
    "    hdf5) mapfile -t files < <(compgen -f -X '!*.h5' -- \"$3\"; compgen -d -- \"$3\") ;;\n"
    "    esac\n"
    "    if ((${#files[@]} > 0)); then\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        COMPREPLY+=(\"${files[@]/#/$4}\")\n"
    "    fi\n"
    "}\n"
    "\n"
    "# KEY=VALUE of the job file.\n"
    "_dptrain_setting()\n"
    "{\n"
    "    local REPLY= before=\n"
    "\n"
    "    if [[ $1 != *=* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -S = -W \"$_dptrain_keys\" -- \"$1\")\n"
    "        compopt -o nospace 2>/dev/null\n"
    "        return\n"
    "    fi\n"
    "    # Where `=` parts words, only what stands after it is replaced.\n"
    "    [[ $COMP_WORDBREAKS == *=* ]] || before=${1%%=*}=\n"
    "    _dptrain_values \"${1%%=*}\"\n"
    "    if [[ $REPLY ]]; then\n"
    "        _dptrain_offer any \"$REPLY\" \"${1#*=}\" \"$before\"\n"
    "    else\n"
    "        _dptrain_offer file '' \"${1#*=}\" \"$before\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "_dptrain()\n"
    "{\n"
    "    local all=() command=train cur prev before= i kind words REPLY=\n"
    "\n"
    "    COMPREPLY=()\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do # put together again what `=` parted\n"
    "        if ((${#all[@]} > 1)) && [[ ${COMP_WORDS[i]} == =* || ${all[-1]} == *= ]]; then\n"
    "            all[-1]+=${COMP_WORDS[i]}\n"
    "        else\n"
    "            all+=(\"${COMP_WORDS[i]}\")\n"
    "        fi\n"
    "    done\n"
    "    ((${#all[@]} > 1)) || return\n"
    "    cur=${all[-1]} prev=${all[-2]}\n"
    "    if ((${#all[@]} == 2)) && [[ $cur != -* ]]; then\n"
    "        _dptrain_offer job \"$_dptrain_commands\" \"$cur\"\n"
    "        return\n"
    "    fi\n"
    "    [[ \" $_dptrain_commands \" == *\" ${all[1]} \"* ]] && command=${all[1]}\n"
    "    if [[ $cur == --*=* ]]; then\n"
    "        [[ $COMP_WORDBREAKS == *=* ]] || before=${cur%%=*}=\n"
    "        prev=${cur%%=*} cur=${cur#*=}\n"
    "    fi\n"
    "    _dptrain_option \"$command:$prev\"\n"
    "    [[ $REPLY ]] || { _dptrain_arguments \"$command\"; before=; }\n"
    "    read -r kind words <<<\"$REPLY\"\n"
    "    if [[ $kind == setting ]]; then\n"
    "        _dptrain_setting \"$cur\"\n"
    "    elif [[ $kind == key ]]; then\n"
    "        _dptrain_offer any \"$_dptrain_keys\" \"$cur\"\n"
    "    elif [[ $cur == -* ]]; then\n"
    "        _dptrain_options \"$command\"\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$REPLY\" -- \"$cur\")\n"
    "    else\n"
    "        _dptrain_offer \"$kind\" \"$words\" \"$cur\" \"$before\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _dptrain dptrain\n";
// clang-format on

static void write_name(struct dpt_str *out, const struct dpt_cli_option *option)
{
    dpt_str_printf(out, "%s ", option->name);
}

void dpt_completion_bash(const struct dpt_cli *cli, const struct dpt_word_keys *keys,
                         struct dpt_str *out)
{
    dpt_str_printf(out, "%s_dptrain_commands='", head);
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        dpt_str_printf(out, "%s%s", i > 0 ? " " : "", cli->commands[i]->name);
    dpt_str_printf(out, "'\n\n");
    dpt_completion_options(out, cli, "REPLY='", write_name, "--version'");
    dpt_str_printf(out, "_dptrain_keys='");
    for (size_t i = 0; i < keys->n; i++)
        dpt_str_printf(out, "%s%s", i > 0 ? "\n" : "", keys->at[i].path);
    dpt_str_printf(out, "'\n\n");
    dpt_completion_values(out, cli, keys);
    dpt_str_printf(out, "%s", tail);
}

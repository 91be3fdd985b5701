#include "cmd/completion/completion.h"

static const char quote[] = "'\\''";

// clang-format off
static const char head[] =
    "#compdef dptrain\n"
    "# zsh completion for dptrain, made by `dptrain completion zsh`\n\n";

static const char tail[] =
    "# Offers files of a kind, and words.\n"
    "_dptrain_offer()\n"
    "{\n"
    "    local kind=$1\n"
    "    local -a fixed=(${=2})\n"
    "    local -i code=1\n"
    "\n"
    "    (($#fixed)) && compadd -a fixed && code=0\n"
    "    case $kind in\n"
    "    file) _files && code=0 ;;\n"
    "    folder) _files -/ && code=0 ;;\n"
    "    job) _files -g '*.(yaml|yml)' && code=0 ;;\n"
    "    hdf5) _files -g '*.h5' && code=0 ;;\n"
    "    key)\n"
    "        local -a keys\n"
    "        _dptrain_keys\n"
    "        _describe -t keys 'key of the job file' keys && code=0 ;;\n"
    "    esac\n"
    "    return code\n"
    "}\n"
    "\n"
    "# KEY=VALUE of the job file.\n"
    "_dptrain_setting()\n"
    "{\n"
    "    local -a keys\n"
    "    local key\n"
    "\n"
    "    if [[ $PREFIX != *=* ]]; then\n"
    "        _dptrain_keys\n"
    "        _describe -t keys 'key of the job file' keys -S =\n"
    "        return\n"
    "    fi\n"
    "    key=${PREFIX%%=*}\n"
    "    compset -P 1 '*='\n"
    "    REPLY=\n"
    "    _dptrain_values $key\n"
    "    if [[ -n $REPLY ]]; then _dptrain_offer any $REPLY; else _files; fi\n"
    "}\n"
    "\n"
    "_dptrain()\n"
    "{\n"
    "    local -a commands options\n"
    "    local command=train previous=${words[CURRENT-1]} REPLY=\n"
    "    local -i code=1\n"
    "\n"
    "    _dptrain_commands\n"
    "    if ((CURRENT == 2)) && [[ $PREFIX != -* ]]; then\n"
    "        _describe -t commands command commands && code=0\n"
    "        _dptrain_offer job '' && code=0\n"
    "        return code\n"
    "    fi\n"
    "    ((${commands[(I)${words[2]}:*]})) && command=${words[2]}\n"
    "    if [[ $PREFIX == --*=* ]]; then\n"
    "        previous=${PREFIX%%=*}\n"
    "        compset -P 1 '*='\n"
    "    fi\n"
    "    _dptrain_option $command:$previous\n"
    "    if [[ -z $REPLY && $PREFIX == -* ]]; then\n"
    "        _dptrain_options $command\n"
    "        _describe -o -t options option options\n"
    "        return\n"
    "    fi\n"
    "    [[ -n $REPLY ]] || _dptrain_arguments $command\n"
    "    if [[ ${REPLY%% *} == setting ]]; then\n"
    "        _dptrain_setting\n"
    "    else\n"
    "        _dptrain_offer ${REPLY%% *} \"${REPLY#* }\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "if [[ ${funcstack[1]} == _dptrain ]]; then\n"
    "    _dptrain \"$@\"\n"
    "else\n"
    "    compdef _dptrain dptrain\n"
    "fi\n";
// clang-format on

/* 'name:what it is' */
static void write_item(struct dpt_str *out, const char *name, const char *help)
{
    struct dpt_str text = {0};

    dpt_str_printf(&text, "%s:%s", name, help);
    dpt_str_printf(out, "        ");
    dpt_completion_quote(out, text.text == NULL ? "" : text.text, quote, false);
    dpt_str_printf(out, "\n");
    dpt_str_release(&text);
}

static void write_option(struct dpt_str *out, const struct dpt_cli_option *option)
{
    write_item(out, option->name, option->help);
}

void dpt_completion_zsh(const struct dpt_cli *cli, const struct dpt_word_keys *keys,
                        struct dpt_str *out)
{
    dpt_str_printf(out, "%s_dptrain_commands()\n{\n    commands=(\n", head);
    for (size_t i = 0; cli->commands[i] != NULL; i++)
        write_item(out, cli->commands[i]->name, cli->commands[i]->summary);
    dpt_str_printf(out, "    )\n}\n\n");
    dpt_completion_options(out, cli, "options=(\n", write_option, "    )");
    dpt_str_printf(out, "_dptrain_keys()\n{\n    keys=(\n");
    for (size_t i = 0; i < keys->n; i++)
        write_item(out, keys->at[i].path, keys->at[i].help);
    dpt_str_printf(out, "    )\n}\n\n");
    dpt_completion_values(out, cli, keys);
    dpt_str_printf(out, "%s", tail);
}

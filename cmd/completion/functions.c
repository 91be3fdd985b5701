/* What the scripts of several shells share. */
#include "cmd/completion/completion.h"

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

static void begin_function(struct dpt_str *out, const char *name)
{
    dpt_str_printf(out, "_dptrain_%s()\n{\n    case $1 in\n", name);
}

static void end_function(struct dpt_str *out)
{
    dpt_str_printf(out, "    esac\n}\n\n");
}

void dpt_completion_options(struct dpt_str *out, const struct dpt_cli *cli, const char *begin,
                            void (*write)(struct dpt_str *out, const struct dpt_cli_option *option),
                            const char *end)
{
    begin_function(out, "options");
    for (size_t i = 0; cli->commands[i] != NULL; i++) {
        const struct dpt_cli_option *const tables[] = {cli->commands[i]->options,
                                                       dpt_cli_common_options};

        dpt_str_printf(out, "    %s) %s", cli->commands[i]->name, begin);
        for (size_t t = 0; t < 2; t++)
            for (const struct dpt_cli_option *o = tables[t]; o->name != NULL; o++)
                write(out, o);
        dpt_str_printf(out, "%s ;;\n", end);
    }
    end_function(out);
}

static void write_reply(struct dpt_str *out, enum dpt_word_kind kind, struct dpt_str *words)
{
    static const char *const kinds[DPT_WORD_KINDS] = {
        [DPT_WORD_ANY] = "any", [DPT_WORD_FILE] = "file", [DPT_WORD_FOLDER] = "folder",
        [DPT_WORD_JOB] = "job", [DPT_WORD_HDF5] = "hdf5", [DPT_WORD_SETTING] = "setting",
        [DPT_WORD_KEY] = "key",
    };

    dpt_str_printf(out, ") REPLY='%s %s' ;;\n", kinds[kind], words->length > 0 ? words->text : "");
    out->failed = out->failed || words->failed;
    dpt_str_clear(words);
}

void dpt_completion_values(struct dpt_str *out, const struct dpt_cli *cli,
                           const struct dpt_word_keys *keys)
{
    struct dpt_str words = {0};

    begin_function(out, "option");
    for (size_t i = 0; cli->commands[i] != NULL; i++) {
        const struct dpt_cli_option *const tables[] = {cli->commands[i]->options,
                                                       dpt_cli_common_options};

        for (size_t t = 0; t < 2; t++) {
            for (const struct dpt_cli_option *o = tables[t]; o->name != NULL; o++) {
                if (o->value == NULL)
                    continue;
                dpt_str_printf(out, "    %s:%s", cli->commands[i]->name, o->name);
                write_reply(out, dpt_word_of_value(o->value, &words), &words);
            }
        }
    }
    end_function(out);
    begin_function(out, "arguments");
    for (size_t i = 0; cli->commands[i] != NULL; i++) {
        dpt_str_printf(out, "    %s", cli->commands[i]->name);
        write_reply(out, dpt_word_of_command(cli->commands[i], &words), &words);
    }
    end_function(out);
    begin_function(out, "values");
    for (size_t i = 0; i < keys->n; i++)
        if (keys->at[i].values[0] != '\0')
            dpt_str_printf(out, "    %s) REPLY='%s' ;;\n", keys->at[i].path, keys->at[i].values);
    end_function(out);
    dpt_str_release(&words);
}

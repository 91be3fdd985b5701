#include "cmd/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/job/job.h"
#include "data/sources/source.h"

/* What the words in capitals of usage and options stand for. */
static const struct {
    const char *name;
    enum dpt_word_kind kind;
} names[] = {
    {"JOB.yaml", DPT_WORD_JOB}, {"DIR", DPT_WORD_FOLDER},      {"RUN", DPT_WORD_FOLDER},
    {"C", DPT_WORD_HDF5},       {"CHECKPOINT", DPT_WORD_HDF5}, {"FILE", DPT_WORD_HDF5},
    {"OTHER", DPT_WORD_HDF5},   {"DATA", DPT_WORD_HDF5},       {"SHARDS", DPT_WORD_HDF5},
    {"OUT.h5", DPT_WORD_HDF5},  {"PATH", DPT_WORD_FILE},       {"PREFIX", DPT_WORD_FILE},
    {"IN", DPT_WORD_FILE},      {"OUT", DPT_WORD_FILE},        {"KEY=VALUE", DPT_WORD_SETTING},
    {"JOB", DPT_WORD_JOB},      {"OUT.yaml", DPT_WORD_JOB},    {"OUT.html", DPT_WORD_FILE},
    {"[KEY...]", DPT_WORD_KEY},
};

static enum dpt_word_kind find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i].name) == n && strncmp(names[i].name, name, n) == 0)
            return names[i].kind;
    return DPT_WORD_ANY;
}

/* A word to be typed as it stands, not the name of something. */
static bool is_fixed(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(name[i] >= 'a' && name[i] <= 'z') && !(name[i] >= '0' && name[i] <= '9'))
            return false;
    return n > 0 && name[0] >= 'a' && name[0] <= 'z';
}

static void add_formats(struct dpt_str *words)
{
    for (size_t i = 0; dpt_source_formats[i] != NULL; i++)
        if (dpt_source_formats[i]->inputs != NULL)
            dpt_str_printf(words, "%s ", dpt_source_formats[i]->name);
}

/* Adds the words of a text of n bytes, separated by `|`; the first that names a kind gives
 * *kind. */
static void take(const char *text, size_t n, enum dpt_word_kind *kind, struct dpt_str *words)
{
    for (size_t i = 0, part; i < n; i += part + 1) {
        const char *name = text + i;

        part = strcspn(name, "|");
        part = part < n - i ? part : n - i;
        if (is_fixed(name, part))
            dpt_str_printf(words, "%.*s ", (int)part, name);
        else if (part == strlen("FORMAT") && strncmp(name, "FORMAT", part) == 0)
            add_formats(words);
        else if (part == strlen("KIND") && strncmp(name, "KIND", part) == 0)
            dpt_word_kinds(words);
        else if (*kind == DPT_WORD_ANY)
            *kind = find(name, part);
    }
}

enum dpt_word_kind dpt_word_of_value(const char *value, struct dpt_str *words)
{
    enum dpt_word_kind kind = DPT_WORD_ANY;

    take(value, strlen(value), &kind, words);
    return kind;
}

enum dpt_word_kind dpt_word_of_command(const struct dpt_command *command, struct dpt_str *words)
{
    enum dpt_word_kind kind = DPT_WORD_ANY;
    const char *at = command->usage;
    const struct dpt_cli_option *option;
    bool skip = false; /* the value of an option */

    for (size_t n; *at != '\0'; at += n + (at[n] != '\0')) {
        n = strcspn(at, " []");
        if (n == 0 || skip)
            skip = skip && n == 0;
        else if (at[0] == '-')
            skip = (option = dpt_cli_option(command, at, n)) != NULL && option->value != NULL;
        else if (strncmp(at, "options", 7) == 0)
            break; /* "[options of the format]" */
        else
            take(at, n > 3 && strncmp(at + n - 3, "...", 3) == 0 ? n - 3 : n, &kind, words);
    }
    return kind;
}

/* --- keys of the job file --------------------------------------------------------------------- */

static void add_value(struct dpt_word_keys *keys, struct dpt_word_key *key, const char *value)
{
    const size_t n = strlen(value);

    for (const char *at = key->values; *at != '\0'; at += strcspn(at, " ") + 1)
        if (strncmp(at, value, n) == 0 && at[n] == ' ')
            return;
    value = dpt_region_printf(&keys->texts, "%s%s ", key->values, value);
    keys->failed = keys->failed || value == NULL;
    key->values = value != NULL ? value : key->values;
}

static void add_values(struct dpt_word_keys *keys, struct dpt_word_key *key,
                       const struct dpt_option *row)
{
    static const char *const truth[] = {"true", "false", NULL};
    const char *const *choices = row->type == DPT_OPT_BOOL     ? truth
                                 : row->type == DPT_OPT_CHOICE ? row->choices
                                                               : NULL;

    for (size_t i = 0; choices != NULL && choices[i] != NULL; i++)
        add_value(keys, key, choices[i]);
    for (size_t i = 0; row->type == DPT_OPT_VARIANT && row->variants[i] != NULL; i++)
        add_value(keys, key, row->variants[i]->name);
    if (row->word != NULL)
        add_value(keys, key, row->word);
    if (row->type == DPT_OPT_EVERY && (row->units == 0 || row->units >> DPT_NEVER & 1))
        add_value(keys, key, "never");
    for (const struct dpt_option *either = row->alternatives == NULL ? NULL
                                                                     : row->alternatives->either;
         either != NULL && either->name != NULL; either++)
        add_values(keys, key, either);
}

/* Adds the values of a row to its key, which may be there already. */
static void add_key(struct dpt_word_keys *keys, const char *path, const struct dpt_option *row)
{
    struct dpt_word_key *more;
    size_t i = 0;

    while (i < keys->n && strcmp(keys->at[i].path, path) != 0)
        i++;
    if (i == keys->n) {
        more = dpt_grow(keys->at, &keys->room, i + 1, sizeof *more);
        path = dpt_region_strdup(&keys->texts, path);
        keys->at = more != NULL ? more : keys->at;
        keys->failed = keys->failed || more == NULL || path == NULL;
        if (keys->failed)
            return;
        keys->at[keys->n++] = (struct dpt_word_key){path, "", row->help == NULL ? "" : row->help};
    }
    add_values(keys, &keys->at[i], row);
}

static void visit(void *arg, const struct dpt_option_visit *at)
{
    struct dpt_word_keys *keys = arg;
    char type[256];

    /* Layers stand in a list: their options have no name for --set but with a number. */
    if (at->row == NULL || at->listed || at->row->type == DPT_OPT_SECTION ||
        (at->row->type == DPT_OPT_CUSTOM && at->row->alternatives != NULL &&
         at->row->alternatives->kind != NULL))
        return;
    add_key(keys, at->path, at->row);
    if (at->row->type != DPT_OPT_VARIANT)
        return;
    snprintf(type, sizeof type, "%s.type", at->path);
    add_key(keys, type, at->row);
}

enum dpt_status dpt_word_keys_open(struct dpt_word_keys *keys, struct dpt_error *err)
{
    *keys = (struct dpt_word_keys){0};
    dpt_options_walk(dpt_job_options, visit, keys);
    return keys->failed ? dpt_fail_memory(err, "the keys of the job file", 0) : DPT_OK;
}

void dpt_word_keys_close(struct dpt_word_keys *keys)
{
    free(keys->at);
    dpt_region_release(&keys->texts);
}

#include "cmd/words.h"

#include <stdlib.h>
#include <string.h>

#include "core/train/job.h"
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

/* One of the ways that a `|` parts. */
static void take(const char *name, size_t n, struct dpt_word *word)
{
    if (is_fixed(name, n))
        dpt_str_printf(&word->words, "%.*s ", (int)n, name);
    else if (n == strlen("FORMAT") && strncmp(name, "FORMAT", n) == 0)
        add_formats(&word->words);
    else if (word->kind == DPT_WORD_ANY)
        word->kind = find(name, n);
}

void dpt_word_of_value(const char *value, struct dpt_word *word)
{
    *word = (struct dpt_word){0};
    while (*value != '\0') {
        const size_t n = strcspn(value, "|");

        take(value, n, word);
        value += n + (value[n] == '|');
    }
}

/* Whether a value follows an option in the usage. */
static bool takes_value(const struct dpt_command *command, const char *name, size_t n)
{
    for (const struct dpt_cli_option *o = command->options; o->name != NULL; o++)
        if (strlen(o->name) == n && strncmp(o->name, name, n) == 0)
            return o->value != NULL;
    return false;
}

void dpt_word_of_command(const struct dpt_command *command, struct dpt_word *word)
{
    const char *at = command->usage;
    bool skip = false;

    *word = (struct dpt_word){0};
    for (size_t n; *at != '\0'; at += n + (at[n] != '\0')) {
        size_t name = n = strcspn(at, " []");

        if (n > 3 && strncmp(at + n - 3, "...", 3) == 0)
            name -= 3;
        if (n == 0 || skip) {
            skip = skip && n == 0;
        } else if (at[0] == '-') {
            skip = takes_value(command, at, n);
        } else if (strncmp(at, "options", 7) == 0) {
            return; /* "[options of the format]" */
        } else {
            for (size_t i = 0, part; i < name; i += part + 1) {
                part = strcspn(at + i, "|");
                take(at + i, part < name - i ? part : name - i, word);
            }
        }
    }
}

/* --- keys of the job file --------------------------------------------------------------------- */

struct key {
    struct dpt_str path, values;
    const char *help;
};

struct dpt_word_keys {
    struct key *at;
    size_t n, capacity;
    bool failed;
};

static struct key *need_key(struct dpt_word_keys *keys, const char *path, const char *help)
{
    struct key *key;

    for (size_t i = 0; i < keys->n; i++)
        if (strcmp(keys->at[i].path.text, path) == 0)
            return &keys->at[i];
    if (keys->n == keys->capacity) {
        const size_t capacity = keys->capacity == 0 ? 64 : 2 * keys->capacity;
        struct key *more = realloc(keys->at, capacity * sizeof *more);

        if (more == NULL) {
            keys->failed = true;
            return NULL;
        }
        keys->at = more;
        keys->capacity = capacity;
    }
    key = &keys->at[keys->n];
    *key = (struct key){.help = help == NULL ? "" : help};
    dpt_str_printf(&key->path, "%s", path);
    if (key->path.failed) {
        dpt_str_release(&key->path);
        keys->failed = true;
        return NULL;
    }
    keys->n++;
    return key;
}

static void add_value(struct key *key, const char *value)
{
    const size_t n = strlen(value);
    const char *at = key->values.text;

    for (; at != NULL && *at != '\0'; at += strcspn(at, " ") + 1)
        if (strncmp(at, value, n) == 0 && at[n] == ' ')
            return;
    dpt_str_printf(&key->values, "%s ", value);
}

static void add_values(struct key *key, const struct dpt_option *row)
{
    static const char *const truth[] = {"true", "false", NULL};
    const char *const *choices = row->type == DPT_OPT_BOOL     ? truth
                                 : row->type == DPT_OPT_CHOICE ? row->choices
                                                               : NULL;

    for (size_t i = 0; choices != NULL && choices[i] != NULL; i++)
        add_value(key, choices[i]);
    for (size_t i = 0; row->type == DPT_OPT_VARIANT && row->variants[i] != NULL; i++)
        add_value(key, row->variants[i]->name);
    if (row->word != NULL)
        add_value(key, row->word);
    if (row->type == DPT_OPT_EVERY && (row->units == 0 || row->units >> DPT_NEVER & 1))
        add_value(key, "never");
    for (const struct dpt_option *value_text =
             row->alternatives == NULL ? NULL : row->alternatives->either;
         value_text != NULL && value_text->name != NULL; value_text++)
        add_values(key, value_text);
}

static void visit(void *arg, const struct dpt_option_visit *at)
{
    struct dpt_word_keys *keys = arg;
    struct dpt_str type = {0};
    struct key *key;

    /* Layers stand in a list: their options have no name for --set but with a number. */
    if (keys->failed || at->row == NULL || at->listed || at->row->type == DPT_OPT_SECTION ||
        (at->row->type == DPT_OPT_CUSTOM && at->row->alternatives != NULL &&
         at->row->alternatives->kind != NULL))
        return;
    key = need_key(keys, at->path, at->row->help);
    if (key != NULL)
        add_values(key, at->row);
    if (key == NULL || at->row->type != DPT_OPT_VARIANT)
        return;
    dpt_str_printf(&type, "%s.type", at->path);
    if (!type.failed)
        key = need_key(keys, type.text, at->row->help);
    if (key != NULL)
        add_values(key, at->row);
    dpt_str_release(&type);
}

struct dpt_word_keys *dpt_word_keys_make(void)
{
    struct dpt_word_keys *keys = calloc(1, sizeof *keys);

    if (keys == NULL)
        return NULL;
    dpt_options_walk(dpt_job_options, visit, keys);
    if (!keys->failed)
        return keys;
    dpt_word_keys_free(keys);
    return NULL;
}

size_t dpt_word_keys_count(const struct dpt_word_keys *keys)
{
    return keys->n;
}

struct dpt_word_key dpt_word_keys_at(const struct dpt_word_keys *keys, size_t i)
{
    const struct key *key = &keys->at[i];

    return (struct dpt_word_key){.path = key->path.text,
                                 .values = key->values.text != NULL ? key->values.text : "",
                                 .help = key->help};
}

void dpt_word_keys_free(struct dpt_word_keys *keys)
{
    for (size_t i = 0; keys != NULL && i < keys->n; i++) {
        dpt_str_release(&keys->at[i].path);
        dpt_str_release(&keys->at[i].values);
    }
    if (keys != NULL)
        free(keys->at);
    free(keys);
}

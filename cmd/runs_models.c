/* Models of different kinds, for a table of runs: in a line each, and one for each of their layers.
 * A row for each key of each layer would say nothing that a reader could take in. */
#include <stdio.h>
#include <string.h>

#include "cmd/runs.h"
#include "core/base/str.h"
#include "models/model.h"

/* Whether two values have the same keys, however deep: what differs then is told key by key. */
static bool same_keys(const struct dpt_conf_node *a, const struct dpt_conf_node *b)
{
    if (a == NULL || b == NULL || dpt_conf_is_setting(a) || dpt_conf_is_setting(b))
        return (a == NULL) == (b == NULL) &&
               (a == NULL || dpt_conf_is_setting(a) == dpt_conf_is_setting(b));
    if (a->kind != b->kind || a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if ((a->kind == DPT_NODE_MAP && strcmp(a->keys[i], b->keys[i]) != 0) ||
            !same_keys(a->items[i], b->items[i]))
            return false;
    return true;
}

static void write_kind(const char *kind, const struct dpt_conf_node *value,
                       const struct dpt_option *rows, const char *bare, struct dpt_str *out);

static void write_value(const struct dpt_conf_node *value, struct dpt_str *out);

static void write_key(const char *key, const struct dpt_conf_node *value, struct dpt_str *out)
{
    dpt_str_printable(out, key, strlen(key), false);
    dpt_str_printf(out, " ");
    write_value(value, out);
}

/* An entry of a list: `relu`, `{conv: {channels: 32}}`. */
static void write_entry(const struct dpt_conf_node *entry, struct dpt_str *out)
{
    const struct dpt_layer_type *const *type = dpt_layer_types;

    if (entry->kind != DPT_NODE_MAP || entry->n != 1) {
        write_value(entry, out);
        return;
    }
    while (*type != NULL && strcmp((*type)->name, entry->keys[0]) != 0)
        type++;
    write_kind(entry->keys[0], entry->items[0], *type != NULL ? (*type)->options : NULL,
               *type != NULL ? (*type)->main : NULL, out);
}

static void write_value(const struct dpt_conf_node *value, struct dpt_str *out)
{
    const bool list = value->kind == DPT_NODE_LIST;

    if (dpt_conf_is_setting(value)) {
        dpt_conf_setting_text(value, out);
        return;
    }
    dpt_str_printf(out, list ? "[" : "{");
    for (size_t i = 0; i < value->n; i++) {
        dpt_str_printf(out, "%s", i == 0 ? "" : ", ");
        if (list)
            write_entry(value->items[i], out);
        else
            write_key(value->keys[i], value->items[i], out);
    }
    dpt_str_printf(out, list ? "]" : "}");
}

/* Whether a key stands at its default. rows: NULL, where nothing is known of them. */
static bool is_default(const char *key, const struct dpt_conf_node *value,
                       const struct dpt_option *rows)
{
    struct dpt_str text = {0};
    double number, usual;
    bool same;

    while (rows != NULL && rows->name != NULL && strcmp(rows->name, key) != 0)
        rows++;
    if (rows == NULL || rows->name == NULL || rows->fallback == NULL || !dpt_conf_is_setting(value))
        return false;
    dpt_conf_setting_text(value, &text);
    same =
        text.text != NULL && (strcmp(text.text, rows->fallback) == 0 ||
                              (rows->type == DPT_OPT_REAL && dpt_parse_real(text.text, &number) &&
                               dpt_parse_real(rows->fallback, &usual) && number == usual));
    dpt_str_release(&text);
    return same;
}

/* "conv 32, kernel 3": what is not as usual, and first, without its key, the option that a bare
 * value stands for. */
static void write_kind(const char *kind, const struct dpt_conf_node *value,
                       const struct dpt_option *rows, const char *bare, struct dpt_str *out)
{
    const struct dpt_conf_node *first = bare != NULL ? dpt_conf_get(value, bare) : NULL;

    dpt_str_printable(out, kind, strlen(kind), false);
    if (value->kind != DPT_NODE_MAP)
        first = value;
    if (first != NULL) {
        dpt_str_printf(out, " ");
        write_value(first, out);
    }
    for (size_t i = 0; value->kind == DPT_NODE_MAP && i < value->n; i++) {
        if (value->items[i] == first || is_default(value->keys[i], value->items[i], rows))
            continue;
        dpt_str_printf(out, ", ");
        write_key(value->keys[i], value->items[i], out);
    }
}

/* The options of a short form, but for those that have a row of their own. */
static void write_model(const struct dpt_conf_node *model, struct dpt_str *out)
{
    static const char *const others[] = {"type", "outputs", "layers"};
    const struct dpt_conf_node *type = dpt_conf_get(model, "type");
    const struct dpt_variant *const *variant = dpt_model_variants;

    write_value(type, out);
    while (*variant != NULL && (type->text == NULL || strcmp((*variant)->name, type->text) != 0))
        variant++;
    for (size_t i = 0; i < model->n; i++) {
        if (dpt_find(model->keys[i], others, 3) < 3 ||
            is_default(model->keys[i], model->items[i],
                       *variant != NULL ? (*variant)->options : NULL))
            continue;
        dpt_str_printf(out, ", ");
        write_key(model->keys[i], model->items[i], out);
    }
}

/* Puts the text into the map, and empties it. */
static bool put(struct dpt_conf *job, struct dpt_conf_node *map, const char *key,
                struct dpt_str *text)
{
    struct dpt_conf_node *node =
        dpt_conf_new(job, DPT_NODE_SCALAR, text->text != NULL ? text->text : "");
    const bool good = !text->failed && node != NULL && dpt_conf_put(job, map, key, node);

    dpt_str_clear(text);
    return good;
}

static bool fold(struct dpt_conf *job)
{
    const struct dpt_conf_node *model = dpt_conf_get(job->root, "model");
    const struct dpt_conf_node *layers = dpt_conf_get(model, "layers");
    struct dpt_conf_node *outputs = dpt_conf_get(model, "outputs");
    struct dpt_conf_node *told = dpt_conf_new(job, DPT_NODE_MAP, NULL);
    struct dpt_str text = {0};
    bool good = told != NULL;
    char key[40];

    if (dpt_conf_get(model, "type") == NULL) /* not as a run has written it */
        return good;
    if (layers != NULL && (layers->kind != DPT_NODE_LIST || layers->n == 0))
        return good;
    write_model(model, &text);
    good = good && put(job, told, "type", &text);
    if (outputs == NULL && layers != NULL) /* the last layer's, where it is a dense one */
        outputs = dpt_conf_get(dpt_conf_get(layers->items[layers->n - 1], "dense"), "outputs");
    if (outputs != NULL)
        good = good && dpt_conf_put(job, told, "outputs", outputs);
    for (size_t i = 0; good && layers != NULL && i < layers->n; i++) {
        snprintf(key, sizeof key, "layers[%zu]", i);
        write_entry(layers->items[i], &text);
        good = put(job, told, key, &text);
    }
    dpt_str_release(&text);
    return good && dpt_conf_put(job, job->root, "model", told);
}

bool dpt_runs_fold_models(struct dpt_runs *runs)
{
    const struct dpt_conf_node *first = NULL;
    bool same = true, good = true;

    for (size_t i = 0; i < runs->n; i++) {
        const struct dpt_conf_node *model = dpt_conf_get(runs->at[i].job.root, "model");

        if (runs->at[i].no_job != NULL)
            continue;
        same = same && (first == NULL || same_keys(first, model));
        first = first == NULL ? model : first;
    }
    for (size_t i = 0; !same && i < runs->n; i++)
        if (runs->at[i].no_job == NULL)
            good = good && fold(&runs->at[i].job);
    return good;
}

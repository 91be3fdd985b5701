#include "core/state/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conf/text.h"
#include "core/conf/yaml.h"

/* Texts of people's, which may hold anything, as a terminal may show them. */
static void add_text(const char *text, struct dpt_str *out)
{
    enum { SHOWN = 400 };
    char shown[6 * SHOWN + 8];

    dpt_show_text(shown, text, SHOWN);
    dpt_str_printf(out, "%s", shown);
}

/* A value in one short line. */
static void add_value(const struct dpt_conf_node *node, struct dpt_str *out)
{
    if (node == NULL) {
        dpt_str_printf(out, "nothing");
    } else if (node->kind == DPT_NODE_SCALAR) {
        add_text(node->text, out);
    } else {
        dpt_str_printf(out, "[");
        for (size_t i = 0; i < node->n; i++) {
            dpt_str_printf(out, "%s", i > 0 ? ", " : "");
            if (node->kind == DPT_NODE_MAP) {
                add_text(node->keys[i], out);
                dpt_str_printf(out, ": ");
            }
            add_value(node->items[i], out);
        }
        dpt_str_printf(out, "]");
    }
}

/* What a key means to a run that goes on; above: what its section does. */
static enum dpt_effect effect_of(const struct dpt_conf_node *node, enum dpt_effect above)
{
    if (node == NULL || node->row == NULL || node->row->effect == DPT_EFFECT_AS_ABOVE)
        return above;
    return node->row->effect;
}

static bool compare(const struct dpt_conf_node *a, const struct dpt_conf_node *b, const char *path,
                    enum dpt_effect above, struct dpt_str *changes);

/* Entries of two maps under either's keys. */
static bool compare_maps(const struct dpt_conf_node *a, const struct dpt_conf_node *b,
                         const char *path, enum dpt_effect above, struct dpt_str *changes)
{
    const char *dot = path[0] == '\0' ? "" : ".";
    bool same = true;
    char inner[512];

    for (size_t i = 0; i < a->n; i++) {
        snprintf(inner, sizeof inner, "%s%s%s", path, dot, a->keys[i]);
        same &= compare(a->items[i], dpt_conf_get(b, a->keys[i]), inner, above, changes);
    }
    for (size_t i = 0; i < b->n; i++) {
        if (dpt_conf_get(a, b->keys[i]) != NULL)
            continue;
        snprintf(inner, sizeof inner, "%s%s%s", path, dot, b->keys[i]);
        same &= compare(NULL, b->items[i], inner, above, changes);
    }
    return same;
}

static bool compare(const struct dpt_conf_node *a, const struct dpt_conf_node *b, const char *path,
                    enum dpt_effect above, struct dpt_str *changes)
{
    const enum dpt_effect effect = effect_of(b != NULL ? b : a, above);
    const bool kin = a != NULL && b != NULL && a->kind == b->kind;
    bool same = true;
    char inner[512];

    if (kin && a->kind == DPT_NODE_MAP)
        return compare_maps(a, b, path, effect, changes);
    if (kin && a->kind == DPT_NODE_LIST && a->n == b->n) {
        for (size_t i = 0; i < a->n; i++) {
            snprintf(inner, sizeof inner, "%s[%zu]", path, i);
            same &= compare(a->items[i], b->items[i], inner, effect, changes);
        }
        return same;
    }
    if (kin && a->kind == DPT_NODE_SCALAR && strcmp(a->text, b->text) == 0)
        return true;
    dpt_str_printf(changes, "%s", changes->length > 0 ? "\n" : "");
    add_text(path, changes);
    dpt_str_printf(changes, ": ");
    add_value(a, changes);
    dpt_str_printf(changes, " -> ");
    add_value(b, changes);
    return effect >= DPT_EFFECT_LENGTH;
}

/* With defaults in place of what is absent. That the text of another version has mistakes does not
 * matter: what is not understood counts as it stands. */
static bool parse(struct dpt_conf *conf, const char *name, const char *text,
                  const struct dpt_option *table, size_t size, struct dpt_str *changes)
{
    struct dpt_error err;
    void *job = calloc(size + 1, 1);
    bool good = job != NULL;

    if (dpt_conf_parse(conf, name, text, strlen(text), &err) != DPT_OK) {
        dpt_str_printf(changes, "%s", err.text);
        good = false;
    }
    if (good && table != NULL)
        good = dpt_options_read(conf, conf->root, "", table, job);
    changes->failed |= job == NULL || conf->failed;
    free(job);
    return good;
}

bool dpt_jobs_compare(const char *old_job, const char *new_job, const struct dpt_option *table,
                      size_t size, struct dpt_str *changes)
{
    struct dpt_conf before = {0}, now = {0};
    const bool same = parse(&before, "checkpoint", old_job, table, size, changes) &&
                      parse(&now, "job", new_job, table, size, changes) &&
                      compare(before.root, now.root, "", DPT_EFFECT_RESULT, changes);

    dpt_conf_release(&before);
    dpt_conf_release(&now);
    return same;
}

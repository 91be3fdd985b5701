#include "core/state/jobs.h"

#include <stdio.h>
#include <string.h>

#include "core/conf/text.h"
#include "core/conf/yaml.h"

/* What decides how long a run is, but not what a step before its end does. */
static const char *const free_keys[] = {"train.epochs", "train.steps"};

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

static bool is_free(const char *path)
{
    for (size_t i = 0; i < sizeof free_keys / sizeof free_keys[0]; i++)
        if (strcmp(path, free_keys[i]) == 0)
            return true;
    return false;
}

static bool compare(const struct dpt_conf_node *a, const struct dpt_conf_node *b, const char *path,
                    struct dpt_str *changes);

/* Entries of two maps under either's keys. */
static bool compare_maps(const struct dpt_conf_node *a, const struct dpt_conf_node *b,
                         const char *path, struct dpt_str *changes)
{
    const char *dot = path[0] == '\0' ? "" : ".";
    bool same = true;
    char inner[512];

    for (size_t i = 0; i < a->n; i++) {
        snprintf(inner, sizeof inner, "%s%s%s", path, dot, a->keys[i]);
        same &= compare(a->items[i], dpt_conf_get(b, a->keys[i]), inner, changes);
    }
    for (size_t i = 0; i < b->n; i++) {
        if (dpt_conf_get(a, b->keys[i]) != NULL)
            continue;
        snprintf(inner, sizeof inner, "%s%s%s", path, dot, b->keys[i]);
        same &= compare(NULL, b->items[i], inner, changes);
    }
    return same;
}

static bool compare(const struct dpt_conf_node *a, const struct dpt_conf_node *b, const char *path,
                    struct dpt_str *changes)
{
    const bool kin = a != NULL && b != NULL && a->kind == b->kind;
    bool same = true;
    char inner[512];

    if (kin && a->kind == DPT_NODE_MAP)
        return compare_maps(a, b, path, changes);
    if (kin && a->kind == DPT_NODE_LIST && a->n == b->n) {
        for (size_t i = 0; i < a->n; i++) {
            snprintf(inner, sizeof inner, "%s[%zu]", path, i);
            same &= compare(a->items[i], b->items[i], inner, changes);
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
    return is_free(path);
}

bool dpt_jobs_compare(const char *old_job, const char *new_job, struct dpt_str *changes)
{
    struct dpt_conf before = {0}, now = {0};
    struct dpt_error err;
    bool same = false;

    if (dpt_conf_parse(&before, "checkpoint", old_job, strlen(old_job), &err) == DPT_OK &&
        dpt_conf_parse(&now, "job", new_job, strlen(new_job), &err) == DPT_OK)
        same = compare(before.root, now.root, "", changes);
    else
        dpt_str_printf(changes, "%s", err.text);
    dpt_conf_release(&before);
    dpt_conf_release(&now);
    return same;
}

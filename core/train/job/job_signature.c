#include "core/train/job/job.h"

#include <stdio.h>
#include <string.h>

/* Writes the part of a job that decides its result, for checkpoints. */

/* Whether a list of scalars equals that of a text, "[0.75, 1.5]". */
static bool is_list(const struct dpt_conf_node *list, const char *text)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct dpt_conf_node *item = list->items[i];
        const char *before = i == 0 ? "[" : ", ";
        const size_t skip = strlen(before),
                     length = item->kind == DPT_NODE_SCALAR ? strlen(item->text) : 0;

        if (length == 0 || strncmp(text, before, skip) != 0 ||
            strncmp(text + skip, item->text, length) != 0)
            return false;
        text += skip + length;
    }
    return strcmp(text, list->n == 0 ? "[]" : "]") == 0;
}

static bool is_default(const struct dpt_conf_node *node)
{
    const char *usual = node->row->fallback;

    return node->filled ||
           (usual != NULL && ((node->kind == DPT_NODE_LIST && is_list(node, usual)) ||
                              (node->kind == DPT_NODE_SCALAR && strcmp(node->text, usual) == 0)));
}

/* Whether a checkpoint's job leaves out an entry. */
static bool is_left_out(const struct dpt_conf_node *node)
{
    const struct dpt_option *row = node->row;

    return row != NULL && (row->effect == DPT_EFFECT_NONE || row->effect == DPT_EFFECT_OUTPUT ||
                           (row->added && is_default(node)));
}

/* The text for an option that changes no byte is its default, so that it changes no checkpoint.
 * Such rows are scalars, or lists that are empty by default. */
static struct dpt_conf_node *usual(struct dpt_conf *conf, const struct dpt_option *row)
{
    return strcmp(row->fallback, "[]") == 0 ? dpt_conf_new(conf, DPT_NODE_LIST, NULL)
                                            : dpt_conf_new(conf, DPT_NODE_SCALAR, row->fallback);
}

/* Copies a section without the entries left out. NULL: nothing remains, or memory ran out. */
static struct dpt_conf_node *copy(struct dpt_conf *conf, const struct dpt_conf_node *node)
{
    struct dpt_conf_node *new = dpt_conf_new(conf, node->kind, node->text), *item;

    if (new == NULL)
        return NULL;
    new->quoted = node->quoted;
    for (size_t i = 0; i < node->n && !conf->region.failed; i++) {
        const struct dpt_option *row = node->items[i]->row;

        item = is_left_out(node->items[i])                          ? NULL
               : row != NULL && row->effect == DPT_EFFECT_NONE_KEPT ? usual(conf, row)
                                                                    : copy(conf, node->items[i]);
        if (item != NULL && node->kind == DPT_NODE_MAP)
            dpt_conf_put(conf, new, node->keys[i], item);
        else if (item != NULL)
            dpt_conf_append(conf, new, item);
    }
    return node->row != NULL && node->row->type == DPT_OPT_SECTION && node->n > new->n &&new->n == 0
               ? NULL
               : new;
}

void dpt_job_signature(const struct dpt_job *job, const struct dpt_conf *conf, struct dpt_str *out)
{
    /* Sections stand in the order of the first checkpoints; newer sections come after them. */
    static const char *const first[] = {"seed",      "data",     "model", "loss", "batch",
                                        "optimizer", "schedule", "train", "comm"};
    enum { FIRST = sizeof first / sizeof first[0] };
    struct dpt_conf kept = {0};
    struct dpt_conf_node *all = copy(&kept, conf->root);
    struct dpt_conf_node *map = dpt_conf_new(&kept, DPT_NODE_MAP, NULL);
    struct dpt_conf_node *batch = all != NULL ? dpt_conf_get(all, "batch") : NULL;
    struct dpt_conf_node *global = batch != NULL ? dpt_conf_get(batch, "global") : NULL;
    char samples[32];

    /* The samples per step, however they were given. */
    snprintf(samples, sizeof samples, "%lld", (long long)job->batch.global);
    if (global != NULL)
        global->text = samples;
    for (size_t i = 0; all != NULL && map != NULL && i < FIRST + all->n; i++) {
        const char *key = i < FIRST ? first[i] : all->keys[i - FIRST];
        struct dpt_conf_node *item = dpt_conf_get(all, key);

        if (item != NULL)
            dpt_conf_put(&kept, map, key, item);
    }
    if (kept.region.failed || all == NULL || map == NULL)
        out->failed = true;
    else
        dpt_conf_write(map, out);
    dpt_conf_release(&kept);
}

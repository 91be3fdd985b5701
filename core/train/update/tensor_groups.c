#include "core/train/update/tensor_groups.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/str.h"

/* --- reading ---------------------------------------------------------------------------------- */

static const struct dpt_option texts_row[] = {{.name = "patterns", .type = DPT_OPT_TEXTS}, {0}};
const struct dpt_alternatives dpt_pattern_forms = {.either = texts_row};

bool dpt_patterns_read(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                       void *patterns)
{
    struct dpt_patterns *p = patterns;

    p->at = node;
    p->file = conf->path;
    return dpt_option_read(conf, node, path, texts_row, &p->texts);
}

// clang-format off
static const struct dpt_option group_rows[] = {
    {.name = "match", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct dpt_group_options, match),
     .read = dpt_patterns_read, .value_text = "list of patterns",
     .alternatives = &dpt_pattern_forms, .help = "names of tensors or layers"},
    {.name = "lr", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_group_options, lr),
     .fallback = "null", .word = "null", .min = 1e-30, .max = 1e6, .rival = "lr_scale",
     .help = "learning rate; follows the schedule as the optimizer's does"},
    {.name = "lr_scale", .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_group_options, lr_scale), .fallback = "null", .word = "null",
     .min = 1e-30, .max = 1e6, .rival = "lr", .help = "times the optimizer's learning rate"},
    {.name = "weight_decay", .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_group_options, weight_decay), .fallback = "null",
     .word = "null", .word_value = -1, .max = 1e6, .help = "instead of the optimizer's"},
    {0},
};
// clang-format on

const struct dpt_alternatives dpt_group_forms = {.entries = group_rows};

static bool read_group(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                       struct dpt_group_options *group)
{
    const size_t mistakes = conf->n_mistakes;

    if (node->kind != DPT_NODE_MAP) {
        dpt_conf_mistake(conf, node, path,
                         "expected a group, such as "
                         "{match: [\"conv1\"], lr_scale: 0.1}");
        return true;
    }
    if (!dpt_options_read(conf, node, path, group_rows, group))
        return false;
    if (conf->n_mistakes > mistakes)
        return true;
    if (group->match.texts.n == 0)
        dpt_conf_mistake(conf, node, path, "match: no pattern");
    else if (group->lr == 0 && group->lr_scale == 0 && group->weight_decay < 0)
        dpt_conf_mistake(conf, node, path,
                         "gives its tensors nothing of their own: add lr, "
                         "lr_scale or weight_decay");
    return true;
}

bool dpt_groups_read(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                     void *dest)
{
    struct dpt_groups *groups = dest;

    if (node->kind != DPT_NODE_LIST) {
        dpt_conf_mistake(conf, node, path,
                         "expected a list of groups, such as "
                         "[{match: [\"conv1\"], lr_scale: 0.1}]");
        return true;
    }
    groups->at = dpt_region_alloc(&conf->region, (node->n + 1) * sizeof *groups->at);
    if (groups->at == NULL)
        return false;
    memset(groups->at, 0, (node->n + 1) * sizeof *groups->at);
    groups->n = node->n;
    for (size_t i = 0; i < node->n; i++)
        if (!read_group(conf, node->items[i], dpt_option_path(conf, path, NULL, i), &groups->at[i]))
            return false;
    return true;
}

/* --- matching --------------------------------------------------------------------------------- */

/* Fails at the place of a pattern: its node in a list of patterns or, if it is alone, the
 * list's. */
static enum dpt_status refuse(const struct dpt_patterns *p, size_t i, const char *what,
                              struct dpt_error *err)
{
    const struct dpt_conf_node *at =
        p->at->kind == DPT_NODE_LIST && i < p->at->n ? p->at->items[i] : p->at;

    if (at->line > 0)
        return dpt_fail(err, DPT_BAD_JOB, "%s:%d:%d: %s", p->file, at->line, at->column, what);
    return dpt_fail(err, DPT_BAD_JOB, "%s: %s", at->origin != NULL ? at->origin : p->file, what);
}

/* The length in bytes of the layer's name in a tensor's name: up to the last '/'. */
static size_t layer_length(const struct dpt_tensor *t)
{
    const char *slash = strrchr(t->name, '/');

    return slash == NULL ? strlen(t->name) : (size_t)(slash - t->name);
}

bool dpt_pattern_matches(const char *pattern, const struct dpt_tensor *t)
{
    char layer[DPT_NAME];

    snprintf(layer, sizeof layer, "%.*s", (int)layer_length(t), t->name);
    return fnmatch(pattern, t->name, 0) == 0 || fnmatch(pattern, layer, 0) == 0;
}

/* Refuses a pattern that matches nothing; names similar ones or else the existing layers. */
static enum dpt_status refuse_unmatched(const struct dpt_patterns *p, size_t i, const char *key,
                                        const struct dpt_graph *graph, struct dpt_error *err)
{
    enum { LISTED = 300 };
    const size_t n = (size_t)graph->n_tensors;
    const char **names = dpt_alloc_array(2 * n, sizeof *names);
    char(*layers)[DPT_NAME] = dpt_alloc_array(n, sizeof *layers);
    char shown[6 * DPT_NAME + 8], text[1024], list[LISTED] = "";
    const char *nearest = NULL;
    size_t used = 0;
    bool cut = false;

    dpt_show_text(shown, p->texts.at[i], DPT_NAME);
    for (size_t k = 0; names != NULL && layers != NULL && k < n; k++) {
        const struct dpt_tensor *t = &graph->tensors[k];

        snprintf(layers[k], sizeof layers[k], "%.*s", (int)layer_length(t), t->name);
        names[k] = layers[k];
        names[n + k] = t->name;
        if ((k > 0 && strcmp(layers[k], layers[k - 1]) == 0) || cut)
            continue;
        cut = used > LISTED - 2 * DPT_NAME - 8;
        used += (size_t)snprintf(list + used, LISTED - used, "%s%s", used > 0 ? ", " : "",
                                 cut ? "..." : layers[k]);
    }
    if (names != NULL && layers != NULL)
        nearest = dpt_nearest(p->texts.at[i], names, 2 * n);
    if (nearest != NULL)
        snprintf(text, sizeof text, "%s: '%s' matches no tensor and no layer; did you mean '%s'?",
                 key, shown, nearest);
    else
        snprintf(text, sizeof text, "%s: '%s' matches no tensor and no layer; layers are %s", key,
                 shown, list);
    dpt_free(names);
    dpt_free(layers);
    return refuse(p, i, text, err);
}

/* What becomes of tensors that match. */
struct marking {
    const struct dpt_group_options *group; /* they get what it gives; NULL: they are frozen */
    double lr;
};

static void mark_tensor(struct dpt_tensor *t, const struct marking *m)
{
    if (m->group == NULL) {
        t->frozen = true;
        return;
    }
    if (t->lr_scale == 0 && m->group->lr_scale > 0)
        t->lr_scale = m->group->lr_scale;
    if (t->lr_scale == 0 && m->group->lr > 0)
        t->lr_scale = m->group->lr / m->lr;
    if (!t->decays_alone && m->group->weight_decay >= 0) {
        t->decays_alone = true;
        t->weight_decay = m->group->weight_decay;
    }
}

/* Marks each tensor that a pattern matches; of state only those that are frozen. */
static enum dpt_status mark_matches(const struct dpt_patterns *p, const char *key,
                                    const struct marking *m, struct dpt_graph *graph,
                                    struct dpt_error *err)
{
    for (size_t i = 0; i < p->texts.n; i++) {
        bool any = false;

        for (int32_t k = 0; k < graph->n_tensors; k++) {
            struct dpt_tensor *t = &graph->tensors[k];

            if ((m->group != NULL && t->state) || !dpt_pattern_matches(p->texts.at[i], t))
                continue;
            mark_tensor(t, m);
            any = true;
        }
        if (!any)
            return refuse_unmatched(p, i, key, graph, err);
    }
    return DPT_OK;
}

/* --- marking ---------------------------------------------------------------------------------- */

enum dpt_status dpt_tensor_groups_freeze(const struct dpt_patterns *freeze, struct dpt_graph *graph,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct marking frozen = {0};
    char text[256];

    DPT_TRY(mark_matches(freeze, "train.freeze", &frozen, graph, err));
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];

        if (node->mean < 0 ||
            graph->tensors[node->mean].frozen == graph->tensors[node->variance].frozen)
            continue;
        snprintf(text, sizeof text,
                 "train.freeze: %s: one of its running statistics without the other; freeze both "
                 "or none",
                 node->name);
        DPT_TRY(refuse(freeze, SIZE_MAX, text, err));
    }
    dpt_graph_freeze(graph);
    if (freeze->texts.n > 0 && dpt_graph_learned(graph) == 0)
        DPT_TRY(refuse(freeze, SIZE_MAX, "train.freeze: matches all parameters: nothing is learned",
                       err));
out:
    return status;
}

enum dpt_status dpt_tensor_groups_apply(const struct dpt_groups *groups, double lr,
                                        struct dpt_graph *graph, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char key[64];

    for (size_t i = 0; i < groups->n; i++) {
        const struct dpt_group_options *group = &groups->at[i];
        const struct marking marking = {group, lr};

        snprintf(key, sizeof key, "optimizer.groups[%zu].match", i);
        if (group->lr > 0 && lr == 0)
            DPT_TRY(refuse(&group->match, SIZE_MAX,
                           "optimizer.groups: a group's lr is a share of optimizer.lr, which is 0",
                           err));
        DPT_TRY(mark_matches(&group->match, key, &marking, graph, err));
    }
out:
    return status;
}

/* --- asking ----------------------------------------------------------------------------------- */

static bool any_matches(const struct dpt_patterns *p, const struct dpt_tensor *t)
{
    bool any = false;

    for (size_t i = 0; i < p->texts.n; i++)
        any = any || dpt_pattern_matches(p->texts.at[i], t);
    return any;
}

static bool gives_rate(const struct dpt_group_options *group)
{
    return group->lr > 0 || group->lr_scale > 0;
}

bool dpt_tensor_groups_give(const struct dpt_groups *groups, size_t i, const struct dpt_tensor *t)
{
    const struct dpt_group_options *group = &groups->at[i];
    bool rate = gives_rate(group), decay = group->weight_decay >= 0 && t->decay;

    if (t->state || t->frozen || !any_matches(&group->match, t))
        return false;
    for (size_t k = 0; k < i; k++) {
        const bool before = any_matches(&groups->at[k].match, t);

        rate = rate && !(before && gives_rate(&groups->at[k]));
        decay = decay && !(before && groups->at[k].weight_decay >= 0);
    }
    return rate || decay;
}

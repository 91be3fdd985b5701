#include "core/interchange/match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What wraps a model in PyTorch puts in front of its names. */
static const char *const prefixes[] = {"",
                                       "module.",
                                       "model.",
                                       "_orig_mod.",
                                       "module._orig_mod.",
                                       "_orig_mod.module.",
                                       "module.model.",
                                       "model.module.",
                                       "net.",
                                       "state_dict."};

enum { PREFIXES = sizeof prefixes / sizeof prefixes[0], SHOWN = 20 };

/* A tensor of the file under the name that it has for us. */
struct named {
    const char *name;
    size_t layer; /* characters of it in front of the last dot, or all */
    size_t index; /* in the file */
    const struct dpt_weight *weight;
};

/* --- names ------------------------------------------------------------------------------------ */

/* Whether a name is FROM, or begins with it and a dot. */
static bool begins(const char *name, const char *from, size_t n)
{
    return strncmp(name, from, n) == 0 &&
           (name[n] == '\0' || name[n] == '.' || n == 0 || from[n - 1] == '.');
}

/* The name after the first rule that fits it; *hits: counted up. NULL where memory ran out. */
static const char *rename_by(struct dpt_match *match, const char *name,
                             const struct dpt_match_options *options, size_t *hits)
{
    for (size_t i = 0; i < options->n_map; i++) {
        const char *from = options->map[i], *to = strchr(from, '=') + 1;
        const size_t n = (size_t)(to - 1 - from);
        const char *rest = name + n;

        if (!begins(name, from, n))
            continue;
        hits[i]++;
        if (to[0] == '\0' && rest[0] == '.')
            rest++;
        return dpt_region_printf(&match->arena, "%s%s", to, rest);
    }
    return name;
}

static enum dpt_status name_all(struct dpt_match *match, const struct dpt_weights *weights,
                                const struct dpt_match_options *options, struct named *all,
                                struct dpt_error *err)
{
    size_t *hits;

    for (size_t i = 0; i < options->n_map; i++)
        if (strchr(options->map[i], '=') == NULL)
            return dpt_fail(err, DPT_USAGE, "--map %s: must be FROM=TO, such as features.0=conv1",
                            options->map[i]);
    hits = dpt_region_alloc(&match->arena, (options->n_map + 1) * sizeof *hits);
    if (hits == NULL)
        return dpt_fail_memory(err, "names of tensors", 0);
    for (size_t i = 0; i < weights->n; i++) {
        const char *name = rename_by(match, weights->at[i].name, options, hits), *dot;

        if (name == NULL)
            return dpt_fail_memory(err, "names of tensors", 0);
        match->name[i] = name;
        dot = strrchr(name, '.');
        all[i] = (struct named){.name = name,
                                .layer = dot != NULL ? (size_t)(dot - name) : strlen(name),
                                .index = i,
                                .weight = &weights->at[i]};
    }
    for (size_t i = 0; i < options->n_map; i++)
        if (hits[i] == 0)
            return dpt_fail(err, DPT_BAD_DATA, "%s: --map %s: no tensor's name begins so",
                            weights->path, options->map[i]);
    return DPT_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* The entry of a name with a prefix in front of it, or NULL. */
static const struct named *find(const struct named *all, size_t n, const char *prefix,
                                const char *name)
{
    char whole[DPT_NAME + 64];
    const struct named key = {.name = whole};

    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    return n == 0 ? NULL : bsearch(&key, all, n, sizeof *all, by_name);
}

/* The prefix with which most of the model's tensors are there; of several the first. */
static const char *choose_prefix(const struct named *all, size_t n, const struct dpt_graph *graph)
{
    const char *best = "";
    int32_t most = 0;

    for (size_t i = 0; i < PREFIXES; i++) {
        int32_t found = 0;
        char name[DPT_NAME];

        for (int32_t k = 0; k < graph->n_tensors; k++)
            found += find(all, n, prefixes[i], dpt_weight_name(&graph->tensors[k], name)) != NULL;
        if (found > most) {
            most = found;
            best = prefixes[i];
        }
    }
    return best;
}

/* --- pairs ------------------------------------------------------------------------------------ */

static void pair(struct dpt_match *match, const struct dpt_graph *graph, int32_t k,
                 const struct named *named)
{
    const struct dpt_tensor *t = &graph->tensors[k];
    const struct dpt_weight *w = named->weight;
    const bool same = w->kind != DPT_FLOAT_NONE && w->n_dims == t->n_dims &&
                      memcmp(w->dims, t->dims, (size_t)t->n_dims * sizeof *t->dims) == 0;

    match->used[named->index] = true;
    *(same ? &match->weight[k] : &match->near[k]) = w;
    match->pairs += same;
}

static enum dpt_status pair_by_name(struct dpt_match *match, const struct dpt_weights *weights,
                                    const struct dpt_graph *graph, struct named *all,
                                    struct dpt_error *err)
{
    const size_t n = weights->n;

    if (n > 0)
        qsort(all, n, sizeof *all, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return dpt_fail(err, DPT_BAD_DATA, "%s: two tensors have the name %s%s", weights->path,
                            all[i].name,
                            strcmp(all[i].name, all[i].weight->name) != 0 ||
                                    strcmp(all[i - 1].name, all[i - 1].weight->name) != 0
                                ? " after --map"
                                : "");
    match->prefix = choose_prefix(all, n, graph);
    for (size_t i = 0; i < n; i++)
        match->used[all[i].index] = dpt_weight_is_count(all[i].name);
    for (int32_t k = 0; k < graph->n_tensors; k++) {
        char name[DPT_NAME];
        const struct named *named =
            find(all, n, match->prefix, dpt_weight_name(&graph->tensors[k], name));

        if (named != NULL)
            pair(match, graph, k, named);
    }
    return DPT_OK;
}

/* The order of a layer's tensors: that of the model's, whatever else there is after them. */
static int place_of(const struct named *named)
{
    static const char *const order[] = {".weight", ".bias", ".running_mean", ".running_var"};
    enum { N = sizeof order / sizeof *order };
    int place = 0;

    while (place < N && strcmp(named->name + named->layer, order[place]) != 0)
        place++;
    return place;
}

/* Layers by the numbers in their names, a layer's weight in front of its bias. */
static int by_layer(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    char left[DPT_WEIGHT_NAME_MOST + 1], right[DPT_WEIGHT_NAME_MOST + 1];
    int order;

    snprintf(left, sizeof left, "%.*s", (int)x->layer, x->name);
    snprintf(right, sizeof right, "%.*s", (int)y->layer, y->name);
    order = strverscmp(left, right);
    if (order != 0)
        return order;
    order = place_of(x) - place_of(y);
    if (order == 0)
        order = strcmp(y->name + y->layer, x->name + x->layer);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* Tensor after tensor. Files that sort their tensors lose the layers' order, but for the numbers in
 * their names. */
static void pair_by_order(struct dpt_match *match, const struct dpt_weights *weights,
                          const struct dpt_graph *graph, struct named *all)
{
    int32_t k = 0;

    if (!weights->format->ordered && weights->n > 0)
        qsort(all, weights->n, sizeof *all, by_layer);
    for (size_t i = 0; i < weights->n; i++) {
        match->used[all[i].index] = dpt_weight_is_count(all[i].name);
        if (k < graph->n_tensors && all[i].weight->kind != DPT_FLOAT_NONE &&
            !match->used[all[i].index])
            pair(match, graph, k++, &all[i]);
    }
}

/* --- what is left over ------------------------------------------------------------------------ */

/* One line of a list, or none after the last that is shown. */
static bool add_line(struct dpt_str *out, size_t *n, const char *name, int n_dims,
                     const int64_t *dims)
{
    char text[DPT_DIMS_TEXT];

    if ((*n)++ >= SHOWN)
        return false;
    dpt_str_printf(out, "%s  %.100s %s", out->length > 0 ? "\n" : "", name,
                   dpt_dims_text(n_dims, dims, text));
    return true;
}

static size_t end_list(struct dpt_str *out, size_t n)
{
    if (n > SHOWN)
        dpt_str_printf(out, "\n  and %zu more", n - SHOWN);
    return n;
}

size_t dpt_match_missing(const struct dpt_match *match, const struct dpt_graph *graph,
                         struct dpt_str *out)
{
    char name[DPT_NAME], there[DPT_DIMS_TEXT];
    size_t n = 0;

    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const struct dpt_tensor *t = &graph->tensors[k];
        const struct dpt_weight *near = match->near[k];

        if (match->weight[k] != NULL ||
            !add_line(out, &n, dpt_weight_name(t, name), t->n_dims, t->dims))
            continue;
        dpt_str_printf(out, ": ");
        if (near != NULL && strcmp(near->name, name) != 0)
            dpt_str_printf(out, "%.100s ", near->name);
        if (near != NULL)
            dpt_str_printf(out, "%s ", dpt_dims_text(near->n_dims, near->dims, there));
        if (near != NULL && near->kind == DPT_FLOAT_NONE)
            dpt_str_printf(out, "of type %s ", near->type);
        dpt_str_printf(out, near != NULL ? "in the file" : "not in the file");
    }
    return end_list(out, n);
}

size_t dpt_match_unused(const struct dpt_match *match, const struct dpt_weights *weights,
                        struct dpt_str *out)
{
    size_t n = 0;

    for (size_t i = 0; i < weights->n; i++) {
        const struct dpt_weight *w = &weights->at[i];

        if (match->used[i] || !add_line(out, &n, w->name, w->n_dims, w->dims))
            continue;
        if (strcmp(match->name[i], w->name) != 0)
            dpt_str_printf(out, " as %.100s", match->name[i]);
        dpt_str_printf(out, ": not in the model");
    }
    return end_list(out, n);
}

static enum dpt_status judge(const struct dpt_match *match, const struct dpt_weights *weights,
                             const struct dpt_graph *graph, const struct dpt_match_options *options,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str text = {0};
    char advice[96];

    if (options->partial && match->pairs > 0)
        return DPT_OK;
    if (dpt_match_missing(match, graph, &text) + dpt_match_unused(match, weights, &text) == 0)
        return DPT_OK;
    if (text.failed)
        DPT_TRY(dpt_fail_memory(err, "a list of tensors", 0));
    snprintf(advice, sizeof advice, " (--init-partial takes the %d of its %d tensors that do)",
             match->pairs, graph->n_tensors);
    DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s does not fit the model%s:\n%s", weights->path,
                     match->pairs > 0 ? advice
                     : options->by_order
                         ? ""
                         : " (--map FROM=TO gives names, --map-by-order needs none)",
                     text.text));
out:
    dpt_str_release(&text);
    return status;
}

enum dpt_status dpt_match_open(struct dpt_match *match, const struct dpt_weights *weights,
                               const struct dpt_graph *graph,
                               const struct dpt_match_options *options, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t tensors = (size_t)graph->n_tensors;
    struct named *all;

    *match = (struct dpt_match){.prefix = ""};
    match->weight = dpt_region_alloc(&match->arena, tensors * sizeof(const struct dpt_weight *));
    match->near = dpt_region_alloc(&match->arena, tensors * sizeof(const struct dpt_weight *));
    match->used = dpt_region_alloc(&match->arena, weights->n + 1);
    match->name = dpt_region_alloc(&match->arena, (weights->n + 1) * sizeof *match->name);
    all = dpt_region_alloc(&match->arena, (weights->n + 1) * sizeof *all);
    if (match->weight == NULL || match->near == NULL || match->used == NULL ||
        match->name == NULL || all == NULL)
        DPT_TRY(dpt_fail_memory(err, "names of tensors", (double)weights->n * sizeof *all));
    DPT_TRY(name_all(match, weights, options, all, err));
    if (options->by_order)
        pair_by_order(match, weights, graph, all);
    else
        DPT_TRY(pair_by_name(match, weights, graph, all, err));
    DPT_TRY(judge(match, weights, graph, options, err));
out:
    if (status != DPT_OK)
        dpt_match_release(match);
    return status;
}

void dpt_match_release(struct dpt_match *match)
{
    dpt_region_release(&match->arena);
    *match = (struct dpt_match){0};
}

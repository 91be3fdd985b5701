/* Lists of layers: how they grow, their names, and the nodes that they become. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/operation.h"
#include "models/layer.h"

/* Fills options with what their table has where nothing is said. */
static bool fill_defaults(struct dpt_region *region, const struct dpt_option *table, void *options)
{
    struct dpt_conf conf = {.path = "", .region = *region};
    struct dpt_conf_node *map = dpt_conf_new(&conf, DPT_NODE_MAP, NULL);
    /* What must be given is noted as an error, and is the caller's to fill in. */
    const bool filled = map != NULL && dpt_options_read(&conf, map, "", table, options);

    *region = conf.region;
    free(conf.mistakes);
    return filled;
}

void *dpt_layers_push(struct dpt_layer_list *list, const struct dpt_layer_type *type)
{
    void *options = dpt_region_alloc(list->region, type->size);

    if (options == NULL || !fill_defaults(list->region, type->options, options))
        return NULL;
    if (list->n == list->room) { /* what is left behind is as much again, at most */
        const size_t room = list->room == 0 ? 8 : 2 * list->room;
        struct dpt_layer *at = dpt_region_alloc(list->region, room * sizeof *at);

        if (at == NULL)
            return NULL;
        if (list->n > 0)
            memcpy(at, list->at, list->n * sizeof *at);
        list->at = at;
        list->room = room;
    }
    list->at[list->n++] = (struct dpt_layer){.type = type, .options = options};
    return options;
}

struct dpt_conv_options *dpt_layers_push_conv(struct dpt_layer_list *list, int64_t channels,
                                              int kernel, int stride,
                                              const struct dpt_initializer *init)
{
    struct dpt_conv_options *conv = dpt_layers_push(list, &dpt_layer_conv);

    if (conv == NULL)
        return NULL;
    conv->channels = channels;
    conv->kernel = (struct dpt_pair){{kernel, kernel}};
    conv->stride = (struct dpt_pair){{stride, stride}};
    conv->padding.pair = (struct dpt_pair){{kernel / 2, kernel / 2}};
    if (init != NULL)
        conv->init = *init;
    return conv;
}

struct dpt_dense_options *dpt_layers_push_dense(struct dpt_layer_list *list, int64_t outputs,
                                                const struct dpt_initializer *init)
{
    struct dpt_dense_options *dense = dpt_layers_push(list, &dpt_layer_dense);

    if (dense == NULL)
        return NULL;
    dense->outputs = outputs;
    if (init != NULL)
        dense->init = *init;
    return dense;
}

bool dpt_layers_push_dropout(struct dpt_layer_list *list, double rate)
{
    struct dpt_attribute_options *dropout = dpt_layers_push(list, &dpt_layer_dropout);

    if (dropout != NULL)
        dropout->attribute[0] = rate;
    return dropout != NULL;
}

bool dpt_layers_name(struct dpt_layer_list *list, const char *format, ...)
{
    char name[DPT_NAME];
    va_list args;

    if (list->region->failed)
        return false;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    list->at[list->n - 1].name = dpt_region_strdup(list->region, name);
    return list->at[list->n - 1].name != NULL;
}

const struct dpt_layer_list *dpt_layer_inner(const struct dpt_layer *layer, size_t k,
                                             const char **option)
{
    return layer->type->inner != NULL ? layer->type->inner(layer->options, k, option) : NULL;
}

const struct dpt_layer *dpt_layers_find(const struct dpt_layer_list *list, const char *name)
{
    const struct dpt_layer_list *inner;
    const struct dpt_layer *found = NULL;
    const char *option;

    for (size_t i = 0; i < list->n && found == NULL; i++) {
        const struct dpt_layer *layer = &list->at[i];

        if (layer->name != NULL && strcmp(layer->name, name) == 0)
            return layer;
        for (size_t k = 0; found == NULL && (inner = dpt_layer_inner(layer, k, &option)); k++)
            found = dpt_layers_find(inner, name);
    }
    return found;
}

/* The name of the layer being added: the user's, or its type and the first free number. */
static void name_layer(struct dpt_builder *b)
{
    const struct dpt_layer *layer = b->here.layer;

    if (layer->name != NULL) {
        snprintf(b->here.name, sizeof b->here.name, "%s", layer->name);
        return;
    }
    do {
        snprintf(b->here.name, sizeof b->here.name, "%s%d", layer->type->name,
                 ++b->numbers[layer->type->op]);
    } while (dpt_layers_find(b->all, b->here.name) != NULL);
}

static enum dpt_status check_input(struct dpt_builder *b, struct dpt_error *err)
{
    char shape[40];

    if (!b->here.layer->type->planes || !dpt_builder_shape(b)->flat)
        return DPT_OK;
    return dpt_builder_fail(b, err, "needs channels x height x width, gets %s: %s",
                            dpt_shape_text(dpt_builder_shape(b), shape),
                            b->last == 0 ? "the data are flat vectors, only `dense` fits them"
                                         : "put it before `flatten` and `dense`");
}

enum dpt_status dpt_builder_layers(struct dpt_builder *b, const struct dpt_layer_list *list,
                                   const char *prefix, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < list->n; i++) {
        const struct dpt_layer *layer = &list->at[i];

        b->here = (struct dpt_layer_place){.prefix = prefix, .index = i, .layer = layer};
        name_layer(b);
        if (layer->from != NULL)
            DPT_TRY(dpt_builder_find(b, layer->from, &b->last, err));
        DPT_TRY(check_input(b, err));
        DPT_TRY(layer->type->add(b, layer, err));
    }
out:
    return status;
}

/* Nodes between those of a chain of joins have a name with a slash, which no layer's can have. */
static bool is_layer(const struct dpt_graph_node *node)
{
    return strchr(node->name, '/') == NULL;
}

/* "; did you mean 'conv1'?", if anything, and the last of the layers that there are. */
static void list_names(const struct dpt_builder *b, const char *name, char *text, size_t size)
{
    enum { SHOWN = 8 };
    const int32_t n = b->graph->n_nodes;
    const char *names[SHOWN], *near = NULL;
    size_t used = 0;
    int32_t shown = 0, more = 0;

    for (int32_t k = n - 1; k >= 0; k--) {
        const char *one = b->graph->nodes[k].name;

        if (!is_layer(&b->graph->nodes[k]))
            continue;
        if (near == NULL)
            near = dpt_nearest(name, &one, 1);
        if (shown < SHOWN)
            names[shown++] = one;
        else
            more++;
    }
    if (near != NULL)
        used = (size_t)snprintf(text, size, "; did you mean '%s'?", near);
    used += (size_t)snprintf(text + used, size - used, "%s there are %s", near != NULL ? "" : ";",
                             more > 0 ? "…" : "");
    while (shown-- > 0)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", names[shown], shown > 0 ? ", " : "");
}

enum dpt_status dpt_builder_find(const struct dpt_builder *b, const char *name, int32_t *node,
                                 struct dpt_error *err)
{
    char names[600], shown[200];

    for (int32_t k = 0; k < b->graph->n_nodes; k++) {
        if (is_layer(&b->graph->nodes[k]) && strcmp(b->graph->nodes[k].name, name) == 0) {
            *node = k;
            return DPT_OK;
        }
    }
    if (strcmp(name, b->here.name) == 0)
        return dpt_builder_fail(b, err, "reads its own output: a layer reads those before it");
    if (dpt_layers_find(b->all, name) != NULL)
        return dpt_builder_fail(b, err,
                                "reads '%s', which comes later: a layer reads those before it, so "
                                "that there is no cycle",
                                name);
    dpt_show_text(shown, name, sizeof b->here.name);
    list_names(b, name, names, sizeof names);
    return dpt_builder_fail(b, err, "no layer before it has the name '%s'%s", shown, names);
}

#include <string.h>

#include "models/layer.h"

/* "<name>/weight" must fit a tensor's name, and the name is a folder in the checkpoint. */
enum { NAME_LENGTH = 40 };

/* The layer types, and their names, the first ones those of their operations. */
#define X(NAME, name) &dpt_layer_##name,
const struct dpt_layer_type *const dpt_layer_types[] = {DPT_LAYER_OPERATIONS(X) DPT_OTHER_LAYERS(X)
                                                            NULL};
#undef X
#define X(NAME, name) #name,
static const char *const names[] = {DPT_LAYER_OPERATIONS(X) DPT_OTHER_LAYERS(X)};
#undef X
enum { TYPES = sizeof names / sizeof *names };

static void check_name(struct dpt_conf *conf, const struct dpt_conf_node *at, const char *path,
                       const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const size_t length = strlen(name);

    if (length == 0 || length > NAME_LENGTH || strspn(name, good) != length ||
        strspn(name, ".") == length) {
        dpt_conf_mistake(conf, at, path,
                         "'%s' is no name: must be 1 to %d letters, digits, '_', '-' and '.'",
                         dpt_conf_show(conf, name), NAME_LENGTH);
        return;
    }
    if (strcmp(name, "input") == 0)
        dpt_conf_mistake(conf, at, path, "'input' is the name of what the model reads");
}

/* Only the model's last layer has its width from the data. */
static void check_outputs(struct dpt_conf *conf, const char *path, const struct dpt_layer *layer)
{
    const struct dpt_conf_node *outputs = dpt_conf_get(layer->at->items[0], "outputs");

    if (layer->type == &dpt_layer_dense && outputs->text != NULL &&
        strcmp(outputs->text, "auto") == 0)
        dpt_conf_mistake(conf, outputs, dpt_option_path(conf, path, "outputs", 0),
                         "must be given: a whole number; only the last layer of a model leaves it "
                         "to the data");
}

/* The names in a list of the model's layers, all of which `all` has, and in the lists in it; and
 * what only the last layer may leave out. */
static bool check_list(struct dpt_conf *conf, const char *path, const struct dpt_layer_list *all,
                       const struct dpt_layer_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct dpt_layer *layer = &list->at[i];
        const struct dpt_layer_list *inner;
        const char *option, *at = dpt_option_path(conf, path, NULL, i);

        at = at != NULL ? dpt_option_path(conf, at, layer->type->name, 0) : NULL;
        if (layer->name != NULL && dpt_layers_find(all, layer->name) != layer)
            dpt_conf_mistake(conf, dpt_conf_get(layer->at->items[0], "name"), at,
                             "an earlier layer has the name '%s' too", layer->name);
        if (list != all || i + 1 < list->n)
            check_outputs(conf, at, layer);
        for (size_t k = 0; (inner = dpt_layer_inner(layer, k, &option)) != NULL; k++)
            if (!check_list(conf, dpt_option_path(conf, at, option, 0), all, inner))
                return false;
    }
    return !conf->region.failed;
}

/* Reads one entry of the list and rewrites it to its full form. False where memory ran out. */
static bool read_layer(struct dpt_conf *conf, struct dpt_conf_node *entry, const char *path,
                       struct dpt_layer_list *list)
{
    struct dpt_layer layer = {.at = entry};
    const char *name, *inner;
    const struct dpt_layer_options *common;
    struct dpt_conf_node *value;

    if (!dpt_option_entry(conf, entry, path, "layer", names, TYPES, &name, &value))
        return !conf->region.failed;
    for (size_t i = 0; i < TYPES; i++)
        if (strcmp(names[i], name) == 0)
            layer.type = dpt_layer_types[i];
    inner = dpt_option_path(conf, path, name, 0);
    layer.options = dpt_region_alloc(&conf->region, layer.type->size);
    if (inner == NULL || layer.options == NULL)
        return false;
    if (value->kind != DPT_NODE_MAP && layer.type->main == NULL) {
        dpt_conf_mistake(conf, value, inner, "takes no value");
        return true;
    }
    if ((value->kind != DPT_NODE_MAP && !dpt_option_bare(conf, value, layer.type->main)) ||
        !dpt_options_read(conf, value, inner, layer.type->options, layer.options))
        return false;
    common = layer.options;
    if (common->name != NULL && strcmp(common->name, "auto") != 0) {
        check_name(conf, dpt_conf_get(value, "name"), inner, common->name);
        layer.name = common->name;
    }
    if (common->from != NULL && strcmp(common->from, "auto") != 0)
        layer.from = common->from;
    list->at[list->n++] = layer;
    return true;
}

static bool read_layers(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                        void *dest)
{
    struct dpt_layer_list *list = dest;

    if (node->kind != DPT_NODE_LIST) {
        dpt_conf_mistake(conf, node, path, "expected a list of layers");
        return true;
    }
    if (node->n == 0)
        dpt_conf_mistake(conf, node, path,
                         "the list of layers is empty: put `- dense: 10` or "
                         "other layers in it");
    list->at = dpt_region_alloc(&conf->region, (node->n + 1) * sizeof *list->at);
    if (list->at == NULL)
        return false;
    for (size_t i = 0; i < node->n; i++) {
        const char *entry_path = dpt_option_path(conf, path, NULL, i);

        if (entry_path == NULL || !read_layer(conf, node->items[i], entry_path, list))
            return false;
    }
    return true;
}

static bool layer_kind(size_t i, struct dpt_option_kind *kind)
{
    if (i < TYPES)
        *kind = (struct dpt_option_kind){
            .name = dpt_layer_types[i]->name,
            .summary = dpt_layer_types[i]->summary,
            .options = dpt_layer_types[i]->options,
            .bare = dpt_layer_types[i]->main,
        };
    return i < TYPES;
}

static const struct dpt_alternatives layer_forms = {.kind = layer_kind, .name = "layers"};

/* --- a residual block ------------------------------------------------------------------------- */

static bool read_shortcut(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest);

// clang-format off
static const struct dpt_option shortcuts[] = {
    {.name = "way", .type = DPT_OPT_CHOICE, .choices = (const char *const[]){"auto", "none", NULL}},
    {.name = "layers", .type = DPT_OPT_CUSTOM, .value_text = "list of layers",
     .alternatives = &layer_forms},
    {0},
};
static const struct dpt_alternatives shortcut_forms = {.either = shortcuts};

static const struct dpt_option residual_options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "layers", .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_residual_options, layers), .read = read_layers,
     .value_text = "list of layers", .alternatives = &layer_forms,
     .help = "layers whose output is added to the shortcut's; `name` is that of the sum"},
    {.name = "shortcut", .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_residual_options, beside), .fallback = "auto",
     .read = read_shortcut, .value_text = "auto, none or list of layers",
     .alternatives = &shortcut_forms,
     .help = "shortcut past the layers; auto: their input, through a 1x1 convolution or a dense "
             "layer and their norm if shapes differ; none: no projection"},
    {0},
};
// clang-format on

static bool read_shortcut(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest)
{
    struct dpt_residual_options *o =
        (void *)((char *)dest - offsetof(struct dpt_residual_options, beside));

    if (node->kind == DPT_NODE_SCALAR)
        return dpt_option_read(conf, node, path, shortcuts, &o->shortcut);
    if (node->kind == DPT_NODE_MAP)
        dpt_conf_mistake(conf, node, path, "expected auto, none or a list of layers, got a map");
    if (node->kind == DPT_NODE_MAP)
        return !conf->region.failed;
    o->shortcut = DPT_SHORTCUT_LAYERS;
    return read_layers(conf, node, path, &o->beside);
}

static const struct dpt_layer_list *residual_inner(const void *options_, size_t k,
                                                   const char **option)
{
    const struct dpt_residual_options *o = options_;

    *option = k == 0 ? "layers" : "shortcut";
    return k == 0 ? &o->layers : k == 1 ? &o->beside : NULL;
}

DPT_LAYER(COUNT, residual, residual_options, struct dpt_residual_options,
          .summary = "sum of a list of layers and of a shortcut past them (He et al. 2015)",
          .main = "layers", .inner = residual_inner, .add = dpt_residual_add);

/* --- the model -------------------------------------------------------------------------------- */

static bool read_model(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                       void *dest)
{
    return read_layers(conf, node, path, dest) && check_list(conf, path, dest, dest);
}

static bool sequential_expand(const void *options, const struct dpt_shape *input,
                              struct dpt_layer_list *list)
{
    const struct dpt_sequential_options *o = options;

    (void)input;
    *list = o->layers;
    return true;
}

static const struct dpt_option options[] = {
    {.name = "layers",
     .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_sequential_options, layers),
     .read = read_model,
     .value_text = "list of layers",
     .alternatives = &layer_forms,
     .help = "layers in order: `relu`, `dense: 10`, `conv: {channels: 32}`; `add: NAME` and "
             "the like join; `dptrain layers` lists all"},
    {0},
};

static const struct dpt_model_type type = {.expand = sequential_expand, .listed = true};

const struct dpt_variant dpt_model_sequential = {
    .name = "sequential",
    .summary = "a list of layers",
    .options = options,
    .size = sizeof(struct dpt_sequential_options),
    .impl = &type,
};

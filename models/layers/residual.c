/* A residual block (He et al. 2015, "Deep Residual Learning for Image Recognition"): the sum of its
 * layers and of what goes past them. Its row and options stand where lists of layers are read
 * (models/sequential.c), since it has two of them. */
#include "core/backend/operation.h"
#include "models/layer.h"

/* --- the shortcut ----------------------------------------------------------------------------- */

/* The first norm of a block; a later one may begin at zero, so that the block begins as nothing. */
static const struct dpt_layer *first_norm(const struct dpt_layer_list *list)
{
    const struct dpt_layer *found = NULL;
    const struct dpt_layer_list *in;
    const char *option;

    for (size_t i = 0; i < list->n && found == NULL; i++) {
        const struct dpt_layer *layer = &list->at[i];

        if (layer->type->op < DPT_OP_COUNT &&
            dpt_operations[layer->type->op]->kind == DPT_CLASS_NORM)
            return layer;
        for (size_t k = 0; found == NULL && (in = dpt_layer_inner(layer, k, &option)); k++)
            found = first_norm(in);
    }
    return found;
}

/* The stride by which a window of 1 makes `out` numbers of `in`, or 0. */
static int32_t stride_between(int32_t in, int32_t out)
{
    const int32_t stride = (in + out - 1) / out;

    return (in + stride - 1) / stride == out ? stride : 0;
}

/* Writes the layers that give the shape `to` of the shape `from`. */
static bool push_projection(struct dpt_layer_list *list, const struct dpt_shape *to,
                            struct dpt_pair stride)
{
    struct dpt_conv_options *conv;
    struct dpt_dense_options *dense;

    if (to->flat) {
        dense = dpt_layers_push_dense(list, to->c, NULL);
        if (dense == NULL)
            return false;
        dense->bias = false;
        return true;
    }
    conv = dpt_layers_push_conv(list, to->c, 1, 1, NULL);
    if (conv == NULL)
        return false;
    conv->stride = stride;
    conv->bias = false;
    return true;
}

static enum dpt_status add_projection(struct dpt_builder *b, const struct dpt_residual_options *o,
                                      const struct dpt_shape *to, const char *prefix,
                                      struct dpt_error *err)
{
    const struct dpt_shape *from = dpt_builder_shape(b);
    const struct dpt_layer *norm = first_norm(&o->layers), *block = b->here.layer;
    const struct dpt_pair stride = {
        {stride_between(from->h, to->h), stride_between(from->w, to->w)}};
    struct dpt_layer_list list = {.region = b->region};
    char in[40], out[40];
    enum dpt_status status = DPT_OK;

    if (from->flat != to->flat || stride.at[0] == 0 || stride.at[1] == 0)
        return dpt_builder_fail(b, err,
                                "its layers turn %s into %s, which no 1x1 convolution does: give "
                                "the layers that do (`shortcut: [...]`)",
                                dpt_shape_text(from, in), dpt_shape_text(to, out));
    if (!push_projection(&list, to, stride) ||
        (norm != NULL && dpt_layers_push(&list, norm->type) == NULL))
        return dpt_fail_memory(err, "the model's layers", 0);
    if (norm != NULL)
        list.at[list.n - 1].options = norm->options;
    for (size_t i = 0; i < list.n; i++)
        list.at[i].at = block->at;
    DPT_TRY(dpt_builder_layers(b, &list, prefix, err));
out:
    return status;
}

/* --- the block -------------------------------------------------------------------------------- */

static bool same_shape(const struct dpt_shape *a, const struct dpt_shape *b)
{
    return a->c == b->c && a->h == b->h && a->w == b->w && a->flat == b->flat;
}

/* Where an option of the block stands; NULL in a short form's. Out of memory: region->failed. */
static const char *option_path(const struct dpt_builder *b, const char *option)
{
    if (b->here.prefix == NULL)
        return NULL;
    return dpt_region_printf(b->region, "%s[%zu].residual.%s", b->here.prefix, b->here.index,
                             option);
}

enum dpt_status dpt_residual_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                 struct dpt_error *err)
{
    const struct dpt_residual_options *o = layer->options;
    const struct dpt_layer_place block = b->here;
    const char *layers_path = option_path(b, "layers"), *path = option_path(b, "shortcut");
    const int32_t start = b->last;
    enum dpt_status status = DPT_OK;
    int32_t end, other;
    char in[40], out[40];

    if (b->region->failed)
        DPT_TRY(dpt_fail_memory(err, "the model's layers", 0));
    DPT_TRY(dpt_builder_layers(b, &o->layers, layers_path, err));
    end = b->last;
    b->last = start;
    b->here = block;
    if (o->shortcut == DPT_SHORTCUT_LAYERS)
        DPT_TRY(dpt_builder_layers(b, &o->beside, path, err));
    else if (o->shortcut == DPT_SHORTCUT_AUTO &&
             !same_shape(dpt_builder_shape(b), &b->graph->nodes[end].out))
        DPT_TRY(add_projection(b, o, &b->graph->nodes[end].out, path, err));
    other = b->last;
    b->last = end;
    b->here = block;
    if (!same_shape(dpt_builder_shape(b), &b->graph->nodes[other].out))
        DPT_TRY(dpt_builder_fail(
            b, err, "its layers give %s, its shortcut %s: they must be equal%s",
            dpt_shape_text(dpt_builder_shape(b), out),
            dpt_shape_text(&b->graph->nodes[other].out, in),
            o->shortcut == DPT_SHORTCUT_NONE ? " (`shortcut: auto` puts a projection there)" : ""));
    DPT_TRY(dpt_builder_join(b, DPT_OP_ADD, b->here.name, other, err));
out:
    return status;
}

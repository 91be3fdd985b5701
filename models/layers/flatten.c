#include "models/layer.h"

static const struct dpt_option options[] = {DPT_LAYER_NAME_ROW, {0}};

static enum dpt_status flatten_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                   struct dpt_error *err)
{
    struct dpt_graph_node node = dpt_builder_node(b, DPT_OP_FLATTEN);

    (void)layer;
    node.out =
        (struct dpt_shape){.c = (int32_t)dpt_shape_size(&node.in), .h = 1, .w = 1, .flat = true};
    return dpt_builder_add(b, &node, err);
}

const struct dpt_layer_type dpt_layer_flatten = {
    .name = "flatten",
    .summary = "channels x height x width as one vector",
    .options = options,
    .size = sizeof(struct dpt_layer_options),
    .add = flatten_add,
};

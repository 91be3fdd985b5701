#include "models/layer.h"

static const struct dpt_option options[] = {DPT_LAYER_NAME_ROW, {0}};

static enum dpt_status global_avgpool_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                          struct dpt_error *err)
{
    struct dpt_graph_node node = dpt_builder_node(b, DPT_OP_GLOBAL_AVGPOOL);
    enum dpt_status status;

    (void)layer;
    DPT_TRY(dpt_builder_need_planes(b, err));
    node.out = (struct dpt_shape){.c = node.in.c, .h = 1, .w = 1, .flat = true};
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

const struct dpt_layer_type dpt_layer_global_avgpool = {
    .name = "global_avgpool",
    .summary = "mean of each channel; gives a flat vector",
    .options = options,
    .size = sizeof(struct dpt_layer_options),
    .add = global_avgpool_add,
};

#include "models/layer.h"

static const struct dpt_option options[] = {DPT_LAYER_NAME_ROW, {0}};

static enum dpt_status global_avgpool_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                          struct dpt_error *err)
{
    enum dpt_status status;

    DPT_TRY(dpt_builder_need_planes(b, err));
    DPT_TRY(dpt_layer_add(b, layer, err));
out:
    return status;
}

const struct dpt_layer_type dpt_layer_global_avgpool = {
    .name = "global_avgpool",
    .summary = "mean of each channel; gives a flat vector",
    .op = DPT_OP_GLOBAL_AVGPOOL,
    .options = options,
    .size = sizeof(struct dpt_attribute_options),
    .add = global_avgpool_add,
};

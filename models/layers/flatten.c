#include "models/layer.h"

static const struct dpt_option options[] = {DPT_LAYER_NAME_ROW, {0}};

const struct dpt_layer_type dpt_layer_flatten = {
    .name = "flatten",
    .summary = "channels x height x width as one vector",
    .op = DPT_OP_FLATTEN,
    .options = options,
    .size = sizeof(struct dpt_attribute_options),
    .add = dpt_layer_add,
};

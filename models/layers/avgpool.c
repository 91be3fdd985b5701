#include "models/layers/pool.h"

static enum dpt_status avgpool_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                   struct dpt_error *err)
{
    return dpt_layer_pool_add(b, layer, DPT_OP_AVGPOOL, err);
}

const struct dpt_layer_type dpt_layer_avgpool = {
    .name = "avgpool",
    .summary = "mean of each window, padding counted as zeros",
    .options = dpt_layer_pool_options,
    .size = sizeof(struct dpt_layer_pool_options),
    .main = "size",
    .add = avgpool_add,
};

#include "models/layers/pool.h"

static enum dpt_status maxpool_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                   struct dpt_error *err)
{
    return dpt_layer_pool_add(b, layer, DPT_OP_MAXPOOL, err);
}

const struct dpt_layer_type dpt_layer_maxpool = {
    .name = "maxpool",
    .summary = "largest value of each window",
    .options = dpt_layer_pool_options,
    .size = sizeof(struct dpt_layer_pool_options),
    .main = "size",
    .add = maxpool_add,
};

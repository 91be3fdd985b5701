#include "models/layer.h"

// clang-format off
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "eps", .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_attribute_options, attribute[0]), .fallback = "1e-5",
     .min = 1e-12, .max = 1, .help = "what is added to the variance"},
    {0},
};
// clang-format on

const struct dpt_layer_type dpt_layer_layernorm = {
    .name = "layernorm",
    .summary = "all numbers of a sample to mean 0 and variance 1, then weight and bias of each "
               "(Ba et al. 2016)",
    .op = DPT_OP_LAYERNORM,
    .options = options,
    .size = sizeof(struct dpt_attribute_options),
    .add = dpt_layer_add,
};

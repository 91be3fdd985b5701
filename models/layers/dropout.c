#include "models/layer.h"

/* A rate of 1 would divide by zero; what is allowed ends just below it. */
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "rate",
     .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_attribute_options, attribute[0]),
     .fallback = "0.5",
     .min = 0,
     .max = 0.99,
     .help = "probability that a value becomes zero while training"},
    {0},
};

const struct dpt_layer_type dpt_layer_dropout = {
    .name = "dropout",
    .summary = "zeros values at random while training (Srivastava et al. 2014)",
    .op = DPT_OP_DROPOUT,
    .options = options,
    .size = sizeof(struct dpt_attribute_options),
    .main = "rate",
    .add = dpt_layer_add,
};

#include "models/layer.h"

/* A rate of 1 would divide by zero; what is allowed ends just below it. */
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "rate",
     .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_dropout_options, rate),
     .fallback = "0.5",
     .min = 0,
     .max = 0.99,
     .help = "probability that a value becomes zero while training"},
    {0},
};

static enum dpt_status dropout_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                   struct dpt_error *err)
{
    const struct dpt_dropout_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b, DPT_OP_DROPOUT);

    node.rate = (float)o->rate;
    node.out = node.in;
    return dpt_builder_add(b, &node, err);
}

const struct dpt_layer_type dpt_layer_dropout = {
    .name = "dropout",
    .summary = "zeros values at random while training (Srivastava et al. 2014)",
    .options = options,
    .size = sizeof(struct dpt_dropout_options),
    .main = "rate",
    .add = dropout_add,
};

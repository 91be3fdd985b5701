#include "models/layer.h"

/* Four functions of one number: nothing differs between their layers but the operation. */

static const struct dpt_option options[] = {DPT_LAYER_NAME_ROW, {0}};

static enum dpt_status add(struct dpt_builder *b, enum dpt_op op, struct dpt_error *err)
{
    struct dpt_graph_node node = dpt_builder_node(b, op);

    node.out = node.in;
    return dpt_builder_add(b, &node, err);
}

#define ACTIVATION(lower, upper, text)                                                             \
    static enum dpt_status lower##_add(struct dpt_builder *b, const struct dpt_layer *layer,       \
                                       struct dpt_error *err)                                      \
    {                                                                                              \
        (void)layer;                                                                               \
        return add(b, DPT_OP_##upper, err);                                                        \
    }                                                                                              \
    const struct dpt_layer_type dpt_layer_##lower = {                                              \
        .name = #lower,                                                                            \
        .summary = text,                                                                           \
        .options = options,                                                                        \
        .size = sizeof(struct dpt_layer_options),                                                  \
        .add = lower##_add,                                                                        \
    };

ACTIVATION(relu, RELU, "max(0, x)")
ACTIVATION(gelu, GELU, "x Phi(x), with erf (Hendrycks & Gimpel 2016)")
ACTIVATION(tanh, TANH, "hyperbolic tangent")
ACTIVATION(sigmoid, SIGMOID, "1 / (1 + exp(-x))")

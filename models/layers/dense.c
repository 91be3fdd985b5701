#include "models/layer.h"

// clang-format off
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_OUTPUTS_ROW(struct dpt_dense_options),
    {.name = "bias", .type = DPT_OPT_BOOL, .offset = offsetof(struct dpt_dense_options, bias),
     .fallback = "true", .help = "add a learned number to each output"},
    DPT_INITIALIZER_ROW(struct dpt_dense_options, init, "he"),
    {0},
};
// clang-format on

static enum dpt_status dense_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                 struct dpt_error *err)
{
    const struct dpt_dense_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b);
    enum dpt_status status;
    char shape[40];

    if (!node.in.flat)
        return dpt_builder_fail(b, err, "needs a flat input, gets %s: put `flatten` before it",
                                dpt_shape_text(&node.in, shape));
    if (o->outputs == 0)
        return dpt_builder_fail(b, err,
                                "its outputs are left to the data, which do not have their number");
    node.out.c = (int32_t)o->outputs;
    DPT_TRY(dpt_builder_tensors(b, &node, &o->init, o->bias, err));
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

DPT_LAYER(DENSE, dense, options, struct dpt_dense_options,
          .summary = "fully connected: y = W x + b", .main = "outputs", .add = dense_add);

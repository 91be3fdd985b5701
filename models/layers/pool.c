/* Pools of a window: nothing differs between them but the operation. */
#include "models/layer.h"

// clang-format off
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_PAIR_ROW("size", struct dpt_layer_pool_options, size, NULL, "size of the window"),
    {.name = "stride", .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_layer_pool_options, stride),
     .fallback = "auto", .read = dpt_read_pair_or_auto, .alternatives = &dpt_pair_or_auto_alternatives,
     .value_text = "N, [height, width] or auto",
     .help = "step of the window; auto: its size"},
    DPT_PADDING_ROW(struct dpt_layer_pool_options, "0",
                    "border around the input, less than the size"),
    {0},
};
// clang-format on

static enum dpt_status add(struct dpt_builder *b, const struct dpt_layer *layer,
                           struct dpt_error *err)
{
    const struct dpt_layer_pool_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b);
    enum dpt_status status;

    for (int i = 0; i < 2; i++) {
        /* A border as wide as the window would hold windows without any input in them. */
        if (!o->padding.same && o->padding.pair.at[i] >= o->size.at[i])
            return dpt_builder_fail(b, err, "padding %dx%d must be smaller than the window %dx%d",
                                    (int)o->padding.pair.at[0], (int)o->padding.pair.at[1],
                                    (int)o->size.at[0], (int)o->size.at[1]);
        node.window.kernel[i] = o->size.at[i];
        node.window.stride[i] = o->stride.at[i] != 0 ? o->stride.at[i] : o->size.at[i];
        node.window.dilation[i] = 1;
    }
    node.window.groups = 1;
    DPT_TRY(dpt_builder_window(b, &node, &o->padding, err));
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

#define POOL(NAME, lower, text)                                                                    \
    DPT_LAYER(NAME, lower, options, struct dpt_layer_pool_options, .summary = text,                \
              .main = "size", .planes = true, .add = add)
POOL(MAXPOOL, maxpool, "largest value of each window");
POOL(AVGPOOL, avgpool, "mean of each window, padding counted as zeros");

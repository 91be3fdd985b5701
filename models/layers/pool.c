#include "models/layers/pool.h"

// clang-format off
const struct dpt_option dpt_layer_pool_options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "size", .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_layer_pool_options, size),
     .read = dpt_read_pair, .forms = &dpt_pair_forms,
     .form = "N or [height, width]", .help = "size of the window"},
    {.name = "stride", .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_layer_pool_options, stride),
     .fallback = "auto", .read = dpt_read_pair_or_auto, .forms = &dpt_pair_or_auto_forms,
     .form = "N, [height, width] or auto",
     .help = "step of the window; auto: its size"},
    {.name = "padding", .type = DPT_OPT_CUSTOM,
     .offset = offsetof(struct dpt_layer_pool_options, padding),
     .fallback = "0", .read = dpt_read_padding, .forms = &dpt_padding_forms,
     .form = "N, [height, width], same or valid",
     .help = "border around the input, less than the size"},
    {0},
};
// clang-format on

enum dpt_status dpt_layer_pool_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                   enum dpt_op op, struct dpt_error *err)
{
    const struct dpt_layer_pool_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b, op);
    enum dpt_status status;

    DPT_TRY(dpt_builder_need_planes(b, err));
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
    node.out.c = node.in.c;
    DPT_TRY(dpt_builder_window(b, &node, &o->padding, err));
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

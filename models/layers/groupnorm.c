#include "models/layer.h"

struct options {
    struct dpt_attribute_options attributes; /* with the layer's common ones */
    int64_t groups;
};

// clang-format off
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_ATTRIBUTE_ROW(0, "eps", "1e-5", 1e-12, 1, "number added to the variance"),
    DPT_SCALE_ROW,
    {.name = "groups", .type = DPT_OPT_INT, .offset = offsetof(struct options, groups),
     .min = 1, .max = DPT_MAX_CHANNELS,
     .help = "runs of channels that are normalised together; 1: all, channels: each"},
    {0},
};
// clang-format on

static enum dpt_status add(struct dpt_builder *b, const struct dpt_layer *layer,
                           struct dpt_error *err)
{
    const struct options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b);

    if (node.in.c % o->groups != 0)
        return dpt_builder_fail(b, err, "groups %lld does not divide the input's %d channels",
                                (long long)o->groups, (int)node.in.c);
    node.window.groups = (int32_t)o->groups;
    return dpt_builder_add_with(b, &node, &o->attributes, err);
}

DPT_LAYER(GROUPNORM, groupnorm, options, struct options,
          .summary =
              "groups of a sample's channels to mean 0 and variance 1, then weight and bias of "
              "each channel (Wu & He 2018)",
          .main = "groups", .planes = true, .add = add);

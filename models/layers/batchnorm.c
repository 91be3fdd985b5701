#include "models/layer.h"

// clang-format off
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_ATTRIBUTE_ROW(DPT_BATCHNORM_DECAY, "decay", "0.9", 0, 1,
                      "share of the running mean and variance that a step keeps; PyTorch's momentum "
                      "is 1 - decay"),
    DPT_ATTRIBUTE_ROW(DPT_BATCHNORM_EPS, "eps", "1e-5", 1e-12, 1, "number added to the variance"),
    DPT_STATISTICS_ROW(struct dpt_batchnorm_options, statistics),
    DPT_SCALE_ROW,
    {0},
};
// clang-format on

static enum dpt_status add(struct dpt_builder *b, const struct dpt_layer *layer,
                           struct dpt_error *err)
{
    const struct dpt_batchnorm_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b);

    node.whole_step = o->statistics == DPT_STATISTICS_BATCH;
    return dpt_builder_add_with(b, &node, &o->attributes, err);
}

void dpt_layers_set_statistics(const struct dpt_layer_list *list, int statistics)
{
    const struct dpt_layer_list *inner;
    const char *option;

    for (size_t i = 0; i < list->n; i++) {
        const struct dpt_layer *layer = &list->at[i];

        if (layer->type == &dpt_layer_batchnorm)
            ((struct dpt_batchnorm_options *)layer->options)->statistics = statistics;
        for (size_t k = 0; (inner = dpt_layer_inner(layer, k, &option)) != NULL; k++)
            dpt_layers_set_statistics(inner, statistics);
    }
}

DPT_LAYER(BATCHNORM, batchnorm, options, struct dpt_batchnorm_options,
          .summary =
              "each channel of a micro-batch, or synchronized of the global batch, to mean 0 "
              "and variance 1, then weight and bias; evaluation uses running statistics (Ioffe "
              "& Szegedy 2015)",
          .add = add);

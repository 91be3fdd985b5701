#include "models/layer.h"

static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_ATTRIBUTE_ROW(DPT_BATCHNORM_DECAY, "decay", "0.9", 0, 1,
                      "how much of the running mean and variance a step keeps; PyTorch's momentum "
                      "is 1 - decay"),
    DPT_ATTRIBUTE_ROW(DPT_BATCHNORM_EPS, "eps", "1e-5", 1e-12, 1, "what is added to the variance"),
    {0},
};

const struct dpt_layer_type dpt_layer_batchnorm = {
    .name = "batchnorm",
    .summary = "each channel of a micro-batch to mean 0 and variance 1, then weight and bias; "
               "evaluation goes by running statistics (Ioffe & Szegedy 2015)",
    .op = DPT_OP_BATCHNORM,
    .options = options,
    .size = sizeof(struct dpt_attribute_options),
    .add = dpt_layer_with_attributes,
};

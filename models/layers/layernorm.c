#include "models/layer.h"

static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_ATTRIBUTE_ROW(0, "eps", "1e-5", 1e-12, 1, "number added to the variance"),
    DPT_SCALE_ROW,
    {0},
};

DPT_LAYER(LAYERNORM, layernorm, options, struct dpt_attribute_options,
          .summary =
              "all numbers of a sample to mean 0 and variance 1, then weight and bias of each "
              "(Ba et al. 2016)",
          .add = dpt_layer_with_attributes);

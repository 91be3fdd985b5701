/* Layers that say nothing but their operation's attributes, a row each; those of
 * core/backend/activations.h among them. A bare value stands for the one option that some have. */
#include "models/layer.h"

/* X(NAME, name, summary, planes, options). A rate of 1 would divide by zero. */
// clang-format off
#define LAYERS(X)                                                                                  \
    X(FLATTEN, flatten, "channels x height x width as one vector", false, ())                      \
    X(GLOBAL_AVGPOOL, global_avgpool, "mean of each channel; gives a flat vector", true, ())       \
    X(DROPOUT, dropout, "sets random values to zero in training (Srivastava et al. 2014)", false,     \
      (DPT_ATTRIBUTE(0, "rate", "0.5", 0, 0.99,                                                    \
                     "probability that a value becomes zero while training")))                     \
    X(PRELU, prelu,                                                                                \
      "x, or slope x where x < 0, a slope for each channel that is learned (He et al. 2015)",      \
      false, (DPT_ATTRIBUTE(0, "slope", "0.25", -1000, 1000, "initial slope")))                    \
    DPT_ACTIVATIONS(ACTIVATION, X)
#define ACTIVATION(X, NAME, lower, text, keeps, traits, forward, backward, attributes, onnx)       \
    X(NAME, lower, text, false, attributes)

#define DPT_ATTRIBUTE(k, text, otherwise, least, most, what)                                       \
    DPT_ATTRIBUTE_ROW(k, text, otherwise, least, most, what),
#define X(NAME, lower, text, planes_, attributes)                                                  \
    static const struct dpt_option lower##_options[] = {                                           \
        DPT_LAYER_NAME_ROW, DPT_BARE attributes {0}};
LAYERS(X)
#undef X
#undef DPT_ATTRIBUTE
// clang-format on

#define DPT_ATTRIBUTE(k, text, otherwise, least, most, what) text
#define X(NAME, lower, text, planes_, attributes)                                                  \
    static const char lower##_main[] = "" DPT_BARE attributes;                                     \
    DPT_LAYER(NAME, lower, lower##_options, struct dpt_attribute_options, .summary = text,         \
              .main = sizeof lower##_main > 1 ? lower##_main : NULL, .planes = planes_,            \
              .add = dpt_layer_with_attributes);
LAYERS(X)

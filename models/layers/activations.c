#include "models/layer.h"

/* The layers of core/backend/activations.h: nothing differs between them but the operation. A bare
 * value is the one option that some have. */

// clang-format off
#define DPT_ATTRIBUTE(k, text, otherwise, least, most, what)                                       \
    {.name = text, .type = DPT_OPT_REAL,                                                           \
     .offset = offsetof(struct dpt_attribute_options, attribute[k]),                               \
     .fallback = otherwise, .min = least, .max = most, .help = what},
#define X(C, NAME, lower, text, keeps, traits, forward, backward, attributes, onnx)                \
    static const struct dpt_option lower##_options[] = {                                           \
        DPT_LAYER_NAME_ROW, DPT_BARE attributes {0}};
DPT_ACTIVATIONS(X, 0)
#undef X
#undef DPT_ATTRIBUTE
// clang-format on

#define DPT_ATTRIBUTE(k, text, otherwise, least, most, what) text
#define X(C, NAME, lower, text, keeps, traits, forward, backward, attributes, onnx)                \
    static const char lower##_main[] = "" DPT_BARE attributes;                                     \
    const struct dpt_layer_type dpt_layer_##lower = {                                              \
        .name = #lower,                                                                            \
        .summary = text,                                                                           \
        .op = DPT_OP_##NAME,                                                                       \
        .options = lower##_options,                                                                \
        .size = sizeof(struct dpt_attribute_options),                                              \
        .main = sizeof lower##_main > 1 ? lower##_main : NULL,                                     \
        .add = dpt_layer_add,                                                                      \
    };
DPT_ACTIVATIONS(X, 0)

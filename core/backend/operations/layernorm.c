#include "core/backend/operation.h"

#include <string.h>

/* One of each for every number of a sample. */
static int tensors(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    const struct dpt_shape *s = &node->in;
    const struct dpt_tensor one = {
        .n_dims = s->flat ? 1 : 3, .dims = {s->c, s->h, s->w}, .fan_in = 1, .fan_out = 1};

    t[0] = t[1] = one;
    strcpy(t[0].name, "weight");
    strcpy(t[1].name, "bias");
    t[0].init.value = 1;
    return 2;
}

const struct dpt_operation dpt_operation_layernorm = {
    .name = "layernorm",
    .kind = DPT_CLASS_NORM,
    .keeps = DPT_KEEPS_INPUT | DPT_KEEPS_STATISTICS,
    .traits = DPT_EXACT,
    .attributes = {"eps"},
    .shape = dpt_shape_same,
    .tensors = tensors,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "LayerNormalization",
              .with = {{.source = DPT_ONNX_WEIGHT}, {.source = DPT_ONNX_BIAS}},
              .attribute = {{.name = "axis", .number = 1},
                            {.name = "epsilon", .value = DPT_ONNX_FLOAT}}}},
};

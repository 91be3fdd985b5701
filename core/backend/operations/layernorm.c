/* Norms by the statistics of a sample alone. */
#include "core/backend/operation.h"

#include <string.h>

static int weight_and_bias(const struct dpt_tensor *each, struct dpt_tensor *t)
{
    t[0] = t[1] = *each;
    strcpy(t[0].name, "weight");
    strcpy(t[1].name, "bias");
    t[0].init.value = 1;
    return 2;
}

/* One of each for every number of a sample. */
static int of_numbers(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    const struct dpt_shape *s = &node->in;
    const struct dpt_tensor each = {
        .n_dims = s->flat ? 1 : 3, .dims = {s->c, s->h, s->w}, .fan_in = 1, .fan_out = 1};

    return weight_and_bias(&each, t);
}

static int of_channels(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    const struct dpt_tensor each = {.n_dims = 1, .dims = {node->in.c}, .fan_in = 1, .fan_out = 1};

    return weight_and_bias(&each, t);
}

const struct dpt_operation dpt_operation_layernorm = {
    .name = "layernorm",
    .kind = DPT_CLASS_NORM,
    .keeps = DPT_KEEPS_INPUT | DPT_KEEPS_STATISTICS,
    .traits = DPT_EXACT,
    .attributes = {"eps"},
    .shape = dpt_shape_same,
    .tensors = of_numbers,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "LayerNormalization",
              .with = {{.source = DPT_ONNX_WEIGHT}, {.source = DPT_ONNX_BIAS}},
              .attribute = {{.name = "axis", .number = 1},
                            {.name = "epsilon", .value = DPT_ONNX_FLOAT}}}},
};

/* GroupNormalization came with operator set 18. */
const struct dpt_operation dpt_operation_groupnorm = {
    .name = "groupnorm",
    .kind = DPT_CLASS_NORM,
    .keeps = DPT_KEEPS_INPUT | DPT_KEEPS_STATISTICS,
    .traits = DPT_EXACT,
    .attributes = {"eps"},
    .shape = dpt_shape_same,
    .tensors = of_channels,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "Reshape",
              .result = "groups",
              .with = {{.source = DPT_ONNX_GROUPS_SHAPE, .name = "groups_shape"}}},
             {.type = "InstanceNormalization",
              .result = "normal",
              .with = {{DPT_ONNX_EACH_GROUP, "ones", 1}, {DPT_ONNX_EACH_GROUP, "zeros", 0}},
              .attribute = {{.name = "epsilon", .value = DPT_ONNX_FLOAT}}},
             {.type = "Reshape",
              .result = "planes",
              .with = {{.source = DPT_ONNX_OUT_SHAPE, .name = "shape"}}},
             {.type = "Mul", .result = "scaled", .with = {{.source = DPT_ONNX_WEIGHT}}},
             {.type = "Add", .with = {{.source = DPT_ONNX_BIAS}}}},
    .onnx_planes = true,
};

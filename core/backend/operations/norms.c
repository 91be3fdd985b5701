/* Norms: by the statistics of a channel, or by those of a sample alone. */
#include "core/backend/operation.h"

#include <string.h>

/* The first n of a norm's tensors, each like `each`. */
static int fill(const struct dpt_tensor *each, int n, struct dpt_tensor *t)
{
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};

    for (int k = 0; k < n; k++) {
        t[k] = *each;
        t[k].fan_in = t[k].fan_out = 1;
        t[k].state = k >= 2;
        t[k].init.value = k == 0 || k == 3;
        strcpy(t[k].name, names[k]);
    }
    return n;
}

/* One of each for every number of a sample. */
static int of_numbers(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    const struct dpt_shape *s = &node->in;

    return fill(&(struct dpt_tensor){.n_dims = s->flat ? 1 : 3, .dims = {s->c, s->h, s->w}}, 2, t);
}

/* One of each for every channel, or every number of a flat vector. */
static int of_channels(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    return fill(&(struct dpt_tensor){.n_dims = 1, .dims = {node->in.c}},
                node->op == DPT_OP_BATCHNORM ? 4 : 2, t);
}

/* A norm, with the fields that it has of its own. */
#define NORM(norm, ...)                                                                            \
    const struct dpt_operation dpt_operation_##norm = {.name = #norm,                              \
                                                       .kind = DPT_CLASS_NORM,                     \
                                                       .keeps =                                    \
                                                           DPT_KEEPS_INPUT | DPT_KEEPS_STATISTICS, \
                                                       .traits = DPT_EXACT,                        \
                                                       .shape = dpt_shape_same,                    \
                                                       __VA_ARGS__}

NORM(batchnorm, .attributes = {[DPT_BATCHNORM_EPS] = "eps", [DPT_BATCHNORM_DECAY] = "decay"},
     .tensors = of_channels, .reached = {0.4, 0.5, 0.5e-6},
     .onnx = {{.type = "BatchNormalization",
               .with = {{.source = DPT_ONNX_WEIGHT},
                        {.source = DPT_ONNX_BIAS},
                        {.source = DPT_ONNX_MEAN},
                        {.source = DPT_ONNX_VARIANCE}},
               .attribute = {
                   {.name = "epsilon", .value = DPT_ONNX_FLOAT, .number = DPT_BATCHNORM_EPS},
                   {.name = "momentum", .value = DPT_ONNX_FLOAT, .number = DPT_BATCHNORM_DECAY}}}});

NORM(layernorm, .attributes = {"eps"}, .tensors = of_numbers, .reached = {0.3, 0.3, 0.5e-6},
     .onnx = {{.type = "LayerNormalization",
               .with = {{.source = DPT_ONNX_WEIGHT}, {.source = DPT_ONNX_BIAS}},
               .attribute = {{.name = "axis", .number = 1},
                             {.name = "epsilon", .value = DPT_ONNX_FLOAT}}}});

/* GroupNormalization came with operator set 18. */
NORM(groupnorm, .attributes = {"eps"}, .tensors = of_channels, .reached = {0.3, 0.3, 0.5e-6},
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
     .onnx_planes = true);

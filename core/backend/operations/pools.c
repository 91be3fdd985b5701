#include "core/backend/operation.h"

static void window_shape(struct dpt_graph_node *node)
{
    node->out.c = node->in.c;
    dpt_shape_window(node);
}

static void vector_of_channels(struct dpt_graph_node *node)
{
    dpt_shape_vector(node, node->in.c);
}

const struct dpt_operation dpt_operation_maxpool = {
    .name = "maxpool",
    .kind = DPT_CLASS_POOL,
    .keeps = DPT_KEEPS_INDEX,
    .traits = DPT_EXACT,
    .shape = window_shape,
    .reached = {0.4, 0.4, 0.5e-6},
    .onnx = {{.type = "MaxPool", .attribute = {DPT_ONNX_WINDOW}}},
};

const struct dpt_operation dpt_operation_avgpool = {
    .name = "avgpool",
    .kind = DPT_CLASS_POOL,
    .traits = DPT_EXACT,
    .shape = window_shape,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "AveragePool",
              .attribute = {DPT_ONNX_WINDOW, {.name = "count_include_pad", .number = 1}}}},
};

const struct dpt_operation dpt_operation_global_avgpool = {
    .name = "global_avgpool",
    .kind = DPT_CLASS_POOL,
    .traits = DPT_EXACT,
    .shape = vector_of_channels,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "GlobalAveragePool", .result = "mean"},
             {.type = "Flatten", .attribute = {{.name = "axis", .number = 1}}}},
};

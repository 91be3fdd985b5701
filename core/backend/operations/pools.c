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

static void given_area(struct dpt_graph_node *node)
{
    node->out.c = node->in.c;
    node->out.flat = false;
}

static void multiplied(struct dpt_graph_node *node)
{
    node->out = node->in;
    node->out.h *= node->window.kernel[0];
    node->out.w *= node->window.kernel[1];
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

/* ONNX has no such pool: a mean along each axis. */
const struct dpt_operation dpt_operation_adaptive_avgpool = {
    .name = "adaptive_avgpool",
    .kind = DPT_CLASS_POOL,
    .traits = DPT_EXACT,
    .shape = given_area,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "MatMul",
              .result = "columns",
              .with = {{.source = DPT_ONNX_COLUMN_MEANS, .name = "column_means"}}},
             {.type = "MatMul",
              .with = {{.source = DPT_ONNX_ROW_MEANS, .name = "row_means"}},
              .last = true}},
};

const struct dpt_operation dpt_operation_upsample = {
    .name = "upsample",
    .kind = DPT_CLASS_POOL,
    .traits = DPT_EXACT,
    .shape = multiplied,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "Resize", /* to the nearest by default */
              .with = {{.source = DPT_ONNX_LEFT_OUT},
                       {.source = DPT_ONNX_SCALES, .name = "scales"}}}},
};

const struct dpt_operation dpt_operation_bilinear = {
    .name = "bilinear",
    .kind = DPT_CLASS_POOL,
    .traits = DPT_EXACT,
    .shape = multiplied,
    .reached = {0.3, 0.3, 0.5e-6},
    .onnx = {{.type = "Resize", /* at half pixels by default */
              .with = {{.source = DPT_ONNX_LEFT_OUT},
                       {.source = DPT_ONNX_SCALES, .name = "scales"}},
              .attribute = {{.name = "mode", .value = DPT_ONNX_TEXT, .text = "linear"}}}},
};

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

/* Another pool, with the fields that it has of its own. */
#define POOL(pool, ...)                                                                            \
    const struct dpt_operation dpt_operation_##pool = {.name = #pool,                              \
                                                       .kind = DPT_CLASS_POOL,                     \
                                                       .traits = DPT_EXACT,                        \
                                                       .reached = {0.3, 0.3, 0.5e-6},              \
                                                       __VA_ARGS__}

POOL(avgpool, .shape = window_shape,
     .onnx = {{.type = "AveragePool",
               .attribute = {DPT_ONNX_WINDOW, {.name = "count_include_pad", .number = 1}}}});

POOL(global_avgpool, .shape = vector_of_channels,
     .onnx = {{.type = "GlobalAveragePool", .result = "mean"},
              {.type = "Flatten", .attribute = {{.name = "axis", .number = 1}}}});

/* ONNX has no such pool: a mean along each axis. */
POOL(adaptive_avgpool, .shape = given_area,
     .onnx = {{.type = "MatMul",
               .result = "columns",
               .with = {{.source = DPT_ONNX_COLUMN_MEANS, .name = "column_means"}}},
              {.type = "MatMul",
               .with = {{.source = DPT_ONNX_ROW_MEANS, .name = "row_means"}},
               .last = true}});

POOL(upsample, .shape = multiplied,
     .onnx = {
         {.type = "Resize", /* to the nearest by default */
          .with = {{.source = DPT_ONNX_LEFT_OUT}, {.source = DPT_ONNX_SCALES, .name = "scales"}}}});

POOL(bilinear, .shape = multiplied,
     .onnx = {
         {.type = "Resize", /* at half pixels by default */
          .with = {{.source = DPT_ONNX_LEFT_OUT}, {.source = DPT_ONNX_SCALES, .name = "scales"}},
          .attribute = {{.name = "mode", .value = DPT_ONNX_TEXT, .text = "linear"}}}});

#include "core/backend/operation.h"

static void shape(struct dpt_graph_node *node)
{
    dpt_shape_vector(node, node->out.c);
}

static int tensors(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    const int64_t inputs = dpt_shape_size(&node->in), outputs = node->out.c;

    t[0] = (struct dpt_tensor){.name = "weight",
                               .n_dims = 2,
                               .dims = {outputs, inputs},
                               .decay = true,
                               .fan_in = inputs,
                               .fan_out = outputs};
    t[1] = (struct dpt_tensor){
        .name = "bias", .n_dims = 1, .dims = {outputs}, .fan_in = inputs, .fan_out = outputs};
    return 2;
}

static double flops(const struct dpt_graph_node *node)
{
    return 2.0 * (double)dpt_shape_size(&node->in) * (double)dpt_shape_size(&node->out);
}

const struct dpt_operation dpt_operation_dense = {
    .name = "dense",
    .kind = DPT_CLASS_GEMM,
    .keeps = DPT_KEEPS_INPUT,
    .traits = DPT_EXACT,
    .shape = shape,
    .tensors = tensors,
    .flops = flops,
    .reached = {0.8, 0.8, 0.5e-6},
    .onnx = {{.type = "Gemm",
              .with = {{.source = DPT_ONNX_WEIGHT}, {.source = DPT_ONNX_BIAS}},
              .attribute = {{.name = "transB", .number = 1}}}},
};

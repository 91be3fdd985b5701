#include "core/backend/operation.h"

/* Without decay, as He et al. 2015 have it: decay would make a ReLU of it. */
static int tensors(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    t[0] = (struct dpt_tensor){.name = "weight",
                               .n_dims = 1,
                               .dims = {node->in.c},
                               .init = {.value = node->attribute[0]},
                               .fan_in = 1,
                               .fan_out = 1};
    return 1;
}

const struct dpt_operation dpt_operation_prelu = {
    .name = "prelu",
    .kind = DPT_CLASS_POINTWISE,
    .keeps = DPT_KEEPS_INPUT,
    .traits = DPT_EXACT,
    .attributes = {"slope"},
    .shape = dpt_shape_same,
    .tensors = tensors,
    .reached = {0.3, 0.3, 0.3e-6},
    .onnx = {{.type = "PRelu", .with = {{.source = DPT_ONNX_WEIGHT}}}},
    .onnx_planes = true,
};

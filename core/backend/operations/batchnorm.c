#include "core/backend/operation.h"

#include <string.h>

/* One of each for every channel, or every number of a flat vector. */
static int tensors(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
    enum { TENSORS = sizeof names / sizeof *names, STATE = 2 };

    for (int k = 0; k < TENSORS; k++) {
        t[k] = (struct dpt_tensor){
            .n_dims = 1, .dims = {node->in.c}, .fan_in = 1, .fan_out = 1, .state = k >= STATE};
        strcpy(t[k].name, names[k]);
    }
    t[0].init.value = t[3].init.value = 1;
    return TENSORS;
}

const struct dpt_operation dpt_operation_batchnorm = {
    .name = "batchnorm",
    .kind = DPT_CLASS_NORM,
    .keeps = DPT_KEEPS_INPUT | DPT_KEEPS_STATISTICS,
    .traits = DPT_EXACT,
    .attributes = {[DPT_BATCHNORM_EPS] = "eps", [DPT_BATCHNORM_DECAY] = "decay"},
    .shape = dpt_shape_same,
    .tensors = tensors,
    .reached = {0.4, 0.5, 0.5e-6},
    .onnx = {{.type = "BatchNormalization",
              .with = {{.source = DPT_ONNX_WEIGHT},
                       {.source = DPT_ONNX_BIAS},
                       {.source = DPT_ONNX_MEAN},
                       {.source = DPT_ONNX_VARIANCE}},
              .attribute =
                  {{.name = "epsilon", .value = DPT_ONNX_FLOAT, .number = DPT_BATCHNORM_EPS},
                   {.name = "momentum", .value = DPT_ONNX_FLOAT, .number = DPT_BATCHNORM_DECAY}}}},
};

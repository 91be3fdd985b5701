#include "core/backend/operation.h"

static int tensors(const struct dpt_graph_node *node, struct dpt_tensor *t)
{
    const struct dpt_window *w = &node->window;
    const int64_t area = (int64_t)w->kernel[0] * w->kernel[1];

    t[0] = (struct dpt_tensor){
        .name = "weight",
        .n_dims = 4,
        .dims = {node->out.c, node->in.c / w->groups, w->kernel[0], w->kernel[1]},
        .decay = true,
        .fan_in = node->in.c / w->groups * area,
        .fan_out = node->out.c / w->groups * area,
    };
    t[1] = (struct dpt_tensor){.name = "bias",
                               .n_dims = 1,
                               .dims = {node->out.c},
                               .fan_in = t[0].fan_in,
                               .fan_out = t[0].fan_out};
    return 2;
}

/* Kernel positions that fall on the input, summed over the outputs along an axis. */
static double taps(const struct dpt_window *w, int axis, int32_t in, int32_t out)
{
    double sum = 0;

    for (int32_t o = 0; o < out; o++)
        for (int32_t k = 0; k < w->kernel[axis]; k++) {
            const int32_t at = o * w->stride[axis] + k * w->dilation[axis] - w->before[axis];

            sum += at >= 0 && at < in;
        }
    return sum;
}

static double flops(const struct dpt_graph_node *node)
{
    const struct dpt_window *w = &node->window;

    return 2.0 * taps(w, 0, node->in.h, node->out.h) * taps(w, 1, node->in.w, node->out.w) *
           node->in.c / w->groups * node->out.c;
}

const struct dpt_operation dpt_operation_conv = {
    .name = "conv",
    .kind = DPT_CLASS_CONV,
    .keeps = DPT_KEEPS_INPUT,
    .traits = DPT_EXACT,
    .shape = dpt_shape_window,
    .tensors = tensors,
    .flops = flops,
    .reached = {0.9, 1.2, 2e-6}, /* those before a max-pool leave out work */
    .onnx = {{.type = "Conv",
              .with = {{.source = DPT_ONNX_WEIGHT}, {.source = DPT_ONNX_BIAS}},
              .attribute = {DPT_ONNX_WINDOW,
                            {.name = "dilations", .value = DPT_ONNX_DILATIONS},
                            {.name = "group", .value = DPT_ONNX_GROUP}}}},
};

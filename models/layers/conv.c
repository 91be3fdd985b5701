#include "models/layer.h"

// clang-format off
static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "channels", .type = DPT_OPT_INT, .offset = offsetof(struct dpt_conv_options, channels),
     .min = 1, .max = DPT_MAX_CHANNELS, .help = "output channels"},
    DPT_PAIR_ROW("kernel", struct dpt_conv_options, kernel, "3", "size of the window"),
    DPT_PAIR_ROW("stride", struct dpt_conv_options, stride, "1", "step of the window"),
    DPT_PADDING_ROW(struct dpt_conv_options, "0",
                    "zeros around the input; same: output = input / stride, rounded up"),
    DPT_PAIR_ROW("dilation", struct dpt_conv_options, dilation, "1",
                 "distance of the window's taps"),
    {.name = "groups", .type = DPT_OPT_INT, .offset = offsetof(struct dpt_conv_options, groups),
     .fallback = "1", .min = 1, .max = DPT_MAX_CHANNELS,
     .help = "channels are split into groups that do not mix"},
    {.name = "bias", .type = DPT_OPT_BOOL, .offset = offsetof(struct dpt_conv_options, bias),
     .fallback = "true", .help = "adds a learned number to each output channel"},
    DPT_INITIALIZER_ROW(struct dpt_conv_options, init, "he"),
    {0},
};
// clang-format on

static enum dpt_status conv_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                struct dpt_error *err)
{
    const struct dpt_conv_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b);
    enum dpt_status status;

    if (node.in.c % o->groups != 0)
        return dpt_builder_fail(b, err, "groups %lld does not divide the input's %d channels",
                                (long long)o->groups, (int)node.in.c);
    if (o->channels % o->groups != 0)
        return dpt_builder_fail(b, err, "groups %lld does not divide %lld channels",
                                (long long)o->groups, (long long)o->channels);
    for (int i = 0; i < 2; i++) {
        node.window.kernel[i] = o->kernel.at[i];
        node.window.stride[i] = o->stride.at[i];
        node.window.dilation[i] = o->dilation.at[i];
    }
    node.window.groups = (int32_t)o->groups;
    node.out.c = (int32_t)o->channels;
    DPT_TRY(dpt_builder_window(b, &node, &o->padding, err));
    DPT_TRY(dpt_builder_tensors(b, &node, &o->init, o->bias, err));
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

const struct dpt_layer_type dpt_layer_conv = {
    .name = "conv",
    .summary = "2-D convolution (cross-correlation) of channels x height x width",
    .op = DPT_OP_CONV,
    .options = options,
    .size = sizeof(struct dpt_conv_options),
    .main = "channels",
    .planes = true,
    .add = conv_add,
};

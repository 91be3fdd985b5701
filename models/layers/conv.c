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
     .help = "groups of channels that do not mix"},
    {.name = "bias", .type = DPT_OPT_BOOL, .offset = offsetof(struct dpt_conv_options, bias),
     .fallback = "true", .help = "add a learned number to each output channel"},
    DPT_INITIALIZER_ROW(struct dpt_conv_options, init, "he"),
    {0},
};
// clang-format on

/* line: the weights have no height, as those of 1-D convolutions elsewhere. */
static enum dpt_status add(struct dpt_builder *b, const struct dpt_conv_options *o, bool line,
                           struct dpt_error *err)
{
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
    if (line) {
        struct dpt_tensor *weight = &b->graph->tensors[node.weight];

        weight->dims[2] = weight->dims[3];
        weight->n_dims = 3;
    }
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

static enum dpt_status conv_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                struct dpt_error *err)
{
    return add(b, layer->options, false, err);
}

DPT_LAYER(CONV, conv, options, struct dpt_conv_options,
          .summary = "2-D convolution (cross-correlation) of channels x height x width",
          .main = "channels", .planes = true, .add = conv_add);

/* --- along a line ----------------------------------------------------------------------------- */

/* Reads only the widths of the windows; heights are 1. */
static bool read_width(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                       void *dest)
{
    struct dpt_padding *padding = dest;

    if (node->kind != DPT_NODE_LIST)
        return dpt_read_padding(conf, node, path, padding);
    dpt_conf_mistake(conf, node, path, "expected one number, same or valid, got a list");
    return true;
}

static const char *const rules[] = {"same", "valid", NULL};
static const struct dpt_option widths[] = {
    {.name = "number", .type = DPT_OPT_INT, .min = 0, .max = DPT_MAX_KERNEL},
    {.name = "word", .type = DPT_OPT_CHOICE, .choices = rules},
    {0},
};
static const struct dpt_alternatives width_alternatives = {.either = widths};

struct line_options {
    struct dpt_layer_options common;
    int64_t channels, kernel, stride, dilation, groups;
    struct dpt_padding padding;
    bool bias;
    struct dpt_initializer init;
};

// clang-format off
#define LINE_ROW(text, member, otherwise, most, what)                                              \
    {.name = text, .type = DPT_OPT_INT, .offset = offsetof(struct line_options, member),           \
     .fallback = otherwise, .min = 1, .max = most, .help = what}

static const struct dpt_option line_options[] = {
    DPT_LAYER_NAME_ROW,
    LINE_ROW("channels", channels, NULL, DPT_MAX_CHANNELS, "output channels"),
    LINE_ROW("kernel", kernel, "3", DPT_MAX_KERNEL, "length of the window"),
    LINE_ROW("stride", stride, "1", DPT_MAX_KERNEL, "step of the window"),
    {.name = "padding", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct line_options, padding),
     .fallback = "0", .read = read_width, .alternatives = &width_alternatives,
     .value_text = "N, same or valid",
     .help = "zeros at both ends; same: output = input / stride, rounded up"},
    LINE_ROW("dilation", dilation, "1", DPT_MAX_KERNEL, "distance of the window's taps"),
    LINE_ROW("groups", groups, "1", DPT_MAX_CHANNELS,
             "groups of channels that do not mix"),
    {.name = "bias", .type = DPT_OPT_BOOL, .offset = offsetof(struct line_options, bias),
     .fallback = "true", .help = "add a learned number to each output channel"},
    DPT_INITIALIZER_ROW(struct line_options, init, "he"),
    {0},
};
// clang-format on

static enum dpt_status line_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                struct dpt_error *err)
{
    const struct line_options *o = layer->options;
    const struct dpt_shape *in = dpt_builder_shape(b);
    const struct dpt_conv_options conv = {
        .channels = o->channels,
        .groups = o->groups,
        .kernel = {{1, (int32_t)o->kernel}},
        .stride = {{1, (int32_t)o->stride}},
        .dilation = {{1, (int32_t)o->dilation}},
        .padding = {.same = o->padding.same, .pair = {{0, o->padding.pair.at[1]}}},
        .bias = o->bias,
        .init = o->init,
    };
    char shape[40];

    if (in->flat || in->h != 1)
        return dpt_builder_fail(b, err, "needs channels x 1 x length, gets %s: %s",
                                dpt_shape_text(in, shape),
                                b->last == 0 ? "give the data the shape [samples, channels, 1, "
                                               "length]"
                                             : "put it where planes are one row high");
    return add(b, &conv, true, err);
}

DPT_LAYER(CONV, conv1d, line_options, struct line_options,
          .summary = "1-D convolution (cross-correlation) of channels x 1 x length",
          .main = "channels", .add = line_add);

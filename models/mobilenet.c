/*
 * MobileNetV2 (Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", table
 * 2), with the dropout before its last layer. Layers have torchvision's names.
 */
#include "models/layer.h"

struct mobilenet_options {
    int64_t outputs;
    double dropout;
    struct dpt_initializer init;
    int statistics; /* of the batch norms */
};

/* A row of table 2: how many times a block widens its input, what it gives, how many there are, and
 * the first one's stride. */
static const struct {
    int wider, channels, blocks, stride;
} rows[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
            {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};

enum { STEM = 32, LAST = 1280, ROWS = sizeof rows / sizeof *rows };

struct conv {
    int channels, kernel, stride, groups;
};

/* A convolution without bias, and batch norm: `name` with the numbers first and first + 1. */
static bool push_conv(struct dpt_layer_list *list, const struct mobilenet_options *o,
                      struct conv shape, const char *name, int first)
{
    struct dpt_conv_options *conv =
        dpt_layers_push_conv(list, shape.channels, shape.kernel, shape.stride, &o->init);

    if (conv == NULL || !dpt_layers_name(list, "%s%d", name, first))
        return false;
    conv->groups = shape.groups;
    conv->bias = false;
    return dpt_layers_push(list, &dpt_layer_batchnorm) != NULL &&
           dpt_layers_name(list, "%s%d", name, first + 1);
}

/* Pushes a convolution, its norm, and a relu6 after it. */
static bool push_active(struct dpt_layer_list *list, const struct mobilenet_options *o,
                        struct conv shape, const char *name)
{
    return push_conv(list, o, shape, name, 0) && dpt_layers_push(list, &dpt_layer_relu6) != NULL;
}

/* Widened, a depthwise convolution, made narrow again. number: of the block. */
static bool push_layers(struct dpt_layer_list *list, const struct mobilenet_options *o, int number,
                        int in, int wider, struct conv out)
{
    struct dpt_region *region = list->region;
    const int wide = in * wider, widens = wider > 1;
    const char *block = dpt_region_printf(region, "features.%d.conv.", number);
    const char *first = dpt_region_printf(region, "features.%d.conv.0.", number);
    const char *second = dpt_region_printf(region, "features.%d.conv.1.", number);

    return !region->failed &&
           (!widens || push_active(list, o, (struct conv){wide, 1, 1, 1}, first)) &&
           push_active(list, o, (struct conv){wide, 3, out.stride, wide},
                       widens ? second : first) &&
           push_conv(list, o, (struct conv){out.channels, 1, 1, 1}, block, widens + 1);
}

static bool push_block(struct dpt_layer_list *list, const struct mobilenet_options *o, int number,
                       int in, int wider, struct conv out)
{
    struct dpt_residual_options *block;

    if (out.stride > 1 || in != out.channels)
        return push_layers(list, o, number, in, wider, out);
    block = dpt_layers_push(list, &dpt_layer_residual);
    if (block == NULL || !dpt_layers_name(list, "features.%d", number))
        return false;
    block->shortcut = DPT_SHORTCUT_NONE;
    block->layers.region = list->region;
    return push_layers(&block->layers, o, number, in, wider, out);
}

static bool mobilenet_expand(const void *options, const struct dpt_shape *input,
                             struct dpt_layer_list *list)
{
    const struct mobilenet_options *o = options;
    int number = 1, in = STEM;

    (void)input;
    if (!push_active(list, o, (struct conv){STEM, 3, 2, 1}, "features.0."))
        return false;
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < rows[r].blocks; k++) {
            const struct conv out = {rows[r].channels, 1, k == 0 ? rows[r].stride : 1, 1};

            if (!push_block(list, o, number++, in, rows[r].wider, out))
                return false;
            in = out.channels;
        }
    }
    if (!push_active(list, o, (struct conv){LAST, 1, 1, 1}, "features.18.") ||
        dpt_layers_push(list, &dpt_layer_global_avgpool) == NULL ||
        !dpt_layers_push_dropout(list, o->dropout))
        return false;
    dpt_layers_set_statistics(list, o->statistics);
    return dpt_layers_push_dense(list, o->outputs, &o->init) != NULL &&
           dpt_layers_name(list, "classifier.1");
}

// clang-format off
static const struct dpt_option mobilenet_v2_table[] = {
    {.name = "dropout", .type = DPT_OPT_REAL, .offset = offsetof(struct mobilenet_options, dropout),
     .fallback = "0.2", .min = 0, .max = 0.99, .help = "dropout rate before the last layer"},
    DPT_OUTPUTS_ROW(struct mobilenet_options),
    DPT_INITIALIZER_ROW(struct mobilenet_options, init, "he"),
    DPT_STATISTICS_ROW(struct mobilenet_options, statistics),
    {0},
};
// clang-format on

DPT_SHORT_FORM(mobilenet_v2,
               "inverted residual blocks of depthwise convolutions (Sandler et al. 2018)",
               struct mobilenet_options, mobilenet_expand);

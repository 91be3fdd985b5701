/*
 * Residual networks (He et al. 2015, "Deep Residual Learning for Image Recognition"): those of
 * table 1 for ImageNet, and those of section 4.2 for CIFAR-10, with projections where shapes
 * differ.
 *
 * As torchvision has the first ones: batch norm after every convolution, and a bottleneck's stride
 * in its 3x3 convolution. Layers have torchvision's names.
 */
#include "models/layer.h"

enum { STAGES = 4 };

/* A row a depth: blocks of each stage; `wide`: how many times its inner channels a bottleneck
 * gives, 1: two 3x3 convolutions instead. */
#define DEPTHS(X)                                                                                  \
    X(18, 64, 1, 2, 2, 2, 2)                                                                       \
    X(34, 64, 1, 3, 4, 6, 3)                                                                       \
    X(50, 64, 4, 3, 4, 6, 3)                                                                       \
    X(101, 64, 4, 3, 4, 23, 3)                                                                     \
    X(152, 64, 4, 3, 8, 36, 3)                                                                     \
    X(20, 16, 1, 3, 3, 3, 0)                                                                       \
    X(32, 16, 1, 5, 5, 5, 0)                                                                       \
    X(56, 16, 1, 9, 9, 9, 0)                                                                       \
    X(110, 16, 1, 18, 18, 18, 0)

static const struct depth {
    int channels, wide, blocks[STAGES];
} depths[] = {
#define X(depth, channels, wide, ...) {channels, wide, {__VA_ARGS__}},
    DEPTHS(X)
#undef X
};

struct resnet_options {
    int depth;
    int64_t outputs;
    struct dpt_initializer init;
    int statistics; /* of the batch norms */
    bool zero_init;
};

/* A convolution without bias that keeps height and width but for its stride, and batch norm after
 * it, called conv<number> and bn<number>. */
static bool push_conv(struct dpt_layer_list *list, const struct dpt_initializer *init,
                      const char *stage, int number, int channels, int kernel, int stride,
                      double scale)
{
    struct dpt_conv_options *conv = dpt_layers_push_conv(list, channels, kernel, stride, init);
    struct dpt_attribute_options *norm;

    if (conv == NULL || !dpt_layers_name(list, "%sconv%d", stage, number))
        return false;
    conv->bias = false;
    norm = dpt_layers_push(list, &dpt_layer_batchnorm);
    if (norm == NULL)
        return false;
    norm->scale = scale;
    return dpt_layers_name(list, "%sbn%d", stage, number);
}

/* A block is called "layer2.0". */
static bool push_block(struct dpt_layer_list *list, const struct depth *d,
                       const struct resnet_options *o, const char *name, int channels, int stride,
                       bool first)
{
    struct dpt_residual_options *block = dpt_layers_push(list, &dpt_layer_residual);
    const char *stage = dpt_region_printf(list->region, "%s.", name);
    const char *beside = dpt_region_printf(list->region, "%s.downsample.", name);
    const int kernels[2][3] = {{3, 3, 0}, {1, 3, 1}}, *kernel = kernels[d->wide > 1];
    const struct dpt_initializer *init = &o->init;
    const int inner = d->wide > 1 ? 3 : 2, strided = d->wide > 1 ? 2 : 1;

    if (block == NULL || stage == NULL || beside == NULL)
        return false;
    list->at[list->n - 1].name = name;
    block->layers.region = block->beside.region = list->region;
    for (int k = 1; k <= inner; k++)
        if (!push_conv(&block->layers, init, stage, k, k == 3 ? d->wide * channels : channels,
                       kernel[k - 1], k == strided ? stride : 1,
                       k == inner && o->zero_init ? 0 : 1) ||
            (k < inner && dpt_layers_push(&block->layers, &dpt_layer_relu) == NULL))
            return false;
    if (first && (stride > 1 || d->wide > 1)) {
        block->shortcut = DPT_SHORTCUT_LAYERS;
        if (!push_conv(&block->beside, init, stage, 0, d->wide * channels, 1, stride, 1))
            return false;
        block->beside.at[0].name = dpt_region_printf(list->region, "%s0", beside);
        block->beside.at[1].name = dpt_region_printf(list->region, "%s1", beside);
    }
    return !list->region->failed && dpt_layers_push(list, &dpt_layer_relu) != NULL;
}

static bool resnet_expand(const void *options, const struct dpt_shape *input,
                          struct dpt_layer_list *list)
{
    const struct resnet_options *o = options;
    const struct depth *d = &depths[o->depth];
    const bool large = d->blocks[STAGES - 1] > 0;
    struct dpt_layer_pool_options *pool;

    (void)input;
    if (!push_conv(list, &o->init, "", 1, d->channels, large ? 7 : 3, large ? 2 : 1, 1) ||
        dpt_layers_push(list, &dpt_layer_relu) == NULL)
        return false;
    if (large) {
        pool = dpt_layers_push(list, &dpt_layer_maxpool);
        if (pool == NULL)
            return false;
        pool->size = (struct dpt_pair){{3, 3}};
        pool->stride = (struct dpt_pair){{2, 2}};
        pool->padding.pair = (struct dpt_pair){{1, 1}};
    }
    for (int s = 0; s < STAGES; s++) {
        for (int k = 0; k < d->blocks[s]; k++) {
            const char *name = dpt_region_printf(list->region, "layer%d.%d", s + 1, k);

            if (name == NULL ||
                !push_block(list, d, o, name, d->channels << s, k == 0 && s > 0 ? 2 : 1, k == 0))
                return false;
        }
    }
    dpt_layers_set_statistics(list, o->statistics);
    return dpt_layers_push(list, &dpt_layer_global_avgpool) != NULL &&
           dpt_layers_push_dense(list, o->outputs, &o->init) != NULL && dpt_layers_name(list, "fc");
}

// clang-format off
#define NAME(depth, ...) #depth,

static const struct dpt_option resnet_table[] = {
    {.name = "depth", .type = DPT_OPT_CHOICE, .offset = offsetof(struct resnet_options, depth),
     .choices = (const char *const[]){DEPTHS(NAME) NULL},
     .help = "layers with weights: 18, 34, 50, 101 and 152 take ImageNet's stem, the others CIFAR's"},
    DPT_OUTPUTS_ROW(struct resnet_options),
    DPT_INITIALIZER_ROW(struct resnet_options, init, "he"),
    DPT_STATISTICS_ROW(struct resnet_options, statistics),
    {.name = "zero_init", .type = DPT_OPT_BOOL, .added = true,
     .offset = offsetof(struct resnet_options, zero_init), .fallback = "false",
     .help = "initialise the scale of each block's last norm to 0: a block begins as its shortcut"},
    {0},
};
// clang-format on

DPT_SHORT_FORM(
    resnet, "residual network with batch norm (He et al. 2015), for ImageNet's or CIFAR's images",
    struct resnet_options, resnet_expand);

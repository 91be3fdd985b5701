/*
 * Plain networks for images: LeNet-5 (LeCun et al. 1998, "Gradient-Based Learning Applied to
 * Document Recognition", with each map connected to all before it) and VGG (Simonyan & Zisserman
 * 2015, "Very Deep Convolutional Networks", table 1; layers have torchvision's names).
 */
#include "models/layer.h"

enum { STAGES = 5, WIDEST = 512, HIDDEN = 4096, TOP = 7 };

/* X(depth, convolutions of each stage) */
#define DEPTHS(X)                                                                                  \
    X(11, 1, 1, 2, 2, 2)                                                                           \
    X(13, 2, 2, 2, 2, 2)                                                                           \
    X(16, 2, 2, 3, 3, 3)                                                                           \
    X(19, 2, 2, 4, 4, 4)

static const int depths[][STAGES] = {
#define X(depth, ...) {__VA_ARGS__},
    DEPTHS(X)
#undef X
};

struct plain_options {
    int depth;
    int64_t outputs;
    double dropout;
    struct dpt_initializer init;
};

static bool push_conv(struct dpt_layer_list *list, const struct plain_options *o, int channels,
                      int kernel, int padding)
{
    struct dpt_conv_options *conv = dpt_layers_push_conv(list, channels, kernel, 1, &o->init);

    if (conv != NULL)
        conv->padding.pair = (struct dpt_pair){{padding, padding}};
    return conv != NULL;
}

/* Halves height and width. */
static bool push_pool(struct dpt_layer_list *list, const struct dpt_layer_type *type)
{
    struct dpt_layer_pool_options *pool = dpt_layers_push(list, type);

    if (pool != NULL)
        pool->size = (struct dpt_pair){{2, 2}};
    return pool != NULL;
}

static bool push_dense(struct dpt_layer_list *list, const struct plain_options *o, int64_t outputs)
{
    return dpt_layers_push_dense(list, outputs, &o->init) != NULL;
}

static bool lenet_expand(const void *options, const struct dpt_shape *input,
                         struct dpt_layer_list *list)
{
    const struct plain_options *o = options;

    (void)input;
    return push_conv(list, o, 6, 5, 2) && dpt_layers_push(list, &dpt_layer_tanh) != NULL &&
           push_pool(list, &dpt_layer_avgpool) && push_conv(list, o, 16, 5, 0) &&
           dpt_layers_push(list, &dpt_layer_tanh) != NULL && push_pool(list, &dpt_layer_avgpool) &&
           dpt_layers_push(list, &dpt_layer_flatten) != NULL && push_dense(list, o, 120) &&
           dpt_layers_push(list, &dpt_layer_tanh) != NULL && push_dense(list, o, 84) &&
           dpt_layers_push(list, &dpt_layer_tanh) != NULL && push_dense(list, o, o->outputs);
}

static bool push_classifier(struct dpt_layer_list *list, const struct plain_options *o)
{
    struct dpt_resize_options *top = dpt_layers_push(list, &dpt_layer_adaptive_avgpool);

    if (top == NULL || dpt_layers_push(list, &dpt_layer_flatten) == NULL)
        return false;
    top->by = (struct dpt_pair){{TOP, TOP}};
    for (int k = 0; k < 2; k++) {
        if (!push_dense(list, o, HIDDEN) || !dpt_layers_name(list, "classifier.%d", 3 * k) ||
            dpt_layers_push(list, &dpt_layer_relu) == NULL ||
            !dpt_layers_push_dropout(list, o->dropout))
            return false;
    }
    return push_dense(list, o, o->outputs) && dpt_layers_name(list, "classifier.6");
}

static bool vgg_expand(const void *options, const struct dpt_shape *input,
                       struct dpt_layer_list *list)
{
    const struct plain_options *o = options;
    int number = 0;

    (void)input;
    for (int s = 0; s < STAGES; s++) {
        for (int k = 0; k < depths[o->depth][s]; k++, number += 2)
            if (!push_conv(list, o, 64 << s < WIDEST ? 64 << s : WIDEST, 3, 1) ||
                !dpt_layers_name(list, "features.%d", number) ||
                dpt_layers_push(list, &dpt_layer_relu) == NULL)
                return false;
        if (!push_pool(list, &dpt_layer_maxpool))
            return false;
        number++;
    }
    return push_classifier(list, o);
}

// clang-format off
#define NAME(depth, ...) #depth,

#define LAST_ROWS                                                                                  \
    DPT_OUTPUTS_ROW(struct plain_options),                                                         \
    DPT_INITIALIZER_ROW(struct plain_options, init, "he"),                                         \
    {0}

static const struct dpt_option lenet_table[] = {LAST_ROWS};

static const struct dpt_option vgg_table[] = {
    {.name = "depth", .type = DPT_OPT_CHOICE, .offset = offsetof(struct plain_options, depth),
     .choices = (const char *const[]){DEPTHS(NAME) NULL}, .help = "layers with weights"},
    {.name = "dropout", .type = DPT_OPT_REAL, .offset = offsetof(struct plain_options, dropout),
     .fallback = "0.5", .min = 0, .max = 0.99, .help = "rate after each hidden dense layer"},
    LAST_ROWS,
};
// clang-format on

DPT_SHORT_FORM(lenet, "LeNet-5, for 28 x 28 (LeCun et al. 1998)", struct plain_options,
               lenet_expand);
DPT_SHORT_FORM(vgg, "3x3 convolutions, pools and wide dense layers (Simonyan & Zisserman 2015)",
               struct plain_options, vgg_expand);

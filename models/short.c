/* The short forms: each writes a list of layers, so that a model is built in one way only. */
#include "models/layer.h"

#define X(C, NAME, name, ...) &dpt_layer_##name,
static const struct dpt_layer_type *const activations[] = {DPT_ACTIVATIONS(X, 0)};
#undef X
#define X(C, NAME, name, ...) #name,
static const char *const activation_names[] = {DPT_ACTIVATIONS(X, 0) NULL};
#undef X

/* What a dense tail is made of: linear's options, which say less of it, mlp's, and part of
 * cnn's. */
struct tail {
    struct dpt_ints hidden;
    double dropout;
    int64_t outputs;
    int activation;
    struct dpt_initializer init;
};

struct cnn_options {
    struct tail tail;
    struct dpt_ints channels;
    struct dpt_pair kernel;
    struct dpt_padding padding;
    int64_t pool;
};

static bool push_tail(struct dpt_layer_list *list, const struct tail *tail, bool flatten)
{
    if (flatten && dpt_layers_push(list, &dpt_layer_flatten) == NULL)
        return false;
    for (size_t i = 0; i < tail->hidden.n; i++)
        if (dpt_layers_push_dense(list, tail->hidden.at[i], &tail->init) == NULL ||
            dpt_layers_push(list, activations[tail->activation]) == NULL ||
            (tail->dropout != 0 && !dpt_layers_push_dropout(list, tail->dropout)))
            return false;
    return dpt_layers_push_dense(list, tail->outputs, &tail->init) != NULL;
}

static bool dense_expand(const void *options, const struct dpt_shape *input,
                         struct dpt_layer_list *list)
{
    return push_tail(list, options, !input->flat);
}

static bool cnn_expand(const void *options, const struct dpt_shape *input,
                       struct dpt_layer_list *list)
{
    const struct cnn_options *o = options;

    (void)input;
    for (size_t i = 0; i < o->channels.n; i++) {
        struct dpt_conv_options *conv =
            dpt_layers_push_conv(list, o->channels.at[i], 1, 1, &o->tail.init);
        struct dpt_layer_pool_options *pool;

        if (conv == NULL || dpt_layers_push(list, activations[o->tail.activation]) == NULL)
            return false;
        conv->kernel = o->kernel;
        conv->padding = o->padding;
        if (o->pool == 1)
            continue;
        pool = dpt_layers_push(list, &dpt_layer_maxpool);
        if (pool == NULL)
            return false;
        pool->size = (struct dpt_pair){{(int32_t)o->pool, (int32_t)o->pool}};
    }
    return push_tail(list, &o->tail, true);
}

// clang-format off
#define LAST_ROWS(init_default)                                                                    \
    DPT_OUTPUTS_ROW(struct tail),                                                                  \
    DPT_INITIALIZER_ROW(struct tail, init, init_default),                                          \
    {0}

static const struct dpt_option linear_table[] = {LAST_ROWS("zero")};

#define TAIL_ROWS(hidden_default)                                                                  \
    {.name = "hidden", .type = DPT_OPT_INTS, .offset = offsetof(struct tail, hidden),              \
     .fallback = hidden_default, .min = 1, .max = DPT_MAX_CHANNELS,                                \
     .help = "outputs of the dense layers before the last one"},                                   \
    {.name = "activation", .type = DPT_OPT_CHOICE, .offset = offsetof(struct tail, activation),    \
     .fallback = "relu", .choices = activation_names,                                              \
     .help = "activation after every layer but the last"},                                         \
    {.name = "dropout", .type = DPT_OPT_REAL, .offset = offsetof(struct tail, dropout),            \
     .fallback = "0", .min = 0, .max = 0.99, .help = "rate after each hidden dense layer"},        \
    LAST_ROWS("he")

static const struct dpt_option mlp_table[] = {TAIL_ROWS("[256]")};

static const struct dpt_option cnn_table[] = {
    {.name = "channels", .type = DPT_OPT_INTS, .offset = offsetof(struct cnn_options, channels),
     .fallback = "[32, 64]", .min = 1, .max = DPT_MAX_CHANNELS, .help = "channels of each convolution"},
    DPT_PAIR_ROW("kernel", struct cnn_options, kernel, "3", "window of the convolutions"),
    DPT_PADDING_ROW(struct cnn_options, "same", "padding of the convolutions"),
    {.name = "pool", .type = DPT_OPT_INT, .offset = offsetof(struct cnn_options, pool),
     .fallback = "2", .min = 1, .max = DPT_MAX_KERNEL,
     .help = "max-pool after each convolution; 1: none"},
    TAIL_ROWS("[]"), /* the tail stands first in struct cnn_options */
};
// clang-format on

DPT_SHORT_FORM(linear, "one dense layer: linear or logistic regression", struct tail, dense_expand);
DPT_SHORT_FORM(mlp, "dense layers with activations between them", struct tail, dense_expand);
DPT_SHORT_FORM(cnn, "conv, activation, pool, repeated; then dense layers", struct cnn_options,
               cnn_expand);

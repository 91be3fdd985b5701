/*
 * layer: what the layer types share: the builder of a graph, and the options of each layer.
 *
 * A builder exists during one dpt_model_build. It knows the last node of the graph, whose output
 * the next layer reads, and for messages the place in the job of the layer that is being added.
 * Private to models/.
 */
#ifndef DPT_MODELS_LAYER_H
#define DPT_MODELS_LAYER_H

#include "core/base/memory.h"
#include "models/model.h"

/* Bounds on the numbers of a sample and of a tensor, which keep products far from overflow. */
enum { DPT_MAX_SIZE = 1 << 28, DPT_MAX_CHANNELS = 1 << 20, DPT_MAX_KERNEL = 1024 };
#define DPT_MAX_TENSOR INT32_MAX

/* A layer and its place in the job, for messages. */
struct dpt_layer_place {
    const char *prefix; /* "model.layers" or NULL for the layers of a short form */
    size_t index;
    const struct dpt_layer *layer;
    char name[DPT_NAME]; /* of its node */
};

/* Layer types beyond those of the operations: a convolution in other words, and a layer of several
 * nodes. */
#define DPT_OTHER_LAYERS(X) X(CONV1D, conv1d) X(RESIDUAL, residual)

struct dpt_builder {
    struct dpt_graph *graph;
    struct dpt_region *region;
    int32_t last; /* node whose output the next layer reads */
    const struct dpt_variant_value *model;
    const struct dpt_layer_list *all; /* layers of the model */
    struct dpt_layer_place here;      /* of the layer being added */
    struct dpt_layer_place *places;   /* for each node, the layer that added it */
    size_t place_room;
    int numbers[DPT_OP_COUNT + 1]; /* numbers given to layers without a name, by type */
};

/* The width of the last layer: one that is left out is as wide as the data want it
 * (dpt_model_outputs). */
#define DPT_OUTPUTS_ROW(struct_)                                                                   \
    {                                                                                              \
        .name = "outputs", .type = DPT_OPT_INT, .offset = offsetof(struct_, outputs),              \
        .fallback = "auto", .word = "auto", .min = 1, .max = DPT_MAX_CHANNELS,                     \
        .help =                                                                                    \
            "length of the output vector; auto, of a model's last layer: as many as data.train "   \
            "has classes, or targets per sample"                                                   \
    }

/* Height and width, from one number or two. */
struct dpt_pair {
    int32_t at[2];
};

/* `padding`: numbers, or TensorFlow's rule "same": out = ceil(in / stride), with an odd row or
 * column added at the bottom or right. */
struct dpt_padding {
    bool same;
    struct dpt_pair pair;
};

/* The options with which every layer's begin: its name ("auto": type and number) and the layer that
 * it reads ("auto": the one before it). */
struct dpt_layer_options {
    const char *name, *from;
};

struct dpt_conv_options {
    struct dpt_layer_options common;
    int64_t channels, groups;
    struct dpt_pair kernel, stride, dilation;
    struct dpt_padding padding;
    bool bias;
    struct dpt_initializer init;
};

struct dpt_dense_options {
    struct dpt_layer_options common;
    int64_t outputs;
    bool bias;
    struct dpt_initializer init;
};

struct dpt_layer_pool_options {
    struct dpt_layer_options common;
    struct dpt_pair size, stride; /* stride 0: as size */
    struct dpt_padding padding;
};

/* Options of layers that have only their operation's attributes, in its order. */
struct dpt_attribute_options {
    struct dpt_layer_options common;
    double attribute[DPT_MAX_ATTRIBUTES];
    double scale; /* of norms: what their weight begins with */
};

/* Over which samples a batch norm takes its statistics. */
#define DPT_STATISTICS_LIST(X) X(DPT_STATISTICS_MICRO, "micro") X(DPT_STATISTICS_BATCH, "batch")
enum dpt_statistics { DPT_STATISTICS_LIST(DPT_LIST_NAME) };

struct dpt_batchnorm_options {
    struct dpt_attribute_options attributes; /* with the layer's common ones */
    int statistics;
};

struct dpt_resize_options {
    struct dpt_layer_options common;
    struct dpt_pair by; /* the output's size, or the factors by which it grows */
    int mode;
};

/* The inputs of a join. */
struct dpt_operands {
    struct dpt_texts names;
    bool listed; /* these are all inputs; else there is one, beside the layer before */
};

struct dpt_join_options {
    struct dpt_layer_options common;
    struct dpt_operands of;
};

/* A list of layers that grows. */
struct dpt_layer_list {
    struct dpt_region *region; /* allocates the layers and their options */
    struct dpt_layer *at;
    size_t n, room;
};

/* The shortcut of a residual block: an identity or a projection, always an identity, or given
 * layers. */
enum dpt_shortcut_way { DPT_SHORTCUT_AUTO, DPT_SHORTCUT_NONE, DPT_SHORTCUT_LAYERS };

struct dpt_residual_options {
    struct dpt_layer_options common;
    struct dpt_layer_list layers, beside;
    int shortcut;
};

/* A layer type for each operation but the input, and the others. */
#define X(NAME, name) extern const struct dpt_layer_type dpt_layer_##name;
DPT_LAYER_OPERATIONS(X)
DPT_OTHER_LAYERS(X)
#undef X

/* The rows with which every layer's table begins. */
#define DPT_LAYER_NAME_ROW                                                                         \
    {                                                                                              \
        .name = "name",                                                                            \
        .type = DPT_OPT_TEXT,                                                                      \
        .offset = offsetof(struct dpt_layer_options, name),                                        \
        .fallback = "auto",                                                                        \
        .help = "name in messages and checkpoints; auto: type and number",                         \
    },                                                                                             \
    {                                                                                              \
        .name = "from", .type = DPT_OPT_TEXT, .offset = offsetof(struct dpt_layer_options, from),  \
        .fallback = "auto", .added = true,                                                         \
        .help = "name of the layer that it reads, or input; auto: the one before it",              \
    }
enum { DPT_LAYER_NAME_ROWS = 2 };

/* The row of an operation's attribute number k. */
#define DPT_ATTRIBUTE_ROW(k, text, otherwise, least, most, what)                                   \
    {                                                                                              \
        .name = text, .type = DPT_OPT_REAL,                                                        \
        .offset = offsetof(struct dpt_attribute_options, attribute[k]), .fallback = otherwise,     \
        .min = least, .max = most, .help = what,                                                   \
    }

/* The row of batch norms, and of the short forms that have some. */
#define DPT_STATISTICS_ROW(options, member)                                                        \
    {                                                                                              \
        .name = "statistics", .type = DPT_OPT_CHOICE, .offset = offsetof(options, member),         \
        .fallback = "micro", .choices = DPT_CHOICES(DPT_STATISTICS_LIST), .added = true,           \
        .help = "micro: per micro-batch; batch: synchronized over the global batch, slower, "      \
                "and all micro-batches of a rank are in memory at once",                           \
    }

/* Defines the type of an operation's layer; after its summary, the fields that are its own. */
#define DPT_LAYER(NAME, lower, table, struct_, ...)                                                \
    const struct dpt_layer_type dpt_layer_##lower = {.name = #lower,                               \
                                                     .op = DPT_OP_##NAME,                          \
                                                     .options = table,                             \
                                                     .size = sizeof(struct_),                      \
                                                     __VA_ARGS__}

#define DPT_SCALE_ROW                                                                              \
    {                                                                                              \
        .name = "scale", .type = DPT_OPT_REAL, .added = true,                                      \
        .offset = offsetof(struct dpt_attribute_options, scale), .fallback = "1", .min = -1e6,     \
        .max = 1e6,                                                                                \
        .help = "initial weight; 0 in a residual block's last norm: the block begins as its "      \
                "shortcut",                                                                        \
    }

/* The rows of a struct dpt_pair, and of the struct dpt_padding that is called `padding`. */
#define DPT_PAIR_ROW(text, options, member, otherwise, what)                                       \
    {                                                                                              \
        .name = text, .type = DPT_OPT_CUSTOM, .offset = offsetof(options, member),                 \
        .fallback = otherwise, .read = dpt_read_pair, .alternatives = &dpt_pair_alternatives,      \
        .value_text = "N or [height, width]", .help = what,                                        \
    }
#define DPT_PADDING_ROW(options, otherwise, what)                                                  \
    {                                                                                              \
        .name = "padding", .type = DPT_OPT_CUSTOM, .offset = offsetof(options, padding),           \
        .fallback = otherwise, .read = dpt_read_padding,                                           \
        .alternatives = &dpt_padding_alternatives,                                                 \
        .value_text = "N, [height, width], same or valid", .help = what,                           \
    }

/* An initializer of weights. `fill` sets tensor number k, which is zero, from the counter-based
 * RNG; it returns false where memory ran out. options: the initializer's one argument, under its
 * own name; NULL: it has none. */
struct dpt_initializer_type {
    const char *name;
    bool (*fill)(const struct dpt_tensor *t, uint64_t seed, uint64_t k, float *x);
    const struct dpt_option *options;
    bool biases; /* it is also for the biases of its layer, which else begin at 0 */
};

/*
 * Makes n consecutive vectors of `length` >= n numbers orthonormal by Gram-Schmidt. The result is
 * the Q of the QR decomposition whose R has a positive diagonal: vector k is in the span of vectors
 * 0 … k, with a positive component along vector k. Linearly dependent vectors give meaningless
 * numbers.
 */
void dpt_orthonormalize(double *vectors, int64_t n, int64_t length);

#define DPT_INITIALIZER_VALUE_TEXT                                                                 \
    "zero, he, xavier, lecun, pytorch, orthogonal, {normal: SIGMA} or {uniform: LIMIT}"

/* The option `init` of layers with weights and of short forms. */
#define DPT_INITIALIZER_ROW(options, member, otherwise)                                            \
    {                                                                                              \
        .name = "init", .type = DPT_OPT_CUSTOM, .offset = offsetof(options, member),               \
        .fallback = otherwise, .read = dpt_read_initializer,                                       \
        .alternatives = &dpt_initializer_alternatives, .value_text = DPT_INITIALIZER_VALUE_TEXT,   \
        .help = "initialisation of weights; biases: 0, or as weights with pytorch",                \
    }

/* CUSTOM readers of struct dpt_pair (at least 1; or at least 1 or `auto`, which is read as zeros)
 * and of struct dpt_padding. */
bool dpt_read_pair(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path, void *dest);
bool dpt_read_pair_or_auto(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                           void *dest);
bool dpt_read_padding(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                      void *dest);
/* The CUSTOM reader of struct dpt_initializer. */
bool dpt_read_initializer(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest);

/* The values that the readers accept. */
extern const struct dpt_alternatives dpt_pair_alternatives, dpt_pair_or_auto_alternatives,
    dpt_padding_alternatives, dpt_initializer_alternatives;

/* Appends a layer. Returns its options, set to their defaults, or to zero where an option has none;
 * NULL where memory ran out. */
void *dpt_layers_push(struct dpt_layer_list *list, const struct dpt_layer_type *type);

/* Appends a convolution with a square window and a padding of half its size, so that an odd window
 * of stride 1 keeps height and width. init: NULL for the layer's default. Returns its options,
 * which the caller may change; NULL where memory ran out. */
struct dpt_conv_options *dpt_layers_push_conv(struct dpt_layer_list *list, int64_t channels,
                                              int kernel, int stride,
                                              const struct dpt_initializer *init);

/* Appends a dense layer, likewise. */
struct dpt_dense_options *dpt_layers_push_dense(struct dpt_layer_list *list, int64_t outputs,
                                                const struct dpt_initializer *init);

/* Appends a dropout; returns false where memory ran out. */
bool dpt_layers_push_dropout(struct dpt_layer_list *list, double rate);

/* Names the last layer of a list, as in "features.3"; returns false where memory ran out, also in a
 * push before it. */
bool dpt_layers_name(struct dpt_layer_list *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Calls dpt_layer_type.inner; NULL for types without it. */
const struct dpt_layer_list *dpt_layer_inner(const struct dpt_layer *layer, size_t k,
                                             const char **option);

/* The first layer with this name, which the user gave, in a list and all lists inside it; NULL:
 * none. */
const struct dpt_layer *dpt_layers_find(const struct dpt_layer_list *list, const char *name);

/* What a model type has beside its options (dpt_variant.impl): a function that expands it to layers
 * for samples of a given shape. */
struct dpt_model_type {
    /* options: the model's. list: out, empty before. Returns false only where memory ran out. */
    bool (*expand)(const void *options, const struct dpt_shape *input, struct dpt_layer_list *list);
    bool listed; /* the layers are listed in the job, so messages name their places */
};

/* Defines the type and the variant of a short form, whose options are form##_table. */
#define DPT_SHORT_FORM(form, text, options_, expand_)                                              \
    static const struct dpt_model_type form = {.expand = expand_};                                 \
    const struct dpt_variant dpt_model_##form = {                                                  \
        .name = #form,                                                                             \
        .summary = text,                                                                           \
        .options = form##_table,                                                                   \
        .size = sizeof(options_),                                                                  \
        .impl = &form,                                                                             \
    }

/* The options of `sequential`. */
struct dpt_sequential_options {
    struct dpt_layer_list layers;
};

extern const struct dpt_variant dpt_model_sequential, dpt_model_linear, dpt_model_mlp,
    dpt_model_cnn, dpt_model_resnet, dpt_model_lenet, dpt_model_vgg, dpt_model_mobilenet_v2;

/* Sets a message like "JOB.yaml:14:7: model.layers[3] (dense1): text". Returns BAD_JOB. */
enum dpt_status dpt_builder_fail(const struct dpt_builder *b, struct dpt_error *err,
                                 const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds the layers of a list after the builder's last node. prefix: path of the list in the job, or
 * NULL. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_builder_layers(struct dpt_builder *b, const struct dpt_layer_list *list,
                                   const char *prefix, struct dpt_error *err);

/* *node: out, the number of the node of this name among those added so far. Errors: BAD_JOB. */
enum dpt_status dpt_builder_find(const struct dpt_builder *b, const char *name, int32_t *node,
                                 struct dpt_error *err);

/* Adds a join of the builder's last node with another one. Errors: BAD_JOB (their shapes), RANK. */
enum dpt_status dpt_builder_join(struct dpt_builder *b, enum dpt_op op, const char *name,
                                 int32_t other, struct dpt_error *err);

/* The input shape of the next layer. */
const struct dpt_shape *dpt_builder_shape(const struct dpt_builder *b);

/* A node for the layer being added, whose input is the builder's last node; nothing else is set. */
struct dpt_graph_node dpt_builder_node(const struct dpt_builder *b);

/* Sets the shape of the output by the operation's row, checks its size and appends the node.
 * Errors: BAD_JOB, RANK. */
enum dpt_status dpt_builder_add(struct dpt_builder *b, struct dpt_graph_node *node,
                                struct dpt_error *err);

/* Adds the tensors of the operation's row and sets node->weight, ->bias and the state's. init: for
 * the weight; NULL: the row's. bias: whether there is one. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_builder_tensors(struct dpt_builder *b, struct dpt_graph_node *node,
                                    const struct dpt_initializer *init, bool bias,
                                    struct dpt_error *err);

/* dpt_layer_type.add of `residual`. */
enum dpt_status dpt_residual_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                 struct dpt_error *err);

/* Sets the statistics of all batch norms of a list, and of lists in it. */
void dpt_layers_set_statistics(const struct dpt_layer_list *list, int statistics);

/* Appends a node with these attributes and the tensors of the operation's row; a norm's weight
 * begins as its option `scale` says. Errors: as dpt_builder_add. */
enum dpt_status dpt_builder_add_with(struct dpt_builder *b, struct dpt_graph_node *node,
                                     const struct dpt_attribute_options *options,
                                     struct dpt_error *err);

/* dpt_layer_type.add of layers with struct dpt_attribute_options. */
enum dpt_status dpt_layer_with_attributes(struct dpt_builder *b, const struct dpt_layer *layer,
                                          struct dpt_error *err);

/* Sets the padding in node->window, after the rest of the window is set. Errors: BAD_JOB (the
 * kernel does not fit). */
enum dpt_status dpt_builder_window(const struct dpt_builder *b, struct dpt_graph_node *node,
                                   const struct dpt_padding *padding, struct dpt_error *err);

#endif

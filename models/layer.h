/*
 * layer: what the rows of dpt_layer_types share: the growing graph, and the options of each layer.
 *
 * A builder lives for one dpt_model_build. It knows the last node of the graph, whose output the
 * next layer reads, and where in the job the layer stands that is being added, for messages.
 * Private to models/.
 */
#ifndef DPT_MODELS_LAYER_H
#define DPT_MODELS_LAYER_H

#include "core/base/memory.h"
#include "models/model.h"

/* No sample of more than DPT_MAX_SIZE numbers, no tensor of more than DPT_MAX_TENSOR: products stay
 * far from overflow. */
enum { DPT_MAX_SIZE = 1 << 28, DPT_MAX_CHANNELS = 1 << 20, DPT_MAX_KERNEL = 1024 };
#define DPT_MAX_TENSOR INT32_MAX

/* A layer and where it stands, for messages. */
struct dpt_layer_place {
    const char *prefix; /* "model.layers" or NULL for the layers of a short form */
    size_t index;
    const struct dpt_layer *layer;
    char name[DPT_NAME]; /* of its node */
};

/* Layer types that no operation has the name of: one in other words, and what adds several nodes. */
#define DPT_OTHER_LAYERS(X) X(CONV1D, conv1d) X(RESIDUAL, residual)

struct dpt_builder {
    struct dpt_graph *graph;
    struct dpt_region *region;
    int32_t last; /* node whose output the next layer reads */
    const struct dpt_variant_value *model;
    const struct dpt_layer_list *all; /* layers of the model */
    struct dpt_layer_place here;      /* of the layer being added */
    struct dpt_layer_place *places;   /* for each node, which layer added it */
    size_t place_room;
    int numbers[DPT_OP_COUNT + 1]; /* of the last layer without a name, for each type */
};

/* Height and width, from one number or two. */
struct dpt_pair {
    int32_t at[2];
};

/* `padding`: numbers, or TensorFlow's rule: out = ceil(in / stride), the odd one at the bottom and
 * the right. */
struct dpt_padding {
    bool same;
    struct dpt_pair pair;
};

/* Every layer's options begin with its name ("auto": type and number) and that of the layer which
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

/* Of layers that say nothing but their operation's attributes, in its order. */
struct dpt_attribute_options {
    struct dpt_layer_options common;
    double attribute[DPT_MAX_ATTRIBUTES];
};

struct dpt_resize_options {
    struct dpt_layer_options common;
    struct dpt_pair by; /* the output's size, or how many times the input's */
    int mode;
};

/* What a join is of: names of layers. */
struct dpt_operands {
    struct dpt_texts names;
    bool listed; /* those alone; else the one beside what the layer reads */
};

struct dpt_join_options {
    struct dpt_layer_options common;
    struct dpt_operands of;
};

/* A list of layers that grows. */
struct dpt_layer_list {
    struct dpt_region *region; /* of the layers and their options */
    struct dpt_layer *at;
    size_t n, room;
};

/* What is beside a block's layers: enum dpt_shortcut_way, and the layers of the last one. */
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

/* The rows that every layer's table begins with. */
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

/* An initializer of weights: fills tensor number k, which is zero, from the counter RNG; false where
 * memory ran out. options: the one number that it is given, with the way's name; NULL: none. */
struct dpt_initializer_type {
    const char *name;
    bool (*fill)(const struct dpt_tensor *t, uint64_t seed, uint64_t k, float *x);
    const struct dpt_option *options;
};

#define DPT_INITIALIZER_VALUE_TEXT                                                                 \
    "zero, he, xavier, orthogonal, {normal: SIGMA} or {uniform: LIMIT}"

/* The row of layers that have weights, and of the short forms. */
#define DPT_INITIALIZER_ROW(options, member, otherwise)                                            \
    {                                                                                              \
        .name = "init", .type = DPT_OPT_CUSTOM, .offset = offsetof(options, member),               \
        .fallback = otherwise, .read = dpt_read_initializer,                                       \
        .alternatives = &dpt_initializer_alternatives, .value_text = DPT_INITIALIZER_VALUE_TEXT,   \
        .help = "how weights begin; biases begin at 0",                                            \
    }

/* CUSTOM readers of struct dpt_pair (at least 1; or at least 1 or `auto`, read as zeros) and struct
 * dpt_padding. */
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

/* Appends a layer; its options as its table has them by default, and zero where it has none, or
 * NULL where memory ran out. */
void *dpt_layers_push(struct dpt_layer_list *list, const struct dpt_layer_type *type);

/* Appends a convolution of a square window, padded by half of it, so that at stride 1 an odd window
 * keeps height and width. init: NULL for the layer's default. Returns its options, for the caller to
 * change, or NULL where memory ran out. */
struct dpt_conv_options *dpt_layers_push_conv(struct dpt_layer_list *list, int64_t channels,
                                              int kernel, int stride,
                                              const struct dpt_initializer *init);

/* The same for a dense layer. */
struct dpt_dense_options *dpt_layers_push_dense(struct dpt_layer_list *list, int64_t outputs,
                                                const struct dpt_initializer *init);

/* Names the last layer of a list as torchvision does, "features.3"; false where memory ran out, also
 * in a push before it. */
bool dpt_layers_name(struct dpt_layer_list *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* dpt_layer_type.inner of a layer of any type. */
const struct dpt_layer_list *dpt_layer_inner(const struct dpt_layer *layer, size_t k,
                                             const char **option);

/* The first layer that the user gave this name, in a list and the lists in it, or NULL. */
const struct dpt_layer *dpt_layers_find(const struct dpt_layer_list *list, const char *name);

/* What a model type is beside its options (dpt_variant.impl): it writes its layers for samples of a
 * shape. */
struct dpt_model_type {
    /* Returns false only where memory ran out. `options` and `list` are the model's own and the
     * empty result. */
    bool (*expand)(const void *options, const struct dpt_shape *input, struct dpt_layer_list *list);
    bool listed; /* the layers stand in the job, each in its place */
};

/* The options of `sequential`. */
struct dpt_sequential_options {
    struct dpt_layer_list layers;
};

extern const struct dpt_variant dpt_model_sequential, dpt_model_linear, dpt_model_mlp,
    dpt_model_cnn, dpt_model_resnet, dpt_model_lenet, dpt_model_vgg, dpt_model_mobilenet_v2;

/* For messages: JOB.yaml:14:7: model.layers[3] (dense1): text. Returns BAD_JOB. */
enum dpt_status dpt_builder_fail(const struct dpt_builder *b, struct dpt_error *err,
                                 const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds the layers of a list, the first one behind the builder's last node. prefix: where the list
 * stands in the job, or NULL. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_builder_layers(struct dpt_builder *b, const struct dpt_layer_list *list,
                                   const char *prefix, struct dpt_error *err);

/* The node of the layer of this name before the one being added. Errors: BAD_JOB. */
enum dpt_status dpt_builder_find(const struct dpt_builder *b, const char *name, int32_t *node,
                                 struct dpt_error *err);

/* Adds a join of the builder's last node and another one. Errors: BAD_JOB (their shapes), RANK. */
enum dpt_status dpt_builder_join(struct dpt_builder *b, enum dpt_op op, const char *name,
                                 int32_t other, struct dpt_error *err);

/* Shape that the next layer gets. */
const struct dpt_shape *dpt_builder_shape(const struct dpt_builder *b);

/* A node for the layer being added, with the builder's last node as input and nothing else set. */
struct dpt_graph_node dpt_builder_node(const struct dpt_builder *b);

/* Sets the output's shape by the operation's row, checks its size and appends the node. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_builder_add(struct dpt_builder *b, struct dpt_graph_node *node,
                                struct dpt_error *err);

/* Adds the tensors that the operation's row names, the weight beginning as `init` says (NULL: as
 * the row does), and `bias` only where it is wanted; sets node->weight and ->bias. Errors: BAD_JOB,
 * RANK. */
enum dpt_status dpt_builder_tensors(struct dpt_builder *b, struct dpt_graph_node *node,
                                    const struct dpt_initializer *init, bool bias,
                                    struct dpt_error *err);

/* dpt_layer_type.add of `residual`. */
enum dpt_status dpt_residual_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                 struct dpt_error *err);

/* dpt_layer_type.add of layers with struct dpt_attribute_options. */
enum dpt_status dpt_layer_with_attributes(struct dpt_builder *b, const struct dpt_layer *layer,
                                          struct dpt_error *err);

/* Sets node->window's padding from the rest of the window. Errors: BAD_JOB (the kernel does not
 * fit). */
enum dpt_status dpt_builder_window(const struct dpt_builder *b, struct dpt_graph_node *node,
                                   const struct dpt_padding *padding, struct dpt_error *err);

#endif

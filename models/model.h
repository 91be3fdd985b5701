/*
 * model: builds a graph from the job's `model` section.
 *
 * A layer type is a row: a name, its options, and a function that adds the layer to a graph (shape
 * inference, parameters). A model type is a row as well; the short forms (linear, mlp, resnet, ...)
 * expand to a list of layers, which is then built like that of `sequential`. Models use neither
 * MPI, HDF5 nor devices.
 */
#ifndef DPT_MODELS_MODEL_H
#define DPT_MODELS_MODEL_H

#include "core/backend/graph.h"
#include "core/conf/option.h"

/* A layer as read from the job: its type and its filled options. */
struct dpt_layer {
    const struct dpt_layer_type *type;
    void *options;
    const char *name; /* given by the user, or NULL: type name and a number ("conv2") */
    const char *from; /* name of the layer that it reads, or NULL: the one before it */
    const struct dpt_conf_node *at; /* for messages; NULL in layers of a short form */
};

struct dpt_builder; /* models/layer.h */
struct dpt_layer_list;

struct dpt_layer_type {
    const char *name;
    const char *summary;
    enum dpt_op op; /* the one that it adds; DPT_OP_COUNT: several */
    const struct dpt_option *options;
    size_t size; /* of the options' struct */
    /* Option that is set by a bare value: `dense: 10` is {dense: {outputs: 10}}; NULL: none. */
    const char *main;
    bool planes; /* the input must be channels x height x width */
    /* Returns the k-th list of layers in its options, and the option's name; NULL past the last.
     * Optional: there are none. */
    const struct dpt_layer_list *(*inner)(const void *options, size_t k, const char **option);
    /* Adds the layer after the builder's last node. Errors: BAD_JOB (shapes; see dpt_builder_fail),
     * RANK. */
    enum dpt_status (*add)(struct dpt_builder *builder, const struct dpt_layer *layer,
                           struct dpt_error *err);
};

/* The layers of operations, in their order, then the others (DPT_OTHER_LAYERS); ends with NULL. */
extern const struct dpt_layer_type *const dpt_layer_types[];
/* Ends with NULL. */
extern const struct dpt_variant *const dpt_model_variants[];

/*
 * Builds the graph of a model for samples of shape `input`.
 *
 * model: as read by a VARIANT row over dpt_model_variants. Errors: BAD_JOB, which names the layer
 * and both shapes ("model.layers[3] (dense1): needs a flat input, gets 64x7x7: put `flatten` before
 * it"); RANK.
 */
enum dpt_status dpt_model_build(const struct dpt_variant_value *model,
                                const struct dpt_shape *input, struct dpt_graph *graph,
                                struct dpt_error *err);

/*
 * Where a model's options keep the width of its last layer, 0 while that is left to the data; NULL
 * where no option says it. *node: out, the job's entry of it.
 */
int64_t *dpt_model_outputs(const struct dpt_variant_value *model, struct dpt_conf_node **node);

/* Initialises a zeroed parameter arena: each tensor by its `init`, a pure function of (seed, tensor
 * number, element). Errors: RANK. */
enum dpt_status dpt_model_init(const struct dpt_graph *graph, uint64_t seed, float *params,
                               struct dpt_error *err);
/* Initialises one tensor of the model. Errors: RANK. */
enum dpt_status dpt_model_init_tensor(const struct dpt_graph *graph, int32_t tensor, uint64_t seed,
                                      float *params, struct dpt_error *err);

/* Size of the last node's output: numbers per sample. */
int32_t dpt_graph_outputs(const struct dpt_graph *graph);

#endif

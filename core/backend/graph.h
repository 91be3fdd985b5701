/*
 * graph: a model as backends see it.
 *
 * Nodes in an order in which each comes after its inputs; node 0 is the input. A node names its
 * inputs by number: one, or the two of a join. Several nodes may read one value; each value but the
 * last is read. Every shape is that of one sample, so a graph does not depend on the micro-batch.
 * All parameters of a model lie in one flat arena of floats: a tensor is a name, a shape and an
 * offset. Gradients and optimizer slots have the same layout. Tensors stand in canonical order and
 * layout (dense [out, in], convolution [out, in / groups, kh, kw]), each starting at a multiple of
 * 16 floats (a cache line); the floats between two tensors are always zero. Immutable once built;
 * shared by all threads.
 *
 * State, such as the running statistics of batch norm, lies behind all that is learned: [learned:
 * floats | state], `arena` floats together. A gradient is as long, and holds at the tensors of
 * state what a micro-batch adds to them (dpt_graph_update_state), so that whoever sums gradients
 * sums that, too. Optimizers know of the learned part alone.
 */
#ifndef DPT_BACKEND_GRAPH_H
#define DPT_BACKEND_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend/activations.h"
#include "core/base/error.h"

enum { DPT_NAME = 64, DPT_MAX_INPUTS = 2, DPT_MAX_ATTRIBUTES = 2, DPT_TENSOR_ALIGN = 16 };
/* Arenas that an optimizer keeps beside the parameters, at most. */
enum { DPT_MAX_SLOTS = 2 };

/* Channels, height, width of one sample, stored [c][h][w]; a flat vector of n is {n, 1, 1} with
 * `flat` set. */
struct dpt_shape {
    int32_t c, h, w;
    bool flat;
};

/*
 * Every operation, once. The enum, the names, the rows of struct dpt_operation and each backend's
 * table of kernels are made from this list, so an operation without its row does not link.
 *
 * conv: cross-correlation, as everywhere in the field; weight [out, in/groups, kh, kw], bias [out]
 *     or none
 * dense: y = W x + b; weight [out, in]
 * maxpool: padding never wins; of equal values the first in row-major order gets the gradient
 * avgpool: the divisor is kh x kw, padding counts as zeros (as PyTorch's default)
 * global_avgpool: mean over h x w; gives a flat vector of c
 * adaptive_avgpool: of n outputs along an axis, i is the mean over the inputs from floor(i in / n)
 *     up to ceil((i + 1) in / n); the shape of the output says n
 * upsample: each number window.kernel times along each axis
 * bilinear: likewise, but between the nearest numbers, at the centres of pixels (bilinear.h)
 * flatten: [c][h][w] read as one vector; moves nothing in canonical layout
 * dropout: training: zero with probability `rate`, else divide by 1 - rate; evaluation: copy
 * add, multiply: of two values of equal shapes, number by number
 * concat: the channels of the first input, then those of the second; or two vectors
 * layernorm: (x - mean) / sqrt(variance + eps) weight + bias; mean and biased variance over all
 *     numbers of a sample, whose shape weight and bias have
 * groupnorm: the same over each of window.groups runs of channels; weight and bias [channels]
 * prelu: x, or w x where x < 0; weight [channels]
 * batchnorm: likewise for each channel, or each number of a flat vector, over all pixels of all
 *     samples of the micro-batch; evaluation: by the running statistics
 */
#define DPT_OPERATIONS(X) X(INPUT, input) DPT_LAYER_OPERATIONS(X) DPT_OTHER_OPERATIONS(X)
/* Those that have a layer of their name, and those that are a kind of another one's. */
#define DPT_LAYER_OPERATIONS(X)                                                                    \
    X(CONV, conv)                                                                                  \
    X(DENSE, dense)                                                                                \
    X(MAXPOOL, maxpool)                                                                            \
    X(AVGPOOL, avgpool)                                                                            \
    X(GLOBAL_AVGPOOL, global_avgpool)                                                              \
    X(ADAPTIVE_AVGPOOL, adaptive_avgpool)                                                          \
    X(UPSAMPLE, upsample)                                                                          \
    X(FLATTEN, flatten)                                                                            \
    X(DROPOUT, dropout)                                                                            \
    X(ADD, add)                                                                                    \
    X(MULTIPLY, multiply)                                                                          \
    X(CONCAT, concat)                                                                              \
    DPT_ACTIVATIONS(DPT_ACTIVATION_OPERATION, X)                                                   \
    X(LAYERNORM, layernorm)                                                                        \
    X(GROUPNORM, groupnorm)                                                                        \
    X(PRELU, prelu)                                                                                \
    X(BATCHNORM, batchnorm)
#define DPT_OTHER_OPERATIONS(X)                      X(BILINEAR, bilinear)
#define DPT_ACTIVATION_OPERATION(X, NAME, name, ...) X(NAME, name)

#define X(NAME, name) DPT_OP_##NAME,
enum dpt_op { DPT_OPERATIONS(X) DPT_OP_COUNT };
#undef X

/* Sliding window of convolutions and pools; index 0 is height, 1 is width. */
struct dpt_window {
    int32_t kernel[2], stride[2], dilation[2]; /* dilation 1: dense; pools have 1 */
    int32_t before[2], after[2];               /* padding at the top/left and the bottom/right */
    int32_t groups;                            /* convolutions and group norms; else 1 */
};

/* How a tensor begins: a way of those in models/initializers.c, and what it is given; NULL: each
 * number is `value`. */
struct dpt_initializer_type;
struct dpt_initializer {
    const struct dpt_initializer_type *type;
    double value;
};

struct dpt_tensor {
    char name[DPT_NAME]; /* "conv1/weight" */
    int n_dims;
    int64_t dims[4];
    int64_t count;  /* product of dims */
    int64_t offset; /* floats from the arena's start */
    bool decay;     /* weight decay applies (weights, not biases) */
    bool state;     /* not learned: it lies behind all that is */
    struct dpt_initializer init;
    int64_t fan_in, fan_out; /* for init */
};

/* Which of its attributes those of batch norm are. */
enum { DPT_BATCHNORM_EPS, DPT_BATCHNORM_DECAY };

struct dpt_graph_node {
    enum dpt_op op;
    char name[DPT_NAME]; /* "conv1", unique; also the folder of its tensors */
    int32_t n_inputs, inputs[DPT_MAX_INPUTS];
    bool learns; /* it, or a node that its value is made of, has weights; dpt_graph_add sets it */
    struct dpt_shape in, other, out; /* of the first input, of a join's second, of the output */
    struct dpt_window window;
    int32_t weight, bias;                /* tensor numbers, -1: none */
    int32_t mean, variance;              /* likewise: the running ones of batch norm */
    float attribute[DPT_MAX_ATTRIBUTES]; /* what its row names: dropout's rate */
    int32_t line, column; /* of the job's file, for messages about what only shows later; 0: none */
};

struct dpt_graph {
    struct dpt_graph_node *nodes;
    int32_t n_nodes;
    struct dpt_tensor *tensors;
    int32_t n_tensors;
    size_t node_room, tensor_room; /* of dpt_grow */
    /* Size of what is learned, and of the arena, state included, with padding; multiples of 16. */
    int64_t floats, arena;
    int64_t parameters; /* learned numbers, without padding */
};

static inline int64_t dpt_shape_size(const struct dpt_shape *s)
{
    return (int64_t)s->c * s->h * s->w;
}

/* "64x7x7" or "3136" into buf (at least 40 bytes); returns buf. */
const char *dpt_shape_text(const struct dpt_shape *s, char *buf);

/* Output extent of a window along axis 0 or 1 for an input extent; <= 0 where the kernel does not
 * fit. */
int32_t dpt_window_extent(const struct dpt_window *w, int axis, int32_t input);

/* Adds a node (copied) or a tensor (offset and count are set here, and the offsets of the state that
 * is there already move behind a learned one); *index: out. An empty graph is {0}. Errors: RANK. */
enum dpt_status dpt_graph_add(struct dpt_graph *graph, const struct dpt_graph_node *node,
                              int32_t *index, struct dpt_error *err);
enum dpt_status dpt_graph_add_tensor(struct dpt_graph *graph, const struct dpt_tensor *tensor,
                                     int32_t *index, struct dpt_error *err);
/* Whether a node's backward pass gives a gradient to a node before it. */
bool dpt_graph_wants_dx(const struct dpt_graph *graph, int32_t node);
void dpt_graph_release(struct dpt_graph *graph);

/*
 * Updates the state in params after a step: running = decay running + (1 - decay) sum / samples.
 * sum: a reduced gradient; of each micro-batch it holds the samples times its mean, and times its
 * unbiased variance.
 */
void dpt_graph_update_state(const struct dpt_graph *graph, int64_t samples, const float *sum,
                            float *params);

#endif

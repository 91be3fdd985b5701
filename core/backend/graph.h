/*
 * graph: a model as backends see it.
 *
 * The nodes are in topological order; node 0 is the input. A node names its inputs by number: one,
 * or two for a join. Several nodes may read one output; each output but the last node's is read.
 * Every shape is that of one sample, so a graph does not depend on the micro-batch. A graph is
 * immutable once built and shared by all threads.
 *
 * All parameters of a model lie in one flat arena of floats; a tensor is a name, a shape and an
 * offset in it. Gradients and optimizer slots have the same layout. Tensors are in canonical order
 * and layout (dense [out, in], convolution [out, in / groups, kh, kw]), and each starts at a
 * multiple of 16 floats (a cache line); the floats between two tensors are always zero.
 *
 * State that is not learned, such as the running statistics of batch norm, follows the learned
 * parameters: [`floats` learned | state], together `arena` floats. A gradient has the same length,
 * and holds in the place of the state what a micro-batch contributes to it
 * (dpt_graph_update_state), so that an allreduce of gradients reduces it too. Optimizers see the
 * learned part only.
 */
#ifndef DPT_BACKEND_GRAPH_H
#define DPT_BACKEND_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend/activations.h"
#include "core/base/error.h"
#include "core/base/sum_of_squares.h"

enum { DPT_NAME = 64, DPT_MAX_INPUTS = 2, DPT_MAX_ATTRIBUTES = 2, DPT_TENSOR_ALIGN = 16 };
/* The most arenas beside the parameters: two of an optimizer, and the weights' moving average. */
enum { DPT_MAX_SLOTS = 3 };

/* Channels, height and width of one sample, stored [c][h][w]; a flat vector of n numbers is {n, 1,
 * 1} with `flat` set. */
struct dpt_shape {
    int32_t c, h, w;
    bool flat;
};

/* Numbers from `first` up to `last`. */
struct dpt_range {
    int64_t first, last;
};

/*
 * Every operation, once. The enum, the names, the rows of struct dpt_operation and each backend's
 * table of kernels are made from this list, so an operation without its row does not link.
 *
 * conv: cross-correlation, as everywhere in the field; weight [out, in/groups, kh, kw], bias [out]
 *     or none
 * dense: y = W x + b; weight [out, in]
 * maxpool: padding never wins; the first of equal values in row-major order gets the gradient
 * avgpool: the divisor is kh x kw, padding counts as zeros (as PyTorch's default)
 * global_avgpool: mean over h x w; gives a flat vector of c
 * adaptive_avgpool: output i of n along an axis is the mean over the inputs from floor(i in / n)
 *     up to ceil((i + 1) in / n); the shape of the output says n
 * upsample: each number window.kernel times along each axis
 * bilinear: likewise, but between the nearest numbers, at the centres of pixels (bilinear.h)
 * flatten: [c][h][w] read as one vector; moves nothing in canonical layout
 * dropout: training: zero with probability `rate`, else divide by 1 - rate; evaluation: copy
 * add, multiply: of two values of equal shapes, number by number
 * concat: the channels of the first input, then those of the second; or two vectors
 * layernorm: (x - mean) / sqrt(variance + eps) weight + bias; mean and biased variance over all
 *     numbers of a sample, whose shape weight and bias have
 * groupnorm: as layernorm, over each of window.groups runs of channels; weight and bias [channels]
 * prelu: x, or w x if x < 0; weight [channels]
 * batchnorm: as layernorm, for each channel, or each number of a flat vector, over all pixels of
 *     all samples of the micro-batch, or (`whole_step`) of the step; evaluation: by the running
 *     statistics
 */
#define DPT_OPERATIONS(X) X(INPUT, input) DPT_LAYER_OPERATIONS(X) DPT_OTHER_OPERATIONS(X)
/* The operations that have a layer of their name. DPT_OTHER_OPERATIONS, which follow, are kinds of
 * another operation's layer. */
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

/* How a tensor is initialised: by a function of models/initializers.c and its argument; a NULL type
 * sets each number to `value`. */
struct dpt_initializer_type;
struct dpt_initializer {
    const struct dpt_initializer_type *type;
    double value;
};

struct dpt_tensor {
    char name[DPT_NAME]; /* "conv1/weight" */
    int n_dims;
    int64_t dims[4];
    int64_t count;       /* in this arena: all, or of a part of the graph (dpt_graph_part) some */
    int64_t first;       /* how many of the tensor are in front of these */
    int64_t whole;       /* product of dims; 0: none of them is in an arena of this part */
    int64_t offset;      /* in floats, from the arena's start */
    bool decay;          /* weight decay applies (weights, not biases) */
    bool state;          /* not learned: it lies after the learned tensors */
    bool frozen;         /* not updated; the backward pass leaves its gradient as it is: zero */
    double lr_scale;     /* times the learning rate; 0: as 1 */
    double weight_decay; /* its own, if `decays_alone`; else the optimizer's */
    bool decays_alone;
    struct dpt_initializer init;
    int64_t fan_in, fan_out; /* that `init` scales by */
};

/* Indices of batch norm's numbers in `attribute`. */
enum { DPT_BATCHNORM_EPS, DPT_BATCHNORM_DECAY };

struct dpt_graph_node {
    enum dpt_op op;
    char name[DPT_NAME]; /* "conv1", unique; also the folder of its tensors */
    int32_t n_inputs, inputs[DPT_MAX_INPUTS];
    bool learns;     /* this node, or one that it depends on, has weights; dpt_graph_add sets it */
    bool by_running; /* a batch norm with frozen running statistics, which it uses in training,
                        too */
    /* of the first input, of a join's second input, of the output */
    struct dpt_shape in, other, out;
    struct dpt_window window;
    int32_t weight, bias;   /* numbers of tensors; -1: none */
    int32_t mean, variance; /* of batch norm's running statistics; -1: none */
    /* The operation's own numbers, such as dropout's rate, as its row names them. */
    float attribute[DPT_MAX_ATTRIBUTES];
    bool whole_step; /* synchronized batch norm: statistics over all samples of a step */
    /* A tensor-parallel dense layer: the outputs that this rank computes, whose weights it has, and
     * the inputs whose gradient it computes; a rank may have none. */
    bool divided;
    struct dpt_range own_outputs, own_inputs;
    /* Where the layer is in the job file, for messages about errors that are found later; 0:
     * nowhere. */
    int32_t line, column;
};

struct dpt_graph {
    struct dpt_graph_node *nodes;
    int32_t n_nodes;
    struct dpt_tensor *tensors;
    int32_t n_tensors;
    size_t node_room, tensor_room; /* of dpt_grow */
    /* Floats of the learned part and of the whole arena, padding included; multiples of 16. */
    int64_t floats, arena;
    int64_t parameters; /* learned numbers, padding not counted */
};

static inline int64_t dpt_shape_size(const struct dpt_shape *s)
{
    return (int64_t)s->c * s->h * s->w;
}

/* "64x7x7" or "3136" into buf (at least 40 bytes); returns buf. */
const char *dpt_shape_text(const struct dpt_shape *s, char *buf);

/* The output's size along axis 0 or 1 for an input of this size; <= 0 if the kernel does not
 * fit. */
int32_t dpt_window_extent(const struct dpt_window *w, int axis, int32_t input);

/*
 * Norms under `reproducible` are sums over chunks: in each learned tensor, from its first row on,
 * so many rows as are a power of two and at most DPT_SUM_OF_SQUARES_CHUNK floats; longer rows in
 * pieces of that many. (A row is what one output reads: all dimensions but the first.) So no chunk
 * straddles tensors, or parts of a tensor that are cut at such runs of rows. The padding after a
 * tensor, which is zero, belongs to its last chunk.
 */
size_t dpt_tensor_chunks(const struct dpt_tensor *tensor); /* 0: it is state */
/* Counts the chunks of all ranks that divide the tensor, and those of them that come before this
 * rank's. */
size_t dpt_tensor_whole_chunks(const struct dpt_tensor *tensor);
size_t dpt_tensor_chunks_before(const struct dpt_tensor *tensor);
/* The first float of a tensor's chunk, in the arena. */
size_t dpt_tensor_chunk(const struct dpt_tensor *tensor, size_t chunk);
/* Counts the chunks of all tensors. */
size_t dpt_graph_chunk_count(const struct dpt_graph *graph);
/* Counts the chunks of all tensors on all ranks that divide a tensor. dpt_graph_chunks lists this
 * rank's, in the tensors' order; they cover the learned floats. Errors: RANK. */
size_t dpt_graph_whole_chunks(const struct dpt_graph *graph);
enum dpt_status dpt_graph_chunks(const struct dpt_graph *graph, struct dpt_chunks *chunks,
                                 struct dpt_error *err);

/* Appends a copy of a node or a tensor; *index: out, its number. A tensor's offset and count are
 * set here; a learned tensor moves the state after it. An empty graph is {0}. Errors: RANK. */
enum dpt_status dpt_graph_add(struct dpt_graph *graph, const struct dpt_graph_node *node,
                              int32_t *index, struct dpt_error *err);
enum dpt_status dpt_graph_add_tensor(struct dpt_graph *graph, const struct dpt_tensor *tensor,
                                     int32_t *index, struct dpt_error *err);
/* The float at which the tensors of a node and of those after it begin, learned or state, which
 * stand in the nodes' order; the end of these if there are none. */
size_t dpt_graph_from(const struct dpt_graph *graph, int32_t node, bool state);
/* Whether backward has to compute the gradient of a node's inputs. */
bool dpt_graph_wants_dx(const struct dpt_graph *graph, int32_t node);
/* Brings the nodes up to date with which tensors are frozen: `learns` and `by_running`. */
void dpt_graph_freeze(struct dpt_graph *graph);
/* Learned numbers, without those of frozen tensors. */
int64_t dpt_graph_learned(const struct dpt_graph *graph);
/* The numbers of a node's weight and bias. */
int64_t dpt_graph_node_parameters(const struct dpt_graph *graph, const struct dpt_graph_node *node);
/* Whether the gradient of a tensor is wanted; false for -1. */
bool dpt_graph_updates(const struct dpt_graph *graph, int32_t tensor);
/* Zeroes what backward leaves as it is, in a gradient whose memory held something else: the frozen
 * ones among the learned tensors that begin in the floats [begin, end), and the floats after each
 * of them. */
void dpt_graph_clear_frozen(const struct dpt_graph *graph, size_t begin, size_t end,
                            float *gradient);
void dpt_graph_release(struct dpt_graph *graph);
/* The part of a graph that a rank has: nodes [first, last), and share `rank` of the dense layers
 * that `ranks` divide; ranks 0 or 1: nobody divides them. */
struct dpt_part {
    int32_t first, last;
    int rank, ranks;
};
/*
 * *part: out, a copy of the graph with an arena of its own for what `which` says: other tensors
 * keep name, number and shape, but have no floats. *learned, *state: out, the floats of the whole
 * arena at which the nodes' learned tensors and their state begin. The part must be released even
 * after a failure. Errors: RANK; INTERNAL (other tensors lie between them).
 */
enum dpt_status dpt_graph_part(const struct dpt_graph *graph, const struct dpt_part *which,
                               struct dpt_graph *part, int64_t *learned, int64_t *state,
                               struct dpt_error *err);
/* The rows of a tensor that a rank has if `ranks` divide it: all if they do not. So many rows begin
 * at a chunk of the norm and at a tile of the products. */
struct dpt_range dpt_tensor_rows(const struct dpt_graph *graph, int32_t tensor, int rank,
                                 int ranks);
/* The columns, likewise: a rank computes the gradient of these inputs of the layer. */
struct dpt_range dpt_tensor_columns(const struct dpt_graph *graph, int32_t tensor, int rank,
                                    int ranks);
/* The dense layer that has this weight, if ranks divide it: at least 64 outputs and 64 Ki weights;
 * else NULL. */
const struct dpt_graph_node *dpt_graph_divided(const struct dpt_graph *graph, int32_t tensor);

/*
 * The rest of a norm's mean that a float cannot hold, if that shows beside the deviation, 1 /
 * scale; else 0. Far from 0, as years are, the rest is large: numbers that are normalised by the
 * float alone would not sum to 0, and the layer before multiplies that sum by numbers as large.
 * Both are doubles; for hosts and devices.
 */
#define DPT_NORM_REST(mean, scale)                                                                 \
    (fabs((mean) - (double)(float)(mean)) * (scale) > 0x1p-21                                      \
         ? (float)((mean) - (double)(float)(mean))                                                 \
         : 0.0f)

/* Samples of this step; of a whole step, which the last one of an epoch may not be; and of a
 * micro-batch, of which a step's last one may be short. */
struct dpt_step_samples {
    int64_t step, whole;
    int32_t micro;
};

/* A step of fewer than this share of a whole one's samples is tiny. */
#define DPT_TINY_STEP 0.25

/*
 * Updates the state in params after a step: running = decay running + (1 - decay) sum / samples.
 * sum: a reduced gradient; for each micro-batch it holds the number of samples times its mean, and
 * times its unbiased variance. Statistics of few samples are noisy: those of a tiny step count by
 * its share of a whole step's samples, and a single number, which has no variance, does not count
 * in it.
 */
void dpt_graph_update_state(const struct dpt_graph *graph, const struct dpt_step_samples *samples,
                            const float *sum, float *params);
/* The number of samples of which each variance of a norm is made, where every sample gives one
 * number per channel: a single sample that is left over has no variance. 0: a sample gives several
 * numbers. */
int64_t dpt_graph_variance_samples(const struct dpt_graph_node *node, int64_t whole, int32_t micro);

#endif

/*
 * operation: a table of the operations in DPT_OPERATIONS (graph.h), with all that does not depend
 * on the backend.
 *
 * Model builders ask a row for shapes and tensors, plans for the arithmetic, the exporter for its
 * ONNX nodes. The kernels are in the backends' tables, which are made from the same list. All
 * members must be set unless marked optional; tests/test_operations.c checks each row.
 */
#ifndef DPT_BACKEND_OPERATION_H
#define DPT_BACKEND_OPERATION_H

#include "core/backend/graph.h"

enum dpt_operation_class {
    DPT_CLASS_NOTHING, /* no work: input, flatten */
    DPT_CLASS_CONV,    /* multiplies by weights in a sliding window */
    DPT_CLASS_GEMM,    /* multiplies by weights */
    DPT_CLASS_POOL,
    DPT_CLASS_POINTWISE, /* each number by itself, so possible in place */
    DPT_CLASS_JOIN,      /* of two inputs */
    DPT_CLASS_NORM,      /* normalises by statistics of its input */
};

/* What forward must keep for backward, beside the parameters. */
enum {
    DPT_KEEPS_NOTHING = 0,
    DPT_KEEPS_INPUT = 1, /* all of them */
    DPT_KEEPS_OUTPUT = 2,
    DPT_KEEPS_INDEX = 4,      /* where in its window each maximum was */
    DPT_KEEPS_MASK = 8,       /* the dropout mask, which may also be drawn again */
    DPT_KEEPS_STATISTICS = 16 /* mean and variance of a normalisation */
};

enum {
    DPT_EXACT = 1, /* its kernels are exact but for the order of sums: no exp and the like */
    DPT_FUSED = 2, /* a GPU fuses it with a neighbouring layer */
};

/* --- ONNX (operator set 17) ------------------------------------------------------------------- */

enum { DPT_ONNX_STEPS = 5, DPT_ONNX_INPUTS = 4, DPT_ONNX_ATTRIBUTES = 5 };

enum dpt_onnx_source {
    DPT_ONNX_NONE,
    DPT_ONNX_X,     /* what the operation reads */
    DPT_ONNX_OTHER, /* a join's second input */
    DPT_ONNX_WEIGHT,
    DPT_ONNX_BIAS, /* left out if the node has none */
    DPT_ONNX_MEAN,
    DPT_ONNX_VARIANCE,
    DPT_ONNX_NUMBER, /* a constant with this name */
    /* Constants computed from the node, with this name: */
    DPT_ONNX_EACH_GROUP,   /* [groups], each `number` */
    DPT_ONNX_GROUPS_SHAPE, /* [0, groups, -1]: reshapes groups to vectors */
    DPT_ONNX_OUT_SHAPE,    /* [0, …]: the shape of the output */
    DPT_ONNX_SCALES,       /* [1, 1, window.kernel] */
    DPT_ONNX_ROW_MEANS,    /* [out.h, in.h]: an adaptive pool's, to multiply by from the left */
    DPT_ONNX_COLUMN_MEANS, /* [in.w, out.w]: from the right */
    DPT_ONNX_LEFT_OUT      /* an input that is not given */
};

enum dpt_onnx_value {
    DPT_ONNX_INT,   /* `number` */
    DPT_ONNX_TEXT,  /* `text` */
    DPT_ONNX_FLOAT, /* the node's attribute number `number` */
    DPT_ONNX_KERNEL,
    DPT_ONNX_STRIDES,
    DPT_ONNX_PADS,
    DPT_ONNX_DILATIONS,
    DPT_ONNX_GROUP
};

/* One ONNX node. Its first input is the output of the step before it; the first step's is the
 * operation's input. */
struct dpt_onnx_step {
    bool last;        /* the usual first input comes after those of `with` */
    const char *type; /* "Gemm"; "Identity" for what does nothing in evaluation */
    /* Name of the step's output, after the node's name and a slash; NULL: it is the node's
     * output. */
    const char *result;
    struct {
        enum dpt_onnx_source source;
        const char *name;
        float number;
    } with[DPT_ONNX_INPUTS]; /* further inputs */
    struct {
        const char *name;
        enum dpt_onnx_value value;
        int number;
        const char *text;
    } attribute[DPT_ONNX_ATTRIBUTES];
};

/* Attributes and steps that several operations use. */
#define DPT_ONNX_WINDOW                                                                            \
    {.name = "kernel_shape", .value = DPT_ONNX_KERNEL},                                            \
        {.name = "strides", .value = DPT_ONNX_STRIDES},                                            \
    {                                                                                              \
        .name = "pads", .value = DPT_ONNX_PADS                                                     \
    }
#define DPT_ONNX_BY(type_, result_, name_, number_)                                                \
    {                                                                                              \
        .type = type_, .result = result_, .with = {                                                \
            {.source = DPT_ONNX_NUMBER, .name = name_, .number = number_}                          \
        }                                                                                          \
    }

/* --- the row ---------------------------------------------------------------------------------- */

/* The tensors of a node are at most weight, bias, running mean and running variance. */
enum { DPT_MAX_TENSORS = 4 };

struct dpt_operation {
    const char *name;
    enum dpt_operation_class kind;
    unsigned keeps;  /* DPT_KEEPS_… */
    unsigned traits; /* DPT_EXACT, DPT_FUSED */
    /* Names of the numbers in a node's `attribute`. Optional. */
    const char *attributes[DPT_MAX_ATTRIBUTES];
    /* Sets the shape of the output from the input's and the window. The builder has already set
     * what the layer's options say: out.c (conv, dense), out.h and out.w (adaptive_avgpool). */
    void (*shape)(struct dpt_graph_node *node);
    /* Describes the tensors of a node in the zeroed array `tensors`: name (without the node's),
     * dims, decay, state, fan_in, fan_out and, if it is fixed, init. The first is the weight, the
     * second the bias, which a layer may leave out, then running mean and variance. Returns their
     * number. Optional: there are none. */
    int (*tensors)(const struct dpt_graph_node *node, struct dpt_tensor *tensors);
    /* Multiplications and additions of forward for one sample; the gradients of input and weights
     * take as many each. Taps on padding are not counted. Optional: the cost is counted by bytes
     * alone. */
    double (*flops)(const struct dpt_graph_node *node);
    /* The fraction of the machine's limits (core/plan/cost.h) that the cpu backend reaches, and the
     * seconds that a call adds for each micro-batch: for plans if nothing can be measured. */
    struct {
        double forward, backward, call;
    } reached;
    struct dpt_onnx_step onnx[DPT_ONNX_STEPS]; /* ends at the first without a type */
    bool onnx_planes; /* in ONNX its tensors [c] are [c, 1, 1], except for flat vectors */
};

#define X(NAME, name) extern const struct dpt_operation dpt_operation_##name;
DPT_OPERATIONS(X)
#undef X

extern const struct dpt_operation *const dpt_operations[DPT_OP_COUNT];

static inline const struct dpt_operation *dpt_operation_of(const struct dpt_graph_node *node)
{
    return dpt_operations[node->op];
}

/* The row's `flops`; 0 if it has none. */
double dpt_operation_flops(const struct dpt_graph_node *node);
/* Fills `tensors`, which it zeroes first, by the row's function; returns their number. */
int dpt_operation_tensors(const struct dpt_graph_node *node, struct dpt_tensor *tensors);

/* The member of a node that holds the number of its tensor k. */
static inline int32_t *dpt_operation_number(struct dpt_graph_node *node, int k)
{
    int32_t *const numbers[DPT_MAX_TENSORS] = {&node->weight, &node->bias, &node->mean,
                                               &node->variance};

    return numbers[k];
}

/* --- shapes that several operations use ------------------------------------------------------- */

static inline void dpt_shape_same(struct dpt_graph_node *node)
{
    node->out = node->in;
}

/* Height and width; c stays as it is set. */
static inline void dpt_shape_window(struct dpt_graph_node *node)
{
    node->out.h = dpt_window_extent(&node->window, 0, node->in.h);
    node->out.w = dpt_window_extent(&node->window, 1, node->in.w);
    node->out.flat = false;
}

/* A vector of c numbers. */
static inline void dpt_shape_vector(struct dpt_graph_node *node, int64_t c)
{
    node->out = (struct dpt_shape){.c = (int32_t)c, .h = 1, .w = 1, .flat = true};
}

#endif

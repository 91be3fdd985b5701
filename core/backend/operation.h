/*
 * operation: what an operation is, whoever computes it: a row each, named in DPT_OPERATIONS
 * (graph.h).
 *
 * The builders of models ask a row for shapes and tensors, plans for its arithmetic, the exporter
 * for its ONNX nodes. What computes it stands in the backends' tables of kernels, made from the
 * same list. All entries must be there unless marked optional; tests/test_operations.c walks them.
 */
#ifndef DPT_BACKEND_OPERATION_H
#define DPT_BACKEND_OPERATION_H

#include "core/backend/graph.h"

enum dpt_operation_class {
    DPT_CLASS_NOTHING, /* moves nothing: input, flatten */
    DPT_CLASS_CONV,    /* multiplies by weights, under a window */
    DPT_CLASS_GEMM,    /* multiplies by weights */
    DPT_CLASS_POOL,
    DPT_CLASS_POINTWISE, /* each number by itself: may be computed in place */
    DPT_CLASS_JOIN,      /* of two values */
    DPT_CLASS_NORM,      /* by the statistics of what it gets */
};

/* What backward reads beside the gradient of the output and the parameters. */
enum {
    DPT_KEEPS_NOTHING = 0,
    DPT_KEEPS_INPUT = 1, /* all of them */
    DPT_KEEPS_OUTPUT = 2,
    DPT_KEEPS_INDEX = 4,      /* where in its window each maximum was */
    DPT_KEEPS_MASK = 8,       /* or makes it once more */
    DPT_KEEPS_STATISTICS = 16 /* of what it normalised */
};

enum {
    DPT_EXACT = 1, /* its kernels are exact but for the order of sums: no exp and the like */
    DPT_FUSED = 2, /* a GPU computes it in the pass of a layer beside it */
};

/* --- ONNX (operator set 17) ------------------------------------------------------------------- */

enum { DPT_ONNX_STEPS = 5, DPT_ONNX_INPUTS = 4, DPT_ONNX_ATTRIBUTES = 5 };

enum dpt_onnx_source {
    DPT_ONNX_NONE,
    DPT_ONNX_X,     /* what the operation reads */
    DPT_ONNX_OTHER, /* what a join reads second */
    DPT_ONNX_WEIGHT,
    DPT_ONNX_BIAS, /* left out where the node has none */
    DPT_ONNX_MEAN,
    DPT_ONNX_VARIANCE,
    DPT_ONNX_NUMBER, /* a constant of this name */
    /* Constants of the node, of this name: */
    DPT_ONNX_EACH_GROUP,   /* `number` for each group */
    DPT_ONNX_GROUPS_SHAPE, /* [0, groups, -1]: a sample's groups as vectors */
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

/* One ONNX node. Its first input is what the step before it gives, or what the operation reads. */
struct dpt_onnx_step {
    bool last;          /* that is its last input */
    const char *type;   /* "Gemm"; "Identity" for what does nothing when a model is used */
    const char *result; /* what comes out, behind the node's name and a slash; NULL: the output */
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

/* Steps and attributes that several have. */
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

/* Tensors of a node: weight, bias, and its state: running mean and variance. */
enum { DPT_MAX_TENSORS = 4 };

struct dpt_operation {
    const char *name;
    enum dpt_operation_class kind;
    unsigned keeps;  /* DPT_KEEPS_… */
    unsigned traits; /* DPT_EXACT, DPT_FUSED */
    /* Names of the numbers in a node's `attribute`. Optional. */
    const char *attributes[DPT_MAX_ATTRIBUTES];
    /* Sets the output's shape from the input's and the window; what the layer says is set already:
     * out.c (conv, dense), out.h and out.w (adaptive_avgpool). */
    void (*shape)(struct dpt_graph_node *node);
    /* Fills in the tensors of such a node, zeroed before: name (without the node's), dims, decay,
     * state, fan_in, fan_out and, where it is fixed, init. The first is `weight`, the second `bias`,
     * which a layer may leave out, the others `mean` and `variance`. Returns how many. Optional: it
     * has none. */
    int (*tensors)(const struct dpt_graph_node *node, struct dpt_tensor *tensors);
    /* Multiplications and additions of a sample in forward; the gradient of the data takes as many,
     * and that of the weights. Taps that fall on padding are left out. Optional: it is counted by
     * the bytes that it moves alone. */
    double (*flops)(const struct dpt_graph_node *node);
    /* What the cpu backend reaches of the machine's limits (core/plan/cost.h), and what else a
     * micro-batch takes, in seconds: for plans where no trial can be made. */
    struct {
        double forward, backward, call;
    } reached;
    struct dpt_onnx_step onnx[DPT_ONNX_STEPS]; /* up to the first without a type */
    bool onnx_planes; /* there tensors [c] are [c, 1, 1], but for flat vectors */
};

#define X(NAME, name) extern const struct dpt_operation dpt_operation_##name;
DPT_OPERATIONS(X)
#undef X

extern const struct dpt_operation *const dpt_operations[DPT_OP_COUNT];

static inline const struct dpt_operation *dpt_operation_of(const struct dpt_graph_node *node)
{
    return dpt_operations[node->op];
}

/* The row's flops; 0 where it counts none. */
double dpt_operation_flops(const struct dpt_graph_node *node);
/* The row's tensors, zeroed before; how many. */
int dpt_operation_tensors(const struct dpt_graph_node *node, struct dpt_tensor *tensors);

/* Where a node keeps the number of tensor k of those. */
static inline int32_t *dpt_operation_number(struct dpt_graph_node *node, int k)
{
    int32_t *const numbers[DPT_MAX_TENSORS] = {&node->weight, &node->bias, &node->mean,
                                               &node->variance};

    return numbers[k];
}

/* --- shapes that several have ----------------------------------------------------------------- */

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

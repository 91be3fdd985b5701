/*
 * ref: the reference backend in plain C, for any shape.
 *
 * Each operation is a row of functions that know one node and one micro-batch, nothing is fused,
 * and everything stands in the canonical order, sample by sample. The other backends are checked
 * against it, and it runs if there is no library. It is stateless: all memory is in the call, so
 * any number of threads may run.
 */
#ifndef DPT_BACKEND_REF_REF_H
#define DPT_BACKEND_REF_REF_H

#include "core/backend/backend.h"
#include "core/base/vector.h"

/* One node's work on one micro-batch. Arrays hold `count` samples one after the other. */
struct dpt_ref_call {
    const struct dpt_graph_node *node;
    const struct dpt_batch *batch;
    int32_t index;            /* of the node */
    bool training;            /* a backward pass follows */
    size_t count;             /* samples */
    size_t in, other, out;    /* floats of a sample */
    const float *x, *x_other; /* x_other: a join's second input */
    float *y;
    const float *dy;
    float *dx, *dx_other;         /* added to; NULL: not wanted */
    const float *weight, *bias;   /* NULL: none */
    float *dweight, *dbias;       /* added to */
    const float *mean, *variance; /* running ones; NULL: none */
    float *means, *variances;     /* added to by forward in training: dpt_graph_update_state */
    /* The pass, for synchronized batch norms, whose sums it has or wants, and for tensor-parallel
     * layers; NULL: this micro-batch is the whole step, and the rank has whole layers. */
    const struct dpt_pass *pass;
    void *saved;    /* from forward to backward, of dpt_ref_op.saved's size; NULL unless training */
    float *scratch; /* of dpt_ref_op.scratch's size; what is in it at the start is undefined */
    /* In bf16, where x, weight and dy are rounded: memory for rounding the weights that another
     * rank gives (dpt_divided.columns); NULL: fp32. */
    float *columns;
};

/* The work for one output of a node whose channels do not mix, with its row and column, its number,
 * and that of its input plane's first element. */
typedef void dpt_ref_output_fn(const struct dpt_ref_call *call, int32_t row, int32_t column,
                               size_t input, size_t output);

struct dpt_ref_op {
    void (*forward)(const struct dpt_ref_call *call);
    void (*backward)(const struct dpt_ref_call *call); /* optional for the input alone */
    dpt_ref_output_fn *forward_each, *backward_each;   /* in place of these two, or NULL */
    /* For synchronized batch norms: writes what the norm sums over this micro-batch to pass->own,
     * before its forward and its backward pass; the latter also makes dweight and dbias. */
    void (*sum_forward)(const struct dpt_ref_call *call);
    void (*sum_backward)(const struct dpt_ref_call *call);
    /* The 4-byte words that a sample keeps for the backward pass, and those that a call needs for
     * itself. Optional: none. */
    size_t (*saved)(const struct dpt_graph_node *node);
    size_t (*scratch)(const struct dpt_graph_node *node);
};

/* A row for each operation, made from the same list. */
#define X(NAME, name) extern const struct dpt_ref_op dpt_ref_##name;
DPT_OPERATIONS(X)
#undef X
extern const struct dpt_ref_op *const dpt_ref_ops[DPT_OP_COUNT];

/* A word for each output: for dpt_ref_op.saved. */
static inline size_t dpt_ref_save_outputs(const struct dpt_graph_node *node)
{
    return (size_t)dpt_shape_size(&node->out);
}

/* Calls the operation's functions for one pass. */
static inline void dpt_ref_compute(const struct dpt_ref_op *op, const struct dpt_ref_call *call,
                                   bool backward)
{
    dpt_ref_output_fn *each = backward ? op->backward_each : op->forward_each;
    const struct dpt_graph_node *node = call->node;
    size_t output = 0;

    if (each == NULL) {
        (backward ? op->backward : op->forward)(call);
        return;
    }
    for (size_t plane = 0; plane < call->count * (size_t)node->in.c; plane++)
        for (int32_t i = 0; i < node->out.h; i++)
            for (int32_t j = 0; j < node->out.w; j++)
                each(call, i, j, plane * (call->in / (size_t)node->in.c), output++);
}

/* A matrix in memory: element (i, j) is at[i * row + j * column]. */
struct dpt_ref_matrix {
    const float *at;
    size_t row, column;
};

/* c[i * row + j] += sum_k a(i, k) b(k, j) for i < m, j < n, k < depth. The bits depend on the
 * shapes and the CPU only. */
void dpt_ref_matmul_add(size_t m, size_t n, size_t depth, struct dpt_ref_matrix a,
                        struct dpt_ref_matrix b, float *c, size_t row);

/* "plain C" and the instructions that the matrix product uses. */
const char *dpt_ref_describe(void);

#endif

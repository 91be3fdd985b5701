/*
 * program: how the oneDNN backend runs a graph. Private to this folder.
 *
 * Opening a program plans everything: the layout in which each value lies, the buffers of a worker
 * (values, their gradients, what backward needs), the kernels, and the calls that bind kernels to a
 * worker's buffers. A buffer is a number while planning and an address once the workers exist. Number 0
 * is the micro-batch's input, whose address comes with each call.
 *
 * In a team all threads compute one micro-batch, in the buffers of worker 0, each a part of every
 * layer; a barrier stands where one thread needs what another computed. In evaluation each worker
 * always computes micro-batches of its own.
 *
 * Micro-batches are always computed in full: rows past `count` are zero in the input and zero in
 * the gradient of the outputs, so they add exactly nothing to the gradients. Of several in a batch
 * (sub-batches, backend.h) those that there are.
 *
 * Each kind of layer is a table of functions (struct dpt_cpu_op). Planning a node's forward pass,
 * it says in which layout it reads (dpt_cpu_read) and where its output goes (dpt_cpu_write); the
 * program puts a reorder between two nodes only where the layouts differ. A join reads both of its
 * inputs in one layout.
 *
 * A buffer has as many owners as there are nodes that still have to read it, in the order of
 * execution, which is the order of planning: forward, and then backward. One without owners serves
 * again, and one with a single owner may be written over by it. Evaluation programs so hold a few
 * values, however many layers there are; training programs what backward reads, until it has. The
 * gradient of a value that several nodes read is the sum of what they pass back: the last of them
 * in the graph, the first in backward, gives its own, and the program adds that of each other one
 * behind its backward pass. An addition passes its own gradient on to both of its inputs, which
 * then own that buffer together.
 */
#ifndef DPT_BACKEND_CPU_PROGRAM_H
#define DPT_BACKEND_CPU_PROGRAM_H

#include "core/backend/backend.h"
#include "core/backend/cpu/dnnl.h"

enum { DPT_CPU_NONE = -1, DPT_CPU_INPUT = 0 };

/* Buffers, calls and copies of a node, at most. */
enum { DPT_CPU_PER_NODE = 12 };

/* Rows whose losses are added up by themselves. */
enum { DPT_CPU_LOSS_ROWS = 16 };

struct dpt_cpu_program;
struct dpt_cpu_node;
struct dpt_cpu_worker;

/* One pass over one micro-batch. */
struct dpt_cpu_run {
    const struct dpt_cpu_program *program;
    const struct dpt_cpu_worker *worker;
    float *scratch;      /* of the calling thread */
    int thread, threads; /* which of those that share the layers; 0 of 1 where none does */
    int64_t rows;        /* that are computed: whole sub-batches */
    const struct dpt_batch *batch;
    const float *params;
    float *gradient;
    bool add, training;
    struct dpt_spans *spans; /* NULL: nobody asks where the time goes */
};

struct dpt_cpu_op {
    /* Chooses layouts, reserves buffers, makes kernels and calls for forward. Errors: BAD_JOB,
     * RANK. */
    enum dpt_status (*plan)(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            struct dpt_error *err);
    /* The same for backward, when dx and dy are known. Optional. */
    enum dpt_status (*plan_backward)(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                     struct dpt_error *err);
    /* Renews what is derived from the parameters. *task counts over all nodes; each worker does those
     * of its turn. Optional. */
    enum dpt_status (*refresh)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                               int thread, int *task, struct dpt_error *err);
    /* This and the next one are optional for the input alone. */
    enum dpt_status (*forward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                               struct dpt_error *err);
    /* Gradients of the parameters, and dx where wants_dx. */
    enum dpt_status (*backward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                struct dpt_error *err);
    void (*close)(struct dpt_cpu_node *node); /* what `own` holds, all or in part; optional */
    size_t own;         /* bytes of the node's `own`, which the program allocates and frees */
    bool shares;        /* a team can compute it: each thread does its part of run->threads */
    bool moves_nothing; /* the output is the input, in canonical layout */
    bool takes_relu;    /* it computes the relu behind it in its own passes (node->relu) */
    bool takes_norm;    /* in evaluation the batch norm behind it (node->norm), and then a relu */
};

/* A row for each operation, made from the same list. */
#define X(NAME, name) extern const struct dpt_cpu_op dpt_cpu_##name;
DPT_OPERATIONS(X)
#undef X
extern const struct dpt_cpu_op *const dpt_cpu_ops[DPT_OP_COUNT];

struct dpt_cpu_node {
    const struct dpt_graph_node *graph; /* NULL: the flatten that is put behind the last node */
    const struct dpt_cpu_op *op;
    const char *name;
    int32_t number;                           /* in the graph */
    int32_t n_inputs, inputs[DPT_MAX_INPUTS]; /* numbers of nodes, none of them skipped */
    struct dpt_shape in, out;
    int32_t consumers;
    bool skipped;   /* a relu or a batch norm that another node computes: */
    int32_t within; /* the max-pool that reads it, or what it reads; else the node itself */
    bool relu;      /* computes a relu: a max-pool that before it, others that behind them */
    bool listed;    /* a max-pool whose convolution takes the gradient as it comes (sparse.h) */
    bool fused; /* a max-pool that its convolution computes; that has no output of its own then */
    struct dpt_cpu_node *pool;         /* a convolution: the max-pool of 2 x 2 behind it, or NULL */
    const struct dpt_graph_node *norm; /* the batch norm that is part of its weights, or NULL */
    bool wants_dy;                     /* it has parameters, or a node before it does */

    /* What it reads, first and, a join, second, under two names each: as kernels say it, and by
     * number. Buffers are the input's own or behind a reorder; both are in x_layout. */
    union {
        struct {
            bool wants_dx, wants_dx_other; /* a node before it has parameters */
        };
        bool wants[DPT_MAX_INPUTS];
    };
    union {
        struct {
            int x, other; /* buffers */
        };
        int xs[DPT_MAX_INPUTS];
    };
    union {
        struct {
            int64_t x_floats, other_floats; /* of a micro-batch */
        };
        int64_t floats[DPT_MAX_INPUTS];
    };
    union {
        struct {
            int dx, dx_other; /* their gradients; may be one buffer, or that of dy */
        };
        int dxs[DPT_MAX_INPUTS];
    };
    int reorder[DPT_MAX_INPUTS], reorder_back[DPT_MAX_INPUTS]; /* calls, or NONE */
    struct {
        int a, b, sum; /* buffers: what others passed back, what this one does; NONE: no others */
    } add[DPT_MAX_INPUTS];

    enum dpt_layout x_layout, y_layout;
    int y, dy; /* buffers */
    int64_t y_floats;
    int argmax;  /* a max-pool: buffer of the argmax of each window, in the layout of y; or NONE */
    int known;   /* an activation: what its slope is computed from, x or y */
    bool filled; /* an activation that makes something else of the zeros behind the last channel */
    void *own;   /* zeroed before `plan` */
};

/* A kernel, and the buffers that its calls are bound to; NONE: given at each call. */
struct dpt_cpu_call {
    struct dpt_kernel *kernel;
    int buffers[DPT_ROLE_COUNT];
};

struct dpt_cpu_worker {
    float *memory; /* of all buffers and the scratch memory */
    float **buffers;
    struct dpt_call **calls;
    struct dpt_metric_sums *metric_sums_of; /* of a micro-batch, for each DPT_CPU_LOSS_ROWS rows */
    struct dpt_spans *spans;                /* borrowed, or NULL */
};

struct dpt_cpu_program {
    struct dpt_program_spec spec;
    struct dpt_dnnl *dnnl;
    struct dpt_cpu_node *nodes;
    int32_t n_nodes;
    struct {
        int64_t floats;
        int owners; /* who will still read it; 0: it serves again */
    } * buffers;
    int n_buffers;
    struct dpt_cpu_call *calls;
    int n_calls;
    float **copies; /* of parameters, shared by all workers */
    int n_copies;
    int64_t copied;  /* bytes */
    int64_t scratch; /* floats that the most demanding kernel wants */
    int64_t folded;  /* floats that refresh wants of a worker's buffers, which are idle then */
    bool plain;      /* no batch norm becomes part of a convolution's weights */
    struct dpt_cpu_worker *workers;
};

/*
 * Planning. A buffer for the worker's whole life, or for a while: plans run in the order of
 * execution, so what all owners have given back serves again. Errors: none; there is room for
 * DPT_CPU_PER_NODE.
 */
int dpt_cpu_reserve(struct dpt_cpu_program *program, int64_t floats);
int dpt_cpu_take(struct dpt_cpu_program *program, int64_t floats);
/* One more owner; returns the buffer. And one less. */
int dpt_cpu_share(struct dpt_cpu_program *program, int buffer);
void dpt_cpu_give(struct dpt_cpu_program *program, int buffer);

/* Memory for what refresh derives from the parameters. Errors: RANK. */
enum dpt_status dpt_cpu_copy(struct dpt_cpu_program *program, int64_t floats, float **copy,
                             struct dpt_error *err);

/* What the node's backward pass will read (DPT_KEEPS_…); nothing where there is none. */
unsigned dpt_cpu_keeps(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node);

/* The layout in which the node's first input lies already. */
enum dpt_layout dpt_cpu_input_layout(const struct dpt_cpu_program *program,
                                     const struct dpt_cpu_node *node);
/* The node reads its inputs in this layout: sets xs, and reorders where they are needed. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_cpu_read(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                             enum dpt_layout layout, struct dpt_error *err);
/* The output goes to a buffer of its own in this layout, but for a convolution whose pool is fused
 * into it and has the only output; or, in the inputs' layout, to the place of one of them, where
 * nobody needs it once this node has read it. */
void dpt_cpu_write(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                   enum dpt_layout layout);
void dpt_cpu_write_over(struct dpt_cpu_program *program, struct dpt_cpu_node *node);

/* A call that moves activations of this shape from one layout and buffer into others. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_cpu_reorder(struct dpt_cpu_program *program, const struct dpt_shape *s,
                                enum dpt_layout from, int x, enum dpt_layout to, int y, int *call,
                                struct dpt_error *err);
/* A call in each worker; gives its number. The kernel belongs to the program from here. */
int dpt_cpu_call(struct dpt_cpu_program *program, struct dpt_kernel *kernel, int x, int y, int w,
                 int b);

/* Plans backward of all nodes. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_cpu_plan_gradients(struct dpt_cpu_program *program, struct dpt_error *err);

/* Whether the convolution's backward pass can take the gradient of the pool behind it as it is. */
bool dpt_cpu_conv_lists(const struct dpt_cpu_node *conv);

/* dpt_backend.open, .measure and .close. plain: each batch norm is computed by itself. */
enum dpt_status dpt_cpu_open_plain(const struct dpt_program_spec *spec, void **opened,
                                   struct dpt_error *err);
enum dpt_status dpt_cpu_open(const struct dpt_program_spec *spec, void **opened,
                             struct dpt_error *err);
enum dpt_status dpt_cpu_measure(const struct dpt_program_spec *spec,
                                struct dpt_program_bytes *bytes, struct dpt_error *err);
void dpt_cpu_close(void *opened);

/* Running. */
float *dpt_cpu_buffer(const struct dpt_cpu_run *run, int buffer);
/* Gives an argument that was NONE, then runs. */
void dpt_cpu_set(const struct dpt_cpu_run *run, int call, enum dpt_role role, const float *memory);
enum dpt_status dpt_cpu_execute(const struct dpt_cpu_run *run, int call, struct dpt_error *err);
/* Samples of a sub-batch (backend.h); micro where there are none. */
static inline int64_t dpt_cpu_sub_batch(const struct dpt_cpu_program *program)
{
    return program->spec.sub_batch > 0 ? program->spec.sub_batch : program->spec.micro;
}
/* This thread's part [*first, *last) of n, in whole steps. */
void dpt_cpu_part(const struct dpt_cpu_run *run, int64_t n, int64_t step, int64_t *first,
                  int64_t *last);
/* Brings what a node's backward pass made to where the gradients of its inputs are. */
enum dpt_status dpt_cpu_pass_back(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                  struct dpt_error *err);
/* Whether backward of this node moves any number. */
bool dpt_cpu_moves_back(const struct dpt_cpu_node *node);
/* Waits for the other threads that share the layers. */
void dpt_cpu_barrier(const struct dpt_cpu_run *run);
/* Waits as dpt_cpu_barrier does, in the middle of a pass. */
void dpt_cpu_barrier_within(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                            enum dpt_span_pass pass);
/* Whether all layers of a graph can be shared. */
bool dpt_cpu_teams(const struct dpt_graph *graph);
/* The calling thread's scratch memory will hold this much. */
void dpt_cpu_want_scratch(struct dpt_cpu_program *program, int64_t floats);
/* Counts the time since the last mark as this pass of the node. Forward and backward are marked by
 * the program; a backward pass that makes the gradients of the parameters first, and then that of
 * the input, marks the former as DPT_PASS_WEIGHTS in between. Threads that wait for each other in a
 * pass mark that as DPT_SPAN_WAIT_THREADS. */
static inline void dpt_cpu_mark(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                enum dpt_span_pass pass)
{
    if (run->spans != NULL)
        dpt_spans_mark(run->spans, dpt_span_node(node->number, pass));
}

/* A tensor in the arenas; NULL for number -1, none. */
const float *dpt_cpu_param(const struct dpt_cpu_run *run, int32_t tensor);
float *dpt_cpu_gradient(const struct dpt_cpu_run *run, int32_t tensor);

/* In how many chunks the losses of so many rows are added up: of at most DPT_CPU_LOSS_ROWS rows, of
 * one sub-batch each. */
static inline int64_t dpt_cpu_loss_chunks(const struct dpt_cpu_program *program, int64_t rows)
{
    const int64_t sub_batch = dpt_cpu_sub_batch(program);

    return (rows + sub_batch - 1) / sub_batch *
           ((sub_batch + DPT_CPU_LOSS_ROWS - 1) / DPT_CPU_LOSS_ROWS);
}

/* What oneDNN wants to know of a convolution. */
struct dpt_conv_shape dpt_cpu_conv_shape(const struct dpt_cpu_program *program,
                                         const struct dpt_cpu_node *node);

#endif

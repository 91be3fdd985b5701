/*
 * program: how the CPU backend runs a graph. Private to this folder.
 *
 * Opening a program plans everything: the layout of each value, the buffers of a worker (values,
 * their gradients, what backward needs), the kernels, and the calls that bind kernels to a worker's
 * buffers. A buffer is a number while planning and an address once the workers exist. Number 0 is
 * the micro-batch's input, whose address comes with each call.
 *
 * In a team all threads compute one micro-batch, in the buffers of worker 0, each a part of every
 * layer; a barrier follows wherever one thread needs what another one computed. In evaluation each
 * worker always computes micro-batches of its own.
 *
 * Micro-batches are always computed in full: rows past `count` are zero in the input and in the
 * gradient of the outputs, so they add exactly nothing to the parameters' gradients. If a batch has
 * several sub-batches (backend.h), only those with samples are computed.
 *
 * Each kind of layer is a table of functions (struct dpt_cpu_op). When a node's forward pass is
 * planned, the node chooses the layout in which it reads (dpt_cpu_read) and writes (dpt_cpu_write);
 * the program inserts a reorder between two nodes only if their layouts differ. A join reads both
 * of its inputs in one layout.
 *
 * A buffer is reference-counted: it has as many owners as there are nodes that still have to read
 * it. Nodes are planned in the order of execution, forward and then backward, so a buffer without
 * owners can be used again, and one with a single owner may be overwritten by it. Evaluation
 * programs therefore hold a few values, however many layers there are; training programs hold what
 * backward reads, until it has read it.
 *
 * The gradient of a value that several nodes read is the sum of what they pass back. The first of
 * them in backward, which is the last in the graph, writes the buffer; the program adds the
 * gradient of each other one after that node's backward pass. An addition passes its own gradient
 * on to both of its inputs, which then own that buffer together.
 */
#ifndef DPT_BACKEND_CPU_PROGRAM_H
#define DPT_BACKEND_CPU_PROGRAM_H

#include "core/backend/backend.h"
#include "core/backend/cpu/bf16/bf16_gemm.h"
#include "core/backend/cpu/onednn/dnnl.h"
#include "core/comm/comm.h"

enum { DPT_CPU_NONE = -1, DPT_CPU_INPUT = 0 };

/* Whether oneDNN is part of this build. */
#if defined(DPT_WITH_ONEDNN) && DPT_WITH_ONEDNN
#define DPT_CPU_ONEDNN 1
#else
#define DPT_CPU_ONEDNN 0
#endif

/* Most buffers, calls and copies of a node. */
enum { DPT_CPU_PER_NODE = 12 };

/* Rows of a chunk: losses are summed within chunks, and then over them. */
enum { DPT_CPU_LOSS_ROWS = 16 };

struct dpt_cpu_program;
struct dpt_cpu_node;
struct dpt_cpu_worker;

/* One pass over one micro-batch. */
struct dpt_cpu_run {
    const struct dpt_cpu_program *program;
    const struct dpt_cpu_worker *worker; /* or another of its micro-batches in flight */
    float *scratch;                      /* of the calling thread */
    int thread, threads; /* this one of the threads that share the layers; 0 of 1 outside a team */
    int64_t rows;        /* rows to compute: whole sub-batches */
    const struct dpt_batch *batch;
    const float *params, *state; /* learned tensors are read in the first, others in the second */
    float *gradient;
    bool add, training;
    bool adds; /* add, but for the micro-batches of the same sum that were before */
    const struct dpt_pass *pass; /* over some nodes; NULL: over all, which is the whole step */
    struct dpt_spans *spans;     /* NULL: no profile is recorded */
    enum dpt_status *status;     /* the first failure of a call; later ones are left out */
    struct dpt_error *err;       /* says which */
};

struct dpt_cpu_op {
    /* Plans forward: chooses layouts, reserves buffers, creates kernels and calls. Errors: BAD_JOB,
     * RANK. */
    enum dpt_status (*plan)(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            struct dpt_error *err);
    /* Plans backward in the same way, once dx and dy are known. Optional. */
    enum dpt_status (*plan_backward)(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                     struct dpt_error *err);
    /* Updates what is derived from the parameters, such as reordered weights. *task numbers these
     * pieces of work over all nodes (dpt_cpu_own_task). Optional. */
    void (*refresh)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int thread,
                    int *task);
    /* Computes forward. NULL: there is nothing to compute, and the output, in canonical layout, is
     * the input. */
    void (*forward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    /* Computes the gradients of the parameters, and dx if wants_dx is set. NULL: as forward. */
    void (*backward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    /* For synchronized batch norms, else NULL: writes what the norm sums over this micro-batch to
     * run->pass->own, before forward and before backward; the latter makes the gradients of its
     * parameters. */
    void (*sum_forward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    void (*sum_backward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    /* The name of the code that computes a pass, if the node's shape chooses among several: of the
     * parameters' gradients (WEIGHTS), or of the input's (BACKWARD). NULL: it is not wanted.
     * Optional. */
    const char *(*way)(const struct dpt_cpu_node *node, enum dpt_span_pass pass);
    /* frees what `own` holds, also after a failed plan; optional */
    void (*close)(struct dpt_cpu_node *node);
    size_t own;      /* bytes of the node's `own`, which the program allocates and frees */
    bool shares;     /* a team can compute it: each thread computes its part of run->threads */
    bool takes_relu; /* it can also compute a relu after it in its own passes (node->relu) */
    bool takes_norm; /* in evaluation it can also compute a batch norm after it (node->norm), and a
                        relu after that */
};

/* A row for each operation, made from the same list. */
#define X(NAME, name) extern const struct dpt_cpu_op dpt_cpu_##name;
DPT_OPERATIONS(X)
#undef X
extern const struct dpt_cpu_op *const dpt_cpu_ops[DPT_OP_COUNT];

struct dpt_cpu_node {
    const struct dpt_graph_node *graph; /* NULL: the flatten that is added after the last node */
    const struct dpt_cpu_op *op;
    const char *name;
    int32_t number;                           /* in the graph */
    int32_t n_inputs, inputs[DPT_MAX_INPUTS]; /* numbers of nodes, none of them skipped */
    struct dpt_shape in, out;
    int32_t consumers;
    bool skipped; /* a relu, a batch norm or an addition that another node computes */
    /* The node that computes it: the max-pool that reads it, or the node that it reads; else the
     * node itself. */
    int32_t within;
    bool relu; /* also computes a relu: a max-pool the one before it, others the one after */
    /* A max-pool whose convolution reads the pool's gradient as a list of maxima (sparse.h). */
    bool listed;
    /* A max-pool that the convolution before it computes, or an addition that the batch norm before
     * it computes: that node then has no output of its own. */
    bool fused;
    struct dpt_cpu_node *pool;         /* a convolution: the 2 x 2 max-pool after it, or NULL */
    struct dpt_cpu_node *sum;          /* a batch norm: the addition after it, or NULL */
    const struct dpt_graph_node *norm; /* the batch norm folded into its weights, or NULL */
    bool wants_dy;                     /* it or a node before it has parameters */
    /* Its output, and the gradient of its output, lie in their buffers rounded to bf16, in half the
     * space, if all readers round them anyway. */
    bool y_bf16, dy_bf16;

    /* The first input and, for a join, the second, each under two names: by meaning, as kernels use
     * them, and by number, for loops. The buffers are those of the input node or of a reorder of
     * it; both are in x_layout. */
    union {
        struct {
            bool wants_dx, wants_dx_other; /* backward computes the gradient of that input */
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
            int dx, dx_other; /* their gradients; these may share a buffer, also with dy */
        };
        int dxs[DPT_MAX_INPUTS];
    };
    /* calls of reorders, or NONE */
    int reorder[DPT_MAX_INPUTS], reorder_back[DPT_MAX_INPUTS];
    struct {
        /* Buffers for a gradient with several readers: what the others passed back, what this node
         * passes back, and their sum; NONE: it is the only reader. */
        int a, b, sum;
        int known; /* the output of a relu through which the sum passes in the same pass, or NONE */
        bool within; /* all that is done by the node's own backward pass */
    } add[DPT_MAX_INPUTS];
    /* The node that added up its gradient last, and which of that node's inputs this one is; NONE:
     * it has one reader. */
    int32_t adder, adder_input;
    bool passed; /* its gradient has passed its relu already, with that sum */

    enum dpt_memory_layout x_layout, y_layout;
    int y, dy; /* buffers */
    int64_t y_floats;
    int argmax;  /* a max-pool: buffer of the argmax of each window, in the layout of y; or NONE */
    int known;   /* an activation: buffer, x or y, from which its derivative is computed */
    bool filled; /* an activation that does not map the padding channels' zeros to 0 */
    void *own;   /* the operation's own data; zeroed before `plan` */
};

/* The node whose output this one writes: a later node that it also computes, or itself. */
static inline const struct dpt_cpu_node *dpt_cpu_target(const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_node *after = node->pool != NULL ? node->pool : node->sum;

    return after != NULL && after->fused ? after : node;
}

/* A kernel of oneDNN's and the buffers to which its calls are bound; NONE: given at each call. */
struct dpt_cpu_call {
    struct dpt_kernel *kernel; /* NULL: dpt_move_blocks, from X to Y */
    int buffers[DPT_ROLE_COUNT];
    int32_t channels;
    int64_t pixels;
    bool to_planes;
};

/* Buffers that are not in use at the same time lie in the same memory (dpt_cpu_place_buffers). */
struct dpt_cpu_buffer_plan {
    int64_t floats; /* whole cache lines */
    int owners;     /* nodes that will still read it; 0: its memory can be used again */
    bool wanted;    /* by a node that the program computes; else it has no memory */
    int taken;      /* its number among all; those from `given` on may lie where it lay */
    int given;      /* INT_MAX: it is never given back */
    int64_t at;
};

struct dpt_cpu_worker {
    float *memory; /* of the workspace and all buffers */
    float *values; /* of all buffers */
    float **buffers;
    struct dpt_call **calls;
    struct dpt_metric_sums *metric_sums_of; /* [chunks]: sums over DPT_CPU_LOSS_ROWS rows each */
    struct dpt_spans *spans;                /* borrowed, or NULL */
};

struct dpt_cpu_program {
    struct dpt_program_spec spec;
    struct dpt_dnnl *dnnl; /* NULL: this build has no oneDNN */
    struct dpt_cpu_node *nodes;
    int32_t n_nodes;
    struct dpt_cpu_buffer_plan *buffers;
    int n_buffers;
    int n_taken;          /* how many of them were taken so far, while planning */
    int64_t value_floats; /* of the memory in which all of them lie */
    struct dpt_cpu_call *calls;
    int n_calls;
    struct {
        float **at;   /* where its address is kept */
        int32_t node; /* whose it is */
        int64_t floats;
    } * copies; /* of parameters, for all workers */
    int n_copies;
    int64_t copied;           /* bytes */
    float *own_copies;        /* the memory of all of them, or NULL: it is shared */
    struct dpt_shared shared; /* with the other ranks of the node; empty: with none */
    int ranks, rank;          /* that share it, of which this is one; 1, 0: none do */
    int64_t scratch;          /* floats of the largest workspace that a kernel needs */
    int64_t folded; /* floats of a worker's buffers that refresh needs, which are idle then */
    int refreshed;  /* or this one if some of them keep what is in them; NONE: they do not */
    int unwanted;   /* buffer for the gradients of frozen tensors; NONE: there are none */
    bool planning;  /* a node that it computes: what is asked for now will be used */
    bool keeps;     /* a node keeps operands of several micro-batches (dpt_cpu_kept) */
    int in_flight;  /* micro-batches that a worker may have in flight */
    /* in_flight for each worker, of which the first one has the workspace and the spans of all. */
    struct dpt_cpu_worker *workers;
};

/*
 * --- for planning. A buffer of so many floats: `reserve` for the worker's whole life, `take` until
 * all its owners have given it back, after which later nodes use it again. Return its number; there
 * is always room for DPT_CPU_PER_NODE per node.
 */
int dpt_cpu_reserve(struct dpt_cpu_program *program, int64_t floats);
int dpt_cpu_take(struct dpt_cpu_program *program, int64_t floats);
/* Once all are planned: finds the place of each one. Errors: RANK. */
enum dpt_status dpt_cpu_place_buffers(struct dpt_cpu_program *program, struct dpt_error *err);
/* Adds an owner and returns the buffer; removes one. */
int dpt_cpu_share(struct dpt_cpu_program *program, int buffer);
void dpt_cpu_give(struct dpt_cpu_program *program, int buffer);

/* Whether what a node multiplies is rounded first (bf16.h). */
static inline bool dpt_cpu_rounds(const struct dpt_cpu_program *program)
{
    return program->spec.precision == DPT_PRECISION_BF16;
}

/* Whether the program computes the node of this number in the graph. */
static inline bool dpt_cpu_computes(const struct dpt_cpu_program *program, int32_t number)
{
    return dpt_program_computes(&program->spec, number);
}

/* Plans memory for what `refresh` derives from the node's parameters; *copy is its address once the
 * program is open, and must stay where it is. */
void dpt_cpu_copy(struct dpt_cpu_program *program, const struct dpt_cpu_node *node, int64_t floats,
                  float **copy);

/* What the node's backward pass will read (DPT_KEEPS_…); nothing in evaluation. */
unsigned dpt_cpu_keeps(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node);

/* The layout in which the node's first input is stored. */
enum dpt_memory_layout dpt_cpu_input_layout(const struct dpt_cpu_program *program,
                                            const struct dpt_cpu_node *node);
/* Lets the node read its inputs in this layout: sets xs, and adds reorders if needed. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_cpu_read(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                             enum dpt_memory_layout layout, struct dpt_error *err);
/* Gives the node's output a buffer of its own in this layout; a convolution that computes the
 * max-pool after it gets none. */
void dpt_cpu_write(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                   enum dpt_memory_layout layout);
/* Reads the inputs in this layout, and writes the output in the same one; over one of them, if no
 * other node reads it any more. Errors: as dpt_cpu_read. */
enum dpt_status dpt_cpu_read_and_write_over(struct dpt_cpu_program *program,
                                            struct dpt_cpu_node *node,
                                            enum dpt_memory_layout layout, struct dpt_error *err);

/* In bf16: takes a buffer for the rounded operand that lies in another one; in fp32 the operand's
 * own buffer. It is given back once the node's pass is planned. dpt_cpu_round rounds the floats
 * [first, last) and returns the buffer's address. */
int dpt_cpu_take_rounded(struct dpt_cpu_program *program, int buffer, int64_t floats);
void dpt_cpu_give_rounded(struct dpt_cpu_program *program, int buffer, int rounded);

/* Adds a call that copies activations of this shape from one layout and buffer to others. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_cpu_reorder(struct dpt_cpu_program *program, const struct dpt_shape *s,
                                enum dpt_memory_layout from, int x, enum dpt_memory_layout to,
                                int y, int *call, struct dpt_error *err);
/* Adds a call to each worker; returns its number. The program takes ownership of the kernel. */
int dpt_cpu_call(struct dpt_cpu_program *program, struct dpt_kernel *kernel, int x, int y, int w,
                 int b);

/* Plans backward of all nodes. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_cpu_plan_gradients(struct dpt_cpu_program *program, struct dpt_error *err);

/* Whether the convolution's backward pass in fp32 can read the gradient of the pool after it as a
 * list of maxima (sparse.h). */
bool dpt_cpu_conv_lists(const struct dpt_cpu_node *conv);
/* The kernels of bf16_conv.h for a convolution, whose forward can add another value, the node's
 * second input, to its outputs; NULL: it uses other kernels. */
const struct dpt_bf16_kernels *dpt_cpu_conv_bf16(const struct dpt_cpu_program *program,
                                                 const struct dpt_cpu_node *conv);

/* dpt_backend.open, .share, .measure and .close. */
enum dpt_status dpt_cpu_open(const struct dpt_program_spec *spec, void **opened,
                             struct dpt_error *err);
enum dpt_status dpt_cpu_share_copies(void *opened, const struct dpt_group *node, bool *shared,
                                     struct dpt_error *err);
enum dpt_status dpt_cpu_measure(const struct dpt_program_spec *spec,
                                struct dpt_program_bytes *bytes, struct dpt_error *err);
void dpt_cpu_close(void *opened);

/* The instruction set of all kernels here, oneDNN's, too. */
enum dpt_isa dpt_cpu_isa(void);

/*
 * --- oneDNN, if it is part of this build (program_onednn.c): its engine, and calls of its kernels.
 */
enum dpt_status dpt_cpu_onednn_open(struct dpt_cpu_program *program, struct dpt_error *err);
void dpt_cpu_onednn_close(struct dpt_cpu_program *program);
/* Must be called by each thread that enters the program. */
void dpt_cpu_onednn_enter(const struct dpt_cpu_program *program);
/* Adds a call between any two layouts. */
enum dpt_status dpt_cpu_onednn_reorder(struct dpt_cpu_program *program, const struct dpt_shape *s,
                                       enum dpt_memory_layout from, int x,
                                       enum dpt_memory_layout to, int y, int *call,
                                       struct dpt_error *err);
/* Makes the calls of a worker's micro-batch in flight. */
enum dpt_status dpt_cpu_onednn_bind(struct dpt_cpu_program *program, int number,
                                    struct dpt_error *err);
void dpt_cpu_onednn_execute(const struct dpt_cpu_run *run, int call);

/* --- for running ------------------------------------------------------------------------------ */
float *dpt_cpu_buffer(const struct dpt_cpu_run *run, int buffer);
/* `set` gives a call of oneDNN's an argument that was NONE, `execute` runs any. A failure is the
 * run's. */
void dpt_cpu_set(const struct dpt_cpu_run *run, int call, enum dpt_role role, const float *memory);
void dpt_cpu_execute(const struct dpt_cpu_run *run, int call);
/* Samples of a sub-batch (backend.h); micro if there are none. */
static inline int64_t dpt_cpu_sub_batch(const struct dpt_cpu_program *program)
{
    return program->spec.sub_batch > 0 ? program->spec.sub_batch : program->spec.micro;
}
/* The number of micro-batches whose operands a layer with many weights for its rows keeps, to
 * write their gradients' sum once (dpt_backend.adds); 1: it writes each gradient. The sum grows
 * from the first to the last, as if each were added to the arena. */
static inline int32_t dpt_cpu_kept(const struct dpt_cpu_program *program)
{
    const struct dpt_program_spec *spec = &program->spec;
    const bool keeps = spec->adds > spec->micro / dpt_cpu_sub_batch(program) &&
                       spec->adds <= DPT_BF16_SEVERAL && !spec->reproducible && spec->last == 0 &&
                       program->in_flight == 1;

    return keeps ? spec->adds : 1;
}
const float *dpt_cpu_round(const struct dpt_cpu_run *run, int buffer, int rounded, int64_t first,
                           int64_t last);
/* This thread's part [*first, *last) of n, which begins and ends at multiples of `step`. */
void dpt_cpu_part(const struct dpt_cpu_run *run, int64_t n, int64_t step, int64_t *first,
                  int64_t *last);
/* This thread's part of a buffer with so many floats per micro-batch, for the rows that this one
 * has. */
struct dpt_cpu_floats {
    int64_t first, n;
};
struct dpt_cpu_floats dpt_cpu_floats_part(const struct dpt_cpu_run *run, int64_t floats);
/* Adds or reorders the gradients that a node's backward pass computed into its inputs'
 * gradients. */
void dpt_cpu_pass_back(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
/* Whether backward of this node does any work. */
bool dpt_cpu_moves_back(const struct dpt_cpu_node *node);
/* Writes this thread's part of a tensor's gradient of n floats, or adds to it if the run adds: the
 * sums over the samples of rows [sample][sums.outputs]. */
void dpt_cpu_sum_rows(const struct dpt_cpu_run *run, struct dpt_gemm sums, int64_t n,
                      const float *rows, int32_t tensor);
/* Waits for the other threads that share the layers. */
void dpt_cpu_barrier(const struct dpt_cpu_run *run);
/* Waits as dpt_cpu_barrier does, in the middle of a pass. */
void dpt_cpu_barrier_within(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                            enum dpt_span_pass pass);
/* Whether all layers of a graph can be shared. */
bool dpt_cpu_teams(const struct dpt_graph *graph);
/* Makes the workspace of each thread at least this large. */
static inline void dpt_cpu_want_scratch(struct dpt_cpu_program *program, int64_t floats)
{
    if (floats > program->scratch && program->planning)
        program->scratch = floats;
}
/* Adds the time since the last mark to this pass of the node. The program marks forward and
 * backward. A backward pass that computes the gradients of the parameters before that of the input
 * marks DPT_PASS_WEIGHTS in between; threads that wait for each other within a pass mark
 * DPT_SPAN_WAIT_THREADS. */
static inline void dpt_cpu_mark(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                enum dpt_span_pass pass)
{
    if (run->spans != NULL)
        dpt_spans_mark(run->spans, dpt_span_node(node->number, pass));
}

/* Takes the next number of a piece of work of refresh; whether this worker does it. The pieces are
 * assigned round-robin to the ranks that share the copies, and then to the workers of each. */
static inline bool dpt_cpu_own_task(const struct dpt_cpu_run *run, int worker, int *task)
{
    const struct dpt_cpu_program *program = run->program;
    const int number = (*task)++;

    return number % program->ranks == program->rank &&
           number / program->ranks % program->spec.threads == worker;
}

/* A tensor's address in the arenas; NULL for number -1 (none). */
const float *dpt_cpu_param(const struct dpt_cpu_run *run, int32_t tensor);
float *dpt_cpu_gradient(const struct dpt_cpu_run *run, int32_t tensor);

/* The number of chunks in which the losses of so many rows are summed; each has at most
 * DPT_CPU_LOSS_ROWS rows of one sub-batch. */
static inline int64_t dpt_cpu_loss_chunks(const struct dpt_cpu_program *program, int64_t rows)
{
    const int64_t sub_batch = dpt_cpu_sub_batch(program);

    return (rows + sub_batch - 1) / sub_batch *
           ((sub_batch + DPT_CPU_LOSS_ROWS - 1) / DPT_CPU_LOSS_ROWS);
}

/* The shape of a convolution as oneDNN takes it. */
struct dpt_conv_shape dpt_cpu_conv_shape(const struct dpt_cpu_program *program,
                                         const struct dpt_cpu_node *node);

#endif

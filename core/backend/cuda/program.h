/*
 * program: a graph on a device, for micro-batches of one size.
 *
 * Everything is laid out once: one list of launches (own kernels, cuDNN plans, cuBLASLt products)
 * for each part of a pass, with their arguments; memory for all that they read and write. Running a
 * list enqueues it on ctx.compute and waits for nothing, so it can be captured into a graph and
 * replayed: what changes from one micro-batch to the next (how many samples count, what keys the
 * dropout) stands in `control`, in device memory.
 *
 * The backend's table (backend.h) is made of these for host arenas (program_host.c); whole steps on
 * the device (steps.c) are made of the same lists. Threads: one at a time.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_H
#define DPT_BACKEND_CUDA_PROGRAM_H

#include <pthread.h>

#include "core/backend/backend.h"
#include "core/backend/cuda/context.h"
#include "core/backend/cuda/matmul.h"
#include "core/backend/devices.h"
#include "core/backend/operation.h"
#include "core/backend/steps.h"
#include "core/base/span.h"
#include "core/base/str.h"

/* The lists of launches. */
enum dpt_cuda_stage {
    DPT_CUDA_LAYOUTS,     /* `params` into what the layers read; after each change of params */
    DPT_CUDA_FROM_STAGED, /* samples from `input`: floats, canonical, already normalised */
    DPT_CUDA_FROM_STORED, /* samples from the data set on the device, by `sample` and `move`
                             (dpt_cuda_program_store) */
    DPT_CUDA_FORWARD_LIST,
    DPT_CUDA_LOSS_LIST,     /* adds to the metric sums; in training also the outputs' gradient */
    DPT_CUDA_BACKWARD_LIST, /* by dpt_cuda_enqueue_backward */
    DPT_CUDA_GRADIENT_LIST, /* by dpt_cuda_enqueue_gradient */
    DPT_CUDA_ANSWERS,       /* outputs as canonical rows of floats */
    DPT_CUDA_STAGES
};

struct dpt_cuda_program {
    struct dpt_program_spec spec;     /* its graph is `folded` */
    const struct dpt_graph *unfolded; /* the one that was given */
    struct dpt_graph folded;          /* with nodes of its own */
    int32_t micro;                    /* samples of one pass: spec.sub_batch or spec.micro */
    struct dpt_cuda_context ctx;

    /* Device memory that others read and write. */
    float *params;   /* [arena] */
    float *gradient; /* [arena + DPT_TENSOR_ALIGN]: a tail of words is behind it, which no pass
                        touches */
    struct dpt_cuda_control *control;
    struct dpt_cuda_state *state;
    struct dpt_cuda_metric_sums *metric_sums; /* train and infer add to it */
    float *input;                             /* [micro][c][h][w] */
    int32_t *labels;                          /* [micro] */
    float *targets;                           /* [micro][outputs] */
    float *weights;                           /* [micro] */
    int64_t *sample;                          /* [micro] */
    struct dpt_cuda_move *move;               /* [micro] */

    struct dpt_cuda_lists *lists; /* private to program*.c */
    pthread_mutex_t lock;         /* of threads that use the backend's table */
};

/* The GPUs of this machine, and whole steps on one, beside the backend's own table. */
extern const struct dpt_backend_devices dpt_cuda_devices;
extern const struct dpt_backend_steps dpt_cuda_steps;

/*
 * The table's `open`. Errors: BAD_JOB (a layer that cannot be done here: names it; libraries,
 * device; memory: what was needed for what, and the largest micro-batch that would fit), RANK. On
 * failure everything is released and *program is NULL.
 */
enum dpt_status dpt_cuda_program_open(const struct dpt_program_spec *spec, void **program,
                                      struct dpt_error *err);
/* The same, with each batch norm computed by itself. */
enum dpt_status dpt_cuda_program_open_plain(const struct dpt_program_spec *spec, void **program,
                                            struct dpt_error *err);
void dpt_cuda_program_close(void *program);
/* The table's `measure`: what open would hold, from shapes alone: no device is needed. The
 * workspace is a guess. */
enum dpt_status dpt_cuda_program_measure(const struct dpt_program_spec *spec,
                                         struct dpt_program_bytes *bytes, struct dpt_error *err);

/* Enqueues a list; samples are control->count, losses as dpt_cuda_program_targets told the program.
 * Errors, as of all that enqueues: RANK, INTERNAL. */
enum dpt_status dpt_cuda_run_list(struct dpt_cuda_program *p, enum dpt_cuda_stage stage,
                                  bool training, struct dpt_error *err);
/* Forward in training. add: what the micro-batch gives for the state is added to what is in
 * `gradient`, else written. */
enum dpt_status dpt_cuda_enqueue_forward(struct dpt_cuda_program *p, bool add,
                                         struct dpt_error *err);
/*
 * The layers' gradients, from the last to the first. add: the biases' gradients are added to what
 * is in `gradient`, else written. done(arg, node): called when all that backward does for a node
 * and those behind it is enqueued; may be NULL. The weights' gradients are then in the layers'
 * layout:
 */
enum dpt_status dpt_cuda_enqueue_backward(struct dpt_cuda_program *p, bool add,
                                          enum dpt_status (*done)(void *arg, int32_t node,
                                                                  struct dpt_error *err),
                                          void *arg, struct dpt_error *err);
/* the weights' gradients of nodes first … last-1, from the layouts into `gradient`. */
enum dpt_status dpt_cuda_enqueue_gradient(struct dpt_cuda_program *p, int32_t first, int32_t last,
                                          bool add, struct dpt_error *err);

/* Whether losses have labels or target vectors from here on (labels at first), and whether samples
 * have weights. */
void dpt_cuda_program_targets(struct dpt_cuda_program *p, bool vectors, bool weights);

/* Sets the loss scale of `state`, and waits. */
enum dpt_status dpt_cuda_set_loss_scale(struct dpt_cuda_program *p, float loss_scale,
                                        struct dpt_error *err);

/* Where DPT_CUDA_FROM_STORED finds the data set: device memory, as struct dpt_steps_data has it;
 * scale, shift: device memory, [c]. moves: whether `move` counts. */
void dpt_cuda_program_store(struct dpt_cuda_program *p, const void *data, bool u8, bool nhwc,
                            const float *scale, const float *shift, bool moves);

/* While somebody asks where the time goes (the table's `profile`), each launch is waited for:
 * nothing can be captured then. */
bool dpt_cuda_program_profiled(const struct dpt_cuda_program *p);

/* An own kernel that is in no list, for the steps: as dpt_cuda_launch, and its time is told as
 * `span`. */
enum dpt_status dpt_cuda_program_launch(struct dpt_cuda_program *p, enum dpt_cuda_kernel kernel,
                                        const void *argument, int span, struct dpt_error *err);

/* The table's `launches`. */
enum dpt_status dpt_cuda_program_costs(struct dpt_cuda_program *p, struct dpt_launch_cost *costs,
                                       int most, int *n, struct dpt_error *err);

/* The table's `determinism`. */
void dpt_cuda_program_determinism(const void *program, struct dpt_str *text);

/* The table's `plans`: "conv1 forward<tab>conv forward bf16 x=... | NVIDIA H200 | cuDNN 91900<tab>
 * +engine=48 2=5". */
void dpt_cuda_program_plans(const void *program, struct dpt_str *text);

/* --- what program*.c share: for these files only ---------------------------------------------- */

/*
 * A program is made in this order: the memory layout (which tensors there are, how they lie, how
 * much memory they take: shapes only, no device), the memory, the lists of launches, for which
 * plans are chosen, and last the workspace, as large as the chosen ones need.
 */

/* A plan's tag in the file has a sign in front that says whether bias and ReLU are in it. */
enum { DPT_CUDA_NONE = -1, DPT_CUDA_ALIGN = 256, DPT_CUDA_FUSED_TAG = DPT_CUDA_TAG + 2 };

/* --- memory layout: program_layout.c ---------------------------------------------------------- */

/* Where a node's output and what belongs to the node lie. Offsets are bytes from the start of a
 * region. */
struct dpt_cuda_node_layout {
    bool live;      /* on the way from the input to the outputs; nothing is done for the others */
    bool skipped;   /* a ReLU that the node before or the pool behind computes; a flatten */
    bool relu;      /* a convolution, dense layer or sum, or a max-pool, that computes one */
    bool wants_dy;  /* it has parameters, or one before it does */
    bool flat;      /* a dense layer whose weights have the arena's order */
    bool direct;    /* and lie as the arena has them: no copy is made */
    bool straight;  /* the gradient of its weights is written into the arena */
    int32_t tensor; /* the node whose tensor its output is: its own, or one before */
    int32_t reader; /* the live node that reads it; NONE: several do, or it is the last */
    int32_t channels, h, w, pitch;
    int64_t y, saved; /* in `values`; saved: what forward leaves to backward; NONE: nothing */
    /* In `gradients`; NONE: not wanted. dy: of its output; dz: of what the ReLU that it computes
     * reads, else dy; dx: where its part of its inputs' gradients goes, and the sum with what other
     * readers passed back before, which is in `sum` (NONE: it is the first). */
    int64_t dy, dz, dx[DPT_MAX_INPUTS], sum[DPT_MAX_INPUTS];
    int64_t weight, bias; /* elements into `copies`; NONE: in the arena, or there is none */
    int64_t dweight;      /* bytes into `dweights`; NONE */
};

/* Device memory: a piece each, in the order in which it is held. */
enum dpt_cuda_region {
    /* What the layers give, and what they are given. */
    DPT_CUDA_CONTROL,
    DPT_CUDA_STATE,
    DPT_CUDA_METRIC_SUMS,
    DPT_CUDA_INPUT,
    DPT_CUDA_LABELS,
    DPT_CUDA_WEIGHTS,
    DPT_CUDA_TARGETS,
    DPT_CUDA_SAMPLE,
    DPT_CUDA_MOVE,
    DPT_CUDA_VALUES,  /* outputs of layers, and argmaxes of max-pools */
    DPT_CUDA_OUTPUTS, /* of the last layer in canonical order, as floats, and their gradient */
    DPT_CUDA_DY,      /* gradients of outputs */
    /* Parameters. */
    DPT_CUDA_PARAMS,
    DPT_CUDA_GRADIENT,
    DPT_CUDA_COPIES,
    DPT_CUDA_DWEIGHTS,
    DPT_CUDA_SUMS, /* arenas in which sub-batches are added up */
    /* What passes need for themselves. */
    DPT_CUDA_PARTIAL, /* sums of kernels */
    DPT_CUDA_COUNTERS,
    DPT_CUDA_LOSSES,
    DPT_CUDA_FOUND,
    DPT_CUDA_WORKSPACE, /* estimated: only cuDNN can tell */
    DPT_CUDA_REGIONS
};

struct dpt_cuda_memory_layout {
    struct dpt_cuda_node_layout *node;
    int32_t last;    /* the node whose output counts */
    int64_t element; /* bytes of a tensor's element */
    int32_t lanes;   /* elements of 16 bytes */
    bool canonical;  /* the last tensor has an area: its rows are put in order for the loss */
    bool flattens;   /* flattened values are put in order: a layer needs them so */
    int64_t outputs; /* numbers in a sample's output */
    int64_t bytes[DPT_CUDA_REGIONS];
};

/* Room for `bytes` at the end of a region; where it begins. */
int64_t dpt_cuda_take(int64_t *region, int64_t bytes);
/* So many bytes of a region that layers use one after another. */
void dpt_cuda_share(struct dpt_cuda_memory_layout *memory_layout, enum dpt_cuda_region region,
                    int64_t bytes);
/* Places the gradients: program_gradients.c. Errors: RANK. */
enum dpt_status dpt_cuda_place_gradients(const struct dpt_program_spec *spec, int64_t micro,
                                         struct dpt_cuda_memory_layout *memory_layout,
                                         struct dpt_error *err);
/* Numbers in a tensor of so many samples, and in a parameter's copy, padding too. */
int64_t dpt_cuda_form_elements(const struct dpt_cuda_node_layout *f, int64_t micro);
int64_t dpt_cuda_copy_elements(const struct dpt_cuda_layout *l);

/* Of a micro-batch of `micro` samples. Errors: BAD_JOB (names the layer), RANK. Released by
 * dpt_cuda_memory_layout_release also then. */
enum dpt_status dpt_cuda_memory_layout_make(const struct dpt_program_spec *spec, int32_t micro,
                                            struct dpt_cuda_memory_layout *memory_layout,
                                            struct dpt_error *err);
void dpt_cuda_memory_layout_release(struct dpt_cuda_memory_layout *memory_layout);
/* Bytes of the regions first … behind-1. */
int64_t dpt_cuda_regions_sum(const struct dpt_cuda_memory_layout *memory_layout,
                             enum dpt_cuda_region first, enum dpt_cuda_region behind);
/* Samples of one pass. */
static inline int32_t dpt_cuda_rows(const struct dpt_program_spec *spec)
{
    return spec->sub_batch > 0 ? spec->sub_batch : spec->micro;
}

/* --- batch norms in weights: program_fold.c --------------------------------------------------- */

/* The graph of a program for this spec; its nodes are to be freed. Errors: RANK. */
enum dpt_status dpt_cuda_fold_graph(const struct dpt_program_spec *spec, struct dpt_graph *folded,
                                    struct dpt_error *err);
/* Whether node i of such a graph is a batch norm that is part of the weights before it; whether any
 * is. */
bool dpt_cuda_is_folded(const struct dpt_graph *folded, int32_t i);
bool dpt_cuda_folds(const struct dpt_cuda_program *p);
/* Writes what is different in the device's arena. */
void dpt_cuda_fold_params(const struct dpt_cuda_program *p, const float *params, float *arena);

/* --- launches: program_entries.c, program_lists.c, program_run.c ------------------------------ */

struct dpt_cuda_array_at {
    void *at;
    int64_t bytes;
};

/* Which arrays a pass reads, a and b of a product, and which it writes. */
extern const struct dpt_cuda_roles {
    enum dpt_cuda_array a, b, d;
} dpt_cuda_roles[DPT_CUDA_PASSES];

/* What cuDNN or cuBLASLt computes: the problem, and the plan that was chosen for it. */
struct dpt_cuda_math {
    struct dpt_cuda_math *next;
    const char *name; /* of the layer */
    bool dense;
    enum dpt_cuda_pass pass;
    struct dpt_cuda_array_at array[DPT_CUDA_ARRAYS]; /* bias: NULL where it has none */
    void *workspace;
    struct dpt_cuda_conv conv;
    struct dpt_cuda_plans plans;
    cudnnBackendDescriptor_t bound;
    struct dpt_cuda_gemm gemm;
    struct dpt_cuda_gemms gemms;
    int which;       /* the one that was chosen */
    float ms[2];     /* that the fastest took, of those that repeat their bits and of those that do
                        not (INFINITY: there is none); 0: that was not measured */
    bool bias, relu; /* are fused in it */
    int64_t needs;   /* bytes of workspace */
    double flops;
};

enum dpt_cuda_what { DPT_CUDA_KERNEL, DPT_CUDA_MATH, DPT_CUDA_FILL, DPT_CUDA_COPY };
enum dpt_cuda_when { DPT_CUDA_ALWAYS, DPT_CUDA_TRAINING, DPT_CUDA_EVALUATION, DPT_CUDA_WRITING };

struct dpt_cuda_entry {
    enum dpt_cuda_what what;
    enum dpt_cuda_when when; /* WRITING: only where nothing is added */
    int32_t node;
    int span; /* what its time is told as */
    enum dpt_cuda_kernel kernel;
    union {
#define X(argument) struct dpt_cuda_##argument##_args argument;
        DPT_CUDA_TYPED_ARGUMENTS(X)
#undef X
        struct dpt_cuda_feed_args feed;
        struct dpt_cuda_norm_args norm;
        struct dpt_cuda_tail_args tail;
        struct dpt_cuda_update_args update;
    } args;
    size_t add; /* where in args an int32_t says that the kernel adds; 0: nowhere */
    struct dpt_cuda_math *math;
    /* Fill with zeros, copy. */
    void *to;
    const void *from;
    int64_t bytes;
};

/* A launch that was made while somebody asked where the time goes. */
struct dpt_cuda_record {
    struct dpt_cuda_entry entry;
    bool add;
    int64_t calls;
    double ms; /* of one, once it is measured */
};

struct dpt_cuda_list {
    struct dpt_cuda_entry *entry;
    int n;
    size_t room;
};

/* Weights whose gradients go from the layers' layout into the arena: a run of `layouts`. */
struct dpt_cuda_back {
    int first, n;
};

struct dpt_cuda_lists {
    struct dpt_cuda_memory_layout memory_layout;
    struct dpt_cuda_list list[DPT_CUDA_STAGES];
    struct dpt_cuda_back back[2];    /* in the tensors' type; floats, where that is another */
    struct dpt_cuda_layout *layouts; /* pinned, and the same on the device */
    struct dpt_cuda_layout *device_layouts;
    int32_t *back_node; /* of a gradient's layout: the node */
    int input_layout, rows_layout;
    struct dpt_cuda_math *maths;
    struct dpt_cuda_cache *cache;

    /* Regions of device memory. */
    char *values, *gradients, *copies, *dweights, *workspace;
    int64_t workspace_bytes;
    int64_t workspace_limit; /* of one plan */
    float *rows, *drows, *sums, *partial;
    double *losses; /* partial sums of losses */
    uint32_t *counters;
    uint64_t *found; /* [nodes]: the first element that is not finite */

    struct dpt_spans *spans; /* NULL: nobody asks where the time goes */
    struct dpt_cuda_record *records;
    int n_records;
    size_t record_room;
    CUevent begin, end;
    uint64_t *noise; /* pinned: numbers to try plans with */

    /* Pinned: what the table's functions send and get; [leaves]. */
    struct dpt_cuda_control *control;
    struct dpt_cuda_metric_sums *metric_sums;
    float *input, *targets, *weights, *arena, *answers;
    int32_t *labels;
    int64_t *sample;
    uint64_t *positions;
    int32_t first; /* row of the batch from which the last sub-batch was sent */
};

/* A kernel's number for the tensors' type. */
static inline enum dpt_cuda_kernel dpt_cuda_typed(const struct dpt_cuda_program *p,
                                                  enum dpt_cuda_kernel of_floats)
{
    static const int types[DPT_PRECISIONS] = {
        [DPT_PRECISION_BF16] = DPT_CUDA_K_relu_b16 - DPT_CUDA_K_relu_f32,
        [DPT_PRECISION_FP16] = DPT_CUDA_K_relu_h16 - DPT_CUDA_K_relu_f32,
    };

    return (enum dpt_cuda_kernel)((int)of_floats + types[p->spec.precision]);
}

static inline struct dpt_cuda_node_layout *dpt_cuda_node_layout_of(const struct dpt_cuda_program *p,
                                                                   int32_t i)
{
    return &p->lists->memory_layout.node[i];
}

/* The node whose output it reads; of a join, the first. */
static inline int32_t dpt_cuda_before(const struct dpt_cuda_program *p, int32_t i)
{
    return p->spec.graph->nodes[i].inputs[0];
}

static inline const struct dpt_tensor *dpt_cuda_tensor_of(const struct dpt_cuda_program *p,
                                                          int32_t number)
{
    return &p->spec.graph->tensors[number];
}

/* Where the loss scale stands; NULL: there is none. */
static inline const struct dpt_cuda_state *dpt_cuda_state_of(const struct dpt_cuda_program *p)
{
    return p->spec.precision == DPT_PRECISION_FP16 ? p->state : NULL;
}

/* At a list's end; copied. */
enum dpt_status dpt_cuda_add_entry(struct dpt_cuda_program *p, enum dpt_cuda_stage stage,
                                   const struct dpt_cuda_entry *entry, struct dpt_error *err);
/* A launch of a node's pass; kernel: of the tensors' type. */
struct dpt_cuda_entry dpt_cuda_kernel_entry(const struct dpt_cuda_program *p, int32_t node,
                                            enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                            const void *args);
/* The same at the end of the list that the pass belongs to. */
enum dpt_status dpt_cuda_add_kernel(struct dpt_cuda_program *p, int32_t node,
                                    enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                    const void *args, struct dpt_error *err);
enum dpt_status dpt_cuda_lists_build(struct dpt_cuda_program *p, struct dpt_error *err);
void dpt_cuda_lists_release(struct dpt_cuda_program *p);
/* The tensor of a node's output. */
void *dpt_cuda_value(const struct dpt_cuda_program *p, int32_t node);
/* One of the places of a node's layout in `gradients`; NULL where it is NONE. */
void *dpt_cuda_gradient(const struct dpt_cuda_program *p, int64_t place);
/* Numbers in it, padding too. */
int64_t dpt_cuda_elements(const struct dpt_cuda_program *p, int32_t node);
/* A copy of a parameter, in the tensors' type. place: elements into `copies`. */
void *dpt_cuda_copy(const struct dpt_cuda_program *p, int64_t place);
/* The launch alone. */
enum dpt_status dpt_cuda_enqueue_entry(struct dpt_cuda_program *p, struct dpt_cuda_entry *entry,
                                       bool add, struct dpt_error *err);
/* y = a + b, of the form of a node's output, in that node's pass. */
enum dpt_status dpt_cuda_add_sum(struct dpt_cuda_program *p, int32_t node, int32_t form, int64_t a,
                                 int64_t b, int64_t y, struct dpt_error *err);
/* From a node's dy to its dz through the ReLU that it computes. */
enum dpt_status dpt_cuda_relu_backward(struct dpt_cuda_program *p, int32_t node,
                                       struct dpt_error *err);
/* One more tensor to be moved. */
void dpt_cuda_count_layout(const struct dpt_cuda_layout *l, struct dpt_cuda_layout_args *args);

/* --- operations: program_weights.c, program_pools.c, program_pointwise.c ---------------------- */

/* How an operation is computed here: a row each, made from the list of operations. Kernels are
 * named for floats. */
struct dpt_cuda_op {
    /* What the passes of a node enqueue. Optional where nothing is moved (DPT_CLASS_NOTHING). */
    enum dpt_status (*forward)(struct dpt_cuda_program *p, const struct dpt_cuda_op *op, int32_t i,
                               struct dpt_error *err);
    enum dpt_status (*backward)(struct dpt_cuda_program *p, const struct dpt_cuda_op *op, int32_t i,
                                struct dpt_error *err);
    /* Of one with parameters: takes memory for copies of them and for their gradients. */
    void (*place)(const struct dpt_program_spec *spec, struct dpt_cuda_memory_layout *memory_layout,
                  int64_t micro, int32_t i);
    /* Of one with parameters: how `weight` (or `bias`) and its copy lie, but for the copy's place.
     */
    struct dpt_cuda_layout (*layout)(const struct dpt_graph *graph,
                                     const struct dpt_cuda_memory_layout *memory_layout, int32_t i,
                                     bool bias);
    /* Bytes that forward leaves to backward. Optional: none. */
    int64_t (*saved)(const struct dpt_cuda_node_layout *f, int64_t micro);
    enum dpt_cuda_kernel kernel, back;    /* of a pool or an activation */
    enum dpt_cuda_kernel relu, relu_back; /* the same with a ReLU in front; where takes_relu */
    bool takes_relu;                      /* computes a ReLU in front of it */
    bool fuses_relu;                      /* computes one behind it */
    bool in_place;                        /* backward may write dx over dy */
    bool keeps_dy;                        /* as it is, also where it computes a ReLU */
    bool passes_dy;                       /* its inputs' gradients are its own, and it adds them
                                             to what others passed back */
    bool float_gradients;                 /* of its weights, whatever the tensors are */
};

#define X(NAME, name) extern const struct dpt_cuda_op dpt_cuda_##name;
DPT_OPERATIONS(X)
#undef X
extern const struct dpt_cuda_op *const dpt_cuda_ops[DPT_OP_COUNT];

static inline const struct dpt_cuda_op *dpt_cuda_op_of(const struct dpt_cuda_program *p, int32_t i)
{
    return dpt_cuda_ops[p->spec.graph->nodes[i].op];
}

/* --- times: program_time.c -------------------------------------------------------------------- */

typedef enum dpt_status dpt_cuda_enqueue(void *arg, struct dpt_error *err);

/* A launch so often in a row, as a graph, that a replay of it has a time: what a step's graph pays
 * for it, with the arrays in cache where they fit there. Zero-initialise: {0}. */
struct dpt_cuda_repeat {
    dpt_cuda_enqueue *enqueue;
    void *arg;
    CUgraphExec exec;
    int repeats;
    float replay; /* ms: the last one */
    float spent;  /* ms: all of them */
    float least;  /* ms of one run, in the fastest of them */
};

/* enqueue(arg) must have been run before, and be legal in a capture. Replays it once or more, and
 * waits. cuEventElapsedTime must be there. Errors: enqueue's, RANK. */
enum dpt_status dpt_cuda_repeat_open(struct dpt_cuda_program *p, dpt_cuda_enqueue *enqueue,
                                     void *arg, struct dpt_cuda_repeat *r, struct dpt_error *err);
/* Once more; waits. */
enum dpt_status dpt_cuda_repeat_time(struct dpt_cuda_program *p, struct dpt_cuda_repeat *r,
                                     struct dpt_error *err);
/* Whether `least` would be better known after another one. rounds: that there were. */
bool dpt_cuda_repeat_more(const struct dpt_cuda_repeat *r, int rounds);
void dpt_cuda_repeat_close(struct dpt_cuda_program *p, struct dpt_cuda_repeat *r);

/* --- plans: program_math.c, program_plans.c, program_tune.c, program_cache.c ------------------ */

/* Finds the plan for a problem. Errors: BAD_JOB (names the layer), RANK. */
enum dpt_status dpt_cuda_choose(struct dpt_cuda_program *p, struct dpt_cuda_math *math,
                                struct dpt_error *err);
/* With its arrays and this workspace. */
enum dpt_status dpt_cuda_bind(struct dpt_cuda_math *math, void *workspace, struct dpt_error *err);
/* add: what it writes is added to what is there; dense layers' gradients only. */
enum dpt_status dpt_cuda_run_math(struct dpt_cuda_program *p, struct dpt_cuda_math *math, bool add,
                                  struct dpt_error *err);
void dpt_cuda_math_release(struct dpt_cuda_math *math);
/* How many plans there are to choose from; bytes of workspace that one needs. */
int dpt_cuda_found(const struct dpt_cuda_math *math);
int64_t dpt_cuda_needs(const struct dpt_cuda_math *math, int which);
/*
 * Times the plans of one or two kinds, which compute the same from and into the same arrays. Of
 * each kind: math->which: the fastest; ms: what it takes, INFINITY where none could be captured.
 * The arrays hold zeros afterwards. Errors: no plan works at all; RANK.
 */
enum dpt_status dpt_cuda_tune(struct dpt_cuda_program *p, struct dpt_cuda_math *const *kinds,
                              int n_kinds, float *ms, struct dpt_error *err);

/* The tag behind the last of the text's lines that begins with the problem and a tab. text: NULL is
 * an empty one. tag: out, DPT_CUDA_FUSED_TAG bytes. */
bool dpt_cuda_tag_find(const char *text, const char *problem, char *tag);

/* Tags of plans that were timed, by problem; kept in a file of a folder, or (NULL) only here. */
struct dpt_cuda_cache *dpt_cuda_cache_open(const char *folder);
/* tag: as dpt_cuda_tag_find's. */
bool dpt_cuda_cache_find(const struct dpt_cuda_cache *cache, const char *problem, char *tag);
void dpt_cuda_cache_add(struct dpt_cuda_cache *cache, const char *problem, const char *tag);
/* Writes what is new into the file, beside what others have written there meanwhile. A file that
 * cannot be written is no error: the next start measures again. */
void dpt_cuda_cache_save(struct dpt_cuda_cache *cache);
void dpt_cuda_cache_close(struct dpt_cuda_cache *cache);

#endif

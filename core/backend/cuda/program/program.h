/*
 * program: a graph on a device, for micro-batches of one size.
 *
 * Opening a program plans everything: for each part of a pass a list of launches (custom kernels,
 * cuDNN plans, cuBLASLt matrix products) with their arguments, and the memory that these read and
 * write. Running a list enqueues it on ctx.compute and does not wait, so it can be captured in a
 * graph and replayed. What differs between micro-batches (the number of samples, the keys of the
 * dropout) is in `control`, in device memory.
 *
 * The backend's table (backend.h) uses the lists on host arenas (program_host.c); whole steps on
 * the device (steps.c) use the same lists. One thread at a time may use a program.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_H
#define DPT_BACKEND_CUDA_PROGRAM_H

#include <pthread.h>

#include "core/backend/backend.h"
#include "core/backend/cuda/libraries/context.h"
#include "core/backend/cuda/program/program_plans.h"
#include "core/backend/devices.h"
#include "core/backend/operation.h"
#include "core/backend/steps.h"
#include "core/base/span.h"
#include "core/base/str.h"

/* The lists of launches. */
enum dpt_cuda_list_kind {
    /* Converts `params` to the copies that layers read, after each change; by
     * dpt_cuda_enqueue_layouts. */
    DPT_CUDA_LAYOUTS,
    DPT_CUDA_FROM_STAGED, /* loads samples from `input`: normalised floats in canonical order */
    DPT_CUDA_FROM_STORED, /* from the data set on the device (dpt_cuda_program_store) */
    DPT_CUDA_FORWARD_LIST,
    DPT_CUDA_LOSS_LIST,     /* adds to the metric sums; in training also the outputs' gradient */
    DPT_CUDA_BACKWARD_LIST, /* by dpt_cuda_enqueue_backward */
    DPT_CUDA_GRADIENT_LIST, /* by dpt_cuda_enqueue_gradient */
    DPT_CUDA_ANSWERS,       /* writes the outputs as floats in canonical order */
    DPT_CUDA_LISTS
};

struct dpt_cuda_program {
    struct dpt_program_spec spec;     /* its graph is `folded` */
    const struct dpt_graph *unfolded; /* the one that was given */
    struct dpt_graph folded;          /* with nodes of its own */
    int32_t micro;                    /* samples of one pass: spec.sub_batch or spec.micro */
    struct dpt_cuda_context ctx;
    const struct dpt_cuda_op *const *ops; /* dpt_cuda_ops, for the rows' own files */

    /* Device memory that others read and write. */
    float *params; /* [arena]; with spec.units two units' and the state (dpt_cuda_at) */
    /* Likewise, and DPT_TENSOR_ALIGN more: a tail of words, which no pass changes. */
    float *gradient;
    struct dpt_cuda_control *control;
    struct dpt_cuda_state *state;
    struct dpt_cuda_metric_sums *metric_sums; /* train and infer add to them */
    float *input;                             /* [micro][c][h][w] */
    int32_t *labels;                          /* [micro] */
    float *targets;                           /* [micro][outputs] */
    float *weights;                           /* [micro] */
    int64_t *sample;                          /* [micro] */

    struct dpt_cuda_lists *lists; /* private to program*.c */
    pthread_mutex_t lock;         /* held by threads that use the backend's table */
    /* The program whose parameters, gradient, workspace and pinned memory this one shares (under
     * lock); itself: it has its own. */
    struct dpt_cuda_program *first;
    int64_t unsound; /* a parameter that is not finite since the last refresh; -1: none */
    /* The programs of the other micro-batches that workers have in flight (program_passes.c). */
    struct dpt_cuda_program **others;
    int n_others;
};

/* The GPUs of this machine, and whole steps on one, beside the backend's own table. */
extern const struct dpt_backend_devices dpt_cuda_devices;
extern const struct dpt_backend_steps dpt_cuda_steps;

/*
 * Implements dpt_backend.open. Errors: BAD_JOB (a layer that the device cannot compute: names it;
 * libraries; device; memory: says how much each part needs, and the largest micro-batch that would
 * fit), RANK. On failure everything is released and *program is NULL.
 *
 * first: NULL, or another program for the same spec, which must stay open as long, and whose device
 * and parameters this one uses. Only one of the two may run at a time.
 */
enum dpt_status dpt_cuda_program_open(const struct dpt_program_spec *spec,
                                      struct dpt_cuda_program *first, void **program,
                                      struct dpt_error *err);
void dpt_cuda_program_close(void *program);
/* Implements dpt_backend.measure: the memory that open would hold, from shapes alone, without a
 * device. The size of the workspace is estimated. */
enum dpt_status dpt_cuda_program_measure(const struct dpt_program_spec *spec,
                                         struct dpt_program_bytes *bytes, struct dpt_error *err);

/* Enqueues a list for control->count samples. Labels and weights are as dpt_cuda_program_targets
 * said. add: of forward in training: the micro-batch's contribution to the state is added to the
 * content of `gradient`, else written there. Errors, as of all functions that enqueue: RANK,
 * INTERNAL. */
enum dpt_status dpt_cuda_run_list(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                  bool training, bool add, struct dpt_error *err);
/* Enqueues those launches of a list that belong to nodes first ... last-1, without the sums of
 * synchronized norms, except for those of node `norm`. */
enum dpt_status dpt_cuda_enqueue_range(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                       int32_t first, int32_t last, int32_t norm, bool training,
                                       struct dpt_error *err);
/* Where the samples of a micro-batch of whole steps lie in device memory: each [micro], or NULL. */
struct dpt_cuda_samples {
    const float *input; /* if they are not stored on the device; as `input` above */
    const int64_t *sample;
    const struct dpt_cuda_move *move;
    const struct dpt_cuda_control *control; /* how many there are */
    struct dpt_cuda_feed_args feed;         /* is copied in the same launch */
};
/* Enqueues DPT_CUDA_FROM_STAGED or, if there is no input, DPT_CUDA_FROM_STORED. */
enum dpt_status dpt_cuda_enqueue_samples(struct dpt_cuda_program *p,
                                         const struct dpt_cuda_samples *samples,
                                         struct dpt_error *err);
/*
 * Enqueues the loss of training. If one block can add up the gradient of the last layer's bias,
 * this launch does (add: to the content of `gradient`), and dpt_cuda_enqueue_backward leaves it
 * out. tail: NULL, or the words after the gradient, which are written from the metric sums; these
 * are then cleared.
 */
enum dpt_status dpt_cuda_enqueue_loss(struct dpt_cuda_program *p, bool add, float *tail,
                                      struct dpt_error *err);
/*
 * Between these two backward has two branches: dpt_cuda_branches_join makes one of them, and
 * dpt_cuda_branches_drop forgets the second after a failure; no other call may come in between.
 * fork: *stream: out, where the gradients of parameters are complete after what is enqueued, and
 * where later work goes until dpt_cuda_branches_return.
 */
void dpt_cuda_branches_begin(struct dpt_cuda_program *p);
enum dpt_status dpt_cuda_branches_join(struct dpt_cuda_program *p, struct dpt_error *err);
void dpt_cuda_branches_drop(struct dpt_cuda_program *p);
enum dpt_status dpt_cuda_branches_fork(struct dpt_cuda_program *p, CUstream *stream,
                                       struct dpt_error *err);
void dpt_cuda_branches_return(struct dpt_cuda_program *p);
/*
 * Enqueues the layers' gradients, from the last to the first, after dpt_cuda_enqueue_loss. add:
 * gradients of biases are added to the content of `gradient`, else written there. done(arg, node):
 * called when all of backward for a node and those after it is enqueued; may be NULL. The weights'
 * gradients are then in the layers' layout, and dpt_cuda_enqueue_gradient converts them.
 */
enum dpt_status dpt_cuda_enqueue_backward(struct dpt_cuda_program *p, bool add,
                                          enum dpt_status (*done)(void *arg, int32_t node,
                                                                  struct dpt_error *err),
                                          void *arg, struct dpt_error *err);
/* Enqueues the conversion of the weights' gradients of nodes first … last-1 to the arena
 * `gradient`. */
enum dpt_status dpt_cuda_enqueue_gradient(struct dpt_cuda_program *p, int32_t first, int32_t last,
                                          bool add, struct dpt_error *err);

/* What dpt_cuda_enqueue_gradient reads, or the copies that dpt_cuda_enqueue_layouts writes, for
 * kernels that pass over the arena. number: out, an entry for each 16 floats of what is learned, to
 * be sent to the device; copies->number is NULL. */
void dpt_cuda_copies_of(const struct dpt_cuda_program *p, bool gradients, uint16_t *number,
                        struct dpt_cuda_copies *copies);
/* Enqueues the conversion of `params` of nodes first … last-1 to the copies that layers read. */
enum dpt_status dpt_cuda_enqueue_layouts(struct dpt_cuda_program *p, int32_t first, int32_t last,
                                         struct dpt_error *err);

/* Sets whether the loss reads labels, as it does at first, or target vectors, and whether samples
 * have weights. */
void dpt_cuda_program_targets(struct dpt_cuda_program *p, bool vectors, bool weights);

/* Sets the loss scale of `state`, and waits. */
enum dpt_status dpt_cuda_set_loss_scale(struct dpt_cuda_program *p, float loss_scale,
                                        struct dpt_error *err);

/* Sets the data set of DPT_CUDA_FROM_STORED: device memory in the format of struct dpt_steps_data.
 * scale, shift: device memory, [c]. */
void dpt_cuda_program_store(struct dpt_cuda_program *p, const void *data, bool u8, bool nhwc,
                            const float *scale, const float *shift);

/* While a profile is recorded (the table's `profile`), each launch is waited for, and nothing can
 * be captured. */
bool dpt_cuda_program_profiled(const struct dpt_cuda_program *p);

/* Launches a custom kernel that is in no list, for steps.c, as dpt_cuda_launch does; its time is
 * recorded as `span`. */
enum dpt_status dpt_cuda_program_launch(struct dpt_cuda_program *p, enum dpt_cuda_kernel kernel,
                                        const void *argument, int span, struct dpt_error *err);

/* Implements dpt_backend.launches. */
enum dpt_status dpt_cuda_program_costs(struct dpt_cuda_program *p, struct dpt_launch_cost *costs,
                                       int most, int *n, struct dpt_error *err);

/* FLOPs of the plans of a micro-batch, in training with backward. */
double dpt_cuda_program_flops(const struct dpt_cuda_program *p);

/* Implements dpt_backend.determinism. */
void dpt_cuda_program_determinism(const void *program, struct dpt_str *text);

/* Implements dpt_backend.plans: "conv1 forward<tab>conv forward bf16 x=... | NVIDIA H200 | cuDNN
 * 91900<tab>+engine=48 2=5". */
void dpt_cuda_program_plans(const void *program, struct dpt_str *text);

/* --- shared by program*.c only ---------------------------------------------------------------- */

/*
 * A program is opened in this order: the memory layout (the tensors, their layouts and sizes; from
 * shapes alone, without a device), the memory, the lists of launches, for which plans are chosen,
 * and last the workspace, as large as the chosen plans need.
 *
 * A pipeline stage (dpt_program_spec.first and last) is laid out as part of the whole graph, and
 * all plans are chosen: so its kernels are those that the whole has, and every rank's `plans` are
 * the same text. Memory and launches are the stage's alone.
 */

enum { DPT_CUDA_NONE = -1, DPT_CUDA_ALIGN = 256 };

/* Rows of floats in dpt_cuda_batchnorm_args.statistics; and how many of them forward writes. */
enum { DPT_CUDA_STATISTICS = 5, DPT_CUDA_STATISTICS_FORWARD = 3 };

/* --- memory layout: program_layout.c ---------------------------------------------------------- */

/* Where a node's output and its other tensors are in memory. Offsets are bytes from the start of a
 * region. */
struct dpt_cuda_node_layout {
    bool live;      /* the model's output depends on it; others are not computed */
    bool there;     /* its tensor is in memory: not that of another stage's node */
    bool skipped;   /* a ReLU that the node before or the pool after it computes; a flatten */
    bool relu;      /* also computes a ReLU: a convolution, dense layer, sum or max-pool */
    bool wants_dy;  /* it or a node before it has parameters */
    bool flat;      /* a dense layer whose weights are in the arena's order */
    bool direct;    /* and in the arena's format, so they are not copied */
    bool straight;  /* the gradient of its weights is written to the arena directly */
    int32_t tensor; /* the node whose tensor its output is: itself, or one before it */
    int32_t reader; /* the only live node that reads it; NONE: several do, or it is the last */
    /* For a sum, and for the batch norm that it computes and that nobody else reads: the other one
     * of the two. The norm has no tensor then. NONE: it computes none. */
    int32_t joined;
    int32_t channels, h, w, pitch;
    int64_t y, saved; /* in `values`; saved: what forward keeps for backward; NONE: nothing */
    /* In `gradients`; NONE: not wanted. dy: the gradient of its output. dz: the gradient before the
     * ReLU that it computes, else dy. dx: its contribution to the gradient of an input. sum: what
     * other readers of that input have contributed before, to which dx is added; NONE: it is the
     * first, or the input's backward adds it, as its `more`. */
    int64_t dy, more, dz, dx[DPT_MAX_INPUTS], sum[DPT_MAX_INPUTS];
    /* elements from the start of `copies`; NONE: in the arena, or there is none */
    int64_t weight, bias;
    int64_t copied;  /* elements of the copied weights, padding included */
    int64_t dweight; /* bytes from the start of `dweights`; NONE */
};

/* Regions of device memory, in the order in which they are allocated. */
enum dpt_cuda_region {
    /* Inputs and outputs of the layers. */
    DPT_CUDA_CONTROL,
    DPT_CUDA_STATE,
    DPT_CUDA_METRIC_SUMS,
    DPT_CUDA_INPUT,
    DPT_CUDA_LABELS,
    DPT_CUDA_WEIGHTS,
    DPT_CUDA_TARGETS,
    DPT_CUDA_SAMPLE,
    DPT_CUDA_VALUES,  /* outputs of layers, and what they keep for backward */
    DPT_CUDA_OUTPUTS, /* of the last layer as floats in canonical order, and their gradient */
    DPT_CUDA_DY,      /* gradients of outputs */
    /* Parameters. */
    DPT_CUDA_PARAMS,
    DPT_CUDA_GRADIENT,
    DPT_CUDA_COPIES,
    DPT_CUDA_DWEIGHTS,
    DPT_CUDA_SUMS, /* arenas in which gradients of sub-batches are summed */
    /* Workspaces. */
    DPT_CUDA_PARTIAL, /* partial sums of kernels */
    DPT_CUDA_COUNTERS,
    DPT_CUDA_PARTIAL_ASIDE, /* the same for the second branch of backward */
    DPT_CUDA_COUNTERS_ASIDE,
    DPT_CUDA_LOSSES,
    DPT_CUDA_FOUND,
    DPT_CUDA_WORKSPACE, /* estimated, since only cuDNN knows it */
    DPT_CUDA_REGIONS
};

struct dpt_cuda_memory_layout {
    struct dpt_cuda_node_layout *node;
    int32_t last;    /* the node whose output is the model's */
    int64_t element; /* bytes of a tensor's element */
    int32_t lanes;   /* elements in 16 bytes */
    /* the last tensor has pixels, so its rows are put in canonical order for the loss */
    bool canonical;
    bool flattens;   /* a layer needs flattened values in canonical order */
    int64_t outputs; /* numbers in a sample's output */
    int64_t bytes[DPT_CUDA_REGIONS];
};

/* Extends a region by `bytes`, aligned; returns where they begin. */
int64_t dpt_cuda_take(int64_t *region, int64_t bytes);
/* Makes a region that layers use one after another at least this large. */
void dpt_cuda_share(struct dpt_cuda_memory_layout *memory_layout, enum dpt_cuda_region region,
                    int64_t bytes);
/* Assigns memory to the gradients (program_gradients.c). Errors: RANK. */
enum dpt_status dpt_cuda_place_gradients(const struct dpt_program_spec *spec, int64_t micro,
                                         struct dpt_cuda_memory_layout *memory_layout,
                                         struct dpt_error *err);
/* Elements of a node's tensor for `micro` samples, and of a parameter's copy; padding included. */
int64_t dpt_cuda_form_elements(const struct dpt_cuda_node_layout *f, int64_t micro);
int64_t dpt_cuda_copy_elements(const struct dpt_cuda_layout *l);

/* Computes the layout for `micro` samples. Errors: BAD_JOB (names the layer), RANK;
 * dpt_cuda_memory_layout_release must be called even then. */
enum dpt_status dpt_cuda_memory_layout_make(const struct dpt_program_spec *spec, int32_t micro,
                                            struct dpt_cuda_memory_layout *memory_layout,
                                            struct dpt_error *err);
void dpt_cuda_memory_layout_release(struct dpt_cuda_memory_layout *memory_layout);
/* Bytes of the regions from `first` to the one before `end`. */
int64_t dpt_cuda_regions_sum(const struct dpt_cuda_memory_layout *memory_layout,
                             enum dpt_cuda_region first, enum dpt_cuda_region end);
/* Whether backward may have two branches (program_branches.c): if whole steps may be taken. */
static inline bool dpt_cuda_has_branches(const struct dpt_program_spec *spec)
{
    return spec->training && spec->last == 0;
}
/* Samples of one pass. */
static inline int32_t dpt_cuda_rows(const struct dpt_program_spec *spec)
{
    return spec->sub_batch > 0 ? spec->sub_batch : spec->micro;
}

/* Partial sums of the tree over n leaves: before the last of 2^k there are k. */
static inline int dpt_cuda_levels(int32_t n)
{
    int levels = 0;

    while ((int64_t)2 << levels <= n)
        levels++;
    return levels;
}

/* --- batch norms in weights: program_fold.c --------------------------------------------------- */

/* The graph of a program for this spec; its nodes are to be freed. Errors: RANK. */
enum dpt_status dpt_cuda_fold_graph(const struct dpt_program_spec *spec, struct dpt_graph *folded,
                                    struct dpt_error *err);
/* Whether node i of such a graph is a batch norm that is part of the weights before it; whether any
 * is. */
bool dpt_cuda_is_folded(const struct dpt_graph *folded, int32_t i);
bool dpt_cuda_folds(const struct dpt_cuda_program *p);
/* Writes what is different in the device's arena, of the nodes [first, last). */
void dpt_cuda_fold_params(const struct dpt_cuda_program *p, const float *params, const float *state,
                          int32_t first, int32_t last, float *arena);

/* --- launches: program_entries.c, program_lists.c, program_run.c ------------------------------ */

enum dpt_cuda_what { DPT_CUDA_KERNEL, DPT_CUDA_MATH, DPT_CUDA_FILL, DPT_CUDA_COPY };
enum dpt_cuda_when { DPT_CUDA_ALWAYS, DPT_CUDA_TRAINING, DPT_CUDA_EVALUATION, DPT_CUDA_WRITING };

struct dpt_cuda_entry {
    enum dpt_cuda_what what;
    enum dpt_cuda_when when; /* WRITING: only if the gradient is not added to */
    int32_t node;
    int span; /* under which its time is recorded */
    enum dpt_cuda_kernel kernel;
    union {
#define X(argument) struct dpt_cuda_##argument##_args argument;
        DPT_CUDA_TYPED_ARGUMENTS(X)
#undef X
        struct dpt_cuda_feed_args feed;
        struct dpt_cuda_add_args add;
        struct dpt_cuda_norm_args norm;
        struct dpt_cuda_update_args update;
    } args;
    size_t add; /* offset in args of the int32_t that makes the kernel add; 0: none */
    bool aside; /* only makes gradients of parameters, from `dz` */
    bool loss;  /* computes the loss, not its layout */
    /* The synchronized norm whose sums over the micro-batch are made for `args.sums`; 0: none. */
    int32_t sums;
    struct dpt_cuda_math *math;
    /* For DPT_CUDA_FILL (with zeros) and DPT_CUDA_COPY. */
    void *to;
    const void *from;
    int64_t bytes;
};

/* A launch that was made while a profile was recorded. */
struct dpt_cuda_record {
    struct dpt_cuda_entry entry;
    bool add;
    int64_t calls;
    double ms; /* of one call, once measured */
};

struct dpt_cuda_list {
    struct dpt_cuda_entry *entry;
    int n;
    size_t room;
};

/* Where the second branch reads a gradient, by its offset in `gradients`. */
struct dpt_cuda_reader {
    int64_t place;
    CUevent read; /* recorded after that read */
    bool pending; /* the first branch has not waited for it */
};

struct dpt_cuda_branches {
    struct dpt_cuda_reader *readers; /* [nodes]; NULL: there is only one branch */
    int n_readers;
    CUevent forked, joined;
    bool on;    /* there are two now */
    bool aside; /* what is enqueued goes to the second one */
    bool moved; /* the first branch has got work since the last fork */
    bool used;  /* there was a fork */
};

/* A run of `layouts`, by ascending nodes, that a kernel converts. */
struct dpt_cuda_layout_run {
    enum dpt_cuda_kernel kernel;
    int first, n;
};

/* Where a pipeline stage meets the others. */
enum dpt_cuda_edge { DPT_CUDA_EDGE_IN, DPT_CUDA_EDGE_OUT, DPT_CUDA_EDGES };

struct dpt_cuda_lists {
    struct dpt_cuda_memory_layout memory_layout;
    struct dpt_cuda_list list[DPT_CUDA_LISTS];
    struct dpt_cuda_layout_run copied; /* parameters, to the copies */
    /* Gradients of weights, to the arena: those in the tensors' type; those in floats, if that
     * differs. */
    struct dpt_cuda_layout_run back[2];
    struct dpt_cuda_layout *layouts; /* pinned; device_layouts is its copy on the device */
    struct dpt_cuda_layout *device_layouts;
    int32_t *layout_node; /* of each layout of these runs */
    int rows_layout;
    int bias_of_loss; /* the entry of backward that enqueue_loss takes over; NONE */
    struct dpt_cuda_math *maths;
    struct dpt_str plans; /* for a stage: the text of dpt_cuda_program_plans, of the whole graph */
    struct dpt_cuda_cache *cache;

    /* Regions of device memory. */
    char *values, *gradients, *copies, *dweights, *workspace;
    int64_t workspace_bytes, workspace_most; /* most: of one plan */
    int64_t workspace_limit;                 /* of one plan */
    bool refitted; /* plans were chosen again, for a workspace that fits */
    float *rows, *drows;
    float *sums, *more_sums;         /* arenas: of a batch's sub-batches; for more than those */
    int32_t adds;                    /* dpt_backend.adds */
    double *partial, *partial_aside; /* sums over rows: dpt_cuda_cut */
    double *losses;                  /* partial sums of losses */
    uint32_t *counters, *counters_aside;
    struct dpt_cuda_branches branches;
    uint64_t *found; /* [2][nodes]: the first element that is not finite of values, of parameters */

    struct dpt_spans *spans; /* NULL: no profile is recorded */
    struct dpt_cuda_record *records;
    int n_records;
    size_t record_room;
    CUevent begin, end;
    uint64_t *noise; /* pinned: random inputs for timing plans */

    /* Pinned: what the backend table's functions send and receive; metric_sums: [leaves] of the
     * tree. */
    struct dpt_cuda_control *control;
    struct dpt_cuda_metric_sums *metric_sums;
    float *input, *targets, *weights, *arena, *answers;
    int32_t *labels;
    int64_t *sample;
    uint64_t *positions;
    float *norm_rows;  /* [2][pitch] of the widest synchronized norm, as `norm_sums` */
    double *norm_sums; /* of a micro-batch */
    int32_t first;     /* the batch's row at which the last sub-batch sent begins */
    /* For a stage, in each program: the value that it gets and that value's gradient; then those of
     * what it gives the next stage. */
    float *edge[DPT_CUDA_EDGES];
};

/* The kernel for the program's type of tensor, from the one for floats. */
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

/* The node whose output node i reads first. */
static inline int32_t dpt_cuda_before(const struct dpt_cuda_program *p, int32_t i)
{
    return p->spec.graph->nodes[i].inputs[0];
}

static inline const struct dpt_tensor *dpt_cuda_tensor_of(const struct dpt_cuda_program *p,
                                                          int32_t number)
{
    return &p->spec.graph->tensors[number];
}

/* The state with the loss scale; NULL: gradients are not scaled. */
static inline const struct dpt_cuda_state *dpt_cuda_state_of(const struct dpt_cuda_program *p)
{
    return p->spec.precision == DPT_PRECISION_FP16 ? p->state : NULL;
}

/* Appends a copy of the entry to a list. Errors: RANK. */
enum dpt_status dpt_cuda_add_entry(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                   const struct dpt_cuda_entry *entry, struct dpt_error *err);
/* The entry of a kernel launch in a node's pass. kernel: for the tensors' type. */
struct dpt_cuda_entry dpt_cuda_kernel_entry(const struct dpt_cuda_program *p, int32_t node,
                                            enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                            const void *args);
/* Appends such an entry to the list of the pass; the second one that of the kernel in the
 * operation's row. Errors: RANK. */
enum dpt_status dpt_cuda_add_kernel(struct dpt_cuda_program *p, int32_t node,
                                    enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                    const void *args, struct dpt_error *err);
enum dpt_status dpt_cuda_add_op_kernel(struct dpt_cuda_program *p, int32_t node,
                                       enum dpt_span_pass pass, const void *args,
                                       struct dpt_error *err);
/* program_branches.c; open: when the lists are built. after: the work that was just enqueued aside
 * reads the node's gradient; before: the node's backward is enqueued next. */
enum dpt_status dpt_cuda_branches_open(struct dpt_cuda_program *p, struct dpt_error *err);
CUstream dpt_cuda_stream(const struct dpt_cuda_program *p);
enum dpt_status dpt_cuda_branches_after(struct dpt_cuda_program *p, int32_t node,
                                        struct dpt_error *err);
enum dpt_status dpt_cuda_branches_before(struct dpt_cuda_program *p, int32_t node,
                                         struct dpt_error *err);
enum dpt_status dpt_cuda_lists_build(struct dpt_cuda_program *p, struct dpt_error *err);
/* Drops the lists and their plans, so that they can be built again. */
void dpt_cuda_lists_clear(struct dpt_cuda_program *p);
void dpt_cuda_lists_release(struct dpt_cuda_program *p);
/* The address of a node's output. */
void *dpt_cuda_value(const struct dpt_cuda_program *p, int32_t node);
/* The address of an offset in `gradients`; NULL for NONE. */
void *dpt_cuda_gradient(const struct dpt_cuda_program *p, int64_t place);
/* Where a float of the canonical arena is in the program's parameters, or its gradient. */
float *dpt_cuda_at(const struct dpt_cuda_program *p, float *arena, int64_t offset);
/* Elements of a node's output, padding included; vectors of 16 bytes. */
int64_t dpt_cuda_elements(const struct dpt_cuda_program *p, int32_t node);
int64_t dpt_cuda_vectors(const struct dpt_cuda_program *p, int32_t node);
/* The address of a parameter's copy. place: elements from the start of `copies`. */
void *dpt_cuda_copy(const struct dpt_cuda_program *p, int64_t place);
/* Enqueues one entry. Errors: RANK, INTERNAL. */
enum dpt_status dpt_cuda_enqueue_entry(struct dpt_cuda_program *p, struct dpt_cuda_entry *entry,
                                       bool add, struct dpt_error *err);
/* Appends y = a + b to node's backward pass, for tensors of the shape of node `form`'s output.
 * Errors: RANK. */
enum dpt_status dpt_cuda_add_sum(struct dpt_cuda_program *p, int32_t node, int32_t form, int64_t a,
                                 int64_t b, int64_t y, struct dpt_error *err);
/* Appends the backward pass of the ReLU that a node also computes, from dy to dz. Errors: RANK. */
enum dpt_status dpt_cuda_relu_backward(struct dpt_cuda_program *p, int32_t node,
                                       struct dpt_error *err);
/* Counts one more tensor in the arguments of a layout kernel. */
void dpt_cuda_count_layout(enum dpt_cuda_kernel kernel, const struct dpt_cuda_layout *l,
                           struct dpt_cuda_layout_args *args);

/* --- operations: program_weights.c, program_pools.c, program_pointwise.c ---------------------- */

/* How the device computes an operation: one row per operation, made from their list. Kernels are
 * named for floats. */
struct dpt_cuda_op {
    /* Append the launches of node i's passes to the lists. Optional for operations without work
     * (DPT_CLASS_NOTHING). Errors: BAD_JOB, RANK. */
    enum dpt_status (*forward)(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err);
    enum dpt_status (*backward)(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err);
    /* For operations with parameters: reserves memory for their copies and gradients. */
    void (*place)(const struct dpt_program_spec *spec, struct dpt_cuda_memory_layout *memory_layout,
                  int64_t micro, int32_t i);
    /* For operations with parameters: the layout of the weight, or the bias, and of its copy, whose
     * offset is not set. */
    struct dpt_cuda_layout (*layout)(const struct dpt_graph *graph,
                                     const struct dpt_cuda_memory_layout *memory_layout, int32_t i,
                                     bool bias);
    /* Bytes that forward keeps for backward. Optional: none. */
    int64_t (*saved)(const struct dpt_cuda_node_layout *f, int64_t micro);
    enum dpt_cuda_kernel kernel, back;    /* of the passes, if each is one kernel */
    enum dpt_cuda_kernel relu, relu_back; /* with a ReLU, if the node also computes one */
    enum dpt_cuda_kernel weights;         /* of the weights' gradient, if it is one kernel */
    bool takes_relu;                      /* can also compute a ReLU before it */
    bool fuses_relu;                      /* can also compute a ReLU after it */
    bool in_place;                        /* backward may overwrite dy with dx */
    bool keeps_dy; /* its backward reads dy itself, even if it computes a ReLU */
    /* Its inputs' gradients are equal to dy, and it adds them to other readers' contributions
     * itself. */
    bool passes_dy;
    bool float_gradients; /* gradients of its weights are floats, whatever the tensors' type */
};

#define X(NAME, name) extern const struct dpt_cuda_op dpt_cuda_##name;
DPT_OPERATIONS(X)
#undef X
extern const struct dpt_cuda_op *const dpt_cuda_ops[DPT_OP_COUNT];

static inline const struct dpt_cuda_op *dpt_cuda_op_of(const struct dpt_cuda_program *p, int32_t i)
{
    return p->ops[p->spec.graph->nodes[i].op];
}

#endif

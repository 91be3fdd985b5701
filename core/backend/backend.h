/*
 * backend: the interface of what computes a model: a CPU library, plain C or a GPU.
 *
 * A backend opens a program: a whole graph with its loss, prepared for micro-batches of at most
 * `micro` samples; operations of the graph may be fused. A program has `threads` workers. Each
 * worker has its own activations and workspace, so different threads may use different workers at
 * the same time; no two threads may use one worker at once. After the first micro-batch of a worker
 * nothing is allocated. A worker may have several micro-batches in flight, each with activations of
 * its own, and take them through the graph alternately, one range of nodes at a time (struct
 * dpt_pass).
 *
 * Gradients and losses are sums over samples, each multiplied by its weight, not means: whoever
 * updates the parameters divides by the sum of the weights, which is the number of samples if they
 * have no weights. Parameters and gradients are canonical arenas (graph.h) in host memory, borrowed
 * for the call.
 */
#ifndef DPT_BACKEND_BACKEND_H
#define DPT_BACKEND_BACKEND_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend/graph.h"
#include "core/base/error.h"
#include "core/base/isa.h"
#include "core/base/pool.h"
#include "core/base/span.h"
#include "core/base/str.h"
#include "core/comm/comm.h"

/*
 * The format of the layers' values, and so of the tensors that a layer multiplies. Parameters, sums
 * over samples and reduced gradients are fp32 in all of them. tf32: fp32 tensors, whose
 * significands are rounded to 11 bits where they are multiplied. bf16: tensors with 8 bits of
 * significand. fp16: tensors with 11 bits of significand and 5 of exponent, which needs a loss
 * scale (loss_scale.h).
 */
#define DPT_PRECISION_LIST(X)                                                                      \
    X(DPT_PRECISION_FP32, "fp32")                                                                  \
    X(DPT_PRECISION_TF32, "tf32")                                                                  \
    X(DPT_PRECISION_BF16, "bf16")                                                                  \
    X(DPT_PRECISION_FP16, "fp16")
enum dpt_precision { DPT_PRECISION_LIST(DPT_LIST_NAME) DPT_PRECISIONS };
extern const char *const dpt_precision_names[DPT_PRECISIONS + 1]; /* ends with NULL */

/*
 * X(NAME, name): every loss, once. The enum, the host's functions, the GPU's kernels and the job's
 * rows are made from this list, so a loss that lacks one of them does not compile.
 *
 * CROSS_ENTROPY: softmax cross-entropy; labels, or rows of target probabilities
 * FOCAL: cross-entropy with each class' term times (1 - its probability)^gamma (Lin et al. 2017,
 *     equation 4, of softmax)
 * MSE: mean over the outputs of (y - t)^2
 * L1: mean of |y - t|
 * HUBER: mean of (y - t)^2 / 2 if |y - t| is at most delta, else of delta (|y - t| - delta / 2)
 *     (Huber 1964)
 * QUANTILE: mean of quantile (t - y) where y < t, else of (1 - quantile) (y - t) (Koenker & Bassett
 *     1978)
 * POISSON: mean of exp(y) - t y, the negative log-likelihood of a count t whose rate is exp(y), but
 *     for what does not depend on y (PyTorch's PoissonNLLLoss)
 * BINARY_CROSS_ENTROPY: mean over the outputs of the cross-entropy of sigmoid(y) with t, 0 to 1,
 *     for multi-label targets; a target below 0 is a label that holds, and counts minus that
 *     (PyTorch's pos_weight)
 *
 * The lists group them by what their labels are: classes; numbers; counts; labels that each hold or
 * do not. FIRST, NEXT and LAST are X, for the first, the last and the losses between them.
 */
#define DPT_LOSSES_OF_CLASSES(FIRST, NEXT, LAST)                                                   \
    FIRST(CROSS_ENTROPY, cross_entropy) LAST(FOCAL, focal)
#define DPT_LOSSES_OF_NUMBERS(FIRST, NEXT, LAST)                                                   \
    FIRST(MSE, mse) NEXT(L1, l1) NEXT(HUBER, huber) LAST(QUANTILE, quantile)
#define DPT_LOSSES_OF_COUNTS(FIRST, NEXT, LAST) FIRST(POISSON, poisson)
#define DPT_LOSSES_OF_LABELS(FIRST, NEXT, LAST) FIRST(BINARY_CROSS_ENTROPY, binary_cross_entropy)
#define DPT_LOSS_LIST(X)                                                                           \
    DPT_LOSSES_OF_CLASSES(X, X, X)                                                                 \
    DPT_LOSSES_OF_NUMBERS(X, X, X)                                                                 \
    DPT_LOSSES_OF_COUNTS(X, X, X)                                                                  \
    DPT_LOSSES_OF_LABELS(X, X, X)

/* "mse, l1 or huber": DPT_LOSS_NAMES(DPT_LOSSES_OF_NUMBERS). */
#define DPT_LOSS_NAMES(LIST)       LIST(DPT_LOSS_FIRST, DPT_LOSS_NEXT, DPT_LOSS_LAST)
#define DPT_LOSS_FIRST(NAME, name) #name
#define DPT_LOSS_NEXT(NAME, name)  ", " #name
#define DPT_LOSS_LAST(NAME, name)  " or " #name

#define X(NAME, name) DPT_LOSS_##NAME,
enum dpt_loss_kind { DPT_LOSS_LIST(X) DPT_LOSSES };
#undef X

/* Whether the loss is one of classification, so that a sample is right or wrong and there is an
 * accuracy; false for regression. */
bool dpt_loss_judges(enum dpt_loss_kind kind);
/* Whether an output is a class' logit: labels are classes, or targets are their probabilities. */
bool dpt_loss_has_classes(enum dpt_loss_kind kind);

struct dpt_loss {
    enum dpt_loss_kind kind;
    /* Cross-entropy: the label smoothing s, by which the target becomes (1 - s) target + s /
     * outputs (Szegedy et al. 2016). FOCAL: gamma. HUBER: delta. */
    float attribute;
};

/* One micro-batch. All pointers are borrowed for the call. */
struct dpt_batch {
    int32_t count;         /* 1 … micro */
    const float *input;    /* [micro][c][h][w] of the graph's input; rows past `count` are zero */
    const int32_t *labels; /* [count] classes, each below the graph's outputs; or NULL */
    const float *targets;  /* [count][outputs]; or NULL; exactly one of the two is given */
    /* [count]: the samples' weights in loss and gradient, finite and >= 0; NULL: all are 1. */
    const float *weights;
    /* [count]: numbers of the samples in the data set, which with seed and step key the dropout. */
    const int64_t *sample;
    uint64_t seed, step; /* of the run, and of the training step */
    /* For programs that add gradients (dpt_backend.adds), else 0 and false. before: how many
     * micro-batches are in the sum to which this batch's gradients are added; 0: it begins the sum.
     * more: further micro-batches follow, so no gradient is written yet. */
    int32_t before;
    bool more;
    /* Called by `train` on the host after backward of each node that learns, in a team by its first
     * thread: what this batch gives for the gradient of the learned tensors of this node, and of
     * those after it, is written. NULL: nobody asks. */
    void (*passed)(void *arg, int32_t node);
    void *arg;
    /* If this batch writes the gradient of the whole step: for each tensor of the graph whose
     * pieces of DPT_SUM_OF_SQUARES_CHUNK floats are chunks of the norm, where their sums of squares
     * (core/base/sum_of_squares.h) may be written; NULL for the others. A program that has the
     * gradient in its registers writes them all, any other none. NULL: not wanted. */
    double *const *squares;
};

/*
 * What the ranks that share tensor-parallel layers (dpt_graph_node.own_outputs) exchange within a
 * pass. A layer's kernels are those of the whole layer, so each number is the same whoever computes
 * it. All of a team's threads wait meanwhile. A failure is not reported here: the caller of the
 * pass learns of it elsewhere.
 */
struct dpt_divided {
    /* One thread calls it with rows [rows][width] of a layer's outputs or, with `gradient`, of the
     * gradient that it passes back to its inputs. Each rank has computed its own columns; all ranks
     * get all of them. */
    void (*gather)(void *arg, int32_t node, bool gradient, float *values, int64_t rows);
    /* The weights of all outputs and this rank's inputs: [outputs][own_inputs]. */
    const float *(*columns)(void *arg, int32_t node);
    void *arg;
};

/* The first value, input included, that is not finite: the node that gives it, and the sample's row
 * in the batch. Both are -1 if all are finite. */
struct dpt_nonfinite {
    int32_t node, position;
};

/*
 * Nodes [first, last) of one micro-batch that a worker has in flight. At a synchronized batch norm
 * one range ends and the next begins: forward up to it gives what the norm sums over this
 * micro-batch, and forward from it on takes those sums of all of the step's (norm_sums.h).
 * Backward, from its readers down to it and from it on down, does the same with the sums on which
 * its gradient depends. So the norms divide the nodes, each of them the first one of a range of
 * forward, and the last one of a range of backward.
 *
 * A pipeline stage is a range, too, in a program that computes no other nodes (struct
 * dpt_program_spec): the value that its first node reads comes from elsewhere, and so does the
 * gradient of the one that the next stage reads (dpt_backend.value).
 */
struct dpt_pass {
    int flight; /* which of the worker's micro-batches in flight, from 0 */
    int32_t first, last;
    bool infers; /* forward as in evaluation: nothing is kept for backward */
    const struct dpt_batch
        *batch; /* the same in all passes of a micro-batch, as all that follows */
    /* Begins of whole arenas. Of these nodes' tensors, and no others, the learned ones are read in
     * `params`, the rest in `state`. */
    const float *params, *state;
    float *gradient; /* of the tensors of these nodes, and of the norm at which backward ends */
    bool add;
    /* Two numbers (norm_sums.h) for each channel of the norm at which the range begins, and of the
     * norm at which it ends. NULL if there is no such norm. */
    const double *all;
    double *own;
    int64_t samples; /* of the whole step */
    /* Called between nodes, or while a device computes; in a team by its first thread. NULL: there
     * is nothing to do. ref does not call it, since its speed does not matter. */
    void (*between)(void *arg);
    void *arg;
    const struct dpt_divided *divided; /* NULL: no layer is */
    /* Set by forward of a pass that infers, where it is -1 and one of the range's values is not
     * finite. For messages, so it may be slow; with several micro-batches in flight the first one's
     * memory is used. NULL: not wanted. */
    struct dpt_nonfinite *nonfinite;
};

/* The sums from which loss and accuracy are computed, in training and evaluation; those of several
 * threads and ranks can be added. The mean loss is loss / weight, the accuracy correct / weight. If
 * samples have no weights, or only 0 and 1, `correct` and `weight` are whole numbers and exact. */
struct dpt_metric_sums {
    double loss; /* weight x loss of each sample */
    /* Sum of the weights of the samples whose largest output is that of the label (or of the
     * largest target); with binary cross-entropy, of the samples whose labels are all right: an
     * output is > 0 exactly if its target is >= 0.5. 0 for regression. */
    double correct;
    int64_t samples; /* counted once each, whatever their weights */
    double weight;
};

/* Adds the sums of other samples. */
static inline void dpt_metric_sums_add(struct dpt_metric_sums *to,
                                       const struct dpt_metric_sums *more)
{
    to->loss += more->loss;
    to->correct += more->correct;
    to->samples += more->samples;
    to->weight += more->weight;
}

/* The mean loss and the accuracy; NAN without samples, and if the samples' weights sum to 0. */
static inline double dpt_metric_sums_loss(const struct dpt_metric_sums *t)
{
    return t->weight > 0 ? t->loss / t->weight : NAN;
}

static inline double dpt_metric_sums_accuracy(const struct dpt_metric_sums *t)
{
    return t->weight > 0 ? t->correct / t->weight : NAN;
}

struct dpt_program_spec {
    const struct dpt_graph *graph; /* borrowed while the program lives */
    struct dpt_loss loss;
    int32_t micro;
    int threads;
    int in_flight; /* micro-batches that a worker has in flight at most; 0: one */
    /* Only the nodes [first, last) are computed, in passes over all of them, and only their tensors
     * are there; but each is computed as in a program of the whole graph. 0, 0: all. */
    int32_t first, last;
    bool training; /* false: only dpt_backend.infer will be called */
    bool plain;    /* each node is computed by itself: nothing is folded into other weights */
    /* A pool of `threads` threads that compute each micro-batch together, as a team; borrowed while
     * the program lives. NULL: each thread computes micro-batches of its own. */
    struct dpt_pool *team;
    /* For a team: a batch may hold several sub-batches of `sub_batch` samples one after another,
     * all full but the last one. Their gradients are added along the tree of core/comm/sums/tree.h
     * over 0, 1, …, which gives the same bits as computing them one by one. 0: `micro`, a batch is
     * one micro-batch. */
    int32_t sub_batch;
    /* How many micro-batches' gradients a device should add before it writes their sum: along the
     * tree over them, counted from the first one, or, if bits need not be `reproducible`, from the
     * first to the last. Up to `sub_batch` of them: it is not asked to. */
    int32_t adds;
    enum dpt_precision precision; /* one that the backend has */
    /* The bits depend only on the graph, the micro-batch and the kind of device: no kernel is
     * chosen by timing, and no sum is added in a changing order. */
    bool reproducible;
    /* So many ranks of linked devices sum a slice each of the gradient, and may update one of the
     * parameters: after both is room for as many slices of equal length. 0: none do. */
    int slices;
    /* Linked devices that keep a slice each of the weights, of which they gather a unit's for its
     * passes: unit k are nodes [unit[k], unit[k + 1]), whose learned floats begin at edge[k]. There
     * is memory for the weights and the gradients of two units that follow one another. 0: all
     * weights are there. Borrowed while the program lives. */
    int units;
    const int32_t *unit;
    const size_t *edge;
    /* Allows kernels whose bits change from run to run if they are faster. Otherwise they are used
     * only if there is no other. */
    bool varying;
    int device; /* its number, if there are several (devices.h) */
    /* Counts the waits for a device, for a watchdog; borrowed while the program lives. NULL: nobody
     * reads it. */
    struct dpt_device_waits *waits;
    /* A folder that keeps between runs which kernels were measured to be fastest, since measuring
     * takes seconds; it need not exist. NULL: nothing is kept. Borrowed for the call, as `plans`
     * is. */
    const char *cache;
    /* The kernels that an earlier program chose, in the text that dpt_backend.plans gave: they are
     * used again if the device still has them. NULL: none. */
    const char *plans;
};

/* Floats of the memory for a unit's weights, the slices' room included. */
static inline int64_t dpt_program_window(const struct dpt_program_spec *spec)
{
    const int64_t slices = (int64_t)DPT_TENSOR_ALIGN * (spec->slices > 0 ? spec->slices : 1);
    int64_t widest = 0;

    for (int k = 0; k < spec->units; k++) {
        const int64_t n = (int64_t)(spec->edge[k + 1] - spec->edge[k]);

        widest = n > widest ? n : widest;
    }
    return (widest + slices - 1) / slices * slices;
}

/* Whether the program that the spec describes computes a node. */
static inline bool dpt_program_computes(const struct dpt_program_spec *spec, int32_t node)
{
    return spec->last == 0 || (node >= spec->first && node < spec->last);
}

/* Memory of a program in bytes, all its workers together. */
struct dpt_program_bytes {
    int64_t values;     /* the layers' outputs, their gradients, and what backward needs of them */
    int64_t scratch;    /* workspace of the kernels */
    int64_t copies;     /* of the parameters, in other layouts or precisions */
    bool shares_copies; /* the ranks of a node have them once, together (dpt_backend.share) */
    int64_t sums;       /* in which it adds gradients, if there is memory for it: `adds` */
};

struct dpt_backend_steps;
struct dpt_backend_devices;

/* What the launches of one kernel for one layer took on a device, all calls together, while a
 * profile was recorded (dpt_backend.profile). */
struct dpt_launch_cost {
    char what[64];    /* "relu_f32", "convolution forward + bias" */
    const char *node; /* the layer's name; "": it belongs to no layer */
    int64_t calls;
    double seconds; /* by the device's clock */
    int64_t bytes;  /* that one call moves at least */
    double flops;   /* of one call */
};

struct dpt_backend {
    const char *name;
    const char *summary;
    unsigned precisions; /* bits 1 << enum dpt_precision */
    /* The table of a backend whose device has memory of its own; NULL for the others. */
    const struct dpt_backend_steps *steps;     /* whole training steps on the device */
    const struct dpt_backend_devices *devices; /* the devices of this machine */
    /* Library and instruction set, e.g. "oneDNN 2.6.3, AVX-512 BF16"; static text. Checkpoints
     * record it, since their bits depend on it. */
    const char *(*describe)(void);
    /* The version of its arithmetic, from 1: raised whenever a job of an earlier release would get
     * other bits. Checkpoints record it from 2 on. */
    int numerics;
    /* Does what `describe` does, for messages: it names only the part of the instruction set that
     * the backend's kernels use. */
    const char *(*uses)(void);
    /* The instruction set of the CPU that the backend and its library use. NULL: a device
     * computes. */
    enum dpt_isa (*isa)(void);
    /* Limits the library to this instruction set and those below it, in the whole process, where it
     * would otherwise choose by itself. Must be called before `describe`, `isa` and anything that
     * computes. Errors: BAD_JOB (the CPU has no such instructions, or the library knows no limit).
     * Optional. */
    enum dpt_status (*limit)(enum dpt_isa most, struct dpt_error *err);
    /* Whether it is faster that a rank's threads compute each micro-batch of this graph together,
     * sharing its layers, than that each takes micro-batches of its own and their gradients are
     * added. Optional: never. */
    bool (*teams)(const struct dpt_graph *graph);
    /* Errors: BAD_JOB (the backend cannot compute this graph; names the layer), RANK. On failure
     * *program is NULL. */
    enum dpt_status (*open)(const struct dpt_program_spec *spec, void **program,
                            struct dpt_error *err);
    void (*close)(void *program); /* does nothing for NULL */
    /* Collective over the ranks of a node, each of which has just opened a program of the same
     * graph. Lets them keep what `refresh` derives from the parameters once for all of them, if
     * that is worth it. *shared: out, whether they do: then `refresh` is to be called by all of
     * them, with the same parameters, and none may compute from before the first one calls it until
     * it has returned on all. Errors: RANK. Optional. */
    enum dpt_status (*share)(void *program, const struct dpt_group *node, bool *shared,
                             struct dpt_error *err);
    /* How many micro-batches' gradients the program adds by itself, at most: as many as the spec
     * says or, if the memory is too small for their sums, fewer; 1, or the sub-batches of a batch:
     * it writes each call's. dpt_batch says where in a sum a micro-batch is; what their passes give
     * for the state is written with each. Optional: it adds none. */
    int32_t (*adds)(const void *program);
    /* Bytes of device memory that the program holds (activations, workspace, copies). Optional. */
    int64_t (*bytes)(const void *program);
    /* The memory that `open` would use for this spec, without its workers: nothing of the size of
     * activations is allocated. Errors: as open's. */
    enum dpt_status (*measure)(const struct dpt_program_spec *spec, struct dpt_program_bytes *bytes,
                               struct dpt_error *err);
    /* Updates what the backend derives from the parameters, such as copies in other layouts. All
     * threads of a pool must call it, each with its worker, after the parameters changed; each does
     * a share of the work. No other call may run at the same time. Errors: RANK. */
    enum dpt_status (*refresh)(void *program, int worker, const float *params,
                               struct dpt_error *err);
    /* For passes over ranges of nodes whose weights are not always in memory. refresh_nodes: does
     * what refresh does, for the nodes [first, last) alone; ranks may pass different parameters.
     * params, state: as in dpt_pass.
     * forget: frees the memory of what is derived from these nodes' weights, until it is refreshed;
     * shared memory stays. Optional, both or none: nothing is derived. */
    enum dpt_status (*refresh_nodes)(void *program, int worker, const float *params,
                                     const float *state, int32_t first, int32_t last,
                                     struct dpt_error *err);
    void (*forget)(void *program, int32_t first, int32_t last);
    /* Forward, loss and backward of one micro-batch. gradient: an arena, overwritten, or added to
     * if `add` is set; the floats between its tensors stay as they are. metric_sums: added to. With
     * `sub_batch`, metric_sums is an array [1 … micro / sub_batch], one for each sub-batch of the
     * batch, and `add` is not allowed. All threads of a team call it within one dpt_pool_run, each
     * with its worker and otherwise the same arguments; the metrics are added to the sums of worker
     * 0, and everything is done when any of the calls returns. The bits of gradient and metric sums
     * depend neither on the number of threads nor on whether they are a team. Errors: RANK. */
    enum dpt_status (*train)(void *program, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    /* Passes over ranges of nodes, for pipeline stages and for graphs with synchronized batch norms
     * (`train` takes its batch for the whole step): forward of a range; the loss, after the last
     * range, as `train` computes it or, if the pass infers, as `infer`; backward of a range. A team
     * calls them as it calls `train`, except that each thread computes synchronized norms, and
     * passes that infer, by itself; if layers are divided, and on a device, the team calls forward,
     * and its first thread the loss.
     * Optional, all three or none. Errors: as train's. */
    enum dpt_status (*forward)(void *program, int worker, const struct dpt_pass *pass,
                               struct dpt_error *err);
    enum dpt_status (*loss)(void *program, int worker, const struct dpt_pass *pass,
                            struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    enum dpt_status (*backward)(void *program, int worker, const struct dpt_pass *pass,
                                struct dpt_error *err);
    /* Gives a value of a worker's micro-batch in flight, as passes have or read it: the value that
     * this node reads as its first input, or its gradient; for the number of nodes, the outputs. It
     * lies as the same program has it on another machine. NULL: no gradient of it is wanted.
     * *floats: out, of a full micro-batch, padding included. Optional, as `forward`. */
    float *(*value)(const void *program, int worker, int flight, int32_t node, bool gradient,
                    size_t *floats);
    /* Forward as in evaluation (without dropout). outputs: [count][outputs], or NULL. metric_sums:
     * added to; NULL: none are wanted, and the batch needs no labels. Errors: RANK. */
    enum dpt_status (*infer)(void *program, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    /* Computes forward as `infer` does, to find the first output that is not finite. For messages,
     * so it may be slow. Errors: RANK. */
    enum dpt_status (*find_nonfinite)(void *program, int worker, const struct dpt_batch *batch,
                                      const float *params, struct dpt_nonfinite *bad,
                                      struct dpt_error *err);
    /* From now on a worker records in `spans` how long the passes of each node (dpt_span_node) and
     * the loss take; NULL ends the recording. The worker must not be computing. Optional. */
    void (*profile)(void *program, int worker, struct dpt_spans *spans);
    /* Measures again each kind of launch of a profiled step on a device, at most `most` of them, in
     * the order of a step; each is repeated until the device's clock measures it well. Parameters,
     * optimizer state, gradient and counters are restored. The program must not be working. *n:
     * out, how many there are. Errors: RANK. Optional. */
    enum dpt_status (*launches)(void *program, struct dpt_launch_cost *costs, int most, int *n,
                                struct dpt_error *err);
    /* The node whose kernel also computes this node, if the two are fused; else the node itself.
     * Optional. */
    int32_t (*runs_in)(const void *program, int32_t node, bool backward);
    /* The name of the code that computes a pass of a node, if there are several kinds of it:
     * forward, the gradients of its parameters (WEIGHTS) or that of its input (BACKWARD). NULL:
     * there is no choice. Optional. */
    const char *(*way)(const void *program, int32_t node, enum dpt_span_pass pass);
    /* Appends the kernels that were chosen among several that might give different bits: lines
     * "purpose<tab>problem<tab>kernel", of which the first two fields are unique together.
     * Optional. */
    void (*plans)(const void *program, struct dpt_str *text);
    /* Appends a line, without its end, that says how much time deterministic kernels cost, or
     * others would save; nothing if that was not measured or if they are the fastest. Optional. */
    void (*determinism)(const void *program, struct dpt_str *text);
    /* Sets the loss scale, a power of two by which the gradient of the loss is multiplied before
     * backward and the parameters' gradient divided. Errors: RANK. Optional. */
    enum dpt_status (*scale)(void *program, float loss_scale, struct dpt_error *err);
    /* C [m][n] = A [m][k] B [k][n], contiguous, in a precision of the backend, on the calling
     * thread alone: measures the machine's peak arithmetic. Errors: INTERNAL, RANK. */
    enum dpt_status (*gemm)(enum dpt_precision precision, int64_t m, int64_t n, int64_t k,
                            const float *a, const float *b, float *c, struct dpt_error *err);
    /* The instructions that multiply bf16, for messages: "AMX tiles"; NULL: with fp32's
     * instructions, so that it is no faster. Optional: a device computes. */
    const char *(*bf16)(void);
};

extern const struct dpt_backend dpt_backend_ref;  /* ref/: plain C, any shape */
extern const struct dpt_backend dpt_backend_cpu;  /* cpu/: kernels for CPUs, and oneDNN */
extern const struct dpt_backend dpt_backend_cuda; /* cuda/: if DPT_WITH_CUDA is 1 */

/* All backends of this build, the one to prefer on CPUs first; ends with NULL. */
extern const struct dpt_backend *const dpt_backends[];

/* Finds a backend by its name ("cpu", "ref"); NULL: there is none. */
const struct dpt_backend *dpt_backend_find(const char *name);

/* Implements dpt_backend.find_nonfinite for a program that folds nodes into others: to find out
 * which of them is to blame, a plain program for the same spec computes each by itself. */
enum dpt_status dpt_backend_find_plain(const struct dpt_backend *backend,
                                       const struct dpt_program_spec *spec,
                                       const struct dpt_batch *batch, const float *params,
                                       struct dpt_nonfinite *bad, struct dpt_error *err);

/*
 * The loss of one micro-batch from its outputs (logits), for backends on the host.
 *
 * y: [count][outputs], with a row stride of `stride` floats. dy: out, same shape and stride, the
 * derivative of the summed loss by y; NULL: not wanted. metric_sums: added to. Cross-entropy uses a
 * stable log-sum-exp. A sample of weight 0 adds nothing, whatever its outputs are.
 */
void dpt_loss_rows(const struct dpt_loss *loss, const struct dpt_batch *batch, int32_t outputs,
                   size_t stride, const float *y, float *dy, struct dpt_metric_sums *metric_sums);

/*
 * The dropout mask of one sample at one node: mask[i], for element i of n in canonical [c][h][w]
 * order, is 0 or 1 / (1 - rate). It depends on seed, step, sample and node only.
 */
void dpt_dropout_mask(uint64_t seed, uint64_t step, int64_t sample, int32_t node, float rate,
                      size_t n, float *mask);

#endif

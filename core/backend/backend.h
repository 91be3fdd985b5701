/*
 * backend: who computes.
 *
 * A backend prepares a whole graph with its loss for micro-batches of at most `micro` samples and
 * may fuse operations of it. The result, a program, has `threads` workers. Each worker has its own
 * activations and workspace, so different threads run different workers at once; no two threads may
 * use one worker at the same time. After the first micro-batch of a worker nothing is allocated.
 * Gradients and losses are *sums* over samples, each times its weight; whoever updates the
 * parameters divides by the sum of the weights, which is the number of samples where they have
 * none. Parameters, gradients: canonical arenas (graph.h) in host memory, borrowed for the call.
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

/*
 * Of what kind numbers are in the layers. Parameters, sums over samples and the reduction are fp32
 * in all of them. tf32: fp32 tensors, but of a product's factors 11 bits; bf16: tensors of 8 bits;
 * fp16: tensors of 11 bits and 5 of exponent: with a loss scale (loss_scale.h).
 */
#define DPT_PRECISION_LIST(X)                                                                      \
    X(DPT_PRECISION_FP32, "fp32")                                                                  \
    X(DPT_PRECISION_TF32, "tf32")                                                                  \
    X(DPT_PRECISION_BF16, "bf16")                                                                  \
    X(DPT_PRECISION_FP16, "fp16")
enum dpt_precision { DPT_PRECISION_LIST(DPT_LIST_NAME) DPT_PRECISIONS };
extern const char *const dpt_precision_names[DPT_PRECISIONS + 1]; /* ends with NULL */

enum dpt_loss_kind {
    DPT_LOSS_CROSS_ENTROPY, /* softmax cross-entropy; labels, or rows of target probabilities */
    DPT_LOSS_MSE,           /* mean over the outputs of (y - t)^2 */
};

struct dpt_loss {
    enum dpt_loss_kind kind;
    float
        smoothing; /* cross-entropy: target = (1 - s) target + s / outputs (Szegedy et al. 2016) */
};

/* One micro-batch. All pointers are borrowed for the call. */
struct dpt_batch {
    int32_t count;         /* 1 … micro */
    const float *input;    /* [micro][c][h][w] of the graph's input; rows past `count` are zero */
    const int32_t *labels; /* [count] classes, each below the graph's outputs; or NULL */
    const float *targets;  /* [count][outputs]; or NULL; exactly one of the two is given */
    const float *weights;  /* [count]: so much each sample counts, finite and >= 0; NULL: 1 each */
    const int64_t *sample; /* [count] numbers in the data set: they key the dropout */
    uint64_t seed, step;   /* likewise */
};

/* The sums from which loss and accuracy are computed in training and evaluation. Sums of several
 * threads and ranks can be added up. A mean is one of the first two divided by `weight`. Where
 * samples have no weights, or 0 and 1 alone, correct and weight are whole numbers, and exact. */
struct dpt_metric_sums {
    double loss; /* weight x loss of each sample */
    double
        correct; /* weights where the arg max of the outputs is the label (or the arg max of the targets); 0 for mse */
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

/* The mean loss and the accuracy; NAN without samples, and where the samples' weights sum to 0. */
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
    bool training; /* false: only dpt_backend.infer will be called */
    /* A pool of `threads` threads that compute each micro-batch together, as a team; borrowed while
     * the program lives. NULL: each thread computes micro-batches of its own. */
    struct dpt_pool *team;
    /* A team's: a batch may be several micro-batches of `sub_batch` samples in a row, all full but the last one, and then the gradient
       is the sum of theirs along the tree of core/comm/tree.h over 0, 1, …: the same bits as one after another. 0: micro. */
    int32_t sub_batch;
    enum dpt_precision precision; /* one that the backend has */
    /* The bits follow from graph, micro-batch and kind of device: nothing is chosen by timing, and nothing whose order changes. */
    bool reproducible;
    /* Kernels whose bits change from run to run are taken where they are faster; else only where there are no others. */
    bool varying;
    int device; /* its number, where there are several (devices.h) */
    const char *
        cache; /* a folder for what is dear to find out (which kernels are fast); may lack; NULL: nothing is kept */
    const char *
        plans; /* what an earlier program chose, as its `plans` said: taken again where it can be had; NULL: none */
    /* The last two are borrowed for the call. */
};

/* What a program holds, all its workers together. */
struct dpt_program_bytes {
    int64_t values;  /* the layers' outputs, their gradients, what backward needs of them */
    int64_t scratch; /* workspace of the kernels */
    int64_t copies;  /* of the parameters, in other layouts */
};

struct dpt_backend_steps;
struct dpt_backend_devices;

/* What one kind of launch on a device took, all its calls together, while somebody asked (`profile`). */
struct dpt_launch_cost {
    char what[64];    /* "relu_f32", "convolution forward + bias" */
    const char *node; /* the layer's name; "": none's */
    int64_t calls;
    double seconds; /* by the device's clock */
    int64_t bytes;  /* that one call must move at least */
    double flops;   /* of one call */
};

struct dpt_backend {
    const char *name;
    const char *summary;
    unsigned precisions; /* bits 1 << enum dpt_precision */
    /* For a backend whose device has memory of its own; else NULL. */
    const struct dpt_backend_steps *steps;     /* whole steps there (steps.h) */
    const struct dpt_backend_devices *devices; /* which there are (devices.h) */
    /* Library and instruction set, e.g. "oneDNN 2.6.3, AVX-512 BF16"; static text. Checkpoints name
     * by it what their bits hang on. */
    const char *(*describe)(void);
    /* As `describe`, for messages: of the instruction set only what its kernels use. */
    const char *(*uses)(void);
    /* Which instructions of the processor it uses, its library too. NULL: a device computes. */
    enum dpt_isa (*isa)(void);
    /* Where a library chooses by itself: holds it to these and those below them, in the whole process. To be called before
       describe, isa, and all that computes. Errors: BAD_JOB (the library has not so many, or knows no limit). May be NULL. */
    enum dpt_status (*limit)(enum dpt_isa most, struct dpt_error *err);
    /* Whether a rank's threads had better compute each micro-batch of this graph together, sharing its layers, than take
       micro-batches each for themselves and add up gradients. May be NULL: never. */
    bool (*teams)(const struct dpt_graph *graph);
    /* Errors: BAD_JOB (the backend cannot do this graph; names the layer), RANK. On failure *program is NULL. */
    enum dpt_status (*open)(const struct dpt_program_spec *spec, void **program,
                            struct dpt_error *err);
    void (*close)(void *program); /* NULL is fine */
    /* Of a device: bytes that the program holds (activations, scratch, copies). Optional. */
    int64_t (*bytes)(const void *program);
    /* What `open` would make for this spec, without its workers: nothing of the size of activations is allocated. Errors: as open's. */
    enum dpt_status (*measure)(const struct dpt_program_spec *spec, struct dpt_program_bytes *bytes,
                               struct dpt_error *err);
    /* Renews what the backend derives from the parameters (other layouts). To be called by all threads of a pool, each with its
       worker, when the parameters changed; each does its share. No other call may run at the same time. */
    enum dpt_status (*refresh)(void *program, int worker, const float *params,
                               struct dpt_error *err);
    /* Forward, loss, backward of one micro-batch. gradient: an arena; overwritten, or added to where `add`. The floats between
       tensors stay as they are. metric_sums: added to.
       metric_sums: [1 … micro / sub_batch], one for each sub-batch that there is, where `sub_batch` is set; such batches are never added.
       In a team all its threads call it within one dpt_pool_run, each with its worker, and otherwise with the same arguments;
       what was counted is added to the metric sums of worker 0, and all is done when any of the calls returns. The bits of gradient and
       metric sums do not depend on how many threads there are, nor on whether they are a team. */
    enum dpt_status (*train)(void *program, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    /* Forward as for evaluation (no dropout). outputs: [count][outputs] or NULL; metric_sums: added to, or NULL (then no labels needed). */
    enum dpt_status (*infer)(void *program, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err);
    /* Computes forward as infer does. *node: out, the first whose output holds a value that is not finite, the input's included, and
       *position of that sample in the batch; -1 where there is none. For messages, not for speed. */
    enum dpt_status (*find_nonfinite)(void *program, int worker, const struct dpt_batch *batch,
                                      const float *params, int32_t *node, int32_t *position,
                                      struct dpt_error *err);
    /* From now on a worker records its time in `spans`: the passes of each node (dpt_span_node) and
     * the loss; NULL ends the recording. Not to be called while the worker computes. Optional, as
     * the next two. */
    void (*profile)(void *program, int worker, struct dpt_spans *spans);
    /* Of a device: at most `most` kinds of what was launched since the program was opened while profiled, in a step's order, and
       what each takes: it is repeated as often as the clock needs. Parameters, optimizer, gradient and all that is counted are as
       before. Not while the program works. *n: how many there are. Errors: RANK. Optional. */
    enum dpt_status (*launches)(void *program, struct dpt_launch_cost *costs, int most, int *n,
                                struct dpt_error *err);
    /* The node in whose pass a node is computed, where the two are fused; else the node itself. */
    int32_t (*runs_in)(const void *program, int32_t node, bool backward);
    /* Optional: adds which kernels were chosen where others would have done as well, and might give other bits: a line for each,
       "what for<tab>of what problem<tab>which", the first two different in each. */
    void (*plans)(const void *program, struct dpt_str *text);
    /* Optional: adds a line (without its end) that tells what it costs to take kernels that repeat their bits, or what others save;
       nothing where that was not measured, or they are the fastest. */
    void (*determinism)(const void *program, struct dpt_str *text);
    /* Optional: the gradient of the loss is multiplied by this, a power of two, before backward, and the parameters' gradient
       divided by it. */
    enum dpt_status (*scale)(void *program, float loss_scale, struct dpt_error *err);
    /* C [m][n] = A [m][k] B [k][n], contiguous, by the calling thread alone: to see what the machine can do. Errors: INTERNAL, RANK. */
    enum dpt_status (*gemm)(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                            float *c, struct dpt_error *err);
};

extern const struct dpt_backend dpt_backend_ref;  /* ref/: plain C, any shape */
extern const struct dpt_backend dpt_backend_cpu;  /* cpu/: where DPT_WITH_ONEDNN is 1 */
extern const struct dpt_backend dpt_backend_cuda; /* cuda/: where DPT_WITH_CUDA is 1 */

/* All backends that this build has, the preferred one for CPUs first; ends with NULL. */
extern const struct dpt_backend *const dpt_backends[];

/* By name ("cpu", "ref"), or NULL. */
const struct dpt_backend *dpt_backend_find(const char *name);

/*
 * Loss of one micro-batch from its outputs (logits), for backends on the host.
 *
 * y: [count][outputs], row stride `stride` floats. dy: out, same shape and stride: d(sum of losses)/dy; NULL: not wanted.
 * Cross-entropy: stable log-sum-exp. A sample of weight 0 adds nothing, whatever its outputs are. metric_sums: added to.
 */
void dpt_loss_rows(const struct dpt_loss *loss, const struct dpt_batch *batch, int32_t outputs,
                   size_t stride, const float *y, float *dy, struct dpt_metric_sums *metric_sums);

/*
 * The dropout of one sample at one node: mask[i] is 0 or 1 / (1 - rate) for element i of n (canonical [c][h][w] order).
 * Depends on (seed, step, sample, node) only.
 */
void dpt_dropout_mask(uint64_t seed, uint64_t step, int64_t sample, int32_t node, float rate,
                      size_t n, float *mask);

#endif

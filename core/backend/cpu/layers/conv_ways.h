/*
 * conv_ways: the code that may compute a convolution's passes. Private to this folder.
 *
 * For each pass the first way of DPT_CONV_WAYS that fits is taken. What fits is a rule of the
 * layer's shape, of the precision and of the instruction set, never of the number of ranks or
 * threads: the bits of a job would depend on it.
 *
 * Each pass may want its weights in an order of its own. Copies in these orders, shared by all
 * workers, are updated in refresh; the gradient of the weights comes in such an order too and is
 * put into the canonical one.
 */
#ifndef DPT_BACKEND_CPU_CONV_WAYS_H
#define DPT_BACKEND_CPU_CONV_WAYS_H

#include "core/backend/cpu/bf16/bf16_conv.h"
#include "core/backend/cpu/fp32/direct.h"
#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/fp32/sparse.h"
#include "core/backend/cpu/fp32/winograd.h"
#include "core/backend/cpu/program/program.h"

#if DPT_CPU_ONEDNN
#define DPT_CONV_LIBRARY_WAYS(X) X(onednn)
#else
#define DPT_CONV_LIBRARY_WAYS(X)
#endif

/* Each way once, the preferred ones first. bf16: all passes by the CPU's instructions for it;
 * winograd: forward with fewer products; lists: the gradients through a max-pool; patches: the
 * gradient of many weights over few pixels; winograd_data and winograd_weights: each gradient with
 * fewer products; depthwise: a group for each channel; onednn: every pass of any shape; direct:
 * likewise. */
#define DPT_CONV_WAYS(X)                                                                           \
    X(bf16)                                                                                        \
    X(winograd)                                                                                    \
    X(lists)                                                                                       \
    X(patches)                                                                                     \
    X(winograd_data)                                                                               \
    X(winograd_weights)                                                                            \
    X(depthwise)                                                                                   \
    DPT_CONV_LIBRARY_WAYS(X)                                                                       \
    X(direct)

/* The functions of a pass that a way does not compute are NULL. */
struct dpt_conv_way {
    const char *name; /* as `bench` prints it */
    /* Whether it can compute the pass, and is to be preferred to the ways after it. *fits: out, on
     * success. Errors: RANK. */
    enum dpt_status (*fits)(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, bool *fits, struct dpt_error *err);
    /* Plans a pass, which is the weights' if it computes both gradients. Errors: BAD_JOB, RANK. */
    enum dpt_status (*plan)(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err);
    /* Updates the copy of the weights that forward or the gradient of the input reads. */
    void (*refresh)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                    enum dpt_conv_pass pass);
    void (*forward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    /* Both gradients in one pass, or each by itself. */
    void (*backward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    void (*data)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    void (*weights)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    bool rounds; /* in bf16 it rounds what it reads; else it gets rounded copies */
};

#define X(name) extern const struct dpt_conv_way dpt_conv_##name;
DPT_CONV_WAYS(X)
#undef X

/* Weights in the order of an oneDNN kernel. */
struct dpt_conv_copy {
    int call; /* canonical order -> the kernel's */
    float *weights;
};

/* A convolution's `own`. */
struct dpt_conv {
    struct dpt_conv_shape shape;
    const struct dpt_conv_way *way[DPT_CONV_PASSES]; /* NULL: the pass is not wanted */
    int64_t n_weights;
    /* Buffers of the operands: what the node reads, in forward and in backward, and the gradient of
     * its output, or of its pool's; the nodes' buffers, or rounded copies. */
    int x, back_x, dy;
    /* With a batch norm in the weights: zeros up to a multiple of 16 after it. */
    float *folded_bias;
    struct {
        struct dpt_bf16_conv *conv;
        float *weights, *data; /* packed */
    } bf16;
    struct {
        struct dpt_winograd w;
        float *weights;
    } winograd, winograd_data;
    struct {
        struct dpt_direct *conv; /* of the passes that go this way */
        float *weights, *data;   /* packed */
    } direct;
    struct {
        struct dpt_sparse *sparse;
        float *weights;
        int scratch; /* buffer */
    } lists;
    struct {
        struct dpt_direct_sum *taps; /* over the pixels that read each of them */
        int64_t *numbers;            /* memory of their arrays */
        int operands;                /* buffer: x and dy of a micro-batch, or of all kept ones */
        bool keeps;                  /* those of several micro-batches (dpt_cpu_kept) */
    } patches;
    struct {
        struct dpt_conv_kernels kernels; /* those not yet made into calls */
        struct dpt_conv_copy forward_weights, data_weights;
        int forward, data, weights; /* calls */
        int unpack[2];              /* calls; the second one adds, unless it writes to `unpacked` */
        int unpacked;               /* buffer of the gradient in canonical order, or NONE */
        int dw, db;                 /* buffers */
    } onednn;
};

/* Whether a convolution's stride, dilation and groups are 1. */
static inline bool dpt_conv_is_plain(const struct dpt_window *w)
{
    return w->stride[0] == 1 && w->stride[1] == 1 && w->dilation[0] == 1 && w->dilation[1] == 1 &&
           w->groups == 1;
}

/* Whether the backward passes read the pool's gradient as a list. */
static inline bool dpt_conv_listed(const struct dpt_cpu_node *node)
{
    return node->pool != NULL && node->pool->listed;
}

#if DPT_CPU_ONEDNN
/* Sets *yes to whether backward, if it is oneDNN's, has fast kernels in blocks of 16 channels, and
 * keeps them. Errors: RANK. */
enum dpt_status dpt_conv_onednn_in_blocks(struct dpt_cpu_program *program,
                                          const struct dpt_cpu_node *node, bool *yes,
                                          struct dpt_error *err);
#endif

/* Plans the output, in blocks of 16 channels, of a convolution that computes the max-pool after
 * it. */
void dpt_conv_write_output(struct dpt_cpu_program *program, struct dpt_cpu_node *node);
/* Plans memory for the weights if the passes do not read the parameters, by which `rounds` is
 * meant; and gives the weights as they read them, in memory of the calling worker then. */
void dpt_conv_plan_weights(struct dpt_cpu_program *program, const struct dpt_cpu_node *node);
const float *dpt_conv_weights_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
const float *dpt_conv_bias_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
/* Where forward writes the argmax of the max-pool that it computes; NULL: nowhere. */
void *dpt_conv_argmax(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);

#endif

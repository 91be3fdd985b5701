/*
 * dnnl: all calls of this backend to oneDNN. Only the dnnl files include its header, and only
 * dnnl_version.c knows the differences between 2.x (2.6 in Debian 12) and 3.x.
 *
 * A kernel (a primitive and the layouts of its arguments) is immutable and shared by all threads; a
 * call binds it to memory and belongs to one thread. The caller owns the workspace, so that a
 * kernel is not tied to the thread that created it.
 *
 * Convolutions are direct ones, never `auto`, which changes the algorithm, and so the bits, with
 * the batch size.
 */
#ifndef DPT_BACKEND_CPU_DNNL_H
#define DPT_BACKEND_CPU_DNNL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend/cpu/layout.h"
#include "core/base/isa.h"

/* The arguments of a kernel. Backward kernels take gradients under the same names: X is the
 * gradient of the input, W that of the weights. */
enum dpt_role { DPT_ROLE_X, DPT_ROLE_Y, DPT_ROLE_W, DPT_ROLE_B, DPT_ROLE_COUNT };

struct dpt_dnnl;
struct dpt_call;

/* The public beginning of a kernel; created and owned as a pointer. */
struct dpt_kernel {
    int64_t floats[DPT_ROLE_COUNT];                /* of the arguments */
    enum dpt_memory_layout layout[DPT_ROLE_COUNT]; /* of a convolution's X and Y */
    int64_t scratch;                               /* floats of its workspace */
    bool slow;                                     /* one of oneDNN's fallbacks */
};

/* "oneDNN 2.6.3, AVX-512", static text: no set that this process does not use (dpt_isa_here). */
const char *dpt_dnnl_describe(void);
/* Does what dpt_backend's `uses` does. */
const char *dpt_dnnl_uses(void);

/* The instruction set that oneDNN uses, and this program's own kernels with it: the CPU's, unless
 * the environment (ONEDNN_MAX_CPU_ISA) or dpt_dnnl_limit sets a lower one. */
enum dpt_isa dpt_dnnl_isa(void);

/* Limits oneDNN to these instructions, whatever the environment says. Must be called before all
 * other functions here, since oneDNN accepts a limit only until its first use. Errors: BAD_JOB. */
enum dpt_status dpt_dnnl_limit(enum dpt_isa most, struct dpt_error *err);

/* Creates the engine and a stream for each of `threads` threads. Errors: RANK. */
enum dpt_status dpt_dnnl_open(struct dpt_dnnl **dnnl, int threads, struct dpt_error *err);
void dpt_dnnl_close(struct dpt_dnnl *dnnl);

/*
 * Makes oneDNN use one thread for kernels that the calling thread runs, since the threads of a pool
 * compute whole micro-batches. It costs little and must be called on each entry. A kernel is
 * created for the number of threads of its creator, which dpt_dnnl_open has set to one.
 */
void dpt_dnnl_one_thread(const struct dpt_dnnl *dnnl);

/* Errors: BAD_JOB (oneDNN cannot do it in these layouts), RANK. */
enum dpt_status dpt_kernel_conv(struct dpt_dnnl *dnnl, enum dpt_conv_pass pass,
                                const struct dpt_conv_shape *shape, enum dpt_memory_layout x,
                                enum dpt_memory_layout y, struct dpt_kernel **kernel,
                                struct dpt_error *err);
/* Converts activations [n][c][h][w] from one layout to another: Y from X. */
enum dpt_status dpt_kernel_reorder(struct dpt_dnnl *dnnl, const int32_t dims[4],
                                   enum dpt_memory_layout from, enum dpt_memory_layout to,
                                   struct dpt_kernel **kernel, struct dpt_error *err);
/* The conversions of weights: PACK converts them from canonical order to the layout that a
 * convolution reads (Y from X); UNPACK from the layout that it writes to canonical order;
 * UNPACK_ADD adds them to what is there. */
enum dpt_weights_move { DPT_WEIGHTS_PACK, DPT_WEIGHTS_UNPACK, DPT_WEIGHTS_UNPACK_ADD };
enum dpt_status dpt_kernel_reorder_weights(struct dpt_dnnl *dnnl,
                                           const struct dpt_conv_shape *shape,
                                           const struct dpt_kernel *conv,
                                           enum dpt_weights_move move, struct dpt_kernel **kernel,
                                           struct dpt_error *err);
void dpt_kernel_close(struct dpt_kernel *kernel);

/* The kernels of a convolution for the requested passes, in one pair of layouts. Zero-initialise:
 * {0}. They are owned by this struct; to take one out, set it to NULL. */
struct dpt_conv_kernels {
    struct dpt_kernel *pass[DPT_CONV_PASSES];
    enum dpt_memory_layout x, y;
    int slow; /* how many of them are fallbacks */
};

/* The passes that are requested besides forward. */
struct dpt_conv_request {
    struct dpt_dnnl *dnnl;
    const char *name; /* of the layer, for messages */
    struct dpt_conv_shape shape;
    bool data, weights;
};

/* Errors of both: BAD_JOB (oneDNN has none), RANK; then *k is empty. */
enum dpt_status dpt_conv_kernels_make(const struct dpt_conv_request *request,
                                      enum dpt_memory_layout x, enum dpt_memory_layout y,
                                      struct dpt_conv_kernels *k, struct dpt_error *err);
/*
 * Chooses oneDNN's preferred layouts for forward, if the backward passes have fast kernels there
 * too. With few channels they often have none (a fallback is a hundred times slower); then it
 * chooses the pair of layouts with the fewest fallbacks.
 */
enum dpt_status dpt_conv_kernels_choose(const struct dpt_conv_request *request,
                                        struct dpt_conv_kernels *best, struct dpt_error *err);
void dpt_conv_kernels_close(struct dpt_conv_kernels *k);

/* Creates a call. scratch: as many floats as the kernel needs, aligned. The memory of the arguments
 * is set with dpt_call_set. Errors: RANK. */
enum dpt_status dpt_call_open(struct dpt_call **call, struct dpt_dnnl *dnnl, int thread,
                              const struct dpt_kernel *kernel, float *scratch,
                              struct dpt_error *err);
void dpt_call_close(struct dpt_call *call);
void dpt_call_set(struct dpt_call *call, enum dpt_role role, const float *memory);
/* Errors: INTERNAL. */
enum dpt_status dpt_call_run(struct dpt_call *call, struct dpt_error *err);

/* C [m][n] = A [m][k] B [k][n] without a program, computed by the calling thread alone. Errors:
 * INTERNAL, RANK. */
enum dpt_status dpt_dnnl_gemm(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                              float *c, struct dpt_error *err);

#endif

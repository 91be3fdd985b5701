/*
 * context: a device made ready for this process.
 *
 * The libraries, the device's primary context (which a CUDA-aware MPI and this program share), the
 * kernels' module, the libraries' handles and streams: one computes, one sends samples, one gets
 * what the ranks have summed, and one copies everything else. Each program (program.h) opens a
 * context. Threads: see library.h; a thread other than the one that opened the context calls
 * dpt_cuda_context_enter first.
 */
#ifndef DPT_BACKEND_CUDA_CONTEXT_H
#define DPT_BACKEND_CUDA_CONTEXT_H

#include "core/backend/cuda/kernels/kernels.h"
#include "core/backend/cuda/libraries/library.h"
#include "core/backend/cuda/libraries/plan.h"
#include "core/base/device_waits.h"

/*
 * The kernels on the device. Their image is part of the program: it holds code for each
 * architecture that it was built for, and PTX for later ones. It is loaded into the current context
 * once, and then its kernels are launched by their numbers. A launch is enqueued on a stream, or
 * added to the graph that is being captured there, and copies its argument. One thread loads and
 * releases the module; any thread whose current context this is may launch, one thread at a time
 * for a stream.
 */
struct dpt_cuda_module {
    CUmodule module;
    CUfunction functions[DPT_CUDA_KERNEL_COUNT];
};

/* Returns the image for cuModuleLoadData; *bytes: its size. */
const void *dpt_cuda_module_image(size_t *bytes);

/* Errors: BAD_JOB: the image has no code for this GPU; RANK. */
enum dpt_status dpt_cuda_module_load(const struct dpt_cuda_library *lib,
                                     struct dpt_cuda_module *module, struct dpt_error *err);
void dpt_cuda_module_release(const struct dpt_cuda_library *lib, struct dpt_cuda_module *module);

/* Launches a kernel. argument: the kernel's struct of kernels.h; with no elements nothing is
 * launched. Errors: BAD_JOB: the tensor is too large for one launch; RANK. */
enum dpt_status dpt_cuda_launch(const struct dpt_cuda_library *lib,
                                const struct dpt_cuda_module *module, CUstream stream,
                                enum dpt_cuda_kernel kernel, const void *argument,
                                struct dpt_error *err);

struct dpt_cuda_context {
    struct dpt_cuda_library lib;
    CUdevice device;
    CUcontext context;
    struct dpt_cuda_module module;
    struct dpt_cuda_device plans; /* cuDNN's handle, which computes on `compute` */
    cublasLtHandle_t matmuls;
    /* Samples have a stream of their own: otherwise 154 MB of them would come before the first
     * bucket of the gradient. */
    CUstream compute, copy, samples;
    CUstream sums;                  /* what is summed over the ranks, there or back from the host */
    CUstream filters;               /* the second branch of backward (program_branches.c) */
    struct dpt_device_waits *waits; /* borrowed; NULL: no watchdog */
    struct dpt_cuda_held *held;     /* memory and events; freed by close */
    size_t n_held, held_room;
    int64_t bytes; /* of device memory that is held */
    bool beside;   /* everything except what `held` lists belongs to another context */
};

/* Opens visible device number `number`. Errors: BAD_JOB (libraries, device), RANK. On failure
 * everything is released. */
enum dpt_status dpt_cuda_context_open(struct dpt_cuda_context *ctx, int number,
                                      struct dpt_error *err);
/* What is held through *ctx is its own, and the rest that of `first`, which must be closed after
 * it. */
void dpt_cuda_context_beside(struct dpt_cuda_context *ctx, const struct dpt_cuda_context *first);
/* Waits for the device and frees all that is held. A zeroed context is left alone. */
void dpt_cuda_context_close(struct dpt_cuda_context *ctx);
/* Makes the context the calling thread's current one. */
enum dpt_status dpt_cuda_context_enter(const struct dpt_cuda_context *ctx, struct dpt_error *err);

/* Waits for all that was enqueued on a stream, or for an event. A watchdog that reads ctx->waits
 * ends the job if the device hangs. Errors: RANK. */
enum dpt_status dpt_cuda_await_stream(const struct dpt_cuda_context *ctx, CUstream stream,
                                      struct dpt_error *err);
enum dpt_status dpt_cuda_await_event(const struct dpt_cuda_context *ctx, CUevent event,
                                     struct dpt_error *err);
/* Waits for everything on the device, before something is closed: errors have been reported
 * before. */
void dpt_cuda_await_all(const struct dpt_cuda_context *ctx);

/*
 * Captures what enqueue(arg) enqueues on ctx->compute as a graph; the caller destroys *exec. During
 * the capture this thread must neither allocate nor wait; other threads may
 * (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL). After a failure the stream can be used as before. Errors:
 * enqueue's, RANK.
 */
enum dpt_status dpt_cuda_capture(struct dpt_cuda_context *ctx,
                                 enum dpt_status (*enqueue)(void *arg, struct dpt_error *err),
                                 void *arg, CUgraphExec *exec, struct dpt_error *err);

/* A piece of memory. Zero bytes give NULL. what: "the activations", for messages. */
struct dpt_cuda_piece {
    const char *what;
    int64_t bytes;
    void **at;
    bool pinned; /* host memory that the device can read; else device memory */
};

/*
 * Allocates pieces of memory, zeroed and aligned to 256 bytes, which close frees. Errors: BAD_JOB:
 * the device's memory is too small (the message says how much was asked for what, how much this
 * program holds and how much is free); RANK: there is no pinned memory, or the device failed.
 */
enum dpt_status dpt_cuda_hold(struct dpt_cuda_context *ctx, const struct dpt_cuda_piece *pieces,
                              size_t n, struct dpt_error *err);

/* Enqueues a copy between the device and memory of the host on ctx->compute. Errors: RANK. */
enum dpt_status dpt_cuda_to_device(const struct dpt_cuda_context *ctx, void *device,
                                   const void *host, size_t bytes, struct dpt_error *err);
enum dpt_status dpt_cuda_to_host(const struct dpt_cuda_context *ctx, void *host, const void *device,
                                 size_t bytes, struct dpt_error *err);

/* Makes an event, which close destroys. flags: CU_EVENT_DISABLE_TIMING for one that has no time. */
enum dpt_status dpt_cuda_event(struct dpt_cuda_context *ctx, unsigned flags, CUevent *event,
                               struct dpt_error *err);

#endif

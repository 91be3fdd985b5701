/*
 * context: a device made ready for this process.
 *
 * The libraries, the device's primary context (which a CUDA-aware MPI and this program share), the
 * kernels' module, the libraries' handles and two streams: one computes, one copies. One is opened
 * for each program (program.h). Threads: see library.h; a thread other than the one that opened it
 * calls dpt_cuda_context_enter before anything else.
 */
#ifndef DPT_BACKEND_CUDA_CONTEXT_H
#define DPT_BACKEND_CUDA_CONTEXT_H

#include "core/backend/cuda/kernels.h"
#include "core/backend/cuda/library.h"
#include "core/backend/cuda/plan.h"

/*
 * The kernels on the device. The image, code for each architecture it was built for and PTX for
 * later ones, is part of the program. Loaded into the current context once, its kernels are launched
 * by their number. Launches are enqueued on a stream, so that they are captured into a graph where
 * one is being captured; the argument is copied by the launch. Load and release by one thread;
 * launches by any that has the context current, one at a time for a stream.
 */
struct dpt_cuda_module {
    CUmodule module;
    CUfunction functions[DPT_CUDA_KERNEL_COUNT];
};

/* The image, as cuModuleLoadData takes it; *bytes: its size. */
const void *dpt_cuda_module_image(size_t *bytes);

/* Errors: BAD_JOB: no code in it for this GPU; RANK. */
enum dpt_status dpt_cuda_module_load(const struct dpt_cuda_library *lib,
                                     struct dpt_cuda_module *module, struct dpt_error *err);
void dpt_cuda_module_release(const struct dpt_cuda_library *lib, struct dpt_cuda_module *module);

/* argument: the kernel's struct of kernels.h. Nothing to do is no error. Errors: BAD_JOB: too large
 * for one launch; RANK. */
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
    CUstream compute, copy;
    struct dpt_cuda_held *held; /* memory and events; freed by close */
    size_t n_held, held_room;
    int64_t bytes; /* of device memory that is held */
};

/* Number `number` of the visible devices. Errors: BAD_JOB (libraries, device), RANK. On failure
 * everything is released. */
enum dpt_status dpt_cuda_context_open(struct dpt_cuda_context *ctx, int number,
                                      struct dpt_error *err);
/* Waits for the device and frees all that is held. A zeroed one is fine. */
void dpt_cuda_context_close(struct dpt_cuda_context *ctx);
/* Makes it the calling thread's. */
enum dpt_status dpt_cuda_context_enter(const struct dpt_cuda_context *ctx, struct dpt_error *err);

/*
 * What enqueue(arg) enqueues on ctx->compute, as a graph to be launched; the caller destroys it.
 * Meanwhile this thread must neither allocate nor wait; others may do what they like
 * (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL). After a failure the stream is as good as before. Errors:
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
    bool pinned; /* the host's, which the device can read; else the device's */
};

/*
 * Holds pieces of memory until close: zeroed, aligned to 256 bytes. Errors: BAD_JOB: the device's
 * memory is too small: how much was asked for what, how much this program holds there, how much is
 * free of how much, and that others may use the device; RANK: pinned memory, or the device failed.
 */
enum dpt_status dpt_cuda_hold(struct dpt_cuda_context *ctx, const struct dpt_cuda_piece *pieces,
                              size_t n, struct dpt_error *err);

/* An event, destroyed by close. flags: CU_EVENT_DISABLE_TIMING: it has no time. */
enum dpt_status dpt_cuda_event(struct dpt_cuda_context *ctx, unsigned flags, CUevent *event,
                               struct dpt_error *err);

#endif

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

#include "core/backend/cuda/library.h"
#include "core/backend/cuda/module.h"
#include "core/backend/cuda/plan.h"

struct dpt_cuda_context {
    struct dpt_cuda_library lib;
    CUdevice device;
    int number; /* of the device */
    CUcontext context;
    struct dpt_cuda_module module;
    struct dpt_cuda_device plans; /* cuDNN's handle, which computes on `compute` */
    cublasLtHandle_t matmuls;
    CUstream compute, copy;
    struct dpt_cuda_held *held; /* device and pinned memory, for what it is; freed by close */
    int n_held, held_capacity;
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

/*
 * Device memory, zeroed, aligned to 256 bytes, freed by close; bytes 0 gives NULL. what: "the
 * activations", for the message. Errors: BAD_JOB: out of memory: how much was asked for what, how
 * much this program already holds for what, how much is free of how much, and that others may use
 * the device.
 */
enum dpt_status dpt_cuda_hold(struct dpt_cuda_context *ctx, const char *what, int64_t bytes,
                              void **at, struct dpt_error *err);
/* Pinned host memory, zeroed, freed by close. Errors: RANK. */
enum dpt_status dpt_cuda_pin(struct dpt_cuda_context *ctx, const char *what, int64_t bytes,
                             void **at, struct dpt_error *err);

/* "3.12 GB" or "16.8 MB" into buf (at least 24 bytes); returns buf. */
const char *dpt_cuda_bytes_text(int64_t bytes, char *buf);

#endif

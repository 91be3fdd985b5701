#include "core/backend/cuda/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHAT = 64 };

/* A piece of memory, and what it is for. */
struct dpt_cuda_held {
    char what[WHAT];
    int64_t bytes;
    CUdeviceptr device; /* 0: pinned */
    void *pinned;
};

/* --- opening ---------------------------------------------------------------------------------- */

static enum dpt_status choose_device(struct dpt_cuda_context *ctx, int number,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int count;

    DPT_TRY(dpt_cuda_library_devices(&ctx->lib, &count, err));
    if (number < 0 || number >= count)
        return dpt_fail(err, DPT_BAD_JOB, "there is no GPU number %d here: the driver shows %d",
                        number, count);
    ctx->number = number;
    DPT_CUDA_TRY(&ctx->lib, cuDeviceGet(&ctx->device, number));
    DPT_CUDA_TRY(&ctx->lib, cuDevicePrimaryCtxRetain(&ctx->context, ctx->device));
    DPT_CUDA_TRY(&ctx->lib, cuCtxSetCurrent(ctx->context));
out:
    return status;
}

enum dpt_status dpt_cuda_context_open(struct dpt_cuda_context *ctx, int number,
                                      struct dpt_error *err)
{
    struct dpt_cuda_library *lib = &ctx->lib;
    enum dpt_status status = DPT_OK;

    *ctx = (struct dpt_cuda_context){0};
    DPT_TRY(dpt_cuda_library_open(lib, DPT_CUDA_ALL, NULL, err));
    DPT_TRY(choose_device(ctx, number, err));
    DPT_TRY(dpt_cuda_module_load(lib, &ctx->module, err));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->compute, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->copy, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDNN_TRY(lib, cudnnCreate(&ctx->plans.handle));
    DPT_CUDNN_TRY(lib, cudnnSetStream(ctx->plans.handle, (cudaStream_t)ctx->compute));
    DPT_CUBLASLT_TRY(lib, cublasLtCreate(&ctx->matmuls));
out:
    if (status != DPT_OK)
        dpt_cuda_context_close(ctx);
    return status;
}

static void release_held(struct dpt_cuda_context *ctx)
{
    for (int i = ctx->n_held - 1; i >= 0; i--) {
        if (ctx->held[i].pinned != NULL)
            ctx->lib.cuMemFreeHost(ctx->held[i].pinned);
        else
            ctx->lib.cuMemFree(ctx->held[i].device);
    }
    free(ctx->held);
    ctx->held = NULL;
    ctx->n_held = 0;
}

/* What fails here has failed before, and was told then. */
void dpt_cuda_context_close(struct dpt_cuda_context *ctx)
{
    struct dpt_cuda_library *lib = &ctx->lib;
    CUcontext others = NULL; /* that the thread may go on with */

    if (ctx->context != NULL) {
        lib->cuCtxGetCurrent(&others);
        lib->cuCtxSetCurrent(ctx->context);
        lib->cuCtxSynchronize();
        release_held(ctx);
        if (ctx->matmuls != NULL)
            lib->cublasLtDestroy(ctx->matmuls);
        if (ctx->plans.handle != NULL)
            lib->cudnnDestroy(ctx->plans.handle);
        if (ctx->copy != NULL)
            lib->cuStreamDestroy(ctx->copy);
        if (ctx->compute != NULL)
            lib->cuStreamDestroy(ctx->compute);
        dpt_cuda_module_release(lib, &ctx->module);
        lib->cuCtxSetCurrent(others);
        lib->cuDevicePrimaryCtxRelease(ctx->device);
    }
    dpt_cuda_library_close(lib);
    *ctx = (struct dpt_cuda_context){0};
}

enum dpt_status dpt_cuda_context_enter(const struct dpt_cuda_context *ctx, struct dpt_error *err)
{
    return dpt_cuda_check(&ctx->lib, ctx->lib.cuCtxSetCurrent(ctx->context), "cuCtxSetCurrent",
                          err);
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* A capture that failed half-way is ended as well: the stream must be good for others. */
enum dpt_status dpt_cuda_capture(struct dpt_cuda_context *ctx,
                                 enum dpt_status (*enqueue)(void *arg, struct dpt_error *err),
                                 void *arg, CUgraphExec *exec, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &ctx->lib;
    enum dpt_status status = DPT_OK;
    CUgraph graph = NULL;
    CUresult ended;

    DPT_CUDA_TRY(lib, cuStreamBeginCapture(ctx->compute, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    status = enqueue(arg, err);
    ended = lib->cuStreamEndCapture(ctx->compute, &graph);
    DPT_TRY(status);
    DPT_TRY(dpt_cuda_check(lib, ended, "cuStreamEndCapture", err));
#if CUDA_VERSION >= 12000
    DPT_CUDA_TRY(lib, cuGraphInstantiate(exec, graph, 0));
#else
    DPT_CUDA_TRY(lib, cuGraphInstantiate(exec, graph, NULL, NULL, 0));
#endif
out:
    if (graph != NULL)
        lib->cuGraphDestroy(graph);
    return status;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A row for what comes next; NULL: no memory for it. */
static struct dpt_cuda_held *reserve(struct dpt_cuda_context *ctx, const char *what, int64_t bytes)
{
    struct dpt_cuda_held *held = ctx->held;

    if (ctx->n_held == ctx->held_capacity) {
        const int capacity = 2 * ctx->held_capacity + 16;

        held = realloc(held, (size_t)capacity * sizeof *held);
        if (held == NULL)
            return NULL;
        ctx->held = held;
        ctx->held_capacity = capacity;
    }
    held = &ctx->held[ctx->n_held];
    *held = (struct dpt_cuda_held){.bytes = bytes};
    snprintf(held->what, sizeof held->what, "%s", what);
    return held;
}

const char *dpt_cuda_bytes_text(int64_t bytes, char *buf)
{
    if (bytes >= 1000000000)
        snprintf(buf, 24, "%.2f GB", (double)bytes * 1e-9);
    else
        snprintf(buf, 24, "%.3g MB", (double)bytes * 1e-6);
    return buf;
}

/* "the activations 3.10 GB, the gradient 207 MB" of the largest things that are held. */
static void list_held(const struct dpt_cuda_context *ctx, char *text, size_t size)
{
    enum { MOST = 6 };
    int64_t below = INT64_MAX;
    size_t used = 0;
    char size_text[24];

    *text = '\0';
    for (int shown = 0; shown < MOST && used < size; shown++) {
        const struct dpt_cuda_held *next = NULL;

        for (int i = 0; i < ctx->n_held; i++) {
            const struct dpt_cuda_held *h = &ctx->held[i];

            if (h->device != 0 && h->bytes < below && (next == NULL || h->bytes > next->bytes))
                next = h;
        }
        if (next == NULL)
            break;
        below = next->bytes;
        used += (size_t)snprintf(text + used, size - used, "%s%s %s", shown > 0 ? ", " : "",
                                 next->what, dpt_cuda_bytes_text(next->bytes, size_text));
    }
}

static enum dpt_status fail_memory(const struct dpt_cuda_context *ctx, const char *what,
                                   int64_t bytes, struct dpt_error *err)
{
    char have[512], mine[640] = "", wanted[24], is_free[24], all[24], held[24];
    size_t free = 0, total = 0;

    ctx->lib.cuMemGetInfo(&free, &total);
    list_held(ctx, have, sizeof have);
    if (ctx->bytes > 0)
        snprintf(mine, sizeof mine, "; this program holds %s there (%s)",
                 dpt_cuda_bytes_text(ctx->bytes, held), have);
    return dpt_fail(err, DPT_BAD_JOB,
                    "the GPU's memory is too small: %s are needed for %s, and %s of its %s are "
                    "free%s; what other programs on this GPU hold is not free either",
                    dpt_cuda_bytes_text(bytes, wanted), what,
                    dpt_cuda_bytes_text((int64_t)free, is_free),
                    dpt_cuda_bytes_text((int64_t)total, all), mine);
}

enum dpt_status dpt_cuda_hold(struct dpt_cuda_context *ctx, const char *what, int64_t bytes,
                              void **at, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &ctx->lib;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_held *held;
    CUresult result;

    *at = NULL;
    if (bytes == 0)
        return DPT_OK;
    held = reserve(ctx, what, bytes);
    if (held == NULL)
        return dpt_fail_memory(err, what, (double)bytes);
    result = lib->cuMemAlloc(&held->device, (size_t)bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return fail_memory(ctx, what, bytes, err);
    DPT_TRY(dpt_cuda_check(lib, result, "cuMemAlloc", err));
    ctx->n_held++;
    ctx->bytes += bytes;
    DPT_CUDA_TRY(lib, cuMemsetD8Async(held->device, 0, (size_t)bytes, ctx->compute));
    /* Other streams do not wait for this one. */
    DPT_CUDA_TRY(lib, cuStreamSynchronize(ctx->compute));
    *at = (void *)(uintptr_t)held->device;
out:
    return status;
}

enum dpt_status dpt_cuda_pin(struct dpt_cuda_context *ctx, const char *what, int64_t bytes,
                             void **at, struct dpt_error *err)
{
    struct dpt_cuda_held *held;
    char size[24];

    *at = NULL;
    if (bytes == 0)
        return DPT_OK;
    held = reserve(ctx, what, bytes);
    if (held == NULL || ctx->lib.cuMemHostAlloc(&held->pinned, (size_t)bytes,
                                                CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
        return dpt_fail(err, DPT_RANK,
                        "not enough memory that the GPU can read from the host (pinned memory) for "
                        "%s (%s)",
                        what, dpt_cuda_bytes_text(bytes, size));
    ctx->n_held++;
    memset(held->pinned, 0, (size_t)bytes);
    *at = held->pinned;
    return DPT_OK;
}

#include "core/backend/cuda/libraries/context.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/str.h"

/* Something that close frees; exactly one member is set. */
struct dpt_cuda_held {
    CUdeviceptr device;
    void *pinned;
    CUevent event;
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
    DPT_TRY(dpt_cuda_library_enter(&ctx->lib, number, &ctx->device, &ctx->context, err));
out:
    return status;
}

enum dpt_status dpt_cuda_context_open(struct dpt_cuda_context *ctx, int number,
                                      struct dpt_error *err)
{
    struct dpt_cuda_library *lib = &ctx->lib;
    enum dpt_status status = DPT_OK;
    uint64_t start;

    *ctx = (struct dpt_cuda_context){0};
    DPT_TRY(dpt_cuda_library_open(lib, DPT_CUDA_NEEDED, NULL, err));
    DPT_TRY(choose_device(ctx, number, err));
    start = dpt_now_ns();
    DPT_TRY(dpt_cuda_module_load(lib, &ctx->module, err));
    dpt_cuda_startup_add(DPT_CUDA_START_KERNELS, start);
    start = dpt_now_ns();
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->compute, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->copy, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->samples, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->sums, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&ctx->filters, CU_STREAM_NON_BLOCKING, 0));
    DPT_CUDNN_TRY(lib, cudnnCreate(&ctx->plans.handle));
    DPT_CUDNN_TRY(lib, cudnnSetStream(ctx->plans.handle, (cudaStream_t)ctx->compute));
    DPT_CUBLASLT_TRY(lib, cublasLtCreate(&ctx->matmuls));
    dpt_cuda_startup_add(DPT_CUDA_START_HANDLES, start);
out:
    if (status != DPT_OK)
        dpt_cuda_context_close(ctx);
    return status;
}

void dpt_cuda_context_beside(struct dpt_cuda_context *ctx, const struct dpt_cuda_context *first)
{
    *ctx = *first;
    ctx->held = NULL;
    ctx->n_held = ctx->held_room = 0;
    ctx->bytes = 0;
    ctx->beside = true;
}

static void release_held(struct dpt_cuda_context *ctx)
{
    while (ctx->n_held > 0) {
        const struct dpt_cuda_held *held = &ctx->held[--ctx->n_held];

        if (held->pinned != NULL)
            ctx->lib.cuMemFreeHost(held->pinned);
        else if (held->event != NULL)
            ctx->lib.cuEventDestroy(held->event);
        else
            ctx->lib.cuMemFree(held->device);
    }
    free(ctx->held);
    ctx->held = NULL;
}

static void close_handles(struct dpt_cuda_context *ctx)
{
    struct dpt_cuda_library *lib = &ctx->lib;
    const CUstream streams[] = {ctx->filters, ctx->sums, ctx->samples, ctx->copy, ctx->compute};

    if (ctx->matmuls != NULL)
        lib->cublasLtDestroy(ctx->matmuls);
    if (ctx->plans.handle != NULL)
        lib->cudnnDestroy(ctx->plans.handle);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i] != NULL)
            lib->cuStreamDestroy(streams[i]);
    dpt_cuda_module_release(lib, &ctx->module);
}

/* Errors are ignored: what fails here has failed before and was reported then. */
void dpt_cuda_context_close(struct dpt_cuda_context *ctx)
{
    struct dpt_cuda_library *lib = &ctx->lib;
    CUcontext others = NULL; /* the thread's context before, which is restored */

    if (ctx->context != NULL) {
        lib->cuCtxGetCurrent(&others);
        lib->cuCtxSetCurrent(ctx->context);
        dpt_cuda_await_all(ctx);
        release_held(ctx);
        if (!ctx->beside)
            close_handles(ctx);
        lib->cuCtxSetCurrent(others);
        if (!ctx->beside)
            lib->cuDevicePrimaryCtxRelease(ctx->device);
    }
    if (!ctx->beside)
        dpt_cuda_library_close(lib);
    *ctx = (struct dpt_cuda_context){0};
}

enum dpt_status dpt_cuda_context_enter(const struct dpt_cuda_context *ctx, struct dpt_error *err)
{
    return dpt_cuda_check(&ctx->lib, ctx->lib.cuCtxSetCurrent(ctx->context), "cuCtxSetCurrent",
                          err);
}

/* --- waiting ---------------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_await_stream(const struct dpt_cuda_context *ctx, CUstream stream,
                                      struct dpt_error *err)
{
    CUresult result;

    dpt_device_wait_begin(ctx->waits);
    result = ctx->lib.cuStreamSynchronize(stream);
    dpt_device_wait_end(ctx->waits);
    return dpt_cuda_check(&ctx->lib, result, "cuStreamSynchronize", err);
}

enum dpt_status dpt_cuda_await_event(const struct dpt_cuda_context *ctx, CUevent event,
                                     struct dpt_error *err)
{
    CUresult result;

    dpt_device_wait_begin(ctx->waits);
    result = ctx->lib.cuEventSynchronize(event);
    dpt_device_wait_end(ctx->waits);
    return dpt_cuda_check(&ctx->lib, result, "cuEventSynchronize", err);
}

void dpt_cuda_await_all(const struct dpt_cuda_context *ctx)
{
    dpt_device_wait_begin(ctx->waits);
    ctx->lib.cuCtxSynchronize();
    dpt_device_wait_end(ctx->waits);
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* A capture that failed is ended, too, since the stream could not be used again otherwise. */
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

static enum dpt_status fail_memory(const struct dpt_cuda_context *ctx, const char *what,
                                   int64_t bytes, struct dpt_error *err)
{
    char text[4][32];
    size_t available = 0, total = 0;

    ctx->lib.cuMemGetInfo(&available, &total);
    return dpt_fail(
        err, DPT_BAD_JOB,
        "the GPU's memory is too small: %s are needed for %s, this program holds %s "
        "there, and %s of its %s are free; what other programs on this GPU hold is not "
        "free either",
        dpt_show_bytes((double)bytes, text[0]), what, dpt_show_bytes((double)ctx->bytes, text[1]),
        dpt_show_bytes((double)available, text[2]), dpt_show_bytes((double)total, text[3]));
}

static enum dpt_status hold_device(struct dpt_cuda_context *ctx, const struct dpt_cuda_piece *piece,
                                   CUdeviceptr *device, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &ctx->lib;
    const CUresult result = lib->cuMemAlloc(device, (size_t)piece->bytes);
    enum dpt_status status = DPT_OK;

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return fail_memory(ctx, piece->what, piece->bytes, err);
    DPT_TRY(dpt_cuda_check(lib, result, "cuMemAlloc", err));
    ctx->n_held++;
    ctx->bytes += piece->bytes;
    *piece->at = (void *)(uintptr_t)*device;
    DPT_CUDA_TRY(lib, cuMemsetD8Async(*device, 0, (size_t)piece->bytes, ctx->compute));
    /* The other streams may use the memory at once, and they do not wait for this one. */
    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->compute, err));
out:
    return status;
}

static enum dpt_status hold_pinned(struct dpt_cuda_context *ctx, const struct dpt_cuda_piece *piece,
                                   void **pinned, struct dpt_error *err)
{
    char size[32];

    if (ctx->lib.cuMemHostAlloc(pinned, (size_t)piece->bytes, CU_MEMHOSTALLOC_PORTABLE) !=
        CUDA_SUCCESS)
        return dpt_fail(err, DPT_RANK,
                        "not enough memory that the GPU can read from the host (pinned memory) for "
                        "%s (%s)",
                        piece->what, dpt_show_bytes((double)piece->bytes, size));
    ctx->n_held++;
    memset(*pinned, 0, (size_t)piece->bytes);
    *piece->at = *pinned;
    return DPT_OK;
}

enum dpt_status dpt_cuda_hold(struct dpt_cuda_context *ctx, const struct dpt_cuda_piece *pieces,
                              size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(ctx->held, &ctx->held_room, ctx->n_held + n, "the list of memory", err);
    memset(ctx->held + ctx->n_held, 0, n * sizeof *ctx->held);
    for (size_t i = 0; i < n; i++) {
        struct dpt_cuda_held *held = &ctx->held[ctx->n_held];

        *pieces[i].at = NULL;
        if (pieces[i].bytes == 0)
            continue;
        if (pieces[i].pinned)
            DPT_TRY(hold_pinned(ctx, &pieces[i], &held->pinned, err));
        else
            DPT_TRY(hold_device(ctx, &pieces[i], &held->device, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_event(struct dpt_cuda_context *ctx, unsigned flags, CUevent *event,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(ctx->held, &ctx->held_room, ctx->n_held + 1, "the list of memory", err);
    DPT_CUDA_TRY(&ctx->lib, cuEventCreate(event, flags));
    ctx->held[ctx->n_held++] = (struct dpt_cuda_held){.event = *event};
out:
    return status;
}

enum dpt_status dpt_cuda_to_device(const struct dpt_cuda_context *ctx, void *device,
                                   const void *host, size_t bytes, struct dpt_error *err)
{
    const CUresult result =
        ctx->lib.cuMemcpyHtoDAsync(dpt_cuda_ptr(device), host, bytes, ctx->compute);

    return dpt_cuda_check(&ctx->lib, result, "cuMemcpyHtoDAsync", err);
}

enum dpt_status dpt_cuda_to_host(const struct dpt_cuda_context *ctx, void *host, const void *device,
                                 size_t bytes, struct dpt_error *err)
{
    const CUresult result =
        ctx->lib.cuMemcpyDtoHAsync(host, dpt_cuda_ptr(device), bytes, ctx->compute);

    return dpt_cuda_check(&ctx->lib, result, "cuMemcpyDtoHAsync", err);
}

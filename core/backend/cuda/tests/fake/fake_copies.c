/* The driver's functions that copy, fill and call the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static void run_copy(void *data)
{
    const struct copy *c = data;

    memmove(c->to, c->from, c->bytes);
}

/* What was in the host's memory follows the struct. */
static void run_staged(void *data)
{
    const struct copy *c = data;

    memcpy(c->to, c + 1, c->bytes);
}

/* Copies of pageable memory must not be captured. On the way to the device the memory is read at
 * once; copies from the device are waited for. */
static CUresult copy_pageable(struct CUstream_st *s, struct fakegpu_work *work, bool to_device)
{
    const struct copy *c = work->data;
    CUresult result;

    if (s->capture != NULL) {
        fakegpu_complain("%s of pageable memory while it is captured", work->name);
        fake_capture_break(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, work->name);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (to_device) {
        struct copy *staged = fake_zalloc(sizeof *c + c->bytes);

        *staged = *c;
        memcpy(staged + 1, c->from, c->bytes);
        work->run = run_staged;
        work->data = staged;
        work->bytes = sizeof *c + c->bytes;
        result = fake_enqueue_locked(s, work);
        free(staged);
        return result;
    }
    result = fake_enqueue_locked(s, work);
    if (result == CUDA_SUCCESS)
        fake_drain(fake_queue_is_empty, s, s);
    return result;
}

static CUresult copy_locked(const char *name, struct copy c, enum fakegpu_where to,
                            enum fakegpu_where from, CUstream stream)
{
    struct fakegpu_work work = {.run = run_copy, .data = &c, .bytes = sizeof c};
    const bool device[2] = {to == FAKEGPU_DEVICE, from == FAKEGPU_DEVICE};
    const void *at[2] = {c.to, c.from};
    bool pageable = false;
    struct CUstream_st *s;
    const CUresult result = fake_stream_of(stream, &s);
    int where;

    if (result != CUDA_SUCCESS)
        return result;
    snprintf(work.name, sizeof work.name, "%s", name);
    for (int i = 0; i < 2; i++) {
        if (device[i])
            fakegpu_add_range(&work, at[i], c.bytes, FAKEGPU_DEVICE, i == 0);
        else if (fake_memory_find(at[i], &where))
            fakegpu_add_range(&work, at[i], c.bytes, FAKEGPU_PINNED, i == 0);
        else
            pageable = true;
    }
    if (c.bytes == 0)
        return CUDA_SUCCESS;
    return pageable ? copy_pageable(s, &work, device[0]) : fake_enqueue_locked(s, &work);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    FAKE(cuMemcpyHtoDAsync, CUDA_ERROR_UNKNOWN, "%zu", bytes);
    FAKE_LOCKED(copy_locked("cuMemcpyHtoDAsync", (struct copy){(void *)to, from, bytes},
                            FAKEGPU_DEVICE, FAKEGPU_PINNED, stream));
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    FAKE(cuMemcpyDtoHAsync, CUDA_ERROR_UNKNOWN, "%zu", bytes);
    FAKE_LOCKED(copy_locked("cuMemcpyDtoHAsync", (struct copy){to, (void *)from, bytes},
                            FAKEGPU_PINNED, FAKEGPU_DEVICE, stream));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    FAKE(cuMemcpyDtoDAsync, CUDA_ERROR_UNKNOWN, "%zu", bytes);
    FAKE_LOCKED(copy_locked("cuMemcpyDtoDAsync", (struct copy){(void *)to, (void *)from, bytes},
                            FAKEGPU_DEVICE, FAKEGPU_DEVICE, stream));
}

/* A synchronous copy is one on the legacy stream that is waited for. */
static CUresult copy_now(const char *name, struct copy c, enum fakegpu_where to,
                         enum fakegpu_where from)
{
    struct CUctx_st *context;
    CUresult result = fake_capture_forbids(name);

    if (result == CUDA_SUCCESS)
        result = fake_context(&context);
    if (result == CUDA_SUCCESS)
        result = copy_locked(name, c, to, from, NULL);
    if (result == CUDA_SUCCESS) {
        fake_drain(fake_queue_is_empty, context->legacy, context->legacy);
        result = context->fault;
    }
    return result;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    FAKE(cuMemcpyHtoD, CUDA_ERROR_UNKNOWN, "%zu", bytes);
    FAKE_LOCKED(copy_now("cuMemcpyHtoD", (struct copy){(void *)to, from, bytes}, FAKEGPU_DEVICE,
                         FAKEGPU_PINNED));
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    FAKE(cuMemcpyDtoH, CUDA_ERROR_UNKNOWN, "%zu", bytes);
    FAKE_LOCKED(copy_now("cuMemcpyDtoH", (struct copy){to, (void *)from, bytes}, FAKEGPU_PINNED,
                         FAKEGPU_DEVICE));
}

struct filling {
    unsigned char *to;
    size_t n;
    unsigned value;
    size_t size;
};

static void run_filling(void *data)
{
    const struct filling *f = data;

    for (size_t i = 0; i < f->n; i++)
        memcpy(f->to + i * f->size, &f->value, f->size);
}

static CUresult fill(const char *name, struct filling f, CUstream stream)
{
    struct fakegpu_work work = {.run = run_filling, .data = &f, .bytes = sizeof f};

    if ((uintptr_t)f.to % f.size != 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(work.name, sizeof work.name, "%s", name);
    fakegpu_add_range(&work, f.to, f.n * f.size, FAKEGPU_DEVICE, true);
    return f.n > 0 ? fake_enqueue_locked(stream, &work) : CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream)
{
    FAKE(cuMemsetD8Async, CUDA_ERROR_UNKNOWN, "%zu", n);
    FAKE_LOCKED(fill("cuMemsetD8Async", (struct filling){(void *)to, n, value, 1}, stream));
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream stream)
{
    FAKE(cuMemsetD32Async, CUDA_ERROR_UNKNOWN, "%zu", n);
    FAKE_LOCKED(fill("cuMemsetD32Async", (struct filling){(void *)to, n, value, 4}, stream));
}

struct host_call {
    CUhostFn call;
    void *data;
};

static void run_host_call(void *data)
{
    const struct host_call *h = data;

    h->call(h->data);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void *data)
{
    const struct host_call h = {call, data};
    struct fakegpu_work work = {
        .name = "host function", .run = run_host_call, .data = &h, .bytes = sizeof h, .host = true};

    FAKE(cuLaunchHostFunc, CUDA_ERROR_UNKNOWN, "%s", "");
    FAKE_LOCKED(fake_enqueue_locked(stream, &work));
}

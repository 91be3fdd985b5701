/*
 * on_device: a GPU for tests, or the fake device: its libraries, context, stream and memory. To be
 * included once in a program.
 *
 * Arrays are copied there and back whole, each into an allocation of its own size, so that a
 * memory checker sees what is beside it.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_ON_DEVICE_H
#define DPT_BACKEND_CUDA_TESTS_ON_DEVICE_H

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/backend/cuda/libraries/library.h"
#include "core/backend/cuda/tests/which_device.h"

static struct {
    struct dpt_cuda_library lib;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    cublasLtHandle_t matmuls;
    cudnnHandle_t convolutions;
    char reason[DPT_ERROR_TEXT]; /* why there is none; empty: there is */
} gpu;

/* The libraries that compute on the CPU are in fakegpu/ next to the tests. */
enum { ON_DEVICE_PATH = PATH_MAX + 64 };

static inline bool on_device_fakes(char paths[3][ON_DEVICE_PATH],
                                   struct dpt_cuda_library_paths *places)
{
    static const char *const names[3] = {"libcuda.so.1", "libcudnn.so.9", "libcublasLt.so.13"};
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n <= 0)
        return false;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], ON_DEVICE_PATH, "%s/fakegpu/%s", self, names[i]);
    *places = (struct dpt_cuda_library_paths){
        .driver = paths[0], .cudnn = paths[1], .cublaslt = paths[2]};
    return access(paths[0], R_OK) == 0;
}

static inline enum dpt_status on_device_start(const struct dpt_cuda_library_paths *places,
                                              unsigned parts, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &gpu.lib;
    enum dpt_status status = DPT_OK;
    int count;

    DPT_TRY(dpt_cuda_library_open(&gpu.lib, DPT_CUDA_DRIVER | parts, places, err));
    DPT_TRY(dpt_cuda_library_devices(lib, &count, err));
    DPT_CUDA_TRY(lib, cuDeviceGet(&gpu.device, 0));
    DPT_CUDA_TRY(lib, cuDevicePrimaryCtxRetain(&gpu.context, gpu.device));
    DPT_CUDA_TRY(lib, cuCtxSetCurrent(gpu.context));
    DPT_CUDA_TRY(lib, cuStreamCreateWithPriority(&gpu.stream, CU_STREAM_NON_BLOCKING, 0));
    if (parts & DPT_CUDA_CUBLASLT)
        DPT_CUBLASLT_TRY(lib, cublasLtCreate(&gpu.matmuls));
    if (parts & DPT_CUDA_CUDNN) {
        DPT_CUDNN_TRY(lib, cudnnCreate(&gpu.convolutions));
        DPT_CUDNN_TRY(lib, cudnnSetStream(gpu.convolutions, (cudaStream_t)gpu.stream));
    }
out:
    return status;
}

/* false: gpu.reason says why not. */
static inline bool on_device_open(const struct dpt_cuda_library_paths *places, unsigned parts)
{
    struct dpt_error err;

    if (on_device_start(places, parts, &err) == DPT_OK)
        return true;
    snprintf(gpu.reason, sizeof gpu.reason, "%s", err.text);
    return false;
}

/* The real GPU or the fake device (which_device.h). */
static inline bool on_device_find(unsigned parts)
{
    char paths[3][ON_DEVICE_PATH];
    struct dpt_cuda_library_paths places;

    if (real_device())
        return on_device_open(NULL, parts);
    if (on_device_fakes(paths, &places))
        return on_device_open(&places, parts);
    strcpy(gpu.reason, "the libraries that compute on the CPU are not here");
    return false;
}

static inline void on_device_close(void)
{
    if (gpu.convolutions != NULL)
        gpu.lib.cudnnDestroy(gpu.convolutions);
    if (gpu.matmuls != NULL)
        gpu.lib.cublasLtDestroy(gpu.matmuls);
    if (gpu.stream != NULL)
        gpu.lib.cuStreamDestroy(gpu.stream);
    if (gpu.context != NULL)
        gpu.lib.cuDevicePrimaryCtxRelease(gpu.device);
    dpt_cuda_library_close(&gpu.lib);
}

static inline void on_device_need(void)
{
    if (*gpu.reason == '\0')
        return;
    print_message("%s\n", gpu.reason);
    skip();
}

static inline void on_device_ok(CUresult result, const char *what)
{
    struct dpt_error err;

    if (dpt_cuda_check(&gpu.lib, result, what, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

#define GPU(call) on_device_ok(gpu.lib.call, #call)

/* Device memory of at least one byte, with the contents of `from` (NULL: uninitialised). */
static inline void *on_device_put(const void *from, size_t bytes)
{
    CUdeviceptr at;

    GPU(cuMemAlloc(&at, bytes > 0 ? bytes : 1));
    if (from != NULL && bytes > 0) {
        GPU(cuMemcpyHtoDAsync(at, from, bytes, gpu.stream));
        GPU(cuStreamSynchronize(gpu.stream));
    }
    return (void *)(uintptr_t)at;
}

/* Waits for all enqueued work. */
static inline void on_device_get(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        GPU(cuMemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, gpu.stream));
    GPU(cuStreamSynchronize(gpu.stream));
}

static inline void on_device_free(void *at)
{
    if (at != NULL)
        GPU(cuMemFree((CUdeviceptr)(uintptr_t)at));
}

#endif

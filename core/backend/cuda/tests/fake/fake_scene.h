/*
 * fake_scene: the libraries of fake.h, opened as a job opens them, and what tests of them share.
 * They are in fakegpu/ next to the test program. To be included once in a program, before
 * everything else.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_SCENE_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#define FAKE_SCENE 1

#include <dlfcn.h>
#include <unistd.h>

#include "core/backend/cuda/libraries/library.h"
#include "core/backend/cuda/tests/fake/fake_set.h"

static struct dpt_cuda_library lib;
static struct dpt_error err;
static CUcontext context; /* of the second of two devices */
static CUstream one, two;
static cudnnHandle_t handle; /* on stream one */
static cublasLtHandle_t gemms;

/* The result of a call of the driver. */
#define GIVES(result, call) assert_int_equal(result, lib.call)
#define WORKS(call)         GIVES(CUDA_SUCCESS, call)

static inline float *pinned(size_t n)
{
    void *at;

    WORKS(cuMemHostAlloc(&at, n * sizeof(float), 0));
    return at;
}

static inline CUdeviceptr device(size_t n)
{
    CUdeviceptr at;

    WORKS(cuMemAlloc(&at, n * sizeof(float)));
    return at;
}

/* The synchronous copies; the backend does not use them. */
static inline void to_device(CUdeviceptr to, const void *from, size_t bytes)
{
    CUresult (*copy)(CUdeviceptr, const void *, size_t);
    void *address = dlsym(lib.handles[0], "cuMemcpyHtoD_v2");

    memcpy(&copy, &address, sizeof copy);
    assert_int_equal(copy(to, from, bytes), CUDA_SUCCESS);
}

static inline void to_host(void *to, CUdeviceptr from, size_t bytes)
{
    CUresult (*copy)(void *, CUdeviceptr, size_t);
    void *address = dlsym(lib.handles[0], "cuMemcpyDtoH_v2");

    memcpy(&copy, &address, sizeof copy);
    assert_int_equal(copy(to, from, bytes), CUDA_SUCCESS);
}

/* Errors: they are printed. */
static inline bool fake_scene_open(int *count)
{
    char folder[400], driver[500], cudnn[500], cublaslt[500];
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    const struct dpt_cuda_library_paths places = {
        .driver = driver, .cudnn = cudnn, .cublaslt = cublaslt};

    if (n <= 0)
        return false;
    folder[n] = '\0';
    *strrchr(folder, '/') = '\0';
    snprintf(driver, sizeof driver, "%s/fakegpu/libcuda.so.1", folder);
    snprintf(cudnn, sizeof cudnn, "%s/fakegpu/libcudnn.so.9", folder);
    snprintf(cublaslt, sizeof cublaslt, "%s/fakegpu/libcublasLt.so.13", folder);
    if (dpt_cuda_library_open(&lib, DPT_CUDA_NEEDED, &places, &err) == DPT_OK &&
        dpt_cuda_library_devices(&lib, count, &err) == DPT_OK)
        return true;
    printf("%s\n", err.text);
    return false;
}

static int fake_scene_begin(void **state)
{
    CUdevice number;
    int count;

    (void)state;
    unsetenv("CUDA_VISIBLE_DEVICES");
    fake_set("FAKEGPU_QUIET", "1");
    fake_set("FAKEGPU_DEVICES", "2");
    if (!fake_scene_open(&count))
        return 1;
    assert_int_equal(count, 2);
    WORKS(cuDeviceGet(&number, 1));
    WORKS(cuDevicePrimaryCtxRetain(&context, number));
    WORKS(cuCtxSetCurrent(context));
    WORKS(cuStreamCreateWithPriority(&one, CU_STREAM_NON_BLOCKING, 0));
    WORKS(cuStreamCreateWithPriority(&two, CU_STREAM_NON_BLOCKING, 0));
    return lib.cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS ||
           lib.cudnnSetStream(handle, (cudaStream_t)one) != CUDNN_STATUS_SUCCESS ||
           lib.cublasLtCreate(&gemms) != CUBLAS_STATUS_SUCCESS;
}

static int fake_scene_end(void **state)
{
    (void)state;
    lib.cublasLtDestroy(gemms);
    lib.cudnnDestroy(handle);
    WORKS(cuStreamDestroy(one));
    WORKS(cuStreamDestroy(two));
    WORKS(cuDevicePrimaryCtxRelease(1));
    dpt_cuda_library_close(&lib);
    return 0;
}
#else
#define FAKE_SCENE 0
#define FAKE_SCENE_WITHOUT                                                                         \
    static void built_without(void **state)                                                        \
    {                                                                                              \
        (void)state;                                                                               \
        print_message("built without CUDA\n");                                                     \
        skip();                                                                                    \
    }                                                                                              \
                                                                                                   \
    int main(void)                                                                                 \
    {                                                                                              \
        const struct CMUnitTest tests[] = {cmocka_unit_test(built_without)};                       \
                                                                                                   \
        return cmocka_run_group_tests(tests, NULL, NULL);                                          \
    }
#endif

#endif

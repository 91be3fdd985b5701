/*
 * library: the driver, cuDNN, cuBLASLt and NCCL, opened when they are first needed.
 *
 * The program is not linked to them: it starts on machines without them, and reports there in one
 * line what is missing. libcuda.so.1 belongs to the driver; libcudnn.so.9 and libcublasLt belong to
 * the toolkit; libnccl.so.2 serves several ranks, which can do without it. A struct
 * dpt_cuda_library is a table of their functions under the headers' names: lib->cuMemAlloc(&p, n).
 * (The headers make macros of some names, for the version of a function that they describe; the
 * table follows them.) The CUDA runtime is not used at all.
 *
 * Threads: one thread opens and closes. In between any number may call the functions; a thread
 * makes the context current (cuCtxSetCurrent) before it calls the driver. A cudnnHandle_t, a
 * stream's work and an unfinished descriptor belong to one thread at a time; finalized descriptors
 * may be read by any number. The last error of a library (dpt_cudnn_check) is kept for each thread.
 */
#ifndef DPT_BACKEND_CUDA_LIBRARY_H
#define DPT_BACKEND_CUDA_LIBRARY_H

#include <cublasLt.h>
#include <cuda.h>
#include <cudnn_graph.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/str.h"

/* X(function, whether it is required). */
// clang-format off
#define DPT_CUDA_DRIVER_FUNCTIONS(X)                                                               \
    X(cuInit, true) X(cuDriverGetVersion, true) X(cuGetErrorName, true) X(cuGetErrorString, true)  \
    X(cuDeviceGetCount, true) X(cuDeviceGet, true) X(cuDeviceGetName, true)                        \
    X(cuDeviceGetAttribute, true) X(cuDeviceTotalMem, true) X(cuDeviceGetPCIBusId, true)           \
    X(cuDevicePrimaryCtxRetain, true) X(cuDevicePrimaryCtxRelease, true) X(cuCtxSetCurrent, true)  \
    X(cuCtxSynchronize, true) X(cuMemGetInfo, true) X(cuMemAlloc, true) X(cuMemFree, true)         \
    X(cuMemHostAlloc, true) X(cuMemFreeHost, true) X(cuMemcpyHtoDAsync, true)                      \
    X(cuMemcpyDtoHAsync, true) X(cuMemcpyDtoDAsync, true) X(cuMemsetD8Async, true)                 \
    X(cuMemsetD32Async, true) X(cuStreamCreateWithPriority, true) X(cuStreamDestroy, true)         \
    X(cuStreamSynchronize, true) X(cuStreamWaitEvent, true) X(cuStreamBeginCapture, true)          \
    X(cuStreamEndCapture, true) X(cuEventCreate, true) X(cuEventDestroy, true)                     \
    X(cuEventRecord, true) X(cuEventRecordWithFlags, true) X(cuEventSynchronize, true)             \
    X(cuEventQuery, true) X(cuEventElapsedTime, false) X(cuCtxGetCurrent, true)                    \
    X(cuGraphInstantiate, true) X(cuGraphLaunch, true) X(cuGraphDestroy, true)                     \
    X(cuGraphExecDestroy, true) X(cuLaunchHostFunc, false) X(cuModuleLoadData, true)               \
    X(cuModuleUnload, true) X(cuModuleGetFunction, true) X(cuFuncGetAttribute, false)              \
    X(cuLaunchKernel, true) X(cuGraphGetNodes, false)

#define DPT_CUDA_CUDNN_FUNCTIONS(X)                                                                \
    X(cudnnGetVersion, true) X(cudnnGetCudartVersion, false) X(cudnnGetErrorString, true)          \
    X(cudnnGetLastErrorString, false) X(cudnnCreate, true) X(cudnnDestroy, true)                   \
    X(cudnnSetStream, true) X(cudnnBackendCreateDescriptor, true)                                  \
    X(cudnnBackendDestroyDescriptor, true) X(cudnnBackendFinalize, true)                           \
    X(cudnnBackendSetAttribute, true) X(cudnnBackendGetAttribute, true)                            \
    X(cudnnBackendExecute, true)

#define DPT_CUDA_CUBLASLT_FUNCTIONS(X)                                                             \
    X(cublasLtGetVersion, true) X(cublasLtGetStatusString, true) X(cublasLtCreate, true)           \
    X(cublasLtDestroy, true) X(cublasLtMatmul, true) X(cublasLtMatmulDescCreate, true)             \
    X(cublasLtMatmulDescDestroy, true) X(cublasLtMatmulDescSetAttribute, true)                     \
    X(cublasLtMatrixLayoutCreate, true) X(cublasLtMatrixLayoutDestroy, true)                       \
    X(cublasLtMatmulPreferenceCreate, true) X(cublasLtMatmulPreferenceDestroy, true)               \
    X(cublasLtMatmulPreferenceSetAttribute, true) X(cublasLtMatmulAlgoGetHeuristic, true)          \
    X(cublasLtMatmulAlgoCheck, true) X(cublasLtMatmulAlgoInit, false)                              \
    X(cublasLtMatmulAlgoConfigGetAttribute, false) X(cublasLtMatmulAlgoCapGetAttribute, false)

/* X(function, result, parameters), all of which are required. These are this program's own
 * prototypes of what nccl.h of NCCL 2.14 and later declares, so building needs no NCCL. */
#define DPT_CUDA_NCCL_FUNCTIONS(X)                                                                 \
    X(ncclGetVersion, int, (int *version))                                                         \
    X(ncclGetUniqueId, int, (struct dpt_nccl_id *id))                                              \
    X(ncclCommInitRank, int, (void **comm, int ranks, struct dpt_nccl_id id, int rank))            \
    X(ncclCommGetAsyncError, int, (void *comm, int *code))                                         \
    X(ncclCommAbort, int, (void *comm))                                                            \
    X(ncclCommDestroy, int, (void *comm))                                                          \
    X(ncclGetErrorString, const char *, (int code))                                                \
    X(ncclGetLastError, const char *, (void *comm))                                                \
    X(ncclAllReduce, int, (const void *from, void *to, size_t n, int type, int op, void *comm,     \
                           CUstream stream))                                                       \
    X(ncclAllGather, int, (const void *from, void *to, size_t n, int type, void *comm,             \
                           CUstream stream))                                                       \
    X(ncclReduceScatter, int, (const void *from, void *to, size_t n, int type, int op, void *comm, \
                               CUstream stream))                                                   \
    X(ncclSend, int, (const void *from, size_t n, int type, int rank, void *comm, CUstream stream)) \
    X(ncclRecv, int, (void *to, size_t n, int type, int rank, void *comm, CUstream stream))        \
    X(ncclGroupStart, int, (void))                                                                 \
    X(ncclGroupEnd, int, (void))
// clang-format on

enum { DPT_NCCL_SUCCESS = 0, DPT_NCCL_FLOAT = 7, DPT_NCCL_DOUBLE = 8, DPT_NCCL_SUM = 0 };

struct dpt_nccl_id {
    char bytes[128];
};

/* The libraries, as a set of bits. */
enum dpt_cuda_part {
    DPT_CUDA_DRIVER = 1,
    DPT_CUDA_CUDNN = 2,
    DPT_CUDA_CUBLASLT = 4,
    DPT_CUDA_NEEDED = 7, /* by a rank that computes on a GPU */
    DPT_CUDA_NCCL = 8,
};
enum { DPT_CUDA_PARTS = 4 };

/* Their places: paths, or names for the dynamic loader. A library whose place is NULL is searched
 * for as library_find.h says, and the driver by the loader only. */
struct dpt_cuda_library_paths {
    const char *driver, *cudnn, *cublaslt, *nccl;
};

/* Zero-initialise: {0}. */
struct dpt_cuda_library {
    void *handles[DPT_CUDA_PARTS];
    int driver;   /* the CUDA version that the driver supports: 13000 is 13.0; 0: not opened */
    int cudnn;    /* 91900 is 9.19.0; 0: not opened */
    int cublaslt; /* 130000 is 13.0.0; 0: not opened */
    int nccl;     /* 22803 is 2.28.3; 0: not opened */
#define X(name, needed) __typeof__(&name) name;
    DPT_CUDA_DRIVER_FUNCTIONS(X)
    DPT_CUDA_CUDNN_FUNCTIONS(X)
    DPT_CUDA_CUBLASLT_FUNCTIONS(X)
#undef X
#define X(name, result, parameters) result(*name) parameters;
    DPT_CUDA_NCCL_FUNCTIONS(X)
#undef X
};

/* Two arguments: an array, and the number of its elements. */
#define DPT_CUDA_ROWS(rows) (rows), sizeof(rows) / sizeof *(rows)

/* A device address in the driver's type. */
static inline CUdeviceptr dpt_cuda_ptr(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

/*
 * Opens the libraries of `parts` (enum dpt_cuda_part) and checks their versions. library_paths:
 * NULL: the usual places. Errors: BAD_JOB: a library is missing, lacks functions or is too old for
 * this program; the message says which, and what to do. Nothing stays open then.
 */
enum dpt_status dpt_cuda_library_open(struct dpt_cuda_library *lib, unsigned parts,
                                      const struct dpt_cuda_library_paths *library_paths,
                                      struct dpt_error *err);
void dpt_cuda_library_close(struct dpt_cuda_library *lib);

/*
 * Starts the driver and counts the GPUs that this process may use. *count > 0 on success. It has to
 * be called before MPI_Init if MPI is to find the driver started. Errors: BAD_JOB: there is no GPU,
 * or the driver does not work; the message says which.
 */
enum dpt_status dpt_cuda_library_devices(const struct dpt_cuda_library *lib, int *count,
                                         struct dpt_error *err);

/*
 * Makes the primary context of device `number` the calling thread's. *context is set if there is
 * one to release, also after a failure. Errors: RANK.
 */
enum dpt_status dpt_cuda_library_enter(const struct dpt_cuda_library *lib, int number,
                                       CUdevice *device, CUcontext *context, struct dpt_error *err);

/* The parts of what this process does before its first step, and a word for each. */
// clang-format off
#define DPT_CUDA_STARTUP(X)                                                                        \
    X(LIBRARIES, "libraries") X(DRIVER, "driver") X(KERNELS, "kernels")                            \
    X(HANDLES, "cuDNN and cuBLASLt") X(PLANS, "plans")
// clang-format on
enum dpt_cuda_startup {
#define X(part, word) DPT_CUDA_START_##part,
    DPT_CUDA_STARTUP(X)
#undef X
        DPT_CUDA_STARTUPS
};

/* Adds the time since `start` (of dpt_now_ns) to what this part has taken in this process. Any
 * thread. */
void dpt_cuda_startup_add(enum dpt_cuda_startup part, uint64_t start);
/* Implements dpt_backend_devices.startup. */
void dpt_cuda_startup_text(struct dpt_str *text);

/* The path of an open library's file: "/usr/lib/libcudnn.so.9"; "" if the library is not open. */
const char *dpt_cuda_library_path(const struct dpt_cuda_library *lib, enum dpt_cuda_part part);

/* Writes "driver for CUDA 13.0, cuDNN 9.19.0, cuBLASLt 13.0.0, NCCL 2.28.3", for the libraries that
 * are open, to buf (at least 128 bytes) and returns it. */
const char *dpt_cuda_library_text(const struct dpt_cuda_library *lib, char *buf);

/*
 * Turn results of the libraries into a status. what: the call, for the message. RANK: memory ran
 * out, or the device failed; BAD_JOB: the library does not support what was asked for; INTERNAL:
 * the call was wrong.
 */
enum dpt_status dpt_cuda_check(const struct dpt_cuda_library *lib, CUresult result,
                               const char *what, struct dpt_error *err);
enum dpt_status dpt_cudnn_check(const struct dpt_cuda_library *lib, cudnnStatus_t result,
                                const char *what, struct dpt_error *err);
enum dpt_status dpt_cublaslt_check(const struct dpt_cuda_library *lib, cublasStatus_t result,
                                   const char *what, struct dpt_error *err);

/* DPT_TRY for functions of the driver, cuDNN and cuBLASLt: DPT_CUDA_TRY(lib, cuMemAlloc(&p, n)).
 * They need locals `status` and `err`. */
#define DPT_CUDA_TRY(lib, call)     DPT_TRY(dpt_cuda_check(lib, (lib)->call, #call, err))
#define DPT_CUDNN_TRY(lib, call)    DPT_TRY(dpt_cudnn_check(lib, (lib)->call, #call, err))
#define DPT_CUBLASLT_TRY(lib, call) DPT_TRY(dpt_cublaslt_check(lib, (lib)->call, #call, err))

#endif

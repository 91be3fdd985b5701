/*
 * nccl: NCCL, which sums in the memory of several GPUs over the links between them.
 *
 * It is opened when ranks want to connect their GPUs, and found as cuDNN is (library_find.h); its
 * functions have prototypes of this program's own, so that nothing of it is needed to build. A job
 * whose ranks lack it sums by MPI.
 *
 * A communicator (`link` of core/comm/transport.h) belongs to the thread that opened it, but any
 * thread may abort it. Its sums are not captured in graphs: a captured collective must be captured
 * by all ranks alike, and their steps differ in micro-batches. The communicator is a blocking one:
 * of another kind each call would start a thread, and once the ranks are connected no call waits.
 */
#ifndef DPT_BACKEND_CUDA_NCCL_H
#define DPT_BACKEND_CUDA_NCCL_H

#include "core/backend/cuda/libraries/library.h"
#include "core/comm/transport.h"

/* What nccl.h of NCCL 2.14 and later says of what is used here. */
enum { DPT_NCCL_SUCCESS = 0, DPT_NCCL_FLOAT = 7, DPT_NCCL_SUM = 0 };

struct dpt_nccl_id {
    char bytes[DPT_LINK_ID];
};

/* X(function, result, parameters). */
// clang-format off
#define DPT_NCCL_FUNCTIONS(X)                                                                      \
    X(ncclGetVersion, int, (int *version))                                                         \
    X(ncclGetUniqueId, int, (struct dpt_nccl_id *id))                                              \
    X(ncclCommInitRank, int, (void **comm, int ranks, struct dpt_nccl_id id, int rank))            \
    X(ncclCommGetAsyncError, int, (void *comm, int *code))                                         \
    X(ncclCommAbort, int, (void *comm))                                                            \
    X(ncclCommDestroy, int, (void *comm))                                                          \
    X(ncclGetErrorString, const char *, (int code))                                                \
    X(ncclGetLastError, const char *, (void *comm))                                                \
    X(ncclAllReduce, int, (const void *from, void *to, size_t n, int type, int op, void *comm,     \
                           CUstream stream))
// clang-format on

struct dpt_nccl {
    void *handle;
#define X(name, result, parameters) result(*name) parameters;
    DPT_NCCL_FUNCTIONS(X)
#undef X
};

/* A GPU's connections with those of the other ranks. */
struct dpt_cuda_link;

/* Enqueues the sum of n floats in device memory over the ranks, in place. The same call, in the
 * same order, on all ranks. Errors: RANK. */
enum dpt_status dpt_cuda_link_sum(struct dpt_cuda_link *link, float *at, size_t n, CUstream stream,
                                  struct dpt_error *err);
/* Whether what was enqueued has failed. Errors: RANK. */
enum dpt_status dpt_cuda_link_check(struct dpt_cuda_link *link, struct dpt_error *err);

/* The path of the library's file, or "". */
void dpt_cuda_link_path(char *path, size_t size);

extern const struct dpt_device_links dpt_cuda_links;

#endif

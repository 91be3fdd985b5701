#include "core/backend/cuda/libraries/nccl.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/cuda/libraries/library_find.h"
#include "core/base/memory.h"

/* 2.14.0: the first whose communicators say what went wrong (ncclGetLastError). */
enum { OLDEST = 21400 };

struct dpt_cuda_link {
    struct dpt_nccl nccl;
    struct dpt_cuda_library cuda; /* the driver */
    CUcontext context;
    void *comm;
    atomic_bool aborted;
};

/* --- the library ------------------------------------------------------------------------------ */

static const struct entry {
    const char *name;
    size_t offset;
} entries[] = {
#define X(name, result, parameters) {#name, offsetof(struct dpt_nccl, name)},
    DPT_NCCL_FUNCTIONS(X)
#undef X
};

static void close_library(struct dpt_nccl *nccl)
{
    if (nccl->handle != NULL)
        dlclose(nccl->handle);
    *nccl = (struct dpt_nccl){0};
}

static void *find_file(struct dpt_error *err)
{
    static const char *const names[] = {"libnccl.so.2", NULL};
    static const char *const roots[] = {"NCCL_ROOT", "CUDA_HOME", NULL};
    struct dpt_cuda_search search = {0};
    void *handle = dpt_cuda_find(names, roots, &search);

    if (handle == NULL && search.broken.text != NULL)
        dpt_fail(err, DPT_BAD_JOB, "NCCL does not load (%s)", search.broken.text);
    else if (handle == NULL)
        dpt_fail(err, DPT_BAD_JOB,
                 "NCCL not found: install it, or name its folder with DPTRAIN_CUDA_PATH");
    dpt_cuda_search_release(&search);
    return handle;
}

static enum dpt_status open_library(struct dpt_nccl *nccl, int *version, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *nccl = (struct dpt_nccl){.handle = find_file(err)};
    if (nccl->handle == NULL)
        return DPT_BAD_JOB;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *address = dlsym(nccl->handle, entries[i].name);

        if (address == NULL)
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                             "NCCL (%s) is too old: it has no %s; 2.14 or later is needed",
                             dpt_cuda_path_of(nccl->handle), entries[i].name));
        memcpy((char *)nccl + entries[i].offset, &address, sizeof address);
    }
    if (nccl->ncclGetVersion(version) != DPT_NCCL_SUCCESS || *version < OLDEST)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "NCCL (%s) is too old: %d, and 2.14 or later is needed",
                         dpt_cuda_path_of(nccl->handle), *version));
out:
    if (status != DPT_OK)
        close_library(nccl);
    return status;
}

/* Turns a result into a status. comm: may be NULL. */
static enum dpt_status check(const struct dpt_nccl *nccl, void *comm, int code, const char *what,
                             struct dpt_error *err)
{
    const char *more;
    int length;

    if (code == DPT_NCCL_SUCCESS)
        return DPT_OK;
    more = nccl->ncclGetLastError(comm);
    length = more != NULL ? (int)strcspn(more, "\n") : 0;
    return dpt_fail(err, DPT_RANK,
                    "NCCL: %s: %s%s%.*s; NCCL_DEBUG=INFO says more, and comm.transport: mpi does "
                    "without it",
                    what, nccl->ncclGetErrorString(code), length > 0 ? ": " : "", length,
                    more != NULL ? more : "");
}

static enum dpt_status find(int *version, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_nccl nccl;

    DPT_TRY(open_library(&nccl, version, err));
    close_library(&nccl);
out:
    return status;
}

void dpt_cuda_link_path(char *path, size_t size)
{
    struct dpt_nccl nccl;
    struct dpt_error missing;
    int version;

    *path = '\0';
    if (open_library(&nccl, &version, &missing) != DPT_OK)
        return;
    snprintf(path, size, "%s", dpt_cuda_path_of(nccl.handle));
    close_library(&nccl);
}

static enum dpt_status identify(unsigned char id[DPT_LINK_ID], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_nccl nccl;
    struct dpt_nccl_id own;
    int version;

    DPT_TRY(open_library(&nccl, &version, err));
    status = check(&nccl, NULL, nccl.ncclGetUniqueId(&own), "ncclGetUniqueId", err);
    memcpy(id, own.bytes, sizeof own.bytes);
    close_library(&nccl);
out:
    return status;
}

/* --- a communicator --------------------------------------------------------------------------- */

static void abort_link(void *opened)
{
    struct dpt_cuda_link *link = opened;

    if (link != NULL && link->comm != NULL && !atomic_exchange(&link->aborted, true))
        link->nccl.ncclCommAbort(link->comm);
}

static void close_link(void *opened)
{
    struct dpt_cuda_link *link = opened;

    if (link == NULL)
        return;
    if (link->comm != NULL && !atomic_exchange(&link->aborted, true))
        link->nccl.ncclCommDestroy(link->comm);
    close_library(&link->nccl);
    dpt_cuda_library_close(&link->cuda);
    dpt_free(link);
}

/* The primary context stays until the process ends, as those of devices.c. */
static enum dpt_status open_link(int number, const unsigned char id[DPT_LINK_ID], int rank,
                                 int ranks, void **opened, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_link *link = NULL;
    struct dpt_nccl_id own;
    int count, version;
    CUdevice device;

    *opened = NULL;
    DPT_TRY(DPT_ALLOCATE(link, 1, "the GPUs' connections", err));
    DPT_TRY(open_library(&link->nccl, &version, err));
    DPT_TRY(dpt_cuda_library_open(&link->cuda, DPT_CUDA_DRIVER, NULL, err));
    DPT_TRY(dpt_cuda_library_devices(&link->cuda, &count, err));
    DPT_TRY(dpt_cuda_library_enter(&link->cuda, number % count, &device, &link->context, err));
    memcpy(own.bytes, id, sizeof own.bytes);
    DPT_TRY(check(&link->nccl, NULL, link->nccl.ncclCommInitRank(&link->comm, ranks, own, rank),
                  "ncclCommInitRank", err));
    *opened = link;
out:
    if (status != DPT_OK)
        close_link(link);
    return status;
}

enum dpt_status dpt_cuda_link_check(struct dpt_cuda_link *link, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int code = DPT_NCCL_SUCCESS;

    if (atomic_load(&link->aborted))
        return dpt_fail(err, DPT_RANK, "NCCL: the GPUs' connections were ended");
    DPT_TRY(check(&link->nccl, link->comm, link->nccl.ncclCommGetAsyncError(link->comm, &code),
                  "ncclCommGetAsyncError", err));
    DPT_TRY(check(&link->nccl, link->comm, code, "a sum over the ranks", err));
out:
    return status;
}

enum dpt_status dpt_cuda_link_sum(struct dpt_cuda_link *link, float *at, size_t n, CUstream stream,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (atomic_load(&link->aborted))
        return dpt_cuda_link_check(link, err);
    DPT_TRY(
        check(&link->nccl, link->comm,
              link->nccl.ncclAllReduce(at, at, n, DPT_NCCL_FLOAT, DPT_NCCL_SUM, link->comm, stream),
              "ncclAllReduce", err));
out:
    return status;
}

/* On the legacy stream: nothing else is under way. */
static enum dpt_status sum(void *opened, struct dpt_device_buffer *b, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_link *link = opened;

    DPT_CUDA_TRY(&link->cuda, cuCtxSetCurrent(link->context));
    DPT_TRY(dpt_cuda_link_sum(link, b->at, (size_t)b->n, NULL, err));
    DPT_CUDA_TRY(&link->cuda, cuCtxSynchronize());
    DPT_TRY(dpt_cuda_link_check(link, err));
out:
    return status;
}

const struct dpt_device_links dpt_cuda_links = {
    .find = find,
    .identify = identify,
    .open = open_link,
    .sum = sum,
    .abort = abort_link,
    .close = close_link,
};

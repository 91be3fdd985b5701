#include "core/backend/cuda/libraries/nccl.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/base/memory.h"

_Static_assert(sizeof(struct dpt_nccl_id) == DPT_LINK_ID, "ranks exchange it");

struct dpt_cuda_link {
    struct dpt_cuda_library lib; /* the driver and NCCL */
    CUcontext context;
    void *comm;
    int rank, world;  /* of all */
    int first, ranks; /* those that exchange messages */
    /* Held while a call is under way that uses `comm`, which an abort frees. */
    pthread_mutex_t lock;
    bool aborted;
    struct dpt_device_waits *waits; /* borrowed; NULL: no watchdog */
};

/* Turns a result into a status. comm: may be NULL. */
static enum dpt_status check(const struct dpt_cuda_library *lib, void *comm, int code,
                             const char *what, struct dpt_error *err)
{
    const char *more;
    int length;

    if (code == DPT_NCCL_SUCCESS)
        return DPT_OK;
    more = lib->ncclGetLastError(comm);
    length = more != NULL ? (int)strcspn(more, "\n") : 0;
    return dpt_fail(err, DPT_RANK,
                    "NCCL: %s: %s%s%.*s; NCCL_DEBUG=INFO says more, and comm.transport: mpi does "
                    "without it",
                    what, lib->ncclGetErrorString(code), length > 0 ? ": " : "", length,
                    more != NULL ? more : "");
}

static void abort_link(void *opened)
{
    struct dpt_cuda_link *link = opened;

    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    if (pthread_mutex_timedlock(&link->lock, &until) != 0)
        return;
    if (link->comm != NULL && !link->aborted)
        link->lib.ncclCommAbort(link->comm);
    link->aborted = true;
    pthread_mutex_unlock(&link->lock);
}

static void close_link(void *opened)
{
    struct dpt_cuda_link *link = opened;

    if (link == NULL)
        return;
    if (link->comm != NULL && !link->aborted)
        link->lib.ncclCommDestroy(link->comm);
    dpt_cuda_library_close(&link->lib);
    pthread_mutex_destroy(&link->lock);
    dpt_free(link);
}

static enum dpt_status open_link(void **opened, int *version, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_link *link = NULL;

    *opened = NULL;
    DPT_TRY(DPT_ALLOCATE(link, 1, "the GPUs' connections", err));
    pthread_mutex_init(&link->lock, NULL);
    DPT_TRY(dpt_cuda_library_open(&link->lib, DPT_CUDA_DRIVER | DPT_CUDA_NCCL, NULL, err));
    *version = link->lib.nccl;
    *opened = link;
out:
    if (status != DPT_OK)
        close_link(link);
    return status;
}

static enum dpt_status identify(void *opened, unsigned char id[DPT_LINK_ID], struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &((struct dpt_cuda_link *)opened)->lib;
    struct dpt_nccl_id own = {0};
    const enum dpt_status status =
        check(lib, NULL, lib->ncclGetUniqueId(&own), "ncclGetUniqueId", err);

    memcpy(id, own.bytes, sizeof own.bytes);
    return status;
}

/* The primary context stays until the process ends, as those of devices.c. */
static enum dpt_status connect(void *opened, int number, const unsigned char id[DPT_LINK_ID],
                               int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_link *link = opened;
    struct dpt_nccl_id own;
    int count;
    CUdevice device;

    DPT_TRY(dpt_cuda_library_devices(&link->lib, &count, err));
    DPT_TRY(dpt_cuda_library_enter(&link->lib, number % count, &device, &link->context, err));
    memcpy(own.bytes, id, sizeof own.bytes);
    DPT_TRY(check(&link->lib, NULL, link->lib.ncclCommInitRank(&link->comm, ranks, own, rank),
                  "ncclCommInitRank", err));
    link->rank = rank;
    link->world = ranks;
    dpt_cuda_link_among(link, 0, ranks);
out:
    return status;
}

void dpt_cuda_link_watch(struct dpt_cuda_link *link, struct dpt_device_waits *waits)
{
    link->waits = waits;
}

void dpt_cuda_link_among(struct dpt_cuda_link *link, int first, int ranks)
{
    link->first = first;
    link->ranks = ranks;
}

/* Takes the lock for a call, which may wait for other ranks: NCCL connects two GPUs when they send
 * each other something for the first time. `leave` follows, also after an error. Errors: RANK:
 * there is no communicator any more. */
static enum dpt_status enter(struct dpt_cuda_link *link, struct dpt_error *err)
{
    dpt_device_wait_begin(link->waits);
    pthread_mutex_lock(&link->lock);
    return link->aborted ? dpt_fail(err, DPT_RANK, "NCCL: the GPUs' connections were ended")
                         : DPT_OK;
}

static void leave(struct dpt_cuda_link *link)
{
    pthread_mutex_unlock(&link->lock);
    dpt_device_wait_end(link->waits);
}

enum dpt_status dpt_cuda_link_check(struct dpt_cuda_link *link, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int code = DPT_NCCL_SUCCESS;

    DPT_TRY(enter(link, err));
    DPT_TRY(check(&link->lib, link->comm, link->lib.ncclCommGetAsyncError(link->comm, &code),
                  "ncclCommGetAsyncError", err));
    DPT_TRY(check(&link->lib, link->comm, code, "a sum over the ranks", err));
out:
    leave(link);
    return status;
}

static enum dpt_status sum_in_place(struct dpt_cuda_link *link, void *at, size_t n, int type,
                                    CUstream stream, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(enter(link, err));
    DPT_TRY(check(&link->lib, link->comm,
                  link->lib.ncclAllReduce(at, at, n, type, DPT_NCCL_SUM, link->comm, stream),
                  "ncclAllReduce", err));
out:
    leave(link);
    return status;
}

enum dpt_status dpt_cuda_link_sum(struct dpt_cuda_link *link, float *at, size_t n, CUstream stream,
                                  struct dpt_error *err)
{
    return sum_in_place(link, at, n, DPT_NCCL_FLOAT, stream, err);
}

enum dpt_status dpt_cuda_link_sum_doubles(struct dpt_cuda_link *link, double *at, size_t n,
                                          CUstream stream, struct dpt_error *err)
{
    return sum_in_place(link, at, n, DPT_NCCL_DOUBLE, stream, err);
}

enum dpt_status dpt_cuda_link_scatter(struct dpt_cuda_link *link, float *at, size_t n,
                                      CUstream stream, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    float *own = at + (size_t)link->rank * n;

    DPT_TRY(enter(link, err));
    DPT_TRY(check(
        &link->lib, link->comm,
        link->lib.ncclReduceScatter(at, own, n, DPT_NCCL_FLOAT, DPT_NCCL_SUM, link->comm, stream),
        "ncclReduceScatter", err));
out:
    leave(link);
    return status;
}

/* Enqueues one member of a group. Returns NCCL's code. */
typedef int enqueue_fn(const struct dpt_cuda_link *link, const struct dpt_cuda_message *m,
                       CUstream stream);

static int exchange_one(const struct dpt_cuda_link *link, const struct dpt_cuda_message *m,
                        CUstream stream)
{
    const struct dpt_cuda_library *lib = &link->lib;

    const int rank = link->first + m->rank;

    return m->sends ? lib->ncclSend(m->at, m->n, DPT_NCCL_FLOAT, rank, link->comm, stream)
                    : lib->ncclRecv(m->at, m->n, DPT_NCCL_FLOAT, rank, link->comm, stream);
}

/* Some of the ranks have no call of NCCL's, and send each other their slices (copy_own does the
 * rest). */
static int gather_one(const struct dpt_cuda_link *link, const struct dpt_cuda_message *m,
                      CUstream stream)
{
    const float *const own =
        m->own != NULL ? m->own : m->at + (size_t)(link->rank - link->first) * m->n;
    int code = DPT_NCCL_SUCCESS;

    if (link->ranks == link->world)
        return link->lib.ncclAllGather(own, m->at, m->n, DPT_NCCL_FLOAT, link->comm, stream);
    for (int r = 0; r < link->ranks && code == DPT_NCCL_SUCCESS; r++) {
        const struct dpt_cuda_message sent = {.at = (float *)(uintptr_t)own,
                                              .n = m->n,
                                              .rank = r,
                                              .sends = true},
                                      received = {
                                          .at = m->at + (size_t)r * m->n, .n = m->n, .rank = r};

        if (r == link->rank - link->first)
            continue;
        code = exchange_one(link, &sent, stream);
        if (code == DPT_NCCL_SUCCESS)
            code = exchange_one(link, &received, stream);
    }
    return code;
}

static enum dpt_status enqueue_group(struct dpt_cuda_link *link, enqueue_fn *enqueue,
                                     const char *what, const struct dpt_cuda_message *messages,
                                     int n, CUstream stream, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &link->lib;
    enum dpt_status status = DPT_OK;
    int code = DPT_NCCL_SUCCESS;

    DPT_TRY(enter(link, err));
    if (n == 0)
        goto out;
    DPT_TRY(check(lib, link->comm, lib->ncclGroupStart(), "ncclGroupStart", err));
    for (const struct dpt_cuda_message *m = messages; m < messages + n && code == 0; m++)
        code = enqueue(link, m, stream);
    status = check(lib, link->comm, code, what, err);
    code = lib->ncclGroupEnd(); /* also after an error: a group must not stay open */
    if (status == DPT_OK)
        status = check(lib, link->comm, code, "ncclGroupEnd", err);
out:
    leave(link);
    return status;
}

/* Enqueues the copies of this rank's slices to their places among those that some ranks gather. */
static enum dpt_status copy_own(struct dpt_cuda_link *link, const struct dpt_cuda_message *pieces,
                                int count, CUstream stream, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (const struct dpt_cuda_message *m = pieces; m < pieces + count; m++)
        if (m->own != NULL)
            DPT_CUDA_TRY(
                &link->lib,
                cuMemcpyDtoDAsync(dpt_cuda_ptr(m->at + (size_t)(link->rank - link->first) * m->n),
                                  dpt_cuda_ptr(m->own), m->n * sizeof *m->at, stream));
out:
    return status;
}

enum dpt_status dpt_cuda_link_gather(struct dpt_cuda_link *link,
                                     const struct dpt_cuda_message *pieces, int count,
                                     CUstream stream, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (link->ranks < link->world)
        DPT_TRY(copy_own(link, pieces, count, stream, err));
    status = enqueue_group(link, gather_one, "ncclAllGather", pieces, count, stream, err);
out:
    return status;
}

enum dpt_status dpt_cuda_link_exchange(struct dpt_cuda_link *link,
                                       const struct dpt_cuda_message *messages, int n,
                                       CUstream stream, struct dpt_error *err)
{
    return enqueue_group(link, exchange_one, "ncclSend or ncclRecv", messages, n, stream, err);
}

/* On the legacy stream: nothing else is under way. */
static enum dpt_status sum(void *opened, struct dpt_device_buffer *b, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_link *link = opened;

    DPT_CUDA_TRY(&link->lib, cuCtxSetCurrent(link->context));
    DPT_TRY(dpt_cuda_link_sum(link, b->at, (size_t)b->n, NULL, err));
    DPT_CUDA_TRY(&link->lib, cuCtxSynchronize());
    DPT_TRY(dpt_cuda_link_check(link, err));
out:
    return status;
}

const struct dpt_device_links dpt_cuda_links = {
    .open = open_link,
    .identify = identify,
    .connect = connect,
    .sum = sum,
    .abort = abort_link,
    .close = close_link,
};

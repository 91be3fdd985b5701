/*
 * NCCL between the fake devices of several processes, over a file of shared memory. It says that it
 * is too old unless a test gives it a version, so jobs sum by MPI where nothing else is asked for.
 *
 * A sum is four pieces of work on its stream: it waits until nobody reads what this rank gave last,
 * gives its floats, waits for all others', and adds them, from another rank on in each element: no
 * order that a test could rely on. Calls that are not alike on all ranks are complained of, and
 * fail. As with the real one, what waits does so for ever, until somebody aborts.
 *
 *   FAKENCCL_VERSION=0   22803 is 2.28.3
 *   FAKENCCL_HANG=N      the Nth sum of this process waits for ever
 *   FAKENCCL_ABORT_HANGS=1   an abort does not return
 *   FAKENCCL_WRONG=N     an element of the Nth sum comes out wrong on this rank
 *   FAKEGPU_FAIL, FAKEGPU_LOG   as for the driver's functions
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/tests/fake/fake.h"

enum { MOST_RANKS = 16, MOST_FLOATS = 9 << 20, REMOTE_ERROR = 6, INVALID_ARGUMENT = 4, USAGE = 5 };

struct rank {
    _Atomic uint64_t given, taken; /* numbers of sums */
    uint64_t n;
};

struct place {
    _Atomic int arrived;
    _Atomic bool aborted, unlike;
    struct rank ranks[MOST_RANKS];
    float floats[]; /* [ranks][MOST_FLOATS] */
};

struct comm {
    struct place *place;
    size_t bytes;
    int rank, ranks;
    CUcontext context;
    uint64_t sums;
    atomic_bool aborted;
};

/* The argument of a sum's pieces of work. */
struct sum {
    struct comm *comm;
    float *at;
    size_t n;
    uint64_t number; /* from 1 */
};

static atomic_bool ending;

static __attribute__((destructor)) void end(void)
{
    atomic_store(&ending, true);
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static bool over(const struct comm *c)
{
    return atomic_load(&ending) || atomic_load(&c->aborted);
}

/* --- work ------------------------------------------------------------------------------------- */

static void await_readers(void *data)
{
    const struct sum *s = data;

    for (int r = 0; r < s->comm->ranks && !over(s->comm); r++)
        while (atomic_load(&s->comm->place->ranks[r].taken) + 1 < s->number && !over(s->comm))
            pause_briefly();
}

static void give(void *data)
{
    const struct sum *s = data;
    struct rank *mine = &s->comm->place->ranks[s->comm->rank];

    memcpy(s->comm->place->floats + (size_t)s->comm->rank * MOST_FLOATS, s->at,
           s->n * sizeof(float));
    mine->n = s->n;
    atomic_store(&mine->given, s->number);
}

static void await_others(void *data)
{
    const struct sum *s = data;
    struct place *place = s->comm->place;

    while ((long long)s->number == fakegpu_number("FAKENCCL_HANG", 0) && !over(s->comm))
        pause_briefly();
    for (int r = 0; r < s->comm->ranks && !over(s->comm); r++) {
        while (atomic_load(&place->ranks[r].given) < s->number && !over(s->comm))
            pause_briefly();
        if (!over(s->comm) && place->ranks[r].n != s->n && !atomic_exchange(&place->unlike, true))
            fakegpu_complain("sum %llu: rank %d has %zu floats, rank %d %llu",
                             (unsigned long long)s->number, s->comm->rank, s->n, r,
                             (unsigned long long)place->ranks[r].n);
    }
}

static void add(void *data)
{
    const struct sum *s = data;
    const int ranks = s->comm->ranks;
    struct place *place = s->comm->place;

    for (size_t i = 0; i < s->n && !over(s->comm) && !atomic_load(&place->unlike); i++) {
        const int from = 1 + (int)(i % (size_t)ranks);
        float x = 0;

        for (int k = 0; k < ranks; k++)
            x += place->floats[(size_t)((from + k) % ranks) * MOST_FLOATS + i];
        s->at[i] = x;
    }
    if ((long long)s->number == fakegpu_number("FAKENCCL_WRONG", 0))
        s->at[s->n / 2] += 1;
    atomic_store(&place->ranks[s->comm->rank].taken, s->number);
}

static CUresult enqueue(CUstream stream, const char *name, void (*run)(void *data),
                        const struct sum *s, bool host)
{
    struct fakegpu_work work = {.run = run, .data = s, .bytes = sizeof *s, .host = host};

    snprintf(work.name, sizeof work.name, "%s", name);
    if (!host)
        fakegpu_add_range(&work, s->at, s->n * sizeof(float), FAKEGPU_DEVICE, run == add);
    return fakegpu_enqueue(stream, &work);
}

/* --- the functions ---------------------------------------------------------------------------- */

#pragma GCC visibility push(default)
#define X(name, result, parameters) result name parameters;
DPT_CUDA_NCCL_FUNCTIONS(X)
#undef X
#pragma GCC visibility pop

int ncclGetVersion(int *version)
{
    FAKE(ncclGetVersion, USAGE, "%s", "");
    *version = (int)fakegpu_number("FAKENCCL_VERSION", 0);
    return DPT_NCCL_SUCCESS;
}

const char *ncclGetErrorString(int code)
{
    return code == REMOTE_ERROR ? "remote process exited or there was a network error"
                                : "fake NCCL failed";
}

const char *ncclGetLastError(void *comm)
{
    return comm != NULL ? "the last error\nand more of it" : "";
}

int ncclGetUniqueId(struct dpt_nccl_id *id)
{
    FAKE(ncclGetUniqueId, USAGE, "%s", "");
    snprintf(id->bytes, sizeof id->bytes, "/fakenccl-%d-%lld", (int)getpid(),
             (long long)time(NULL));
    return DPT_NCCL_SUCCESS;
}

int ncclCommInitRank(void **comm, int ranks, struct dpt_nccl_id id, int rank)
{
    struct comm *c;
    int file;

    FAKE(ncclCommInitRank, REMOTE_ERROR, "%d of %d", rank, ranks);
    if (fakegpu_current() == NULL || ranks > MOST_RANKS || rank < 0 || rank >= ranks) {
        fakegpu_complain("ncclCommInitRank: rank %d of %d, or no context", rank, ranks);
        return INVALID_ARGUMENT;
    }
    c = calloc(1, sizeof *c);
    c->bytes = sizeof *c->place + (size_t)ranks * MOST_FLOATS * sizeof(float);
    file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)c->bytes) != 0)
        return USAGE;
    c->place = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    c->rank = rank;
    c->ranks = ranks;
    c->context = fakegpu_current();
    *comm = c;
    atomic_fetch_add(&c->place->arrived, 1);
    while (atomic_load(&c->place->arrived) < ranks && !over(c))
        pause_briefly();
    shm_unlink(id.bytes); /* all have it */
    return DPT_NCCL_SUCCESS;
}

int ncclCommGetAsyncError(void *comm, int *code)
{
    const struct comm *c = comm;

    FAKE(ncclCommGetAsyncError, REMOTE_ERROR, "%s", "");
    *code = atomic_load(&c->place->aborted) || atomic_load(&c->place->unlike) ? REMOTE_ERROR
                                                                              : DPT_NCCL_SUCCESS;
    return DPT_NCCL_SUCCESS;
}

/* The memory stays: work that is under way may look at it. */
int ncclCommAbort(void *comm)
{
    struct comm *c = comm;

    FAKE(ncclCommAbort, USAGE, "%s", "");
    if (atomic_exchange(&c->aborted, true))
        fakegpu_complain("ncclCommAbort again");
    atomic_store(&c->place->aborted, true);
    while (fakegpu_number("FAKENCCL_ABORT_HANGS", 0) != 0)
        pause_briefly();
    return DPT_NCCL_SUCCESS;
}

int ncclCommDestroy(void *comm)
{
    struct comm *c = comm;

    FAKE(ncclCommDestroy, USAGE, "%s", "");
    if (atomic_load(&c->place->ranks[c->rank].taken) != c->sums)
        fakegpu_complain("ncclCommDestroy with sums under way");
    munmap(c->place, c->bytes);
    free(c);
    return DPT_NCCL_SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm,
                  CUstream stream)
{
    struct comm *c = comm;
    struct sum s = {c, to, n, ++c->sums};

    FAKE(ncclAllReduce, REMOTE_ERROR, "%zu", n);
    if (atomic_load(&c->aborted) || from != to || type != DPT_NCCL_FLOAT || op != DPT_NCCL_SUM ||
        n > MOST_FLOATS || fakegpu_current() != c->context) {
        fakegpu_complain("ncclAllReduce of %zu: aborted, another context, type or operation, or "
                         "not in place",
                         n);
        return INVALID_ARGUMENT;
    }
    if (enqueue(stream, "ncclAllReduce awaits readers", await_readers, &s, true) != CUDA_SUCCESS ||
        enqueue(stream, "ncclAllReduce gives", give, &s, false) != CUDA_SUCCESS ||
        enqueue(stream, "ncclAllReduce awaits others", await_others, &s, true) != CUDA_SUCCESS ||
        enqueue(stream, "ncclAllReduce adds", add, &s, false) != CUDA_SUCCESS)
        return USAGE;
    return DPT_NCCL_SUCCESS;
}

/*
 * NCCL between the fake devices of several processes, over a file of shared memory. It says that it
 * is too old unless a test gives it a version, so jobs sum by MPI where nothing else is asked for.
 *
 * A call is four pieces of work on its stream: it waits until nobody reads what this rank gave
 * last, gives its floats, waits for those of others, and takes what it gets of them. A sum adds
 * from another rank on in each element: no order that a test could rely on. A group of messages is
 * one call, which ends when all of its messages have been taken: none of them is buffered. Calls
 * that are not alike on all ranks, and messages that do not match, are complained of, and fail. As
 * with the real one, what waits does so for ever, until somebody aborts.
 *
 *   FAKENCCL_VERSION=0   22803 is 2.28.3
 *   FAKENCCL_HANG=N      the Nth call of this process waits for ever
 *   FAKENCCL_ABORT_HANGS=1   an abort does not return
 *   FAKENCCL_WRONG=N     an element of what the Nth call gives comes out wrong on this rank
 *   FAKEGPU_FAIL, FAKEGPU_LOG   as for the driver's functions
 *
 * From 2.22 on connections are made by the first sum, before that by ncclCommInitRank.
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
#include "core/backend/cuda/tests/fake/fake_nccl.h"

enum { MOST_RANKS = 16, MOST_FLOATS = 9 << 20, MOST_MESSAGES = 256 };
enum { REMOTE_ERROR = 6, INVALID_ARGUMENT = 4, USAGE = 5 };
enum kind { SUM, SUM_DOUBLES, SCATTER, GATHER, EXCHANGE };

struct rank {
    _Atomic uint64_t given, taken; /* numbers of collective calls */
    enum kind kind;                /* of the last one given */
    uint64_t n;
    int messages; /* what it sends with its last group, one after another in its floats */
    struct {
        int to;
        uint64_t n;
    } sent[MOST_MESSAGES];
    _Atomic uint64_t sends[MOST_RANKS], took[MOST_RANKS]; /* messages to, and from, each rank */
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
    uint64_t calls, collective;
    _Atomic uint64_t done; /* calls: they go in the order in which they are made */
    atomic_bool aborted;
    FILE *log; /* as of fakenccl_open_log */
};

/* The argument of a call's pieces of work. */
struct call {
    struct comm *comm;
    enum kind kind;
    uint64_t call, number;             /* from 1; number: of those that are collective */
    float *at;                         /* of a sum, or of all ranks' slices */
    size_t n;                          /* words of the sum, or of a slice */
    struct dpt_cuda_message *messages; /* freed by the last piece of work */
    int n_messages;
    const float *own; /* GATHER: this rank's slice, which may lie apart */
};

/* The group that a thread has open. */
static _Thread_local struct {
    int depth;
    struct comm *comm;
    CUstream stream;
    struct dpt_cuda_message messages[MOST_MESSAGES];
    int n;       /* gatherings go their way at once */
    bool failed; /* a call in it */
} group;

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

/* Waits for the call before, and until all have taken what this rank gave to all. */
static void await_readers(void *data)
{
    const struct call *s = data;
    const struct rank *mine = &s->comm->place->ranks[s->comm->rank];

    while (atomic_load(&s->comm->done) + 1 < s->call && !over(s->comm))
        pause_briefly();
    for (int r = 0; r < s->comm->ranks && !over(s->comm); r++)
        while (atomic_load(&s->comm->place->ranks[r].taken) < atomic_load(&mine->given) &&
               !over(s->comm))
            pause_briefly();
}

/* The words of a call that a rank gives, or gets: of all slices, or of its own. */
static float *words_of(const struct call *s, bool gets, size_t *n)
{
    const bool own = s->kind == (gets ? SCATTER : GATHER);
    const bool all = s->kind == (gets ? GATHER : SCATTER);

    *n = s->n * (all ? (size_t)s->comm->ranks : 1);
    if (own && s->kind == GATHER)
        return (float *)(uintptr_t)s->own;
    return s->at + (own ? (size_t)s->comm->rank * s->n : 0);
}

/* Where a rank's floats are. */
static float *floats_of(const struct call *s, int rank)
{
    return s->comm->place->floats + (size_t)rank * MOST_FLOATS;
}

static void give(void *data)
{
    const struct call *s = data;
    struct rank *mine = &s->comm->place->ranks[s->comm->rank];
    float *to = floats_of(s, s->comm->rank);
    size_t n;
    const float *from = words_of(s, false, &n);

    if (over(s->comm)) /* others may still read what it gave before */
        return;
    mine->messages = 0;
    if (s->kind != EXCHANGE) {
        mine->kind = s->kind;
        mine->n = s->n;
        memcpy(to, from, n * sizeof *from);
        atomic_store(&mine->given, s->number);
    }
    for (int i = 0; i < s->n_messages; i++) {
        const struct dpt_cuda_message *m = &s->messages[i];

        if (!m->sends)
            continue;
        memcpy(to, m->at, m->n * sizeof(float));
        to += m->n;
        mine->sent[mine->messages].to = m->rank;
        mine->sent[mine->messages++].n = m->n;
    }
    for (int i = 0; i < mine->messages; i++)
        atomic_fetch_add(&mine->sends[mine->sent[i].to], 1);
}

/* Waits for all messages of a group, before any is taken: none of two groups of their sender. */
static void await_messages(const struct call *s)
{
    const struct place *place = s->comm->place;
    const int own = s->comm->rank;

    for (int r = 0; r < s->comm->ranks; r++) {
        uint64_t wanted = atomic_load(&place->ranks[own].took[r]);

        for (int i = 0; i < s->n_messages; i++)
            wanted += !s->messages[i].sends && s->messages[i].rank == r;
        while (atomic_load(&place->ranks[r].sends[own]) < wanted && !over(s->comm))
            pause_briefly();
    }
}

static void await_others(void *data)
{
    const struct call *s = data;
    struct place *place = s->comm->place;

    while ((long long)s->call == fakegpu_number("FAKENCCL_HANG", 0) && !over(s->comm))
        pause_briefly();
    if (s->kind == EXCHANGE) {
        await_messages(s);
        return;
    }
    for (int r = 0; r < s->comm->ranks && !over(s->comm); r++) {
        const struct rank *other = &place->ranks[r];

        while (atomic_load(&other->given) < s->number && !over(s->comm))
            pause_briefly();
        if (!over(s->comm) && (other->kind != s->kind || other->n != s->n) &&
            !atomic_exchange(&place->unlike, true))
            fakegpu_complain("call %llu: rank %d has %zu floats (kind %d), rank %d %llu (kind %d)",
                             (unsigned long long)s->number, s->comm->rank, s->n, s->kind, r,
                             (unsigned long long)other->n, other->kind);
    }
}

static void add(const struct call *s)
{
    const size_t ranks = (size_t)s->comm->ranks;
    size_t n;
    float *to = words_of(s, true, &n);
    const size_t first = (size_t)(to - s->at);

    for (size_t i = 0; i < n; i++) {
        float x = 0;

        for (size_t k = 0; k < ranks; k++)
            x += floats_of(s, (int)((1 + i + k) % ranks))[first + i];
        to[i] = x;
    }
}

static void add_doubles(const struct call *s)
{
    double *to = (double *)(void *)s->at;

    for (size_t i = 0; i < s->n / 2; i++) {
        double x = 0;

        for (int k = 0; k < s->comm->ranks; k++)
            x += ((const double *)(const void *)floats_of(s, k))[i];
        to[i] = x;
    }
}

/* Copies the next message that `from` sends to this rank, and does not leave *at behind it if there
 * is none of that length. sent, at: where those before it end. */
static bool take_message(const struct call *s, const struct dpt_cuda_message *m, int *sent,
                         size_t *at)
{
    const struct rank *from = &s->comm->place->ranks[m->rank];

    for (; *sent < from->messages; *at += from->sent[*sent].n, ++*sent) {
        if (from->sent[*sent].to != s->comm->rank)
            continue;
        if (from->sent[*sent].n != m->n)
            return false;
        memcpy(m->at, floats_of(s, m->rank) + *at, m->n * sizeof(float));
        *at += m->n;
        ++*sent;
        return true;
    }
    return false;
}

static void exchange(const struct call *s)
{
    struct rank *mine = &s->comm->place->ranks[s->comm->rank];
    int sent[MOST_RANKS] = {0};
    size_t at[MOST_RANKS] = {0};

    for (int i = 0; i < s->n_messages; i++) {
        const struct dpt_cuda_message *m = &s->messages[i];

        if (!m->sends && !take_message(s, m, &sent[m->rank], &at[m->rank]) &&
            !atomic_exchange(&s->comm->place->unlike, true))
            fakegpu_complain("call %llu: rank %d has no message of %zu floats for rank %d",
                             (unsigned long long)s->call, m->rank, m->n, s->comm->rank);
    }
    for (int i = 0; i < s->n_messages; i++)
        if (!s->messages[i].sends)
            atomic_fetch_add(&mine->took[s->messages[i].rank], 1);
    for (int r = 0; r < s->comm->ranks; r++)
        while (atomic_load(&s->comm->place->ranks[r].took[s->comm->rank]) <
                   atomic_load(&mine->sends[r]) &&
               !over(s->comm))
            pause_briefly();
}

/* NULL: it gives nothing. */
static float *somewhere_in(const struct call *s)
{
    for (int i = 0; i < s->n_messages; i++)
        if (!s->messages[i].sends)
            return s->messages[i].at + s->messages[i].n / 2;
    if (s->kind == EXCHANGE)
        return NULL;
    return s->at + s->n / 2 + (s->kind == SCATTER ? (size_t)s->comm->rank * s->n : 0);
}

static void take(void *data)
{
    const struct call *s = data;
    struct place *place = s->comm->place;

    if (!over(s->comm) && !atomic_load(&place->unlike)) {
        if (s->kind == SUM || s->kind == SCATTER)
            add(s);
        if (s->kind == SUM_DOUBLES)
            add_doubles(s);
        if (s->kind == EXCHANGE)
            exchange(s);
        for (int r = 0; r < s->comm->ranks && s->kind == GATHER; r++)
            memcpy(s->at + (size_t)r * s->n, floats_of(s, r), s->n * sizeof(float));
        if ((long long)s->call == fakegpu_number("FAKENCCL_WRONG", 0) && somewhere_in(s) != NULL)
            *somewhere_in(s) += 1;
    }
    if (s->kind != EXCHANGE)
        atomic_store(&place->ranks[s->comm->rank].taken, s->number);
    atomic_store(&s->comm->done, s->call);
    free(s->messages);
}

static CUresult enqueue_piece(CUstream stream, const char *call, const char *does,
                              void (*run)(void *data), const struct call *s, bool host)
{
    const bool takes = run == take;
    struct fakegpu_work work = {.run = run, .data = s, .bytes = sizeof *s, .host = host};
    size_t n;
    float *at = words_of(s, takes, &n);

    snprintf(work.name, sizeof work.name, "%s %s", call, does);
    if (!host && s->kind != EXCHANGE)
        fakegpu_add_range(&work, at, n * sizeof *at, FAKEGPU_DEVICE, takes);
    for (int i = 0; i < s->n_messages && !host; i++)
        if (s->messages[i].sends != takes)
            fakegpu_add_range(&work, s->messages[i].at, s->messages[i].n * sizeof(float),
                              FAKEGPU_DEVICE, takes);
    return fakegpu_enqueue(stream, &work);
}

static int enqueue(CUstream stream, const char *name, const struct call *s)
{
    const bool enqueued =
        enqueue_piece(stream, name, "awaits readers", await_readers, s, true) == CUDA_SUCCESS &&
        enqueue_piece(stream, name, "gives", give, s, false) == CUDA_SUCCESS &&
        enqueue_piece(stream, name, "awaits others", await_others, s, true) == CUDA_SUCCESS &&
        enqueue_piece(stream, name, "takes", take, s, false) == CUDA_SUCCESS;

    return enqueued ? DPT_NCCL_SUCCESS : USAGE;
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
    c->log = fakenccl_open_log(rank);
    if (fakegpu_number("FAKENCCL_VERSION", 0) < 22200)
        fakenccl_say_connections(c->log, c->rank, c->ranks);
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
    if (atomic_load(&c->done) != c->calls)
        fakegpu_complain("ncclCommDestroy with calls under way");
    munmap(c->place, c->bytes);
    if (c->log != NULL)
        fclose(c->log);
    free(c);
    return DPT_NCCL_SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm,
                  CUstream stream)
{
    struct comm *c = comm;
    const bool doubles = type == DPT_NCCL_DOUBLE;
    const struct call s = {c,   doubles ? SUM_DOUBLES : SUM, ++c->calls, ++c->collective,
                           to,  doubles ? 2 * n : n,         NULL,       0,
                           NULL};

    FAKE(ncclAllReduce, REMOTE_ERROR, "%zu", n);
    if (atomic_load(&c->aborted) || from != to || (!doubles && type != DPT_NCCL_FLOAT) ||
        op != DPT_NCCL_SUM || s.n > MOST_FLOATS || fakegpu_current() != c->context) {
        fakegpu_complain("ncclAllReduce of %zu: aborted, another context, type or operation, or "
                         "not in place",
                         n);
        return INVALID_ARGUMENT;
    }
    if (c->calls == 1 && fakegpu_number("FAKENCCL_VERSION", 0) >= 22200)
        fakenccl_say_connections(c->log, c->rank, c->ranks);
    return enqueue(stream, "ncclAllReduce", &s);
}

int ncclAllGather(const void *from, void *to, size_t n, int type, void *comm, CUstream stream)
{
    struct comm *c = comm;
    const struct call s = {.comm = c,
                           .kind = GATHER,
                           .call = ++c->calls,
                           .number = ++c->collective,
                           .at = to,
                           .n = n,
                           .own = from};
    const size_t all = n * (size_t)c->ranks;
    const bool apart = s.own + n <= s.at || s.own >= s.at + all;

    FAKE(ncclAllGather, REMOTE_ERROR, "%zu", n);
    if (atomic_load(&c->aborted) || !(apart || s.own == s.at + (size_t)c->rank * n) ||
        type != DPT_NCCL_FLOAT || n > MOST_FLOATS || fakegpu_current() != c->context) {
        fakegpu_complain("ncclAllGather of %zu: aborted, another context or type, or over itself",
                         n);
        return INVALID_ARGUMENT;
    }
    return enqueue(stream, "ncclAllGather", &s);
}

int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, void *comm,
                      CUstream stream)
{
    struct comm *c = comm;
    float *const at = (float *)(uintptr_t)from;
    const struct call s = {c, SCATTER, ++c->calls, ++c->collective, at, n, NULL, 0, NULL};

    FAKE(ncclReduceScatter, REMOTE_ERROR, "%zu", n);
    if (atomic_load(&c->aborted) || to != s.at + (size_t)c->rank * n || type != DPT_NCCL_FLOAT ||
        op != DPT_NCCL_SUM || n * (size_t)c->ranks > MOST_FLOATS ||
        fakegpu_current() != c->context) {
        fakegpu_complain("ncclReduceScatter of %zu: aborted, another context, type or operation, "
                         "or not in place",
                         n);
        return INVALID_ARGUMENT;
    }
    return enqueue(stream, "ncclReduceScatter", &s);
}

int ncclGroupStart(void)
{
    FAKE(ncclGroupStart, USAGE, "%s", "");
    if (group.depth++ == 0) {
        group.n = 0;
        group.failed = false;
    }
    return DPT_NCCL_SUCCESS;
}

/* Adds a message to the open group. */
static int add_message(float *at, size_t n, int type, int rank, bool sends, struct comm *c,
                       CUstream stream)
{
    const bool first = group.n == 0;

    if (atomic_load(&c->aborted) || group.depth != 1 || type != DPT_NCCL_FLOAT || rank < 0 ||
        rank >= c->ranks || rank == c->rank || group.n == MOST_MESSAGES ||
        fakegpu_current() != c->context ||
        !(first || (group.comm == c && group.stream == stream))) {
        fakegpu_complain(
            "a message of %zu floats to or from rank %d: aborted, another context or type, no "
            "group, or too many",
            n, rank);
        return INVALID_ARGUMENT;
    }
    group.comm = c;
    group.stream = stream;
    group.messages[group.n++] =
        (struct dpt_cuda_message){.at = at, .n = n, .rank = rank, .sends = sends};
    return DPT_NCCL_SUCCESS;
}

int ncclSend(const void *from, size_t n, int type, int rank, void *comm, CUstream stream)
{
    const bool failed = group.failed;

    group.failed = true; /* if it returns here */
    FAKE(ncclSend, REMOTE_ERROR, "%zu to %d", n, rank);
    group.failed = failed;
    return add_message((float *)(uintptr_t)from, n, type, rank, true, comm, stream);
}

int ncclRecv(void *to, size_t n, int type, int rank, void *comm, CUstream stream)
{
    const bool failed = group.failed;

    group.failed = true; /* if it returns here */
    FAKE(ncclRecv, REMOTE_ERROR, "%zu from %d", n, rank);
    group.failed = failed;
    return add_message(to, n, type, rank, false, comm, stream);
}

int ncclGroupEnd(void)
{
    struct call s = {.comm = group.comm, .kind = EXCHANGE, .n_messages = group.n};

    FAKE(ncclGroupEnd, REMOTE_ERROR, "%d", group.n);
    if (--group.depth > 0)
        return DPT_NCCL_SUCCESS;
    if (group.failed) /* of a group in which a call failed nothing begins */
        return REMOTE_ERROR;
    if (group.n == 0)
        return DPT_NCCL_SUCCESS;
    s.call = ++s.comm->calls;
    s.messages = malloc(sizeof group.messages);
    memcpy(s.messages, group.messages, sizeof group.messages);
    return enqueue(group.stream, "ncclGroupEnd", &s);
}

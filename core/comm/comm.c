#include "core/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/comm/internal.h"
#include "core/comm/mpi_call.h"
#include "core/comm/watch.h"

enum dpt_status dpt_mpi_fail(struct dpt_error *err, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;

    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    return dpt_fail(err, DPT_RANK, "MPI: %s failed: %s", what, text);
}

enum dpt_status dpt_mpi_collective_fail(const struct dpt_group *g, struct dpt_error *err,
                                        const char *what, int code)
{
    const struct dpt_communicator *c = g->handle;
    const enum dpt_status status = dpt_mpi_fail(err, what, code);

    if (c->watch != NULL)
        dpt_watch_give_up(c->watch, dpt_exit_code(status), err->text);
    return status;
}

void dpt_group_enter(const struct dpt_group *g)
{
    const struct dpt_communicator *c = g->handle;

    if (c->watch != NULL)
        dpt_watch_enter(c->watch, c->whole);
}

void dpt_group_leave(const struct dpt_group *g)
{
    const struct dpt_communicator *c = g->handle;

    if (c->watch != NULL)
        dpt_watch_leave(c->watch, c->whole);
}

/* Bytes of address space that MPI may want at its start. */
enum { RESERVE = 256 << 20 };

/* A group of one, or a group that this rank is not in: nothing to be said to anyone. */
static bool is_alone(const struct dpt_group *g)
{
    return g->size <= 1;
}

/* Wraps a communicator. Takes it over where it succeeds. A group of one keeps no handle. */
static enum dpt_status group_open(struct dpt_group *g, MPI_Comm comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_communicator *handle = NULL;

    DPT_TRY_MPI(MPI_Comm_set_errhandler, comm, MPI_ERRORS_RETURN);
    DPT_TRY_MPI(MPI_Comm_rank, comm, &g->rank);
    DPT_TRY_MPI(MPI_Comm_size, comm, &g->size);
    if (g->size == 1) {
        if (comm != MPI_COMM_WORLD)
            DPT_TRY_MPI(MPI_Comm_free, &comm);
        return DPT_OK;
    }
    handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        DPT_TRY(dpt_fail_memory(err, "a communicator", sizeof *handle));
    handle->comm = comm;
    g->handle = handle;
out:
    return status;
}

static void group_close(struct dpt_group *g)
{
    struct dpt_communicator *handle = g->handle;

    if (handle != NULL && handle->comm != MPI_COMM_WORLD)
        MPI_Comm_free(&handle->comm);
    free(handle);
    *g = (struct dpt_group){0};
}

static enum dpt_status find_nodes(struct dpt_comm *comm, struct dpt_error *err)
{
    const MPI_Comm world = dpt_mpi_comm(&comm->world);
    enum dpt_status status = DPT_OK;
    MPI_Comm part = MPI_COMM_NULL;

    DPT_TRY_MPI(MPI_Comm_split_type, world, MPI_COMM_TYPE_SHARED, comm->world.rank, MPI_INFO_NULL,
                &part);
    DPT_TRY(group_open(&comm->node, part, err));
    DPT_TRY_MPI(MPI_Comm_split, world, comm->node.rank == 0 ? 0 : MPI_UNDEFINED, comm->world.rank,
                &part);
    if (part == MPI_COMM_NULL) {
        comm->leaders = (struct dpt_group){.rank = -1};
    } else {
        DPT_TRY(group_open(&comm->leaders, part, err));
        comm->nodes = comm->leaders.size;
    }
    DPT_TRY(dpt_group_broadcast(&comm->node, 0, &comm->nodes, sizeof comm->nodes, err));
out:
    return status;
}

/* From here on the ranks of each node watch each other. */
static enum dpt_status start_watching(struct dpt_comm *comm, struct dpt_watch *watch,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_group *const groups[] = {&comm->world, &comm->node, &comm->leaders};

    comm->hosts = calloc((size_t)comm->world.size, sizeof *comm->hosts);
    if (comm->hosts == NULL)
        status = dpt_fail_memory(err, "the list of hosts", (double)comm->world.size);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    DPT_TRY(dpt_group_allgather(&comm->world, comm->host, comm->hosts, sizeof comm->host, err));
    DPT_TRY(dpt_watch_attach(watch, comm, err));
    comm->watch = watch;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        struct dpt_communicator *handle = groups[i]->handle;

        if (handle == NULL)
            continue;
        handle->watch = watch;
        handle->whole = groups[i] != &comm->leaders;
    }
out:
    return status;
}

bool dpt_memory_reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    if (p == MAP_FAILED)
        return false;
    munmap(p, bytes);
    return true;
}

/* Too little for MPI, which would crash or hang. The other ranks will not hear of it, and rank 0
 * alone prints errors: so this one tells it itself. */
static enum dpt_status fail_alone(const struct dpt_comm *comm, struct dpt_error *err)
{
    const enum dpt_status status = dpt_fail_memory(err, "MPI", RESERVE);

    dpt_siblings_notify();
    if (dpt_launcher_rank() != 0)
        fprintf(stderr, "rank %d (%s): %s\n", dpt_launcher_rank(), comm->host, err->text);
    usleep((useconds_t)(DPT_SIBLINGS_NOTICE * 1e6));
    return status;
}

enum dpt_status dpt_comm_open(struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, watched = DPT_OK;
    int provided = MPI_THREAD_SINGLE;
    struct dpt_watch *watch = NULL;

    *comm = (struct dpt_comm){.nodes = 1};
    comm->world = comm->node = comm->leaders = (struct dpt_group){.size = 1};
    dpt_host_name(comm->host);
    DPT_TRY(dpt_launcher_check(0, err));
    dpt_launcher_prepare();
    /* This thread is the only one of ours that is there when MPI starts, since it watches over
     * that, too. It does not touch the environment, which MPI_Init changes. */
    if (dpt_launcher_present())
        watched = dpt_watch_open(&watch, dpt_launcher_rank(), err);
    if (!dpt_memory_reserve((size_t)RESERVE))
        DPT_TRY(fail_alone(comm, err));
    DPT_TRY_MPI(MPI_Init_thread, NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    comm->started = true;
    /* The watchdog's MPI_Abort is the only call beside those of the main thread, which a library
     * at the FUNNELED level stands in practice; SINGLE may not know threads. */
    if (provided < MPI_THREAD_FUNNELED)
        DPT_TRY(dpt_fail(err, DPT_RANK, "MPI: this library was built without support for threads"));
    DPT_TRY_MPI(MPI_Comm_set_errhandler, MPI_COMM_SELF, MPI_ERRORS_RETURN);
    DPT_TRY(group_open(&comm->world, MPI_COMM_WORLD, err));
    DPT_TRY(dpt_launcher_check(comm->world.size, err));
    if (is_alone(&comm->world))
        goto out;
    DPT_TRY(dpt_group_agree(&comm->world, watched, err));
    DPT_TRY(find_nodes(comm, err));
    DPT_TRY(start_watching(comm, watch, err));
out:
    if (comm->watch == NULL)
        dpt_watch_close(watch);
    return status;
}

void dpt_comm_close(struct dpt_comm *comm)
{
    struct dpt_watch *watch = comm->watch;

    if (!comm->started) {
        dpt_watch_close(watch);
        comm->watch = NULL;
        return;
    }
    dpt_comm_note(comm, -1, "ending");
    if (!is_alone(&comm->world)) {
        dpt_group_enter(&comm->world);
        MPI_Barrier(dpt_mpi_comm(&comm->world));
        dpt_group_leave(&comm->world);
    }
    group_close(&comm->leaders);
    group_close(&comm->node);
    group_close(&comm->world);
    /* MPI_Finalize waits for all ranks, too. */
    if (watch != NULL)
        dpt_watch_closing(watch);
    MPI_Finalize();
    dpt_watch_close(watch);
    free(comm->hosts);
    *comm = (struct dpt_comm){0};
}

void dpt_comm_abort(struct dpt_comm *comm, int code)
{
    if (comm->watch != NULL)
        dpt_watch_silence(comm->watch);
    /* A process of its own has nobody to take along, and MPI_Abort only adds its chatter. */
    if (comm->started && dpt_launcher_present())
        MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

void dpt_comm_limit(const struct dpt_comm *comm, double seconds)
{
    if (comm->watch != NULL)
        dpt_watch_limit(comm->watch, seconds);
}

enum dpt_status dpt_comm_guard(struct dpt_comm *comm, double seconds, struct dpt_error *err)
{
    if (comm->watch == NULL && dpt_watch_open(&comm->watch, 0, err) != DPT_OK)
        return err->status;
    dpt_watch_patience(comm->watch, seconds);
    return DPT_OK;
}

void dpt_comm_note(const struct dpt_comm *comm, int64_t step, const char *what)
{
    if (comm->watch != NULL)
        dpt_watch_note(comm->watch, step, what);
}

const char *dpt_comm_host(const struct dpt_comm *comm, int rank)
{
    return comm->hosts != NULL ? comm->hosts[rank] : comm->host;
}

#define TEXT_OF(x)                    #x
#define TEXT(x)                       TEXT_OF(x)
#define DOTTED(major, minor, release) TEXT(major) "." TEXT(minor) "." TEXT(release)

const char *dpt_comm_version(void)
{
#if defined(OMPI_MAJOR_VERSION)
    return "Open MPI " DOTTED(OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    return "MPICH " MPICH_VERSION;
#else
    return "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION);
#endif
}

/* What the first rank that failed tells the others. */
struct report {
    int status;
    bool memory;
    char text[DPT_ERROR_TEXT];
};

static void write_report(struct report *report, enum dpt_status failed, const struct dpt_error *err,
                         bool all)
{
    char host[DPT_HOST_TEXT], prefix[DPT_HOST_TEXT + 32] = "";
    int rank = 0;

    if (!all) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        dpt_host_name(host);
        snprintf(prefix, sizeof prefix, "rank %d (%s): ", rank, host);
    }
    report->status = (int)failed;
    report->memory = err->memory;
    snprintf(report->text, sizeof report->text, "%s%.*s", prefix,
             (int)(sizeof report->text - 1 - strlen(prefix)), err->text);
}

enum dpt_status dpt_group_agree(const struct dpt_group *g, enum dpt_status mine,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct report report = {0};
    /* The minima over the ranks: the first rank that failed (size: none), and whether all did. */
    int least[2] = {mine == DPT_OK ? g->size : g->rank, mine != DPT_OK};

    if (is_alone(g))
        return mine;
    DPT_TRY_COLLECTIVE(g, MPI_Allreduce, MPI_IN_PLACE, least, 2, MPI_INT, MPI_MIN, dpt_mpi_comm(g));
    if (least[0] == g->size)
        return DPT_OK;
    if (least[0] == g->rank)
        write_report(&report, mine, err, least[1] != 0);
    DPT_TRY_COLLECTIVE(g, MPI_Bcast, &report, (int)sizeof report, MPI_BYTE, least[0],
                       dpt_mpi_comm(g));
    status = dpt_fail(err, (enum dpt_status)report.status, "%s", report.text);
    err->memory = report.memory;
out:
    return status;
}

static size_t piece(size_t left, size_t limit)
{
    return left < limit ? left : limit;
}

enum dpt_status dpt_group_sum_split(const struct dpt_group *g, enum dpt_sum_kind kind,
                                    const void *send, void *receive, size_t n, size_t limit,
                                    struct dpt_error *err)
{
    static const size_t sizes[] = {
        [DPT_SUM_FLOATS] = sizeof(float),
        [DPT_SUM_DOUBLES] = sizeof(double),
        [DPT_SUM_INTS] = sizeof(int64_t),
    };
    const MPI_Datatype types[] = {
        [DPT_SUM_FLOATS] = MPI_FLOAT,
        [DPT_SUM_DOUBLES] = MPI_DOUBLE,
        [DPT_SUM_INTS] = MPI_INT64_T,
    };
    const size_t size = sizes[kind];
    enum dpt_status status = DPT_OK;
    const char *from = send;
    char *to = receive;

    if (is_alone(g)) {
        if (send != receive && n != 0)
            memcpy(receive, send, n * size);
        return DPT_OK;
    }
    for (size_t i = 0; i < n; i += limit)
        DPT_TRY_COLLECTIVE(g, MPI_Allreduce, send == receive ? MPI_IN_PLACE : from + i * size,
                           to + i * size, (int)piece(n - i, limit), types[kind], MPI_SUM,
                           dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_sum_floats(const struct dpt_group *g, const float *send, float *receive,
                                     size_t n, struct dpt_error *err)
{
    return dpt_group_sum_split(g, DPT_SUM_FLOATS, send, receive, n, DPT_MESSAGE_LIMIT, err);
}

enum dpt_status dpt_group_sum_doubles(const struct dpt_group *g, const double *send,
                                      double *receive, size_t n, struct dpt_error *err)
{
    return dpt_group_sum_split(g, DPT_SUM_DOUBLES, send, receive, n, DPT_MESSAGE_LIMIT, err);
}

enum dpt_status dpt_group_sum_ints(const struct dpt_group *g, const int64_t *send, int64_t *receive,
                                   size_t n, struct dpt_error *err)
{
    return dpt_group_sum_split(g, DPT_SUM_INTS, send, receive, n, DPT_MESSAGE_LIMIT, err);
}

enum dpt_status dpt_group_max(const struct dpt_group *g, double value, double *largest,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double result = value;

    if (!is_alone(g))
        DPT_TRY_COLLECTIVE(g, MPI_Allreduce, &value, &result, 1, MPI_DOUBLE, MPI_MAX,
                           dpt_mpi_comm(g));
    *largest = result;
out:
    return status;
}

enum dpt_status dpt_group_broadcast_split(const struct dpt_group *g, int root, void *bytes,
                                          size_t n, size_t limit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *p = bytes;

    if (is_alone(g))
        return DPT_OK;
    for (size_t i = 0; i < n; i += limit)
        DPT_TRY_COLLECTIVE(g, MPI_Bcast, p + i, (int)piece(n - i, limit), MPI_BYTE, root,
                           dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_broadcast(const struct dpt_group *g, int root, void *bytes, size_t n,
                                    struct dpt_error *err)
{
    return dpt_group_broadcast_split(g, root, bytes, n, DPT_MESSAGE_LIMIT, err);
}

enum dpt_status dpt_group_allgather_split(const struct dpt_group *g, const void *mine, void *all,
                                          size_t n, size_t limit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *parts = all, *own = g->rank < 0 ? NULL : parts + (size_t)g->rank * n;

    if (own == NULL || n == 0)
        return DPT_OK;
    /* The receiving side counts all ranks' bytes, so the limit is on their sum. */
    if (is_alone(g) || n > limit / (size_t)g->size) {
        if (own != mine)
            memcpy(own, mine, n);
        for (int r = 0; r < g->size; r++)
            DPT_TRY(dpt_group_broadcast_split(g, r, parts + (size_t)r * n, n, limit, err));
        return DPT_OK;
    }
    DPT_TRY_COLLECTIVE(g, MPI_Allgather, own == mine ? MPI_IN_PLACE : mine, (int)n, MPI_BYTE, all,
                       (int)n, MPI_BYTE, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_allgather(const struct dpt_group *g, const void *mine, void *all,
                                    size_t n, struct dpt_error *err)
{
    return dpt_group_allgather_split(g, mine, all, n, DPT_MESSAGE_LIMIT, err);
}

enum dpt_status dpt_group_barrier(const struct dpt_group *g, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!is_alone(g))
        DPT_TRY_COLLECTIVE(g, MPI_Barrier, dpt_mpi_comm(g));
out:
    return status;
}

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/comm/internal.h"
#include "core/comm/watch/watch.h"

/* MPI tags that no other point-to-point message uses. */
enum { AWAIT_TAG = 0x7ef, MESSAGE_TAG = 0x7e0, SWAP_TAG = 0x7e1 };

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
    return dpt_group_give_up(g, dpt_mpi_fail(err, what, code), err);
}

enum dpt_status dpt_group_give_up(const struct dpt_group *g, enum dpt_status status,
                                  const struct dpt_error *err)
{
    const struct dpt_communicator *c = g->handle;

    if (c->watch != NULL)
        dpt_watch_give_up(c->watch, dpt_exit_code(status), err->text);
    return status;
}

enum { MOST_REQUESTS = 2 };

/* Whether all n messages (at most MOST_REQUESTS) have gone, asleep where that takes long; the wait
 * began at `start`. False where MPI failed. */
static bool await_all(int n, MPI_Request *request, double start)
{
    /* Seconds of polling without a pause, in which short waits end; then the longest pause. A pause
     * is a small share of the time waited so far, so that little is lost when the last rank
     * arrives. */
    const double polling = 1e-3, longest = 1e-3, share = 1.0 / 16;
    /* Nobody reads them: MPICH's MPI_STATUSES_IGNORE is an address at which gcc 12 warns. */
    MPI_Status statuses[MOST_REQUESTS];
    int gone = 0;

    while (MPI_Testall(n, request, &gone, statuses) == MPI_SUCCESS && !gone) {
        const double waited = dpt_now() - start;

        if (waited < polling)
            sched_yield();
        else
            dpt_sleep(waited * share < longest ? waited * share : longest);
    }
    return gone != 0;
}

void dpt_mpi_await(MPI_Request *request)
{
    await_all(1, request, dpt_now());
}

/*
 * A dissemination barrier (Hensgen, Finkel & Manber 1988), of empty messages: Open MPI's own
 * MPI_Ibarrier allocates at each call, and a rank that has no memory left must still say so. Errors
 * are ignored: the call that follows fails in the same way and reports it.
 */
void dpt_group_await(const struct dpt_group *g)
{
    const MPI_Comm comm = dpt_mpi_comm(g);
    const double start = dpt_now();
    MPI_Request request[MOST_REQUESTS];

    for (int away = 1; away < g->size; away *= 2) {
        const int to = (g->rank + away) % g->size, from = (g->rank - away + g->size) % g->size;

        if (MPI_Irecv(NULL, 0, MPI_BYTE, from, AWAIT_TAG, comm, &request[0]) != MPI_SUCCESS ||
            MPI_Isend(NULL, 0, MPI_BYTE, to, AWAIT_TAG, comm, &request[1]) != MPI_SUCCESS ||
            !await_all(MOST_REQUESTS, request, start))
            return;
    }
}

/* Whether a group has one rank, or not this one: then nothing is communicated. */
static bool is_alone(const struct dpt_group *g)
{
    return g->size <= 1;
}

/* The message of the first rank that failed to the others. */
struct report {
    int status;
    bool memory;
    char text[DPT_ERROR_TEXT];
};

static void write_report(const struct dpt_group *g, struct report *report, enum dpt_status failed,
                         const struct dpt_error *err, bool all)
{
    const struct dpt_watch *watch = ((const struct dpt_communicator *)g->handle)->watch;
    char host[DPT_HOST_TEXT], where[DPT_WHERE_TEXT], prefix[DPT_WHERE_TEXT + 32] = "";
    int rank = 0;

    if (!all) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        dpt_host_name(host);
        snprintf(prefix, sizeof prefix, "rank %d (%s): ", rank,
                 dpt_watch_where(watch, rank, host, where));
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
        write_report(g, &report, mine, err, least[1] != 0);
    DPT_TRY_COLLECTIVE(g, MPI_Bcast, &report, (int)sizeof report, MPI_BYTE, least[0],
                       dpt_mpi_comm(g));
    status = dpt_fail(err, (enum dpt_status)report.status, "%s", report.text);
    err->memory = report.memory;
out:
    return status;
}

/* The elements of the next message when so many are left. */
static int piece(const struct dpt_group *g, size_t left)
{
    return (int)(left < dpt_message_limit(g) ? left : dpt_message_limit(g));
}

static enum dpt_status sum(const struct dpt_group *g, MPI_Datatype type, size_t size,
                           const void *send, void *receive, size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *from = send;
    char *to = receive;

    if (is_alone(g)) {
        if (send != receive && n != 0)
            memcpy(receive, send, n * size);
        return DPT_OK;
    }
    for (size_t i = 0; i < n; i += dpt_message_limit(g))
        DPT_TRY_STEP(g, MPI_Allreduce, send == receive ? MPI_IN_PLACE : from + i * size,
                     to + i * size, piece(g, n - i), type, MPI_SUM, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_sum_floats(const struct dpt_group *g, const float *send, float *receive,
                                     size_t n, struct dpt_error *err)
{
    return sum(g, MPI_FLOAT, sizeof *send, send, receive, n, err);
}

enum dpt_status dpt_group_sum_floats_at_first(const struct dpt_group *g, float *x, size_t n,
                                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < n && !is_alone(g); i += dpt_message_limit(g))
        DPT_TRY_STEP(g, MPI_Reduce, g->rank == 0 ? MPI_IN_PLACE : x + i, x + i, piece(g, n - i),
                     MPI_FLOAT, MPI_SUM, 0, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_sum_doubles(const struct dpt_group *g, const double *send,
                                      double *receive, size_t n, struct dpt_error *err)
{
    return sum(g, MPI_DOUBLE, sizeof *send, send, receive, n, err);
}

enum dpt_status dpt_group_sum_ints(const struct dpt_group *g, const int64_t *send, int64_t *receive,
                                   size_t n, struct dpt_error *err)
{
    return sum(g, MPI_INT64_T, sizeof *send, send, receive, n, err);
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

enum dpt_status dpt_group_broadcast(const struct dpt_group *g, int root, void *bytes, size_t n,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *p = bytes;

    if (is_alone(g))
        return DPT_OK;
    for (size_t i = 0; i < n; i += dpt_message_limit(g))
        DPT_TRY_COLLECTIVE(g, MPI_Bcast, p + i, piece(g, n - i), MPI_BYTE, root, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_allgather(const struct dpt_group *g, const void *mine, void *all,
                                    size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *parts = all, *own = g->rank < 0 ? NULL : parts + (size_t)g->rank * n;

    if (own == NULL || n == 0)
        return DPT_OK;
    /* The receiver's count includes all ranks' bytes, so the limit applies to their sum. */
    if (is_alone(g) || n > dpt_message_limit(g) / (size_t)g->size) {
        if (own != mine)
            memcpy(own, mine, n);
        for (int r = 0; r < g->size; r++)
            DPT_TRY(dpt_group_broadcast(g, r, parts + (size_t)r * n, n, err));
        return DPT_OK;
    }
    DPT_TRY_COLLECTIVE(g, MPI_Allgather, own == mine ? MPI_IN_PLACE : mine, (int)n, MPI_BYTE, all,
                       (int)n, MPI_BYTE, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_gatherv(const struct dpt_group *g, int root, const float *mine,
                                  float *all, const struct dpt_parts *parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (g->size == 1) {
        memcpy(all + parts->at[0], mine, (size_t)parts->count[0] * sizeof *all);
        return DPT_OK;
    }
    DPT_TRY_COLLECTIVE(g, MPI_Gatherv, mine, parts->count[g->rank], MPI_FLOAT, all, parts->count,
                       parts->at, MPI_FLOAT, root, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_scatterv(const struct dpt_group *g, int root, const float *all,
                                   float *mine, const struct dpt_parts *parts,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!is_alone(g))
        DPT_TRY_COLLECTIVE(g, MPI_Scatterv, all, parts->count, parts->at, MPI_FLOAT,
                           g->rank == root ? MPI_IN_PLACE : mine, parts->count[g->rank], MPI_FLOAT,
                           root, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_barrier(const struct dpt_group *g, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!is_alone(g))
        DPT_TRY_COLLECTIVE(g, MPI_Barrier, dpt_mpi_comm(g));
out:
    return status;
}

/* --- between two ranks -------------------------------------------------------------------------
 *
 * A message counts as two calls on both sides, so that a rank that waits for one has made more of
 * them than the one that it waits for: that is whom the watchdog names.
 */

_Static_assert(sizeof(MPI_Request) <= sizeof((struct dpt_sending *)0)->request,
               "a request of this MPI is larger");

static enum dpt_status fail_message(const struct dpt_group *g, const char *what, int code,
                                    struct dpt_error *err)
{
    return code == MPI_SUCCESS ? DPT_OK : dpt_mpi_collective_fail(g, err, what, code);
}

enum dpt_status dpt_group_send(const struct dpt_group *g, int to, const void *bytes, size_t n,
                               struct dpt_sending *sending, struct dpt_error *err)
{
    MPI_Request request;
    int code;

    dpt_group_enter(g);
    code = MPI_Isend(bytes, (int)n, MPI_BYTE, to, MESSAGE_TAG, dpt_mpi_comm(g), &request);
    dpt_group_leave(g);
    memcpy(sending->request, &request, sizeof request);
    sending->under_way = code == MPI_SUCCESS;
    return fail_message(g, "MPI_Isend", code, err);
}

void dpt_group_progress(const struct dpt_group *g)
{
    int found;

    if (!is_alone(g))
        MPI_Iprobe(MPI_ANY_SOURCE, AWAIT_TAG, dpt_mpi_comm(g), &found, MPI_STATUS_IGNORE);
}

enum dpt_status dpt_group_sent(const struct dpt_group *g, struct dpt_sending *sending,
                               struct dpt_error *err)
{
    MPI_Request request;
    int code = MPI_SUCCESS;

    if (!sending->under_way)
        return DPT_OK;
    memcpy(&request, sending->request, sizeof request);
    dpt_group_enter(g);
    if (!await_all(1, &request, dpt_now()))
        code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    dpt_group_leave(g);
    sending->under_way = false;
    return fail_message(g, "MPI_Wait", code, err);
}

enum dpt_status dpt_group_receive(const struct dpt_group *g, int from, void *bytes, size_t n,
                                  struct dpt_error *err)
{
    MPI_Request request;
    int code;

    dpt_group_enter(g);
    dpt_group_leave(g);
    dpt_group_enter(g);
    code = MPI_Irecv(bytes, (int)n, MPI_BYTE, from, MESSAGE_TAG, dpt_mpi_comm(g), &request);
    if (code == MPI_SUCCESS && !await_all(1, &request, dpt_now()))
        code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    dpt_group_leave(g);
    return fail_message(g, "MPI_Irecv", code, err);
}

enum dpt_status dpt_group_swap(const struct dpt_group *g, int other, const void *send, size_t n,
                               void *receive, size_t m, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int to = other < 0 ? MPI_PROC_NULL : other;
    const char *from = send;
    char *into = receive;

    if (is_alone(g))
        return DPT_OK;
    /* A first message also where there is nothing: each rank makes as many calls. */
    for (size_t i = 0; i == 0 || i < n || i < m; i += dpt_message_limit(g)) {
        const size_t out = i < n ? i : n, in = i < m ? i : m;

        DPT_TRY_STEP(g, MPI_Sendrecv, from + out, piece(g, n - out), MPI_BYTE, to, SWAP_TAG,
                     into + in, piece(g, m - in), MPI_BYTE, to, SWAP_TAG, dpt_mpi_comm(g),
                     MPI_STATUS_IGNORE);
    }
out:
    return status;
}

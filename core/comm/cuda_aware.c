#include "core/comm/cuda_aware.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>

#include "core/base/clock.h"
#include "core/comm/internal.h"
#include "core/comm/probe.h"
#include "core/comm/watch/watch.h"

/*
 * The sizes of the sums that are tried, in floats: MPIs use different protocols for short, long and
 * very long messages. The last sum is as long as the job's own, up to a size that fits on any
 * device.
 */
enum { SHORT = 1024, LONG = 1 << 18, LONGEST = 1 << 24, SIZES = 3 };

enum { DIFFERENT = 64, LIBRARY_TEXT = 48 };

/* How often each way is timed, after once to warm up. */
enum { TIMES = 3 };

/* --- a sum that is tried ---------------------------------------------------------------------- */

/* What a rank contributes in each element: whole numbers whose sums a float holds exactly. */
static float trial_value(int rank)
{
    return (float)(rank % DIFFERENT + 1);
}

static bool is_right(const struct dpt_comm *comm, const float *sum, int n)
{
    float want = 0;

    for (int r = 0; r < comm->world.size; r++)
        want += trial_value(r);
    for (int i = 0; i < n; i++)
        if (sum[i] != want)
            return false;
    return true;
}

enum dpt_status dpt_comm_try_sum(const struct dpt_comm *comm,
                                 const struct dpt_device_memory *memory, int device, int n,
                                 dpt_buffer_sum *sum, void *sums, bool *right,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &comm->world;
    struct dpt_device_buffer b = {0};
    int64_t wrong;

    status = memory->open(device, trial_value(world->rank), n, &b, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    status = sum(sums, &b, err);
    if (status == DPT_OK)
        status = memory->fetch(&b, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    wrong = !is_right(comm, b.pinned, n);
    DPT_TRY(dpt_group_sum_ints(world, &wrong, &wrong, 1, err));
    *right = wrong == 0;
out:
    memory->close(&b);
    return status;
}

/* --- a sum that may crash --------------------------------------------------------------------- */

/* Where the thread that tries a sum continues after a fault; NULL in all other threads. */
static _Thread_local sigjmp_buf *recovery;

static void on_fault(int number)
{
    if (recovery != NULL)
        siglongjmp(*recovery, 1);
    signal(number, SIG_DFL); /* another thread's fault keeps its usual effect */
}

/* Runs a sum and returns false if it crashed. *code: what MPI returned. */
static bool survives_sum(const struct dpt_group *g, float *at, int n, int *code)
{
    const struct sigaction action = {.sa_handler = on_fault};
    struct sigaction segv, bus;
    sigjmp_buf here;
    volatile bool survived = false;

    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
    if (sigsetjmp(here, 1) == 0) {
        recovery = &here;
        dpt_group_enter(g);
        *code = MPI_Allreduce(MPI_IN_PLACE, at, n, MPI_FLOAT, MPI_SUM, dpt_mpi_comm(g));
        dpt_group_leave(g);
        survived = true;
    }
    recovery = NULL;
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return survived;
}

/* --- trying it -------------------------------------------------------------------------------- */

struct trial {
    const struct dpt_comm *comm;
    const struct dpt_device_memory *memory;
    int device;
    int64_t largest;
    bool insists; /* the job says `on` */
    char library[LIBRARY_TEXT];
};

static enum dpt_status explain(const struct trial *t, struct dpt_error *err, const char *why)
{
    return dpt_fail(err, DPT_BAD_JOB,
                    "comm.cuda_aware: %s: this MPI (%s) %s %s; %s goes through the host's memory",
                    t->insists ? "on" : "auto", t->library,
                    t->insists ? "cannot sum GPU memory:"
                               : "reports that it can sum GPU memory, but",
                    why, t->insists ? "`auto` or `off`" : "`off`");
}

/* Ends the job after MPI failed in the middle of a sum, since the other ranks still wait in it. */
static void give_up(const struct trial *t, const char *why)
{
    struct dpt_error err = {0};
    const enum dpt_status status = explain(t, &err, why);

    dpt_watch_give_up(t->comm->watch, dpt_exit_code(status), err.text);
}

/* Implements dpt_buffer_sum by MPI. */
static enum dpt_status sum_by_mpi(void *sums, struct dpt_device_buffer *b, struct dpt_error *err)
{
    const struct trial *t = sums;
    int code = MPI_SUCCESS;

    if (!survives_sum(&t->comm->world, b->at, b->n, &code))
        give_up(t, "it crashed when that was tried");
    if (code != MPI_SUCCESS) {
        dpt_mpi_fail(err, "MPI_Allreduce", code);
        give_up(t, err->text);
    }
    return DPT_OK;
}

/* Collective. One sum, in the device's memory or through the host's. */
static enum dpt_status sum_once(const struct trial *t, struct dpt_device_buffer *b, bool staged,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    float *at = staged ? b->pinned : b->at;

    if (staged)
        status = t->memory->fetch(b, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_sum_floats(world, at, at, (size_t)b->n, err));
    if (staged)
        status = t->memory->give(b, err);
out:
    return status;
}

/* Collective. seconds: out, of a sum in the device's memory, and through the host's: the least of
 * several, of the slowest rank. The floats are zeros, so that no sum overflows. */
static enum dpt_status time_both(const struct trial *t, int n, double seconds[2],
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_device_buffer b = {0};

    DPT_TRY(dpt_group_agree(world, t->memory->open(t->device, 0, n, &b, err), err));
    for (int i = 0; i < 2 * (TIMES + 1); i++) {
        double *least = &seconds[i % 2], start;

        DPT_TRY(dpt_group_barrier(world, err));
        start = dpt_now();
        DPT_TRY(dpt_group_agree(world, sum_once(t, &b, i % 2 == 1, err), err));
        *least = i < 4 ? dpt_now() - start : fmin(*least, dpt_now() - start);
    }
    for (int i = 0; i < 2; i++)
        DPT_TRY(dpt_group_max(world, seconds[i], &seconds[i], err));
out:
    t->memory->close(&b);
    return status;
}

static enum dpt_status try_all(struct trial *t, bool *on_device, char how[DPT_CUDA_AWARE_TEXT],
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t own = t->largest;
    const int sizes[SIZES] = {SHORT, LONG, own < LONGEST ? (int)own : LONGEST};
    const int n = own > LONG ? SIZES : SIZES - 1;
    char why[64], times[2][32];
    double seconds[2];
    bool right = true;
    int i = 0;

    dpt_comm_note(t->comm, 0, "trying a sum of GPU memory (comm.cuda_aware)");
    for (; i < n; i++) {
        DPT_TRY(
            dpt_comm_try_sum(t->comm, t->memory, t->device, sizes[i], sum_by_mpi, t, &right, err));
        if (!right)
            break;
    }
    *on_device = right;
    if (right && t->insists) {
        snprintf(how, DPT_CUDA_AWARE_TEXT,
                 "yes (sums of %d to %d floats on the GPU came out right)", sizes[0], sizes[n - 1]);
        return DPT_OK;
    }
    if (right) {
        DPT_TRY(time_both(t, sizes[n - 1], seconds, err));
        *on_device = seconds[0] <= seconds[1];
        snprintf(how, DPT_CUDA_AWARE_TEXT,
                 "%s (sums of %d floats come out right and take %s on the GPU, %s through pinned "
                 "memory of the host)",
                 *on_device ? "yes" : "no", sizes[n - 1], dpt_show_seconds(seconds[0], times[0]),
                 dpt_show_seconds(seconds[1], times[1]));
        return DPT_OK;
    }
    snprintf(why, sizeof why, "a sum of %d floats came out wrong", sizes[i]);
    if (t->insists)
        return explain(t, err, why);
    snprintf(how, DPT_CUDA_AWARE_TEXT, "no (%s reports yes, but %s)", t->library, why);
out:
    return status;
}

enum dpt_status dpt_comm_device_sums(const struct dpt_comm *comm, enum dpt_cuda_aware wanted,
                                     const struct dpt_device_memory *memory, int device,
                                     int64_t largest, bool *on_device,
                                     char how[DPT_CUDA_AWARE_TEXT], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct trial t = {.comm = comm,
                      .memory = memory,
                      .device = device,
                      .largest = largest,
                      .insists = wanted == DPT_CUDA_AWARE_ON};
    int64_t says[2]; /* the ranks whose MPI says yes, and those whose MPI says no */
    int claim;

    *on_device = false;
    if (comm->world.size == 1) {
        snprintf(how, DPT_CUDA_AWARE_TEXT, "not asked (one rank)");
        return DPT_OK;
    }
    if (wanted == DPT_CUDA_AWARE_OFF) {
        snprintf(how, DPT_CUDA_AWARE_TEXT, "no (comm.cuda_aware: off)");
        return DPT_OK;
    }
    dpt_probe_library(t.library, sizeof t.library);
    claim = dpt_probe_claims_cuda();
    says[0] = claim == 1;
    says[1] = claim == 0;
    DPT_TRY(dpt_group_sum_ints(&comm->world, says, says, 2, err));
    if (t.insists || says[0] == comm->world.size)
        return try_all(&t, on_device, how, err);
    snprintf(how, DPT_CUDA_AWARE_TEXT, "no (%s %s)", t.library,
             says[1] > 0 ? "reports that it cannot" : "does not report that it can");
out:
    return status;
}

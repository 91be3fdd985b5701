#include "core/comm/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/sort.h"
#include "core/base/str.h"
#include "core/comm/internal.h"
#include "core/comm/sums/hierarchical_allreduce.h"

#if (defined(OPEN_MPI) || defined(MVAPICH2_VERSION)) && defined(__has_include)
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

enum { MOST_PARTNERS = 64, MOST_SAMPLES = 101 };
/* The sizes of messages that measure latency and bandwidth, and how often each is sent. */
enum { SMALL = 8, LARGE = 4 << 20, SMALL_ROUNDS = 41, LARGE_ROUNDS = 5 };
enum { TAG = 71 };

void dpt_probe_library(char *text, size_t size)
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "", *at = all;
    int length = 0, major = 0, minor = 0, release = 0;

    MPI_Get_library_version(all, &length);
    /* "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\nMPICH Release date: ..." */
    if (sscanf(all, "Open MPI v%d.%d.%d", &major, &minor, &release) == 3)
        snprintf(text, size, "Open MPI %d.%d.%d", major, minor, release);
    else if (sscanf(all, "MPICH Version: %d.%d.%d", &major, &minor, &release) >= 2)
        snprintf(text, size, "MPICH %d.%d.%d", major, minor, release);
    else {
        at[strcspn(at, ",\n")] = '\0';
        snprintf(text, size, "%s", at);
    }
}

const char *dpt_probe_threads(void)
{
    int level = MPI_THREAD_SINGLE;

    MPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE     ? "multiple"
           : level == MPI_THREAD_SERIALIZED ? "serialized"
           : level == MPI_THREAD_FUNNELED   ? "funneled"
                                            : "single";
}

int dpt_probe_claims_cuda(void)
{
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    return MPIX_Query_cuda_support() != 0;
#elif defined(MPIX_GPU_SUPPORT_CUDA) /* MPICH from version 4 on, and libraries derived from it */
    int supported = 0;

    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) == MPI_SUCCESS ? supported != 0
                                                                                    : -1;
#else
    return -1;
#endif
}

/* --- clocks ----------------------------------------------------------------------------------- */

enum dpt_status dpt_clock_offset(const struct dpt_group *g, double (*clock)(void), double *offset,
                                 double *bound, struct dpt_error *err)
{
    enum { ROUNDS = 32 };
    enum dpt_status status = DPT_OK;
    double *all = NULL;

    *offset = 0;
    *bound = INFINITY;
    status = DPT_ALLOCATE(all, (size_t)g->size, "the clocks of all ranks", err);
    DPT_TRY(dpt_group_agree(g, status, err));
    for (int round = 0; round < ROUNDS; round++) {
        /* The others read their clocks between rank 0's two readings, whose mean is compared. */
        double times[2] = {clock()}, mine;

        DPT_TRY(dpt_group_broadcast(g, 0, times, sizeof times[0], err));
        mine = clock();
        DPT_TRY(dpt_group_allgather(g, &mine, all, sizeof mine, err));
        times[1] = clock();
        DPT_TRY(dpt_group_broadcast(g, 0, times, sizeof times, err));
        if ((times[1] - times[0]) / 2 < *bound) {
            *bound = (times[1] - times[0]) / 2;
            *offset = (times[0] + times[1]) / 2 - mine;
        }
    }
    if (g->rank == 0)
        *offset = *bound = 0;
out:
    dpt_free(all);
    return status;
}

/* --- links between nodes ---------------------------------------------------------------------- */

/* Sends a message to and fro several times. *seconds: half of the median round trip, on rank 0. */
static enum dpt_status bounce(const struct dpt_group *g, int other, char *bytes, int n, int rounds,
                              double *seconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const MPI_Comm comm = dpt_mpi_comm(g);
    double taken[SMALL_ROUNDS];

    for (int i = 0; i < rounds; i++) {
        const double start = dpt_now();

        if (g->rank == 0)
            DPT_TRY_MPI(MPI_Send, bytes, n, MPI_BYTE, other, TAG, comm);
        DPT_TRY_MPI(MPI_Recv, bytes, n, MPI_BYTE, g->rank == 0 ? other : 0, TAG, comm,
                    MPI_STATUS_IGNORE);
        if (g->rank != 0)
            DPT_TRY_MPI(MPI_Send, bytes, n, MPI_BYTE, 0, TAG, comm);
        taken[i] = (dpt_now() - start) / 2;
    }
    *seconds = dpt_median(taken, (size_t)rounds);
out:
    return status;
}

static enum dpt_status measure_link(const struct dpt_group *g, int other, char *bytes,
                                    struct dpt_probe_link *link, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double small, large;

    DPT_TRY(bounce(g, other, bytes, SMALL, SMALL_ROUNDS, &small, err));
    DPT_TRY(bounce(g, other, bytes, LARGE, LARGE_ROUNDS, &large, err));
    link->latency = small;
    link->bandwidth = LARGE / fmax(large - small, 1e-9);
out:
    return status;
}

/* Whether a node of n is among the MOST_PARTNERS whose links are measured. */
static bool is_measured(int node, int n)
{
    const int step = (n + MOST_PARTNERS - 1) / MOST_PARTNERS;

    return node > 0 && (node % step == 0 || node == n - 1);
}

enum dpt_status dpt_probe_links(const struct dpt_comm *comm, struct dpt_probe_link *links,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *g = &comm->leaders;
    char *bytes = NULL;
    int *ranks = NULL;

    if (comm->nodes <= 1) {
        links[0] = (struct dpt_probe_link){0};
        return DPT_OK;
    }
    if (g->rank >= 0) {
        bytes = dpt_alloc(LARGE);
        ranks = dpt_alloc_array((size_t)g->size, sizeof *ranks);
        if (bytes == NULL || ranks == NULL)
            status = dpt_fail_memory(err, "messages", LARGE);
    }
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    if (g->rank >= 0)
        status = dpt_group_allgather(g, &comm->world.rank, ranks, sizeof *ranks, err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    dpt_group_enter(&comm->world);
    for (int node = 0; node < g->size && g->rank == 0 && status == DPT_OK; node++) {
        links[node] = (struct dpt_probe_link){.rank = ranks[node]};
        if (is_measured(node, g->size))
            status = measure_link(g, node, bytes, &links[node], err);
    }
    if (g->rank > 0 && is_measured(g->rank, g->size)) {
        struct dpt_probe_link own = {0};

        status = measure_link(g, 0, bytes, &own, err);
    }
    dpt_group_leave(&comm->world);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
out:
    dpt_free(bytes);
    dpt_free(ranks);
    return status;
}

/* --- the sum of a step ------------------------------------------------------------------------ */

static enum dpt_status time_sum(const struct dpt_comm *comm, struct dpt_hierarchical_allreduce *sum,
                                size_t n, int together, double *seconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool filled = true;
    double start;

    memset(dpt_hierarchical_buffer(sum, 0), 0, n * sizeof(float));
    DPT_TRY(dpt_group_barrier(&comm->world, err));
    start = dpt_now();
    for (int i = 0; i < together; i++)
        DPT_TRY(dpt_hierarchical_sum(sum, &filled, NULL, err));
    *seconds = (dpt_now() - start) / together;
out:
    return status;
}

enum dpt_status dpt_probe_sum(const struct dpt_comm *comm, size_t n, bool hierarchical, bool spin,
                              double budget, double *seconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_hierarchical_spec spec = {
        .n = n, .buffers = 1, .hierarchical = hierarchical, .spin = spin};
    const int together = n < 4096 ? 20 : 1; /* several short ones are timed together */
    struct dpt_hierarchical_allreduce *sum = NULL;
    double taken[MOST_SAMPLES], one;
    int64_t rounds;

    DPT_TRY(dpt_hierarchical_open(&sum, comm, &spec, NULL, err));
    for (int i = 0; i < 2; i++) /* the first one warms up */
        DPT_TRY(time_sum(comm, sum, n, together, &one, err));
    rounds = (int64_t)fmin(fmax(budget / (one * together + 1e-9), 3), MOST_SAMPLES);
    DPT_TRY(dpt_group_broadcast(&comm->world, 0, &rounds, sizeof rounds, err));
    for (int64_t i = 0; i < rounds; i++)
        DPT_TRY(time_sum(comm, sum, n, together, &taken[i], err));
    *seconds = dpt_median(taken, (size_t)rounds);
    DPT_TRY(dpt_group_broadcast(&comm->world, 0, seconds, sizeof *seconds, err));
out:
    dpt_hierarchical_close(sum);
    return status;
}

double dpt_bus_bandwidth(int ranks, double bytes, double seconds)
{
    return 2.0 * (ranks - 1) / ranks * bytes / seconds;
}

/* --- memory ----------------------------------------------------------------------------------- */

enum dpt_status dpt_probe_shared(const struct dpt_comm *comm, struct dpt_probe_shared *works,
                                 struct dpt_error *err)
{
    bool *const ways[DPT_SHARED_WAYS] = {
        [DPT_SHARED_MEMFD] = &works->memfd, [DPT_SHARED_DEV_SHM] = &works->dev_shm};
    struct dpt_error ignored = {0};

    for (int way = 0; way < DPT_SHARED_WAYS; way++) {
        struct dpt_shared shared = {0};

        *ways[way] = dpt_shared_open_by(&shared, &comm->node, 1 << 20, (enum dpt_shared_way)way,
                                        &ignored) == DPT_OK;
        dpt_shared_close(&shared);
    }
    return dpt_group_barrier(&comm->world, err);
}

/* Takes the launcher out of the environment of a process whose parent is a rank but which is
 * none. */
static void unset_launcher(void)
{
    static const char *const prefixes[] = {
        "PMIX_",         "PMI_",   "OMPI_COMM_WORLD_", "OMPI_MCA_ess_", "OMPI_MCA_orte",
        "OMPI_MCA_pmix", "SLURM_", "MPI_LOCAL",        "HYDI_",         "HYDRA_"};
    char name[128];

    for (char **at = environ; *at != NULL;) {
        const size_t n = strcspn(*at, "=");

        if (dpt_begins_with(*at, prefixes, sizeof prefixes / sizeof prefixes[0]) &&
            n < sizeof name) {
            memcpy(name, *at, n);
            name[n] = '\0';
            unsetenv(name); /* the list moves up */
        } else {
            at++;
        }
    }
}

void dpt_probe_leave_launcher(void)
{
    unset_launcher();
    dpt_launcher_prepare_lone();
}

enum dpt_status dpt_probe_device_message(const void *from, void *to, int n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_MPI(MPI_Init, NULL, NULL);
    DPT_TRY_MPI(MPI_Sendrecv, from, n, MPI_BYTE, 0, TAG, to, n, MPI_BYTE, 0, TAG, MPI_COMM_SELF,
                MPI_STATUS_IGNORE);
out:
    return status;
}

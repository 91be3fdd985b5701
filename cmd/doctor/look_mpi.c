/* Checks of MPI itself: its library, who started the ranks, which cores they have. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/base/memory.h"
#include "core/comm/probe.h"

void dpt_doctor_start(struct dpt_doctor *d)
{
    if (d->alone)
        dpt_failed(d, "what needs several ranks was left out", "%s", d->why);
}

void dpt_doctor_library(struct dpt_doctor *d)
{
    const char *built = dpt_comm_version();
    char runs[128];

    if (d->alone) {
        dpt_ok(d, "built with %s", built);
        return;
    }
    dpt_probe_library(runs, sizeof runs);
    if (strcmp(runs, built) == 0)
        dpt_ok(d, "%s", runs);
    else
        dpt_warning(d, "build dptrain with the MPI that it runs with, or load its module",
                    "%s, but built with %s", runs, built);
}

/* --- who started it --------------------------------------------------------------------------- */

void dpt_doctor_launcher(struct dpt_doctor *d)
{
    const char *name = dpt_launcher_name(), *pmix = getenv("PMIX_RANK");

    if (d->alone)
        return;
    if (!dpt_launcher_present())
        dpt_ok(d, "none: one process by itself (--ranks N, mpirun)");
    else
        dpt_ok(d, "%s%s%s", name != NULL ? name : "unknown",
               name != NULL && strcmp(name, "srun") == 0 && pmix != NULL ? " --mpi=pmix" : "",
               getenv("DPTRAIN_LAUNCHED") != NULL ? ", started by --ranks" : "");
}

void dpt_doctor_threads(struct dpt_doctor *d)
{
    if (!d->alone)
        dpt_ok(d, "%s", dpt_probe_threads());
}

/* --- where the ranks are ---------------------------------------------------------------------- */

/* Of each rank, for rank 0 to look at. */
struct seat {
    cpu_set_t cores;
    int32_t leader; /* the world's number of its node's first rank */
    int32_t online; /* cores of its node */
    float quota;    /* cores that the node's control group may use */
};

/* What a control group may use, in cores; `otherwise` where it has no limit. */
static double cpu_quota(double otherwise)
{
    char line[128];
    double most, period;

    if (dpt_doctor_read_line("/sys/fs/cgroup/cpu.max", line, sizeof line))
        return sscanf(line, "%lf %lf", &most, &period) == 2 && period > 0 ? most / period
                                                                          : otherwise;
    most = dpt_doctor_read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1);
    period = dpt_doctor_read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 0);
    return most > 0 && period > 0 ? most / period : otherwise;
}

/* Collective. seats: [ranks], out on all ranks. */
static enum dpt_status gather_seats(struct dpt_doctor *d, struct seat **seats,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm.world;
    struct seat mine = {.leader = world->rank};

    *seats = dpt_alloc_array((size_t)world->size, sizeof **seats);
    if (*seats == NULL)
        status = dpt_fail_memory(err, "the list of cores", (double)world->size * sizeof mine);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0)
        CPU_SET(0, &mine.cores);
    mine.online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    mine.quota = (float)cpu_quota(mine.online);
    DPT_TRY(dpt_group_broadcast(&d->comm.node, 0, &mine.leader, sizeof mine.leader, err));
    DPT_TRY(dpt_group_gather(world, &mine, *seats, sizeof mine, err));
out:
    return status;
}

enum dpt_status dpt_doctor_ranks(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int ranks = d->comm.world.size, nodes = d->comm.nodes;
    double most, least;

    DPT_TRY(dpt_group_max(&d->comm.world, d->comm.node.size, &most, err));
    DPT_TRY(dpt_group_max(&d->comm.world, -d->comm.node.size, &least, err));
    if (nodes == 1)
        dpt_ok(d, "%d on %s", ranks, d->comm.host);
    else if (most + least > 0)
        dpt_warning(d, "the fullest node is waited for: deal them evenly",
                    "%d on %d nodes, %.0f to %.0f on each", ranks, nodes, -least, most);
    else
        dpt_ok(d, "%d on %d nodes, %.0f on each", ranks, nodes, most);
out:
    return status;
}

/* What the ranks of a node may use. */
struct bench {
    int ranks, online, all; /* all: cores that any rank may use */
    int least, most;        /* cores that a rank may use */
    int cramped;            /* a rank that has less than a core to itself; -1: none */
    double quota;
};

static struct bench look_at_node(const struct seat *seats, int ranks, int first)
{
    struct bench b = {.online = seats[first].online, .quota = seats[first].quota, .cramped = -1};
    int users[CPU_SETSIZE] = {0};

    for (int r = first; r < ranks; r++)
        if (seats[r].leader == first) {
            const int n = CPU_COUNT(&seats[r].cores);

            b.least = b.ranks == 0 || n < b.least ? n : b.least;
            b.most = n > b.most ? n : b.most;
            b.ranks++;
            for (int c = 0; c < CPU_SETSIZE; c++)
                users[c] += CPU_ISSET(c, &seats[r].cores) != 0;
        }
    for (int c = 0; c < CPU_SETSIZE; c++)
        b.all += users[c] > 0;
    for (int r = ranks - 1; r >= first; r--)
        if (seats[r].leader == first) {
            double share = 0;

            for (int c = 0; c < CPU_SETSIZE; c++)
                share += CPU_ISSET(c, &seats[r].cores) ? 1.0 / users[c] : 0;
            b.cramped = share < 0.999 ? r : b.cramped;
        }
    return b;
}

/* Open MPI's way for ranks that wait to leave their core to others. */
static bool yields(void)
{
    const char *text = getenv("OMPI_MCA_mpi_yield_when_idle");

    return strstr(dpt_comm_version(), "Open MPI") == NULL || (text != NULL && atoi(text) != 0);
}

/* A warning about a node, the worst there is; false: it is well. */
static bool warn_of_node(struct dpt_doctor *d, const struct bench *b, const char *host)
{
    if (b->ranks > b->all) {
        d->crowded = true;
        dpt_warning(d,
                    yields()
                        ? "they take turns: no faster than one rank a core; start fewer"
                        : "start fewer, or set OMPI_MCA_mpi_yield_when_idle=1: waiting is busy",
                    "%d ranks on %d core%s of %s", b->ranks, b->all, b->all == 1 ? "" : "s", host);
    } else if (b->cramped >= 0) {
        d->crowded = true;
        dpt_warning(d, "mpirun --report-bindings shows who is where",
                    "rank %d (%s) shares its core with others, and %d are there", b->cramped, host,
                    b->online);
    } else if (b->quota < 0.999 * b->ranks) {
        d->crowded = true;
        dpt_warning(d, "the container is throttled: give it more, or start fewer ranks",
                    "%d ranks may use %.1f cores of %s (cgroup cpu.max)", b->ranks, b->quota, host);
    } else if (b->all < b->online && b->online >= 2 * b->all) {
        dpt_warning(d, "mpirun --bind-to none, srun --cpus-per-task=N, or more ranks",
                    "%d rank%s on %d of the %d cores of %s", b->ranks, b->ranks == 1 ? "" : "s",
                    b->all, b->online, host);
    } else {
        return false;
    }
    return true;
}

static void judge_seats(struct dpt_doctor *d, const struct seat *seats)
{
    const int ranks = d->comm.world.size;
    struct bench first = look_at_node(seats, ranks, 0);
    int least = first.least, most = first.most;

    for (int r = 0; r < ranks; r++) {
        struct bench b;

        if (seats[r].leader != r)
            continue;
        b = look_at_node(seats, ranks, r);
        if (warn_of_node(d, &b, dpt_comm_host(&d->comm, r)))
            return;
        least = b.least < least ? b.least : least;
        most = b.most > most ? b.most : most;
    }
    if (least != most)
        dpt_ok(d, "%d to %d for each rank", least, most);
    else if (first.ranks > 1 && first.least == first.all)
        dpt_ok(d, "%d, which %d ranks share, not bound", least, first.ranks);
    else
        dpt_ok(d, "%d of %d for each rank", least, first.online);
}

enum dpt_status dpt_doctor_cores(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct seat *seats = NULL;

    DPT_TRY(gather_seats(d, &seats, err));
    judge_seats(d, seats); /* all ranks judge alike, and so know whether it is crowded */
out:
    dpt_free(seats);
    return status;
}

/* --- shared memory ---------------------------------------------------------------------------- */

enum dpt_status dpt_doctor_shared(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int ranks = d->comm.world.size;
    struct dpt_probe_shared mine = {0}, *all = dpt_alloc_array((size_t)ranks, sizeof *all);

    if (all == NULL)
        status = dpt_fail_memory(err, "a list of ranks", ranks);
    DPT_TRY(dpt_group_agree(&d->comm.world, status, err));
    DPT_TRY(dpt_probe_shared(&d->comm, &mine, err));
    DPT_TRY(dpt_group_gather(&d->comm.world, &mine, all, sizeof mine, err));
    for (int r = 0; r < ranks; r++)
        if (!all[r].memfd && !all[r].dev_shm) {
            dpt_failed(d, "a node's ranks share memory: free /dev/shm (docker --shm-size=1g)",
                       "neither memfd nor /dev/shm works on %s", dpt_comm_host(&d->comm, r));
            goto out;
        }
    for (int r = 0; r < ranks; r++)
        if (!all[r].memfd) {
            dpt_warning(d, "its size bounds the model; ranks in one container need it not",
                        "only through /dev/shm on %s: no memfd", dpt_comm_host(&d->comm, r));
            goto out;
        }
    dpt_ok(d, "memfd%s", mine.dev_shm ? ", /dev/shm" : "");
out:
    dpt_free(all);
    return status;
}

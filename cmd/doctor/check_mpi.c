/* Checks of MPI itself: its library, who started the ranks, which cores they have. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/base/file.h"
#include "core/base/process.h"
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

/* The cores that a rank and its node may use. */
struct seat {
    int32_t first;  /* the world's number of its node's first rank */
    int32_t ranks;  /* of its node */
    int32_t online; /* cores of its node */
    int32_t all;    /* of these any rank of the node may use */
    int32_t own;    /* and this rank may */
    float share;    /* of these are its own where ranks share cores */
    float quota;    /* cores that the node's control group may use */
};

/* What a control group may use, in cores; `otherwise` where it has no limit. */
static double cpu_quota(double otherwise)
{
    char line[128];
    double most, period;

    if (dpt_file_line("/sys/fs/cgroup/cpu.max", line, sizeof line))
        return sscanf(line, "%lf %lf", &most, &period) == 2 && period > 0 ? most / period
                                                                          : otherwise;
    most = dpt_file_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1);
    period = dpt_file_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 0);
    return most > 0 && period > 0 ? most / period : otherwise;
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

/* Whether ranks that wait leave their core to others; Open MPI has to be told. */
static bool yields(void)
{
    const char *text = getenv("OMPI_MCA_mpi_yield_when_idle");

    return !dpt_doctor_open_mpi() || (text != NULL && atoi(text) != 0);
}

/* Warns of the worst fault of the node whose first rank is `first`; false: it has none. */
static bool warn_of_node(struct dpt_doctor *d, const struct seat *seats, int first)
{
    const struct seat *s = &seats[first];
    const char *host = dpt_comm_host(&d->comm, first);
    int cramped = first;

    while (cramped < d->comm.world.size &&
           (seats[cramped].first != first || seats[cramped].share >= 0.999F))
        cramped++;
    d->crowded =
        s->ranks > s->all || cramped < d->comm.world.size || s->quota < 0.999F * (float)s->ranks;
    if (s->ranks > s->all)
        dpt_warning(d,
                    yields()
                        ? "they take turns: no faster than one rank per core; start fewer"
                        : "start fewer, or set OMPI_MCA_mpi_yield_when_idle=1: waiting is busy",
                    "%d ranks on %d core%s of %s", s->ranks, s->all, s->all == 1 ? "" : "s", host);
    else if (cramped < d->comm.world.size)
        dpt_warning(d,
                    dpt_doctor_open_mpi() ? "mpirun --report-bindings shows who is where"
                                          : "HYDRA_TOPO_DEBUG=1 mpiexec shows who is where",
                    "rank %d (%s) shares its core with others, and %d are there", cramped, host,
                    s->online);
    else if (d->crowded)
        dpt_warning(d, "the container is throttled: give it more, or start fewer ranks",
                    "%d ranks may use %.1f cores of %s (cgroup cpu.max)", s->ranks, s->quota, host);
    else if (s->online >= 2 * s->all)
        dpt_warning(d, "mpirun --bind-to none, srun --cpus-per-task=N, or more ranks",
                    "%d rank%s on %d of the %d cores of %s", s->ranks, s->ranks == 1 ? "" : "s",
                    s->all, s->online, host);
    else
        return false;
    return true;
}

/* All ranks see the same cores, so all know whether ranks share them. */
static void judge_seats(struct dpt_doctor *d, const struct seat *seats)
{
    int least = seats[0].own, most = least;

    for (int r = 0; r < d->comm.world.size; r++) {
        if (seats[r].first == r && warn_of_node(d, seats, r))
            return;
        least = seats[r].own < least ? seats[r].own : least;
        most = seats[r].own > most ? seats[r].own : most;
    }
    if (least != most)
        dpt_ok(d, "%d to %d for each rank", least, most);
    else if (seats[0].ranks > 1 && least == seats[0].all)
        dpt_ok(d, "%d, which %d ranks share, not bound", least, seats[0].ranks);
    else
        dpt_ok(d, "%d of %d for each rank", least, seats[0].online);
}

enum dpt_status dpt_doctor_cores(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    struct seat mine = {.first = d->comm.world.rank,
                        .ranks = d->comm.node.size,
                        .online = online,
                        .all = (int32_t)(d->node_cores + 0.5),
                        .own = dpt_process_cores(),
                        .share = (float)d->cores,
                        .quota = (float)cpu_quota(online)};
    const struct seat *seats;

    DPT_TRY(dpt_group_broadcast(&d->comm.node, 0, &mine.first, sizeof mine.first, err));
    DPT_DOCTOR_GATHER(seats, d, &mine, sizeof mine, err);
    judge_seats(d, seats);
out:
    return status;
}

/* --- shared memory ---------------------------------------------------------------------------- */

enum dpt_status dpt_doctor_shared(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int ranks = d->comm.world.size;
    struct dpt_probe_shared mine = {0};
    const struct dpt_probe_shared *all;
    int none = -1, only = -1; /* ranks that have none, or only /dev/shm */

    DPT_TRY(dpt_probe_shared(&d->comm, &mine, err));
    DPT_DOCTOR_GATHER(all, d, &mine, sizeof mine, err);
    for (int r = ranks - 1; r >= 0; r--) {
        none = !all[r].memfd && !all[r].dev_shm ? r : none;
        only = !all[r].memfd ? r : only;
    }
    if (none >= 0)
        dpt_failed(d, "a node's ranks share memory: free /dev/shm (docker --shm-size=1g)",
                   "neither memfd nor /dev/shm works on %s", dpt_comm_host(&d->comm, none));
    else if (only >= 0)
        dpt_warning(d, "its size bounds the model; ranks in one container need it not",
                    "only through /dev/shm on %s: no memfd", dpt_comm_host(&d->comm, only));
    else
        dpt_ok(d, "memfd%s", mine.dev_shm ? ", /dev/shm" : "");
out:
    return status;
}

/* Checks that measure: the ranks' cores, the sums that a step waits for, the network, the clocks.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "cmd/doctor/doctor.h"
#include "core/base/sort.h"
#include "core/comm/probe.h"
#include "core/plan/cost.h"

enum { SMALL = 32, LARGE = 1 << 20 }; /* floats of a sum */

/* Limits of warnings, in fractions, seconds and bytes per second. */
static const double slow_rank = 0.5;     /* of the middle rank's speed */
static const double slow_sum = 0.15;     /* of what memory and network would allow */
static const double slow_small = 30e-6;  /* a small sum on one node; 1 to 5 us are usual */
static const double slow_link = 100e-6;  /* a message; 2 us on InfiniBand, 15 to 40 on Ethernet */
static const double narrow_link = 0.5e9; /* half of 10 Gbit/s Ethernet */
static const double odd_clock = 0.1, wrong_clock = 60;

static const double budget = 0.15; /* seconds for a sum's measurement */

/* --- the ranks' cores ------------------------------------------------------------------------- */

/* Collective. Measures once what a thread of each rank can do while all are busy. */
static enum dpt_status measure(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_comm alone = d->comm;
    struct dpt_worker worker = {0};
    /* A world of its own on the real node: it measures itself, but knows who shares its memory. */
    struct dpt_trainer t = {.comm = &alone,
                            .backend = dpt_backends[0],
                            .layout = {.threads = 1, .all_threads = 1},
                            .team = {.workers = &worker}};

    if (d->machine.flops > 0)
        return DPT_OK;
    alone.world = (struct dpt_group){.size = 1};
    status = dpt_pool_open(&t.team.pool, 1, false, err);
    DPT_TRY(dpt_group_agree(&d->comm.world, status, err)); /* also: all begin at once */
    status = dpt_machine_measure(&t, &d->machine, err);
    DPT_TRY(dpt_group_agree(&d->comm.world, status, err));
out:
    dpt_pool_close(t.team.pool);
    return status;
}

/* Warns of ranks whose value lies too far below the median; false: there are none. */
static bool warn_of_slow(struct dpt_doctor *d, const double *values, const char *what,
                         double *middle)
{
    const int n = d->comm.world.size;
    int slow[n], found = 0;
    double sorted[n];
    char who[200];

    memcpy(sorted, values, sizeof sorted);
    *middle = dpt_median(sorted, (size_t)n);
    for (int i = 0; i < n; i++)
        if (values[i] < slow_rank * *middle)
            slow[found++] = i;
    if (found > 0)
        dpt_warning(d, "each step waits for it: check for an old, throttled or busy host",
                    "%s %s at %.0f %% of the others' speed",
                    dpt_doctor_who(d, slow, found, who, sizeof who), what,
                    100 * values[slow[0]] / *middle);
    return found > 0;
}

enum dpt_status dpt_doctor_speed(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double *flops, *rates;
    double usual, usual_rate;
    char bf16[64] = "";

    DPT_TRY(measure(d, err));
    if (d->machine.bf16 > 0)
        snprintf(bf16, sizeof bf16, " (%.3g in bf16, by %s)", d->machine.bf16 / 1e9,
                 dpt_backends[0]->bf16());
    DPT_DOCTOR_GATHER(flops, d, &d->machine.flops, sizeof *flops, err);
    DPT_DOCTOR_GATHER(rates, d, &d->machine.memory[DPT_MACHINE_SIZES - 1].rate, sizeof *rates, err);
    if (!warn_of_slow(d, flops, "computes", &usual) &&
        !warn_of_slow(d, rates, "moves memory", &usual_rate))
        dpt_ok(d, "%.3g GFLOP/s%s and %.3g GB/s per rank, all at once", usual / 1e9, bf16,
               usual_rate / 1e9);
out:
    return status;
}

/* --- the network ------------------------------------------------------------------------------ */

static void judge_links(struct dpt_doctor *d, const struct dpt_probe_link *links)
{
    int late = -1, narrow = -1;
    char bytes[32], time[32];

    for (int i = 1; i < d->comm.nodes; i++) {
        if (links[i].latency <= 0)
            continue;
        late = late < 0 || links[i].latency > links[late].latency ? i : late;
        narrow = narrow < 0 || links[i].bandwidth < links[narrow].bandwidth ? i : narrow;
    }
    if (narrow < 0)
        return;
    d->fabric.latency = links[late].latency;
    d->fabric.bandwidth = links[narrow].bandwidth;
    dpt_show_seconds(links[late].latency, time);
    dpt_show_bytes(links[narrow].bandwidth, bytes);
    if (links[narrow].bandwidth < narrow_link)
        dpt_warning(d, "10 Gbit/s give 1.1 GB/s: set OMPI_MCA_btl_tcp_if_include to the fast one",
                    "%s/s to %s", bytes, dpt_comm_host(&d->comm, links[narrow].rank));
    else if (links[late].latency > slow_link)
        dpt_warning(d, "InfiniBand takes 2 us, Ethernet 15 to 40: check for the fast network",
                    "%s for a message to %s", time, dpt_comm_host(&d->comm, links[late].rank));
    else
        dpt_ok(d, "%s and %s/s at worst, from %s to %d other%s", time, bytes, d->comm.host,
               d->comm.nodes - 1, d->comm.nodes == 2 ? "" : "s");
}

enum dpt_status dpt_doctor_links(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm.world;
    struct dpt_probe_link *links;

    if (d->comm.nodes == 1)
        return DPT_OK;
    links = dpt_region_alloc(&d->region, (size_t)d->comm.nodes * sizeof *links);
    if (links == NULL)
        status = dpt_fail_memory(err, "the list of nodes", 0);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_probe_links(&d->comm, links, err));
    if (world->rank == 0)
        judge_links(d, links);
    DPT_TRY(dpt_group_broadcast(world, 0, &d->fabric, sizeof d->fabric, err));
out:
    return status;
}

/* --- sums ------------------------------------------------------------------------------------- */

enum dpt_status dpt_doctor_latency(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double rounds = ceil(log2(d->comm.nodes));
    const double usual = slow_small + 6 * rounds * d->fabric.latency;
    double seconds;
    char time[32];

    if (d->comm.world.size == 1) {
        dpt_ok(d, "one rank waits for nobody (--ranks N measures it)");
        return DPT_OK;
    }
    DPT_TRY(dpt_probe_sum(&d->comm, SMALL, true, !d->crowded, budget, &seconds, err));
    dpt_show_seconds(seconds, time);
    if (seconds > usual && !d->crowded)
        dpt_warning(d, "1 to 5 us are usual on a node: look for other processes on the cores",
                    "%s for %d floats", time, SMALL);
    else
        dpt_ok(d, "%s for %d floats%s", time, SMALL,
               d->crowded ? ", by ranks that share cores" : "");
out:
    return status;
}

/* Seconds of a sum where memory and network are all that bounds it, as `dptrain plan` computes
 * it. */
static double ideal_sum(const struct dpt_doctor *d)
{
    const double ranks = d->comm.node.size, bytes = 4.0 * LARGE;
    const double busy = fmin(ranks, fmax(1, d->cores * ranks));
    const double rate = dpt_machine_bandwidth(&d->machine, (ranks + 1) * bytes / busy);
    const double local = ranks > 1 ? 2 * ranks * bytes / rate / busy : 0;

    if (d->fabric.bandwidth <= 0)
        return local;
    return local + dpt_fabric_allreduce(&d->fabric, LARGE, d->comm.nodes, 12 / rate);
}

enum dpt_status dpt_doctor_sum(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double seconds, ideal, part;
    char time[32];

    if (d->comm.world.size == 1)
        return DPT_OK;
    DPT_TRY(measure(d, err));
    DPT_TRY(dpt_group_max(&d->comm.world, ideal_sum(d), &ideal, err));
    DPT_TRY(dpt_probe_sum(&d->comm, LARGE, true, !d->crowded, budget, &seconds, err));
    part = ideal / seconds;
    dpt_show_seconds(seconds, time);
    if (part < slow_sum && !d->crowded)
        dpt_warning(
            d,
            d->comm.nodes > 1 ? "check that MPI takes the fast network (OMPI_MCA_btl, OMPI_MCA_pml)"
                              : "40 to 80 % are usual: look for other processes on this node",
            "%s for 4.2 MB: %.0f %% of what %s allow%s", time, 100 * part,
            d->comm.nodes > 1 ? "memory and network" : "the memory", d->comm.nodes > 1 ? "" : "s");
    else
        dpt_ok(d, "%s for 4.2 MB: %.0f %% of %s", time, 100 * part,
               d->comm.nodes > 1 ? "the network's speed" : "the memory's speed");
out:
    return status;
}

/* --- clocks ----------------------------------------------------------------------------------- */

static double wall_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds that a rank's clock is off rank 0's, and how exact that is. */
struct clock {
    double offset, bound;
};

enum dpt_status dpt_doctor_clocks(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int n = d->comm.world.size;
    struct clock mine;
    const struct clock *all;
    int worst = 0;
    char who[128], time[32];
    double off;

    if (n == 1)
        return DPT_OK;
    DPT_TRY(dpt_clock_offset(&d->comm.world, wall_clock, &mine.offset, &mine.bound, err));
    DPT_DOCTOR_GATHER(all, d, &mine, sizeof mine, err);
    for (int r = 1; r < n; r++)
        if (fabs(all[r].offset) > fabs(all[worst].offset))
            worst = r;
    off = fabs(all[worst].offset);
    dpt_show_seconds(fmax(1e-6, fmax(off, all[worst].bound)), time);
    if (off - all[worst].bound > odd_clock)
        dpt_doctor_say(d, off > wrong_clock ? DPT_DOCTOR_FAILED : DPT_DOCTOR_WARNING,
                       "start a time service there (chrony, ntpd): Slurm and files need it",
                       "%s is %s %s rank 0", dpt_doctor_who(d, &worst, 1, who, sizeof who), time,
                       all[worst].offset < 0 ? "ahead of" : "behind");
    else
        dpt_ok(d, "within %s of rank 0's", time);
out:
    return status;
}

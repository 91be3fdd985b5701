/*
 * probe: which MPI this is, and the latency and bandwidth between the ranks, for `dptrain doctor`.
 *
 * The watchdog watches these functions like any other collective: a rank or a node that does not
 * answer ends the job with a line that names it.
 */
#ifndef DPT_COMM_PROBE_H
#define DPT_COMM_PROBE_H

#include "core/comm/comm.h"

/* The name of the library that runs, which may be another than the one that this program was built
 * with (dpt_comm_version): "Open MPI 4.1.4". After dpt_comm_open. */
void dpt_probe_library(char *text, size_t size);
/* "multiple": which threads may call MPI. After dpt_comm_open. */
const char *dpt_probe_threads(void);
/* Whether MPI says that it takes device memory: 1, 0, or -1 where it has no way to say so. */
int dpt_probe_claims_cuda(void);

/*
 * Collective. *offset: what to add to this rank's clock to get rank 0's; *bound: how far off that
 * may be. All ranks read their clocks between two readings of rank 0's; the fastest of several
 * rounds counts (Cristian, "Probabilistic clock synchronization", 1989). Both are 0 on rank 0.
 * Errors: RANK.
 */
enum dpt_status dpt_clock_offset(const struct dpt_group *g, double (*clock)(void), double *offset,
                                 double *bound, struct dpt_error *err);

/*
 * Collective over the world. Measures messages between the first node's first rank and that of each
 * other node. links: out on rank 0, one for each node, in the order of their first ranks; at most
 * 64 nodes are measured, evenly spread. Errors: RANK.
 */
struct dpt_probe_link {
    double latency;   /* seconds, one way; 0: not measured */
    double bandwidth; /* bytes per second */
    int rank;         /* the other node's first rank, in the world */
};
enum dpt_status dpt_probe_links(const struct dpt_comm *comm, struct dpt_probe_link *links,
                                struct dpt_error *err);

/*
 * Collective over the world. Measures a sum of n floats over all ranks, as training computes it
 * (hierarchical_allreduce.h). *seconds: the median of as many sums as fit into `budget` seconds.
 * spin: every rank has a core. Errors: RANK.
 */
enum dpt_status dpt_probe_sum(const struct dpt_comm *comm, size_t n, bool hierarchical, bool spin,
                              double budget, double *seconds, struct dpt_error *err);

/*
 * Bytes per second of a sum, as nccl-tests counts them for an allreduce (doc/PERFORMANCE.md there:
 * "bus bandwidth"). Whatever the algorithm, (n-1)/n of the bytes have to leave each of n ranks to
 * be summed elsewhere, and (n-1)/n of the sums have to come back. So each rank's link carries
 * 2 (n-1)/n of the bytes each way, and the figure can be held against the speed of the link,
 * whatever n is.
 */
double dpt_bus_bandwidth(int ranks, double bytes, double seconds);

/* Collective over the world. Finds which ways of sharing memory work on this rank's node. Errors:
 * RANK. */
struct dpt_probe_shared {
    bool memfd;   /* memfd_create: limited only by the memory */
    bool dev_shm; /* /dev/shm */
};
enum dpt_status dpt_probe_shared(const struct dpt_comm *comm, struct dpt_probe_shared *works,
                                 struct dpt_error *err);

/*
 * Starts MPI as a lone process and sends n bytes from one address to another, both on a device. It
 * is called in a child process, since MPI may crash. dpt_probe_leave_launcher removes the
 * launcher's variables from the environment; it has to be called before that and before the
 * device's driver starts threads, which may read the environment. Errors: RANK.
 */
void dpt_probe_leave_launcher(void);
enum dpt_status dpt_probe_device_message(const void *from, void *to, int n, struct dpt_error *err);

#endif

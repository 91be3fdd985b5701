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
 * Collective. What to add to this rank's clock to get rank 0's, and how far off that may be, by letting all ranks tell the time
 * between two readings of rank 0's clock (Cristian, "Probabilistic clock synchronization", 1989): the quickest of some rounds
 * tells most. Both are 0 on rank 0. Errors: RANK.
 */
enum dpt_status dpt_clock_offset(const struct dpt_group *g, double (*clock)(void), double *offset,
                                 double *bound, struct dpt_error *err);

/*
 * Collective over the world. Messages between the first node's first rank and that of each other
 * node. links: out on rank 0, one a node, in the order of their first ranks; at most 64 nodes are
 * asked, evenly spread. Errors: RANK.
 */
struct dpt_probe_link {
    double latency;   /* seconds, one way; 0: not asked */
    double bandwidth; /* bytes a second */
    int rank;         /* the world's number of the other one */
};
enum dpt_status dpt_probe_links(const struct dpt_comm *comm, struct dpt_probe_link *links,
                                struct dpt_error *err);

/*
 * Collective over the world. Seconds of a sum of n floats over all ranks, as training does it
 * (hierarchical_allreduce.h), the middle one of as many as fit into `budget` seconds. spin: a core
 * for every rank. Errors: RANK.
 */
enum dpt_status dpt_probe_sum(const struct dpt_comm *comm, size_t n, bool hierarchical, bool spin,
                              double budget, double *seconds, struct dpt_error *err);

/* Collective over the world. Which ways of sharing memory work among the ranks of this rank's node.
 * Errors: RANK. */
struct dpt_probe_shared {
    bool memfd;   /* memory without a name: has no limit of its own */
    bool dev_shm; /* /dev/shm */
};
enum dpt_status dpt_probe_shared(const struct dpt_comm *comm, struct dpt_probe_shared *works,
                                 struct dpt_error *err);

/*
 * For a process of its own, which may end by it: starts MPI as a lone process and sends n bytes
 * from one address to another, both on a device. dpt_probe_leave_launcher goes before, and before
 * the device's driver: it takes the launcher out of the environment, which must not change beside
 * the driver's threads. Errors: RANK.
 */
void dpt_probe_leave_launcher(void);
enum dpt_status dpt_probe_device_message(const void *from, void *to, int n, struct dpt_error *err);

#endif

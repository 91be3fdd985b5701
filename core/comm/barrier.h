/*
 * barrier: a barrier for the ranks of a node, in memory that they share.
 *
 * An MPI_Barrier between two ranks of a node costs about a microsecond, of which a small model's
 * step has few. Here a rank that arrives increments a counter in a cache line of its own and reads
 * the other ranks' counters until they are as high: one cache line moves each way. A rank that
 * waits longer sleeps in the kernel and is woken by the last rank to arrive, so that ranks which
 * share a core do not keep it from a rank that must still arrive. The watchdog counts a barrier as
 * any other collective (watch.h). One thread of each rank takes part. Private to core/comm.
 */
#ifndef DPT_COMM_BARRIER_H
#define DPT_COMM_BARRIER_H

#include "core/comm/comm.h"

struct dpt_node_barrier {
    const struct dpt_group *node;       /* borrowed; several ranks */
    struct dpt_node_barrier_page *page; /* borrowed, shared */
    uint32_t count;                     /* barriers that this rank has entered */
    bool spin;
};

/* Bytes of shared memory that the barrier of so many ranks needs, in whole cache lines. */
size_t dpt_node_barrier_bytes(int ranks);

/* memory: dpt_node_barrier_bytes zeroed bytes, aligned to a cache line, the same memory on all
 * ranks of the node. spin: every rank has a core of its own, so that waiting may spin at first.
 * There is nothing to close. */
void dpt_node_barrier_open(struct dpt_node_barrier *barrier, const struct dpt_group *node,
                           void *memory, bool spin);

/* Collective over the node. After it all ranks see what any of them wrote before it. */
void dpt_node_barrier_wait(struct dpt_node_barrier *barrier);

#endif

/*
 * gate: where the ranks of a node wait for each other, in memory that they share.
 *
 * An MPI_Barrier between two ranks of a node costs about a microsecond, of which a small model's
 * step has few. Here a rank that arrives writes its count of passages to a cache line of its own
 * and reads the others' until they are as high: one line moved each way. Who waits longer sleeps in
 * the kernel and is woken by the last one, so that ranks which share a core do not keep it from who
 * must still arrive. The watchdog sees a passage as any other collective (watch.h). One thread a
 * rank. Private to core/comm.
 */
#ifndef DPT_COMM_GATE_H
#define DPT_COMM_GATE_H

#include "core/comm/comm.h"

struct dpt_gate {
    const struct dpt_group *node; /* borrowed; several ranks */
    struct dpt_gate_page *page;   /* borrowed, shared */
    uint32_t count;               /* passages of this rank */
    bool spin;
};

/* Bytes of shared memory that the gate of so many ranks wants, whole cache lines. */
size_t dpt_gate_bytes(int ranks);

/* memory: dpt_gate_bytes bytes on a cache line, the same on all ranks of the node, zeroed. spin: a
 * core for every rank, so that waiting may be active at first. No need to close. */
void dpt_gate_open(struct dpt_gate *gate, const struct dpt_group *node, void *memory, bool spin);

/* Collective over the node. What a rank wrote before is seen by all after. */
void dpt_gate_pass(struct dpt_gate *gate);

#endif

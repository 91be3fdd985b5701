#include "core/comm/gate.h"

#include <sched.h>

#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/comm/mpi_call.h"

/* Two lines, which the processor fetches together. */
enum { APART = 128 };

struct flag {
    _Alignas(APART) _Atomic uint32_t count; /* passages that this rank has arrived at */
};

struct dpt_gate_page {
    _Alignas(APART) _Atomic uint32_t sleepers; /* ranks that sleep, or are about to */
    _Atomic uint32_t pulse;                    /* what they sleep on */
    struct flag flags[];
};

/*
 * Seconds. For how long to look without a pause where every rank has a core: not long, since the
 * system may have put two ranks on one all the same. And for how long to go on while the core is
 * offered to others between looks, before sleeping: with a core for every rank, or without.
 */
static const double GAZE = 1e-6, OFFER = 10e-3, SHORT_OFFER = 0.5e-3;
/* Looks at the flags between two looks at the clock. */
enum { LOOKS = 8 };
/* Nanoseconds of sleep. MPI may have kept a message of ours that is still to be sent, and moves it
 * only when it is called. */
enum { NAP = 5000000 };

size_t dpt_gate_bytes(int ranks)
{
    return sizeof(struct dpt_gate_page) + (size_t)ranks * sizeof(struct flag);
}

void dpt_gate_open(struct dpt_gate *gate, const struct dpt_group *node, void *memory, bool spin)
{
    *gate = (struct dpt_gate){.node = node, .page = memory, .spin = spin};
}

/* *from: the first rank that has not been seen to have arrived. */
static bool all_here(const struct dpt_gate *gate, int *from)
{
    while (*from < gate->node->size) {
        /* The counts go round: only their difference tells. */
        if ((int32_t)(atomic_load(&gate->page->flags[*from].count) - gate->count) < 0)
            return false;
        (*from)++;
    }
    return true;
}

/* Looks, then offers the core to others between looks. */
static bool wait_awake(const struct dpt_gate *gate, int *from)
{
    const double gaze = gate->spin ? GAZE : 0, offer = gate->spin ? OFFER : SHORT_OFFER;
    double start = 0, passed = 0;

    for (int look = 1;; look++) {
        if (all_here(gate, from))
            return true;
        if (passed > gaze)
            sched_yield();
        else
            dpt_relax();
        if (passed <= gaze && look % LOOKS != 0)
            continue;
        if (start <= 0)
            start = dpt_now();
        passed = dpt_now() - start;
        if (passed > offer)
            return false;
    }
}

/*
 * `sleepers` is raised before the flags are looked at for the last time, and whoever sets a flag
 * looks at `sleepers` after it (all sequentially consistent): one of the two sees the other, so the
 * last one to arrive wakes all who sleep.
 */
static void wait_asleep(const struct dpt_gate *gate, int *from)
{
    static const struct timespec nap = {0, NAP};
    struct dpt_gate_page *page = gate->page;
    int there;

    atomic_fetch_add(&page->sleepers, 1);
    for (;;) {
        const uint32_t pulse = atomic_load(&page->pulse);

        if (all_here(gate, from))
            break;
        dpt_futex_wait(&page->pulse, pulse, DPT_FUTEX_SHARED, &nap);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, dpt_mpi_comm(gate->node), &there,
                   MPI_STATUS_IGNORE);
    }
    atomic_fetch_sub(&page->sleepers, 1);
}

void dpt_gate_pass(struct dpt_gate *gate)
{
    struct dpt_gate_page *page = gate->page;
    int from = 0;

    dpt_group_enter(gate->node);
    gate->count++;
    atomic_store(&page->flags[gate->node->rank].count, gate->count);
    if (all_here(gate, &from)) {
        if (atomic_load(&page->sleepers) != 0) {
            atomic_fetch_add(&page->pulse, 1);
            dpt_futex_wake(&page->pulse, DPT_FUTEX_SHARED);
        }
    } else if (!wait_awake(gate, &from)) {
        wait_asleep(gate, &from);
    }
    dpt_group_leave(gate->node);
}

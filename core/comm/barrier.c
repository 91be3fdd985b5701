
#include <sched.h>

#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/comm/internal.h"

/* Two cache lines: CPUs prefetch lines in pairs, so a shared pair would slow both ranks. */
enum { APART = 128 };

struct flag {
    _Alignas(APART) _Atomic uint32_t count; /* barriers that this rank has entered */
};

struct dpt_node_barrier_page {
    _Alignas(APART) _Atomic uint32_t sleepers; /* ranks that sleep or are about to */
    _Atomic uint32_t wakeups;                  /* the futex that they sleep on */
    struct flag flags[];
};

/*
 * Seconds that a rank spins without a pause where every rank has a core (short, since the system
 * may still have put two ranks on one core), and seconds that it continues polling with a
 * sched_yield between polls before it sleeps, with a core for every rank or without.
 */
static const double SPIN_SECONDS = 1e-6, YIELD_SECONDS = 10e-3, SHORT_YIELD_SECONDS = 0.5e-3;
/* Polls of the counters between two readings of the clock. */
enum { POLLS = 8 };
/* Nanoseconds of one sleep. It is bounded since MPI may still have to send a message of this rank
 * and makes progress only when it is called. */
enum { NAP_NANOSECONDS = 5000000 };

size_t dpt_node_barrier_bytes(int ranks)
{
    return sizeof(struct dpt_node_barrier_page) + (size_t)ranks * sizeof(struct flag);
}

void dpt_node_barrier_open(struct dpt_node_barrier *barrier, const struct dpt_group *node,
                           void *memory, bool spin)
{
    *barrier = (struct dpt_node_barrier){.node = node, .page = memory, .spin = spin};
}

/* Whether all ranks have arrived. *from: in and out, the first rank that has not been seen to have
 * arrived. */
static bool all_arrived(const struct dpt_node_barrier *barrier, int *from)
{
    while (*from < barrier->node->size) {
        /* The counters wrap around, so only their difference counts. */
        if ((int32_t)(atomic_load(&barrier->page->flags[*from].count) - barrier->count) < 0)
            return false;
        (*from)++;
    }
    return true;
}

/* Spins, then polls with a sched_yield between polls. Returns false when the time for that is
 * over. */
static bool wait_spinning(const struct dpt_node_barrier *barrier, int *from)
{
    const double spin_for = barrier->spin ? SPIN_SECONDS : 0,
                 yield_for = barrier->spin ? YIELD_SECONDS : SHORT_YIELD_SECONDS;
    double start = 0, passed = 0;

    for (int poll = 1;; poll++) {
        if (all_arrived(barrier, from))
            return true;
        if (passed > spin_for)
            sched_yield();
        else
            dpt_relax();
        if (passed <= spin_for && poll % POLLS != 0)
            continue;
        if (start <= 0)
            start = dpt_now();
        passed = dpt_now() - start;
        if (passed > yield_for)
            return false;
    }
}

/*
 * A rank increments `sleepers` before it reads the counters for the last time, and a rank that
 * arrives reads `sleepers` after it has written its counter (all sequentially consistent). So one
 * of the two sees the other, and the last rank to arrive wakes all that sleep.
 */
static void wait_asleep(const struct dpt_node_barrier *barrier, int *from)
{
    static const struct timespec nap = {0, NAP_NANOSECONDS};
    struct dpt_node_barrier_page *page = barrier->page;
    int pending;

    atomic_fetch_add(&page->sleepers, 1);
    for (;;) {
        const uint32_t wakeups = atomic_load(&page->wakeups);

        if (all_arrived(barrier, from))
            break;
        dpt_futex_wait(&page->wakeups, wakeups, DPT_FUTEX_SHARED, &nap);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, dpt_mpi_comm(barrier->node), &pending,
                   MPI_STATUS_IGNORE);
    }
    atomic_fetch_sub(&page->sleepers, 1);
}

void dpt_node_barrier_wait(struct dpt_node_barrier *barrier)
{
    struct dpt_node_barrier_page *page = barrier->page;
    int from = 0;

    dpt_group_enter(barrier->node);
    barrier->count++;
    atomic_store(&page->flags[barrier->node->rank].count, barrier->count);
    if (all_arrived(barrier, &from)) {
        if (atomic_load(&page->sleepers) != 0) {
            atomic_fetch_add(&page->wakeups, 1);
            dpt_futex_wake(&page->wakeups, DPT_FUTEX_SHARED);
        }
    } else if (!wait_spinning(barrier, &from)) {
        wait_asleep(barrier, &from);
    }
    dpt_group_leave(barrier->node);
}

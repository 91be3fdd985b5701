/*
 * device_waits: how often threads have begun to wait for a device, and how often such a wait has
 * ended.
 *
 * Whoever waits for a device (core/backend/cuda/libraries/context.h) moves these counters, and the
 * watchdog (core/comm/watch/watch.h) reads them: a device that hangs keeps a thread in a wait that
 * never ends, and in a job of one rank nobody else would notice. Once the watchdog aborts what
 * devices do for each other no wait returns, since what they have computed by then is not to be
 * used. Any thread may wait; zero-initialise.
 */
#ifndef DPT_BASE_DEVICE_WAITS_H
#define DPT_BASE_DEVICE_WAITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

struct dpt_device_waits {
    _Atomic uint64_t begun, ended;
    _Atomic bool over; /* the process is about to end */
};

/* NULL: nobody reads them. */
static inline void dpt_device_wait_begin(struct dpt_device_waits *waits)
{
    if (waits != NULL)
        atomic_fetch_add_explicit(&waits->begun, 1, memory_order_relaxed);
}

static inline void dpt_device_wait_end(struct dpt_device_waits *waits)
{
    if (waits == NULL)
        return;
    while (atomic_load_explicit(&waits->over, memory_order_acquire))
        pause();
    atomic_fetch_add_explicit(&waits->ended, 1, memory_order_relaxed);
}

#endif

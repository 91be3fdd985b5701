/*
 * clock: seconds, and ticks where reading a clock must cost next to nothing.
 */
#ifndef DPT_BASE_CLOCK_H
#define DPT_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic seconds from an arbitrary start. */
double dpt_now(void);
/* Sleeps so many seconds, signals or not. */
void dpt_sleep(double seconds);

/* Seconds for which the calling thread has had a core. */
double dpt_thread_seconds(void);

/* Nanoseconds of the clock of dpt_now. */
uint64_t dpt_now_ns(void);

/*
 * Ticks of a steady clock that all cores of a machine share (x86: the time stamp counter, which has
 * run at one rate whatever the core's since about 2008; else nanoseconds). How long one is shows by
 * reading both clocks twice: struct dpt_tick_rate.
 */
static inline uint64_t dpt_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc(); /* <x86intrin.h> would take most of the time of compiling a file
                                    */
#else
    return dpt_now_ns();
#endif
}

/* Two readings of both clocks; the rate is the more precise the further apart they are. */
struct dpt_tick_rate {
    uint64_t tick[2], ns[2];
};

/* Reads both clocks at once. which: 0 or 1. */
void dpt_tick_rate_read(struct dpt_tick_rate *rate, int which);
/* The time of dpt_now at a tick, in nanoseconds; seconds of so many ticks. */
double dpt_tick_ns(const struct dpt_tick_rate *rate, uint64_t tick);
double dpt_tick_seconds(const struct dpt_tick_rate *rate, double ticks);

#endif

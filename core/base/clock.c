#include "core/base/clock.h"

#include <stdbool.h>
#include <time.h>
#include <unistd.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t) != 0)
        return 0.0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dpt_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

void dpt_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&t, &t) != 0)
        ;
}

double dpt_thread_seconds(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t dpt_now_ns(void)
{
    struct timespec t;

    if (clock_gettime(CLOCK_MONOTONIC, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The reading in between that took the least time was not interrupted. */
void dpt_tick_rate_read(struct dpt_tick_rate *rate, int which)
{
    enum { TRIES = 8 };
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < TRIES; i++) {
        const uint64_t before = dpt_ticks(), ns = dpt_now_ns(), after = dpt_ticks();

        if (after - before >= least)
            continue;
        least = after - before;
        rate->tick[which] = before + least / 2;
        rate->ns[which] = ns;
    }
}

double dpt_tick_seconds(const struct dpt_tick_rate *rate, double ticks)
{
    const double between = (double)(rate->tick[1] - rate->tick[0]);

    return between > 0 ? ticks * (double)(rate->ns[1] - rate->ns[0]) / between * 1e-9 : 0.0;
}

double dpt_tick_ns(const struct dpt_tick_rate *rate, uint64_t tick)
{
    const bool later = tick >= rate->tick[0];
    const double ticks = (double)(later ? tick - rate->tick[0] : rate->tick[0] - tick);
    const double ns = 1e9 * dpt_tick_seconds(rate, ticks);

    return (double)rate->ns[0] + (later ? ns : -ns);
}

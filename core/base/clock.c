#include "core/base/clock.h"

#include <stdio.h>
#include <string.h>
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

double dpt_process_age(void)
{
    const long ticks = sysconf(_SC_CLK_TCK);
    unsigned long long start = 0;
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    char *p;
    size_t n;
    double age;

    if (file == NULL)
        return 0.0;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    /* The name, field 2, may hold spaces and parentheses: count from the last one. Field 22 is the
     * start. */
    p = strrchr(text, ')');
    if (p == NULL || ticks <= 0 ||
        sscanf(p + 1,
               " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &start) != 1)
        return 0.0;
    age = seconds_of(CLOCK_BOOTTIME) - (double)start / (double)ticks;
    return age > 0.0 ? age : 0.0;
}

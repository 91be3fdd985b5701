/* The fake device's clock: the host's, or a clock that advances by the time work takes
 * (FAKEGPU_TAKES). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

/* The time of that clock; under the lock. */
static double microseconds;

static const char *takes(void)
{
    return fakegpu_text("FAKEGPU_TAKES");
}

/* The time by the first rule whose words are in the name; 1 if there is no rule. */
static double time_of(const char *name, bool in_graph)
{
    for (const char *at = takes(); at != NULL && *at != '\0'; at += *at == ',') {
        char words[FAKEGPU_NAME];
        double by_itself, in_one;

        if (sscanf(at, "%63[^:,]:%lf:%lf", words, &by_itself, &in_one) == 3 &&
            strstr(name, words) != NULL)
            return in_graph ? in_one : by_itself;
        at += strcspn(at, ",");
    }
    return 1;
}

void fake_clock_pass(const char *name, bool in_graph)
{
    if (takes() != NULL)
        microseconds += time_of(name, in_graph);
}

bool fake_clock_captures(const char *name)
{
    return takes() == NULL || time_of(name, true) >= 0;
}

double fake_clock(void)
{
    struct timespec now;

    if (takes() != NULL)
        return microseconds * 1e-3;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

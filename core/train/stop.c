#include "core/train/stop.h"

#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/clock.h"

static const struct {
    int number;
    const char *name;
} signals[] = {
    {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}};

static volatile sig_atomic_t caught;

static void note(int number)
{
    if (caught != 0) {
        signal(number, SIG_DFL);
        raise(number);
    }
    caught = number;
}

void dpt_stop_catch(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART}, before;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i].number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i].number, &action, NULL);
}

int dpt_stop_signal(void)
{
    return caught;
}

const char *dpt_stop_name(int number)
{
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signals[i].number == number)
            return signals[i].name;
    return "a signal";
}

/* "2026-11-21T10:47:00", local time, as squeue prints it; -1 for "N/A" and the like. */
static time_t parse_time(const char *text)
{
    struct tm local = {.tm_isdst = -1};

    return strptime(text, "%Y-%m-%dT%H:%M:%S", &local) != NULL ? mktime(&local) : (time_t)-1;
}

/* Seconds since the epoch at which SLURM ends this job; -1: there is no job, or no end. */
static time_t slurm_end(void)
{
    const char *end = getenv("SLURM_JOB_END_TIME"), *job = getenv("SLURM_JOB_ID");
    char command[96], text[64] = "";
    FILE *pipe;

    if (end != NULL && atoll(end) > 0)
        return (time_t)atoll(end);
    if (job == NULL || strspn(job, "0123456789") != strlen(job) || job[0] == '\0')
        return -1;
    snprintf(command, sizeof command, "squeue -h -j %.20s -o %%e 2>/dev/null", job);
    pipe = popen(command, "re");
    if (pipe == NULL)
        return -1;
    if (fgets(text, sizeof text, pipe) == NULL)
        text[0] = '\0';
    pclose(pipe);
    return parse_time(text);
}

double dpt_stop_deadline(double max_time)
{
    const double now = dpt_now();
    double deadline = INFINITY;
    const time_t end = slurm_end();

    if (max_time > 0)
        deadline = now - dpt_process_age() + max_time;
    if (end != (time_t)-1 && now + difftime(end, time(NULL)) < deadline)
        deadline = now + difftime(end, time(NULL));
    return deadline;
}

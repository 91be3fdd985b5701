#include "core/train/run/stop.h"
#include "core/base/process.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/comm/launched.h"

static const struct {
    int number;
    const char *name;
    bool caught;
} signals[] = {{SIGINT, "SIGINT", true},
               {SIGTERM, "SIGTERM", true},
               {SIGUSR1, "SIGUSR1", true},
               {SIGUSR2, "SIGUSR2", true},
               {SIGHUP, "SIGHUP", false}};

/*
 * One request arrives as several signals: SLURM, systemd and `timeout` send their signal to each
 * process of a group, and srun and mpirun pass theirs on to the ranks, mpirun a second later.
 */
static const double ECHO_SECONDS = 2;

static volatile sig_atomic_t caught;
static _Atomic double caught_at;

bool dpt_stop_repeats(double first)
{
    return dpt_now() - first <= ECHO_SECONDS;
}

static void note(int number)
{
    const int keep = errno;

    if (caught == 0) {
        caught_at = dpt_now();
        caught = number;
    } else if (number == SIGUSR1 && dpt_launched_signal() != 0) {
        /* the launcher passes on the same request, by mpirun */
    } else if (!dpt_stop_repeats(caught_at)) {
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = keep;
}

void dpt_stop_catch(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART}, before;

    sigemptyset(&action.sa_mask);
    if (getenv(DPT_LAUNCHED_VARIABLE) != NULL) { /* its mpirun has them blocked */
        sigset_t blocked;

        sigemptyset(&blocked);
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
            sigaddset(&blocked, signals[i].number);
        sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    }
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signals[i].caught && sigaction(signals[i].number, NULL, &before) == 0 &&
            before.sa_handler != SIG_IGN)
            sigaction(signals[i].number, &action, NULL);
}

void dpt_stop_release(void)
{
    struct sigaction now;

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signals[i].caught && sigaction(signals[i].number, NULL, &now) == 0 &&
            now.sa_handler == note)
            signal(signals[i].number, SIG_DFL);
    if (caught != 0)
        raise(caught);
}

void dpt_stop_done(void)
{
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signals[i].caught)
            signal(signals[i].number, SIG_IGN);
}

int dpt_stop_signal(void)
{
    return caught != 0 ? caught : dpt_launched_signal();
}

const char *dpt_stop_name(int number)
{
    if (number == SIGUSR1 && dpt_launched_signal() != 0)
        number = dpt_launched_signal();
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signals[i].number == number)
            return signals[i].name;
    return "a signal";
}

static bool is_number(const char *text)
{
    return text != NULL && text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* "123", or "120_3" for a task of an array: one of them bears the number of the whole array. */
static bool slurm_job(char *id, size_t size)
{
    const char *job = getenv("SLURM_JOB_ID"), *array = getenv("SLURM_ARRAY_JOB_ID"),
               *task = getenv("SLURM_ARRAY_TASK_ID");

    if (!is_number(job))
        return false;
    if (is_number(array) && is_number(task))
        snprintf(id, size, "%.20s_%.20s", array, task);
    else
        snprintf(id, size, "%.20s", job);
    return true;
}

/* Seconds since the epoch at which SLURM ends this job; -1: there is no job, or no end. */
static time_t slurm_end(void)
{
    const char *end = getenv("SLURM_JOB_END_TIME");
    char id[48], command[192], text[64];
    struct tm utc = {0};

    if (end != NULL && atoll(end) > 0)
        return (time_t)atoll(end);
    if (!slurm_job(id, sizeof id))
        return -1;
    /* The user's environment may change how times are printed; and SLURM's controller may be slow,
     * or gone. */
    snprintf(command, sizeof command,
             "TZ=UTC0 SLURM_TIME_FORMAT=standard timeout 10 squeue -h -j %s -o %%e 2>/dev/null",
             id);
    dpt_command_line(command, text, sizeof text);
    /* "2026-11-21T10:47:00" in UTC; or "N/A" and the like */
    return strptime(text, "%Y-%m-%dT%H:%M:%S", &utc) != NULL ? timegm(&utc) : (time_t)-1;
}

double dpt_stop_deadline(double max_time)
{
    const double now = dpt_now();
    double deadline = INFINITY, left;
    const time_t end = slurm_end();

    if (max_time > 0)
        deadline = now - dpt_process_age() + max_time;
    left = difftime(end, time(NULL));
    /* An end in the past belongs to an earlier job whose environment a terminal has kept. */
    if (end != (time_t)-1 && left > 0 && dpt_now() + left < deadline)
        deadline = dpt_now() + left;
    return deadline;
}

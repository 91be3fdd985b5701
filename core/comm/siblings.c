#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/process.h"
#include "core/comm/internal.h"
#include "core/comm/watch/watch.h"

/* The name that a process takes once it has printed why it ends, and once it has found that it is
 * alone. They must not change, since processes of other versions look for them. */
static const char explained[] = "dptrain-told", alone[] = "dptrain-alone";

/* The rank that a process's environment names, or -1. */
static int rank_of(int pid)
{
    char path[64], *text = NULL;
    size_t capacity = 0;
    FILE *file;
    int rank = -1, best = INT_MAX;

    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return -1;
    while (best > 0 && getdelim(&text, &capacity, '\0', file) > 0) {
        const char *value;
        const int which = dpt_launcher_rank_variable(text, &value);

        if (which >= 0 && which < best) {
            rank = atoi(value);
            best = which;
        }
    }
    free(text);
    fclose(file);
    return rank;
}

/* A child of our parent. */
static bool add_process(void *arg, int pid)
{
    struct dpt_siblings *siblings = arg;
    struct dpt_process process;
    int rank;

    for (int i = 0; i < siblings->n; i++)
        if (siblings->all[i].pid == pid)
            return true;
    if (siblings->n == DPT_SIBLINGS_MOST || !dpt_process_read(pid, &process))
        return true;
    rank = rank_of(pid);
    if (rank >= 0)
        siblings->all[siblings->n++] =
            (struct dpt_sibling){.pid = pid, .rank = rank, .born = process.born};
    return true;
}

static void lower(int *least, int rank)
{
    if (*least < 0 || rank < *least)
        *least = rank;
}

void dpt_siblings_update(struct dpt_siblings *siblings)
{
    dpt_process_children(getppid(), add_process, siblings);
    siblings->first = siblings->stopped = siblings->dead = -1;
    for (int i = 0; i < siblings->n; i++) {
        const struct dpt_sibling *r = &siblings->all[i];
        struct dpt_process process;

        if (!dpt_process_read(r->pid, &process) || process.born != r->born ||
            process.state == 'Z' || process.state == 'X')
            lower(&siblings->dead, r->rank);
        else if (strcmp(process.name, explained) == 0)
            siblings->explained = true;
        else if (strcmp(process.name, alone) == 0)
            continue;
        else if (process.state == 'T' || process.state == 't')
            lower(&siblings->stopped, r->rank);
        else
            lower(&siblings->first, r->rank);
    }
}

static void take_name(const char *name)
{
    /* This file names the main thread whichever thread writes it. */
    FILE *file = fopen("/proc/self/comm", "we");

    if (file == NULL)
        return;
    fputs(name, file);
    fclose(file);
}

void dpt_siblings_notify(void)
{
    take_name(explained);
}

void dpt_siblings_await_alone(void)
{
    const double start = dpt_now(), most = 5, look = 0.01;
    struct dpt_siblings siblings = {0};

    take_name(alone);
    for (;;) {
        dpt_siblings_update(&siblings);
        if ((siblings.first < 0 && siblings.stopped < 0) || dpt_now() - start >= most)
            return;
        dpt_sleep(look);
    }
}

/* Whether rank 0 has ended, and in *found whether it was ever seen: it may be elsewhere. */
static bool first_has_ended(struct dpt_siblings *siblings, bool *found)
{
    dpt_siblings_update(siblings);
    for (int i = 0; i < siblings->n; i++)
        *found |= siblings->all[i].rank == 0;
    return *found && siblings->dead == 0;
}

void dpt_launcher_let_first_speak(void)
{
    const double start = dpt_now(), most = 1, unseen = 0.3, look = 0.01;
    struct dpt_siblings siblings = {0};
    bool found = false;

    if (!dpt_launcher_present() || dpt_launcher_rank() == 0)
        return;
    while (!first_has_ended(&siblings, &found) && dpt_now() - start < (found ? most : unseen))
        dpt_sleep(look);
}

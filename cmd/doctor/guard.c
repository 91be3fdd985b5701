#include "cmd/doctor/guard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct dpt_guard {
    struct dpt_comm *comm;
    double seconds;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    unsigned long count; /* of what was begun */
    char what[64];
    bool stop;
};

static void give_up(struct dpt_guard *g)
{
    fprintf(stderr,
            "dptrain doctor: no answer for %g s while %s: is a file server or a device gone?\n",
            g->seconds, g->what);
    dpt_comm_abort(g->comm, dpt_exit_code(DPT_RANK));
}

static void *watch(void *arg)
{
    struct dpt_guard *g = arg;

    pthread_mutex_lock(&g->mutex);
    while (!g->stop) {
        const unsigned long count = g->count;
        struct timespec end;
        int code = 0;

        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += (time_t)g->seconds;
        while (!g->stop && count == g->count && code == 0)
            code = pthread_cond_timedwait(&g->wake, &g->mutex, &end);
        if (!g->stop && count == g->count)
            give_up(g);
    }
    pthread_mutex_unlock(&g->mutex);
    return NULL;
}

enum dpt_status dpt_guard_open(struct dpt_guard **guard, struct dpt_comm *comm, double seconds,
                               struct dpt_error *err)
{
    struct dpt_guard *g = calloc(1, sizeof *g);
    pthread_condattr_t clock;
    int code;

    if (g == NULL)
        return dpt_fail_memory(err, "the guard", sizeof *g);
    g->comm = comm;
    g->seconds = seconds;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->wake, &clock);
    pthread_condattr_destroy(&clock);
    code = pthread_create(&g->thread, NULL, watch, g);
    if (code != 0) {
        pthread_cond_destroy(&g->wake);
        pthread_mutex_destroy(&g->mutex);
        free(g);
        return dpt_fail(err, DPT_RANK, "cannot start a thread: %s", strerror(code));
    }
    *guard = g;
    return DPT_OK;
}

void dpt_guard_note(struct dpt_guard *g, const char *what)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->mutex);
    snprintf(g->what, sizeof g->what, "%s", what);
    g->count++;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->mutex);
}

void dpt_guard_close(struct dpt_guard *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->mutex);
    g->stop = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->mutex);
    pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

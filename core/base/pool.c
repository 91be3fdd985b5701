#include "core/base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/base/memory.h"

static const double spin_seconds = 50e-6;

struct worker {
    struct dpt_pool *pool;
    pthread_t id;
    int thread;
};

/*
 * `run` counts the runs; its change is what the workers wait for and what publishes work and arg to
 * them. `left` counts the workers that have not finished; its fall to 0 is what the caller waits
 * for and what publishes their results to it.
 */
struct dpt_pool {
    int threads; /* with the caller */
    int started; /* workers that were created */
    bool spin;
    void (*work)(void *arg, int thread); /* NULL in the last run: end */
    void *arg;
    const struct dpt_timeline *timeline; /* NULL: nobody looks */
    struct worker *workers;
    _Alignas(DPT_ALIGN) atomic_uint run;
    atomic_uint sleepers; /* workers that sleep on `run`, or are about to */
    _Alignas(DPT_ALIGN) atomic_uint left;
    atomic_uint caller_sleeps;
    /* Meetings inside of a run: how many have come to this one; the meetings that are over. */
    _Alignas(DPT_ALIGN) atomic_uint come;
    _Alignas(DPT_ALIGN) atomic_uint meeting;
    atomic_uint resting; /* threads that sleep on `meeting`, or are about to */
};

/*
 * Waits until *word is no longer `value` and gives what it became.
 *
 * `asleep` is raised before the word is looked at for the last time, and whoever changes the word
 * looks at `asleep` after it (all sequentially consistent): one of the two sees the other, so no
 * wake is lost.
 */
static unsigned wait_change(const struct dpt_pool *pool, atomic_uint *word, unsigned value,
                            atomic_uint *asleep)
{
    unsigned now = atomic_load(word);
    double until = 0;

    while (pool->spin && now == value) {
        for (int i = 0; i < 64 && now == value; i++) {
            dpt_relax();
            now = atomic_load_explicit(word, memory_order_acquire);
        }
        if (now != value)
            break;
        /* The clock is read only by those that have waited for a while already. */
        if (until == 0)
            until = dpt_now() + spin_seconds;
        else if (dpt_now() > until)
            break;
    }
    if (now != value)
        return now;
    atomic_fetch_add(asleep, 1);
    while ((now = atomic_load(word)) == value)
        dpt_futex_wait(word, value, DPT_FUTEX_THREADS, NULL);
    atomic_fetch_sub(asleep, 1);
    return now;
}

static void run_observed(const struct dpt_pool *pool, int thread)
{
    const struct dpt_timeline *timeline = pool->timeline;

    /* What the caller did before was no waiting. */
    if (timeline != NULL && thread != 0)
        dpt_spans_mark(&timeline->threads[thread], DPT_SPAN_WAIT_THREADS);
    pool->work(pool->arg, thread);
    if (timeline != NULL)
        dpt_spans_mark(&timeline->threads[thread], timeline->activity);
}

static void *worker_main(void *arg)
{
    const struct worker *self = arg;
    struct dpt_pool *pool = self->pool;
    unsigned run = 0;

    for (;;) {
        run = wait_change(pool, &pool->run, run, &pool->sleepers);
        if (pool->work == NULL)
            return NULL;
        run_observed(pool, self->thread);
        if (atomic_fetch_sub(&pool->left, 1) == 1 && atomic_load(&pool->caller_sleeps) != 0)
            dpt_futex_wake(&pool->left, DPT_FUTEX_THREADS);
    }
}

static void publish(struct dpt_pool *pool, void (*work)(void *arg, int thread), void *arg)
{
    pool->work = work;
    pool->arg = arg;
    atomic_store(&pool->left, (unsigned)pool->started);
    atomic_fetch_add(&pool->run, 1);
    if (atomic_load(&pool->sleepers) != 0)
        dpt_futex_wake(&pool->run, DPT_FUTEX_THREADS);
}

enum dpt_status dpt_pool_open(struct dpt_pool **result, int threads, bool spin,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pool *pool;
    sigset_t blocked, before;
    int code = 0;

    *result = NULL;
    DPT_TRY(DPT_ALLOCATE(pool, 1, "a thread pool", err));
    pool->threads = threads;
    pool->spin = spin;
    DPT_TRY(DPT_ALLOCATE(pool->workers, threads, "a thread pool", err));
    /* The workers inherit the mask: these signals are for the main thread. */
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    for (int t = 1; t < threads && code == 0; t++) {
        struct worker *w = &pool->workers[t - 1];

        *w = (struct worker){.pool = pool, .thread = t};
        code = pthread_create(&w->id, NULL, worker_main, w);
        if (code == 0)
            pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        DPT_TRY(dpt_fail(err, DPT_RANK, "cannot start thread %d of %d: %s", pool->started + 2,
                         threads, strerror(code)));
    *result = pool;
    pool = NULL;
out:
    dpt_pool_close(pool);
    return status;
}

void dpt_pool_close(struct dpt_pool *pool)
{
    if (pool == NULL)
        return;
    publish(pool, NULL, NULL);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].id, NULL);
    dpt_free(pool->workers);
    dpt_free(pool);
}

void dpt_pool_run(struct dpt_pool *pool, void (*work)(void *arg, int thread), void *arg)
{
    unsigned left;

    if (pool->started == 0) {
        work(arg, 0);
        return;
    }
    publish(pool, work, arg);
    run_observed(pool, 0);
    left = atomic_load(&pool->left);
    while (left != 0)
        left = wait_change(pool, &pool->left, left, &pool->caller_sleeps);
    if (pool->timeline != NULL)
        dpt_spans_mark(&pool->timeline->threads[0], DPT_SPAN_WAIT_THREADS);
}

void dpt_pool_observe(struct dpt_pool *pool, const struct dpt_timeline *timeline)
{
    pool->timeline = timeline;
}

void dpt_pool_barrier(struct dpt_pool *pool)
{
    const unsigned meeting = atomic_load(&pool->meeting);

    if (pool->started == 0)
        return;
    if (atomic_fetch_add(&pool->come, 1) != (unsigned)pool->started) {
        wait_change(pool, &pool->meeting, meeting, &pool->resting);
        return;
    }
    /* The last one: nobody comes to the next meeting before this one is over. */
    atomic_store(&pool->come, 0);
    atomic_fetch_add(&pool->meeting, 1);
    if (atomic_load(&pool->resting) != 0)
        dpt_futex_wake(&pool->meeting, DPT_FUTEX_THREADS);
}

int dpt_pool_threads(const struct dpt_pool *pool)
{
    return pool->threads;
}

void dpt_part_in_units(size_t n, size_t unit, int part, int parts, size_t *begin, size_t *end)
{
    const size_t units = (n + unit - 1) / unit;

    *begin = units * (size_t)part / (size_t)parts * unit;
    *end = units * ((size_t)part + 1) / (size_t)parts * unit;
    *end = *end < n ? *end : n;
}

void dpt_thread_part(size_t n, int thread, int threads, size_t *begin, size_t *end)
{
    dpt_part_in_units(n, DPT_LINE, thread, threads, begin, end);
}

bool dpt_thread_await(struct dpt_thread *thread, bool (*busy)(const void *arg), const void *arg,
                      double seconds)
{
    struct timespec until;
    bool is_busy;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&thread->lock);
    while (busy(arg) && pthread_cond_timedwait(&thread->done, &thread->lock, &until) == 0)
        ;
    is_busy = busy(arg);
    pthread_mutex_unlock(&thread->lock);
    return is_busy;
}

static void destroy(struct dpt_thread *thread)
{
    pthread_cond_destroy(&thread->work);
    pthread_cond_destroy(&thread->done);
    pthread_mutex_destroy(&thread->lock);
}

int dpt_thread_start(struct dpt_thread *thread, void *(*work)(void *), void *arg)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    int code;

    pthread_mutex_init(&thread->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&thread->work, &monotonic);
    pthread_cond_init(&thread->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    code = pthread_create(&thread->id, NULL, work, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    thread->running = code == 0;
    if (!thread->running)
        destroy(thread);
    return code;
}

void dpt_thread_end(struct dpt_thread *thread)
{
    if (!thread->running)
        return;
    pthread_mutex_lock(&thread->lock);
    thread->stop = true;
    pthread_cond_signal(&thread->work);
    pthread_mutex_unlock(&thread->lock);
    pthread_join(thread->id, NULL);
    destroy(thread);
    thread->running = false;
}

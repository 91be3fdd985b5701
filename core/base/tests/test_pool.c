#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/pool.h"
#include "core/base/process.h"

enum { MOST = 9 };

struct counts {
    int calls[MOST];
    pthread_t id[MOST];
    unsigned long sum; /* of the runs' numbers; written by the caller, read by all */
    unsigned long seen[MOST];
};

static void count(void *arg, int thread)
{
    struct counts *t = arg;

    t->calls[thread]++;
    t->id[thread] = pthread_self();
    t->seen[thread] = t->sum;
    /* Some come late, so that all orders of finishing occur. */
    if ((t->sum + (unsigned long)thread) % 5 == 0)
        sched_yield();
}

/* Each thread once per run, with what the caller wrote before and visible to the caller after; no
 * locks in the work. */
static void every_thread_runs_once(void **state)
{
    struct dpt_error err;

    (void)state;
    for (int threads = 1; threads <= MOST; threads += threads < 3 ? 1 : 3) {
        for (int spin = 0; spin < 2; spin++) {
            const int runs = spin && threads > 2 ? 50 : 1500;
            struct dpt_pool *pool;
            struct counts t = {0};
            pthread_t before[MOST];

            assert_int_equal(dpt_pool_open(&pool, threads, spin != 0, &err), DPT_OK);
            assert_int_equal(dpt_pool_threads(pool), threads);
            for (int run = 1; run <= runs; run++) {
                t.sum += (unsigned long)run;
                dpt_pool_run(pool, count, &t);
                for (int k = 0; k < threads; k++) {
                    assert_int_equal(t.calls[k], run);
                    assert_true(t.seen[k] == t.sum);
                    assert_true(run == 1 || pthread_equal(before[k], t.id[k]));
                    before[k] = t.id[k];
                }
            }
            assert_true(pthread_equal(t.id[0], pthread_self()));
            dpt_pool_close(pool);
        }
    }
}

static void opens_and_closes_without_a_run(void **state)
{
    struct dpt_error err;
    struct dpt_pool *pool;

    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(dpt_pool_open(&pool, 1 + i % 4, i % 2 == 0, &err), DPT_OK);
        dpt_pool_close(pool);
    }
    dpt_pool_close(NULL);
}

enum { MEETINGS = 300 };

struct meeting {
    struct dpt_pool *pool;
    int threads;
    int at[MOST]; /* the meeting that each has come to */
    bool late;    /* somebody was not there yet when another continued */
};

static void meet(void *arg, int thread)
{
    struct meeting *m = arg;

    for (int i = 1; i <= MEETINGS; i++) {
        m->at[thread] = i;
        if ((i + thread) % 7 == 0)
            sched_yield();
        dpt_pool_barrier(m->pool);
        for (int k = 0; k < m->threads; k++)
            if (m->at[k] != i)
                m->late = true;
        dpt_pool_barrier(m->pool);
    }
}

/* Nobody continues before all have come, and then all see what each has written; over several runs,
 * waiting actively or asleep. */
static void nobody_leaves_a_meeting_early(void **state)
{
    struct dpt_error err;

    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        for (int spin = 0; spin < 2; spin++) {
            struct meeting m = {.threads = threads};

            assert_int_equal(dpt_pool_open(&m.pool, threads, spin != 0 && threads < 3, &err),
                             DPT_OK);
            for (int run = 0; run < 3; run++)
                dpt_pool_run(m.pool, meet, &m);
            dpt_pool_close(m.pool);
            assert_false(m.late);
        }
    }
}

static void look_at_mask(void *arg, int thread)
{
    sigset_t *mask = arg;

    pthread_sigmask(SIG_SETMASK, NULL, &mask[thread]);
}

/* The signals that ask for a stop reach the main thread only. */
static void workers_block_signals(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    struct dpt_error err;
    struct dpt_pool *pool;
    sigset_t mask[3];

    (void)state;
    assert_int_equal(dpt_pool_open(&pool, 3, false, &err), DPT_OK);
    dpt_pool_run(pool, look_at_mask, mask);
    dpt_pool_close(pool);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        assert_false(sigismember(&mask[0], signals[i]));
        assert_true(sigismember(&mask[1], signals[i]));
        assert_true(sigismember(&mask[2], signals[i]));
    }
    assert_false(sigismember(&mask[1], SIGSEGV));
}

static void clocks_run_forward(void **state)
{
    const double age = dpt_process_age();
    double last = dpt_now();

    (void)state;
    assert_true(age >= 0.0 && age < 3600.0);
    for (int i = 0; i < 1000; i++) {
        const double now = dpt_now();

        assert_true(now >= last);
        last = now;
    }
    assert_true(dpt_process_age() >= age);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once),
        cmocka_unit_test(opens_and_closes_without_a_run),
        cmocka_unit_test(nobody_leaves_a_meeting_early),
        cmocka_unit_test(workers_block_signals),
        cmocka_unit_test(clocks_run_forward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

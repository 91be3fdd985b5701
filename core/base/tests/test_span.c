/* Timelines: no time is lost or told twice, a ring keeps the newest, a pool's threads are seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base/pool.h"
#include "core/base/rng.h"

enum { WHATS = DPT_SPAN_NODES + 9, THREADS = 4, RING = 16 };

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 1, i) % sides;
}

static void marks_add_up_to_the_time_between(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct dpt_span_sum sums[WHATS] = {0};
        struct dpt_spans s = {.sum = sums};
        uint64_t first, ticks = 0, calls = 0;
        const uint64_t marks = 1 + dice(seed, 0, 50);

        dpt_spans_begin(&s);
        first = s.last;
        for (uint64_t i = 1; i <= marks; i++)
            dpt_spans_mark(&s, (int)dice(seed, i, WHATS));
        for (int what = 0; what < WHATS; what++) {
            ticks += sums[what].ticks;
            calls += sums[what].calls;
        }
        assert_true(ticks == s.last - first);
        assert_true(calls == marks);
    }
}

static void a_ring_keeps_the_newest(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 3 * RING; n++) {
        struct dpt_span_sum sums[WHATS] = {0};
        struct dpt_span ring[RING] = {{0}};
        struct dpt_spans s = {.sum = sums, .ring = ring, .capacity = RING};
        const uint64_t kept = n < RING ? n : RING;

        dpt_spans_begin(&s);
        for (uint64_t i = 0; i < n; i++) {
            s.step = (int32_t)i;
            dpt_spans_mark(&s, DPT_SPAN_DATA);
        }
        assert_true(s.count == n);
        for (uint64_t i = n - kept; i < n; i++) {
            const struct dpt_span *span = &ring[i % RING];

            assert_int_equal(span->step, i);
            assert_true(span->start <= span->end);
            if (i > n - kept) /* each begins where the one before ended */
                assert_true(span->start == ring[(i - 1) % RING].end);
        }
    }
}

static void spend(void *arg, int thread)
{
    volatile double *x = arg;

    for (int i = 0; i < 1000; i++)
        x[thread * 8] = x[thread * 8] * 0.5 + i;
}

static void a_pool_tells_work_from_waiting(void **state)
{
    struct dpt_error err = {0};

    (void)state;
    for (int threads = 1; threads <= THREADS; threads++) {
        struct dpt_span_sum sums[THREADS][WHATS] = {{{0}}};
        struct dpt_spans spans[THREADS] = {{0}};
        struct dpt_timeline timeline = {.threads = spans, .activity = DPT_SPAN_NORM};
        struct dpt_pool *pool;
        double x[8 * THREADS] = {0};

        for (int i = 0; i < threads; i++) {
            spans[i].sum = sums[i];
            dpt_spans_begin(&spans[i]);
        }
        assert_int_equal(dpt_pool_open(&pool, threads, false, &err), DPT_OK);
        dpt_pool_observe(pool, &timeline);
        for (int run = 0; run < 10; run++)
            dpt_pool_run(pool, spend, x);
        timeline.activity = DPT_SPAN_OPTIMIZER;
        for (int run = 0; run < 5; run++)
            dpt_pool_run(pool, spend, x);
        dpt_pool_observe(pool, NULL);
        dpt_pool_run(pool, spend, x);
        for (int i = 0; i < threads && threads > 1; i++) {
            assert_int_equal(sums[i][DPT_SPAN_NORM].calls, 10);
            assert_int_equal(sums[i][DPT_SPAN_OPTIMIZER].calls, 5);
            assert_int_equal(sums[i][DPT_SPAN_WAIT_THREADS].calls, 15);
        }
        if (threads == 1) /* who runs it alone marks for itself */
            assert_int_equal(sums[0][DPT_SPAN_NORM].calls, 0);
        dpt_pool_close(pool);
    }
}

static void ticks_become_the_clocks_time(void **state)
{
    /* 2.5 ticks a nanosecond, from a start on which both are large. */
    const struct dpt_tick_rate made = {.tick = {1ULL << 40, (1ULL << 40) + 5000},
                                       .ns = {1ULL << 50, (1ULL << 50) + 2000}};
    struct dpt_tick_rate rate;

    (void)state;
    for (int ticks = -5000; ticks <= 10000; ticks += 500)
        assert_true(dpt_tick_ns(&made, made.tick[0] + (uint64_t)ticks) ==
                    (double)made.ns[0] + ticks / 2.5);
    for (int which = 0; which < 2; which++) { /* each reading lies between those around it */
        const uint64_t tick = dpt_ticks(), ns = dpt_now_ns();

        dpt_tick_rate_read(&rate, which);
        assert_true(tick <= rate.tick[which] && rate.tick[which] <= dpt_ticks());
        assert_true(ns <= rate.ns[which] && rate.ns[which] <= dpt_now_ns());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_add_up_to_the_time_between),
        cmocka_unit_test(a_ring_keeps_the_newest),
        cmocka_unit_test(a_pool_tells_work_from_waiting),
        cmocka_unit_test(ticks_become_the_clocks_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

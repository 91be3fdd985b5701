#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>

#include "core/base/rng.h"
#include "core/comm/sums/buckets.h"

enum { FLOATS = 1000, WRITERS = 3, ROUNDS = 60 };

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 91, i) % sides;
}

static struct {
    struct dpt_buckets *buckets;
    int written[WRITERS][FLOATS]; /* the round in which a float was */
    int round;
    size_t next; /* where the next bucket ends */
    bool counted[WRITERS];
    sem_t worked;
} all;

/* All that every writer has for a bucket is there, whole, and the buckets come in their order. */
static void work(void *arg, size_t begin, size_t end)
{
    (void)arg;
    if (all.next == 0)
        all.next = FLOATS;
    if (end != all.next || begin >= end)
        abort();
    for (int w = 0; w < WRITERS; w++) {
        for (size_t i = begin; i < end; i++)
            if (all.written[w][i] != all.round)
                abort();
        all.counted[w] = dpt_buckets_counts(all.buckets, w);
    }
    all.next = begin;
    sem_post(&all.worked);
}

static void open_buckets(size_t most)
{
    const struct dpt_buckets_spec spec = {
        .n = FLOATS, .most = most, .writers = WRITERS, .work = work};
    struct dpt_error err;

    sem_init(&all.worked, 0, 0);
    assert_int_equal(dpt_buckets_open(&all.buckets, &spec, &err), DPT_OK);
    assert_int_equal(dpt_buckets_count(all.buckets), (int)((FLOATS + most - 1) / most));
}

static void close_buckets(void)
{
    dpt_buckets_close(all.buckets);
    sem_destroy(&all.worked);
}

/* Writes from the end on in pieces of any length, and says so of some. Not every writer says
 * anything. */
static void *write_all(void *arg)
{
    const int w = *(const int *)arg, round = all.round;
    const uint64_t seed = (uint64_t)(round * WRITERS + w);
    size_t end = FLOATS;

    for (uint64_t i = 0; end > 0; i++) {
        const size_t n = 1 + dice(seed, i, 300), begin = end > n ? end - n : 0;

        for (size_t k = begin; k < end; k++)
            all.written[w][k] = round;
        if (dice(seed, 0, 4) != 0 && dice(seed, 100 + i, 3) != 0)
            dpt_buckets_pass(all.buckets, w, begin, w != 1);
        end = begin;
    }
    return NULL;
}

static void each_begins_when_all_have_written_it(void **state)
{
    (void)state;
    for (size_t most = 1; most <= FLOATS; most = most * 7 + 3) {
        open_buckets(most);
        for (int round = 0; round < ROUNDS; round++) {
            static const bool counts[WRITERS] = {true, false, true};
            pthread_t id[WRITERS];
            int number[WRITERS];

            all.round++;
            for (int w = 0; w < WRITERS; w++) {
                number[w] = w;
                assert_int_equal(pthread_create(&id[w], NULL, write_all, &number[w]), 0);
            }
            for (int w = 0; w < WRITERS; w++)
                pthread_join(id[w], NULL);
            dpt_buckets_release(all.buckets, counts);
            for (int n = 1; n <= dpt_buckets_count(all.buckets); n++)
                dpt_buckets_await(all.buckets, n);
            assert_int_equal(all.next, 0);
            for (int w = 0; w < WRITERS; w++)
                assert_int_equal(all.counted[w], counts[w]);
            assert_in_range(dpt_buckets_rewind(all.buckets), 0, dpt_buckets_count(all.buckets));
        }
        close_buckets();
    }
}

/* Nobody waits for what comes before it. */
static void some_are_done_while_others_are_written(void **state)
{
    static const bool counts[WRITERS] = {true, true, true};

    (void)state;
    open_buckets(FLOATS / 4);
    all.round++;
    for (int w = 0; w < WRITERS; w++) {
        for (size_t i = FLOATS / 2; i < FLOATS; i++)
            all.written[w][i] = all.round;
        dpt_buckets_pass(all.buckets, w, FLOATS / 2, true);
    }
    for (int n = 0; n < 2; n++)
        while (sem_wait(&all.worked) != 0)
            continue;
    for (int w = 0; w < WRITERS; w++)
        for (size_t i = 0; i < FLOATS / 2; i++)
            all.written[w][i] = all.round;
    assert_int_not_equal(sem_trywait(&all.worked), 0);
    dpt_buckets_release(all.buckets, counts);
    dpt_buckets_await(all.buckets, 4);
    assert_int_equal(dpt_buckets_rewind(all.buckets), 2);
    close_buckets();
}

/* What a writer said first holds; of one that said nothing, what is said for it at the end. */
static void the_first_word_counts(void **state)
{
    static const bool counts[WRITERS] = {true, true, false};

    (void)state;
    open_buckets(FLOATS);
    for (int round = 0; round < 2; round++) {
        all.round++;
        for (int w = 0; w < WRITERS; w++)
            for (size_t i = 0; i < FLOATS; i++)
                all.written[w][i] = all.round;
        dpt_buckets_pass(all.buckets, 0, FLOATS / 2, round != 0);
        dpt_buckets_pass(all.buckets, 0, 0, round == 0);
        dpt_buckets_release(all.buckets, counts);
        dpt_buckets_await(all.buckets, 1);
        assert_int_equal(all.counted[0], round != 0);
        assert_true(all.counted[1] && !all.counted[2]);
        assert_int_equal(dpt_buckets_rewind(all.buckets), 0);
    }
    close_buckets();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_begins_when_all_have_written_it),
        cmocka_unit_test(some_are_done_while_others_are_written),
        cmocka_unit_test(the_first_word_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The order of samples, as properties of many random jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/rng.h"
#include "data/sets/sampler.h"

enum { JOBS = 200 };

static int64_t draw(uint64_t seed, uint64_t what, int64_t least, int64_t most)
{
    return least + (int64_t)(dpt_mix64(dpt_mix64(seed + 1) + what) % (uint64_t)(most - least + 1));
}

/* Sizes that divide nothing in particular; primes are frequent among them. */
static struct dpt_sampler random_job(uint64_t seed)
{
    static const int64_t primes[] = {2, 3, 5, 7, 101, 997, 1021, 1031, 2053, 3001};
    struct dpt_sampler s = {.seed = seed * 7 + 1};

    s.total = seed % 3 == 0 ? primes[seed / 3 % 10] : draw(seed, 0, 1, 3000);
    s.samples = s.total;
    s.global = (int32_t)draw(seed, 1, 1, 300);
    s.micro = (int32_t)draw(seed, 2, 1, 40);
    s.shuffle = (enum dpt_shuffle)(seed % 3);
    s.drop_last = seed % 7 == 0;
    return s;
}

static int64_t sample_at(const struct dpt_sampler *s, int64_t epoch, int64_t position)
{
    int64_t number;

    dpt_sampler_samples(s, epoch, position, 1, &number);
    return number;
}

/* A random job with a part held out; *rest: the other part. False where there is nothing to hold
 * out. */
static bool random_split(uint64_t seed, struct dpt_sampler *rest, struct dpt_sampler *held)
{
    *rest = random_job(seed);
    if (rest->total < 2)
        return false;
    rest->drop_last = false;
    rest->held_out = draw(seed, 3, 1, rest->total - 1);
    *held = *rest;
    held->validation = true;
    held->samples = rest->held_out;
    rest->samples = rest->total - rest->held_out;
    return true;
}

/* Counts how often each sample occurs in an epoch on `ranks`; owner[i] becomes the step of
 * sample i. */
static void walk(const struct dpt_sampler *s, int64_t epoch, int ranks, int *seen, int64_t *owner)
{
    int64_t *index = malloc((size_t)s->micro * sizeof *index);

    for (int64_t step = 0; step < dpt_sampler_steps(s); step++) {
        int32_t next = 0, total = 0;

        for (int rank = 0; rank < ranks; rank++) {
            int32_t first, last;

            dpt_sampler_partition(s, step, rank, ranks, &first, &last);
            if (s->round_robin == 0)
                assert_int_equal(first, next); /* contiguous, in order, nothing left out */
            next += last - first;
            for (int32_t k = 0; k < last - first; k++) {
                const int32_t m = dpt_sampler_nth(s, ranks, first, k);
                const int32_t left = dpt_sampler_count(s, step) - m * s->micro;
                const int32_t count = left < s->micro ? left : s->micro;

                dpt_sampler_samples(s, epoch, step * s->global + m * s->micro, count, index);
                assert_in_range(count, 1, s->micro);
                assert_int_equal(dpt_sampler_place(s, ranks, first, m), k);
                assert_true(s->round_robin == 0 || m / s->round_robin % ranks == rank);
                total += count;
                for (int32_t i = 0; i < count; i++) {
                    assert_in_range(index[i], 0, s->total - 1);
                    seen[index[i]]++;
                    owner[index[i]] = step;
                }
            }
        }
        assert_int_equal(next, dpt_sampler_micro_batches(s, step));
        assert_int_equal(total, dpt_sampler_count(s, step));
    }
    free(index);
}

static void each_sample_once_and_the_same_steps(void **state)
{
    static const int ranks[] = {1, 2, 3, 5, 7};

    (void)state;
    for (uint64_t seed = 0; seed < JOBS; seed++) {
        struct dpt_sampler s = random_job(seed);
        const size_t n = (size_t)s.total;
        int64_t *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);

        for (int r = 0; r < 5; r++) {
            int *seen = calloc(n, sizeof *seen);
            int64_t sum = 0;

            s.round_robin = (int32_t)((seed + (uint64_t)r) % 4);
            memset(got, 0xFF, n * sizeof *got);
            walk(&s, (int64_t)(seed % 4), ranks[r], seen, got);
            for (size_t i = 0; i < n; i++) {
                assert_in_range(seen[i], 0, 1);
                sum += seen[i];
            }
            assert_int_equal(sum, s.drop_last ? s.samples / s.global * s.global : s.samples);
            if (r == 0)
                memcpy(want, got, n * sizeof *want);
            assert_memory_equal(want, got, n * sizeof *want);
            free(seen);
        }
        free(want);
        free(got);
    }
}

static void partition_is_even(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < JOBS; seed++) {
        const struct dpt_sampler s = random_job(seed);

        for (int ranks = 1; ranks <= 9 && dpt_sampler_steps(&s) > 0; ranks++) {
            const int32_t n = dpt_sampler_micro_batches(&s, 0);

            for (int rank = 0; rank < ranks; rank++) {
                int32_t first, last;

                dpt_sampler_partition(&s, 0, rank, ranks, &first, &last);
                assert_in_range(last - first, n / ranks, (n + ranks - 1) / ranks);
            }
        }
    }
}

static void the_parts_are_disjoint_and_complete(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < JOBS; seed++) {
        struct dpt_sampler rest, held;
        int *seen;
        int64_t *owner;

        if (!random_split(seed, &rest, &held))
            continue;
        seen = calloc((size_t)rest.total, sizeof *seen);
        owner = calloc((size_t)rest.total, sizeof *owner);
        walk(&rest, 1, 2, seen, owner);
        walk(&held, 1, 3, seen, owner);
        for (int64_t i = 0; i < rest.total; i++)
            assert_int_equal(seen[i], 1);
        free(seen);
        free(owner);
    }
}

/* One of each run of total / held_out samples, whatever the epoch; the rest in reading order. */
static void the_held_out_part_is_spread_and_fixed(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < JOBS; seed++) {
        struct dpt_sampler rest, held;

        if (!random_split(seed, &rest, &held))
            continue;
        rest.shuffle = held.shuffle = DPT_SHUFFLE_NONE;
        for (int64_t g = 0; g < held.held_out; g++) {
            const int64_t sample = sample_at(&held, 0, g);

            assert_true(sample >= g * held.total / held.held_out);
            assert_true(sample < (g + 1) * held.total / held.held_out);
            assert_int_equal(sample, sample_at(&held, 5, g));
        }
        for (int64_t i = 1; i < rest.samples; i++)
            assert_true(sample_at(&rest, 0, i - 1) < sample_at(&rest, 0, i));
    }
}

/* Every run of a block's length within the order is one block of neighbours, but where the short
 * block stands between. */
static void blocks_are_neighbours(void **state)
{
    const int64_t block = DPT_SHUFFLE_BLOCK_SAMPLES;

    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct dpt_sampler s = random_job(seed);
        int64_t position = 0, blocks = 0;

        s.samples = s.total = draw(seed, 9, 1, 6 * block);
        s.shuffle = DPT_SHUFFLE_BLOCK;
        while (position < s.samples) {
            const int64_t number = sample_at(&s, 3, position) / block;
            const int64_t left = s.samples - number * block, size = left < block ? left : block;
            int64_t moved = 0;

            for (int64_t i = 0; i < size; i++) {
                const int64_t sample = sample_at(&s, 3, position + i);

                assert_int_equal(sample / block, number);
                moved += sample != number * block + i;
            }
            assert_true(size < 10 || moved > size / 2); /* shuffled inside */
            position += size;
            blocks++;
        }
        assert_int_equal(blocks, (s.samples + block - 1) / block);
    }
}

static void the_short_block_stands_anywhere(void **state)
{
    struct dpt_sampler s = {.seed = 1,
                            .total = 4 * DPT_SHUFFLE_BLOCK_SAMPLES + 10,
                            .global = 8,
                            .micro = 8,
                            .shuffle = DPT_SHUFFLE_BLOCK};
    int places[5] = {0};

    (void)state;
    s.samples = s.total;
    for (int64_t epoch = 0; epoch < 100; epoch++)
        for (int64_t p = 0; p < 5; p++)
            if (sample_at(&s, epoch, p * DPT_SHUFFLE_BLOCK_SAMPLES) >= s.total - 10)
                places[p]++;
    for (int p = 0; p < 5; p++)
        assert_in_range(places[p], 5, 45); /* 20 each, give or take */
}

static void epochs_and_seeds_differ(void **state)
{
    (void)state;
    for (int shuffle = DPT_SHUFFLE_FULL; shuffle <= DPT_SHUFFLE_NONE; shuffle++) {
        struct dpt_sampler a = {.seed = 4,
                                .total = 1009,
                                .samples = 1009,
                                .global = 64,
                                .micro = 8,
                                .shuffle = (enum dpt_shuffle)shuffle};
        struct dpt_sampler b = a;
        int same_epoch = 0, same_seed = 0, same = 0;

        b.seed = 5;
        for (int64_t p = 0; p < a.samples; p++) {
            const int64_t sample = sample_at(&a, 0, p);

            same_epoch += sample == sample_at(&a, 1, p);
            same_seed += sample == sample_at(&b, 0, p);
            same += sample == sample_at(&a, 0, p);
        }
        assert_int_equal(same, 1009);
        if (shuffle == DPT_SHUFFLE_NONE) {
            assert_int_equal(same_epoch, 1009);
        } else { /* chance leaves one in its place on average */
            assert_in_range(same_epoch, 0, 12);
            assert_in_range(same_seed, 0, 12);
        }
    }
}

/* Sample numbers times sample numbers must not overflow. */
static void huge_sets(void **state)
{
    struct dpt_sampler s = {.seed = 3,
                            .total = INT64_C(4000000000000),
                            .global = 1024,
                            .micro = 8,
                            .shuffle = DPT_SHUFFLE_NONE};

    (void)state;
    s.held_out = s.total / 3;
    s.samples = s.total - s.held_out;
    for (int64_t i = s.samples - 1000, before = -1; i < s.samples; i++) {
        const int64_t sample = sample_at(&s, 0, i);

        assert_true(sample > before && sample < s.total);
        before = sample;
    }
    assert_true(sample_at(&s, 0, s.samples - 1) >= s.total - 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sample_once_and_the_same_steps),
        cmocka_unit_test(partition_is_even),
        cmocka_unit_test(the_parts_are_disjoint_and_complete),
        cmocka_unit_test(the_held_out_part_is_spread_and_fixed),
        cmocka_unit_test(blocks_are_neighbours),
        cmocka_unit_test(the_short_block_stands_anywhere),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(huge_sets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

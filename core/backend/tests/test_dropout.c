/* Dropout masks: right on average, a function of their key, and unlike for unlike keys. */
#include "core/backend/tests/net.h"

enum { N = 4096 };

/* Each element is 0 or 1 / (1 - rate); the share of zeros is `rate` within five standard
 * deviations. */
static void zeros_come_at_the_rate(void **state)
{
    static const float rates[] = {0, 0.1f, 0.25f, 0.5f, 0.9f, 0.999f};
    float mask[N];

    (void)state;
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
        const double rate = rates[r], n = 64.0 * N;
        int64_t zeros = 0;

        for (int64_t sample = 0; sample < 64; sample++) {
            dpt_dropout_mask(1, 2, sample, 3, rates[r], N, mask);
            for (int i = 0; i < N; i++) {
                zeros += mask[i] == 0;
                if (mask[i] != 0)
                    assert_true(fabs(mask[i] * (1 - rate) - 1) < 1e-6);
            }
        }
        if (fabs((double)zeros - rate * n) > 5 * sqrt(rate * (1 - rate) * n))
            fail_msg("rate %g: %lld zeros of %g", rate, (long long)zeros, n);
    }
}

struct key {
    uint64_t seed, step;
    int64_t sample;
    int32_t node;
};

static void mask_of(const struct key *k, size_t n, float *mask)
{
    dpt_dropout_mask(k->seed, k->step, k->sample, k->node, 0.5f, n, mask);
}

/* Element i is word i % 4 of the draw named (seed, step and node, sample and i / 4): whoever
 * computes a mask elsewhere can count on it. */
static void elements_are_named_draws(void **state)
{
    float mask[N];
    uint32_t word[4];

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct draw d = {seed};
        const struct key key = {draw_bits(&d), draw_bits(&d) >> 20, (int64_t)(draw_bits(&d) >> 24),
                                draw_int(&d, 0, 65535)};

        mask_of(&key, N, mask);
        for (uint64_t i = 0; i < N; i++) {
            if (i % 4 == 0)
                dpt_random4(key.seed, DPT_RANDOM_DROPOUT, key.step << 16 | (uint64_t)key.node,
                            (uint64_t)key.sample << 24 | i / 4, word);
            assert_true((mask[i] == 0) == (word[i % 4] < UINT32_C(1) << 31));
        }
    }
}

/* A key gives the same mask again, and a shorter mask is its beginning. */
static void same_key_same_mask(void **state)
{
    float whole[N], part[N];

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct draw d = {seed};
        const struct key key = {draw_bits(&d), draw_bits(&d) >> 20, (int64_t)(draw_bits(&d) >> 24),
                                draw_int(&d, 0, 65535)};
        const size_t n = (size_t)draw_int(&d, 0, N - 1);

        mask_of(&key, N, whole);
        for (size_t i = 0; i < N; i++)
            part[i] = -1;
        mask_of(&key, n, part);
        assert_memory_equal(whole, part, n * sizeof *part);
        assert_true(part[n] == -1);
    }
}

static double agreement(const float *a, const float *b)
{
    int same = 0;

    for (int i = 0; i < N; i++)
        same += a[i] == b[i];
    return (double)same / N;
}

/* Two masks at rate 1/2 agree in half of their elements; neighbours in any part of the key, and
 * keys far out. */
static void other_key_other_mask(void **state)
{
    static const struct key keys[] = {
        {1, 1, 1, 1},
        {2, 1, 1, 1},
        {1, 2, 1, 1},
        {1, 1, 2, 1},
        {1, 1, 1, 2},
        {1, 1, 0, 1},
        {1, 1, 1, 0},
        {1, 0, 1, 1},
        {1, 1, (INT64_C(1) << 40) - 1, 1},
        {1, 1, INT64_C(1) << 39, 1},
        {1, (UINT64_C(1) << 48) - 1, 1, 1},
        {1, 1, 1, 65535},
        {UINT64_MAX, 1, 1, 1},
    };
    float a[N], b[N];

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        mask_of(&keys[i], N, a);
        for (size_t j = 0; j < i; j++) {
            mask_of(&keys[j], N, b);
            if (fabs(agreement(a, b) - 0.5) > 5 * 0.5 / 64)
                fail_msg("masks %zu and %zu agree in %g", i, j, agreement(a, b));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeros_come_at_the_rate),
        cmocka_unit_test(elements_are_named_draws),
        cmocka_unit_test(same_key_same_mask),
        cmocka_unit_test(other_key_other_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

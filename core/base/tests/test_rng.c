/* The known answers are those of Random123's kat_vectors; splitmix64's are of its authors'
 * reference code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/rng.h"

static void philox_gives_the_known_answers(void **state)
{
    // clang-format off
    static const struct { uint32_t counter[4], key[2], want[4]; } known[] = {
        {{0, 0, 0, 0}, {0, 0},
         {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    // clang-format on
    uint32_t got[4];

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        dpt_philox(known[i].key, known[i].counter, got);
        assert_memory_equal(got, known[i].want, sizeof got);
    }
}

/* Also where the lower half of the counter overflows, and for every length of the rest. */
static void a_run_is_one_after_another(void **state)
{
    enum { MOST = 100 };
    uint32_t run[4 * MOST + 1], one[4];

    (void)state;
    for (size_t n = 0; n <= MOST; n++) {
        const uint64_t seed = dpt_mix64(n), a = dpt_mix64(seed);
        const uint64_t b = n % 3 == 0   ? dpt_mix64(a)
                           : n % 3 == 1 ? (UINT64_C(7) << 32) - n / 2
                                        : UINT64_MAX - n / 2;

        run[4 * n] = 42;
        dpt_random4_run(seed, DPT_RANDOM_DROPOUT, a, b, n, run);
        for (size_t i = 0; i < n; i++) {
            dpt_random4(seed, DPT_RANDOM_DROPOUT, a, b + i, one);
            assert_memory_equal(run + 4 * i, one, sizeof one);
        }
        assert_int_equal(run[4 * n], 42);
    }
}

static void mix_is_splitmix(void **state)
{
    const uint64_t step = UINT64_C(0x9E3779B97F4A7C15);

    (void)state;
    assert_true(dpt_mix64(1234567 + step) == UINT64_C(6457827717110365317));
    assert_true(dpt_mix64(1234567 + 2 * step) == UINT64_C(3203168211198807973));
    assert_true(dpt_mix64(step) == UINT64_C(0xE220A8397B1DCDAF));
}

/* Every part of the name of a draw matters, also its upper half. */
static void draws_differ_by_name(void **state)
{
    const uint64_t far = UINT64_C(1) << 40;
    const uint64_t draw[] = {
        dpt_random64(1, DPT_RANDOM_INIT, 2, 3),       dpt_random64(2, DPT_RANDOM_INIT, 2, 3),
        dpt_random64(1 + far, DPT_RANDOM_INIT, 2, 3), dpt_random64(1, DPT_RANDOM_DROPOUT, 2, 3),
        dpt_random64(1, DPT_RANDOM_INIT, 3, 3),       dpt_random64(1, DPT_RANDOM_INIT, 2 + far, 3),
        dpt_random64(1, DPT_RANDOM_INIT, 2, 4),       dpt_random64(1, DPT_RANDOM_INIT, 2, 3 + far),
    };

    (void)state;
    for (size_t i = 0; i < sizeof draw / sizeof draw[0]; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(draw[i] != draw[j]);
    assert_true(draw[0] == dpt_random64(1, DPT_RANDOM_INIT, 2, 3));
}

typedef void (*filler)(uint64_t, enum dpt_random_stream, uint64_t, uint64_t, size_t, float *);

/* The first of n numbers is the first of a block. */
static void fill_blocks(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t first,
                        size_t n, float *out)
{
    float block[DPT_NORMAL_BLOCK];

    for (size_t i = 0; i < n; i += DPT_NORMAL_BLOCK) {
        const size_t some = n - i < DPT_NORMAL_BLOCK ? n - i : DPT_NORMAL_BLOCK;

        dpt_random_normal_block(seed, stream, a, (first + i) / 4, block);
        memcpy(out + i, block, some * sizeof *out);
    }
}

static const filler fillers[] = {dpt_random_uniform, dpt_random_normal, fill_blocks};

/* Element k is the same wherever a call begins and ends, and nothing is written past the end. */
static void elements_do_not_depend_on_first(void **state)
{
    float whole[64], part[65];

    (void)state;
    for (int f = 0; f < 2; f++) {
        fillers[f](5, DPT_RANDOM_INIT, 1, 1000, 64, whole);
        for (size_t from = 0; from < 64; from++) {
            for (size_t n = 0; n <= 64 - from; n++) {
                part[n] = 77.0f;
                fillers[f](5, DPT_RANDOM_INIT, 1, 1000 + from, n, part);
                assert_memory_equal(part, whole + from, n * sizeof part[0]);
                assert_true(part[n] == 77.0f);
            }
        }
    }
}

static double uniform_below(double x)
{
    return x;
}

static double normal_below(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Kolmogorov and Smirnov's distance to the distribution; neighbours are uncorrelated. */
static void numbers_have_their_distribution(void **state)
{
    static double (*const below[])(double) = {uniform_below, normal_below, normal_below};
    static const double mean[] = {0.5, 0.0, 0.0}, variance[] = {1.0 / 12.0, 1.0, 1.0};
    const size_t n = 200000;
    float *x = malloc(n * sizeof *x);

    (void)state;
    assert_non_null(x);
    for (int f = 0; f < 3; f++) {
        double worst = 0.0;

        fillers[f](1, DPT_RANDOM_INIT, 0, 0, n, x);
        for (size_t lag = 1; lag <= 4; lag++) {
            double together = 0.0;

            for (size_t i = lag; i < n; i++)
                together += (x[i] - mean[f]) * (x[i - lag] - mean[f]);
            assert_true(fabs(together / variance[f]) < 4.5 * sqrt((double)n));
        }
        qsort(x, n, sizeof *x, ascending);
        for (size_t i = 0; i < n; i++)
            worst = fmax(worst, fabs(below[f](x[i]) - ((double)i + 0.5) / (double)n));
        assert_true(worst * sqrt((double)n) < 1.95); /* exceeded once in 1000 */
        assert_true(f > 0 || (x[0] >= 0.0f && x[n - 1] < 1.0f));
        assert_true(isfinite(x[0]) && isfinite(x[n - 1]));
    }
    free(x);
}

/* Box & Muller's in double precision, of the same words; and the bits that every machine has. */
static void blocks_are_box_mullers(void **state)
{
    static const float bits[] = {0x1.afba1ep-1F, -0x1.132612p-6F, -0x1.70c578p+1F, 0x1.2ff9a2p+1F,
                                 0x1.b53bbap-2F, 0x1.e9bccap+0F,  -0x1.74cbdp-1F};
    enum { HALF = DPT_NORMAL_BLOCK / 2 };
    float x[DPT_NORMAL_BLOCK];
    uint32_t word[DPT_NORMAL_BLOCK];

    (void)state;
    for (uint64_t b = 0; b < 1000; b++) {
        dpt_random_normal_block(1, DPT_RANDOM_TRANSFORM, 2, b * DPT_NORMAL_DRAWS, x);
        dpt_random4_run(1, DPT_RANDOM_TRANSFORM, 2, b * DPT_NORMAL_DRAWS, DPT_NORMAL_DRAWS, word);
        for (int k = 0; k < HALF; k++) {
            const uint32_t w = word[HALF + k];
            const double radius = sqrt(-2 * log(((word[k] >> 8) + 1) * 0x1p-24));
            const double turns = (w >> 30) / 4.0 + ((w << 2 >> 8) * 0x1p-24 - 0.5) / 4;

            assert_true(fabs(radius * cos(2 * M_PI * turns) - (double)x[k]) < 1e-6);
            assert_true(fabs(radius * sin(2 * M_PI * turns) - (double)x[HALF + k]) < 1e-6);
        }
    }
    dpt_random_normal_block(1, DPT_RANDOM_TRANSFORM, 2, 3, x);
    for (int k = 0; k < 7; k++)
        assert_memory_equal(&x[21 * k], &bits[k], sizeof *x);
}

/* Each image once, for all small sizes and some large ones. */
static void permutation_is_one_to_one(void **state)
{
    static const uint64_t large[] = {1023, 1024, 1025, 4095, 4096, 4097, 10007, 60000, 65537};
    char *seen = calloc(70000, 1);

    (void)state;
    assert_non_null(seen);
    for (uint64_t k = 0; k < 300 + sizeof large / sizeof large[0]; k++) {
        const uint64_t n = k < 300 ? k + 1 : large[k - 300];

        memset(seen, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t image = dpt_permute(k, DPT_RANDOM_SHUFFLE, k / 3, n, i);

            assert_true(image < n);
            assert_false(seen[image]);
            seen[image] = 1;
        }
    }
    free(seen);
}

/* Several images at a time are the same images. */
static void permutation_in_runs(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 400; k++) {
        const uint64_t word = dpt_random64(k, DPT_RANDOM_SYNTHETIC, 0, 0);
        const uint64_t n = 1 + (k % 2 == 0 ? word % 5000 : word >> (word % 50));
        const uint64_t first = dpt_random64(k, DPT_RANDOM_SYNTHETIC, 0, 1) % n;
        const size_t count = n - first < 70 ? (size_t)(n - first) : (size_t)(word % 71);
        uint64_t image[71];

        dpt_permute_run(k, DPT_RANDOM_SHUFFLE, 5, n, first, count, image);
        for (size_t i = 0; i < count; i++)
            assert_true(image[i] == dpt_permute(k, DPT_RANDOM_SHUFFLE, 5, n, first + i));
    }
}

/* Sizes that cannot be walked through: images lie inside, and no two of many are alike. */
static void permutation_of_huge_sizes(void **state)
{
    static const uint64_t sizes[] = {UINT64_C(0xFFFFFFFF), UINT64_C(1) << 40, INT64_MAX,
                                     UINT64_MAX};
    uint64_t image[500];

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (uint64_t i = 0; i < 500; i++) {
            image[i] =
                dpt_permute(1, DPT_RANDOM_SHUFFLE, 0, sizes[s], i % 2 == 0 ? i : sizes[s] - i);
            assert_true(image[i] < sizes[s]);
            for (uint64_t j = 0; j < i; j++)
                assert_true(image[i] != image[j]);
        }
    }
}

/* Another epoch, seed or stream is another order: as many fixed places as chance leaves (one on
 * average). */
static void permutations_differ(void **state)
{
    const uint64_t n = 5000;
    int same[3] = {0};

    (void)state;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t image = dpt_permute(1, DPT_RANDOM_SHUFFLE, 1, n, i);

        same[0] += image == dpt_permute(1, DPT_RANDOM_SHUFFLE, 2, n, i);
        same[1] += image == dpt_permute(2, DPT_RANDOM_SHUFFLE, 1, n, i);
        same[2] += image == dpt_permute(1, DPT_RANDOM_HOLDOUT, 1, n, i);
    }
    for (int k = 0; k < 3; k++)
        assert_in_range(same[k], 0, 10);
}

/* (chi^2 - degrees) / its standard deviation, for counts that should all be alike. */
static double excess(const int *count, int cells, double total)
{
    const double each = total / cells;
    double chi = 0.0;

    for (int k = 0; k < cells; k++)
        chi += (count[k] - each) * (count[k] - each) / each;
    return (chi - (cells - 1)) / sqrt(2.0 * (cells - 1));
}

/* All n! orders of few elements are alike likely: over epochs, each comes up about as often. */
static void small_permutations_are_uniform(void **state)
{
    int cells = 1;

    (void)state;
    for (int n = 2; n <= 6; n++) {
        const int epochs = 60000;
        int count[720] = {0};

        cells *= n;
        for (int e = 0; e < epochs; e++) {
            int order[6], code = 0;

            for (int i = 0; i < n; i++) {
                int smaller = 0;

                order[i] =
                    (int)dpt_permute(3, DPT_RANDOM_SHUFFLE, (uint64_t)e, (uint64_t)n, (uint64_t)i);
                for (int j = 0; j < i; j++)
                    smaller += order[j] < order[i];
                code = code * (i + 1) + smaller;
            }
            count[code]++;
        }
        assert_true(excess(count, cells, epochs) < 5.0);
    }
}

/* Where two neighbours go is independent: all pairs of 32 x 32 stretches are alike likely. */
static void neighbours_part(void **state)
{
    enum { CELLS = 32, N = CELLS * 128 };
    static int count[CELLS * CELLS];
    const int epochs = 60;

    (void)state;
    for (int e = 0; e < epochs; e++) {
        int before = (int)dpt_permute(7, DPT_RANDOM_SHUFFLE, (uint64_t)e, N, N - 1);

        for (uint64_t i = 0; i < N; i++) {
            const int image = (int)dpt_permute(7, DPT_RANDOM_SHUFFLE, (uint64_t)e, N, i);

            count[before / 128 * CELLS + image / 128]++;
            before = image;
        }
    }
    assert_true(excess(count, CELLS * CELLS, (double)epochs * N) < 5.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(a_run_is_one_after_another),
        cmocka_unit_test(mix_is_splitmix),
        cmocka_unit_test(draws_differ_by_name),
        cmocka_unit_test(elements_do_not_depend_on_first),
        cmocka_unit_test(numbers_have_their_distribution),
        cmocka_unit_test(blocks_are_box_mullers),
        cmocka_unit_test(permutation_is_one_to_one),
        cmocka_unit_test(permutation_in_runs),
        cmocka_unit_test(permutation_of_huge_sizes),
        cmocka_unit_test(permutations_differ),
        cmocka_unit_test(small_permutations_are_uniform),
        cmocka_unit_test(neighbours_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

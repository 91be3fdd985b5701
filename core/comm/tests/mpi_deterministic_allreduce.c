/* ranks: 1 2 3 4 7 8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/rng.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/deterministic_allreduce.h"

enum { LEAVES = 64, FLOATS = 1000, MANY = 40000 };

static struct dpt_comm comm;

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 79, i) % sides;
}

/* Leaf i of a case: the same numbers on all ranks, of very different sizes. */
static void leaf(uint64_t seed, int32_t i, size_t n, float *x)
{
    float scales[64];

    for (size_t k = 0; k < 64; k++)
        scales[k] = (float)(1 << dice(seed, (uint64_t)i * 64 + k, 20));
    dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 80 + (uint64_t)i, 0, n, x);
    for (size_t k = 0; k < n; k++)
        x[k] *= scales[k % 64];
}

/* By the definition: pairs of neighbours, then pairs of those, level by level. */
static void define(uint64_t seed, int32_t total, size_t n, float *sum)
{
    static float value[LEAVES][MANY];
    int32_t count = total;

    for (int32_t i = 0; i < total; i++)
        leaf(seed, i, n, value[i]);
    for (; count > 1; count = (count + 1) / 2)
        for (int32_t i = 0; i < count; i += 2) {
            for (size_t k = 0; k < n; k++)
                value[i / 2][k] = i + 1 < count ? value[i][k] + value[i + 1][k] : value[i][k];
        }
    memcpy(sum, value[0], n * sizeof *sum);
}

static void one_sum(struct dpt_deterministic_allreduce *d, uint64_t seed, size_t n,
                    const struct dpt_chunks *chunks)
{
    static float want[MANY];
    const double *sums_of_squares;
    float words[DPT_DETERMINISTIC_WORDS], word_sums[DPT_DETERMINISTIC_WORDS];
    const int ranks = comm.world.size;
    /* Half of the time one block a rank, all of one size but for the last, which may be cut off. */
    const bool even = dice(seed, 4, 2) == 0 && ranks <= 8;
    const int32_t run = 1 << dice(seed, 5, 4);
    const int32_t total = even ? run * ranks - (int32_t)dice(seed, 6, (uint64_t)run)
                               : 1 + (int32_t)dice(seed, 1, LEAVES);
    int32_t first[64];
    struct dpt_error err;
    struct dpt_tree tree;

    for (int r = 0; r <= ranks; r++)
        first[r] = !even ? total * r / ranks : run * r < total ? run * r : total;
    if (!even && dice(seed, 2, 2) == 0 && ranks > 1) /* also uneven runs, some empty */
        first[1] = first[2];
    dpt_tree_begin(&tree, total);
    for (int32_t i = first[comm.world.rank], k = 0; i < first[comm.world.rank + 1]; i++, k++) {
        leaf(seed, i, n, dpt_deterministic_buffer(d, k));
        dpt_tree_push(&tree, (struct dpt_block){i, 0}, dpt_deterministic_buffer(d, k), n, NULL,
                      NULL);
    }
    assert_int_equal(dpt_deterministic_reserve(d, first, &err), DPT_OK);
    for (int i = 0; i < DPT_DETERMINISTIC_WORDS; i++)
        words[i] = (float)(comm.world.rank + i);
    assert_int_equal(
        dpt_deterministic_publish(d, &tree, words, word_sums, DPT_DETERMINISTIC_WORDS, &err),
        DPT_OK);
    for (int i = 0; i < DPT_DETERMINISTIC_WORDS; i++)
        assert_true(word_sums[i] == (float)ranks * (float)(ranks - 1) / 2 + (float)(ranks * i));
    assert_int_equal(dpt_deterministic_sum(d, &tree, first, &err), DPT_OK);
    if (comm.world.rank == 0)
        define(seed, total, n, want);
    assert_int_equal(dpt_group_broadcast(&comm.world, 0, want, n * sizeof *want, &err), DPT_OK);
    assert_memory_equal(dpt_deterministic_result(d), want, n * sizeof *want);
    sums_of_squares = dpt_deterministic_sums_of_squares(d);
    for (size_t k = 0; sums_of_squares != NULL && k < chunks->n; k++)
        assert_true(
            sums_of_squares[k] ==
            dpt_sum_of_squares(want + chunks->begin[k], chunks->begin[k + 1] - chunks->begin[k]));
}

/* Chunks of any size over the first n floats. */
static void cut(uint64_t seed, size_t n, struct dpt_chunks *chunks)
{
    chunks->n = 0;
    for (size_t at = 0; at < n; at += 1 + dice(seed, 300 + at, 1024))
        chunks->begin[chunks->n++] = at;
    chunks->begin[chunks->n] = n;
}

static void sums(enum dpt_deterministic_way way)
{
    for (uint64_t round = 0; round < 13; round++) {
        const bool many = round == 12; /* so many that the slices are made of whole runs */
        const size_t n = many ? MANY - 3 : 1 + dice(round, 3, FLOATS);
        size_t begin[MANY];
        struct dpt_deterministic_spec spec = {
            .n = n, .buffers = LEAVES, .way = way, .chunks = {.begin = begin}};
        struct dpt_deterministic_allreduce *d;
        struct dpt_error err;

        cut(round, n / 2, &spec.chunks);
        assert_int_equal(dpt_deterministic_open(&d, &comm, &spec, &err), DPT_OK);
        assert_true((dpt_deterministic_sums_of_squares(d) != NULL) ==
                    (many && way != DPT_DETERMINISTIC_MESSAGES && comm.world.size > 1));
        for (uint64_t i = 0; i < (many ? 2 : 20); i++)
            one_sum(d, round * 100 + i, n, &spec.chunks);
        dpt_deterministic_close(d);
    }
}

static void same_bits_through_shared_memory(void **state)
{
    (void)state;
    sums(DPT_DETERMINISTIC_AUTO);
}

static void same_bits_through_messages(void **state)
{
    (void)state;
    sums(DPT_DETERMINISTIC_MESSAGES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_through_shared_memory),
        cmocka_unit_test(same_bits_through_messages),
    };
    struct dpt_error err;
    int failed;

    if (dpt_comm_open(&comm, &err) != DPT_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    dpt_comm_close(&comm);
    return failed;
}

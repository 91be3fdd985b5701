#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/rng.h"
#include "core/comm/sums/tree.h"

enum { MOST = 300, WIDTH = 3 };

/* The definition, word for word: the value of the node [begin, begin + size). */
static void define(float leaf[][WIDTH], int32_t total, int32_t begin, int32_t size, float *value)
{
    float right[WIDTH];

    if (size == 1) {
        memcpy(value, leaf[begin], sizeof right);
        return;
    }
    define(leaf, total, begin, size / 2, value);
    if (begin + size / 2 >= total)
        return;
    define(leaf, total, begin + size / 2, size / 2, right);
    for (int i = 0; i < WIDTH; i++)
        value[i] += right[i];
}

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 77, i) % sides;
}

/* Leaves of very different sizes, so that another order of adding would show. */
static void fill(uint64_t seed, int32_t total, float leaf[][WIDTH])
{
    dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 78, 0, (size_t)total * WIDTH, leaf[0]);
    for (int32_t i = 0; i < total; i++)
        for (int k = 0; k < WIDTH; k++)
            leaf[i][k] *= (float)(1 << dice(seed, (uint64_t)i, 20));
}

/* However the leaves are cut into runs, and the runs' blocks joined, the sum has the bits of the
 * definition. */
static void any_partition_gives_the_same_bits(void **state)
{
    static float leaf[MOST][WIDTH], work[MOST][WIDTH];
    (void)state;

    for (uint64_t seed = 0; seed < 2000; seed++) {
        const int32_t total = 1 + (int32_t)dice(seed, 1000, MOST);
        const int ranks = 1 + (int)dice(seed, 1001, 9);
        struct dpt_tree whole;
        float want[WIDTH];
        int32_t size = 1;

        fill(seed, total, leaf);
        memcpy(work, leaf, sizeof work);
        while (size < total)
            size *= 2;
        define(leaf, total, 0, size, want);
        dpt_tree_begin(&whole, total);
        for (int r = 0; r < ranks; r++) {
            const int32_t first = total * r / ranks, last = total * (r + 1) / ranks;
            struct dpt_block blocks[DPT_TREE_BLOCKS];
            struct dpt_tree part;
            int most = 0;

            dpt_tree_begin(&part, total);
            for (int32_t i = first; i < last; i++) {
                most = part.n > most ? part.n : most;
                dpt_tree_push(&part, (struct dpt_block){i, 0}, work[i], WIDTH, NULL, NULL);
            }
            assert_int_equal(most, dpt_tree_most(first, last, total));
            assert_int_equal(part.n, dpt_tree_blocks(first, last, total, blocks));
            for (int i = 0; i < part.n; i++) {
                assert_int_equal(part.block[i].begin, blocks[i].begin);
                assert_int_equal(part.block[i].level, blocks[i].level);
                dpt_tree_push(&whole, part.block[i], part.value[i], WIDTH, NULL, NULL);
            }
        }
        assert_int_equal(whole.n, 1);
        assert_ptr_equal(whole.value[0], work[0]);
        assert_memory_equal(whole.value[0], want, sizeof want);
    }
}

/* A thread that walks its leaves needs few buffers, and gets back what merging frees. */
static void buffers_are_few_and_come_back(void **state)
{
    static float buffer[DPT_TREE_BLOCKS][1];
    (void)state;

    for (int32_t total = 1; total <= 1500; total += 7) {
        float *spare[DPT_TREE_BLOCKS], *back[DPT_TREE_BLOCKS];
        struct dpt_tree tree;
        int n_spare = DPT_TREE_BLOCKS, n_back, levels = 1, least = DPT_TREE_BLOCKS;

        while ((1 << levels) < total)
            levels++;
        for (int i = 0; i < n_spare; i++)
            spare[i] = buffer[i];
        dpt_tree_begin(&tree, total);
        for (int32_t i = 0; i < total; i++) {
            float *mine = spare[--n_spare];

            *mine = 1;
            least = n_spare < least ? n_spare : least;
            dpt_tree_push(&tree, (struct dpt_block){i, 0}, mine, 1, back, &n_back);
            while (n_back > 0)
                spare[n_spare++] = back[--n_back];
        }
        assert_int_equal(tree.n, 1);
        assert_true(*tree.value[0] == (float)total);
        assert_int_equal(n_spare, DPT_TREE_BLOCKS - 1);
        assert_true(DPT_TREE_BLOCKS - least <= levels + 1);
    }
}

/* What ranks that follow one another have together is what their blocks merge to, and in all rounds
 * the ranks have each leaf once. */
static void blocks_of_ranks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        const int ranks = 1 + (int)dice(seed, 0, 9), each = 1 + (int)dice(seed, 1, 4);
        const int32_t total = 1 + (int32_t)dice(seed, 2, 60);
        int32_t first[10] = {0};
        struct dpt_tree_division d = {first, ranks, seed % 2 == 0};
        int32_t covered = 0;

        for (int r = 1; r < ranks; r++)
            first[r] = first[r - 1] +
                       (int32_t)dice(seed, (uint64_t)r + 3, (uint64_t)(total - first[r - 1]) + 1);
        first[ranks] = total;
        for (int32_t k = 0; k < dpt_tree_rounds(&d); k++) {
            for (int r = 0; r < ranks; r += each) {
                const int end = r + each < ranks ? r + each : ranks;
                struct dpt_block blocks[DPT_TREE_BLOCKS];
                struct dpt_tree tree;
                int n;

                dpt_tree_begin(&tree, total);
                for (int i = r; i < end; i++) {
                    n = dpt_tree_blocks_of(&d, k, i, i + 1, blocks);
                    for (int b = 0; b < n; b++)
                        dpt_tree_push(&tree, blocks[b], NULL, 0, NULL, NULL);
                }
                n = dpt_tree_blocks_of(&d, k, r, end, blocks);
                assert_int_equal(n, tree.n);
                for (int b = 0; b < n; b++) {
                    const int64_t after = blocks[b].begin + (INT64_C(1) << blocks[b].level);

                    assert_memory_equal(&blocks[b], &tree.block[b], sizeof blocks[b]);
                    covered += (int32_t)(after < total ? after : total) - blocks[b].begin;
                }
            }
        }
        assert_int_equal(covered, total);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_ranks),
        cmocka_unit_test(any_partition_gives_the_same_bits),
        cmocka_unit_test(buffers_are_few_and_come_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * leaves: what sums along the tree add in tests, and what they have to be.
 */
#ifndef DPT_COMM_TESTS_LEAVES_H
#define DPT_COMM_TESTS_LEAVES_H

#include "core/base/rng.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/sums/deterministic_allreduce.h"
#include "core/comm/tests/ranks.h"

enum { LEAVES = 64, FLOATS = 1000, MANY = 40000 };

static inline uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 79, i) % sides;
}

/* n floats from number `first` on of leaf i of a case: the same numbers on all ranks, of very
 * different sizes. */
static inline void leaf(uint64_t seed, int32_t i, size_t first, size_t n, float *x)
{
    float scales[64];

    for (size_t k = 0; k < 64; k++)
        scales[k] = (float)(1 << dice(seed, (uint64_t)i * 64 + k, 20));
    dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 80 + (uint64_t)i, first, n, x);
    for (size_t k = 0; k < n; k++)
        x[k] *= scales[(first + k) % 64];
}

/* By the definition: pairs of neighbours, then pairs of those, level by level. Each rank defines a
 * share of the n floats, since those that wait for another take its time. sum: room for MANY. */
static inline void define(uint64_t seed, int32_t total, size_t n, float *sum)
{
    static float value[LEAVES][MANY], all[MANY + 64];
    const size_t ranks = (size_t)comm.world.size, share = (n + ranks - 1) / ranks,
                 first = share * (size_t)comm.world.rank,
                 own = first >= n          ? 0
                       : n - first < share ? n - first
                                           : share;
    struct dpt_error err;
    int32_t count = total;

    for (int32_t i = 0; i < total; i++)
        leaf(seed, i, first, own, value[i]);
    for (; count > 1; count = (count + 1) / 2)
        for (int32_t i = 0; i < count; i += 2) {
            for (size_t k = 0; k < own; k++)
                value[i / 2][k] = i + 1 < count ? value[i][k] + value[i + 1][k] : value[i][k];
        }
    assert_int_equal(dpt_group_allgather(&comm.world, value[0], all, share * sizeof *all, &err),
                     DPT_OK);
    memcpy(sum, all, n * sizeof *sum);
}

/* Whether a rank owns float i, or chunk i. */
static inline bool owns(const struct dpt_deterministic_allreduce *d, int rank, size_t i, bool chunk)
{
    for (int k = 0; k < dpt_deterministic_ranges(d); k++) {
        const struct dpt_slice own = dpt_deterministic_slice(d, rank, k);

        if (chunk ? i >= own.first && i < own.last : i >= own.begin && i < own.end)
            return true;
    }
    return false;
}

/* In shards: each rank has its slices of the sum, what is after the chunks, and all squares; and
 * all get what the owners make of theirs. */
static inline void check_shards(struct dpt_deterministic_allreduce *d, size_t n, const float *want,
                                const struct dpt_deterministic_spec *spec, struct dpt_pool *pool)
{
    static float weights[MANY];
    static double numbers[2 * MANY];
    const size_t learned = spec->chunks.begin[spec->chunks.n];
    const float *sum = dpt_deterministic_result(d);
    struct dpt_error err;
    size_t owned = 0;

    for (int k = 0; k < dpt_deterministic_ranges(d); k++) {
        const struct dpt_slice own = dpt_deterministic_slice(d, comm.world.rank, k);

        for (int r = 0; r < comm.world.size; r++) {
            const struct dpt_slice slice = dpt_deterministic_slice(d, r, k);

            assert_int_equal(slice.begin, spec->chunks.begin[slice.first]);
            assert_int_equal(slice.end, spec->chunks.begin[slice.last]);
            owned += slice.end - slice.begin;
        }
        assert_memory_equal(dpt_deterministic_slice_sum(d, k) + own.begin, want + own.begin,
                            (own.end - own.begin) * sizeof *sum);
    }
    assert_int_equal(owned, learned);
    assert_memory_equal(sum + learned, want + learned, (n - learned) * sizeof *sum);
    if (spec->keeps_sum)
        assert_memory_equal(sum, want, n * sizeof *sum);
    for (size_t i = 0; i < learned; i++)
        weights[i] = owns(d, comm.world.rank, i, false) ? 2 * want[i] : -1;
    for (size_t i = 0; i < learned && dpt_deterministic_weights(d) != NULL; i++)
        if (owns(d, comm.world.rank, i, false))
            dpt_deterministic_weights(d)[i] = weights[i];
    for (size_t k = 0; k < 2 * spec->chunks.n; k++)
        numbers[k] = owns(d, comm.world.rank, k / 2, true) ? (double)k : -1;
    assert_int_equal(dpt_deterministic_gather_chunks(d, numbers, 2, &err), DPT_OK);
    assert_int_equal(dpt_deterministic_share(d, weights, pool, &err), DPT_OK);
    for (size_t i = 0; i < learned; i++)
        assert_true(weights[i] == 2 * want[i]);
    for (size_t k = 0; k < 2 * spec->chunks.n; k++)
        assert_true(numbers[k] == (double)k);
    if (spec->keeps_sum)
        assert_memory_equal(sum, want, n * sizeof *sum);
}

/* Chunks of any size over the first n floats, or of whole cache lines. */
static inline void cut(uint64_t seed, size_t n, struct dpt_chunks *chunks)
{
    chunks->n = 0;
    for (size_t at = 0; at < n;
         at += seed % 3 == 0 ? 1 + dice(seed, 300 + at, 1024) : 16 * (1 + dice(seed, 300 + at, 64)))
        chunks->begin[chunks->n++] = at;
    chunks->begin[chunks->n] = n;
}

#endif

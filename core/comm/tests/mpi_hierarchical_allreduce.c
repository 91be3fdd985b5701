/* ranks: 1 2 3 4 8 */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/base/rng.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/sums/hierarchical_allreduce.h"
#include "core/comm/tests/ranks.h"

enum { MOST_BUFFERS = 3, MOST_FLOATS = 60000, CASES = 24, SUMS = 6, LINE = 16 };

static const struct dpt_comm *ranks = &comm; /* on their nodes */
static size_t early;                         /* floats that are summed in buckets */

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 90, i) % sides;
}

/* Sizes on both sides of what is called small, of a cache line, of one thread's work. */
static size_t floats_of(uint64_t seed)
{
    static const size_t sizes[] = {1, 22, 300, 2000, 5000, MOST_FLOATS - 1};
    const size_t most = sizes[dice(seed, 0, 6)];

    return most - dice(seed, 1, most < 16 ? 1 : 16);
}

static int buffers_of(uint64_t seed, int rank)
{
    return 1 + (int)dice(seed, 10 + (uint64_t)rank, MOST_BUFFERS);
}

/* Any, also none: then the first one counts, which is zeros. */
static bool is_filled(uint64_t seed, uint64_t sum, int rank, int buffer)
{
    return dice(seed, 1000 + (sum * 64 + (uint64_t)rank) * 8 + (uint64_t)buffer, 4) != 0;
}

static float value(uint64_t seed, uint64_t sum, int rank, int buffer, size_t i)
{
    const uint64_t result = ((seed * SUMS + sum) * 64 + (uint64_t)rank) * 8 + (uint64_t)buffer;

    return (float)((double)(((uint64_t)i * 2654435761U + result * 40503U) % 20011) * 1e-3 - 10);
}

/* From the end to the begin, in pieces of which some are passed: a rank may also pass none. */
static void fill(struct dpt_hierarchical_allreduce *s, uint64_t seed, uint64_t sum, size_t n,
                 bool *filled)
{
    const int rank = comm.world.rank;

    for (int b = 0; b < buffers_of(seed, rank); b++) {
        float *x = dpt_hierarchical_buffer(s, b);
        const uint64_t own = (sum * 64 + (uint64_t)rank) * 8 + (uint64_t)b;

        CHECK((uintptr_t)x % 64 == 0);
        filled[b] = is_filled(seed, sum, rank, b);
        for (size_t end = n, begin; end > 0; end = begin) {
            const size_t piece = 1 + dice(seed, 5000 + own + end, n);

            begin = end > piece ? end - piece : 0;
            for (size_t i = begin; i < end; i++) /* what is not filled must not be looked at */
                x[i] = filled[b] ? value(seed, sum, rank, b, i) : b == 0 ? 0 : NAN;
            if (begin < early && dice(seed, 5000 + own, 4) != 0)
                dpt_hierarchical_pass(s, b, begin, filled[b]);
        }
    }
}

/* All ranks must have the same bits, so each compares a part of them with what is right. Returns
 * their hash. */
static uint64_t check_sum(const struct dpt_hierarchical_allreduce *s, uint64_t seed, uint64_t sum,
                          size_t n)
{
    const size_t size = (size_t)comm.world.size, rank = (size_t)comm.world.rank;
    const float *got = dpt_hierarchical_result(s);
    uint64_t hash = 0, hashes[64];
    struct {
        int rank, buffer;
    } filled[64 * MOST_BUFFERS];
    int count = 0;
    struct dpt_error err;

    for (int r = 0; r < comm.world.size; r++)
        for (int b = 0; b < buffers_of(seed, r); b++)
            if (is_filled(seed, sum, r, b)) {
                filled[count].rank = r;
                filled[count++].buffer = b;
            }
    for (size_t i = n * rank / size; i < n * (rank + 1) / size; i++) {
        double want = 0, sizes = 0;

        for (int f = 0; f < count; f++) {
            const double x = value(seed, sum, filled[f].rank, filled[f].buffer, i);

            want += x;
            sizes += fabs(x);
        }
        if (!(fabs(got[i] - want) <= 2e-6 * sizes))
            fprintf(stderr, "case %llu, sum %llu, float %zu of %zu: %g instead of %g\n",
                    (unsigned long long)seed, (unsigned long long)sum, i, n, (double)got[i], want);
        CHECK(fabs(got[i] - want) <= 2e-6 * sizes);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &got[i], sizeof bits);
        hash = hash * 31 + bits;
    }
    CHECK(dpt_group_allgather(&comm.world, &hash, hashes, sizeof hash, &err) == DPT_OK);
    for (int r = 0; r < comm.world.size; r++)
        CHECK(hashes[r] == hash);
    return hash;
}

/* Where there are any, they have the bits of those made of the sum. */
static void check_squares(const struct dpt_hierarchical_allreduce *s, size_t n)
{
    enum { CHUNK = DPT_SUM_OF_SQUARES_CHUNK };
    const double *sums_of_squares = dpt_hierarchical_sums_of_squares(s);

    for (size_t at = 0, left; sums_of_squares != NULL && at < n; at += CHUNK) {
        left = n - at < CHUNK ? n - at : CHUNK;
        CHECK(sums_of_squares[at / CHUNK] ==
              dpt_sum_of_squares(dpt_hierarchical_result(s) + at, left));
    }
}

/* large: floats from which on the buffers are shared, or 0. Returns the hash of the last sum. */
static uint64_t sums(uint64_t seed, size_t n, bool hierarchical, bool possible, bool again,
                     size_t large)
{
    const struct dpt_hierarchical_spec spec = {.n = n,
                                               .buffers = buffers_of(seed, comm.world.rank),
                                               .hierarchical = hierarchical,
                                               .spin = dice(seed, 2, 2) == 0,
                                               .sums_of_squares = n - dice(seed, 3, n),
                                               .large = large,
                                               .early = early};
    struct dpt_hierarchical_allreduce *s;
    struct dpt_pool *pool;
    struct dpt_error err = {0};
    bool got, filled[MOST_BUFFERS];
    uint64_t hash = 0;

    CHECK(dpt_pool_open(&pool, spec.buffers, false, &err) == DPT_OK);
    CHECK(dpt_hierarchical_open(&s, ranks, &spec, &got, &err) == DPT_OK);
    CHECK(got == (hierarchical && possible));
    CHECK(possible || strstr(err.text, "cannot share") != NULL);
    for (uint64_t sum = 0; sum < SUMS; sum++) {
        const float *result = dpt_hierarchical_result(s);

        dpt_hierarchical_begin(s);
        fill(s, seed, sum, n, filled);
        CHECK(dpt_hierarchical_sum(s, filled, pool, &err) == DPT_OK);
        CHECK(result == dpt_hierarchical_result(s));
        check_squares(s, spec.sums_of_squares);
        if (!again)
            hash = check_sum(s, seed, sum, n);
    }
    /* Without anything between two sums that would keep the ranks in step. */
    if (again)
        hash = check_sum(s, seed, SUMS - 1, n);
    dpt_hierarchical_close(s);
    dpt_pool_close(pool);
    return hash;
}

static void hierarchical_sums_are_right(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++)
        sums(seed, floats_of(seed), true, true, seed % 2 == 1, seed / 2 % 2);
}

/* Whether a sum is large enough to be made where its parts lie changes no bit of it. */
static void large_sums_have_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES / 3; seed++) {
        const bool again = seed % 2 == 1;

        CHECK(sums(seed, floats_of(seed), true, true, again, 0) ==
              sums(seed, floats_of(seed), true, true, again, 1));
    }
}

enum { WAYS = 4, ALONE = 3 };

/* As if the machine were several nodes: of three ranks each; of all but one; of ranks that do not
 * follow each other; of one each (ALONE). */
static void on_nodes(int way, void (*test)(bool follow))
{
    const int rank = comm.world.rank, size = comm.world.size, last = size - 1,
              node[WAYS] = {rank / 3, rank == last, rank % 2, rank},
              nodes[WAYS] = {last / 3 + 1, last > 0 ? 2 : 1, last > 0 ? 2 : 1, size};
    struct dpt_comm part, leaders, several = split_into_nodes(node[way], nodes[way], &part);
    struct dpt_error err;

    CHECK_OK(dpt_comm_split(&comm, part.world.rank == 0 ? 0 : 1, &leaders, &err));
    several.leaders = part.world.rank == 0 ? leaders.world : (struct dpt_group){.rank = -1};
    ranks = &several;
    test(nodes[way] > 1 && (way != 2 || size == 2));
    ranks = &comm;
    dpt_comm_close(&leaders);
    dpt_comm_close(&part);
}

static void sum_some(bool follow)
{
    (void)follow;
    for (uint64_t seed = 0; seed < CASES / 2; seed++)
        sums(seed, floats_of(seed), true, true, seed % 2 == 1, 0);
}

static void sums_of_several_nodes_are_right(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++)
        on_nodes(way, sum_some);
}

/* Lengths below and above that from which nodes exchange parts; of which all, or not all, goes in
 * buckets. */
static void sum_in_buckets(bool follow)
{
    (void)follow;
    for (uint64_t seed = 0; seed < 6; seed++) {
        const size_t n = (seed < 5 ? 30000 + seed * 40000 : 400000) / LINE * LINE + LINE;
        const uint64_t at_once = sums(seed, n, true, true, seed % 2 == 1, 0);

        early = n - LINE * (1 + seed);
        CHECK(sums(seed, n, true, true, seed % 2 == 1, 0) == at_once);
        early = 0;
    }
}

static void buckets_have_the_same_bits(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++)
        on_nodes(way, sum_in_buckets);
}

static float read_float(const float *x)
{
    float value;

    __atomic_load(x, &value, __ATOMIC_ACQUIRE);
    return value;
}

/* The last bucket comes back while the first is not written yet, without any other call. */
static void sum_last_bucket(bool follow)
{
    enum { FLOATS = 200000 };
    const struct dpt_hierarchical_spec spec = {
        .n = FLOATS, .buffers = 1, .hierarchical = true, .early = FLOATS - LINE};
    const int size = comm.world.size;
    const bool filled = true;
    struct dpt_hierarchical_allreduce *s;
    struct dpt_error err = {0};
    int buckets;

    CHECK_OK(dpt_hierarchical_open(&s, ranks, &spec, NULL, &err));
    buckets = dpt_hierarchical_buckets(s);
    CHECK((buckets > 1) == follow && (buckets == 0) == !follow);
    for (int sum = 1; sum <= SUMS; sum++) {
        float *x = dpt_hierarchical_buffer(s, 0);

        dpt_hierarchical_begin(s);
        for (size_t i = FLOATS / 2; i < FLOATS; i++)
            x[i] = (float)sum;
        dpt_hierarchical_pass(s, 0, FLOATS / 2, true);
        while (buckets > 0 &&
               read_float(dpt_hierarchical_result(s) + FLOATS - 2 * LINE) != (float)(sum * size))
            usleep(1000);
        for (size_t i = 0; i < FLOATS / 2; i++)
            x[i] = (float)sum;
        CHECK_OK(dpt_hierarchical_sum(s, &filled, NULL, &err));
        for (size_t i = 0; i < FLOATS; i++)
            CHECK(dpt_hierarchical_result(s)[i] == (float)(sum * size));
        CHECK(dpt_hierarchical_early(s) >= (buckets > 0 ? sum : 0));
    }
    dpt_hierarchical_close(s);
}

static void buckets_go_while_others_are_written(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++)
        on_nodes(way, sum_last_bucket);
}

static void flat_sums_are_right(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++)
        sums(seed, floats_of(seed), false, true, seed % 2 == 1, 0);
}

/* Where memory cannot be shared it is done without, and said why. */
static void no_memory_to_share(void **state)
{
    const struct rlimit small = {4096, RLIM_INFINITY};
    struct rlimit before;

    (void)state;
    if (comm.world.size == 1)
        skip();
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0 && setrlimit(RLIMIT_FSIZE, &small) == 0);
    sums(3, 5000, true, false, false, 0);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hierarchical_sums_are_right),
        cmocka_unit_test(large_sums_have_the_same_bits),
        cmocka_unit_test(sums_of_several_nodes_are_right),
        cmocka_unit_test(buckets_have_the_same_bits),
        cmocka_unit_test(buckets_go_while_others_are_written),
        cmocka_unit_test(flat_sums_are_right),
        cmocka_unit_test(no_memory_to_share),
    };

    return RUN_ON_ALL_RANKS(tests);
}

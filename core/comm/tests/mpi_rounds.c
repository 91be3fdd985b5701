/* ranks: 1 2 3 4 7 8 */
/* Sums of leaves that ranks take round-robin, and what all sums send. */
#include "core/comm/internal.h"
#include "core/comm/tests/leaves.h"

/* --- bytes that this rank gives the others, by MPI's profiling interface ---------------------- */

static int64_t given, farthest;
static const float *origin;  /* from which it is counted how far what is sent lies away */
static float first_received; /* of the last rank */

static int64_t size_of(MPI_Datatype type)
{
    int size;

    PMPI_Type_size(type, &size);
    return size;
}

int MPI_Isend(const void *send, int n, MPI_Datatype type, int to, int tag, MPI_Comm c,
              MPI_Request *request)
{
    given += n * size_of(type);
    return PMPI_Isend(send, n, type, to, tag, c, request);
}

int MPI_Sendrecv(const void *send, int n, MPI_Datatype type, int to, int tag, void *receive, int m,
                 MPI_Datatype other, int from, int other_tag, MPI_Comm c, MPI_Status *status)
{
    const int64_t away = n > 0 && origin != NULL ? (const char *)send - (const char *)origin : 0;
    int code;

    given += n * size_of(type);
    farthest = away > farthest ? away : farthest;
    code = PMPI_Sendrecv(send, n, type, to, tag, receive, m, other, from, other_tag, c, status);
    if (m > 0)
        first_received = *(const float *)receive;
    return code;
}

int MPI_Alltoallv(const void *send, const int *counts, const int *at, MPI_Datatype type,
                  void *receive, const int *other_counts, const int *other_at, MPI_Datatype other,
                  MPI_Comm c)
{
    for (int r = 0; r < comm.world.size; r++)
        given += r == comm.world.rank ? 0 : counts[r] * size_of(type);
    return PMPI_Alltoallv(send, counts, at, type, receive, other_counts, other_at, other, c);
}

int MPI_Allgatherv(const void *send, int n, MPI_Datatype type, void *receive, const int *counts,
                   const int *at, MPI_Datatype other, MPI_Comm c)
{
    given += (comm.world.size - 1) * counts[comm.world.rank] * size_of(other);
    return PMPI_Allgatherv(send, n, type, receive, counts, at, other, c);
}

int MPI_Bcast(void *x, int n, MPI_Datatype type, int root, MPI_Comm c)
{
    given += root == comm.world.rank ? (comm.world.size - 1) * n * size_of(type) : 0;
    return PMPI_Bcast(x, n, type, root, c);
}

/* ---------------------------------------------------------------------------------------------- */

/* The value of a block: of its leaves, along the tree. */
static void block(uint64_t seed, int32_t begin, int32_t end, size_t n, float *value)
{
    static float leaves[8][MANY];
    struct dpt_tree tree;

    dpt_tree_begin(&tree, end - begin);
    for (int32_t i = begin; i < end; i++) {
        leaf(seed, i, 0, n, leaves[i - begin]);
        dpt_tree_push(&tree, (struct dpt_block){i - begin, 0}, leaves[i - begin], n, NULL, NULL);
    }
    memcpy(value, tree.value[0], n * sizeof *value);
}

/* Puts a unit of each buffer's value where the round of that unit wants it. */
static void put_unit(struct dpt_deterministic_allreduce *d, float (*value)[MANY], int k, size_t n,
                     const struct dpt_deterministic_spec *spec)
{
    const size_t begin = spec->unit[k], end = k < spec->units ? spec->unit[k + 1] : n;

    for (int w = 0; w < spec->buffers; w++)
        memcpy(dpt_deterministic_buffer(d, w) + (k == spec->units ? dpt_deterministic_rest(d)
                                                 : spec->whole    ? begin
                                                                  : 0),
               value[w] + begin, (end - begin) * sizeof **value);
}

/* Each owner's floats of a unit reach all. */
static void check_gather(struct dpt_deterministic_allreduce *d, int k,
                         const struct dpt_deterministic_spec *spec)
{
    static float x[MANY];
    const float *gathered;
    struct dpt_error err;

    for (size_t i = 0; i < MANY; i++)
        x[i] = owns(d, comm.world.rank, i, false) ? (float)i : -1;
    assert_int_equal(dpt_deterministic_gather_unit(d, k, x, &gathered, &err), DPT_OK);
    for (size_t i = spec->unit[k]; i < spec->unit[k + 1]; i++)
        assert_true(gathered[i] == (float)i);
}

/* Leaves taken round-robin; buffers have room for one unit, and change as soon as its round is
 * over. A round goes through all units; where buffers are whole, a unit goes through all rounds. */
static void one_round_robin_sum(struct dpt_deterministic_allreduce *d, uint64_t seed, size_t n,
                                const struct dpt_deterministic_spec *spec, struct dpt_pool *pool)
{
    static float want[MANY], value[4][MANY];
    const int32_t total = 1 + (int32_t)dice(seed, 1, LEAVES), level = spec->level,
                  blocks = (total + (1 << level) - 1) >> level,
                  lanes = comm.world.size * spec->buffers;
    const int rounds = (blocks + lanes - 1) / lanes;
    struct dpt_error err;

    dpt_deterministic_begin(d, total);
    for (int i = 0; i < rounds * (spec->units + 1); i++) {
        const int32_t round = spec->whole ? i % rounds : i / (spec->units + 1);
        const int unit = spec->units - (spec->whole ? i / rounds : i % (spec->units + 1));

        for (int w = 0; w < spec->buffers; w++) {
            const int32_t b = round * lanes + comm.world.rank * spec->buffers + w;
            const int32_t begin = b << level, end = (b + 1) << level;

            memset(value[w], 0x55, n * sizeof **value);
            if (b < blocks)
                block(seed, begin, end < total ? end : total, n, value[w]);
        }
        put_unit(d, value, unit, n, spec);
        assert_int_equal(dpt_deterministic_round(d, round, unit, &err), DPT_OK);
    }
    for (int unit = 0; unit < spec->units; unit++)
        check_gather(d, unit, spec);
    assert_int_equal(dpt_deterministic_end(d, &err), DPT_OK);
    define(seed, total, n, want);
    for (size_t k = 0; k < spec->chunks.n; k++)
        assert_true(dpt_deterministic_sums_of_squares(d)[k] ==
                    dpt_sum_of_squares(want + spec->chunks.begin[k],
                                       spec->chunks.begin[k + 1] - spec->chunks.begin[k]));
    check_shards(d, n, want, spec, pool);
}

static void round_robin_shards(void **state)
{
    struct dpt_pool *pool;
    struct dpt_error err;

    (void)state;
    if (comm.world.size == 1)
        skip();
    assert_int_equal(dpt_pool_open(&pool, 1, false, &err), DPT_OK);
    for (uint64_t round = 0; round < 12; round++) {
        const size_t n = 16 + dice(round, 3, FLOATS);
        size_t begin[FLOATS], unit[] = {0, 0, 0, 0}, first;
        struct dpt_deterministic_spec spec = {.n = n,
                                              .buffers = 1 + (int)dice(round, 10, 3),
                                              .chunks = {.begin = begin},
                                              .sharded = true,
                                              .unit = unit,
                                              .units = 3,
                                              .whole = round % 3 == 1,
                                              .way = round % 4 < 2 ? DPT_DETERMINISTIC_AUTO
                                                                   : DPT_DETERMINISTIC_MESSAGES,
                                              .level = (int)dice(round, 2, 4),
                                              .leaves = LEAVES,
                                              .gathers = true};
        struct dpt_deterministic_allreduce *d;

        cut(round, n / 16 * 16, &spec.chunks);
        unit[3] = begin[spec.chunks.n];
        first = dice(round, 8, spec.chunks.n);
        unit[1] = begin[first];
        unit[2] = begin[first + dice(round, 9, spec.chunks.n - first + 1)];
        assert_int_equal(dpt_deterministic_open(&d, &comm, &spec, &err), DPT_OK);
        for (uint64_t i = 0; i < 4; i++)
            one_round_robin_sum(d, round * 100 + i, n, &spec, pool);
        dpt_deterministic_close(d);
    }
    dpt_pool_close(pool);
}

/* Whole buffers of more than 2^31 floats, which no int counts. Only the last unit's memory
 * is used. */
static void buffers_beyond_two_billion_floats(void **state)
{
    enum { LAST = 1 << 12 };
    const size_t n = ((size_t)1 << 31) + (1 << 16), last = n - LAST;
    size_t begin[] = {0, n / 4, n / 2, last, n - LAST / 2, n}, unit[] = {0, last, n};
    struct dpt_deterministic_spec spec = {.n = n,
                                          .buffers = 1,
                                          .chunks = {.n = 5, .begin = begin},
                                          .sharded = true,
                                          .unit = unit,
                                          .units = 2,
                                          .whole = true,
                                          .way = DPT_DETERMINISTIC_MESSAGES,
                                          .leaves = comm.world.size};
    struct dpt_deterministic_allreduce *d;
    struct dpt_error err;
    enum dpt_status status;
    struct dpt_slice own;

    (void)state;
    if (comm.world.size != 2)
        skip();
    status = dpt_deterministic_open(&d, &comm, &spec, &err);
    assert_true(status == DPT_OK || status == DPT_RANK);
    if (dpt_group_agree(&comm.world, status, &err) != DPT_OK)
        skip(); /* not even addresses for so much */
    farthest = 0;
    origin = dpt_deterministic_buffer(d, 0);
    for (size_t i = 0; i < LAST; i++)
        dpt_deterministic_buffer(d, 0)[last + i] = (float)i;
    dpt_deterministic_begin(d, 2);
    assert_int_equal(dpt_deterministic_round(d, 0, 1, &err), DPT_OK);
    own = dpt_deterministic_slice(d, comm.world.rank, 1);
    origin = NULL;
    assert_true(own.end - own.begin == LAST / 2);
    assert_true(farthest >= (int64_t)(last * sizeof(float)));
    assert_true(first_received == (float)(own.begin - last));
    dpt_deterministic_close(d);
}

/* What a rank receives at a time, on that many ranks of as many buffers. */
static double count_received(int ranks, int buffers)
{
    static size_t unit[] = {0, 400000000, 800000000};
    const struct dpt_deterministic_spec spec = {.n = unit[2] + 60000000,
                                                .buffers = buffers,
                                                .unit = unit,
                                                .units = 2,
                                                .leaves = 4 * ranks * buffers};
    double store, all, received;

    dpt_deterministic_round_robin_floats(ranks, &spec, &store, &all, &received);
    return received;
}

static void memory_does_not_grow_with_ranks(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4096; ranks *= 2)
        for (int buffers = 1; buffers <= 64; buffers *= 2)
            assert_true(count_received(ranks, buffers) <= 1 << 22);
    assert_true(count_received(4095, 3) <= 1 << 22);
}

/* Units, and what is after them, in several pieces: whole numbers, whose sums are exact. */
static void round_robin_in_pieces(void **state)
{
    enum { BUFFERS = 40, REST = 70000, UNIT = 200000, UNITS = 2, ROUNDS = 2 };
    const size_t n = (size_t)UNIT * UNITS + REST;
    const int lanes = comm.world.size * BUFFERS, leaves = lanes * ROUNDS - 3;
    size_t begin[] = {0, 50000, 99200, 150400, 200000, 300000, 400000},
           unit[] = {0, UNIT, 2 * UNIT};
    struct dpt_deterministic_spec spec = {.n = n,
                                          .buffers = BUFFERS,
                                          .chunks = {.n = 6, .begin = begin},
                                          .sharded = true,
                                          .unit = unit,
                                          .units = UNITS,
                                          .way = DPT_DETERMINISTIC_MESSAGES,
                                          .leaves = leaves};
    struct dpt_deterministic_allreduce *d;
    struct dpt_error err;

    (void)state;
    if (comm.world.size == 1)
        skip();
    assert_int_equal(dpt_deterministic_open(&d, &comm, &spec, &err), DPT_OK);
    dpt_deterministic_begin(d, leaves);
    for (int32_t i = 0; i < ROUNDS * (UNITS + 1); i++) {
        const int32_t k = i / (UNITS + 1);
        const int u = i % (UNITS + 1);
        const size_t first = u < UNITS ? unit[u] : (size_t)UNIT * UNITS;

        for (int w = 0; w < BUFFERS; w++) {
            float *x = dpt_deterministic_buffer(d, w) + (u < UNITS ? 0 : dpt_deterministic_rest(d));
            const int leaf = k * lanes + comm.world.rank * BUFFERS + w;

            for (size_t j = 0; j < (u < UNITS ? UNIT : REST); j++)
                x[j] = (float)((first + j) % 97 + (size_t)leaf);
        }
        assert_int_equal(dpt_deterministic_round(d, k, u, &err), DPT_OK);
    }
    assert_int_equal(dpt_deterministic_end(d, &err), DPT_OK);
    for (size_t i = 0; i < n; i++) {
        const float *sum = i >= unit[UNITS] ? dpt_deterministic_result(d)
                           : owns(d, comm.world.rank, i, false)
                               ? dpt_deterministic_slice_sum(d, i / UNIT)
                               : NULL;

        if (sum != NULL)
            assert_true(sum[i] == (float)(leaves * (int)(i % 97) + leaves * (leaves - 1) / 2));
    }
    dpt_deterministic_close(d);
}

/* The rounds of leaves taken round-robin; with weights of which all gather each unit before it is
 * used forward and back, the last one once. */
static void take_rounds(struct dpt_deterministic_allreduce *d, int rounds, const float *own)
{
    const int units = 2, uses = 2 * units - 1;
    const float *gathered;
    struct dpt_error err;

    dpt_deterministic_begin(d, rounds * comm.world.size);
    for (int32_t k = 0; k < rounds; k++) {
        for (int i = 0; i < uses && own != NULL; i++)
            assert_int_equal(dpt_deterministic_gather_unit(d, i < units ? i : 2 * units - 2 - i,
                                                           own, &gathered, &err),
                             DPT_OK);
        for (int unit = 0; unit <= units; unit++)
            assert_int_equal(dpt_deterministic_round(d, k, unit, &err), DPT_OK);
    }
    assert_int_equal(dpt_deterministic_end(d, &err), DPT_OK);
}

/* One leaf for each of `rounds` buffers of a rank, summed and shared, or weights gathered. Returns
 * what all ranks gave. */
static double count_bytes(const struct dpt_deterministic_spec *spec, int rounds)
{
    static float weights[MANY];
    const int ranks = comm.world.size, rank = comm.world.rank;
    const float words[1] = {0};
    float word_sums[1];
    struct dpt_deterministic_allreduce *d;
    struct dpt_pool *pool;
    struct dpt_error err;
    struct dpt_tree tree;
    int32_t first[64];
    int64_t before;
    double all;

    assert_int_equal(dpt_pool_open(&pool, 1, false, &err), DPT_OK);
    assert_int_equal(dpt_deterministic_open(&d, &comm, spec, &err), DPT_OK);
    for (int r = 0; r <= ranks; r++)
        first[r] = r * rounds;
    if (spec->units == 0)
        assert_int_equal(dpt_deterministic_reserve(d, first, &err), DPT_OK);
    dpt_tree_begin(&tree, first[ranks]);
    for (int k = 0; k < rounds && spec->units == 0; k++)
        dpt_tree_push(&tree, (struct dpt_block){first[rank] + k, 0}, dpt_deterministic_buffer(d, k),
                      spec->n, NULL, NULL);
    before = given;
    if (spec->units > 0) {
        take_rounds(d, rounds, spec->gathers ? weights : NULL);
    } else {
        assert_int_equal(dpt_deterministic_publish(d, &tree, words, word_sums, 1, &err), DPT_OK);
        assert_int_equal(dpt_deterministic_sum(d, &tree, first, &err), DPT_OK);
    }
    if (spec->sharded && !spec->gathers)
        assert_int_equal(dpt_deterministic_share(d, weights, pool, &err), DPT_OK);
    all = (double)(given - before);
    assert_int_equal(dpt_group_sum_doubles(&comm.world, &all, &all, 1, &err), DPT_OK);
    dpt_deterministic_close(d);
    dpt_pool_close(pool);
    return all;
}

/* D ranks learn P floats, and sum `rest` others: (D - 1) P reach their owners in a sum, and
 * (D - 1) P come back, sums or weights. Shards add the sums of squares. Where leaves are taken
 * round-robin, each round gives P and the others, whose sums come back once; where weights are
 * gathered, 2 P more but for the last unit, and none come back. */
static void check_bytes(size_t rest)
{
    enum { P = 9984 };
    static size_t begin[P / 96 + 1], unit[] = {0, 4992, P};
    const double others = comm.world.size - 1, n = P + (double)rest;
    struct dpt_deterministic_spec spec = {
        .n = P + rest, .buffers = 4, .way = DPT_DETERMINISTIC_MESSAGES, .chunks = {.begin = begin}};
    double squares;

    for (size_t at = 0; at <= P; at += 96)
        begin[at / 96] = at;
    spec.chunks.n = P / 96;
    squares = sizeof(double) * (double)spec.chunks.n;
    assert_true(count_bytes(&spec, 1) == others * 4 * 2 * n);
    spec.sharded = true;
    assert_true(count_bytes(&spec, 1) == others * (4 * 2 * n + squares));
    spec.unit = unit;
    spec.units = 2;
    spec.buffers = 1;
    spec.leaves = 4 * comm.world.size;
    for (int rounds = 1; rounds <= 4; rounds++) {
        const double sums = rounds * n + (double)rest;

        spec.gathers = false;
        assert_true(count_bytes(&spec, rounds) == others * (4 * (sums + P) + squares));
        spec.gathers = true;
        assert_true(count_bytes(&spec, rounds) ==
                    others * (4 * (sums + rounds * (2 * P - (P - 4992))) + squares));
    }
}

static void no_more_is_sent_than_needed(void **state)
{
    (void)state;
    if (comm.world.size == 1)
        skip();
    check_bytes(16);    /* of one owner */
    check_bytes(4096);  /* of several */
    check_bytes(20000); /* of all */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_robin_shards),
        cmocka_unit_test(memory_does_not_grow_with_ranks),
        cmocka_unit_test(round_robin_in_pieces),
        cmocka_unit_test(buffers_beyond_two_billion_floats),
        cmocka_unit_test(no_more_is_sent_than_needed),
    };

    return RUN_ON_ALL_RANKS(tests);
}

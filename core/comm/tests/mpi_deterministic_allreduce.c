/* ranks: 1 2 3 4 7 8 */
#include "core/comm/internal.h"
#include "core/comm/tests/leaves.h"

static void one_sum(struct dpt_deterministic_allreduce *d, uint64_t seed, size_t n,
                    const struct dpt_deterministic_spec *spec, struct dpt_pool *pool)
{
    const struct dpt_chunks *chunks = &spec->chunks;
    static float want[MANY];
    const double *sums_of_squares;
    float words[DPT_DETERMINISTIC_WORDS], word_sums[DPT_DETERMINISTIC_WORDS];
    const int ranks = comm.world.size;
    /* Half of the time one block per rank, all of one size but for the last, which may be cut
     * off. */
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
        leaf(seed, i, 0, n, dpt_deterministic_buffer(d, k));
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
    define(seed, total, n, want);
    if (!spec->sharded)
        assert_memory_equal(dpt_deterministic_result(d), want, n * sizeof *want);
    sums_of_squares = dpt_deterministic_sums_of_squares(d);
    for (size_t k = 0; sums_of_squares != NULL && k < chunks->n; k++)
        assert_true(
            sums_of_squares[k] ==
            dpt_sum_of_squares(want + chunks->begin[k], chunks->begin[k + 1] - chunks->begin[k]));
    if (spec->sharded)
        check_shards(d, n, want, spec, pool);
}

/* all: the ranks, on their nodes. pieces: messages are cut where MPI's int would not do, here after
 * 40 floats, or 1000 of many. */
static void sums_of(const struct dpt_comm *all, enum dpt_deterministic_way way, bool sharded,
                    bool pieces)
{
    struct dpt_communicator *handle = comm.world.handle;
    const size_t limit = pieces ? handle->limit : 0;
    struct dpt_pool *pool;
    struct dpt_error err;

    assert_int_equal(dpt_pool_open(&pool, 3, false, &err), DPT_OK);
    for (uint64_t round = 0; round < 13; round++) {
        const bool many = round == 12; /* so many that the slices are made of whole runs */
        const size_t n = many ? MANY - 3 : 1 + dice(round, 3, FLOATS);
        size_t begin[MANY];
        struct dpt_deterministic_spec spec = {.n = n,
                                              .buffers = LEAVES,
                                              .way = way,
                                              .chunks = {.begin = begin},
                                              .sharded = sharded,
                                              .keeps_sum = sharded && round % 2 == 0};
        struct dpt_deterministic_allreduce *d;

        if (pieces)
            handle->limit = many ? 1000 : 40;
        cut(round, sharded ? n / 16 * 16 : n / 2, &spec.chunks);
        assert_int_equal(dpt_deterministic_open(&d, all, &spec, &err), DPT_OK);
        assert_true((dpt_deterministic_sums_of_squares(d) != NULL) ==
                    (sharded || (many && way != DPT_DETERMINISTIC_MESSAGES && comm.world.size > 1 &&
                                 all->node.size == comm.world.size)));
        for (uint64_t i = 0; i < (many ? 2 : sharded || pieces ? 4 : 20); i++)
            one_sum(d, round * 100 + i, n, &spec, pool);
        dpt_deterministic_close(d);
    }
    if (pieces)
        handle->limit = limit;
    dpt_pool_close(pool);
}

static void sums(enum dpt_deterministic_way way, bool sharded, bool pieces)
{
    sums_of(&comm, way, sharded, pieces);
}

/* As if the machine were several nodes: of two ranks each, the last one perhaps of fewer; of all
 * but one; of ranks that do not follow each other. */
static void same_bits_on_several_nodes(void **state)
{
    const int ranks = comm.world.size, rank = comm.world.rank,
              node[] = {rank / 2, rank == ranks - 1, rank % 2};

    (void)state;
    if (ranks < 3)
        skip();
    for (int way = 0; way < 3; way++) {
        struct dpt_comm part;
        const struct dpt_comm several =
            split_into_nodes(node[way], way == 0 ? (ranks + 1) / 2 : 2, &part);

        sums_of(&several, DPT_DETERMINISTIC_AUTO, way == 1, way == 1);
        if (way == 0)
            sums_of(&several, DPT_DETERMINISTIC_AUTO, true, false);
        dpt_comm_close(&part);
    }
}

static void same_bits_through_shared_memory(void **state)
{
    (void)state;
    sums(DPT_DETERMINISTIC_AUTO, false, false);
}

static void same_bits_through_messages(void **state)
{
    (void)state;
    sums(DPT_DETERMINISTIC_MESSAGES, false, false);
}

static void shards_through_shared_memory(void **state)
{
    (void)state;
    if (comm.world.size == 1)
        skip();
    sums(DPT_DETERMINISTIC_AUTO, true, false);
}

static void shards_through_messages(void **state)
{
    (void)state;
    if (comm.world.size == 1)
        skip();
    sums(DPT_DETERMINISTIC_MESSAGES, true, false);
}

static void same_bits_through_pieces(void **state)
{
    (void)state;
    if (comm.world.size == 1)
        skip();
    sums(DPT_DETERMINISTIC_MESSAGES, false, true);
    sums(DPT_DETERMINISTIC_MESSAGES, true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_through_shared_memory),
        cmocka_unit_test(same_bits_through_messages),
        cmocka_unit_test(same_bits_on_several_nodes),
        cmocka_unit_test(shards_through_shared_memory),
        cmocka_unit_test(shards_through_messages),
        cmocka_unit_test(same_bits_through_pieces),
    };

    return RUN_ON_ALL_RANKS(tests);
}

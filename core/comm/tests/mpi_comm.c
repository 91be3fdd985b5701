/* ranks: 1 2 3 5 */
#include <math.h>

#include "core/base/rng.h"
#include "core/comm/internal.h"
#include "core/comm/tests/ranks.h"

static const struct dpt_group *world(void)
{
    return &comm.world;
}

static void groups_fit_together(void **state)
{
    struct dpt_error err = {0};
    int64_t one = 1, ranks = 0, nodes = 0, leader;

    (void)state;
    CHECK(comm.started && comm.world.size >= 1);
    CHECK(comm.world.rank >= 0 && comm.world.rank < comm.world.size);
    CHECK(comm.world.rank == dpt_launcher_rank());
    CHECK(comm.world.size == 1 || dpt_launcher_present());
    CHECK(comm.host[0] != '\0' && strchr(comm.host, '.') == NULL);
    CHECK_OK(dpt_group_sum_ints(world(), &one, &ranks, 1, &err));
    CHECK(ranks == comm.world.size);
    CHECK_OK(dpt_group_sum_ints(&comm.node, &one, &ranks, 1, &err));
    CHECK(ranks == comm.node.size);
    /* As many leaders as nodes, and they are the first of their nodes. */
    leader = comm.node.rank == 0;
    CHECK((comm.leaders.rank >= 0) == (leader != 0));
    CHECK_OK(dpt_group_sum_ints(world(), &leader, &nodes, 1, &err));
    CHECK(nodes == comm.nodes);
    CHECK((comm.leaders.rank >= 0 ? comm.leaders.size : 0) == (leader ? comm.nodes : 0));
    CHECK_OK(dpt_group_barrier(world(), &err));
    CHECK(strlen(dpt_comm_version()) > 4);
}

/* The mean of three known vectors over three ranks. */
static void mean_over_three_ranks(void **state)
{
    static const float rows[3][3] = {{1, 2, 3}, {1.5F, 2.5F, 3.5F}, {.5F, 1.5F, 2.5F}};
    struct dpt_error err = {0};
    float sum[3], x[3];

    (void)state;
    if (comm.world.size != 3)
        skip();
    CHECK_OK(dpt_group_sum_floats(world(), rows[comm.world.rank], sum, 3, &err));
    memcpy(x, rows[comm.world.rank], sizeof x);
    CHECK_OK(dpt_group_sum_floats(world(), x, x, 3, &err));
    for (int k = 0; k < 3; k++) {
        CHECK(sum[k] / 3.0F == (float)(k + 1));
        CHECK(x[k] == sum[k]);
    }
}

/* Rank r's element i in round `round`: whole numbers, so that sums are exact in any order. */
static int64_t value(int r, size_t i, int round)
{
    return (int64_t)(dpt_random64(1, DPT_RANDOM_SYNTHETIC, (uint64_t)r * 1000 + (uint64_t)round,
                                  i) %
                     2001) -
           1000;
}

static int64_t value_sum(size_t i, int round)
{
    int64_t sum = 0;

    for (int r = 0; r < comm.world.size; r++)
        sum += value(r, i, round);
    return sum;
}

enum { MOST = 300 };

static const size_t lengths[] = {0, 1, 2, 7, 64, 65, 128, MOST};
static const size_t limits[] = {1, 7, 64, 1000};

enum { LENGTHS = sizeof lengths / sizeof lengths[0], LIMITS = sizeof limits / sizeof limits[0] };

/* From now on no message of the world is longer. */
static void limit_messages(size_t elements)
{
    if (world()->handle != NULL)
        ((struct dpt_communicator *)world()->handle)->limit = elements;
}

/* All kinds, all lengths around the limit of a message, in place and not; nothing past the end is
 * touched. */
static void sums_of_all_lengths(void **state)
{
    struct dpt_error err = {0};
    float f[2][MOST + 1];
    double d[2][MOST + 1];
    int64_t n[2][MOST + 1];

    (void)state;
    for (int round = 0; round < LENGTHS * LIMITS * 2; round++) {
        const size_t length = lengths[round / 2 % LENGTHS], limit = limits[round / 2 / LENGTHS];
        const int to = round % 2;

        for (size_t i = 0; i <= MOST; i++) {
            f[1][i] = 9999.0F;
            d[1][i] = 9999.0;
            n[1][i] = 9999;
            f[to][i] = (float)(n[to][i] = value(comm.world.rank, i, round));
            f[0][i] = (float)(n[0][i] = value(comm.world.rank, i, round));
            d[0][i] = d[to][i] = (double)n[0][i];
        }
        limit_messages(limit);
        f[to][length] = 77.0F;
        d[to][length] = 77.0;
        n[to][length] = 77;
        /* to == 0: in place; to == 1: from [0] to [1]. */
        CHECK_OK(dpt_group_sum_floats(world(), f[0], f[to], length, &err));
        CHECK_OK(dpt_group_sum_doubles(world(), d[0], d[to], length, &err));
        CHECK_OK(dpt_group_sum_ints(world(), n[0], n[to], length, &err));
        for (size_t i = 0; i < length; i++) {
            CHECK(f[to][i] == (float)value_sum(i, round));
            CHECK(d[to][i] == (double)value_sum(i, round));
            CHECK(n[to][i] == value_sum(i, round));
            CHECK(to == 0 || n[0][i] == value(comm.world.rank, i, round));
        }
        CHECK(f[to][length] == 77.0F && d[to][length] == 77.0 && n[to][length] == 77);
        for (size_t i = 0; i < length; i++)
            f[0][i] = (float)value(comm.world.rank, i, round);
        CHECK_OK(dpt_group_sum_floats_at_first(world(), f[0], length, &err));
        for (size_t i = 0; i < length; i++)
            CHECK(f[0][i] == (float)(comm.world.rank == 0 ? value_sum(i, round)
                                                          : value(comm.world.rank, i, round)));
    }
}

/* Sums that round come out with the same bits on all ranks. */
static void all_ranks_get_the_same_bits(void **state)
{
    enum { N = 20011 };
    struct dpt_error err = {0};
    float *x = calloc(N, sizeof *x), *root = calloc(N, sizeof *root);

    (void)state;
    CHECK(x != NULL && root != NULL);
    dpt_random_normal(4, DPT_RANDOM_SYNTHETIC, (uint64_t)comm.world.rank, 0, N, x);
    CHECK_OK(dpt_group_sum_floats(world(), x, x, N, &err));
    memcpy(root, x, N * sizeof *x);
    CHECK_OK(dpt_group_broadcast(world(), 0, root, N * sizeof *root, &err));
    /* The bits. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    CHECK(memcmp(x, root, N * sizeof *x) == 0);
    free(x);
    free(root);
}

static void largest_of_all(void **state)
{
    struct dpt_error err = {0};
    double most = 0.0;

    (void)state;
    CHECK_OK(dpt_group_max(world(), -5.0 - comm.world.rank, &most, &err));
    CHECK(most == -5.0);
    CHECK_OK(dpt_group_max(world(), comm.world.rank, &most, &err));
    CHECK(most == comm.world.size - 1);
}

static void broadcasts_from_every_root(void **state)
{
    struct dpt_error err = {0};
    unsigned char bytes[MOST + 1];

    (void)state;
    for (int root = 0; root < comm.world.size; root++) {
        for (int k = 0; k < LENGTHS * LIMITS; k++) {
            const size_t n = lengths[k % LENGTHS];

            limit_messages(limits[k / LENGTHS]);
            for (size_t i = 0; i <= MOST; i++)
                bytes[i] = (unsigned char)value(comm.world.rank, i, k);
            CHECK_OK(dpt_group_broadcast(world(), root, bytes, n, &err));
            for (size_t i = 0; i <= MOST; i++)
                CHECK(bytes[i] == (unsigned char)value(i < n ? root : comm.world.rank, i, k));
        }
    }
}

static void gathers_in_rank_order(void **state)
{
    struct dpt_error err = {0};
    unsigned char mine[MOST], *all = malloc((size_t)comm.world.size * MOST + 1);

    (void)state;
    CHECK(all != NULL);
    for (int k = 0; k < LENGTHS * LIMITS * 2; k++) {
        const size_t n = lengths[k / 2 % LENGTHS], end = (size_t)comm.world.size * n;
        unsigned char *from = k % 2 == 0 ? mine : all + (size_t)comm.world.rank * n;

        limit_messages(limits[k / 2 / LENGTHS]);
        for (size_t i = 0; i < n; i++)
            from[i] = (unsigned char)value(comm.world.rank, i, k);
        all[end] = 77;
        CHECK_OK(dpt_group_allgather(world(), from, all, n, &err));
        for (size_t i = 0; i < end; i++)
            CHECK(all[i] == (unsigned char)value((int)(i / n), i % n, k));
        CHECK(all[end] == 77);
    }
    free(all);
}

/* Every subset of failing ranks: all get the first one's status and text, with its name where
 * others were well. */
static void ranks_agree_on_any_failure(void **state)
{
    const int size = comm.world.size;

    (void)state;
    for (unsigned failing = 0; failing < 1U << size; failing++) {
        const bool mine = failing >> comm.world.rank & 1;
        const bool all = failing + 1 == 1U << size;
        enum dpt_status got, want = DPT_OK;
        struct dpt_error err = {0};
        char text[64], prefix[32];
        int first = 0;

        if (mine)
            dpt_fail(&err, comm.world.rank % 2 == 0 ? DPT_BAD_DATA : DPT_IO, "file %d is bad",
                     comm.world.rank);
        got = dpt_group_agree(world(), mine ? err.status : DPT_OK, &err);
        while (failing != 0 && !(failing >> first & 1))
            first++;
        if (failing != 0)
            want = first % 2 == 0 ? DPT_BAD_DATA : DPT_IO;
        CHECK(got == want);
        if (failing == 0)
            continue;
        CHECK(err.status == want);
        snprintf(text, sizeof text, "file %d is bad", first);
        snprintf(prefix, sizeof prefix, "rank %d (", first);
        if (all) {
            CHECK(strcmp(err.text, text) == 0);
        } else {
            CHECK(strncmp(err.text, prefix, strlen(prefix)) == 0);
            CHECK(strstr(err.text, "): ") != NULL);
            CHECK(strcmp(strstr(err.text, "): ") + 3, text) == 0);
        }
    }
}

/* The longest text comes through, cut where the rank's name needs the room. */
static void longest_text_is_cut(void **state)
{
    struct dpt_error err = {0};
    static char text[DPT_ERROR_TEXT];
    enum dpt_status status = DPT_OK;

    (void)state;
    memset(text, 'x', sizeof text - 1);
    if (comm.world.rank == comm.world.size - 1)
        status = dpt_fail(&err, DPT_IO, "%s", text);
    CHECK(dpt_group_agree(world(), status, &err) == DPT_IO);
    CHECK(strlen(err.text) == DPT_ERROR_TEXT - 1);
    CHECK(err.text[DPT_ERROR_TEXT - 2] == 'x');
}

/* Each rank writes its part; then all read all parts. */
static void check_shared(struct dpt_shared *shared, size_t size)
{
    const struct dpt_group *node = &comm.node;
    const size_t part = size / (size_t)node->size;
    struct dpt_error err = {0};
    unsigned char *bytes = shared->bytes;

    CHECK(shared->size >= size);
    CHECK((uintptr_t)bytes % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
    for (size_t i = 0; i < size; i++)
        CHECK(bytes[i] == 0);
    CHECK_OK(dpt_group_barrier(node, &err));
    memset(bytes + (size_t)node->rank * part, node->rank + 1, part);
    CHECK_OK(dpt_group_barrier(node, &err));
    for (size_t i = 0; i < part * (size_t)node->size; i++)
        CHECK(bytes[i] == i / part + 1);
    CHECK_OK(dpt_group_barrier(node, &err));
    dpt_shared_close(shared);
    dpt_shared_close(shared);
}

static void shared_memory_is_seen_by_all(void **state)
{
    static const size_t sizes[] = {1, 100, 4096, 4097, 1000003};
    struct dpt_shared shared, other;
    struct dpt_error err = {0};

    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        CHECK_OK(dpt_shared_open(&shared, &comm.node, sizes[k], &err));
        CHECK_OK(dpt_shared_open(&other, &comm.node, sizes[k], &err));
        CHECK(shared.bytes != other.bytes);
        check_shared(&shared, sizes[k]);
        check_shared(&other, sizes[k]);
        for (int way = 0; way < DPT_SHARED_WAYS && comm.node.size > 1; way++) {
            /* A machine may lack /dev/shm; but then all ranks say so. */
            if (dpt_shared_open_by(&shared, &comm.node, sizes[k], (enum dpt_shared_way)way, &err) ==
                DPT_OK)
                check_shared(&shared, sizes[k]);
            else
                CHECK(way == DPT_SHARED_DEV_SHM && strstr(err.text, "/dev/shm") != NULL);
        }
    }
    CHECK_OK(dpt_shared_open(&shared, &comm.node, 0, &err));
    dpt_shared_close(&shared);
}

/* More than there can be: an error on all ranks that names the size, not a signal. */
static void too_much_shared_memory_is_an_error(void **state)
{
    const size_t size = (size_t)1 << 60;
    struct dpt_shared shared;
    struct dpt_error err = {0};

    (void)state;
    CHECK(dpt_shared_open(&shared, &comm.node, size, &err) == DPT_RANK);
    CHECK(shared.bytes == NULL);
    CHECK(strstr(err.text, "1152921504606.8 MB") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_fit_together),
        cmocka_unit_test(mean_over_three_ranks),
        cmocka_unit_test(sums_of_all_lengths),
        cmocka_unit_test(all_ranks_get_the_same_bits),
        cmocka_unit_test(largest_of_all),
        cmocka_unit_test(broadcasts_from_every_root),
        cmocka_unit_test(gathers_in_rank_order),
        cmocka_unit_test(ranks_agree_on_any_failure),
        cmocka_unit_test(longest_text_is_cut),
        cmocka_unit_test(shared_memory_is_seen_by_all),
        cmocka_unit_test(too_much_shared_memory_is_an_error),
    };

    return RUN_ON_ALL_RANKS(tests);
}

/* ranks: 3 5 12 15 16 */
/* What leaves a node in a sum along the tree, and a node and an owner when a unit is gathered,
 * whatever the numbers of ranks and leaves are. */
#include "core/base/rng.h"
#include "core/comm/internal.h"
#include "core/comm/sums/deterministic_allreduce.h"
#include "core/comm/tests/ranks.h"

enum { FLOATS = 16 * 16 * 60, MOST = 7 };

/* --- floats that this rank sends to other nodes, by MPI's profiling interface ----------------- */

static int32_t node[64];
static double sent;

int MPI_Isend(const void *x, int n, MPI_Datatype type, int to, int tag, MPI_Comm c, MPI_Request *r)
{
    if (type == MPI_FLOAT)
        sent += node[to] != node[comm.world.rank] ? n : 0;
    return PMPI_Isend(x, n, type, to, tag, c, r);
}

int MPI_Sendrecv(const void *x, int n, MPI_Datatype type, int to, int tag, void *y, int m,
                 MPI_Datatype other, int from, int other_tag, MPI_Comm c, MPI_Status *status)
{
    if (type == MPI_FLOAT && to >= 0)
        sent += node[to] != node[comm.world.rank] ? n : 0;
    return PMPI_Sendrecv(x, n, type, to, tag, y, m, other, from, other_tag, c, status);
}

int MPI_Alltoallv(const void *x, const int *counts, const int *at, MPI_Datatype type, void *y,
                  const int *other_counts, const int *other_at, MPI_Datatype other, MPI_Comm c)
{
    for (int r = 0; r < comm.world.size; r++)
        sent += node[r] != node[comm.world.rank] ? counts[r] : 0;
    return PMPI_Alltoallv(x, counts, at, type, y, other_counts, other_at, other, c);
}

int MPI_Allgatherv(const void *x, int n, MPI_Datatype type, void *y, const int *counts,
                   const int *at, MPI_Datatype other, MPI_Comm c)
{
    /* As in a ring: each rank sends on all but its neighbour's. */
    const int next = (comm.world.rank + 1) % comm.world.size;

    for (int r = 0; r < comm.world.size && type == MPI_FLOAT; r++)
        sent += node[next] != node[comm.world.rank] && r != next ? counts[r] : 0;
    return PMPI_Allgatherv(x, n, type, y, counts, at, other, c);
}

/* ---------------------------------------------------------------------------------------------- */

/* The sum of `leaves` a rank on such nodes; checks it, and finds what nodes send, in gradients. */
static void sum(const struct dpt_comm *several, int leaves, double *mean, double *busiest)
{
    size_t begin[1] = {0};
    const struct dpt_deterministic_spec spec = {
        .n = FLOATS, .buffers = MOST, .chunks = {.begin = begin}};
    const int ranks = comm.world.size, rank = comm.world.rank;
    struct dpt_deterministic_allreduce *d;
    struct dpt_tree tree;
    struct dpt_error err;
    double by_node[64] = {0};
    float word = 0;
    int32_t first[64];

    CHECK_OK(dpt_deterministic_open(&d, several, &spec, &err));
    for (int r = 0; r <= ranks; r++)
        first[r] = r * leaves;
    dpt_tree_begin(&tree, first[ranks]);
    for (int k = 0; k < leaves; k++) {
        float *x = dpt_deterministic_buffer(d, tree.n);

        for (size_t i = 0; i < FLOATS; i++)
            x[i] = (float)((first[rank] + k) * 7 + (int)(i % 11)); /* whole: any order is right */
        dpt_tree_push(&tree, (struct dpt_block){first[rank] + k, 0}, x, FLOATS, NULL, NULL);
    }
    CHECK_OK(dpt_deterministic_reserve(d, first, &err));
    CHECK_OK(dpt_deterministic_publish(d, &tree, &word, &word, 1, &err));
    sent = 0;
    CHECK_OK(dpt_deterministic_sum(d, &tree, first, &err));
    by_node[node[rank]] = sent / FLOATS;
    for (size_t i = 0; i < FLOATS; i++) {
        const int n = first[ranks];

        CHECK(dpt_deterministic_result(d)[i] == (float)(7 * n * (n - 1) / 2 + n * (int)(i % 11)));
    }
    CHECK_OK(dpt_group_sum_doubles(&comm.world, by_node, by_node, 64, &err));
    *mean = *busiest = 0;
    for (int h = 0; h < several->nodes; h++) {
        *mean += by_node[h] / several->nodes;
        *busiest = by_node[h] > *busiest ? by_node[h] : *busiest;
    }
    dpt_deterministic_close(d);
}

/* A sum without order sends 2 (n - 1) / n of a gradient from each of n nodes: that much where each
 * has one block of the tree, else half as much again, and a little where the tree asks for it
 * (test_placement.c). */
static void a_node_sends_half_as_much_again_at_most(void **state)
{
    static const int each[] = {1, 2, 4}, leaves[] = {1, 2, 3, 7};
    const int ranks = comm.world.size;

    (void)state;
    for (int i = 0; i < 3; i++) {
        const int nodes = (ranks + each[i] - 1) / each[i];
        const double plain = 2.0 * (nodes - 1) / nodes;
        struct dpt_comm part, several;

        if (nodes < 2)
            continue;
        for (int r = 0; r < ranks; r++)
            node[r] = r / each[i];
        several = split_into_nodes(node[comm.world.rank], nodes, &part);
        for (int k = 0; k < 4; k++) {
            double mean, busiest;

            sum(&several, leaves[k], &mean, &busiest);
            if (comm.world.rank == 0)
                printf("%2d ranks, %d a node, %d leaves each: %.2f gradients a node, %.2f the "
                       "busiest; without order %.2f\n",
                       ranks, each[i], leaves[k], mean, busiest, plain);
            CHECK(mean <= 1.56 * plain);
            CHECK(busiest <= 2 * plain);
        }
        dpt_comm_close(&part);
    }
}

/* Gathers three units of which each rank has its own; checks them, and returns the floats that all
 * nodes send. */
static double gather(const struct dpt_comm *several)
{
    enum { UNITS = 3, CHUNK = 48 };
    static float own[FLOATS];
    size_t begin[FLOATS / CHUNK + 1], unit[UNITS + 1] = {0, CHUNK * 7, CHUNK * 200, FLOATS};
    const struct dpt_deterministic_spec spec = {.n = FLOATS + 16,
                                                .buffers = 1,
                                                .chunks = {.n = FLOATS / CHUNK, .begin = begin},
                                                .sharded = true,
                                                .unit = unit,
                                                .units = UNITS,
                                                .leaves = comm.world.size,
                                                .gathers = true};
    struct dpt_deterministic_allreduce *d;
    struct dpt_error err;
    double all;

    for (size_t i = 0; i <= spec.chunks.n; i++)
        begin[i] = i * CHUNK;
    CHECK_OK(dpt_deterministic_open(&d, several, &spec, &err));
    for (size_t i = 0; i < FLOATS; i++)
        own[i] = -1;
    for (int k = 0; k < dpt_deterministic_ranges(d); k++) {
        const struct dpt_slice slice = dpt_deterministic_slice(d, comm.world.rank, k);

        for (size_t i = slice.begin; i < slice.end; i++)
            own[i] = (float)i;
    }
    sent = 0;
    for (int i = 0; i < 2 * UNITS; i++) { /* forward, and back */
        const int k = i < UNITS ? i : 2 * UNITS - 1 - i;
        const float *x;

        CHECK_OK(dpt_deterministic_gather_unit(d, k, own, &x, &err));
        for (size_t at = unit[k]; at < unit[k + 1]; at++)
            CHECK(x[at] == (float)at);
    }
    all = sent / 2;
    CHECK_OK(dpt_group_sum_doubles(&comm.world, &all, &all, 1, &err));
    dpt_deterministic_close(d);
    return all;
}

/* However many ranks a node has. */
static void a_unit_comes_once_to_each_node(void **state)
{
    const int ranks = comm.world.size;

    (void)state;
    for (int each = 1; each < ranks; each *= 2) {
        const int nodes = (ranks + each - 1) / each;
        struct dpt_comm part, several;

        for (int r = 0; r < ranks; r++)
            node[r] = r / each;
        several = split_into_nodes(node[comm.world.rank], nodes, &part);
        CHECK(gather(&several) == (double)FLOATS * (nodes - 1));
        dpt_comm_close(&part);
    }
}

/* When a unit is summed or gathered, no owner gives more than another one: here 33 layers. */
static void owners_give_as_much_of_each_unit(void **state)
{
    enum { UNITS = 33, ROWS = 192, ROW = 160 };
    static size_t begin[UNITS * ROWS + 1], unit[UNITS + 1];
    struct dpt_deterministic_spec spec = {.n = (size_t)UNITS * ROWS * ROW,
                                          .buffers = 1,
                                          .chunks = {.n = (size_t)UNITS * ROWS, .begin = begin},
                                          .sharded = true,
                                          .unit = unit,
                                          .units = UNITS,
                                          .way = DPT_DETERMINISTIC_MESSAGES,
                                          .leaves = comm.world.size};
    struct dpt_deterministic_allreduce *d;
    struct dpt_error err;

    (void)state;
    for (size_t i = 0; i <= spec.chunks.n; i++)
        begin[i] = i * ROW;
    for (size_t k = 0; k <= UNITS; k++)
        unit[k] = k * ROWS * ROW;
    assert_int_equal(dpt_deterministic_open(&d, &comm, &spec, &err), DPT_OK);
    for (int k = 0; k < UNITS; k++)
        for (int r = 0; r < comm.world.size; r++) {
            double owned = 0;

            for (int range = 0; range < dpt_deterministic_ranges(d); range++) {
                const struct dpt_slice own = dpt_deterministic_slice(d, r, range);
                const size_t first = own.begin > unit[k] ? own.begin : unit[k],
                             end = own.end < unit[k + 1] ? own.end : unit[k + 1];

                owned += end > first ? (double)(end - first) : 0;
            }
            assert_true(owned * comm.world.size <= 1.2 * ROWS * ROW);
        }
    dpt_deterministic_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_give_as_much_of_each_unit),
        cmocka_unit_test(a_unit_comes_once_to_each_node),
        cmocka_unit_test(a_node_sends_half_as_much_again_at_most),
    };

    return RUN_ON_ALL_RANKS(tests);
}

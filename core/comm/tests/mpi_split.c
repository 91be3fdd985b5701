/* ranks: 1 2 5 8 */
/* Groups that the ranks are split into: each is a whole comm. With an argument, a rank of one group
 * never comes, while another group continues (test_split.py). */
#include "core/comm/internal.h"
#include "core/comm/sums/deterministic_allreduce.h"
#include "core/comm/sums/hierarchical_allreduce.h"
#include "core/comm/tests/ranks.h"

static struct dpt_error err;

/* The ways in which the ranks are split: all alone, unequal, in turns, all together. */
enum { WAYS = 4 };

static int color_of(int way, int rank)
{
    const int colors[WAYS] = {rank, rank < comm.world.size / 3 ? 7 : 2, rank % 3, 0};

    return colors[way];
}

/* The ranks of this one's group, in their order: returns how many. */
static int members(int way, int ranks[64])
{
    int n = 0;

    for (int r = 0; r < comm.world.size; r++)
        if (color_of(way, r) == color_of(way, comm.world.rank))
            ranks[n++] = r;
    return n;
}

/* Each member's number, its groups, and sums over each of them. */
static void check_groups(const struct dpt_comm *part, const int *ranks, int n)
{
    const int64_t mine = comm.world.rank + 1, first = part->node.rank == 0;
    int64_t sum = 0, want = 0;

    CHECK(part->world.size == n && ranks[part->world.rank] == comm.world.rank);
    for (int i = 0; i < n; i++) {
        want += ranks[i] + 1;
        CHECK(strcmp(dpt_comm_host(part, i), dpt_comm_host(&comm, ranks[i])) == 0);
    }
    CHECK_OK(dpt_group_sum_ints(&part->world, &mine, &sum, 1, &err));
    CHECK(sum == want);
    CHECK_OK(dpt_group_sum_ints(&part->world, &first, &sum, 1, &err));
    CHECK(sum == part->nodes && (part->leaders.rank >= 0) == (first != 0));
    CHECK(part->leaders.rank < 0 || part->leaders.size == part->nodes);
    CHECK(strcmp(part->host, comm.host) == 0);
    CHECK(comm.watch == part->watch);
    dpt_comm_note(part, 1, "testing");
}

/* Both reductions take a group as they take a job. */
static void check_sums(const struct dpt_comm *part)
{
    enum { N = 5000 };
    const int32_t ranks = part->world.size;
    const struct dpt_hierarchical_spec sums = {.n = N, .buffers = 1, .hierarchical = true};
    const float words[1] = {1};
    struct dpt_hierarchical_allreduce *h;
    const bool filled = true;
    float want = 0, counted;
    int32_t first[65];

    for (int32_t r = 0; r <= ranks; r++)
        first[r] = r;
    for (int r = 1; r <= ranks; r++)
        want += (float)r;
    for (int way = DPT_DETERMINISTIC_AUTO; way <= DPT_DETERMINISTIC_MESSAGES; way += 2) {
        const struct dpt_deterministic_spec spec = {
            .n = N, .buffers = 1, .way = (enum dpt_deterministic_way)way};
        struct dpt_deterministic_allreduce *d;
        struct dpt_tree tree;

        CHECK_OK(dpt_deterministic_open(&d, part, &spec, &err));
        CHECK_OK(dpt_deterministic_reserve(d, first, &err));
        for (size_t i = 0; i < N; i++)
            dpt_deterministic_buffer(d, 0)[i] = (float)(part->world.rank + 1);
        dpt_tree_begin(&tree, ranks);
        dpt_tree_push(&tree, (struct dpt_block){part->world.rank, 0},
                      dpt_deterministic_buffer(d, 0), N, NULL, NULL);
        CHECK_OK(dpt_deterministic_publish(d, &tree, words, &counted, 1, &err));
        CHECK(counted == (float)ranks);
        CHECK_OK(dpt_deterministic_sum(d, &tree, first, &err));
        for (size_t i = 0; i < N; i++)
            CHECK(dpt_deterministic_result(d)[i] == want);
        dpt_deterministic_close(d);
    }
    CHECK_OK(dpt_hierarchical_open(&h, part, &sums, NULL, &err));
    for (size_t i = 0; i < N; i++)
        dpt_hierarchical_buffer(h, 0)[i] = (float)(part->world.rank + 1);
    CHECK_OK(dpt_hierarchical_sum(h, &filled, NULL, &err));
    for (size_t i = 0; i < N; i++)
        CHECK(dpt_hierarchical_result(h)[i] == want);
    dpt_hierarchical_close(h);
}

static void groups_are_whole(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        int ranks[64];
        const int n = members(way, ranks);
        struct dpt_comm part;

        CHECK_OK(dpt_comm_split(&comm, color_of(way, comm.world.rank), &part, &err));
        check_groups(&part, ranks, n);
        check_sums(&part);
        dpt_comm_close(&part);
        dpt_comm_close(&part);
    }
}

/* Groups on nodes of two ranks each, and groups of groups, which only some ranks have. */
static void groups_of_nodes_and_of_groups(void **state)
{
    struct dpt_comm nodes = comm, pair, part, again;
    int ranks[64], n;

    (void)state;
    CHECK_OK(dpt_comm_split(&comm, comm.world.rank / 2, &pair, &err));
    CHECK_OK(dpt_comm_split(&comm, pair.world.rank, &part, &err));
    nodes.node = pair.world;
    nodes.leaders = pair.world.rank == 0 ? part.world : (struct dpt_group){.rank = -1};
    nodes.nodes = (comm.world.size + 1) / 2;
    for (int way = 0; way < WAYS; way++) {
        n = members(way, ranks);
        CHECK_OK(dpt_comm_split(&nodes, color_of(way, comm.world.rank), &again, &err));
        CHECK(again.node.size <= 2);
        check_groups(&again, ranks, n);
        check_sums(&again);
        dpt_comm_close(&again);
    }
    if (comm.world.rank < 2) {
        CHECK_OK(dpt_comm_split(&pair, 0, &again, &err));
        check_groups(&again, (const int[]){0, 1}, comm.world.size > 1 ? 2 : 1);
        dpt_comm_close(&again);
    }
    dpt_comm_close(&part);
    dpt_comm_close(&pair);
}

/* Round a ring and back at once, in messages of several sizes, which arrive in their order. */
static void messages_arrive_in_order(void **state)
{
    enum { MESSAGES = 9, MOST = 1 << 18 };
    const struct dpt_group *g = &comm.world;
    const int next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
    int32_t *out = calloc(MESSAGES, MOST * sizeof *out), *in = calloc(MOST, sizeof *in);
    struct dpt_sending sending[MESSAGES][2];

    (void)state;
    CHECK(out != NULL && in != NULL);
    for (int m = 0; m < MESSAGES && g->size > 1; m++) {
        const size_t n = m == 0 ? 0 : (size_t)1 << 2 * m;

        for (size_t i = 0; i < n; i++)
            out[m * MOST + (int)i] = 1000 * g->rank + m;
        CHECK_OK(dpt_group_send(g, next, out + m * MOST, n * sizeof *out, &sending[m][0], &err));
        CHECK_OK(dpt_group_send(g, before, out + m * MOST, n * sizeof *out, &sending[m][1], &err));
    }
    for (int m = 0; m < MESSAGES && g->size > 1; m++)
        for (int k = 0; k < 2; k++) {
            const int from = k == 0 ? before : next;
            const size_t n = m == 0 ? 0 : (size_t)1 << 2 * m;

            CHECK_OK(dpt_group_receive(g, from, in, n * sizeof *in, &err));
            for (size_t i = 0; i < n; i++)
                CHECK(in[i] == 1000 * from + m);
        }
    for (int m = 0; m < MESSAGES && g->size > 1; m++)
        for (int k = 0; k < 2; k++)
            CHECK_OK(dpt_group_sent(g, &sending[m][k], &err));
    free(out);
    free(in);
}

static void too_many_are_refused(void **state)
{
    struct dpt_comm parts[DPT_AXES_MOST + 1];
    int n = 0;

    (void)state;
    if (comm.world.size == 1) /* nobody watches */
        skip();
    while (n < DPT_AXES_MOST)
        CHECK_OK(dpt_comm_split(&comm, 0, &parts[n++], &err));
    CHECK(dpt_comm_split(&comm, 0, &parts[n], &err) == DPT_INTERNAL);
    while (n > 0)
        dpt_comm_close(&parts[--n]);
    CHECK_OK(dpt_comm_split(&comm, 0, &parts[0], &err));
    dpt_comm_close(&parts[0]);
}

/* One group loses its last rank; the other one never meets it, and continues all the time. */
static void lose_one(void)
{
    const bool odd = comm.world.rank % 2 == 1;
    struct dpt_comm part;

    dpt_comm_limit(&comm, (struct dpt_comm_limits){1, 1});
    CHECK_OK(dpt_comm_split(&comm, odd, &part, &err));
    CHECK_OK(dpt_group_barrier(&part.world, &err));
    dpt_comm_note(&part, 12, odd ? "waiting" : "working");
    if (odd && part.world.rank == part.world.size - 1) {
        dpt_comm_note(&part, 12, "standing still");
        for (;;)
            pause();
    }
    for (;;)
        CHECK_OK(dpt_group_barrier(&part.world, &err));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_whole),
        cmocka_unit_test(groups_of_nodes_and_of_groups),
        cmocka_unit_test(messages_arrive_in_order),
        cmocka_unit_test(too_many_are_refused),
    };

    (void)argv;
    open_ranks();
    if (argc > 1)
        lose_one();
    return close_ranks(cmocka_run_group_tests(tests, NULL, NULL));
}

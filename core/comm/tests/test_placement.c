/* Partial sums are made where the fewest travel, and hosts share what does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/rng.h"
#include "core/comm/sums/placement.h"

enum { MOST_HOSTS = 64, MOST_BLOCKS = 4 * MOST_HOSTS };

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 91, i) % sides;
}

/* Opens the placement of hosts that have the leaves from first[h] to first[h + 1]. */
static void open_runs(struct dpt_placement *p, int hosts, const int32_t *first)
{
    struct dpt_placement_block blocks[MOST_BLOCKS];
    struct dpt_error err;
    int n = 0;

    for (int h = 0; h < hosts; h++) {
        struct dpt_block own[DPT_TREE_BLOCKS];
        const int count = dpt_tree_blocks(first[h], first[h + 1], first[hosts], own);

        for (int k = 0; k < count; k++)
            blocks[n++] = (struct dpt_placement_block){own[k], h, k};
    }
    assert_int_equal(dpt_placement_open(p, hosts, blocks, n, first[hosts], &err), DPT_OK);
}

static void open_even(struct dpt_placement *p, int hosts, int32_t leaves)
{
    int32_t first[MOST_HOSTS + 1] = {0};

    for (int h = 0; h <= hosts; h++)
        first[h] = h * leaves;
    open_runs(p, hosts, first);
}

/* How many values travel in the placement that is made. */
static int count_travels(const struct dpt_placement *p, int owner)
{
    int n = p->partials[p->n - 1].where != owner;

    for (int i = 0; i < p->n; i++) {
        const struct dpt_partial *sum = &p->partials[i];

        if (sum->left < 0)
            continue;
        n += p->partials[sum->left].where != sum->where;
        n += p->partials[sum->right].where != sum->where;
        assert_true(p->partials[sum->left].where == sum->where ||
                    p->partials[sum->right].where == sum->where);
        assert_true(sum->phase > p->partials[sum->left].phase);
        assert_true(sum->phase > p->partials[sum->right].phase);
    }
    return n;
}

/* The fewest that travel below a sum that is made on a host, by trying every host for both
 * operands. */
static int find_fewest(const struct dpt_placement *p, int i, int host)
{
    const struct dpt_partial *sum = &p->partials[i];
    int all = 0;

    if (sum->left < 0)
        return sum->where == host ? 0 : 1000;
    for (int side = 0; side < 2; side++) {
        int least = INT32_MAX;

        for (int h = 0; h < p->hosts; h++) {
            const int n = find_fewest(p, side == 0 ? sum->left : sum->right, h) + (h != host);

            least = n < least ? n : least;
        }
        all += least;
    }
    return all;
}

static void the_fewest_values_travel(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        const int hosts = 2 + (int)dice(seed, 0, 3);
        int32_t first[MOST_HOSTS + 1] = {0};
        struct dpt_placement p;

        for (int h = 0; h < hosts; h++)
            first[h + 1] = first[h] + (int32_t)dice(seed, 1 + (uint64_t)h, 6) + (h == 0);
        open_runs(&p, hosts, first);
        p.priced = p.at_owner = false;
        for (int owner = 0; owner < hosts && p.n <= 11; owner++) {
            int fewest = INT32_MAX;

            dpt_placement_place(&p, owner);
            for (int h = 0; h < hosts; h++) {
                const int n = find_fewest(&p, p.n - 1, h) + (h != owner);

                fewest = n < fewest ? n : fewest;
            }
            assert_int_equal(count_travels(&p, owner), fewest);
        }
        dpt_placement_close(&p);
    }
}

/* A host that places only what it has to do with finds the same places for that. */
static void a_host_places_its_own_alike(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        const int hosts = 2 + (int)dice(seed, 0, 12), host = (int)dice(seed, 1, (uint64_t)hosts);
        int32_t first[MOST_HOSTS + 1] = {0};
        struct dpt_placement all, own;
        int placed;

        for (int h = 0; h < hosts; h++)
            first[h + 1] = first[h] + 1 + (int32_t)dice(seed, 2 + (uint64_t)h, 4);
        open_runs(&all, hosts, first);
        open_runs(&own, hosts, first);
        dpt_placement_begin(&all, seed % 2 == 0);
        dpt_placement_begin(&own, seed % 2 == 0);
        placed = own.n_sums;
        dpt_placement_only(&own, host);
        assert_true(own.priced ? own.n_sums == placed : own.n_sums <= placed);
        for (int owner = 0; owner < hosts; owner++) {
            int there = 0;

            dpt_placement_place(&all, owner);
            dpt_placement_place(&own, owner);
            for (int i = 0; i < own.n_sums; i++) {
                const struct dpt_partial *sum = &own.partials[own.sums[i]];

                assert_int_equal(sum->where, all.partials[own.sums[i]].where);
                assert_int_equal(own.partials[sum->left].where, all.partials[sum->left].where);
                assert_int_equal(own.partials[sum->right].where, all.partials[sum->right].where);
                there += sum->where == host;
            }
            for (int i = 0; i < all.n_sums; i++)
                there -= all.partials[all.sums[i]].where == host;
            assert_int_equal(there, 0); /* no sum on it is left out */
        }
        dpt_placement_close(&all);
        dpt_placement_close(&own);
    }
}

/* What all hosts send there and back, over what they would send in a sum without order, and the
 * busiest one's. */
static double count_sent(int hosts, int32_t leaves, double *busiest)
{
    const double plain = 2 * (hosts - 1.0);
    struct dpt_placement p;
    double all = 0, most = 0;

    open_even(&p, hosts, leaves);
    dpt_placement_begin(&p, false);
    for (int owner = 0; owner < hosts; owner++) {
        dpt_placement_place(&p, owner);
        all += count_travels(&p, owner);
    }
    for (int h = 0; h < hosts; h++) {
        most = p.sent[h] > most ? (double)p.sent[h] : most;
        most = p.received[h] > most ? (double)p.received[h] : most;
    }
    dpt_placement_close(&p);
    *busiest = (most + hosts - 1) / plain;
    return (all / hosts + hosts - 1) / plain;
}

/* SCALE.md has the whole table. */
static void half_as_much_again_is_sent_at_most(void **state)
{
    static const int hosts[] = {2, 3, 4, 5, 12, 15, 16, 64};

    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        double busiest;

        assert_true(count_sent(hosts[i], 1, &busiest) == 1 && busiest <= 1.25);
        assert_true(count_sent(hosts[i], 2, &busiest) == 1 && busiest <= 1.25);
        assert_true(count_sent(hosts[i], 3, &busiest) <= 1.5 && busiest <= 1.75);
        assert_true(count_sent(hosts[i], 7, &busiest) <= 1.56 && busiest <= 2);
    }
}

/* As recursive halving has it: a host exchanges with one other in each phase, and halves. */
static void powers_of_two_halve(void **state)
{
    (void)state;
    for (int hosts = 2; hosts <= MOST_HOSTS; hosts *= 2) {
        int with[MOST_HOSTS][8], n[MOST_HOSTS][8] = {{0}};
        struct dpt_placement p;

        memset(with, -1, sizeof with);
        open_even(&p, hosts, 4);
        assert_int_equal(p.n, 2 * hosts - 1);
        dpt_placement_begin(&p, false);
        for (int owner = 0; owner < hosts; owner++) {
            dpt_placement_place(&p, owner);
            assert_int_equal(p.partials[p.n - 1].where, owner);
            for (int i = 0; i < p.n; i++) {
                const struct dpt_partial *sum = &p.partials[i];
                int from;

                if (sum->left < 0)
                    continue;
                from = p.partials[sum->left].where + p.partials[sum->right].where - sum->where;
                assert_true(with[from][sum->phase] < 0 || with[from][sum->phase] == sum->where);
                with[from][sum->phase] = sum->where;
                n[from][sum->phase]++;
            }
        }
        for (int h = 0; h < hosts; h++)
            for (int phase = 1; phase <= p.phases; phase++)
                assert_int_equal(n[h][phase], hosts >> phase);
        dpt_placement_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fewest_values_travel),
        cmocka_unit_test(a_host_places_its_own_alike),
        cmocka_unit_test(half_as_much_again_is_sent_at_most),
        cmocka_unit_test(powers_of_two_halve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Lists of actions: on random meshes all ranks' lists, run against each other, come to an end, with
 * collective actions in one order, and compute each round once, within the planned memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/train/job/job.h"
#include "core/train/layout/actions.h"

enum { MESHES = 4000, STAGES = 5, REPLICAS = 4, UNITS = 4, ROUNDS = 9 };

/* What one rank has done. */
struct rank {
    struct dpt_division division;
    int32_t node[UNITS + 1];
    struct dpt_actions list;
    int32_t at;                            /* its next action */
    int32_t forward[ROUNDS], back[ROUNDS]; /* units that a round has been through */
    int32_t added[ROUNDS];        /* units whose gradient was added, and what is behind them */
    bool handed[ROUNDS];          /* STATE */
    int32_t in_place[ROUNDS];     /* round + 1; 0: it is free */
    int32_t gathered;             /* unit + 1 whose weights are there */
    int32_t sent[2], received[2]; /* rounds, [back] */
    int32_t pending[ROUNDS][2];   /* round + 1 that was last sent from a flight, [back] */
    int32_t exchanges;
};

struct mesh {
    int stages, replicas, units;
    struct rank ranks[STAGES][REPLICAS];
    int32_t collective; /* actions that were collective over several ranks */
};

static uint64_t draw(uint64_t *state, uint64_t n)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (*state >> 33) % n;
}

/* A mesh as jobs may have it: all that divides samples or the model does so for all ranks alike,
 * but for the rounds of replicas that do not take them in turn. */
static void draw_mesh(uint64_t seed, struct mesh *m)
{
    uint64_t state = seed * 77 + 5;
    const bool infers = draw(&state, 5) == 0, synchronized = draw(&state, 4) == 0;
    const bool sliced = !synchronized && draw(&state, 3) == 0;
    const bool gathers = sliced && draw(&state, 2) == 0;
    const bool round_robin = sliced || draw(&state, 3) == 0;
    const int schedule = (int)draw(&state, DPT_PIPELINE_FORWARD);
    const int32_t rounds = (int32_t)draw(&state, ROUNDS);

    memset(m, 0, sizeof *m);
    m->stages = synchronized ? 1 : 1 + (int)draw(&state, STAGES);
    m->replicas = 1 + (int)draw(&state, REPLICAS);
    m->units = sliced || synchronized ? 1 + (int)draw(&state, UNITS) : 1;
    for (int s = 0; s < m->stages; s++)
        for (int r = 0; r < m->replicas; r++) {
            struct rank *rank = &m->ranks[s][r];
            struct dpt_error err;

            for (int k = 0; k <= m->units; k++)
                rank->node[k] = 100 * s + 7 * k;
            rank->division = (struct dpt_division){
                .schedule = &dpt_pipeline_schedules[schedule],
                .stages = m->stages,
                .stage = s,
                .units = m->units,
                .node = rank->node,
                .rounds =
                    round_robin || gathers || synchronized ? rounds : (rounds + 3 * r) % ROUNDS,
                .infers = infers,
                .in_passes = m->stages > 1 || sliced || draw(&state, 2) == 0,
                .gathers = gathers,
                .round_robin = round_robin,
                .synchronized = synchronized,
            };
            rank->division.in_passes |= r > 0 && m->ranks[s][0].division.in_passes;
            assert_int_equal(dpt_actions_plan(&rank->division, &rank->list, &err), DPT_OK);
        }
}

/* --- what a rank may do ----------------------------------------------------------------------- */

static void go_forward(struct rank *r, const struct dpt_action *a)
{
    for (int32_t k = 0; k < a->rounds; k++) {
        const int32_t round = a->round + k, flight = a->flight + k;

        assert_true(flight < dpt_actions_in_flight(&r->list));
        if (a->unit == 0) {
            assert_int_equal(r->in_place[flight], 0);
            r->in_place[flight] = round + 1;
        }
        assert_int_equal(r->in_place[flight], round + 1);
        assert_int_equal(r->forward[round]++, a->unit);
        if (r->division.infers && a->unit == r->division.units - 1)
            r->in_place[flight] = 0;
    }
}

static void go_back(struct rank *r, const struct dpt_action *a)
{
    for (int32_t k = 0; k < a->rounds; k++) {
        const int32_t round = a->round + k, flight = a->flight + k, units = r->division.units;

        assert_int_equal(r->in_place[flight], round + 1);
        assert_int_equal(r->forward[round], units);
        assert_int_equal(a->unit, units - 1 - r->back[round]++);
        if (a->unit == 0)
            r->in_place[flight] = 0;
    }
}

/* All rounds at once: they count as having been through each unit. */
static void go_whole(struct rank *r, const struct dpt_action *a)
{
    for (int32_t k = a->round; k < a->round + a->rounds; k++) {
        assert_int_equal(r->forward[k], 0);
        r->forward[k] = r->division.units;
        r->back[k] = a->kind == DPT_ACTION_TRAIN ? r->division.units : 0;
    }
}

/* A round's gradient of a unit is added behind its pass, what is behind the units, behind what
 * hands it over. */
static void add(struct rank *r, const struct dpt_action *a)
{
    const int32_t units = r->division.units;

    if (a->unit < units)
        assert_true(r->back[a->round] >= units - a->unit);
    else
        assert_true(r->handed[a->round] || r->back[a->round] == units);
    assert_int_equal(r->added[a->round] & 1 << a->unit, 0);
    r->added[a->round] |= 1 << a->unit;
}

static void check_nodes(const struct rank *r, const struct dpt_action *a)
{
    const int32_t *node = &r->node[a->unit];
    const bool past = r->division.synchronized && a->back; /* from a norm's readers to the next */

    assert_int_equal(a->first, node[0] + (past && a->unit > 0));
    assert_int_equal(a->last, node[1] + (past && a->unit < r->division.units - 1));
    assert_int_equal(r->division.gathers, r->gathered != 0);
    assert_true(r->gathered == 0 || r->gathered == a->unit + 1);
}

/* Whether what was sent from a flight has been received, for which the runner waits before the
 * flight is used again. */
static bool has_arrived(const struct mesh *m, int stage, int replica, int32_t flight)
{
    const int32_t *pending = m->ranks[stage][replica].pending[flight];

    return (pending[0] == 0 || m->ranks[stage + 1][replica].received[0] >= pending[0]) &&
           (pending[1] == 0 || m->ranks[stage - 1][replica].received[1] >= pending[1]);
}

/* Takes an action that the rank can take by itself; true: it did. */
static bool act_alone(struct mesh *m, int stage, int replica)
{
    struct rank *r = &m->ranks[stage][replica];
    const struct dpt_action *a = &r->list.at[r->at];

    if (!has_arrived(m, stage, replica, a->flight))
        return false;
    switch (a->kind) {
    case DPT_ACTION_TRAIN:
    case DPT_ACTION_INFER:
        go_whole(r, a);
        break;
    case DPT_ACTION_FORWARD:
        check_nodes(r, a);
        go_forward(r, a);
        break;
    case DPT_ACTION_BACKWARD:
        check_nodes(r, a);
        go_back(r, a);
        break;
    case DPT_ACTION_STATE:
        for (int32_t k = a->round; k < a->round + a->rounds; k++)
            r->handed[k] = true;
        break;
    case DPT_ACTION_RELEASE:
        assert_int_equal(r->gathered, a->unit + 1);
        r->gathered = 0;
        break;
    case DPT_ACTION_SEND:
        assert_int_equal(r->sent[a->back]++, a->round);
        r->pending[a->flight][a->back] = a->round + 1;
        break;
    case DPT_ACTION_RECEIVE: {
        const struct rank *from = &m->ranks[stage + (a->back ? 1 : -1)][replica];

        if (from->sent[a->back] <= a->round)
            return false;
        assert_int_equal(r->received[a->back]++, a->round);
        break;
    }
    default:
        return false;
    }
    r->at++;
    return true;
}

static bool is_same(const struct dpt_action *a, const struct dpt_action *b)
{
    return a->kind == b->kind && a->back == b->back && a->round == b->round && a->unit == b->unit;
}

/* Takes an action together with all ranks of the stage, where they all stand at it. */
static bool act_together(struct mesh *m, int stage)
{
    const struct rank *first = &m->ranks[stage][0];
    const struct dpt_action *a;

    if (first->at == first->list.n)
        return false;
    a = &first->list.at[first->at];
    if (a->kind != DPT_ACTION_GATHER && a->kind != DPT_ACTION_ADD && a->kind != DPT_ACTION_EXCHANGE)
        return false;
    for (int k = 1; k < m->replicas; k++) {
        const struct rank *r = &m->ranks[stage][k];

        if (r->at == r->list.n || dpt_action_types[r->list.at[r->at].kind].over < DPT_OVER_REPLICAS)
            return false;
        assert_true(is_same(a, &r->list.at[r->at])); /* collectives come in one order */
    }
    for (int k = 0; k < m->replicas; k++) {
        struct rank *r = &m->ranks[stage][k];

        if (a->kind == DPT_ACTION_ADD)
            add(r, a);
        if (a->kind == DPT_ACTION_GATHER) {
            assert_int_equal(r->gathered, 0); /* one unit's weights are there at a time */
            r->gathered = a->unit + 1;
        }
        r->exchanges += a->kind == DPT_ACTION_EXCHANGE;
        r->at++;
    }
    m->collective++;
    return true;
}

/* --- all of them ------------------------------------------------------------------------------ */

static void run(struct mesh *m)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < m->stages; s++) {
            for (int r = 0; r < m->replicas; r++)
                while (m->ranks[s][r].at < m->ranks[s][r].list.n && act_alone(m, s, r))
                    moved = true;
            moved |= act_together(m, s);
        }
    }
}

static void check_end(const struct mesh *m, const struct rank *r)
{
    const struct dpt_division *d = &r->division;
    const int32_t units = d->units;
    const bool once = d->in_passes || d->synchronized; /* TRAIN counts as all units */
    const int32_t all = d->infers ? 0 : units;

    assert_int_equal(r->at, r->list.n); /* none waits for ever */
    assert_int_equal(r->gathered, 0);
    for (int32_t k = 0; k < d->rounds; k++) {
        assert_int_equal(r->forward[k], units);
        assert_int_equal(r->back[k], all);
        assert_int_equal(r->added[k], d->round_robin && !d->infers ? (1 << (units + 1)) - 1 : 0);
    }
    for (int k = 0; k < ROUNDS; k++)
        assert_int_equal(r->in_place[k], 0);
    if (d->synchronized && !d->infers)
        assert_int_equal(r->exchanges, 2 * (units - 1));
    if (once && !d->synchronized)
        assert_int_equal(r->sent[0], d->stage < m->stages - 1 ? d->rounds : 0);
    if (!d->synchronized && !d->infers && once && d->rounds > 0)
        assert_true(dpt_actions_in_flight(&r->list) <=
                    d->schedule->under_way(d->stages, d->stage, d->rounds));
}

static void all_ranks_come_to_an_end(void **state)
{
    int64_t collective = 0, actions = 0;

    (void)state;
    for (uint64_t seed = 0; seed < MESHES; seed++) {
        struct mesh m;

        draw_mesh(seed, &m);
        run(&m);
        collective += m.collective;
        for (int s = 0; s < m.stages; s++)
            for (int r = 0; r < m.replicas; r++) {
                check_end(&m, &m.ranks[s][r]);
                actions += m.ranks[s][r].list.n;
                dpt_actions_release(&m.ranks[s][r].list);
            }
    }
    assert_true(collective > MESHES && actions > 100 * MESHES / 4);
    print_message("%lld actions of %d meshes, %lld of them collective\n", (long long)actions,
                  MESHES, (long long)collective);
}

/* A plain step is one action, whatever the number of rounds. */
static void a_plain_step_is_one_action(void **state)
{
    const int32_t node[] = {0, 5};
    struct dpt_division d = {.schedule = &dpt_pipeline_schedules[DPT_PIPELINE_1F1B],
                             .stages = 1,
                             .units = 1,
                             .node = node};
    struct dpt_error err;

    (void)state;
    for (d.rounds = 1; d.rounds < 100; d.rounds += 9) {
        struct dpt_actions list = {0};

        assert_int_equal(dpt_actions_plan(&d, &list, &err), DPT_OK);
        assert_int_equal(list.n, 1);
        assert_int_equal(list.at[0].kind, DPT_ACTION_TRAIN);
        assert_int_equal(list.at[0].rounds, d.rounds);
        dpt_actions_release(&list);
    }
}

/* Narayanan et al. 2021, section 2.2: with 1f1b a stage has as many micro-batches under way as
 * there are stages from it on, with gpipe all. */
static void schedules_bound_what_is_under_way(void **state)
{
    const int32_t node[] = {0, 5};
    struct dpt_error err;

    (void)state;
    for (int kind = 0; kind < DPT_PIPELINE_FORWARD; kind++)
        for (int stages = 2; stages <= STAGES; stages++)
            for (int stage = 0; stage < stages; stage++) {
                const struct dpt_division d = {.schedule = &dpt_pipeline_schedules[kind],
                                               .stages = stages,
                                               .stage = stage,
                                               .units = 1,
                                               .node = node,
                                               .rounds = 20,
                                               .in_passes = true};
                struct dpt_actions list = {0};

                assert_int_equal(dpt_actions_plan(&d, &list, &err), DPT_OK);
                assert_int_equal(dpt_actions_in_flight(&list),
                                 kind == DPT_PIPELINE_GPIPE ? 20 : stages - stage);
                dpt_actions_release(&list);
            }
}

static void names_are_those_of_the_job(void **state)
{
    const char *const *names = DPT_CHOICES(DPT_PIPELINES);

    (void)state;
    for (int k = 0; k < DPT_PIPELINE_FORWARD; k++)
        assert_string_equal(dpt_pipeline_schedules[k].name, names[k]);
    for (int k = 0; k < DPT_ACTION_KINDS; k++) {
        assert_non_null(dpt_action_types[k].name);
        assert_non_null(dpt_action_types[k].run);
        assert_non_null(dpt_action_types[k].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_come_to_an_end),
        cmocka_unit_test(a_plain_step_is_one_action),
        cmocka_unit_test(schedules_bound_what_is_under_way),
        cmocka_unit_test(names_are_those_of_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

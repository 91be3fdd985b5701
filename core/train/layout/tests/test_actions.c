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
#include "core/train/layout/lists.h"

enum { MESHES = 4000, STAGES = 5, REPLICAS = 4, UNITS = 4, ROUNDS = 9 };

/* All ranks of a step. */
struct mesh {
    int stages, replicas;
    int32_t node[STAGES][UNITS + 1];
    struct dpt_division ranks[STAGES][REPLICAS];
};

static uint64_t draw(uint64_t *state, uint64_t n)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (*state >> 33) % n;
}

/* A mesh as jobs may have it: what divides samples or the model is alike on all ranks. Only the
 * number of rounds may differ, between replicas that do not take micro-batches round-robin. */
static void draw_mesh(uint64_t seed, struct mesh *m)
{
    uint64_t state = seed * 77 + 5;
    const bool infers = draw(&state, 5) == 0, synchronized = draw(&state, 4) == 0;
    const bool sliced = !synchronized && draw(&state, 3) == 0;
    const bool gathers = sliced && draw(&state, 2) == 0;
    const bool round_robin = sliced || draw(&state, 3) == 0;
    const int schedule = (int)draw(&state, DPT_PIPELINE_FORWARD);
    const int32_t rounds = (int32_t)draw(&state, ROUNDS);

    int units;

    memset(m, 0, sizeof *m);
    m->stages = synchronized ? 1 : 1 + (int)draw(&state, STAGES);
    m->replicas = 1 + (int)draw(&state, REPLICAS);
    units = sliced || synchronized ? 1 + (int)draw(&state, UNITS) : 1;
    for (int s = 0; s < m->stages; s++)
        for (int r = 0; r < m->replicas; r++) {
            struct dpt_division *d = &m->ranks[s][r];

            for (int k = 0; k <= units; k++)
                m->node[s][k] = 100 * s + 7 * k;
            *d = (struct dpt_division){
                .schedule = schedule,
                .stages = m->stages,
                .stage = s,
                .units = units,
                .node = m->node[s],
                .rounds =
                    round_robin || gathers || synchronized ? rounds : (rounds + 3 * r) % ROUNDS,
                .infers = infers,
                .in_passes = m->stages > 1 || sliced || draw(&state, 2) == 0,
                .gathers = gathers,
                .round_robin = round_robin,
                .synchronized = synchronized,
            };
            d->in_passes |= r > 0 && m->ranks[s][0].in_passes;
        }
}

static struct dpt_division division_of(void *mesh, int stage, int replica)
{
    const struct mesh *m = mesh;

    return m->ranks[stage][replica];
}

/* Runs the lists of a mesh; without: NULL, or an action that the rank's list is to lack. */
static enum dpt_status run(struct mesh *m, const int without[3], int64_t *collective,
                           int64_t *actions, struct dpt_error *err)
{
    struct dpt_lists lists;
    struct dpt_str grid = {0};
    enum dpt_status status;

    assert_int_equal(dpt_lists_open(&lists, m->stages, m->replicas, division_of, m, err), DPT_OK);
    for (int s = 0; s < m->stages; s++)
        for (int r = 0; r < m->replicas; r++)
            *actions += dpt_lists_of(&lists, s, r)->n;
    if (without != NULL) {
        struct dpt_actions *list =
            (struct dpt_actions *)dpt_lists_of(&lists, without[0], without[1]);

        memmove(&list->at[without[2]], &list->at[without[2] + 1],
                (size_t)(list->n - without[2] - 1) * sizeof *list->at);
        list->n--;
    }
    status = dpt_lists_run(&lists, NULL, NULL, &grid, err);
    if ((status == DPT_OK) != (without == NULL))
        fail_msg("%s\n%s", status == DPT_OK ? "nothing was noticed" : err->text, grid.text);
    *collective += lists.collective;
    dpt_str_release(&grid);
    dpt_lists_close(&lists);
    return status;
}

static void all_ranks_come_to_an_end(void **state)
{
    int64_t collective = 0, actions = 0;

    (void)state;
    for (uint64_t seed = 0; seed < MESHES; seed++) {
        struct mesh m;
        struct dpt_error err;

        draw_mesh(seed, &m);
        run(&m, NULL, &collective, &actions, &err);
    }
    assert_true(collective > MESHES && actions > 100 * MESHES / 4);
    print_message("%lld actions of %d meshes, %lld of them collective\n", (long long)actions,
                  MESHES, (long long)collective);
}

/* No action can be left out: some rank waits for ever, or breaks a rule. */
static void each_action_is_needed(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < MESHES; seed++) {
        uint64_t chance = seed;
        struct mesh m;
        struct dpt_error err;
        struct dpt_actions list = {0};
        int without[3];
        int64_t ignored = 0;

        draw_mesh(seed, &m);
        without[0] = (int)draw(&chance, (uint64_t)m.stages);
        without[1] = (int)draw(&chance, (uint64_t)m.replicas);
        assert_int_equal(dpt_actions_plan(&m.ranks[without[0]][without[1]], &list, &err), DPT_OK);
        if (m.ranks[without[0]][without[1]].rounds > 0) { /* else they do nothing */
            without[2] = (int)draw(&chance, (uint64_t)list.n);
            run(&m, without, &ignored, &ignored, &err);
        }
        dpt_actions_release(&list);
    }
}

/* A plain step is one action, whatever the number of rounds. */
static void a_plain_step_is_one_action(void **state)
{
    const int32_t node[] = {0, 5};
    struct dpt_division d = {.schedule = DPT_PIPELINE_1F1B, .stages = 1, .units = 1, .node = node};
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
                const struct dpt_division d = {.schedule = kind,
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

static void kinds_have_their_members(void **state)
{
    (void)state;
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
        cmocka_unit_test(each_action_is_needed),
        cmocka_unit_test(a_plain_step_is_one_action),
        cmocka_unit_test(schedules_bound_what_is_under_way),
        cmocka_unit_test(kinds_have_their_members),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

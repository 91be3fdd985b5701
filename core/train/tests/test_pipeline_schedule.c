/* Schedules of a pipeline: all stages together come to an end, each within what it may have under
 * way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/train/job.h"
#include "core/train/pipeline_schedule.h"

enum { STAGES = 6, MOST = 20 };

/* What a stage has sent, and has had from the stages beside it. */
struct stage {
    struct dpt_pipeline_walk walk;
    struct dpt_pipeline_action next;
    bool has_next;
    int32_t forward, back, most;
};

/* Whether what an action needs of the stages beside it is there. */
static bool is_ready(const struct stage *s, int stages)
{
    const int k = s->walk.stage;

    if (s->next.back)
        return k == stages - 1 || s[1].back > s->next.micro_batch;
    return k == 0 || s[-1].forward > s->next.micro_batch;
}

/* Takes an action of a stage; micro-batches come one after another, in both directions. */
static void take(struct stage *s)
{
    int32_t *done = s->next.back ? &s->back : &s->forward;

    assert_int_equal(s->next.micro_batch, *done);
    ++*done;
    if (s->walk.schedule->back && s->forward - s->back > s->most)
        s->most = s->forward - s->back;
    s->has_next = dpt_pipeline_next(&s->walk, &s->next);
}

static void run(const struct dpt_pipeline_schedule *schedule, int stages, int32_t n,
                struct stage *all)
{
    bool moved = true;

    memset(all, 0, STAGES * sizeof *all);
    for (int k = 0; k < stages; k++) {
        all[k].walk = (struct dpt_pipeline_walk){schedule, stages, k, n, 0, 0};
        all[k].has_next = dpt_pipeline_next(&all[k].walk, &all[k].next);
    }
    while (moved) {
        moved = false;
        for (int k = 0; k < stages; k++)
            while (all[k].has_next && is_ready(&all[k], stages)) {
                take(&all[k]);
                moved = true;
            }
    }
    for (int k = 0; k < stages; k++) { /* none waits for ever */
        assert_false(all[k].has_next);
        assert_int_equal(all[k].forward, n);
        assert_int_equal(all[k].back, schedule->back ? n : 0);
    }
}

static void all_stages_come_to_an_end(void **state)
{
    struct stage all[STAGES];

    (void)state;
    for (int which = 0; which < DPT_PIPELINE_SCHEDULES; which++)
        for (int stages = 1; stages <= STAGES; stages++)
            for (int32_t n = 0; n <= MOST; n++)
                run(&dpt_pipeline_schedules[which], stages, n, all);
}

/* Stage k of S has S - k under way, however many there are; gpipe has all of them. */
static void few_are_under_way(void **state)
{
    struct stage all[STAGES];

    (void)state;
    for (int stages = 1; stages <= STAGES; stages++)
        for (int32_t n = 1; n <= MOST; n++) {
            run(&dpt_pipeline_schedules[DPT_PIPELINE_1F1B], stages, n, all);
            for (int k = 0; k < stages; k++)
                assert_int_equal(all[k].most, stages - k < n ? stages - k : n);
            run(&dpt_pipeline_schedules[DPT_PIPELINE_GPIPE], stages, n, all);
            for (int k = 0; k < stages; k++)
                assert_int_equal(all[k].most, n);
        }
}

static void names_are_the_jobs(void **state)
{
    const char *const *names = DPT_CHOICES(DPT_PIPELINES);

    (void)state;
    for (int k = 0; k < DPT_PIPELINE_KIND_COUNT; k++)
        assert_string_equal(dpt_pipeline_schedules[k].name, names[k]);
    assert_int_equal(DPT_PIPELINE_KIND_COUNT, DPT_PIPELINE_FORWARD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_stages_come_to_an_end),
        cmocka_unit_test(few_are_under_way),
        cmocka_unit_test(names_are_the_jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

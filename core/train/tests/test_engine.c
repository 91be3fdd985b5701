/* Who takes a trainer's steps: every row is whole, and each trainer gets the one that it needs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/backend/steps.h"
#include "core/train/step/engine.h"

static void rows_are_whole(void **state)
{
    int n = 0;

    (void)state;
    for (; dpt_engines[n] != NULL; n++) {
        const struct dpt_engine *e = dpt_engines[n];

        assert_true(e->takes != NULL && e->open != NULL && e->close != NULL);
        assert_true(e->step != NULL && e->refresh != NULL && e->evaluate != NULL);
        assert_non_null(e->waited);
        assert_int_equal(e->attach != NULL, e->detach != NULL);
        /* What is left on a device has to be fetched some day. */
        assert_int_equal(e->settle != NULL, e->on_device);
        assert_int_equal(e->peek != NULL, e->on_device);
        assert_int_equal(e->fetch != NULL, e->on_device);
        for (int k = 0; k < n; k++)
            assert_ptr_not_equal(e, dpt_engines[k]);
    }
    assert_true(n > 1);
}

/* All combinations of what decides: only where nobody has to see each gradient a device steps. */
static void a_device_steps_where_nobody_sees_gradients(void **state)
{
    static const struct dpt_backend_steps steps;
    const struct dpt_optimizer_type by_rule = {.rule = DPT_RULE_SGD}, by_step = {0};
    const struct dpt_variant rule = {.impl = &by_rule}, own_step = {.impl = &by_step};
    struct dpt_optimizer_options options = {0};
    const struct dpt_backend with = {.name = "with", .steps = &steps},
                             without = {.name = "without"};

    (void)state;
    for (unsigned bits = 0; bits < 1U << 7; bits++) {
        struct dpt_job job = {0};
        struct dpt_trainer t = {.job = &job, .backend = bits & 1 ? &with : &without};
        const bool wanted = (bits & 3) == 3 && bits >> 2 == 0;

        t.data.train.present = (bits & 2) != 0;
        job.comm.reduction = bits & 4 ? DPT_REDUCTION_REPRODUCIBLE : DPT_REDUCTION_ALLREDUCE;
        job.log.hashes = (bits & 8) != 0;
        job.log.trace = (bits & 16) != 0;
        job.optimizer.variant = bits & 64 ? &own_step : &rule;
        job.optimizer.options = &options;
        if (bits & 32) {
            assert_int_equal(setenv("DPTRAIN_FAULT", "flip-gradient:rank=0:step=1", 1), 0);
            assert_int_equal(dpt_fault_read(&t.fault, &(struct dpt_error){0}), DPT_OK);
        }
        assert_ptr_equal(dpt_engine_choose(&t), wanted ? &dpt_engine_device : &dpt_engine_host);
    }
}

/* A failure in a step names the step. */
static void a_step_fails_for_its_own_cause(void **state)
{
    const struct dpt_trainer t = {.progress.step = 4};
    struct dpt_error err = {0};

    (void)state;
    assert_int_equal(dpt_step_fail(&t, dpt_fail_memory(&err, "images", 3e6), &err), DPT_RANK);
    assert_string_equal(err.text, "step 5: not enough memory for images (3.0 MB)");
    assert_int_equal(err.status, DPT_RANK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_whole),
        cmocka_unit_test(a_device_steps_where_nobody_sees_gradients),
        cmocka_unit_test(a_step_fails_for_its_own_cause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

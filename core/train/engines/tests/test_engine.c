/* Who takes a trainer's steps: every row is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/train/step/engine.h"

static void rows_are_whole(void **state)
{
    const struct dpt_engine *const engines[] = {&dpt_engine_host, &dpt_engine_device};

    (void)state;
    for (int on_device = 0; on_device < 2; on_device++) {
        const struct dpt_engine *e = engines[on_device];

        assert_true(e->open != NULL && e->close != NULL);
        assert_true(e->step != NULL && e->refresh != NULL);
        assert_non_null(e->waited);
        assert_int_equal(e->attach != NULL, e->detach != NULL);
        /* What is left on a device has to be fetched some day. */
        assert_int_equal(e->settle != NULL, on_device);
        assert_int_equal(e->peek != NULL, on_device);
        assert_int_equal(e->fetch != NULL, on_device);
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
        cmocka_unit_test(a_step_fails_for_its_own_cause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The scale of a job's targets (data.targets), as it is measured. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/sets/targets.h"

/* Mean and standard deviation of 1, 3 and 8, and of 0, 0 and 6; what weighs nothing is far off. */
static void samples_without_weight_do_not_count(void **state)
{
    static const float targets[] = {1, 0, 1e6F, -5, 3, 0, 8, 6, -1e9F, 7};
    static const float weights[] = {1, 0, 0.5F, 2, 0};
    const struct dpt_dataset set = {
        .samples = 5, .target_width = 2, .targets = targets, .weights = weights};
    const struct dpt_sampler sampler = {.total = 5, .samples = 5, .global = 2, .micro = 1};
    struct dpt_target_scale scale;
    struct dpt_error err;

    (void)state;
    assert_int_equal(dpt_target_scale_init(&scale, 2, &err), DPT_OK);
    if (dpt_target_scale_measure(&scale, &set, &sampler, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_true(scale.used);
    assert_true(fabs(scale.mean[0] - 4) < 1e-6 && fabs(scale.mean[1] - 2) < 1e-6);
    assert_true(fabs(scale.std[0] - sqrt((9 + 1 + 16) / 3.0)) < 1e-6);
    assert_true(fabs(scale.std[1] - sqrt((4 + 4 + 16) / 3.0)) < 1e-6);
    dpt_target_scale_release(&scale);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_without_weight_do_not_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

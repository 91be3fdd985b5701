/* What the report's charts make of a curve's points. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cmd/report/chart.h"

/* Of sorted values the one whose place is nearest to the fraction, whatever order they come in. */
static void a_quantile_is_the_nearest_value(void **state)
{
    static const double shuffled[] = {30, 0, 40, 10, 20};
    static const struct {
        double q, want;
    } cases[] = {{0, 0},    {0.1, 0},  {0.15, 10}, {0.35, 10}, {0.4, 20},
                 {0.6, 20}, {0.7, 30}, {0.85, 30}, {0.9, 40},  {1, 40}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double y[5], value;
        const struct dpt_series series = {.y = y, .n = 5};

        for (size_t k = 0; k < 5; k++)
            y[k] = shuffled[k];
        assert_true(dpt_series_quantile(&series, cases[i].q, &value));
        if (value != cases[i].want)
            fail_msg("%g: %g, not %g", cases[i].q, value, cases[i].want);
        assert_memory_equal(y, shuffled, sizeof y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quantile_is_the_nearest_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

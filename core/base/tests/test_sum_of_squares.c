#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "core/base/sum_of_squares.h"

enum { MOST = 4 * DPT_SUM_OF_SQUARES_LANES + 1 };

/* Of 1, 2, …, n it is n (n + 1) (2 n + 1) / 6, exactly, whatever is left over the lanes. */
static void every_float_counts_once(void **state)
{
    float x[MOST + 1];

    (void)state;
    for (size_t i = 0; i <= MOST; i++)
        x[i] = (float)(i + 1);
    for (size_t n = 0; n <= MOST; n++)
        assert_true(dpt_sum_of_squares(x, n) == (double)(n * (n + 1) * (2 * n + 1) / 6));
    x[MOST] = NAN; /* after the last one */
    assert_true(isfinite(dpt_sum_of_squares(x, MOST)));
    assert_false(isfinite(dpt_sum_of_squares(x, MOST + 1)));
}

/* Lanes that somebody else has filled give the same bits. */
static void lanes_are_added_in_order(void **state)
{
    float x[4 * DPT_SUM_OF_SQUARES_LANES];
    double lane[DPT_SUM_OF_SQUARES_LANES] = {0};

    (void)state;
    for (size_t i = 0; i < 4 * DPT_SUM_OF_SQUARES_LANES; i++) {
        x[i] = 1 / (float)(i + 3);
        lane[i % DPT_SUM_OF_SQUARES_LANES] += (double)x[i] * x[i];
    }
    assert_true(dpt_sum_of_lanes(lane) == dpt_sum_of_squares(x, 4 * DPT_SUM_OF_SQUARES_LANES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_float_counts_once),
        cmocka_unit_test(lanes_are_added_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

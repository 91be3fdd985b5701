/* Ticks of the report's charts: inside the axis, evenly spread, told apart, and labels say where
 * they are. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/report/chart.h"

static double random_unit(void)
{
    return (double)rand() / RAND_MAX;
}

/* The number that a label stands for. */
static double value_of(const char *label, bool percent)
{
    char *end;
    const double value = strtod(label, &end);
    static const char units[] = "kMGT";

    if (percent) {
        assert_string_equal(end, "\u00a0%");
        return value / 100;
    }
    if (*end == '\0')
        return value;
    assert_non_null(strchr(units, *end));
    assert_int_equal(end[1], '\0');
    return value * pow(1000, (double)(strchr(units, *end) - units + 1));
}

static void check(const struct dpt_ticks *t, double low, double high, bool percent, double exact)
{
    for (int i = 0; i < t->n; i++) {
        const double slack = 1e-5 * (high - low) + 1e-9 * fabs(high);

        assert_true(t->at[i] >= low - slack && t->at[i] <= high + slack);
        assert_true(fabs(value_of(t->label[i], percent) - t->at[i]) <=
                    exact * (i > 0 ? t->at[i] - t->at[i - 1] : t->at[i + 1] - t->at[i]) + 1e-300);
        if (i > 0) {
            assert_true(t->at[i] > t->at[i - 1]);
            assert_string_not_equal(t->label[i], t->label[i - 1]);
        }
    }
}

static void linear(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const double size = pow(10, 24 * random_unit() - 12);
        const bool percent = i % 5 == 0;
        const double low = i % 3 == 0 ? 0 : (random_unit() - 0.5) * size;
        const double high = low + (percent ? 1 : size) * (0.05 + random_unit());
        struct dpt_ticks t;

        dpt_ticks_linear(&t, low, high, 5, percent);
        if (t.n < 3 || t.n > 9)
            fail_msg("%g to %g: %d ticks", low, high, t.n);
        /* Shares of a million and more have no labels that tell percents apart. */
        if (!percent || (size > 1e-3 && fmax(fabs(low), fabs(high)) < 1e6))
            check(&t, low, high, percent, 0.02);
    }
}

static void logarithmic(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const double low = pow(10, 20 * random_unit() - 12);
        const double high = low * pow(10, 1.2 + (i % 4 == 0 ? 20 : 4) * random_unit());
        struct dpt_ticks t;

        dpt_ticks_log(&t, low, high);
        if (t.n < 1 || t.n > 11)
            fail_msg("%g to %g: %d ticks", low, high, t.n);
        for (int k = 0; k < t.n; k++) {
            assert_true(t.at[k] >= low * 0.999 && t.at[k] <= high * 1.001);
            assert_true(fabs(value_of(t.label[k], false) / t.at[k] - 1) < 1e-6);
        }
    }
}

/* What is drawn instead of many points keeps to them. */
static void thinning(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        const size_t n = (size_t)(1 + rand() % 3000), most = (size_t)(1 + rand() % 400);
        struct dpt_region region = {0};
        struct dpt_series s, mean, extremes, smooth;
        double low = INFINITY, high = -INFINITY, sum = 0, weighted = 0;

        assert_true(dpt_series_open(&s, n, &region));
        for (size_t k = 0; k < n; k++)
            dpt_series_add(&s, (double)k, exp(6 * random_unit() - 3));
        dpt_series_add(&s, 1, NAN);
        dpt_series_add(&s, 1, INFINITY);
        assert_int_equal(s.n, n);
        assert_true(dpt_series_thin(&s, most, &mean, &extremes, &region));
        assert_true(dpt_series_smooth(&mean, i % 2 == 0, &smooth, &region));
        assert_true(mean.n <= most && extremes.n <= 2 * most && smooth.n == mean.n);
        for (size_t k = 0; k < n; k++) {
            low = fmin(low, s.y[k]);
            high = fmax(high, s.y[k]);
            sum += s.y[k];
        }
        for (size_t k = 0; k < mean.n; k++) {
            const size_t run = (k + 1) * n / mean.n - k * n / mean.n;

            weighted += mean.y[k] * (double)run;
            assert_true(smooth.y[k] >= low * 0.999 && smooth.y[k] <= high * 1.001);
            assert_true(k == 0 || mean.x[k] > mean.x[k - 1]);
        }
        assert_true(fabs(weighted / sum - 1) < 1e-9);
        for (size_t k = 0; k < extremes.n; k++) {
            assert_true(extremes.y[k] == s.y[(size_t)extremes.x[k]]);
            low = extremes.y[k] == low ? -1 : low; /* both ends are among them */
            high = extremes.y[k] == high ? -1 : high;
        }
        assert_true(low == -1 && (high == -1 || n == 1));
        dpt_region_release(&region);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),
        cmocka_unit_test(logarithmic),
        cmocka_unit_test(thinning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/train/tests/variant.h"
#include "core/train/update/schedule.h"
#include "core/train/update/tests/golden_schedules.h"

enum { GOLDEN_CASES = sizeof golden_schedules / sizeof golden_schedules[0] };

static void open_schedule(struct dpt_conf *conf, const char *text, struct dpt_variant_value *value)
{
    struct dpt_error err;

    if (read_variant(conf, dpt_schedule_variants, text, value, &err) != DPT_OK)
        fail_msg("%s: %s", text, err.text);
}

static double lowered_rate_at(const struct dpt_variant_value *schedule, double lr, int64_t step,
                              int64_t steps, int64_t drops)
{
    const struct dpt_schedule_point point = {
        .step = step, .steps = steps, .steps_per_epoch = GOLDEN_PER_EPOCH, .drops = drops};

    return dpt_schedule_rate(schedule, lr, &point);
}

static double rate_at(const struct dpt_variant_value *schedule, double lr, int64_t step,
                      int64_t steps)
{
    return lowered_rate_at(schedule, lr, step, steps, 0);
}

static void rates_are_pytorchs(void **state)
{
    (void)state;
    for (size_t k = 0; k < GOLDEN_CASES; k++) {
        const struct golden_schedule *golden = &golden_schedules[k];
        const struct dpt_patience *plateau;
        struct dpt_variant_value schedule;
        struct dpt_watch watch = {.step = -1};
        struct dpt_conf conf;

        open_schedule(&conf, golden->conf, &schedule);
        plateau = dpt_schedule_plateau(&schedule);
        for (int step = 0; step < golden->steps; step++) {
            const double got =
                lowered_rate_at(&schedule, golden_rate, step, golden->steps, watch.drops);

            if (!(fabs(got - golden->rates[step]) <= 1e-12))
                fail_msg("%s, step %d: %.15g, PyTorch has %.15g", golden->conf, step, got,
                         golden->rates[step]);
            if (plateau != NULL) {
                dpt_watch_take(&watch, plateau, golden_values[step], step);
                dpt_schedule_lowers(plateau, &watch);
            }
        }
        dpt_conf_release(&conf);
    }
}

static void no_schedule_goes_unchecked(void **state)
{
    const char *texts[GOLDEN_CASES];

    (void)state;
    for (size_t k = 0; k < GOLDEN_CASES; k++)
        texts[k] = golden_schedules[k].conf;
    assert_all_have_cases(dpt_schedule_variants, texts, GOLDEN_CASES, " warmup scale_lr ",
                          "golden_schedules.py");
}

/* The rate goes up in a line to the one that the schedule starts with; then comes the schedule as
 * if the run began there. */
static void warmup_comes_before_the_schedule(void **state)
{
    (void)state;
    for (size_t k = 0; k < GOLDEN_CASES; k++)
        for (int warmup = 0; warmup < 20; warmup++) {
            const int rest = 1 + (warmup * 7) % 23;
            const char *kind = golden_schedules[k].conf;
            const bool rises = strstr(kind, "onecycle") != NULL; /* by itself */
            struct dpt_variant_value with, without;
            struct dpt_conf conf_with, conf_without;
            char text[128];

            if (rises)
                continue;
            if (kind[0] == '{')
                snprintf(text, sizeof text, "{warmup: %d, %s", warmup, kind + 1);
            else
                snprintf(text, sizeof text, "{warmup: %d, type: %s}", warmup, kind);
            open_schedule(&conf_with, text, &with);
            open_schedule(&conf_without, kind, &without);
            for (int s = 0; s < warmup; s++)
                assert_true(fabs(rate_at(&with, 0.4, s, warmup + rest) - 0.4 * (s + 1) / warmup) <
                            1e-15);
            for (int s = 0; s < rest; s++)
                assert_true(rate_at(&with, 0.4, warmup + s, warmup + rest) ==
                            rate_at(&without, 0.4, s, rest));
            dpt_conf_release(&conf_with);
            dpt_conf_release(&conf_without);
        }
}

/* A warm-up in other units is as many steps, rounded up, whatever the run's length. */
static void warmup_has_units(void **state)
{
    static const struct {
        const char *text;
        int all, per_epoch, whole, divisor; /* (all steps + per epoch's + whole) / divisor */
    } cases[] = {
        {"0.25", 1, 0, 0, 4},       {"25%", 1, 0, 0, 4},      {"7 %", 7, 0, 0, 100},
        {"100 %", 1, 0, 0, 1},      {"2 epochs", 0, 2, 0, 1}, {"1 epoch", 0, 1, 0, 1},
        {"0.5 epochs", 0, 1, 0, 2}, {"9 steps", 0, 0, 9, 1},  {"9", 0, 0, 9, 1},
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int steps = 1; steps < 110; steps++) {
            const int sum =
                cases[k].all * steps + cases[k].per_epoch * GOLDEN_PER_EPOCH + cases[k].whole;
            struct dpt_variant_value given, counted;
            struct dpt_conf conf_given, conf_counted;
            char text[64];

            snprintf(text, sizeof text, "{type: cosine, warmup: %d}",
                     (sum + cases[k].divisor - 1) / cases[k].divisor);
            open_schedule(&conf_counted, text, &counted);
            snprintf(text, sizeof text, "{type: cosine, warmup: %s}", cases[k].text);
            open_schedule(&conf_given, text, &given);
            for (int s = 0; s < steps; s++)
                if (rate_at(&given, 0.4, s, steps) != rate_at(&counted, 0.4, s, steps))
                    fail_msg("%s, step %d of %d", text, s, steps);
            dpt_conf_release(&conf_given);
            dpt_conf_release(&conf_counted);
        }
}

/* This holds also where the warm-up is longer than the run, a run is one step, or a resumed run
 * asks behind its end. */
static void rates_stay_between_zero_and_lr(void **state)
{
    static const char *const texts[] = {"{type: cosine, warmup: 50}",
                                        "{type: linear, final: 0.5, warmup: 9}",
                                        "{type: cosine}",
                                        "{type: step, every: 0.01 epochs, gamma: 0.9}",
                                        "linear",
                                        "{type: cosine, warmup: 30 %}",
                                        "onecycle",
                                        "{type: onecycle, pct_start: 1}",
                                        "{type: onecycle, pct_start: 0, div_factor: 1}"};

    (void)state;
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        struct dpt_variant_value schedule;
        struct dpt_conf conf;

        open_schedule(&conf, texts[k], &schedule);
        for (int64_t steps = 1; steps < 40; steps++)
            for (int64_t step = 0; step < 2 * steps; step++) {
                const double rate = rate_at(&schedule, 0.25, step, steps);

                if (!(rate >= 0 && rate <= 0.25))
                    fail_msg("%s: step %lld of %lld gives %g", texts[k], (long long)step,
                             (long long)steps, rate);
            }
        dpt_conf_release(&conf);
    }
}

/* min_lr raises no rate, not even one that is below it from the start or warms up. */
static void a_plateau_raises_nothing(void **state)
{
    struct dpt_variant_value schedule;
    struct dpt_conf conf;

    (void)state;
    open_schedule(&conf, "{type: plateau, warmup: 4, min_lr: 0.01}", &schedule);
    for (int64_t drops = 0; drops < 9; drops++) {
        assert_true(lowered_rate_at(&schedule, 0.001, 20, 40, drops) == 0.001);
        assert_true(lowered_rate_at(&schedule, 0.5, 20, 40, drops) ==
                    fmax(0.5 * pow(0.1, (double)drops), 0.01));
        assert_true(lowered_rate_at(&schedule, 0.5, 1, 40, drops) ==
                    lowered_rate_at(&schedule, 0.5, 20, 40, drops) * 2 / 4);
    }
    dpt_conf_release(&conf);
}

/* What is not a number is better than nothing, neither as the first value nor later. */
static void no_number_is_no_better(void **state)
{
    const struct dpt_patience how = {.monitor = DPT_MONITOR_LOSS};
    struct dpt_watch watch = {0};

    (void)state;
    dpt_watch_begin(&watch, "valid.loss");
    assert_false(dpt_watch_take(&watch, &how, NAN, 3));
    assert_true(watch.step == -1 && watch.waits == 1);
    assert_true(dpt_watch_take(&watch, &how, 5, 4));
    assert_false(dpt_watch_take(&watch, &how, NAN, 5));
    assert_false(dpt_watch_take(&watch, &how, 5, 6));
    assert_true(watch.best == 5 && watch.step == 4 && watch.waits == 2);
    dpt_watch_begin(&watch, "valid.loss"); /* of a run that goes on */
    assert_true(watch.best == 5 && watch.waits == 2);
    dpt_watch_begin(&watch, "valid.mae"); /* whose job watches another value now */
    assert_true(watch.step == -1 && watch.waits == 0);
}

/* Whatever an evaluation tells can be monitored, under its name. */
static void every_score_has_its_monitor(void **state)
{
    const struct dpt_metric_sums sums = {.loss = 6, .correct = 3, .samples = 4, .weight = 4};
    struct dpt_scores scores = {0};
    int n = 2;

    (void)state;
    assert_true(dpt_monitor_value(DPT_MONITOR_LOSS, &sums, &scores) == 1.5);
    assert_true(dpt_monitor_value(DPT_MONITOR_ACCURACY, &sums, &scores) == 0.75);
    for (const struct dpt_score *row = dpt_scores; row->name != NULL; row++, n++) {
        enum dpt_monitor monitor;
        bool told = false;
        char name[64];

        snprintf(name, sizeof name, "valid.%s", row->name);
        monitor = dpt_monitor_find(name);
        if (monitor == DPT_MONITOR_AUTO)
            fail_msg("%s cannot be monitored: core/train/update/monitor.h", name);
        dpt_scores_clear(&scores);
        assert_true(isnan(dpt_monitor_value(monitor, &sums, &scores)));
        *(double *)(void *)((char *)&scores + row->offset) = n;
        assert_true(dpt_monitor_value(monitor, &sums, &scores) == n);
        for (int loss = 0; loss < DPT_LOSSES; loss++)
            told = told || dpt_monitor_suits(monitor, (enum dpt_loss_kind)loss);
        assert_true(told);
    }
    assert_int_equal(n, DPT_MONITOR_AUTO);
}

static void scaling_follows_the_batch(void **state)
{
    static const struct {
        const char *text;
        int64_t global;
        double want;
    } cases[] = {
        {"constant", 8192, 0.1},
        {"{type: constant, scale_lr: {rule: linear}}", 8192, 3.2}, /* Goyal et al. 2017: k = 32 */
        {"{type: constant, scale_lr: {rule: linear, base_batch: 128}}", 64, 0.05},
        {"{type: cosine, scale_lr: {rule: sqrt}}", 1024, 0.2},
        {"{type: cosine, scale_lr: sqrt}", 1024, 0.2},
        {"{type: step, every: 1 epoch, scale_lr: {rule: sqrt, base_batch: 32}}", 128, 0.2},
        {"{type: linear, scale_lr: {rule: none, base_batch: 32}}", 128, 0.1},
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct dpt_variant_value schedule;
        struct dpt_conf conf;

        open_schedule(&conf, cases[k].text, &schedule);
        if (fabs(dpt_schedule_scale(&schedule, 0.1, cases[k].global) - cases[k].want) > 1e-15)
            fail_msg("%s: %g", cases[k].text, dpt_schedule_scale(&schedule, 0.1, cases[k].global));
        dpt_conf_release(&conf);
    }
}

static void mistakes_are_told(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"step", "every"},
        {"{type: step, every: never}", "expected epochs or steps"},
        {"{type: step, every: 10 min}", "expected epochs or steps"},
        {"{type: step, every: 3 steps, gamma: 2}", "gamma"},
        {"{type: cosine, warmup: -1}", "warmup"},
        {"{type: cosine, warmup: 3 parsecs}", "expected steps, epochs or a share of the run"},
        {"{type: cosine, warmup: never}", "expected steps, epochs or a share of the run"},
        {"{type: cosine, warmup: [1]}", "expected steps, epochs or a share of the run"},
        {"{type: cosine, warmup: 120 %}", "more than the whole run"},
        {"{type: onecycle, warmup: 5}", "warmup: unknown key"},
        {"{type: onecycle, pct_start: 30}", "pct_start"},
        {"{type: cosine, final: 1.5}", "final"},
        {"{type: cosine, scale_lr: {rule: cubic}}", "rule"},
        {"{type: cosine, scale_lr: cubic}", "'cubic' is none of none, linear, sqrt"},
        {"cosin", "did you mean 'cosine'"},
        {"{type: plateau, monitor: valid.los}", "did you mean 'valid.loss'"},
        {"{type: plateau, monitor: test.loss}", "monitor"},
        {"{type: plateau, factor: 1.5}", "factor"},
        {"{type: plateau, patience: -1}", "patience"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_variant_value value;
        struct dpt_conf conf;
        struct dpt_error err = {0};

        assert_int_equal(read_variant(&conf, dpt_schedule_variants, cases[i].text, &value, &err),
                         DPT_BAD_JOB);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s: no '%s' in: %s", cases[i].text, cases[i].want, err.text);
        dpt_conf_release(&conf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_pytorchs),
        cmocka_unit_test(no_schedule_goes_unchecked),
        cmocka_unit_test(warmup_comes_before_the_schedule),
        cmocka_unit_test(warmup_has_units),
        cmocka_unit_test(rates_stay_between_zero_and_lr),
        cmocka_unit_test(a_plateau_raises_nothing),
        cmocka_unit_test(no_number_is_no_better),
        cmocka_unit_test(every_score_has_its_monitor),
        cmocka_unit_test(scaling_follows_the_batch),
        cmocka_unit_test(mistakes_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

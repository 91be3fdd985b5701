/* Numbers and times in words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/conf/internal.h"

static void times_are_read(void **state)
{
    static const struct {
        const char *text;
        enum dpt_unit unit;
        double n; /* 0 and no NEVER: refused */
    } cases[] = {
        {"1 epoch", DPT_EPOCHS, 1},
        {"2 epochs", DPT_EPOCHS, 2},
        {"0.5 epochs", DPT_EPOCHS, 0.5},
        {"50 steps", DPT_STEPS, 50},
        {"1 step", DPT_STEPS, 1},
        {"1e3 steps", DPT_STEPS, 1000},
        {"10 min", DPT_SECONDS, 600},
        {"30 s", DPT_SECONDS, 30},
        {"30s", DPT_SECONDS, 30},
        {"2 h", DPT_SECONDS, 7200},
        {"1.5 min", DPT_SECONDS, 90},
        {"never", DPT_NEVER, 0},
        {"5   steps", DPT_STEPS, 5},
        {"7%", DPT_PERCENT, 7},
        {"2.5 %", DPT_PERCENT, 2.5},
        {"0 %", DPT_PERCENT, 0},
        {"0 steps", DPT_STEPS, 0},
        {"-1 epoch", DPT_EPOCHS, 0},
        {"1.5 steps", DPT_STEPS, 0},
        {"50", DPT_STEPS, 0},
        {"steps", DPT_STEPS, 0},
        {"1 fortnight", DPT_STEPS, 0},
        {"1 epoch 2", DPT_STEPS, 0},
        {"1e999 s", DPT_SECONDS, 0},
        {"inf epochs", DPT_EPOCHS, 0},
        {"1 EPOCH", DPT_EPOCHS, 0},
        {"", DPT_EPOCHS, 0},
        {"1e308 h", DPT_SECONDS, 0},
        {"Never", DPT_STEPS, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool good = cases[i].n > 0 || cases[i].unit == DPT_NEVER;
        struct dpt_every every = {.n = -1};
        const char *problem = dpt_parse_every(cases[i].text, &every);

        if ((problem == NULL) != good)
            fail_msg("%s: %s", cases[i].text, problem == NULL ? "accepted" : problem);
        if (good)
            assert_int_equal(every.unit, cases[i].unit);
        assert_true(every.n == (good ? cases[i].n : -1));
    }
}

static void numbers_are_decimal_and_whole_texts(void **state)
{
    static const char *const no[] = {"",     "+",    "-",   ".",    "e3",  "1e",
                                     "0x10", "1_0",  " 1",  "1 ",   "inf", "nan",
                                     "--1",  "1..2", "1,5", ".inf", "+-1", "1e+"};
    double real;
    int64_t whole;

    (void)state;
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        assert_false(dpt_parse_real(no[i], &real));
        assert_false(dpt_parse_int(no[i], &whole));
    }
    assert_true(dpt_parse_real("-1.5E-2", &real) && real == -1.5e-2);
    assert_true(dpt_parse_real("0", &real) && real == 0);
    assert_true(dpt_parse_real("0e999", &real) && real == 0);
    assert_false(dpt_parse_real("1e-999", &real));
    assert_false(dpt_parse_real("1e309", &real));
    assert_true(dpt_parse_int("9223372036854775807", &whole) && whole == INT64_MAX);
    assert_false(dpt_parse_int("9223372036854775808", &whole));
    assert_true(dpt_parse_int("010", &whole) && whole == 10);
}

static void sizes_are_read(void **state)
{
    static const struct {
        const char *text;
        double bytes; /* 0: refused */
    } cases[] = {
        {"150MB", 150e6},
        {"150 MB", 150e6},
        {"150M", 150e6},
        {"1.5G", 1.5e9},
        {"1.5gb", 1.5e9},
        {"2GiB", 2147483648.0},
        {"64MiB", 67108864},
        {"0.5 KiB", 512},
        {"3k", 3000},
        {"1TB", 1e12},
        {"4096 bytes", 4096},
        {"4096B", 4096},
        {"80", 80e9},
        {"0.4", 0.4e9},
        {"1e3MB", 1e9},
        {"150000000", 0},
        {"-1GB", 0},
        {"0", 0},
        {"GB", 0},
        {"", 0},
        {"much", 0},
        {"80GBs", 0},
        {"8 G B", 0},
        {"nanGB", 0},
    };
    double bytes;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *wrong = dpt_parse_size(cases[i].text, 1e9, &bytes);

        if ((wrong == NULL) != (cases[i].bytes > 0) || (wrong == NULL && bytes != cases[i].bytes))
            fail_msg("'%s': %s, %g", cases[i].text, wrong != NULL ? wrong : "read", bytes);
    }
    assert_non_null(dpt_parse_size("80", 0, &bytes)); /* the unit is missing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_read),
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(numbers_are_decimal_and_whole_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/rng.h"
#include "core/base/str.h"

static void grows(void **state)
{
    struct dpt_str s = {0};

    (void)state;
    for (int i = 0; i < 5000; i++)
        dpt_str_printf(&s, "%d,", i % 10);
    assert_false(s.failed);
    assert_int_equal(s.length, 10000);
    assert_int_equal(strlen(s.text), 10000);
    assert_memory_equal(s.text + 9980, "0,1,2,3,4,5,6,7,8,9,", 20);
    dpt_str_clear(&s);
    assert_int_equal(s.length, 0);
    dpt_str_add(&s, "a\0b", 3);
    assert_memory_equal(s.text, "a\0b", 4);
    dpt_str_release(&s);
    assert_null(s.text);
}

static void too_much_sets_failed(void **state)
{
    struct dpt_str s = {0};

    (void)state;
    dpt_str_add(&s, "kept", 4);
    dpt_str_add(&s, "x", SIZE_MAX / 2);
    assert_true(s.failed);
    dpt_str_add(&s, "y", 1);
    assert_string_equal(s.text, "kept");
    dpt_str_release(&s);
}

#define BAD "\xef\xbf\xbd"

/* Whatever it begins with: what comes out holds no control, and adding it again changes nothing. */
static void printable(void **state)
{
    // clang-format off
    static const struct { const char *text, *lines, *line; } cases[] = {
        {"", "", ""},
        {"a\tb\nc", "a\tb\nc", "a\tb\\nc"},
        {"\033]0;x\007\033[2J\r\x7f", "\\x1b]0;x\\x07\\x1b[2J\\r\\x7f", NULL},
        {"Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82 back\\slash",
         "Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82 back\\slash", NULL},
        {"\xc2\x9b" "31m\xc2\x85\xc2\xa0", "\\u009b31m\\u0085\xc2\xa0", NULL},
        {"\xe2\x80\xae" "gnp\xe2\x81\xa6\xe2\x80\xa8\xef\xbb\xbf", "\\u202egnp\\u2066\\u2028\\ufeff", NULL},
        {"\x9b" "1m\xff\xc3\xe2\x82", "\\x9b1m\\xff\\xc3\\xe2\\x82", NULL},
        {"\xc0\x9b\xed\xa0\x80", "\\xc0\\x9b\\xed\\xa0\\x80", NULL},
    };
    // clang-format on

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int lines = 0; lines < 2; lines++) {
            const char *want = lines || cases[i].line == NULL ? cases[i].lines : cases[i].line;
            struct dpt_str once = {0}, twice = {0};

            dpt_str_printable(&once, cases[i].text, strlen(cases[i].text), lines);
            assert_string_equal(once.length > 0 ? once.text : "", want);
            dpt_str_printable(&twice, want, strlen(want), lines);
            assert_string_equal(twice.length > 0 ? twice.text : "", want);
            dpt_str_release(&once);
            dpt_str_release(&twice);
        }
    }
}

/* Expected literals are those of Python's json.dumps(..., ensure_ascii=False) but for the damaged
 * bytes, and what would steer a terminal. */
static void json_escapes(void **state)
{
    // clang-format off
    static const struct { const char *text, *want; } cases[] = {
        {"", "\"\""},
        {"plain / text", "\"plain / text\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\b\f\n\r\t\x01\x1f", "\"\\b\\f\\n\\r\\t\\u0001\\u001f\""},
        {"\xc2\x9b\xe2\x80\xae", "\"\\u009b\\u202e\""},
        {"Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82",
         "\"Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82\""},
        {"\xff" "a", "\"" BAD "a\""},                       /* no UTF-8 at all */
        {"\xc0\xaf", "\"" BAD BAD "\""},                    /* overlong */
        {"\xed\xa0\x80", "\"" BAD BAD BAD "\""},            /* surrogate */
        {"\xf4\x90\x80\x80", "\"" BAD BAD BAD BAD "\""},    /* above U+10FFFF */
        {"\xe2\x82", "\"" BAD BAD "\""},                    /* cut */
    };
    // clang-format on
    struct dpt_str s = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpt_str_clear(&s);
        dpt_str_json(&s, cases[i].text);
        assert_string_equal(s.text, cases[i].want);
    }
    dpt_str_release(&s);
}

static void number(struct dpt_str *s, double value)
{
    dpt_str_clear(s);
    dpt_str_number(s, value);
}

/* All kinds of bit patterns come back exactly. */
static void numbers_round_trip(void **state)
{
    struct dpt_str s = {0};

    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = dpt_random64(1, DPT_RANDOM_SYNTHETIC, 0, i);
        double value;

        if (i % 3 == 0) { /* few digits */
            value = (double)(int64_t)(bits % 2000001 - 1000000) / pow(10.0, (double)(i % 9));
            memcpy(&bits, &value, sizeof bits);
        } else if (i % 3 == 1) { /* a float */
            value = (float)ldexp((double)(bits >> 40), (int)(bits % 100) - 60);
        } else {
            memcpy(&value, &bits, sizeof value);
        }
        if (!isfinite(value))
            continue;
        number(&s, value);
        assert_true(strtod(s.text, NULL) == value);
        assert_true(s.length <= 24);
    }
    dpt_str_release(&s);
}

static void numbers_are_short(void **state)
{
    // clang-format off
    static const struct { double value; const char *want; } cases[] = {
        {0.0, "0"}, {-0.0, "-0"}, {0.1, "0.1"}, {1e-3, "0.001"}, {100.0, "100"}, {1e300, "1e+300"},
        {999999999999999.0, "999999999999999"}, {1e15, "1e+15"}, {-1e15, "-1e+15"},
        {5e-324, "5e-324"},
        {0.1 + 0.2, "0.30000000000000004"}, {-2.5, "-2.5"},
        {NAN, "null"}, {INFINITY, "null"}, {-INFINITY, "null"},
    };
    // clang-format on
    struct dpt_str s = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        number(&s, cases[i].value);
        assert_true(strtod(s.text, NULL) == cases[i].value || strcmp(s.text, "null") == 0);
        assert_string_equal(s.text, cases[i].want);
    }
    dpt_str_release(&s);
}

/* Bit patterns of all kinds come back exactly, in no more digits than they need. */
static void floats_round_trip(void **state)
{
    static const struct {
        float value;
        const char *want;
    } cases[] = {{0.1F, "0.1"},          {1, "1"},     {0.99999994F, "0.99999994"},
                 {1e-45F, "1.4013e-45"}, {NAN, "nan"}, {-INFINITY, "-inf"},
                 {16777215, "16777215"}};
    struct dpt_str s = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpt_str_clear(&s);
        dpt_str_float(&s, cases[i].value);
        assert_string_equal(s.text, cases[i].want);
    }
    for (uint64_t i = 0; i < 20000; i++) {
        const uint32_t bits = (uint32_t)dpt_random64(2, DPT_RANDOM_SYNTHETIC, 0, i);
        float value;

        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        dpt_str_clear(&s);
        dpt_str_float(&s, value);
        assert_true(strtof(s.text, NULL) == value);
    }
    dpt_str_release(&s);
}

static void suggests_what_was_meant(void **state)
{
    static const char *const names[] = {"global", "micro", "lr", "momentum", "type", "epochs"};
    // clang-format off
    static const struct { const char *name, *want; } cases[] = {
        {"mirco", "micro"}, {"Micro", "micro"}, {"globl", "global"}, {"gloabl", "global"},
        {"momentun", "momentum"},
        {"epoch", "epochs"}, {"l", NULL}, {"learning_rate", NULL},
        {"xyz", NULL}, {"", NULL}, {"tpye", "type"},
    };
    // clang-format on
    char huge[300];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = dpt_nearest(cases[i].name, names, sizeof names / sizeof names[0]);

        if (cases[i].want == NULL)
            assert_null(got);
        else
            assert_string_equal(got == NULL ? "none" : got, cases[i].want);
    }
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_null(dpt_nearest(huge, names, 6));
    assert_null(dpt_nearest("micro", names, 0));
}

static void a_shell_reads_back_what_is_quoted(void **state)
{
    static const char *const cases[][2] = {{"data/a_b-1.h5", "data/a_b-1.h5"},
                                           {"", "''"},
                                           {"two words", "'two words'"},
                                           {"it's", "'it'\\''s'"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_str s = {0};

        dpt_str_shell(&s, cases[i][0]);
        assert_string_equal(s.text, cases[i][1]);
        dpt_str_release(&s);
    }
}

static void groups_digits(void **state)
{
    // clang-format off
    static const struct { long long value; const char *want; } cases[] = {
        {0, "0"}, {999, "999"}, {1000, "1 000"}, {60000, "60 000"}, {-1234567, "-1 234 567"},
        {INT64_MAX, "9 223 372 036 854 775 807"}, {INT64_MIN, "-9 223 372 036 854 775 808"},
    };
    // clang-format on
    char buf[32];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(dpt_group_digits(buf, cases[i].value), cases[i].want);
}

static void lists_ranks(void **state)
{
    static const struct {
        const char *marks, *text;
    } cases[] = {{"....", ""},
                 {"+", "0"},
                 {"+++", "0-2"},
                 {".+.++.+", "1, 3-4, 6"},
                 {"+.+.+.+.+.+.+.+", "0, 2, 4, 6, 8, 10, 12, 14"},
                 {"+.+.+.+.+.+.+.+.+.++", "0, 2, 4, 6, 8, 10, 12, 14, ..."}};

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const int n = (int)strlen(cases[k].marks);
        struct dpt_str s = {0};
        bool is[32];

        for (int i = 0; i < n; i++)
            is[i] = cases[k].marks[i] == '+';
        dpt_str_ranks_where(&s, is, n);
        assert_string_equal(s.text != NULL ? s.text : "", cases[k].text);
        dpt_str_release(&s);
    }
}

/* Words that are broken at the width, by characters, not bytes; what a paragraph is. */
static void words_are_wrapped(void **state)
{
    static const struct {
        size_t indent, column, width;
        const char *text, *want;
    } cases[] = {
        {0, 0, 10, "", "\n"},
        {0, 0, 10, "one two three", "one two\nthree\n"},
        {0, 0, 13, "one two three", "one two three\n"},
        {2, 4, 10, "one  two three", " one\n  two\n  three\n"},
        {6, 3, 12, "one two", "   one\n      two\n"},
        {0, 0, 7, "\u00e4\u00f6\u00fc \u00e4\u00f6\u00fc",
         "\u00e4\u00f6\u00fc \u00e4\u00f6\u00fc\n"},
        {0, 0, 4, "unbreakable it", "unbreakable\nit\n"},
        {1, 1, 9, "a b\n\n  as it  stands here\nc", "a b\n\n   as it  stands here\n c\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_str s = {0};

        dpt_str_wrap(&s, cases[i].text, cases[i].indent, cases[i].column, cases[i].width);
        assert_string_equal(s.text, cases[i].want);
        dpt_str_release(&s);
    }
    assert_int_equal(dpt_utf8_width("a\u00e4\u20ac", 6), 3);
    assert_int_equal(dpt_utf8_bytes("a\u00e4\u20acb", 3), 6);
    assert_int_equal(dpt_utf8_bytes("ab", 3), 2);
    assert_int_equal(dpt_utf8_bytes("ab", -1), 0);
    assert_int_equal(dpt_utf8_width("a\u6f22e\u0301\U0001f600", 11), 6); /* two that are wide */
    assert_int_equal(dpt_utf8_bytes("a\u6f22b", 2), 1);
    assert_int_equal(dpt_utf8_bytes("e\u0301b", 1), 3);
    assert_string_equal(dpt_utf8_end("a\u6f22bc", 3), "bc");
    assert_string_equal(dpt_utf8_end("a\u6f22bc", 4), "\u6f22bc");
    assert_string_equal(dpt_utf8_end("abc", -1), "");
}

/* Rounded to seconds, and only as many parts as it needs. */
static void times_as_on_a_clock(void **state)
{
    static const struct {
        double seconds;
        const char *want;
    } cases[] = {
        {-5, "0:00"},
        {NAN, "0:00"},
        {0.4, "0:00"},
        {30.6, "0:31"},
        {725, "12:05"},
        {3599.4, "59:59"},
        {3599.5, "1:00:00"},
        {3723, "1:02:03"},
        {86399.4, "23:59:59"},
        {86399.5, "1 d 00:00"},
        {3 * 86400.0 + 4 * 3600, "3 d 04:00"},
    };
    char buf[32];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(dpt_show_clock(cases[i].seconds, buf), cases[i].want);
    assert_string_equal(dpt_show_clock(INFINITY, buf), dpt_show_clock(1e12, (char[32]){0}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_wrapped),
        cmocka_unit_test(grows),
        cmocka_unit_test(too_much_sets_failed),
        cmocka_unit_test(json_escapes),
        cmocka_unit_test(printable),
        cmocka_unit_test(numbers_round_trip),
        cmocka_unit_test(numbers_are_short),
        cmocka_unit_test(floats_round_trip),
        cmocka_unit_test(suggests_what_was_meant),
        cmocka_unit_test(a_shell_reads_back_what_is_quoted),
        cmocka_unit_test(groups_digits),
        cmocka_unit_test(lists_ranks),
        cmocka_unit_test(times_as_on_a_clock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Headers of NumPy's files: those it writes in several spellings, and random damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/rng.h"
#include "data/tables/npy.h"

static enum dpt_status parse(const char *text, struct dpt_npy *npy)
{
    struct dpt_error err = {0};
    const size_t n = strlen(text);
    char *exact =
        malloc(n > 0 ? n : 1); /* no byte after it: a sanitizer sees reads beyond the end */
    enum dpt_status status;

    /* Not the end, which is the point. NOLINTNEXTLINE(bugprone-not-null-terminated-result) */
    memcpy(exact, text, n);
    status = dpt_npy_parse("a.npy", exact, n, npy, &err);
    if (status != DPT_OK) {
        assert_int_equal(status, DPT_BAD_DATA);
        assert_true(strncmp(err.text, "a.npy: ", 7) == 0);
    }
    free(exact);
    return status;
}

static void headers_of_numpy(void **state)
{
    /* As numpy 1.24 and, with L, numpy of Python 2 wrote them. */
    static const struct {
        const char *text;
        char kind;
        int size, n_dims;
        int64_t dims[3];
        bool fortran, swapped;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4), }          \n",
         'f',
         4,
         2,
         {6, 4},
         false,
         false},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }\n",
         'u',
         1,
         3,
         {60000, 28, 28},
         false,
         false},
        {"{'descr': '>i8', 'fortran_order': False, 'shape': (7,), }\n",
         'i',
         8,
         1,
         {7},
         false,
         true},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", 'b', 1, 0, {0}, false, false},
        {"{'descr': '<f8', 'fortran_order': True, 'shape': (2L, 3L), }\n",
         'f',
         8,
         2,
         {2, 3},
         true,
         false},
        {"{\"shape\":(0,5),\"fortran_order\":False,\"descr\":\"<u2\"}",
         'u',
         2,
         2,
         {0, 5},
         false,
         false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_npy npy;

        assert_int_equal(parse(cases[i].text, &npy), DPT_OK);
        assert_int_equal(npy.kind, cases[i].kind);
        assert_int_equal(npy.size, cases[i].size);
        assert_int_equal(npy.n_dims, cases[i].n_dims);
        assert_memory_equal(npy.dims, cases[i].dims, sizeof(int64_t) * (size_t)cases[i].n_dims);
        assert_int_equal(npy.fortran_order, cases[i].fortran);
        assert_int_equal(npy.swapped, cases[i].swapped); /* on a little-endian machine */
    }
}

static void headers_that_are_none(void **state)
{
    static const char *const cases[] = {
        "",
        "{",
        "{}",
        "()",
        "{'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4), } x",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (6, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-6, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6.0, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 6, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4), 'more': 1}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '<f3', 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '|f4', 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '<f44', 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '<f44444444444444444444444', 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }",
    };
    struct dpt_npy npy;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (parse(cases[i], &npy) == DPT_OK)
            fail_msg("taken: %s", cases[i]);
}

/* Bytes changed, taken out, put in, cut off: an error, or an array whose numbers can be counted. */
static void damage_is_survived(void **state)
{
    static const char start[] =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (60, 3, 28L), }   \n";
    static const char letters[] = "{}()'\",: \\0123456789<>|=fuibO[]LTrueFalse\n\xff";

    (void)state;
    for (uint64_t seed = 0; seed < 200000; seed++) {
        char text[sizeof start + 8];
        size_t n = sizeof start - 1, edits;
        uint32_t r[4];
        struct dpt_npy npy;

        memcpy(text, start, sizeof start);
        dpt_random4(seed, DPT_RANDOM_SYNTHETIC, 0, 0, r);
        edits = 1 + r[0] % 4;
        for (size_t i = 0; i < edits && n > 1; i++) {
            dpt_random4(seed, DPT_RANDOM_SYNTHETIC, 1, i, r);
            const size_t at = r[0] % n;
            const char letter = letters[r[1] % (sizeof letters - 1)];

            switch (r[2] % 4) {
            case 0:
                memmove(text + at, text + at + 1, n - at);
                n--;
                break;
            case 1:
                memmove(text + at + 1, text + at, n - at + 1);
                text[at] = letter;
                n++;
                break;
            case 2:
                if (r[3] % 8 == 0)
                    text[n = at] = '\0';
                break;
            default:
                text[at] = letter;
            }
        }
        if (parse(text, &npy) == DPT_OK) {
            int64_t count = 1;

            assert_in_range(npy.n_dims, 0, DPT_NPY_DIMS);
            assert_true(npy.size == 1 || npy.size == 2 || npy.size == 4 || npy.size == 8);
            for (int i = 0; i < npy.n_dims; i++) {
                assert_true(npy.dims[i] >= 0);
                count *= npy.dims[i];
            }
            assert_true(npy.count == count && count <= INT64_MAX / 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_of_numpy),
        cmocka_unit_test(headers_that_are_none),
        cmocka_unit_test(damage_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

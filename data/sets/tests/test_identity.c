/* What checkpoints keep of a data set: names of classes come back as they were, and identities are
 * compared fact by fact, whatever somebody wrote there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/rng.h"
#include "data/sets/identity.h"
#include "data/shards/shard.h"

enum { CASES = 500, MOST = 9 };

static uint64_t dice(uint64_t seed, uint64_t n, uint64_t below)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 3, n) % below;
}

/* Any bytes but NUL, line breaks and backslashes often, and empty names. */
static void names_come_back(void **state)
{
    static const char alphabet[] = "\n\\n\\\na \xc3\xa9\xff\t";

    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        const size_t n = (size_t)dice(seed, 0, MOST);
        char text[MOST][MOST] = {{0}};
        const char *names[MOST];
        struct dpt_class_names got;
        struct dpt_error err;
        struct dpt_str out = {0};

        for (size_t i = 0; i < n; i++) {
            const size_t length = (size_t)dice(seed, 10 * i + 1, MOST);

            for (size_t k = 0; k < length; k++)
                text[i][k] = alphabet[dice(seed, 10 * i + 2 + k, sizeof alphabet - 1)];
            names[i] = text[i];
        }
        dpt_class_names_write(names, n, &out);
        assert_int_equal(
            dpt_class_names_parse(&got, out.text != NULL ? out.text : "", "c.h5", &err), DPT_OK);
        assert_int_equal(got.n, n);
        for (size_t i = 0; i < n; i++)
            assert_string_equal(got.at[i], names[i]);
        dpt_class_names_release(&got);
        dpt_str_release(&out);
    }
}

static void a_last_line_may_lack_its_end(void **state)
{
    struct dpt_class_names got;
    struct dpt_error err;

    (void)state;
    assert_int_equal(dpt_class_names_parse(&got, "a\\x\n\nb\\", "c.h5", &err), DPT_OK);
    assert_int_equal(got.n, 3);
    assert_string_equal(got.at[0], "a\\x");
    assert_string_equal(got.at[1], "");
    assert_string_equal(got.at[2], "b\\");
    dpt_class_names_release(&got);
}

static void no_model_has_so_many(void **state)
{
    struct dpt_class_names got;
    struct dpt_error err;
    char *text = calloc(DPT_MOST_CLASSES + 2, 1);

    (void)state;
    assert_non_null(text);
    memset(text, '\n', DPT_MOST_CLASSES);
    assert_int_equal(dpt_class_names_parse(&got, text, "c.h5", &err), DPT_OK);
    assert_int_equal(got.n, DPT_MOST_CLASSES);
    dpt_class_names_release(&got);
    text[DPT_MOST_CLASSES] = '\n';
    assert_int_equal(dpt_class_names_parse(&got, text, "c.h5", &err), DPT_BAD_DATA);
    assert_string_equal(err.text, "c.h5: names 1048577 classes, no model has more than 1048576");
    free(text);
}

static void facts_are_compared_one_by_one(void **state)
{
    static const char now[] = "samples 130; form float32 6; inputs float32 1a2b3c4d; sampled "
                              "00000001; labels 00000002; weights none";
    static const struct {
        const char *then, *told;
        enum dpt_identity_result result;
    } cases[] = {
        {now, "", DPT_IDENTITY_SAME},
        {"", "", DPT_IDENTITY_UNKNOWN},
        {"samples 13; form float32 6", "k changed: 13 samples then, 130 now", DPT_IDENTITY_OTHER},
        {"samples 130; form uint8 2x3; labels 7", /* more is not told */
         "k changed: samples of uint8 2x3 then, float32 6 now", DPT_IDENTITY_OTHER},
        {"samples 130; inputs float32 1a2b3c4e; sampled 00000001",
         "k changed: other samples, or another order (checksum float32 1a2b3c4e then, float32 "
         "1a2b3c4d now)",
         DPT_IDENTITY_OTHER},
        /* All of them are the same, whatever some are said to be; of another type some decide. */
        {"inputs float32 1a2b3c4d; sampled 00000009", "", DPT_IDENTITY_SAME},
        {"inputs float64 99999999; sampled 00000001", "", DPT_IDENTITY_SAME},
        {"inputs float64 99999999; sampled 00000009",
         "k changed: other samples, or another order (checksum of some 00000009 then, 00000001 "
         "now)",
         DPT_IDENTITY_OTHER},
        {"labels 1; weights 2",
         "k changed: other labels, or another order (checksum 1 then, 00000002 now)\n"
         "k changed: other weights, or another order (checksum 2 then, none now)",
         DPT_IDENTITY_OTHER},
        {"labels \x1b[2J",
         "k changed: other labels, or another order (checksum \\x1b[2J then, "
         "00000002 now)",
         DPT_IDENTITY_OTHER},
        {"; ;; samples", "", DPT_IDENTITY_SAME}, /* no value that could be another one */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_str told = {0};

        assert_int_equal(dpt_identity_compare(cases[i].then, now, "k", &told), cases[i].result);
        assert_string_equal(told.text != NULL ? told.text : "", cases[i].told);
        dpt_str_release(&told);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_back),
        cmocka_unit_test(a_last_line_may_lack_its_end),
        cmocka_unit_test(no_model_has_so_many),
        cmocka_unit_test(facts_are_compared_one_by_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

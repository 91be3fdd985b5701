/* The rule by which the loss scale changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/backend/loss_scale.h"

static bool step(struct dpt_loss_scale *s, bool finite)
{
    bool mended;

    dpt_loss_scale_step(s, finite, &mended);
    return mended;
}

static void without_fp16(void **state)
{
    struct dpt_loss_scale s = dpt_loss_scale_start(false, 8);

    (void)state;
    assert_true(s.scale == 1 && s.good == 0 && s.overflows == 0);
}

/* A sum over the micro-batch times the scale is at most what a mean times 2^16 is. */
static void begins_by_the_micro_batch(void **state)
{
    static const struct {
        int32_t micro;
        float scale;
    } cases[] = {{1, 65536}, {2, 32768}, {3, 16384}, {16, 4096}, {100, 512},
                 {128, 512}, {129, 256}, {4096, 16}, {65536, 1}, {INT32_MAX, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(dpt_loss_scale_start(true, cases[i].micro).scale == cases[i].scale);
}

/* Halved at each overflow down to 1, where no overflow is repaired any more. */
static void overflows(void **state)
{
    struct dpt_loss_scale s = dpt_loss_scale_start(true, 1);

    (void)state;
    assert_true(s.scale == 65536);
    for (int k = 1; k <= 16; k++) {
        assert_false(step(&s, true));
        assert_true(step(&s, false));
        assert_true(s.scale == (float)(65536 >> k) && s.good == 0);
        assert_int_equal(s.overflows, k);
    }
    assert_false(step(&s, true));
    assert_false(step(&s, false));
    assert_true(s.scale == 1 && s.good == 1);
    assert_int_equal(s.overflows, 16);
}

/* Doubled after each 2000 updates in a row, up to 2^24; an overflow restarts the count. */
static void good_updates(void **state)
{
    struct dpt_loss_scale s = dpt_loss_scale_start(true, 1);
    float want = 65536;

    (void)state;
    for (int i = 0; i < 1999; i++)
        assert_false(step(&s, true));
    assert_true(s.scale == want);
    assert_true(step(&s, false));
    want /= 2;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 1999; i++) {
            assert_false(step(&s, true));
            assert_true(s.scale == want);
        }
        assert_false(step(&s, true));
        want = want < 0x1p24f ? 2 * want : want;
        assert_true(s.scale == want && s.good == 0);
    }
    assert_true(s.scale == 0x1p24f);
    assert_int_equal(s.overflows, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_fp16),
        cmocka_unit_test(begins_by_the_micro_batch),
        cmocka_unit_test(overflows),
        cmocka_unit_test(good_updates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Blocks of 16 channels become planes, and the other way round, whatever the number of pixels and
 * of channels; the lanes after the last channel become zeros. */
#include "core/backend/tests/net.h"

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/layout.h"

enum { LANES = DPT_LANES, MOST = 70, SAMPLES = 3 };

static void check(int32_t channels, int32_t pixels)
{
    const int64_t blocked = dpt_layout_floats(DPT_LAYOUT_C16, channels, 1, pixels);
    const int64_t plain = (int64_t)channels * pixels;
    float *x = dpt_alloc_array((size_t)(SAMPLES * blocked), sizeof *x);
    float *planes = dpt_alloc_array((size_t)(SAMPLES * plain), sizeof *planes);
    float *back = dpt_alloc_array((size_t)(SAMPLES * blocked), sizeof *back);

    assert_true(x != NULL && planes != NULL && back != NULL);
    for (int64_t i = 0; i < SAMPLES * blocked; i++) {
        x[i] = (float)(i + 1);
        back[i] = NAN;
    }
    dpt_move_blocks(SAMPLES, channels, pixels, true, x, planes);
    dpt_move_blocks(SAMPLES, channels, pixels, false, planes, back);
    for (int64_t i = 0; i < SAMPLES * blocked; i++) {
        const int64_t sample = i / blocked, block = i % blocked / (LANES * pixels);
        const int64_t pixel = i / LANES % pixels, channel = block * LANES + i % LANES;
        const bool there = channel < channels;

        if ((there && planes[sample * plain + channel * pixels + pixel] != x[i]) ||
            back[i] != (there ? x[i] : 0))
            fail_msg("%d channels of %d pixels: number %d, %g, becomes %g", channels, pixels,
                     (int)i, (double)x[i], (double)back[i]);
    }
    dpt_free(x);
    dpt_free(planes);
    dpt_free(back);
}

static void each_number_moves_to_its_place(void **state)
{
    (void)state;
    for (int32_t pixels = 1; pixels <= MOST; pixels++) {
        check(LANES * (1 + pixels % 4), pixels);
        check(1 + pixels * 7 % 40, pixels);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_number_moves_to_its_place)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Blocks of 16 channels become planes, and the other way round, whatever the number of pixels. */
#include "core/backend/tests/net.h"

#include "core/backend/cpu/fp32/kernels.h"
#include "core/base/memory.h"

enum { LANES = DPT_LANES, MOST = 70 };

static void each_number_moves_to_its_place(void **state)
{
    (void)state;
    for (int64_t pixels = 1; pixels <= MOST; pixels++) {
        const int64_t blocks = 1 + pixels % 4, each = LANES * pixels;
        float *x = dpt_alloc_array((size_t)(blocks * each), sizeof *x);
        float *planes = dpt_alloc_array((size_t)(blocks * each), sizeof *planes);
        float *back = dpt_alloc_array((size_t)(blocks * each), sizeof *back);

        assert_true(x != NULL && planes != NULL && back != NULL);
        for (int64_t i = 0; i < blocks * each; i++)
            x[i] = (float)i;
        if (dpt_moves_blocks(pixels)) {
            dpt_move_blocks(blocks, pixels, true, x, planes);
            dpt_move_blocks(blocks, pixels, false, planes, back);
            assert_memory_equal(back, x, (size_t)(blocks * each) * sizeof *x);
        }
        for (int64_t i = 0; i < blocks * each && dpt_moves_blocks(pixels); i++) {
            const int64_t at = i % each, want = i - at + at % pixels * LANES + at / pixels;

            if (planes[i] != x[want])
                fail_msg("%d pixels: number %d is %g, not %g", (int)pixels, (int)i,
                         (double)planes[i], (double)x[want]);
        }
        dpt_free(x);
        dpt_free(planes);
        dpt_free(back);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_number_moves_to_its_place)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What data.resize and data.crop make of images: torchvision's Resize and CenterCrop; and what of
 * it training cuts out instead. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/memory.h"
#include "data/pictures/transform.h"
#include "data/sets/augment.h"
#include "data/sets/batch.h"
#include "data/sets/parts.h"

enum { HIGH = 11, WIDE = 13, MOST = 3 * 20 * 20, SCRATCH = 10 * MOST };

static int64_t resize[2], crop[2];
static struct dpt_data_conf conf;
static struct dpt_dataset_parts parts;
static struct dpt_dataset set;
static float stored[MOST], scratch[SCRATCH];

static int set_up(void **state)
{
    (void)state;
    conf = (struct dpt_data_conf){0};
    parts = (struct dpt_dataset_parts){.key = "data.train"};
    set = (struct dpt_dataset){.shape = {3, HIGH, WIDE, false}, .parts = &parts};
    for (int i = 0; i < 3 * HIGH * WIDE; i++)
        stored[i] = (float)((i * i * 31 + i * 17) % 101) / 100;
    return 0;
}

static void prepare(int64_t resize_h, int64_t resize_w, int64_t crop_h, int64_t crop_w)
{
    struct dpt_error err;

    if (resize_h > 0)
        conf.resize = (struct dpt_ints){resize, resize_h == resize_w ? 1 : 2};
    if (crop_h > 0)
        conf.crop = (struct dpt_ints){crop, crop_h == crop_w ? 1 : 2};
    resize[0] = resize_h;
    resize[1] = resize_w;
    crop[0] = crop_h;
    crop[1] = crop_w;
    if (dpt_fill_prepare(&set, &conf, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_true(dpt_fill_scratch(&set) <= SCRATCH);
}

static int tear_down(void **state)
{
    (void)state;
    dpt_free(parts.scale);
    dpt_free(parts.shift);
    return 0;
}

/* Each by itself, both, and neither: as the functions that are tested against torchvision. */
static void pictures_are_resized_and_cut(void **state)
{
    static const int64_t cases[][4] = {{0, 0, 0, 0},  {8, 8, 0, 0},     {16, 9, 0, 0}, {0, 0, 6, 9},
                                       {0, 0, 11, 5}, {12, 17, 12, 10}, {11, 13, 7, 7}};
    float want[MOST], part[MOST], have[MOST];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *n = cases[i];
        const int32_t high = (int32_t)(n[0] > 0 ? n[0] : HIGH);
        const int32_t wide = (int32_t)(n[1] > 0 ? n[1] : WIDE);
        const struct dpt_shape resized = {3, high, wide, false};
        struct dpt_box middle;

        set_up(state);
        prepare(n[0], n[1], n[2], n[3]);
        assert_int_equal(set.shape.h, n[2] > 0 ? n[2] : high);
        assert_int_equal(set.shape.w, n[3] > 0 ? n[3] : wide);
        assert_int_equal(set.views, i > 0);
        dpt_picture_resize(stored, &set.stored, (struct dpt_box){0, 0, HIGH, WIDE}, part, high,
                           wide, scratch);
        middle = dpt_box_middle(&resized, set.shape.h, set.shape.w);
        dpt_picture_resize(part, &resized, middle, want, set.shape.h, set.shape.w, scratch);
        dpt_fill_sample(&set, (const uint8_t *)stored, have, scratch);
        assert_memory_equal(have, want, (size_t)dpt_shape_size(&set.shape) * sizeof *have);
        tear_down(state);
    }
    set_up(state);
    prepare(0, 0, 0, 0);
}

/* A window anywhere in the padded image that was resized, each place as often. */
static void windows_come_from_the_whole_picture(void **state)
{
    enum { PAD = 1, DOWN = HIGH - 8 + 2 * PAD + 1, ACROSS = WIDE - 9 + 2 * PAD + 1, EACH = 60 };
    const struct dpt_augment augment = {.crop_padding = PAD};
    int seen[DOWN][ACROSS] = {0};
    double chi2 = 0;
    float out[MOST];

    (void)state;
    prepare(0, 0, 8, 9);
    for (int i = 0; i < DOWN * ACROSS * EACH; i++) {
        const struct dpt_augment_key key = {5, 0, i};
        int found = 0;

        dpt_augment_sample(&augment, &set, &key, (const uint8_t *)stored, out, scratch);
        for (int top = 0; top < DOWN; top++)
            for (int left = 0; left < ACROSS; left++) {
                bool same = true;

                for (int y = 0; y < 8 && same; y++)
                    for (int x = 0; x < 9 && same; x++) {
                        const int row = top + y - PAD, column = left + x - PAD;
                        const bool in = row >= 0 && row < HIGH && column >= 0 && column < WIDE;

                        same = out[y * 9 + x] == (in ? stored[row * WIDE + column] : 0);
                    }
                found += same;
                seen[top][left] += same;
            }
        assert_int_equal(found, 1);
    }
    for (int top = 0; top < DOWN; top++)
        for (int left = 0; left < ACROSS; left++)
            chi2 += pow(seen[top][left] - EACH, 2) / EACH;
    assert_true(chi2 < DOWN * ACROSS + 5 * sqrt(2.0 * DOWN * ACROSS));
}

/* crop_area takes its part of what is stored: the whole of it is the image made smaller once. */
static void parts_come_from_what_is_stored(void **state)
{
    static double all[] = {1, 1}, ratio[] = {(double)WIDE / HIGH, (double)WIDE / HIGH};
    const struct dpt_augment augment = {.crop_area = {all, 2}, .crop_ratio = {ratio, 2}};
    const struct dpt_augment_key key = {5, 0, 1};
    float want[MOST], have[MOST];

    (void)state;
    prepare(9, 9, 6, 7);
    dpt_picture_resize(stored, &set.stored, (struct dpt_box){0, 0, HIGH, WIDE}, want, 6, 7,
                       scratch);
    assert_true(dpt_augment_scratch(&augment, &set) <= SCRATCH);
    dpt_augment_sample(&augment, &set, &key, (const uint8_t *)stored, have, scratch);
    assert_memory_equal(have, want, 3 * 6 * 7 * sizeof *have);
}

/* Whatever the number of moves, they end where they should, and nothing is left of another
 * sample. */
static void moves_of_all_numbers_end_in_place(void **state)
{
    static double areas[] = {0.3, 1}, ratio[] = {0.75, 1.33}, unit[] = {1, 1};
    float first[MOST], again[MOST];

    (void)state;
    prepare(10, 12, 7, 8);
    for (unsigned bits = 1; bits < 1 << 5; bits++) {
        const struct dpt_augment augment = {
            .crop_padding = (bits & 1) != 0,
            .flip = (bits & 2) != 0,
            .vertical_flip = (bits & 4) != 0,
            .crop_area = {areas, (bits & 8) != 0 ? 2 : 0},
            .crop_ratio = {ratio, 2},
            .rotate = (bits & 16) != 0 ? 20 : 0,
            .scale = {unit, 2},
        };
        const struct dpt_augment_key key = {5, 0, bits};

        assert_true(dpt_augment_scratch(&augment, &set) <= SCRATCH);
        for (int k = 0; k < MOST; k++)
            first[k] = again[k] = 99;
        memset(scratch, 0x11, sizeof scratch);
        dpt_augment_sample(&augment, &set, &key, (const uint8_t *)stored, first, scratch);
        memset(scratch, 0x22, sizeof scratch);
        dpt_augment_sample(&augment, &set, &key, (const uint8_t *)stored, again, scratch);
        assert_memory_equal(first, again, sizeof first);
        for (int k = 0; k < MOST; k++) /* all is written, and no more */
            assert_true((first[k] <= 1.0001F) == (k < dpt_shape_size(&set.shape)));
    }
}

/* Samples that are given as numbers have a shape, and nothing else is known of them. */
static void what_is_only_a_shape_needs_no_scratch(void **state)
{
    const struct dpt_dataset bare = {.shape = {3, HIGH, WIDE, false}};
    const struct dpt_batch_form form = {.set = &bare};

    (void)state;
    assert_int_equal(dpt_fill_scratch(&bare), 0);
    assert_int_equal(dpt_batch_scratch(&form), 0);
}

static void what_is_no_picture_is_refused(void **state)
{
    struct dpt_error err;

    (void)state;
    conf.resize = (struct dpt_ints){resize, 1};
    resize[0] = 9;
    set.shape = (struct dpt_shape){24, 1, 1, true};
    assert_int_equal(dpt_fill_prepare(&set, &conf, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "data.resize: the samples of data.train (24) are not images"));
    set.shape = (struct dpt_shape){3, 8, 8, false};
    conf.crop = (struct dpt_ints){crop, 2};
    crop[0] = 9;
    crop[1] = 10;
    assert_int_equal(dpt_fill_prepare(&set, &conf, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "9 x 10 is larger than the images of data.train, 9 x 9 once"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pictures_are_resized_and_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(windows_come_from_the_whole_picture, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_come_from_what_is_stored, set_up, tear_down),
        cmocka_unit_test_setup_teardown(moves_of_all_numbers_end_in_place, set_up, tear_down),
        cmocka_unit_test(what_is_only_a_shape_needs_no_scratch),
        cmocka_unit_test_setup_teardown(what_is_no_picture_is_refused, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What is drawn lies within the bounds of the job, and anywhere there as often as anywhere else:
 * told from what became of images of which that can be read off. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/sets/augment.h"
#include "data/sets/parts.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, MOST = 3 * PLANE, SAMPLES = 1000 };

static double unit[] = {1, 1}, ratios[] = {0.75, 4.0 / 3};

/* An augmentation that changes nothing. */
static const struct dpt_augment nothing = {.crop_ratio = {ratios, 2}, .scale = {unit, 2}};

static struct dpt_dataset_parts parts;
static struct dpt_dataset set;
static float scales[3] = {2, 2, 2}, shifts[3] = {-1, -1, -1}; /* so that 0.5 is 0 */
static float stored[MOST], out[MOST], scratch[4 * MOST];
static uint8_t bytes[MOST];

/* Images of three channels: light from left to right, from top to bottom, and the same all over,
 * as numbers of pixels from the middle. */
static int set_up(void **state)
{
    (void)state;
    parts = (struct dpt_dataset_parts){.key = "data.train", .scale = scales, .shift = shifts};
    set = (struct dpt_dataset){
        .shape = {3, SIDE, SIDE, false}, .stored = {3, SIDE, SIDE, false}, .parts = &parts};
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            stored[y * SIDE + x] = (float)x - (SIDE - 1) / 2.0F;
            stored[PLANE + y * SIDE + x] = (float)y - (SIDE - 1) / 2.0F;
            stored[2 * PLANE + y * SIDE + x] = 1;
        }
    return 0;
}

/* Into `out`, in the units of what is stored. */
static void augment(const struct dpt_augment *a, int64_t sample)
{
    const struct dpt_augment_key key = {11, sample % 5, sample};

    assert_true(dpt_augment_scratch(a, &set) <= sizeof scratch / sizeof *scratch);
    dpt_augment_sample(a, &set, &key, set.u8 ? bytes : (const uint8_t *)stored, out, scratch);
    for (int i = 0; i < MOST; i++)
        out[i] = (out[i] + 1) / 2;
}

static float at(int channel, int y, int x)
{
    return out[channel * PLANE + y * SIDE + x];
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Kolmogorov and Smirnov: the numbers are uniform between the two; a chance of 1e-4 to fail, of
 * draws that are always the same. give: how far one may lie outside, and steps of what is
 * rounded. */
static void assert_uniform(double *x, size_t n, double least, double most, double give,
                           const char *what)
{
    double farthest = 0;

    qsort(x, n, sizeof *x, compare);
    if (!(x[0] >= least - give && x[n - 1] <= most + give))
        fail_msg("%s: from %g to %g, not within %g and %g", what, x[0], x[n - 1], least, most);
    for (size_t i = 0; i < n; i++) {
        const double share = fmin(fmax((x[i] - least) / (most - least), 0), 1);

        farthest = fmax(farthest, fmax(fabs(share - (double)i / (double)n),
                                       fabs(share - (double)(i + 1) / (double)n)));
    }
    if (farthest > 2.2 / sqrt((double)n) + give / (most - least))
        fail_msg("%s: its distribution is off by %.4f", what, farthest);
}

/* How an image was turned, tilted, enlarged and moved, from slopes in its middle. */
static void turns_and_shifts_are_within_bounds(void **state)
{
    static double angle[SAMPLES], tilt[SAMPLES], scale[SAMPLES], right[SAMPLES], down[SAMPLES];
    static double range[] = {0.8, 1.5};
    struct dpt_augment a = nothing;
    const int middle = SIDE / 2;

    (void)state;
    a.rotate = 30;
    a.shear = 15;
    a.shift = 0.1;
    a.scale = (struct dpt_reals){range, 2};
    for (int i = 0; i < SAMPLES; i++) {
        double m[6];

        augment(&a, i);
        m[0] = at(0, middle, middle) - at(0, middle, middle - 1);
        m[1] = at(0, middle, middle) - at(0, middle - 1, middle);
        m[2] = at(0, middle, middle) - (m[0] + m[1]) / 2;
        m[3] = at(1, middle, middle) - at(1, middle, middle - 1);
        m[4] = at(1, middle, middle) - at(1, middle - 1, middle);
        m[5] = at(1, middle, middle) - (m[3] + m[4]) / 2;
        scale[i] = 1 / sqrt(m[0] * m[4] - m[1] * m[3]);
        angle[i] = atan2(-m[3], m[4]) * 180 / M_PI;
        tilt[i] = atan((m[1] * m[4] + m[0] * m[3]) * scale[i] * scale[i]) * 180 / M_PI;
        /* Where the old middle went. */
        right[i] = -(m[4] * m[2] - m[1] * m[5]) * scale[i] * scale[i];
        down[i] = -(m[0] * m[5] - m[3] * m[2]) * scale[i] * scale[i];
        assert_true(fabs(right[i] - rint(right[i])) < 1e-3);
        assert_true(fabs(down[i] - rint(down[i])) < 1e-3);
    }
    assert_uniform(angle, SAMPLES, -30, 30, 1e-3, "rotate");
    assert_uniform(tilt, SAMPLES, -15, 15, 1e-3, "shear");
    assert_uniform(scale, SAMPLES, 0.8, 1.5, 1e-4, "scale");
    assert_uniform(right, SAMPLES, -3.2, 3.2, 0.5, "shift to the right"); /* whole pixels */
    assert_uniform(down, SAMPLES, -3.2, 3.2, 0.5, "shift down");
}

/* The part that was cut out, from slopes and from what is in the middle. */
static void crops_are_within_bounds(void **state)
{
    static double area[SAMPLES], sides[SAMPLES], places[SAMPLES], heights[SAMPLES];
    static double areas[] = {0.2, 0.5};
    struct dpt_augment a = nothing;
    size_t n = 0;

    (void)state;
    a.crop_area = (struct dpt_reals){areas, 2};
    for (int i = 0; i < SAMPLES; i++) {
        const int k = SIDE / 2;
        double wide, high, left, top;

        augment(&a, i);
        wide = rint((double)(at(0, k, k) - at(0, k, k - 1)) * SIDE);
        high = rint((double)(at(1, k, k) - at(1, k - 1, k)) * SIDE);
        left = rint((double)(at(0, k, k) + at(0, k, k - 1)) / 2 + (SIDE - wide) / 2);
        top = rint((double)(at(1, k, k) + at(1, k - 1, k)) / 2 + (SIDE - high) / 2);
        assert_true(left >= 0 && left + wide <= SIDE && top >= 0 && top + high <= SIDE);
        area[i] = wide * high / PLANE;
        sides[i] = log(wide / high);
        if (wide == 20) /* of one size the places are alike */
            places[n++] = left;
        heights[i] = top / (SIDE - high);
    }
    assert_uniform(area, SAMPLES, 0.2, 0.5, 0.04, "crop_area");
    assert_uniform(sides, SAMPLES, log(0.75), log(4.0 / 3), 0.08, "crop_ratio");
    assert_uniform(places, n, -0.5, SIDE - 20 + 0.5, 0.5, "the crop's place");
    assert_uniform(heights, SAMPLES, 0, 1, 0.06, "the crop's height");
}

static void factors_are_within_bounds(void **state)
{
    static double bright[SAMPLES], distance[SAMPLES], colour[SAMPLES], dim[SAMPLES];
    struct dpt_augment a;

    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        a = nothing;
        a.brightness = 0.4;
        augment(&a, i);
        bright[i] = (double)at(2, 3, 4);
        a = nothing;
        a.contrast = 0.25; /* the mean grey is 0.114 */
        augment(&a, i);
        distance[i] = (double)(at(0, 3, 4) - at(0, 3, 3));
        a = nothing;
        a.saturation = 0.75;
        augment(&a, i);
        colour[i] = (double)((at(0, 3, 4) - at(1, 3, 4)) /
                             (stored[3 * SIDE + 4] - stored[PLANE + 3 * SIDE + 4]));
        a = nothing;
        a.brightness = 3; /* none is below 0 */
        augment(&a, i);
        dim[i] = (double)at(2, 3, 4);
    }
    assert_uniform(bright, SAMPLES, 0.6, 1.4, 1e-5, "brightness");
    assert_uniform(distance, SAMPLES, 0.75, 1.25, 1e-5, "contrast");
    assert_uniform(colour, SAMPLES, 0.25, 1.75, 1e-5, "saturation");
    assert_uniform(dim, SAMPLES, 0, 4, 1e-5, "a large brightness");
}

/* Red bytes are turned to other colours, and light of bytes is cut. */
static void hues_are_within_bounds(void **state)
{
    static double hue[SAMPLES];
    struct dpt_augment a = nothing;

    (void)state;
    set.u8 = true;
    memset(bytes, 255, PLANE);
    memset(bytes + PLANE, 0, 2 * PLANE);
    for (int k = 0; k < 3; k++)
        scales[k] = 2 / 255.0F;
    a.hue = 0.15;
    for (int i = 0; i < SAMPLES; i++) {
        augment(&a, i);
        assert_true(fabsf(at(0, 9, 9) - 1) < 1e-5F);
        hue[i] = (double)(at(1, 9, 9) - at(2, 9, 9)) / 6;
    }
    assert_uniform(hue, SAMPLES, -0.15, 0.15, 1e-5, "hue");
    a = nothing;
    a.brightness = 1;
    for (int i = 0; i < 50; i++) {
        augment(&a, i);
        assert_true(at(0, 1, 1) <= 1 + 1e-6F);
    }
    set.u8 = false;
    for (int k = 0; k < 3; k++)
        scales[k] = 2;
}

/* A hole is where the normalised numbers are 0: 0.5 here. */
static void holes_are_within_bounds(void **state)
{
    static double area[SAMPLES], sides[SAMPLES], areas[] = {0.1, 0.2}, ratio[] = {0.5, 2};
    struct dpt_augment a = nothing;
    size_t n = 0;

    (void)state;
    a.erase = 0.7;
    a.erase_area = (struct dpt_reals){areas, 2};
    a.erase_ratio = (struct dpt_reals){ratio, 2};
    for (int i = 0; i < SAMPLES; i++) {
        int holes = 0, wide = 0;

        augment(&a, i);
        for (int y = 0; y < SIDE; y++) {
            int in_row = 0;

            for (int x = 0; x < SIDE; x++)
                in_row += at(2, y, x) == 0.5F && at(1, y, x) == 0.5F && at(0, y, x) == 0.5F;
            holes += in_row;
            wide = in_row > wide ? in_row : wide;
        }
        if (holes == 0)
            continue;
        assert_int_equal(holes % wide, 0); /* a rectangle */
        area[n] = (double)holes / PLANE;
        sides[n++] = log((double)holes / wide / wide);
    }
    assert_true(fabs((double)n / SAMPLES - 0.7) < 4 * sqrt(0.21 / SAMPLES));
    assert_uniform(area, n, 0.1, 0.2, 0.02, "erase_area");
    assert_uniform(sides, n, log(0.5), log(2), 0.1, "erase_ratio");
}

/* Its mean, deviation and fourth moment are those of Gauss, and no two numbers hang together. */
static void noise_is_normal(void **state)
{
    struct dpt_augment a = nothing;
    double sum[5] = {0}, along = 0, before = 0, count = 0;

    (void)state;
    a.noise = 0.25;
    for (int i = 0; i < 20; i++) {
        augment(&a, i);
        for (int k = 0; k < MOST; k++, count++) {
            const double x = (double)(out[k] - stored[k]) * 2 / 0.25; /* of what is normalised */

            for (int p = 1; p < 5; p++)
                sum[p] += pow(x, p);
            along += x * before;
            before = x;
        }
    }
    assert_true(fabs(sum[1] / count) < 4 / sqrt(count));
    assert_true(fabs(sum[2] / count - 1) < 4 * sqrt(2 / count));
    assert_true(fabs(sum[3] / count) < 4 * sqrt(15 / count));
    assert_true(fabs(sum[4] / count - 3) < 4 * sqrt(96 / count));
    assert_true(fabs(along / count) < 4 / sqrt(count));
}

static void every_other_picture_is_upside_down(void **state)
{
    struct dpt_augment a = nothing;
    int turned = 0;

    (void)state;
    a.vertical_flip = true;
    for (int i = 0; i < SAMPLES; i++) {
        augment(&a, i);
        turned += at(1, 0, 0) > 0;
        assert_true(at(0, 0, 0) == stored[0] && fabsf(at(1, 0, 0)) == fabsf(stored[PLANE]));
    }
    assert_true(fabs((double)turned / SAMPLES - 0.5) < 4 * sqrt(0.25 / SAMPLES));
}

/* Equal keys give equal bytes, with each option by itself and all together, and another key gives
 * others. */
static void a_key_decides_every_byte(void **state)
{
    static double areas[] = {0.3, 1}, range[] = {0.9, 1.1}, holes[] = {0.02, 0.33};
    static float first[MOST];
    const struct dpt_augment all = {
        .crop_padding = 3,
        .flip = true,
        .vertical_flip = true,
        .crop_area = {areas, 2},
        .crop_ratio = {ratios, 2},
        .rotate = 10,
        .shear = 5,
        .shift = 0.1,
        .scale = {range, 2},
        .brightness = 0.3,
        .contrast = 0.3,
        .saturation = 0.3,
        .erase = 0.9,
        .erase_area = {holes, 2},
        .erase_ratio = {ratios, 2},
        .noise = 0.1,
    };

    (void)state;
    augment(&all, 3);
    memcpy(first, out, sizeof out);
    augment(&all, 4);
    assert_memory_not_equal(first, out, sizeof out);
    augment(&all, 8); /* of the same epoch */
    assert_memory_not_equal(first, out, sizeof out);
    memset(scratch, 1, sizeof scratch); /* nothing is left over from another sample */
    augment(&all, 3);
    assert_memory_equal(first, out, sizeof out);
}

static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        struct dpt_augment augment;
        struct dpt_shape shape;
        const char *text;
    } cases[] = {
        {{.rotate = 1, .scale = {unit, 2}},
         {24, 1, 1, true},
         "rotate, shift, scale and shear: only for images"},
        {{.erase = 1}, {3, 1, 24, false}, "erase: only for images higher and wider than one pixel"},
        {{.saturation = 0.1}, {1, 9, 9, false}, "saturation: only for images of three channels"},
        {{.hue = 0.1}, {3, 9, 9, false}, "hue: only for images of bytes"},
    };
    struct dpt_error err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set.shape = cases[i].shape;
        assert_int_equal(dpt_augment_check(&cases[i].augment, &set, &err), DPT_BAD_JOB);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("%s: lacks '%s'", err.text, cases[i].text);
    }
    set.shape = (struct dpt_shape){24, 1, 1, true};
    assert_int_equal(dpt_augment_check(&(struct dpt_augment){.noise = 1}, &set, &err), DPT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(turns_and_shifts_are_within_bounds, set_up),
        cmocka_unit_test_setup(crops_are_within_bounds, set_up),
        cmocka_unit_test_setup(factors_are_within_bounds, set_up),
        cmocka_unit_test_setup(hues_are_within_bounds, set_up),
        cmocka_unit_test_setup(holes_are_within_bounds, set_up),
        cmocka_unit_test_setup(noise_is_normal, set_up),
        cmocka_unit_test_setup(every_other_picture_is_upside_down, set_up),
        cmocka_unit_test_setup(a_key_decides_every_byte, set_up),
        cmocka_unit_test_setup(what_does_not_fit_is_refused, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

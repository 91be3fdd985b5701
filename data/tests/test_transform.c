/* Pixels become what torchvision makes of them, by the same numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "data/pictures/transform.h"

enum { MOST = 400, SCRATCH = 2000 };

enum what {
    DO_RESIZE,
    DO_MIDDLE,
    DO_UPSIDE_DOWN,
    DO_AFFINE,
    DO_BRIGHTNESS,
    DO_CONTRAST,
    DO_SATURATION,
    DO_HUE,
    DO_ERASE,
    DO_COUNT
};

struct golden {
    enum what what;
    struct dpt_shape shape;
    double given[6];
    int32_t height, width;
    float want[MOST];
};

static const struct golden golden[] = {
#include "data/tests/golden_transforms.h"
};

/* What the script makes its images of. */
static void make_picture(const struct dpt_shape *shape, float *x)
{
    for (int64_t i = 0; i < dpt_shape_size(shape); i++)
        x[i] = (float)((i * i * 31 + i * 17) % 101) / 100;
}

/* Resizes the image as bytes, [h][w][c], whose floats are at most a rounding away. */
static void resize_bytes(const struct golden *g, struct dpt_box part, float *out)
{
    static const float scale[] = {0.01F, 0.01F, 0.01F}, shift[3];
    const struct dpt_shape *s = &g->shape, made = {s->c, g->height, g->width, false};
    const int32_t plane = s->h * s->w;
    uint8_t pixels[MOST];
    const struct dpt_picture picture = {
        .width = s->w, .height = s->h, .channels = s->c, .pixels = pixels};
    float scratch[SCRATCH];

    for (int32_t i = 0; i < s->c * plane; i++)
        pixels[i % plane * s->c + i / plane] = (uint8_t)((i * i * 31 + i * 17) % 101);
    assert_true(dpt_picture_resize_bytes_scratch(part.width, g->width) <= SCRATCH);
    dpt_picture_resize_bytes(&picture, part, scale, shift, out, &made, scratch);
}

static void apply(const struct golden *g, const float *x, float *out)
{
    const struct dpt_shape *s = &g->shape;
    const double *n = g->given;
    const struct dpt_box part = {(int32_t)n[0], (int32_t)n[1], (int32_t)n[2], (int32_t)n[3]};
    const float outside[] = {(float)n[5], (float)n[5], (float)n[5]};
    float scratch[SCRATCH];
    struct dpt_affine affine;
    struct dpt_box middle;

    memcpy(out, x, (size_t)dpt_shape_size(s) * sizeof *out);
    switch (g->what) {
    case DO_RESIZE:
        assert_true(dpt_picture_resize_scratch(part.width, g->width) <= SCRATCH);
        dpt_picture_resize(x, s, part, out, g->height, g->width, scratch);
        break;
    case DO_MIDDLE: /* as it is where nothing is resized */
        middle = dpt_box_middle(s, (int32_t)n[0], (int32_t)n[1]);
        dpt_picture_resize(x, s, middle, out, g->height, g->width, scratch);
        break;
    case DO_UPSIDE_DOWN:
        dpt_picture_upside_down(x, s, out);
        break;
    case DO_AFFINE:
        assert_true(dpt_picture_affine_scratch(s) <= SCRATCH);
        affine = dpt_affine_of(n[0], n[1], n[2], n[3], n[4]);
        dpt_picture_affine(x, s, &affine, outside, out, scratch);
        break;
    case DO_BRIGHTNESS:
        dpt_picture_brightness(out, s, (float)n[0], 1);
        break;
    case DO_CONTRAST:
        dpt_picture_contrast(out, s, (float)n[0], 1);
        break;
    case DO_SATURATION:
        dpt_picture_saturation(out, s, (float)n[0], 1);
        break;
    case DO_HUE:
        dpt_picture_hue(out, s, (float)n[0]);
        break;
    case DO_ERASE:
        dpt_picture_erase(out, s, part, (float)n[4]);
        break;
    case DO_COUNT:
        break;
    }
}

static void compare(size_t i, const struct golden *g, const float *out)
{
    for (int32_t k = 0; k < g->shape.c * g->height * g->width; k++)
        if (!(fabsf(out[k] - g->want[k]) < 5e-6F))
            fail_msg("case %zu (%d): value %d is %.9g, torchvision's %.9g", i, (int)g->what, k,
                     (double)out[k], (double)g->want[k]);
}

static void all_is_as_torchvision_has_it(void **state)
{
    int seen[DO_COUNT] = {0};
    float x[MOST], out[MOST];

    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const struct golden *g = &golden[i];

        seen[g->what]++;
        make_picture(&g->shape, x);
        apply(g, x, out);
        compare(i, g, out);
        if (g->what != DO_RESIZE)
            continue;
        resize_bytes(g,
                     (struct dpt_box){(int32_t)g->given[0], (int32_t)g->given[1],
                                      (int32_t)g->given[2], (int32_t)g->given[3]},
                     out);
        compare(i, g, out);
    }
    for (int what = 0; what < DO_COUNT; what++)
        if (seen[what] == 0)
            fail_msg("no golden case of number %d", what);
}

/* What turns nothing leaves every bit. */
static void the_identity_is_exact(void **state)
{
    const struct dpt_shape shape = {3, 9, 11, false};
    const struct dpt_affine affine = dpt_affine_of(0, 0, 0, 1, 0);
    const float outside[] = {7, 8, 9};
    float x[MOST], out[MOST], scratch[SCRATCH];

    (void)state;
    make_picture(&shape, x);
    dpt_picture_affine(x, &shape, &affine, outside, out, scratch);
    assert_memory_equal(x, out, (size_t)dpt_shape_size(&shape) * sizeof *x);
    dpt_picture_resize(x, &shape, dpt_box_middle(&shape, 9, 11), out, 9, 11, scratch);
    assert_memory_equal(x, out, (size_t)dpt_shape_size(&shape) * sizeof *x);
}

/* Light whose greatest value nobody knows is not cut. */
static void light_without_a_bound_stays(void **state)
{
    const struct dpt_shape shape = {3, 1, 2, false};
    float x[] = {0, 200, 100, 50, -4, 8};
    const float twice[] = {0, 400, 200, 100, -8, 16};

    (void)state;
    dpt_picture_brightness(x, &shape, 2, INFINITY);
    assert_memory_equal(x, twice, sizeof x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_as_torchvision_has_it),
        cmocka_unit_test(the_identity_is_exact),
        cmocka_unit_test(light_without_a_bound_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The loops of batch norm against the textbook in double: any layout, any number of lanes, means
 * that are large compared with the deviation, with a relu and without.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/backend/cpu/fp32/batchnorm_kernels.h"
#include "core/backend/tests/net.h"

enum { CASES = 600, MARK = 12345 };

struct bench {
    struct dpt_lanes v;
    int64_t rows, n; /* floats, with others' between */
    float *x, *dy, *out;
    struct dpt_lanes_map map;
};

static int64_t place(const struct dpt_lanes *v, int64_t row, int64_t i, int c)
{
    return row * v->row + (v->planar ? c * v->pixels + i : i * v->pixel + c);
}

static void bench_open(struct bench *b, uint64_t seed)
{
    struct draw d = {seed};
    const int32_t lanes[] = {16, 8, draw_int(&d, 1, 16)};
    double mean;

    b->v = (struct dpt_lanes){.lanes = lanes[draw_int(&d, 0, 2)],
                              .planar = draw_int(&d, 0, 2) == 0,
                              .pixels = draw_int(&d, 0, 3) ? draw_int(&d, 1, 90)
                                                           : draw_int(&d, 1000, 1300)};
    b->v.pixel = b->v.planar ? 1 : b->v.lanes + draw_int(&d, 0, 9);
    b->v.row = (b->v.planar ? b->v.lanes : b->v.pixel) * b->v.pixels + draw_int(&d, 0, 9);
    b->rows = draw_int(&d, 1, 9);
    b->n = b->rows * b->v.row + DPT_LANES;
    b->x = dpt_alloc_array((size_t)b->n, sizeof *b->x);
    b->dy = dpt_alloc_array((size_t)b->n, sizeof *b->dy);
    b->out = dpt_alloc_array((size_t)b->n, sizeof *b->out);
    assert_true(b->x != NULL && b->dy != NULL && b->out != NULL);
    mean = draw_int(&d, 0, 3) ? draw_normal(&d) : 300;
    for (int64_t i = 0; i < b->n; i++) {
        b->x[i] = (float)(mean + draw_normal(&d));
        b->dy[i] = (float)draw_normal(&d);
        b->out[i] = MARK;
    }
    for (int c = 0; c < DPT_LANES; c++) {
        b->map.center[c] = (float)mean;
        b->map.scale[c] = (float)draw_normal(&d);
        b->map.shift[c] = (float)draw_normal(&d);
    }
    b->map.relu = draw_int(&d, 0, 1);
}

static void bench_close(struct bench *b)
{
    dpt_free(b->x);
    dpt_free(b->dy);
    dpt_free(b->out);
}

static void near(uint64_t seed, const char *what, double got, double want, double size)
{
    if (!(fabs(got - want) <= 2e-6 * size))
        fail_msg("seed %d: %s is %.9g instead of %.9g", (int)seed, what, got, want);
}

/* Runs `body` for each number of a channel, `at` is where it lies. */
#define EACH(b, c, body)                                                                           \
    for (int64_t row = 0; row < (b)->rows; row++)                                                  \
        for (int64_t i = 0; i < (b)->v.pixels; i++) {                                              \
            const int64_t at = place(&(b)->v, row, i, c);                                          \
                                                                                                   \
            body;                                                                                  \
        }

static void check_moments(const struct bench *b, uint64_t seed)
{
    const double n = (double)b->rows * (double)b->v.pixels;
    double mean[DPT_LANES], variance[DPT_LANES];

    dpt_lanes_moments(&b->v, b->rows, b->x, mean, variance);
    for (int c = 0; c < b->v.lanes; c++) {
        double m = 0, v = 0;

        EACH(b, c, m += b->x[at] / n)
        EACH(b, c, v += (b->x[at] - m) * (b->x[at] - m) / n)
        near(seed, "mean", mean[c], m, 1 + 0.1 * fabs(m));
        near(seed, "variance", variance[c], v, 1 + v);
    }
}

/* The gradient that backward makes for a number, before it is scaled. */
static double passed(const struct bench *b, int c, int64_t at)
{
    const float y = (b->x[at] - b->map.center[c]) * b->map.scale[c] + b->map.shift[c];

    return b->map.relu && !(y > 0) ? 0 : b->dy[at];
}

static void check_passes(struct bench *b, uint64_t seed)
{
    double sum[DPT_LANES], inner[DPT_LANES];
    float slope[DPT_LANES], less[DPT_LANES];
    const float *added = seed % 2 ? b->dy : NULL;

    for (int c = 0; c < DPT_LANES; c++) {
        slope[c] = 0.1F * (float)c;
        less[c] = 0.3F - 0.05F * (float)c;
    }
    dpt_lanes_sums(&b->v, b->rows, &b->map, b->x, b->dy, sum, inner);
    for (int c = 0; c < b->v.lanes; c++) {
        double s = 0, t = 0, size = 1;

        EACH(b, c, s += passed(b, c, at))
        EACH(b, c, t += passed(b, c, at) * (b->x[at] - b->map.center[c]))
        EACH(b, c, size += (double)fabsf(b->dy[at] * (b->x[at] - b->map.center[c])))
        near(seed, "sum", sum[c], s, size);
        near(seed, "inner", inner[c], t, size);
    }
    dpt_lanes_apply(&b->v, b->rows, &b->map, b->x, added, b->out);
    for (int c = 0; c < b->v.lanes; c++)
        EACH(b, c, {
            float y = (b->x[at] - b->map.center[c]) * b->map.scale[c] + b->map.shift[c];

            y = added != NULL ? y + added[at] : y;
            assert_true(b->out[at] == (b->map.relu && y < 0 ? 0 : y));
            b->out[at] = MARK;
        })
    dpt_lanes_back(&b->v, b->rows, &b->map, slope, less, b->x, b->dy, b->out);
    for (int c = 0; c < b->v.lanes; c++)
        EACH(b, c, {
            near(seed, "dx", b->out[at],
                 (passed(b, c, at) - less[c] - (double)(b->x[at] - b->map.center[c]) * slope[c]) *
                     b->map.scale[c],
                 10);
            b->out[at] = MARK;
        })
    /* Numbers of other channels stay. */
    for (int64_t i = 0; i < b->n; i++)
        assert_true(b->out[i] == MARK);
}

static void as_the_textbook(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        struct bench b = {.rows = 0};

        bench_open(&b, seed);
        check_moments(&b, seed);
        check_passes(&b, seed);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_textbook)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

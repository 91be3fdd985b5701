/*
 * The loops of pools against their definition, bit for bit: windows of any size that reach over the
 * edges, share elements or leave some out, in blocks of channels and in planes, among values that
 * are equal, zeros of both signs, or no numbers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/tests/net.h"

enum { CASES = 1500 };

struct bench {
    struct dpt_pool_shape s;
    int64_t in, out; /* floats */
    float *x, *dy, *y, *dx, *want;
    int32_t *argmax, *want_argmax;
};

static void draw_axis(struct draw *d, struct dpt_pool_shape *s, int i)
{
    const bool halves = draw_int(d, 0, 1);

    s->kernel[i] = halves ? 2 : draw_int(d, 1, 4);
    s->stride[i] = halves ? 2 : draw_int(d, 1, 3);
    s->before[i] = halves ? 0 : draw_int(d, 0, s->kernel[i] - 1);
    s->in[i] = draw_int(d, s->kernel[i], draw_int(d, 0, 1) ? 40 : 9);
    s->out[i] = (s->in[i] + s->before[i] - s->kernel[i]) / s->stride[i] + 1;
    /* One more, that begins inside and reaches over the end. */
    if (!halves && s->out[i] * s->stride[i] - s->before[i] < s->in[i])
        s->out[i] += draw_int(d, 0, 1);
}

static void bench_open(struct bench *b, struct draw *d)
{
    const int32_t blocks[] = {1, 8, 16, 24, 3};

    b->s = (struct dpt_pool_shape){.planes = draw_int(d, 1, 5), .block = blocks[draw_int(d, 0, 4)]};
    for (int i = 0; i < 2; i++)
        draw_axis(d, &b->s, i);
    b->in = b->s.planes * b->s.in[0] * b->s.in[1] * b->s.block;
    b->out = b->s.planes * b->s.out[0] * b->s.out[1] * b->s.block;
    b->x = dpt_alloc_array((size_t)b->in + 16, sizeof *b->x);
    b->dx = dpt_alloc_array((size_t)b->in + 16, sizeof *b->dx);
    b->want = dpt_alloc_array((size_t)(b->in + b->out) + 16, sizeof *b->want);
    b->dy = dpt_alloc_array((size_t)b->out + 16, sizeof *b->dy);
    b->y = dpt_alloc_array((size_t)b->out + 16, sizeof *b->y);
    b->argmax = dpt_alloc_array((size_t)b->out + 16, sizeof *b->argmax);
    b->want_argmax = dpt_alloc_array((size_t)b->out + 16, sizeof *b->argmax);
    for (int64_t i = 0; i < b->in; i++) {
        const float odd[] = {0, -0.0F, NAN, 1, INFINITY};

        b->x[i] = draw_int(d, 0, 3) ? (float)draw_normal(d) : odd[draw_int(d, 0, 4)];
        b->dx[i] = 12345; /* is there before */
    }
    for (int64_t i = 0; i < b->out; i++)
        b->dy[i] = (float)draw_normal(d);
}

static void bench_close(struct bench *b)
{
    dpt_free(b->x), dpt_free(b->dx), dpt_free(b->want), dpt_free(b->dy), dpt_free(b->y);
    dpt_free(b->argmax), dpt_free(b->want_argmax);
}

/* Where element (k, j) of the window of an output is in x; -1: outside. */
static int64_t at(const struct dpt_pool_shape *s, int64_t out, int32_t k, int32_t j)
{
    const int64_t c = out % s->block, column = out / s->block % s->out[1];
    const int64_t row = out / s->block / s->out[1] % s->out[0];
    const int64_t plane = out / s->block / s->out[1] / s->out[0];
    const int64_t y = row * s->stride[0] - s->before[0] + k;
    const int64_t x = column * s->stride[1] - s->before[1] + j;

    if (y < 0 || y >= s->in[0] || x < 0 || x >= s->in[1])
        return -1;
    return ((plane * s->in[0] + y) * s->in[1] + x) * s->block + c;
}

static void max_of(const struct bench *b, bool relu, int64_t out, float *y, int32_t *argmax)
{
    const struct dpt_pool_shape *s = &b->s;
    bool any = false;

    for (int32_t k = 0; k < s->kernel[0]; k++) {
        for (int32_t j = 0; j < s->kernel[1]; j++) {
            const int64_t i = at(s, out, k, j);

            if (i < 0 || (any && !(b->x[i] > *y) && !isnan(b->x[i])))
                continue;
            any = true;
            *y = b->x[i];
            *argmax = k * s->kernel[1] + j;
        }
    }
    if (relu && !(*y > 0))
        *argmax = -1;
    if (relu && *y < 0)
        *y = 0;
}

static void largest(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct draw d = {seed};
        const bool relu = draw_int(&d, 0, 1), argmax = draw_int(&d, 0, 3);
        struct bench b;

        bench_open(&b, &d);
        for (int64_t i = 0; i < b.out; i++)
            max_of(&b, relu, i, &b.want[i], &b.want_argmax[i]);
        dpt_maxpool(&b.s, relu, b.x, b.y, argmax ? b.argmax : NULL);
        assert_memory_equal(b.y, b.want, (size_t)b.out * sizeof *b.y);
        if (argmax)
            assert_memory_equal(b.argmax, b.want_argmax, (size_t)b.out * sizeof *b.argmax);
        memset(b.want, 0, (size_t)b.in * sizeof *b.want);
        for (int64_t i = 0; i < b.out; i++)
            if (b.want_argmax[i] >= 0)
                b.want[at(&b.s, i, b.want_argmax[i] / b.s.kernel[1],
                          b.want_argmax[i] % b.s.kernel[1])] += b.dy[i];
        dpt_maxpool_back(&b.s, b.dy, b.want_argmax, b.dx);
        for (int64_t i = 0; i < b.in; i++)
            assert_true(b.dx[i] == b.want[i]);
        bench_close(&b);
    }
}

static void averages(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct draw d = {seed};
        struct bench b;

        bench_open(&b, &d);
        for (int64_t i = 0; i < b.out + b.in; i++)
            b.want[i] = 0;
        for (int64_t i = 0; i < b.out; i++) {
            const float scale = 1.0F / (float)(b.s.kernel[0] * b.s.kernel[1]);

            for (int32_t k = 0; k < b.s.kernel[0]; k++) {
                for (int32_t j = 0; j < b.s.kernel[1]; j++) {
                    const int64_t from = at(&b.s, i, k, j);

                    if (from < 0)
                        continue;
                    b.want[i] += b.x[from];
                    b.want[b.out + from] += b.dy[i] * scale;
                }
            }
            b.want[i] *= scale;
        }
        dpt_avgpool(&b.s, b.x, b.y);
        dpt_avgpool_back(&b.s, b.dy, b.dx);
        for (int64_t i = 0; i < b.out; i++)
            assert_true(b.y[i] == b.want[i] || (isnan(b.y[i]) && isnan(b.want[i])));
        for (int64_t i = 0; i < b.in; i++)
            assert_true(b.dx[i] == b.want[b.out + i]);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(largest), cmocka_unit_test(averages)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

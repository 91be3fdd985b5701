/*
 * Winograd's convolution, with bias, relu and max-pool, is the direct sum but for rounding: over
 * random shapes, for every instruction set that this machine has.
 */
#include "core/backend/tests/net.h"

#include "core/backend/cpu/fp32/winograd.h"
#include "core/backend/cpu/layout.h"

enum { SHAPES = 120, LANES = DPT_WINOGRAD_LANES };

struct problem {
    struct dpt_winograd w;
    int32_t samples;
    int32_t size[2]; /* of the output, pooled or not */
    int64_t x_sample, y_sample;
    float *x, *weights, *bias;
    bool turned; /* the weights are packed from an array with inputs first and kernels turned */
    char text[160];
};

struct outputs {
    float *y;
    int32_t *argmax;
};

/* A channel's element in blocks of LANES channels. */
static int64_t index_of(const int32_t size[2], int32_t c, int32_t h, int32_t w)
{
    return (((int64_t)c / LANES * size[0] + h) * size[1] + w) * LANES + c % LANES;
}

static void clear_filling(float *x, int32_t channels, const int32_t size[2], int64_t sample,
                          int32_t samples)
{
    const int32_t blocks = (channels + LANES - 1) / LANES;

    for (int32_t n = 0; n < samples; n++)
        for (int32_t c = channels; c < blocks * LANES; c++)
            for (int32_t i = 0; i < size[0] * size[1]; i++)
                x[n * sample + index_of(size, c, i / size[1], i % size[1])] = 0;
}

static void problem_init(struct problem *p, uint64_t seed, enum dpt_isa isa)
{
    struct draw d = {seed};
    struct dpt_winograd *w = &p->w;

    /* Every tenth one is so wide that it takes several batches of tiles together. */
    *w = (struct dpt_winograd){.in_channels = draw_int(&d, 1, 40) + (seed % 10 == 9 ? 120 : 0),
                               .out_channels = draw_int(&d, 1, 70) + (seed % 10 == 9 ? 60 : 0),
                               .pool = draw_int(&d, 0, 1),
                               .relu = draw_int(&d, 0, 1),
                               .kernels = dpt_winograd_kernels(isa)};
    for (int i = 0; i < 2; i++) {
        w->in[i] = draw_int(&d, 4, 14);
        w->before[i] = draw_int(&d, 0, 3);
        w->out[i] = w->in[i] + w->before[i] + draw_int(&d, 0, 3) - 2;
        w->pooled[i] = w->out[i] / 2;
        p->size[i] = w->pool ? w->pooled[i] : w->out[i];
    }
    p->turned = draw_int(&d, 0, 1);
    p->samples = draw_int(&d, 1, 5);
    snprintf(p->text, sizeof p->text, "seed %d: %dx%dx%d to %dx%dx%d, pool %d, relu %d, %d samples",
             (int)seed, w->in_channels, w->in[0], w->in[1], w->out_channels, w->out[0], w->out[1],
             w->pool, w->relu, p->samples);
    p->x_sample = dpt_layout_floats(DPT_LAYOUT_C16, w->in_channels, w->in[0], w->in[1]);
    p->y_sample = dpt_layout_floats(DPT_LAYOUT_C16, w->out_channels, p->size[0], p->size[1]);
    p->x = draw_array(p->samples * p->x_sample, &d, 0);
    clear_filling(p->x, w->in_channels, w->in, p->x_sample, p->samples);
    p->weights = draw_array((int64_t)w->out_channels * w->in_channels * 9, &d, 0);
    p->bias = draw_array(w->out_channels + LANES, NULL, 0);
    for (int32_t i = 0; i < w->out_channels; i++)
        p->bias[i] = (float)draw_normal(&d);
}

static void problem_release(struct problem *p)
{
    dpt_free(p->x);
    dpt_free(p->weights);
    dpt_free(p->bias);
}

static void outputs_release(struct outputs *o)
{
    dpt_free(o->y);
    dpt_free(o->argmax);
}

static void pack(const struct problem *p, float *packed)
{
    const struct dpt_winograd *w = &p->w;
    const int32_t inputs = w->in_channels, outputs = w->out_channels;
    float *turned;

    if (!p->turned) {
        dpt_winograd_pack(w, p->weights, false, packed);
        return;
    }
    turned = draw_array((int64_t)inputs * outputs * 9, NULL, 0);
    for (int32_t i = 0; i < inputs; i++)
        for (int32_t o = 0; o < outputs; o++)
            for (int tap = 0; tap < 9; tap++)
                turned[((int64_t)i * outputs + o) * 9 + 8 - tap] =
                    p->weights[((int64_t)o * inputs + i) * 9 + tap];
    dpt_winograd_pack(w, turned, true, packed);
    dpt_free(turned);
}

static struct outputs fast(const struct problem *p, int32_t first, int32_t samples)
{
    const struct dpt_winograd *w = &p->w;
    struct outputs o = {draw_array(samples * p->y_sample, NULL, 0),
                        dpt_alloc_array((size_t)(samples * p->y_sample), sizeof *o.argmax)};
    float *packed = draw_array(dpt_winograd_packed(w), NULL, 0);
    float *scratch = draw_array(dpt_winograd_scratch(w), NULL, 0);

    assert_non_null(o.argmax);
    pack(p, packed);
    dpt_winograd_forward(w, samples, p->x + first * p->x_sample, packed, p->bias, scratch, o.y,
                         w->pool ? o.argmax : NULL);
    dpt_free(packed);
    dpt_free(scratch);
    return o;
}

static double slow_sum(const struct problem *p, int32_t sample, int32_t out, int32_t h, int32_t w)
{
    const struct dpt_winograd *s = &p->w;
    double sum = p->bias[out];

    for (int32_t in = 0; in < s->in_channels; in++) {
        for (int tap = 0; tap < 9; tap++) {
            const int32_t row = h + tap / 3 - s->before[0], column = w + tap % 3 - s->before[1];

            if (row >= 0 && row < s->in[0] && column >= 0 && column < s->in[1])
                sum += (double)p->weights[((int64_t)out * s->in_channels + in) * 9 + tap] *
                       p->x[sample * p->x_sample + index_of(s->in, in, row, column)];
        }
    }
    return sum;
}

/* One output; *candidates: the values among which the pool chose. */
static double slow_output(const struct problem *p, int32_t sample, int32_t out, int32_t h,
                          int32_t w, double candidates[4])
{
    double best;

    if (!p->w.pool) {
        best = slow_sum(p, sample, out, h, w);
        return p->w.relu && best < 0 ? 0 : best;
    }
    for (int i = 0; i < 4; i++)
        candidates[i] = slow_sum(p, sample, out, 2 * h + i / 2, 2 * w + i % 2);
    best = candidates[0];
    for (int i = 1; i < 4; i++)
        best = candidates[i] > best ? candidates[i] : best;
    return p->w.relu && best < 0 ? 0 : best;
}

/* The winner is the largest value, but for rounding. */
static void assert_argmax(const struct problem *p, int32_t argmax, const double candidates[4],
                          double best)
{
    if (argmax < 0) {
        if (!p->w.relu || best > 1e-3)
            fail_msg("%s: %g was cut off", p->text, best);
    } else if (argmax > 3 || candidates[argmax] < best - 1e-3) {
        fail_msg("%s: %d won", p->text, argmax);
    }
}

static void is_the_direct_sum(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SHAPES; seed += (uint64_t)net_every()) {
        for (int isa = DPT_ISA_AVX2; isa <= DPT_ISA_OWN; isa++) {
            double difference = 0, norm = 0;
            struct problem p;

            if (dpt_winograd_kernels((enum dpt_isa)isa) == NULL)
                continue;
            problem_init(&p, seed, (enum dpt_isa)isa);
            struct outputs got = fast(&p, 0, p.samples);

            for (int32_t n = 0; n < p.samples; n++) {
                for (int32_t out = 0; out < p.w.out_channels; out++) {
                    for (int32_t i = 0; i < p.size[0] * p.size[1]; i++) {
                        const int32_t h = i / p.size[1], w = i % p.size[1];
                        const int64_t at = n * p.y_sample + index_of(p.size, out, h, w);
                        double candidates[4];
                        const double wanted = slow_output(&p, n, out, h, w, candidates);

                        difference += (got.y[at] - wanted) * (got.y[at] - wanted);
                        norm += wanted * wanted;
                        if (p.w.pool)
                            assert_argmax(&p, got.argmax[at], candidates, wanted);
                    }
                }
            }
            if (!(sqrt(difference / norm) < 3e-6))
                fail_msg("%s: differs by %g", p.text, sqrt(difference / norm));
            outputs_release(&got);
            problem_release(&p);
        }
    }
}

/* A sample alone: the same bits, the padding of its last block zero. */
static void samples_do_not_meet(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SHAPES; seed += (uint64_t)net_every()) {
        for (int isa = DPT_ISA_AVX2; isa <= DPT_ISA_OWN; isa++) {
            struct problem p;

            if (dpt_winograd_kernels((enum dpt_isa)isa) == NULL)
                continue;
            problem_init(&p, seed, (enum dpt_isa)isa);
            struct outputs together = fast(&p, 0, p.samples);

            for (int32_t n = 0; n < p.samples; n++) {
                struct outputs alone = fast(&p, n, 1);

                assert_memory_equal(alone.y, together.y + n * p.y_sample,
                                    (size_t)p.y_sample * sizeof *alone.y);
                clear_filling(alone.y, p.w.out_channels, p.size, p.y_sample, 1);
                assert_memory_equal(alone.y, together.y + n * p.y_sample,
                                    (size_t)p.y_sample * sizeof *alone.y);
                outputs_release(&alone);
            }
            outputs_release(&together);
            problem_release(&p);
        }
    }
}

/* dw[out][in][tap] from its definition; *size: the sum of its terms' sizes. */
static double slow_weight(const struct problem *p, const float *dy, int32_t out, int32_t in,
                          int tap, double *size)
{
    const struct dpt_winograd *s = &p->w;
    double sum = *size = 0;

    for (int32_t n = 0; n < p->samples; n++)
        for (int32_t i = 0; i < s->out[0] * s->out[1]; i++) {
            const int32_t h = i / s->out[1], w = i % s->out[1];
            const int32_t row = h + tap / 3 - s->before[0], column = w + tap % 3 - s->before[1];
            double term;

            if (row < 0 || row >= s->in[0] || column < 0 || column >= s->in[1])
                continue;
            term = (double)dy[n * p->y_sample + index_of(s->out, out, h, w)] *
                   p->x[n * p->x_sample + index_of(s->in, in, row, column)];
            sum += term;
            *size += fabs(term);
        }
    return sum;
}

/* The gradient of the weights, overwritten and then added to, is twice the direct sum. */
static void weights_are_the_direct_sum(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SHAPES; seed += (uint64_t)net_every()) {
        for (int isa = DPT_ISA_AVX2; isa <= DPT_ISA_OWN; isa++) {
            struct draw d = {seed + 1};
            struct problem p;

            if (dpt_winograd_kernels((enum dpt_isa)isa) == NULL)
                continue;
            problem_init(&p, seed, (enum dpt_isa)isa);
            p.w.pool = p.w.relu = false;
            p.y_sample =
                dpt_layout_floats(DPT_LAYOUT_C16, p.w.out_channels, p.w.out[0], p.w.out[1]);
            float *dy = draw_array(p.samples * p.y_sample, &d, 0);
            float *dw = draw_array((int64_t)p.w.out_channels * p.w.in_channels * 9, NULL, 0);
            float *scratch = draw_array(dpt_winograd_weights_scratch(&p.w), NULL, 0);

            for (int add = 0; add < 2; add++)
                dpt_winograd_weights(&p.w, p.samples, p.x, dy, add, scratch, dw);
            for (int32_t out = 0; out < p.w.out_channels; out += 3)
                for (int32_t in = 0; in < p.w.in_channels; in += 5)
                    for (int tap = 0; tap < 9; tap++) {
                        double size, wanted = 2 * slow_weight(&p, dy, out, in, tap, &size);
                        const double got = dw[((int64_t)out * p.w.in_channels + in) * 9 + tap];

                        if (!(fabs(got - wanted) <= 2e-5 * (size + 1)))
                            fail_msg("%s: weight %d %d %d is %g, not %g", p.text, out, in, tap, got,
                                     wanted);
                    }
            dpt_free(dy);
            dpt_free(dw);
            dpt_free(scratch);
            problem_release(&p);
        }
    }
}

/* A NaN reaches all outputs that it is part of, and no other sample's. */
static void passes_nan_on(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SHAPES; seed += (uint64_t)net_every()) {
        for (int isa = DPT_ISA_AVX2; isa <= DPT_ISA_OWN; isa++) {
            struct problem p;
            struct draw d = {seed};

            if (dpt_winograd_kernels((enum dpt_isa)isa) == NULL)
                continue;
            problem_init(&p, seed, (enum dpt_isa)isa);
            const int32_t sick = draw_int(&d, 0, p.samples - 1);

            p.x[sick * p.x_sample + index_of(p.w.in, draw_int(&d, 0, p.w.in_channels - 1),
                                             draw_int(&d, 0, p.w.in[0] - 1),
                                             draw_int(&d, 0, p.w.in[1] - 1))] = NAN;
            struct outputs got = fast(&p, 0, p.samples);

            for (int32_t n = 0; n < p.samples; n++) {
                for (int32_t out = 0; out < p.w.out_channels; out++) {
                    for (int32_t i = 0; i < p.size[0] * p.size[1]; i++) {
                        const int32_t h = i / p.size[1], w = i % p.size[1];
                        const float y = got.y[n * p.y_sample + index_of(p.size, out, h, w)];
                        double candidates[4], wanted;

                        if (n != sick) {
                            assert_false(isnan(y));
                            continue;
                        }
                        wanted = slow_output(&p, n, out, h, w, candidates);
                        for (int k = 0; p.w.pool && k < 4; k++)
                            wanted = isnan(candidates[k]) ? NAN : wanted;
                        if (isnan(wanted))
                            assert_true(isnan(y));
                    }
                }
            }
            outputs_release(&got);
            problem_release(&p);
        }
    }
}

/* Convolutions that are small, or have few channels or many weights, are computed directly. */
static void knows_when_it_pays(void **state)
{
    const struct dpt_winograd fine = {.in_channels = 32,
                                      .out_channels = 64,
                                      .in = {16, 16},
                                      .out = {16, 16},
                                      .before = {1, 1},
                                      .kernels = dpt_winograd_kernels(DPT_ISA_AVX512)};
    struct dpt_winograd w = fine;

    (void)state;
    assert_int_equal(dpt_winograd_pays(&w), fine.kernels != NULL);
    w.in_channels = 3;
    assert_false(dpt_winograd_pays(&w));
    w = fine;
    w.out[0] = w.out[1] = w.in[0] = w.in[1] = 2;
    assert_false(dpt_winograd_pays(&w));
    w = fine;
    w.in_channels = w.out_channels = 256;
    assert_false(dpt_winograd_pays(&w));
    w = fine;
    w.kernels = NULL;
    assert_false(dpt_winograd_pays(&w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_direct_sum),   cmocka_unit_test(weights_are_the_direct_sum),
        cmocka_unit_test(samples_do_not_meet), cmocka_unit_test(passes_nan_on),
        cmocka_unit_test(knows_when_it_pays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

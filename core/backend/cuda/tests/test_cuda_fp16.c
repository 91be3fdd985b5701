/* Half floats and the loss scale in the device's kernels, run on the host: conversions, the places
 * where numbers are multiplied and divided by it, and the rule by which the scale changes, which is
 * the host's. */
#include "core/backend/cuda/tests/tensor.h"

static float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* IEEE 754's definition of binary16, in double. */
static double half_value(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31);
    const double sign = bits >> 15 ? -1 : 1, fraction = (double)(bits & 1023) / 1024;

    if (exponent == 31)
        return fraction > 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent > 0 ? ldexp(1 + fraction, exponent - 15) : ldexp(fraction, -14));
}

static void every_half_is_widened(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const double want = half_value(h);
        const float got = h16_to_float(h);

        if (isnan(want)) {
            assert_true(bits_of(got) == 0x7fffffffu && float_to_h16(got) == 0x7fffu);
            continue;
        }
        assert_true((double)got == want && !signbit(got) == !signbit(want));
        assert_int_equal(float_to_h16(got), h); /* and back */
    }
}

/* Nearest in double, which is exact here: the multiple of the distance of halves there. */
static uint32_t nearest_half(float x)
{
    const double size = fabs((double)x);
    const uint32_t sign = signbit(x) ? 0x8000u : 0;
    int exponent;
    double steps;

    if (isnan(x))
        return 0x7fffu;
    if (size >= 65520) /* half a step above the largest */
        return sign | 0x7c00u;
    if (size < 0x1p-14)
        return sign | (uint32_t)nearbyint(size * 0x1p24); /* ties to even */
    frexp(size, &exponent);
    steps = nearbyint(ldexp(size, 11 - exponent)); /* 1024 … 2048 */
    return (sign | (uint32_t)(exponent + 14) << 10) + (uint32_t)(steps - 1024);
}

static void check_narrow(uint32_t bits)
{
    const uint32_t got = float_to_h16(float_of(bits)), want = nearest_half(float_of(bits));

    if (got != want)
        fail_msg("%08x (%.9g) becomes %04x, not %04x", bits, (double)float_of(bits), got, want);
}

/* Floats of all sizes, ties and their neighbours, both ends of the range. */
static void floats_are_narrowed(void **state)
{
    static const float ends[] = {
        0,        65504,        65519.996f, 65520,    65536,           1e30f,    INFINITY, NAN,
        0x1p-14f, 0x1.ffep-15f, 0x1p-24f,   0x1p-25f, 0x1.000002p-25f, 0x1p-26f, 1e-40f};
    struct draw d = {11};

    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        check_narrow(bits_of(ends[i]));
        check_narrow(bits_of(-ends[i]));
    }
    for (int i = 0; i < 400000; i++) {
        const uint32_t any = (uint32_t)draw_bits(&d);
        /* In the range of halves: exponents from 2^-27 on. */
        const uint32_t near =
            (any & 0x80000000u) | (uint32_t)draw_int(&d, 100 << 23, (143 << 23) - 1);

        check_narrow(any);
        check_narrow(near);
        check_narrow(bits_of(float_of(near) * 0x1p-110f)); /* denormal floats */
    }
    for (uint32_t h = 0; h < 0x7bff; h++) { /* what lies between two neighbours */
        const uint32_t middle =
            bits_of((float)((half_value(h) + half_value(h + 1)) / 2)); /* exact */

        for (int k = -1; k <= 1; k++)
            check_narrow((middle + (uint32_t)k) | (h % 2 ? 0x80000000u : 0));
    }
}

/* Conversions in kernels, so that a device's own ones are tested: all halves widened one by one,
 * and narrowed again, with other floats, two at a time. */
static void kernels_convert(void **state)
{
    enum { HALVES = 65536 };
    const struct dpt_cuda_layout list = {0, 0, 1, 2 * HALVES, 1, 1, 2 * HALVES, 0, 0};
    h16 *halves = dpt_alloc_array(2 * HALVES, sizeof *halves);
    float *floats = dpt_alloc_array(2 * HALVES, sizeof *floats);
    struct dpt_cuda_layout_args a = {.arena = floats, .copies = halves, .list = &list, .n = 1};
    struct draw d = {12};

    (void)state;
    for (uint32_t h = 0; h < 2 * HALVES; h++)
        halves[h] = (h16)h;
    a.blocks = dpt_cuda_layout_blocks(DPT_CUDA_K_from_layout_h16, &list);
    dpt_emulate(DPT_CUDA_K_from_layout_h16, &a);
    for (uint32_t h = 0; h < 2 * HALVES; h++)
        assert_int_equal(bits_of(floats[h]), bits_of(h16_to_float(h % HALVES)));
    for (uint32_t h = HALVES; h < 2 * HALVES; h++)
        floats[h] = float_of((uint32_t)draw_bits(&d) % (44u << 23) + (100u << 23) + (h << 31));
    a.blocks = dpt_cuda_layout_blocks(DPT_CUDA_K_to_layout_h16, &list);
    dpt_emulate(DPT_CUDA_K_to_layout_h16, &a);
    for (uint32_t h = 0; h < 2 * HALVES; h++)
        assert_int_equal(halves[h], float_to_h16(floats[h]));
    dpt_free(halves), dpt_free(floats);
}

/* A loss's dy with a scale is that of floats, multiplied, in the tensor's type; without a scale, or
 * with 1, it is unchanged. Loss and counts do not change. */
static void losses_are_scaled(void **state)
{
    static const enum dpt_cuda_kernel kernels[][TYPES] = {
#define X(NAME, name) OF_ALL(name),
        DPT_LOSS_LIST(X)
#undef X
    };

    (void)state;
    for (int seed = 0; seed < 90; seed++) {
        struct draw d = {(uint64_t)seed};
        const enum type type = (enum type)(seed % TYPES);
        const enum dpt_cuda_kernel *kernel = kernels[seed / TYPES % 3];
        const struct dpt_shape shape = {draw_int(&d, 1, 40), 1, 1, true};
        const size_t n = (size_t)draw_int(&d, 1, 12);
        struct dpt_cuda_state reported[2] = {{.loss_scale = 1},
                                             {.loss_scale = ldexpf(1, draw_int(&d, 1, 24))}};
        struct device_tensor y = tensor_random(type, n, &shape, &d), exact, dy[3];
        struct device_tensor floats = tensor_make(F32, n, &shape);
        const struct dpt_cuda_control control = {.count = (int32_t)n};
        struct dpt_cuda_metric_sums metric_sums[4] = {{0}};
        float *targets = random_values(&d, n * y.c), *values = random_values(&d, n * y.c);
        double partial[2 * DPT_CUDA_LOSS_SUMS];
        uint32_t counter = 0;

        for (size_t i = 0; i < n * y.c; i++)
            values[i] *= i % 3 ? 4 : 0x1p-12f;
        tensor_fill(&y, values), tensor_fill(&floats, values);
        exact = tensor_make(F32, n, &shape);
        for (int k = 0; k < 4; k++) {
            const struct device_tensor *from = k < 3 ? &y : &floats;

            if (k < 3)
                dy[k] = tensor_make(type, n, &shape);
            dpt_emulate(
                kernel[from->type],
                &(struct dpt_cuda_loss_args){.y = from->at,
                                             .dy = k < 3 ? dy[k].at : exact.at,
                                             .targets = targets,
                                             .control = &control,
                                             .metric_sums = &metric_sums[k],
                                             .partial = partial,
                                             .counter = &counter,
                                             .n = (int32_t)n,
                                             .outputs = (int32_t)y.c,
                                             .pitch = (int32_t)from->pitch,
                                             .state = k == 1 || k == 2 ? &reported[k - 1] : NULL});
            assert_memory_equal(&metric_sums[k], &metric_sums[0], sizeof *metric_sums);
        }
        assert_memory_equal(dy[0].at, dy[1].at, tensor_bytes(&y));
        for (size_t i = 0; i < n * y.c; i++) {
            const float scaled =
                tensor_get(&exact, tensor_place(&exact, i)) * reported[1].loss_scale;

            assert_true(bits_of(tensor_get(&dy[2], tensor_place(&y, i))) ==
                        bits_of(rounded(type, scaled)));
        }
        for (int k = 0; k < 3; k++)
            dpt_free(dy[k].at);
        dpt_free(y.at), dpt_free(exact.at), dpt_free(floats.at);
        dpt_free(targets), dpt_free(values);
    }
}

/* Gradients come to the arena divided by the scale, once: of weights and biases, added to what is
 * there or not. */
static void arenas_have_no_scale(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 100};
        const enum type type = (enum type)(seed % TYPES);
        const bool relu = seed / TYPES & 1;
        const int32_t add = seed / TYPES / 2 & 1;
        struct dpt_cuda_state reported = {.loss_scale = ldexpf(1, draw_int(&d, 0, 24))};
        const struct dpt_shape shape = {draw_int(&d, 1, 30), draw_int(&d, 1, 9), 1, false};
        const size_t n = (size_t)draw_int(&d, 1, 9);
        struct device_tensor dy = tensor_random(type, n, &shape, &d),
                             y = tensor_random(type, n, &shape, &d),
                             dx = tensor_make(type, n, &shape);
        const struct dpt_cuda_layout list = {
            0, 0, (int32_t)n, (int32_t)dy.c, (int32_t)dy.pixels, (int32_t)n, (int32_t)dy.pitch,
            0, 0};
        const size_t weights = n * dy.c * dy.pixels;
        float *arena[2] = {random_values(&d, weights), NULL}, bias[2][30];
        double *partial = dpt_alloc_array(4096, sizeof *partial);
        float start[30];
        uint32_t counter[4] = {0};

        arena[1] = dpt_alloc_array(weights + 1, sizeof(float));
        memcpy(arena[1], arena[0], weights * sizeof(float));
        for (size_t c = 0; c < 30; c++)
            start[c] = bias[0][c] = bias[1][c] = (float)draw_normal(&d);
        for (int k = 0; k < 2; k++) {
            const struct dpt_cuda_state *given = k == 1 ? &reported : NULL;

            dpt_emulate(OF(type, from_layout),
                        &(struct dpt_cuda_layout_args){
                            .arena = arena[k],
                            .copies = dy.at,
                            .list = &list,
                            .n = 1,
                            .blocks = dpt_cuda_layout_blocks(OF(type, from_layout), &list),
                            .add = k == 1 && add,
                            .state = given});
            dpt_emulate(relu ? OF(type, bias_relu_back) : OF(type, bias_back),
                        &(struct dpt_cuda_bias_back_args){.dy = dy.at,
                                                          .y = relu ? y.at : NULL,
                                                          .dx = relu ? dx.at : NULL,
                                                          .dbias = bias[k],
                                                          .partial = partial,
                                                          .counter = counter,
                                                          .rows = (int64_t)(n * dy.pixels),
                                                          .pitch = (int32_t)dy.pitch,
                                                          .channels = (int32_t)dy.c,
                                                          .add = k == 1 && add,
                                                          .state = given});
        }
        for (size_t c = 0; c < dy.c; c++) {
            const double plain = (double)bias[0][c] / (double)reported.loss_scale;

            if (add)
                assert_true(fabs((double)bias[1][c] - ((double)start[c] + plain)) <=
                            0x1p-22 * (fabs((double)start[c]) + fabs(plain)));
            else
                assert_true((double)bias[1][c] == plain);
        }
        for (size_t i = 0; i < weights; i++) {
            /* A sample of dy is a row of weights; the arena has [outputs][inputs][area]. */
            const float value = tensor_get(&dy, tensor_place(&dy, i)) / reported.loss_scale;

            assert_true(arena[0][i] == value * reported.loss_scale);
            if (!add)
                assert_true(arena[1][i] == value);
        }
        dpt_free(arena[0]), dpt_free(arena[1]), dpt_free(partial);
        dpt_free(dy.at), dpt_free(y.at), dpt_free(dx.at);
    }
}

/* The purpose of a scale: gradients below the least half keep their 11 bits. */
static void small_gradients_survive(void **state)
{
    struct dpt_cuda_state reported = {.loss_scale = DPT_LOSS_SCALE_FIRST};
    const struct dpt_cuda_control control = {.count = 8};
    const struct dpt_shape shape = {8, 1, 1, true};
    struct device_tensor y = tensor_make(H16, 8, &shape), dy = tensor_make(H16, 8, &shape);
    const struct dpt_cuda_layout list = {0, 0, 8, 8, 1, 8, 8, 0, 0};
    struct dpt_cuda_metric_sums metric_sums = {0};
    float targets[64], back[2][64];
    struct draw d = {5};
    double partial[2 * DPT_CUDA_LOSS_SUMS];
    uint32_t counter = 0;

    (void)state;
    for (size_t i = 0; i < 64; i++) /* dy is 2 (y - target) / 8: 3e-8 at most */
        targets[i] = (float)(1.2e-7 * (draw_uniform(&d) - 0.5));
    for (int k = 0; k < 2; k++) {
        dpt_emulate(DPT_CUDA_K_mse_h16,
                    &(struct dpt_cuda_loss_args){.y = y.at,
                                                 .dy = dy.at,
                                                 .targets = targets,
                                                 .control = &control,
                                                 .metric_sums = &metric_sums,
                                                 .partial = partial,
                                                 .counter = &counter,
                                                 .n = 8,
                                                 .outputs = 8,
                                                 .pitch = 8,
                                                 .state = k ? &reported : NULL});
        dpt_emulate(DPT_CUDA_K_from_layout_h16,
                    &(struct dpt_cuda_layout_args){.arena = back[k],
                                                   .copies = dy.at,
                                                   .list = &list,
                                                   .n = 1,
                                                   .blocks = 1,
                                                   .state = k ? &reported : NULL});
    }
    for (size_t i = 0; i < 64; i++) {
        const double want = -0.25 * (double)targets[i];

        assert_true(back[0][i] == 0);
        assert_true(fabs((double)back[1][i] - want) <=
                    0x1p-11 * fabs(want) + 0x1p-25 / DPT_LOSS_SCALE_FIRST);
    }
    dpt_free(y.at), dpt_free(dy.at);
}

/* One update's norm, of a gradient that is finite or not. */
static void judge_step(struct dpt_cuda_state *reported, bool finite, bool loss_finite, bool skip,
                       int64_t update)
{
    const float tail[DPT_CUDA_TAIL_SUMS] = {[DPT_CUDA_TAIL_LOSS] = loss_finite  ? 1
                                                                   : update & 1 ? INFINITY
                                                                                : NAN,
                                            [DPT_CUDA_TAIL_WEIGHT] = 4};
    const struct dpt_cuda_rates rates = {.update = update};
    float gradient[16] = {3, 0, 0, 4};
    double partial[2];
    uint32_t counter = 0;

    if (!finite)
        gradient[update % 16] = update & 2 ? NAN : INFINITY;
    dpt_emulate(DPT_CUDA_K_norm, &(struct dpt_cuda_norm_args){.gradient = gradient,
                                                              .tail = tail,
                                                              .rates = &rates,
                                                              .state = reported,
                                                              .partial = partial,
                                                              .counter = &counter,
                                                              .n = 16,
                                                              .skip = skip,
                                                              .scaled = 1});
}

/* Random runs of good and bad updates: the device's scale is the host's after each. Overflows
 * withhold single updates; what no scale repairs is handled as without a scale. */
static void the_rule_is_the_hosts(void **state)
{
    int doubled = 0, halved = 0, unmended = 0, most = 0;

    (void)state;
    for (int seed = 0; seed < 16; seed++) {
        struct draw d = {(uint64_t)seed + 300};
        struct dpt_loss_scale host = dpt_loss_scale_start(true, 1);
        const bool skip = seed & 1;
        struct dpt_cuda_state reported;
        int64_t skipped = 0, first = 0;
        /* Long runs begin shortly before the scale is doubled. */
        const int bad = seed % 4 < 2 ? 100 : 3; /* one in so many */

        host.scale = ldexpf(1, seed % 3 ? draw_int(&d, 0, 24) : 24);
        host.good = draw_int(&d, DPT_LOSS_SCALE_PATIENCE - 40, DPT_LOSS_SCALE_PATIENCE - 1);
        reported = (struct dpt_cuda_state){.loss_scale = host.scale, .good = host.good};
        for (int64_t update = 1; update <= 60; update++) {
            const bool finite = draw_int(&d, 1, bad) > 1;
            const bool loss_finite = seed % 8 < 4 || draw_int(&d, 1, 50) > 1;
            const float before = reported.loss_scale;
            bool mended = false;

            judge_step(&reported, finite, loss_finite, skip, update);
            if (loss_finite)
                dpt_loss_scale_step(&host, finite, &mended);
            assert_true(reported.loss_scale == host.scale && reported.good == host.good &&
                        reported.overflows == host.overflows);
            doubled += reported.loss_scale > before;
            halved += reported.loss_scale < before;
            most += reported.good == 0 && finite && before == DPT_LOSS_SCALE_MOST;
            unmended += !mended && !finite && loss_finite;
            if (!mended && !(finite && loss_finite)) {
                skipped += skip;
                first = skip || first > 0 ? first : update;
            }
            assert_int_equal(reported.skipped, skipped);
            assert_int_equal(reported.withheld_update, first);
            if (first > 0)
                assert_int_equal(reported.withheld, DPT_CUDA_WITHHELD);
            else if (mended)
                assert_int_equal(reported.withheld, DPT_CUDA_JUST_NOW);
            else
                assert_int_equal(reported.withheld, !(finite && loss_finite));
        }
    }
    assert_true(doubled > 0 && halved > 0 && unmended > 0 && most > 0); /* all of it was seen */
}

/* Updates whose samples weigh nothing are left out one by one, whatever the gradient is, and count
 * neither for nor against the scale; an update withheld for good stays withheld. */
static void what_weighs_nothing_says_nothing(void **state)
{
    float gradient[4] = {0}, tail[DPT_CUDA_TAIL_SUMS] = {0, 4, 0, 0};
    const struct dpt_cuda_rates rates = {.update = 3};
    double partial[2];
    uint32_t counter = 0;

    (void)state;
    for (int k = 0; k < 8; k++) {
        struct dpt_cuda_state reported = {
            .loss_scale = 1024, .good = 7, .withheld = k & 1 ? DPT_CUDA_WITHHELD : 0};
        const struct dpt_cuda_norm_args a = {.gradient = gradient,
                                             .tail = tail,
                                             .rates = &rates,
                                             .state = &reported,
                                             .partial = partial,
                                             .counter = &counter,
                                             .n = 4,
                                             .skip = k & 2 && !(k & 1),
                                             .scaled = k & 4,
                                             .sums = 1};

        tail[DPT_CUDA_TAIL_WEIGHT] = 0;
        gradient[0] = k == 2 ? NAN : 0;
        dpt_emulate(DPT_CUDA_K_norm, &a);
        dpt_emulate(DPT_CUDA_K_norm, &a);
        assert_int_equal(reported.withheld, k & 1 ? DPT_CUDA_WITHHELD : DPT_CUDA_JUST_NOW);
        assert_true(reported.weightless == 2 && reported.skipped == 0 && reported.overflows == 0);
        assert_true(reported.loss_scale == 1024 && reported.good == 7 && reported.samples == 0);
        tail[DPT_CUDA_TAIL_WEIGHT] = 0.5f;
        gradient[0] = 1;
        dpt_emulate(DPT_CUDA_K_norm, &a);
        assert_int_equal(reported.withheld, k & 1 ? DPT_CUDA_WITHHELD : 0);
        assert_true(reported.scale == 2 && reported.norm == 2 &&
                    reported.samples == (k & 1 ? 0 : 4));
    }
}

/* Without `scaled` nothing of this happens. */
static void other_precisions_have_no_scale(void **state)
{
    struct dpt_cuda_state reported = {.loss_scale = 1};
    float gradient[4] = {INFINITY};
    const float ones[DPT_CUDA_TAIL_SUMS] = {1, 1, 1, 1};
    const struct dpt_cuda_rates rates = {.update = 9};
    double partial[2];
    uint32_t counter = 0;

    (void)state;
    for (int k = 0; k < 3; k++) {
        gradient[0] = k == 1 ? INFINITY : 1;
        dpt_emulate(DPT_CUDA_K_norm, &(struct dpt_cuda_norm_args){.gradient = gradient,
                                                                  .tail = ones,
                                                                  .rates = &rates,
                                                                  .state = &reported,
                                                                  .partial = partial,
                                                                  .counter = &counter,
                                                                  .n = 4,
                                                                  .skip = 1});
        assert_int_equal(reported.withheld, k == 1);
    }
    assert_true(reported.loss_scale == 1 && reported.good == 0 && reported.overflows == 0);
    assert_int_equal(reported.skipped, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_widened),
        cmocka_unit_test(floats_are_narrowed),
        cmocka_unit_test(kernels_convert),
        cmocka_unit_test(losses_are_scaled),
        cmocka_unit_test(arenas_have_no_scale),
        cmocka_unit_test(small_gradients_survive),
        cmocka_unit_test(the_rule_is_the_hosts),
        cmocka_unit_test(what_weighs_nothing_says_nothing),
        cmocka_unit_test(other_precisions_have_no_scale),
    };

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}

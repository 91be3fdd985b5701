/* The device's kernels for joins and batch norm, run on the host, against sums written out, over
 * random shapes. */
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/tensor.h"

static struct dpt_shape random_shape(struct draw *d)
{
    const int32_t c = draw_int(d, 1, 70);
    const int32_t h = draw_int(d, 1, 9), w = draw_int(d, 1, 9);

    return (struct dpt_shape){c, h, w, false};
}

static void assert_padding_is_zero(const struct device_tensor *t, int seed)
{
    for (size_t i = 0; i < tensor_elements(t); i++) {
        if (i % t->pitch >= t->c && tensor_get(t, i) != 0)
            fail_msg("seed %d: padding is %g", seed, (double)tensor_get(t, i));
    }
}

static float joined(enum type type, int which, float a, float b)
{
    return rounded(type, which == 2 ? a * b : which == 1 && a + b < 0 ? 0 : a + b);
}

/* Sums and products number by number, and a product's gradients. */
static void joins(void **state)
{
    static const enum dpt_cuda_kernel kernels[][TYPES] = {OF_ALL(add), OF_ALL(add_relu),
                                                          OF_ALL(multiply)};

    (void)state;
    for (int seed = 0; seed < 36; seed++) {
        struct draw d = {(uint64_t)seed + 7000};
        const enum type type = (enum type)(seed % TYPES);
        const int which = seed / TYPES % 3;
        const struct dpt_shape shape = random_shape(&d);
        struct device_tensor t[4];
        int64_t vectors;

        for (int k = 0; k < 4; k++)
            t[k] = tensor_random(type, 2, &shape, &d);
        vectors = (int64_t)tensor_elements(t) / lanes_of[type];
        dpt_emulate(kernels[which][type],
                    &(struct dpt_cuda_join_args){t[0].at, t[1].at, t[2].at, vectors});
        for (size_t i = 0; i < tensor_elements(t); i++) {
            const float a = tensor_get(&t[0], i), b = tensor_get(&t[1], i);

            assert_true(tensor_get(&t[2], i) == joined(type, which, a, b));
        }
        /* One gradient overwrites dy, the other one goes elsewhere or is not wanted. */
        dpt_emulate(OF(type, multiply_back),
                    &(struct dpt_cuda_join_back_args){t[2].at, t[0].at, t[1].at, t[2].at,
                                                      seed % 2 ? t[3].at : NULL, vectors});
        for (size_t i = 0; i < tensor_elements(t); i++) {
            const float a = tensor_get(&t[0], i), b = tensor_get(&t[1], i);
            const float dy = joined(type, which, a, b);

            assert_true(tensor_get(&t[2], i) == rounded(type, dy * b));
            assert_true(seed % 2 == 0 || tensor_get(&t[3], i) == rounded(type, dy * a));
        }
        for (int k = 0; k < 4; k++)
            dpt_free(t[k].at);
    }
}

/* Channels one after another, taken apart again; planes as a vector, and back. The numbers after
 * the last channel become zero. */
static void channels(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 8000};
        const enum type type = (enum type)(seed % TYPES);
        const struct dpt_shape first = random_shape(&d);
        struct dpt_shape second = first, both = first, flat = {1, 1, 1, true};
        struct device_tensor a, b, whole, back[2], vector;
        struct dpt_cuda_concat_args args;
        struct dpt_cuda_flatten_args order;

        second.c = draw_int(&d, 1, 70);
        both.c += second.c;
        flat.c = (int32_t)dpt_shape_size(&both);
        a = tensor_random(type, 2, &first, &d), b = tensor_random(type, 2, &second, &d);
        back[0] = tensor_random(type, 2, &first, &d), back[1] = tensor_random(type, 2, &second, &d);
        whole = tensor_random(type, 2, &both, &d), vector = tensor_random(type, 2, &flat, &d);
        args = (struct dpt_cuda_concat_args){whole.at,
                                             a.at,
                                             b.at,
                                             (int64_t)(2 * a.pixels),
                                             {first.c, second.c},
                                             {(int32_t)a.pitch, (int32_t)b.pitch},
                                             (int32_t)whole.pitch};
        dpt_emulate(OF(type, concat), &args);
        assert_padding_is_zero(&whole, seed);
        for (size_t i = 0; i < 2 * whole.pixels * whole.c; i++) {
            const size_t pixel = i / whole.c, c = i % whole.c;

            assert_true(tensor_get(&whole, pixel * whole.pitch + c) ==
                        (c < a.c ? tensor_get(&a, pixel * a.pitch + c)
                                 : tensor_get(&b, pixel * b.pitch + c - a.c)));
        }
        args.first = seed % 4 ? back[0].at : NULL, args.second = back[1].at;
        dpt_emulate(OF(type, concat_back), &args);
        for (int k = seed % 4 == 0; k < 2; k++) {
            const struct device_tensor *from = k == 0 ? &a : &b;

            assert_padding_is_zero(&back[k], seed);
            for (size_t i = 0; i < 2 * from->pixels * from->c; i++)
                assert_true(tensor_get(&back[k], tensor_place(from, i)) ==
                            tensor_get(from, tensor_place(from, i)));
        }
        order = (struct dpt_cuda_flatten_args){whole.at,
                                               vector.at,
                                               2,
                                               both.c,
                                               (int32_t)whole.pixels,
                                               (int32_t)whole.pitch,
                                               (int32_t)vector.pitch};
        dpt_emulate(OF(type, flatten), &order);
        assert_padding_is_zero(&vector, seed);
        for (size_t i = 0; i < 2 * vector.c; i++) /* the same canonical order */
            assert_true(tensor_get(&vector, tensor_place(&vector, i)) ==
                        tensor_get(&whole, tensor_place(&whole, i)));
        vector.at = whole.at, whole.at = (void *)order.to; /* there and back */
        order.from = whole.at, order.to = dpt_alloc(tensor_bytes(&whole));
        dpt_emulate(OF(type, flatten_back), &order);
        assert_memory_equal(order.to, vector.at, tensor_bytes(&whole));
        dpt_free(a.at), dpt_free(b.at), dpt_free(back[0].at), dpt_free(back[1].at);
        dpt_free(whole.at), dpt_free(vector.at), dpt_free(order.to);
    }
}

/* --- batch norm ------------------------------------------------------------------------------- */

/* A batch norm of some samples, of which the last ones do not count. Some floats are far from 0. */
struct norm {
    enum type type;
    struct device_tensor x, y, dy, dx;
    struct dpt_cuda_control control;
    struct dpt_cuda_batchnorm_args args;
    float *arena[4], *made[4]; /* weight, bias, mean, variance; their gradients, and the sums */
    bool relu;
};

static void norm_open(struct norm *b, int seed, struct draw *d)
{
    const struct dpt_shape shape = random_shape(d);
    const size_t n = (size_t)draw_int(d, 1, 5), length = (size_t)shape.c + 16;
    struct dpt_cuda_cut cut;

    *b = (struct norm){.type = (enum type)(seed % TYPES), .relu = seed / TYPES % 2};
    b->x = tensor_random(b->type, n, &shape, d), b->y = tensor_random(b->type, n, &shape, d);
    b->dy = tensor_random(b->type, n, &shape, d), b->dx = tensor_random(b->type, n, &shape, d);
    for (size_t i = 0; b->type == F32 && seed % 4 == 0 && i < tensor_elements(&b->x); i++)
        if (i % b->x.pitch < b->x.c)
            element_put(F32, b->x.at, i, tensor_get(&b->x, i) + 12345);
    for (int k = 0; k < 4; k++) {
        b->arena[k] = dpt_alloc_array(length, sizeof(float));
        b->made[k] = dpt_alloc_array(length, sizeof(float));
        for (int32_t c = 0; c < shape.c; c++) {
            b->arena[k][c] = (float)draw_normal(d) + 2.5f;
            b->made[k][c] = (float)draw_normal(d);
        }
    }
    b->control.count = draw_int(d, 1, (int32_t)n);
    cut =
        dpt_cuda_bias_back_cut((int64_t)(n * b->x.pixels), (int32_t)b->x.pitch, lanes_of[b->type]);
    b->args = (struct dpt_cuda_batchnorm_args){
        .x = b->x.at,
        .y = b->y.at,
        .statistics = dpt_alloc_array(5 * b->x.pitch, sizeof(float)),
        .means = b->made[2],
        .variances = b->made[3],
        .dweight = b->made[0],
        .dbias = b->made[1],
        .weight = b->arena[0],
        .bias = b->arena[1],
        .mean = b->arena[2],
        .variance = b->arena[3],
        .partial = dpt_alloc_array(2 * (size_t)cut.chunks * b->x.pitch, sizeof(double)),
        .counter = dpt_alloc_array((size_t)cut.groups, sizeof(uint32_t)),
        .control = &b->control,
        .rows = (int64_t)(n * b->x.pixels),
        .area = (int32_t)b->x.pixels,
        .pitch = (int32_t)b->x.pitch,
        .channels = shape.c,
        .add = seed / 7 % 2,
        .eps = 0.01f,
    };
}

static void norm_close(struct norm *b)
{
    for (int k = 0; k < 4; k++)
        dpt_free(b->arena[k]), dpt_free(b->made[k]);
    dpt_free(b->args.statistics), dpt_free(b->args.partial), dpt_free(b->args.counter);
    dpt_free(b->x.at), dpt_free(b->y.at), dpt_free(b->dy.at), dpt_free(b->dx.at);
}

/* Statistics, forward, and both of backward. */
static void norm_run(struct norm *b)
{
    struct dpt_cuda_batchnorm_args args = b->args;

    dpt_emulate(OF(b->type, batchnorm_statistics), &args);
    dpt_emulate(b->relu ? OF(b->type, batchnorm_relu) : OF(b->type, batchnorm), &args);
    args.dy = b->dy.at;
    args.y = b->dx.at;
    dpt_emulate(b->relu ? OF(b->type, batchnorm_relu_weights) : OF(b->type, batchnorm_weights),
                &args);
    dpt_emulate(b->relu ? OF(b->type, batchnorm_relu_back) : OF(b->type, batchnorm_back), &args);
}

/* The statistics of a channel. */
struct sums {
    double n, mean, variance, scale, dy, inner;
};

/* dy of a number after the ReLU's backward. The sign of the device's y decides, since rounding may
 * change it. */
static double passed_back(const struct norm *b, size_t at)
{
    return !b->relu || tensor_get(&b->y, at) > 0 ? (double)tensor_get(&b->dy, at) : 0;
}

static struct sums sums_of(const struct norm *b, size_t channel)
{
    const size_t rows = (size_t)b->control.count * b->x.pixels, pitch = b->x.pitch;
    struct sums s = {.n = (double)rows};

    for (size_t row = 0; row < rows; row++)
        s.mean += (double)tensor_get(&b->x, row * pitch + channel) / s.n;
    for (size_t row = 0; row < rows; row++)
        s.variance += pow((double)tensor_get(&b->x, row * pitch + channel) - s.mean, 2) / s.n;
    s.scale = 1 / sqrt(s.variance + (double)b->args.eps);
    for (size_t row = 0; row < rows; row++) {
        const size_t at = row * pitch + channel;

        s.dy += passed_back(b, at);
        s.inner += passed_back(b, at) * ((double)tensor_get(&b->x, at) - s.mean) * s.scale;
    }
    return s;
}

static void near(const struct norm *b, int seed, const char *what, double got, double want)
{
    const double off = 2e-5 * (1 + fabs(want)) + precision_of[b->type] * fabs(want);

    if (!(fabs(got - want) <= off))
        fail_msg("seed %d, %s: %s is %.9g, not %.9g", seed, type_names[b->type], what, got, want);
}

static void norm_check(const struct norm *b, const float *const *before, size_t channel, int seed)
{
    const struct sums s = sums_of(b, channel);
    const double weight = (double)b->arena[0][channel], bias = (double)b->arena[1][channel];
    const double samples = (double)b->control.count, less = s.n > 1 ? s.n - 1 : 1;
    const double wants[] = {s.inner, s.dy, samples * s.mean, samples * s.variance * s.n / less};

    for (int k = 0; k < 4; k++) {
        const double old = b->args.add ? (double)before[k][channel] : 0;

        if (!(fabs((double)b->made[k][channel] - old - wants[k]) <= 1e-5 * (s.n + fabs(wants[k]))))
            fail_msg("seed %d: sum %d is %g, not %g", seed, k, (double)b->made[k][channel],
                     old + wants[k]);
    }
    for (size_t row = 0; row < (size_t)b->args.rows; row++) {
        const size_t at = row * b->x.pitch + channel;
        const double normal = ((double)tensor_get(&b->x, at) - s.mean) * s.scale;
        const double y = normal * weight + bias;
        const double dx =
            s.scale * weight * (passed_back(b, at) - s.dy / s.n - normal * s.inner / s.n);

        near(b, seed, "y", (double)tensor_get(&b->y, at), b->relu && y < 0 ? 0 : y);
        near(b, seed, "dx", (double)tensor_get(&b->dx, at), (double)row < s.n ? dx : 0);
    }
}

/* Rows without samples do not count, and get no gradient; blocks in any order give the same
 * bits. */
static void batch_norm(void **state)
{
    (void)state;
    for (int seed = 0; seed < 42; seed++) {
        const float *before[4];
        struct norm b[2];

        for (int run = 0; run < 2; run++) {
            struct draw d = {(uint64_t)seed + 9000};

            norm_open(&b[run], seed, &d);
            if (run == 0) {
                struct norm untouched;

                d.state = (uint64_t)seed + 9000;
                norm_open(&untouched, seed, &d);
                for (int k = 0; k < 4; k++) {
                    before[k] = untouched.made[k];
                    untouched.made[k] = NULL;
                }
                norm_close(&untouched);
            }
            emulated_backwards = run == 1;
            norm_run(&b[run]);
        }
        emulated_backwards = false;
        assert_memory_equal(b[0].y.at, b[1].y.at, tensor_bytes(&b[0].y));
        assert_memory_equal(b[0].dx.at, b[1].dx.at, tensor_bytes(&b[0].dx));
        for (int k = 0; k < 4; k++)
            assert_memory_equal(b[0].made[k], b[1].made[k], b[0].x.c * sizeof(float));
        for (size_t channel = 0; channel < b[0].x.c; channel++)
            norm_check(&b[0], before, channel, seed);
        assert_padding_is_zero(&b[0].y, seed);
        assert_padding_is_zero(&b[0].dx, seed);
        for (int k = 0; k < 4; k++)
            dpt_free((void *)before[k]);
        norm_close(&b[0]), norm_close(&b[1]);
    }
}

/* The kernel of a norm's sums that also adds what two readers pass back, takes the sum through a
 * ReLU, or both. */
static enum dpt_cuda_kernel of_gradients(enum type type, bool sum, bool through)
{
    static const enum dpt_cuda_kernel kernels[][TYPES] = {
        OF_ALL(batchnorm_weights), OF_ALL(batchnorm_through_weights), OF_ALL(batchnorm_sum_weights),
        OF_ALL(batchnorm_sum_through_weights)};

    return kernels[2 * sum + through][type];
}

/* Copies the numbers to other memory. */
static struct device_tensor copy_of(const struct device_tensor *t)
{
    struct device_tensor copy = *t;

    copy.at = dpt_alloc_array(tensor_bytes(t), 1);
    memcpy(copy.at, t->at, tensor_bytes(t));
    return copy;
}

/* Forward, whose output is in b->y. */
static void forward_in_a_sum(struct norm *b, const struct device_tensor *with, bool relu)
{
    const int64_t vectors = (int64_t)tensor_elements(&b->x) / lanes_of[b->type];
    struct dpt_cuda_batchnorm_args args = b->args;

    dpt_emulate(OF(b->type, batchnorm_statistics), &args);
    dpt_emulate(OF(b->type, batchnorm), &args);
    dpt_emulate(relu ? OF(b->type, add_relu) : OF(b->type, add),
                &(struct dpt_cuda_join_args){b->y.at, with->at, b->dx.at, vectors});
    args.with = with->at;
    dpt_emulate(relu ? OF(b->type, batchnorm_add_relu) : OF(b->type, batchnorm_add), &args);
    assert_memory_equal(b->y.at, b->dx.at, tensor_bytes(&b->y));
}

/* Writes the gradients to `want`, and their sums, by one kernel for each. */
static void back_apart(struct norm *b, const struct device_tensor *with, bool through,
                       const struct device_tensor *want)
{
    const int64_t vectors = (int64_t)tensor_elements(&b->x) / lanes_of[b->type];
    struct dpt_cuda_batchnorm_args args = b->args;

    if (with != NULL)
        dpt_emulate(OF(b->type, add),
                    &(struct dpt_cuda_join_args){b->dy.at, with->at, want->at, vectors});
    if (through)
        dpt_emulate(OF(b->type, relu_back),
                    &(struct dpt_cuda_act_back_args){b->y.at, want->at, want->at, vectors, 0});
    args.dy = want->at;
    dpt_emulate(OF(b->type, batchnorm_weights), &args);
}

/* A norm with the sum after it and the sum's ReLU, forward and back: the bits of separate kernels,
 * in rows without samples, too; a result may overwrite one of its parts. */
static void batch_norm_in_a_sum(void **state)
{
    (void)state;
    for (int seed = 0; seed < 96; seed++) {
        const bool sum = seed / 3 % 2, through = seed / 6 % 2;
        struct device_tensor with, want;
        struct dpt_cuda_batchnorm_args args;
        struct norm b[2];

        for (int k = 0; k < 2; k++) {
            struct draw d = {(uint64_t)seed + 9700};

            norm_open(&b[k], seed, &d);
            if (k == 0)
                with = copy_of(&b[k].dx);
            emulated_backwards = seed % 5 == k;
            forward_in_a_sum(&b[k], &with, through);
        }
        want = copy_of(&b[0].dy);
        back_apart(&b[0], sum ? &with : NULL, through, &want);
        args = b[1].args;
        args.dy = b[1].dy.at;
        args.with = sum ? with.at : NULL;
        args.joined = through ? b[1].y.at : NULL;
        args.dz = seed % 4 == 1 ? b[1].dy.at : sum && seed % 4 == 2 ? with.at : b[1].dx.at;
        dpt_emulate(of_gradients(b[1].type, sum, through), &args);
        emulated_backwards = false;
        if (sum || through)
            assert_memory_equal(args.dz, want.at, tensor_bytes(&want));
        assert_memory_equal(b[1].args.statistics, b[0].args.statistics,
                            4 * want.pitch * sizeof(float));
        for (int k = 0; k < 4; k++)
            assert_memory_equal(b[1].made[k], b[0].made[k], want.c * sizeof(float));
        dpt_free(with.at), dpt_free(want.at);
        norm_close(&b[0]), norm_close(&b[1]);
    }
}

/* Evaluation. */
static void batch_norm_by_running_statistics(void **state)
{
    (void)state;
    for (int seed = 0; seed < 18; seed++) {
        struct draw d = {(uint64_t)seed + 9500};
        struct dpt_cuda_batchnorm_args args;
        struct norm b;

        norm_open(&b, seed, &d);
        args = b.args;
        args.statistics = NULL;
        for (size_t c = 0; c < b.x.c; c++)
            b.arena[3][c] = fabsf(b.arena[3][c]);
        dpt_emulate(b.relu ? OF(b.type, batchnorm_relu) : OF(b.type, batchnorm), &args);
        for (size_t i = 0; i < b.x.n * b.x.c * b.x.pixels; i++) {
            const size_t at = tensor_place(&b.x, i), c = at % b.x.pitch;
            const double scale = 1 / sqrt((double)b.arena[3][c] + (double)args.eps);
            const double y = ((double)tensor_get(&b.x, at) - (double)b.arena[2][c]) * scale *
                                 (double)b.arena[0][c] +
                             (double)b.arena[1][c];

            near(&b, seed, "y", (double)tensor_get(&b.y, at), b.relu && y < 0 ? 0 : y);
        }
        norm_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins),
        cmocka_unit_test(channels),
        cmocka_unit_test(batch_norm),
        cmocka_unit_test(batch_norm_in_a_sum),
        cmocka_unit_test(batch_norm_by_running_statistics),
    };

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}

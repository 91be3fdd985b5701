/* Tests products and dense layers by cuBLASLt: their numbers, against plain loops, with the library
 * that computes on the CPU (fake_cublaslt.c), or with DPT_CUDA_TESTS=device with the real one on a
 * GPU. (Its requests: test_cuda_algorithms.c.) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/cuda/libraries/matmul.h"
#include "core/backend/cuda/tests/on_device.h"
#include "core/backend/tests/net.h"

/* Halves by their definition, without a look at the bits of a float. */
static double half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0    ? ldexp(fraction, -24)
                        : exponent == 31 ? (fraction ? NAN : INFINITY)
                                         : ldexp(1024 + fraction, exponent - 25);

    return bits >> 15 ? -size : size;
}

static uint16_t half_bits(double x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;

    if (isnan(x))
        return 0x7fff;
    frexp(x, &exponent);
    exponent = exponent < -13 ? -13 : exponent;
    x = nearbyint(ldexp(fabs(x), 11 - exponent)); /* 11 bits, or fewer below 2^-14 */
    if (x >= 2048)
        x /= 2, exponent++;
    if (exponent > 16 || isinf(x))
        return sign | 0x7c00;
    return (uint16_t)(sign | (x < 1024 ? (int)x : ((exponent + 14) << 10) + (int)x - 1024));
}

static double bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float f;

    memcpy(&f, &wide, sizeof f);
    return (double)f;
}

static uint16_t bf16_bits(double x)
{
    const float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (isnan(f))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct matrix {
    enum dpt_precision precision;
    bool wide;
    int64_t lines, length, pitch;
    void *at;
};

static bool narrow(const struct matrix *m)
{
    return !m->wide && m->precision >= DPT_PRECISION_BF16;
}

static size_t bytes_of(const struct matrix *m)
{
    return (size_t)(m->lines * m->pitch) * (narrow(m) ? 2 : 4);
}

static double get(const struct matrix *m, int64_t line, int64_t index)
{
    const int64_t i = line * m->pitch + index;

    if (!narrow(m))
        return (double)((const float *)m->at)[i];
    return (m->precision == DPT_PRECISION_BF16 ? bf16_value
                                               : half_value)(((const uint16_t *)m->at)[i]);
}

static void put(const struct matrix *m, int64_t line, int64_t index, double x)
{
    const int64_t i = line * m->pitch + index;

    if (!narrow(m))
        ((float *)m->at)[i] = (float)x;
    else
        ((uint16_t *)m->at)[i] = (m->precision == DPT_PRECISION_BF16 ? bf16_bits : half_bits)(x);
}

/* Random inside, `outside` between the lines' ends and the next lines. */
static struct matrix make_matrix(enum dpt_precision precision, bool wide, int64_t lines,
                                 int64_t length, int64_t pitch, double outside, struct draw *d)
{
    struct matrix m = {precision, wide, lines, length, pitch, NULL};

    m.at = dpt_alloc((size_t)(lines * pitch) * 4);
    assert_non_null(m.at);
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t i = 0; i < pitch; i++)
            put(&m, line, i, i < length ? draw_normal(d) : outside);
    }
    return m;
}

static struct matrix copy_matrix(const struct matrix *m)
{
    struct matrix copy = *m;

    copy.at = dpt_alloc((size_t)(m->lines * m->pitch) * 4);
    assert_non_null(copy.at);
    memcpy(copy.at, m->at, bytes_of(m));
    return copy;
}

/* How far a result may be off; size: the sum of the absolute values of all terms. product: a part
 * that may be rounded to D's type before something is added to it, or 0. cuBLASLt 13.1 on an H100
 * does that if an algorithm splits the sum and has an epilogue. */
static double allowed(const struct matrix *d, double want, double product, double size)
{
    const double sum = size * (d->precision == DPT_PRECISION_TF32 ? 0x1p-9 : 0x1p-20);
    const double rounding = d->precision == DPT_PRECISION_BF16 ? 0x1p-8 : 0x1p-11;

    if (!narrow(d))
        return sum + 0x1p-22 * fabs(want);
    return sum + (fabs(want) + fabs(product)) * rounding + 0x1p-24;
}

/* The algorithm on copies of the arrays; D comes back, and the bias is unchanged. */
static void run(struct dpt_cuda_gemms *gemms, int which, const struct matrix *a,
                const struct matrix *b, const struct matrix *d, const struct matrix *bias)
{
    const struct matrix *const all[] = {a, b, d, bias};
    void *workspace = on_device_put(NULL, (size_t)gemms->algorithm[which].workspace);
    void *at[4] = {0};
    struct dpt_error err;

    for (int i = 0; i < 4; i++) {
        if (all[i] != NULL)
            at[i] = on_device_put(all[i]->at, bytes_of(all[i]));
    }
    if (dpt_cuda_gemms_run(gemms, which, &(struct dpt_cuda_factors){at[0], at[1], at[2], at[3]},
                           workspace, gpu.stream, &err) != DPT_OK)
        fail_msg("%s", err.text);
    for (int i = 2; i < 4; i++) {
        if (all[i] != NULL)
            on_device_get(all[i]->at, at[i], bytes_of(all[i]));
    }
    for (int i = 0; i < 4; i++)
        on_device_free(at[i]);
    on_device_free(workspace);
}

static double factor_a(const struct dpt_cuda_gemm *p, const struct matrix *a, int64_t row,
                       int64_t k)
{
    return p->a_transposed ? get(a, k, row) : get(a, row, k);
}

static double factor_b(const struct dpt_cuda_gemm *p, const struct matrix *b, int64_t k,
                       int64_t column)
{
    return p->b_transposed ? get(b, column, k) : get(b, k, column);
}

/* Every element of D. */
static void check_product(const struct dpt_cuda_gemm *p, const struct matrix *a,
                          const struct matrix *b, const struct matrix *before,
                          const struct matrix *d, const struct matrix *bias, const char *what)
{
    const bool biased = p->epilogue == DPT_CUDA_BIASED || p->epilogue == DPT_CUDA_BIASED_RELU;
    const bool relu = p->epilogue == DPT_CUDA_RELU || p->epilogue == DPT_CUDA_BIASED_RELU;

    for (int64_t row = 0; row < p->rows; row++) {
        for (int64_t column = 0; column < p->d_pitch; column++) {
            double want = 0, product, size = 0;

            if (column >= p->columns) {
                assert_true(get(d, row, column) == get(before, row, column));
                continue;
            }
            for (int64_t k = 0; k < p->depth; k++) {
                const double term = factor_a(p, a, row, k) * factor_b(p, b, k, column);

                want += term;
                size += fabs(term);
            }
            product = p->add || biased ? want : 0;
            want += (p->add ? get(before, row, column) : 0) + (biased ? get(bias, 0, column) : 0);
            size += fabs(want);
            want = relu && want < 0 ? 0 : want;
            if (!(fabs(get(d, row, column) - want) <= allowed(d, want, product, size)))
                fail_msg("%s: element %lld, %lld is %g, not %g", what, (long long)row,
                         (long long)column, get(d, row, column), want);
        }
    }
}

static struct dpt_cuda_gemm random_product(struct draw *d, int seed)
{
    struct dpt_cuda_gemm p = {
        .precision = (enum dpt_precision)(seed % DPT_PRECISIONS),
        .rows = draw_int(d, 1, 40),
        .columns = draw_int(d, 1, 40),
        .depth = draw_int(d, 1, 70),
        .a_transposed = seed & 4,
        .b_transposed = seed & 8,
        .epilogue = (enum dpt_cuda_epilogue)draw_int(d, 0, DPT_CUDA_EPILOGUES - 1),
    };

    p.a_pitch = (p.a_transposed ? p.rows : p.depth) + draw_int(d, 0, 9);
    p.b_pitch = (p.b_transposed ? p.depth : p.columns) + draw_int(d, 0, 9);
    p.d_pitch = p.columns + draw_int(d, 0, 9);
    p.wide = draw_int(d, 0, 1);
    p.add = p.epilogue == DPT_CUDA_PLAIN && draw_int(d, 0, 1);
    return p;
}

/* Any shape, pitch, order, type and epilogue; the gaps between the lines are NaN in A and B, and
 * unchanged in D; D is not read if nothing is added to it. */
static void any_product(void **state)
{
    int fused = 0;

    (void)state;
    on_device_need();
    for (int seed = 0; seed < 320; seed++) {
        struct draw draw = {(uint64_t)seed};
        struct dpt_cuda_gemm p = random_product(&draw, seed);
        const struct dpt_cuda_plan_request request = {.reproducible = seed & 16, .workspace = -1};
        const enum dpt_precision t = p.precision;
        const int most = 1 + seed % 3;
        struct matrix a = make_matrix(t, false, p.a_transposed ? p.depth : p.rows,
                                      p.a_transposed ? p.rows : p.depth, p.a_pitch, NAN, &draw);
        struct matrix b = make_matrix(t, false, p.b_transposed ? p.columns : p.depth,
                                      p.b_transposed ? p.depth : p.columns, p.b_pitch, NAN, &draw);
        struct matrix d = make_matrix(t, p.wide, p.rows, p.columns, p.d_pitch, 123, &draw);
        struct matrix bias =
            make_matrix(t, p.wide, 1, p.rows + p.columns, p.rows + p.columns, 0, &draw);
        struct matrix before = copy_matrix(&d);
        struct dpt_cuda_gemms gemms;
        struct dpt_error err;
        char what[160 + DPT_CUDA_TAG];

        for (int64_t i = 0; !p.add && i < p.rows * p.columns; i++)
            put(&d, i / p.columns, i % p.columns, NAN);
        snprintf(what, sizeof what, "seed %d, %s%s, %lld x %lld x %lld, epilogue %d", seed,
                 dpt_precision_names[t], p.wide ? " into fp32" : "", (long long)p.rows,
                 (long long)p.columns, (long long)p.depth, p.epilogue);
        if (dpt_cuda_gemms_build(&gpu.lib, gpu.matmuls, &p, &request, most, &gemms, &err) != DPT_OK)
            fail_msg("%s: %s", what, err.text);
        assert_in_range(gemms.n, 1, most);
        fused += p.epilogue != DPT_CUDA_PLAIN && gemms.epilogue == p.epilogue;
        p.epilogue = gemms.epilogue;
        snprintf(what + strlen(what), sizeof what - strlen(what), ", %s",
                 gemms.algorithm[gemms.n - 1].tag);
        run(&gemms, gemms.n - 1, &a, &b, &d, &bias);
        check_product(&p, &a, &b, &before, &d, &bias, what);
        dpt_cuda_gemms_release(&gemms);
        dpt_free(a.at), dpt_free(b.at), dpt_free(d.at), dpt_free(bias.at), dpt_free(before.at);
    }
    assert_true(fused > 0);
}

/* A layer's arrays on the device, padded with zeros, from canonical ones. */
struct layer {
    struct dpt_cuda_dense dense;
    struct dpt_shape in;
    struct matrix x, w, y, dy, dx, dw, bias;
};

/* The place of input i of the canonical [c][h][w] in a sample's row. */
static int64_t place_of(const struct layer *l, int64_t i)
{
    return i % l->dense.area * (l->dense.x_pitch / l->dense.area) + i / l->dense.area;
}

static void zero_padding(const struct layer *l, const struct matrix *m, int64_t lines, bool inputs)
{
    struct matrix zero = copy_matrix(m);

    memset(zero.at, 0, bytes_of(m));
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t i = 0; i < (inputs ? l->dense.inputs : l->dense.outputs); i++) {
            const int64_t at = inputs ? place_of(l, i) : i;

            put(&zero, line, at, get(m, line, at));
        }
    }
    memcpy(m->at, zero.at, bytes_of(m));
    dpt_free(zero.at);
}

static void run_pass(const struct layer *l, enum dpt_cuda_pass pass, const struct matrix *a,
                     const struct matrix *b, const struct matrix *d, const struct matrix *bias,
                     enum dpt_cuda_epilogue *fused)
{
    const struct dpt_cuda_plan_request request = {.reproducible = true, .workspace = -1};
    struct dpt_cuda_gemms gemms;
    struct dpt_cuda_gemm p;
    struct dpt_error err;

    dpt_cuda_dense_gemm(&l->dense, pass, &p);
    if (dpt_cuda_gemms_build(&gpu.lib, gpu.matmuls, &p, &request, 1, &gemms, &err) != DPT_OK)
        fail_msg("%s", err.text);
    *fused = gemms.epilogue;
    run(&gemms, 0, a, b, d, bias);
    dpt_cuda_gemms_release(&gemms);
}

static void near(const struct matrix *m, int64_t line, int64_t at, double want, double size,
                 const char *what, int seed)
{
    if (!(fabs(get(m, line, at) - want) <= allowed(m, want, want, size)))
        fail_msg("%s, seed %d, %s: %lld, %lld is %g, not %g", what, seed,
                 dpt_precision_names[m->precision], (long long)line, (long long)at,
                 get(m, line, at), want);
}

/* Y = X W^T + b and the ReLU of it, as the layer's canonical indices say. */
static void check_forward(const struct layer *l, enum dpt_cuda_epilogue fused, int seed)
{
    const bool biased = fused == DPT_CUDA_BIASED || fused == DPT_CUDA_BIASED_RELU;

    for (int64_t n = 0; n < l->dense.n; n++) {
        for (int64_t o = 0; o < l->dense.y_pitch; o++) {
            double want = 0, size = 0;

            for (int64_t i = 0; o < l->dense.outputs && i < l->dense.inputs; i++) {
                const double term = get(&l->x, n, place_of(l, i)) * get(&l->w, o, place_of(l, i));

                want += term;
                size += fabs(term);
            }
            want += biased && o < l->dense.outputs ? get(&l->bias, 0, o) : 0;
            size += fabs(want);
            if (fused == DPT_CUDA_RELU || fused == DPT_CUDA_BIASED_RELU)
                want = fmax(want, 0);
            near(&l->y, n, o, want, size, "forward", seed);
        }
    }
}

static void check_data(const struct layer *l, int seed)
{
    for (int64_t n = 0; n < l->dense.n; n++) {
        for (int64_t i = 0; i < l->dense.inputs; i++) {
            const int64_t at = place_of(l, i);
            double want = 0, size = 0;

            for (int64_t o = 0; o < l->dense.outputs; o++) {
                want += get(&l->dy, n, o) * get(&l->w, o, at);
                size += fabs(get(&l->dy, n, o) * get(&l->w, o, at));
            }
            near(&l->dx, n, at, want, size, "data", seed);
        }
    }
}

static void check_filter(const struct layer *l, int seed)
{
    const bool canonical = l->dense.canonical && l->dense.area == 1;

    for (int64_t o = 0; o < l->dense.outputs; o++) {
        for (int64_t i = 0; i < l->dense.inputs; i++) {
            const int64_t at = canonical ? i : place_of(l, i);
            double want = 0, size = 0;

            for (int64_t n = 0; n < l->dense.n; n++) {
                const double term = get(&l->dy, n, o) * get(&l->x, n, place_of(l, i));

                want += term;
                size += fabs(term);
            }
            near(&l->dw, o, at, want, size, "filter", seed);
        }
    }
}

static void make_layer(struct layer *l, int seed, struct draw *d)
{
    const enum dpt_precision t = (enum dpt_precision)(seed % DPT_PRECISIONS);
    struct dpt_cuda_dense *dense = &l->dense;

    l->in = (struct dpt_shape){draw_int(d, 1, 20), 1, 1, true};
    if (draw_int(d, 0, 1))
        l->in = (struct dpt_shape){draw_int(d, 1, 9), draw_int(d, 1, 4), draw_int(d, 1, 4), false};
    *dense = (struct dpt_cuda_dense){.precision = t,
                                     .n = draw_int(d, 1, 33),
                                     .inputs = dpt_shape_size(&l->in),
                                     .outputs = draw_int(d, 1, 30),
                                     .area = (int64_t)l->in.h * l->in.w,
                                     .bias = draw_int(d, 0, 1),
                                     .relu = draw_int(d, 0, 1),
                                     .canonical = draw_int(d, 0, 1)};
    dense->x_pitch = dense->area * dpt_cuda_pitch(t, l->in.c);
    dense->y_pitch = dpt_cuda_pitch(t, dense->outputs);
    l->x = make_matrix(t, false, dense->n, dense->x_pitch, dense->x_pitch, 0, d);
    l->dx = make_matrix(t, false, dense->n, dense->x_pitch, dense->x_pitch, 0, d);
    l->y = make_matrix(t, false, dense->n, dense->y_pitch, dense->y_pitch, 0, d);
    l->dy = make_matrix(t, false, dense->n, dense->y_pitch, dense->y_pitch, 0, d);
    l->w = make_matrix(t, false, dense->y_pitch, dense->x_pitch, dense->x_pitch, 0, d);
    l->bias = make_matrix(t, false, 1, dense->y_pitch, dense->y_pitch, 0, d);
    /* One line more than the product writes, to check that it is left alone. */
    if (dense->canonical && dense->area == 1)
        l->dw = make_matrix(t, true, dense->outputs + 1, dense->inputs, dense->inputs, 0, d);
    else
        l->dw = make_matrix(t, true, dense->y_pitch + 1, dense->x_pitch, dense->x_pitch, 0, d);
    zero_padding(l, &l->x, dense->n, true);
    zero_padding(l, &l->w, dense->outputs, true);
    zero_padding(l, &l->dy, dense->n, false);
    zero_padding(l, &l->bias, 1, false);
}

/* The three passes of random layers, with their padding, after images too. */
static void dense_layers(void **state)
{
    (void)state;
    on_device_need();
    for (int seed = 0; seed < 240; seed++) {
        struct draw d = {(uint64_t)seed + 5000};
        struct matrix dw;
        enum dpt_cuda_epilogue fused;
        struct layer l;

        make_layer(&l, seed, &d);
        dw = copy_matrix(&l.dw);
        run_pass(&l, DPT_CUDA_FORWARD, &l.x, &l.w, &l.y, &l.bias, &fused);
        check_forward(&l, fused, seed);
        run_pass(&l, DPT_CUDA_BACKWARD_DATA, &l.dy, &l.w, &l.dx, NULL, &fused);
        check_data(&l, seed);
        run_pass(&l, DPT_CUDA_BACKWARD_FILTER, &l.dy, &l.x, &l.dw, NULL, &fused);
        check_filter(&l, seed);
        for (int64_t i = 0; i < l.dw.length; i++)
            assert_true(get(&l.dw, l.dw.lines - 1, i) == get(&dw, l.dw.lines - 1, i));
        dpt_free(l.x.at), dpt_free(l.w.at), dpt_free(l.y.at), dpt_free(l.dy.at);
        dpt_free(l.dx.at), dpt_free(l.dw.at), dpt_free(l.bias.at), dpt_free(dw.at);
    }
}

static int begin(void **state)
{
    (void)state;
    on_device_find(DPT_CUDA_CUBLASLT);
    return 0;
}

static int end(void **state)
{
    (void)state;
    on_device_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_product),
        cmocka_unit_test(dense_layers),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
#else
#include "core/backend/tests/left_out.h"

int main(void)
{
    return left_out("built without CUDA");
}
#endif

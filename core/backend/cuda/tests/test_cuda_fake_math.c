/* What the device that runs on the CPU (fake.h) computes: kernels, convolutions by all of its plans
 * and products by all of its algorithms, each against its definition. */
#include "core/backend/cuda/tests/fake/fake_scene.h"

#if FAKE_SCENE
#include "core/backend/cuda/libraries/context.h"
#include "core/backend/cuda/libraries/matmul.h"
#include "core/backend/cuda/libraries/plan.h"
#include "core/backend/cuda/tests/fake/fake_numbers.h"
#include "core/base/rng.h"

enum { N = 1000 };

/* From -1 to 1. steps: multiples of 1/8, which all types hold, and of which fp32 sums are exact. */
static float *random_floats(uint64_t key, size_t n, bool steps)
{
    float *x = pinned(n);

    dpt_random_uniform(key, DPT_RANDOM_DROPOUT, 0, 0, n, x);
    for (size_t i = 0; i < n; i++)
        x[i] = steps ? floorf(x[i] * 17) / 8 - 1 : x[i] * 2 - 1;
    return x;
}

static int64_t below(uint64_t key, uint64_t what, int64_t n)
{
    return (int64_t)(dpt_random64(key, DPT_RANDOM_SHUFFLE, what, 0) % (uint64_t)n);
}

static void kernels_run(void **state)
{
    float *x = random_floats(1, N, false), *y = pinned(N);
    CUdeviceptr dx = device(N), dy = device(N);
    const struct dpt_cuda_act_args a = {(const void *)dx, (void *)dy, N / 4, 0};
    struct dpt_cuda_module module;

    (void)state;
    if (dpt_cuda_module_load(&lib, &module, &err) != DPT_OK)
        fail_msg("%s", err.text);
    WORKS(cuMemcpyHtoDAsync(dx, x, N * sizeof *x, one));
    assert_int_equal(dpt_cuda_launch(&lib, &module, one, DPT_CUDA_K_relu_f32, &a, &err), DPT_OK);
    WORKS(cuMemcpyDtoHAsync(y, dy, N * sizeof *y, one));
    WORKS(cuStreamSynchronize(one));
    for (int i = 0; i < N; i++)
        assert_true(y[i] == (x[i] > 0 ? x[i] : 0));
    WORKS(cuMemFree(dy));
    assert_int_not_equal(dpt_cuda_launch(&lib, &module, one, DPT_CUDA_K_relu_f32, &a, &err),
                         DPT_OK);
    WORKS(cuMemFree(dx));
    WORKS(cuMemFreeHost(x));
    WORKS(cuMemFreeHost(y));
    dpt_cuda_module_release(&lib, &module);
}

/* All halves become floats and halves again; between two of them the nearer one is taken, or the
 * even one. */
static void halves(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7c00; bits++) {
        const float f = fake_from_f16((uint16_t)bits), next = fake_from_f16((uint16_t)(bits + 1));

        assert_int_equal(fake_to_f16(f), bits);
        assert_int_equal(fake_to_f16(-f), bits | 0x8000);
        if (bits + 1 == 0x7c00)
            continue;
        assert_true(next > f);
        assert_int_equal(fake_to_f16((f + next) / 2), bits + (bits & 1));
        assert_int_equal(fake_to_f16(nextafterf((f + next) / 2, 0)), bits);
        assert_int_equal(fake_to_f16(nextafterf((f + next) / 2, 1e9f)), bits + 1);
    }
    assert_int_equal(fake_to_f16(65504), 0x7bff);
    assert_int_equal(fake_to_f16(65520), 0x7c00);
    assert_int_equal(fake_to_b16(1 + 0x1p-8f), 0x3f80);
    assert_int_equal(fake_to_b16(1 + 3 * 0x1p-8f), 0x3f82);
    assert_true(fake_to_tf32(1 + 0x1p-11f) == 1 && fake_to_tf32(1 + 0x1p-10f) == 1 + 0x1p-10f);
}

static const enum fake_type types[DPT_PRECISIONS] = {
    [DPT_PRECISION_BF16] = FAKE_B16,
    [DPT_PRECISION_FP16] = FAKE_F16,
};

/* Floats of the host as a precision's type on the device, and back. */
static CUdeviceptr upload(const float *x, size_t n, enum fake_type type)
{
    CUdeviceptr at = device(n);
    float *as = pinned(n);

    for (size_t i = 0; i < n; i++)
        fake_put(type, as, i, x[i]);
    to_device(at, as, n * fake_size(type));
    WORKS(cuMemFreeHost(as));
    return at;
}

static void download(float *x, CUdeviceptr at, size_t n, enum fake_type type)
{
    float *as = pinned(n);

    to_host(as, at, n * fake_size(type));
    for (size_t i = 0; i < n; i++)
        x[i] = fake_get(type, as, i);
    WORKS(cuMemFreeHost(as));
}

/* A window over a few pixels, at random. */
static struct dpt_cuda_conv random_conv(uint64_t key, enum dpt_precision precision)
{
    const int64_t pitch = types[precision] == FAKE_F32 ? 4 : 8;
    const bool grouped = below(key, 0, 4) == 0;
    struct dpt_cuda_conv c = {
        .precision = precision,
        .bias = below(key, 1, 2),
        .relu = below(key, 2, 2),
        .x = {1 + below(key, 3, 3), pitch * (1 + below(key, 4, 2)), 0, 0},
    };

    c.w[0] = pitch * (1 + below(key, 5, 2));
    c.w[1] = grouped ? c.x[1] / 2 : c.x[1];
    c.y[0] = c.x[0];
    c.y[1] = c.w[0];
    c.x_pitch = c.x[1] + pitch * below(key, 6, 2);
    c.y_pitch = c.y[1] + pitch * below(key, 7, 2);
    for (int a = 0; a < 2; a++) {
        const uint64_t k = key * 16 + (uint64_t)a;

        c.x[2 + a] = 4 + below(k, 8, 4);
        c.w[2 + a] = 1 + below(k, 9, 3);
        c.stride[a] = 1 + below(k, 10, 2);
        c.dilation[a] = 1 + below(k, 11, 2);
        c.before[a] = below(k, 12, 3);
        c.after[a] = below(key, 13, 3) == 0 ? below(k, 14, 3) : c.before[a];
        if (c.before[a] + c.after[a] + c.x[2 + a] <= (c.w[2 + a] - 1) * c.dilation[a])
            c.before[a] = c.after[a] = 2;
        c.y[2 + a] =
            (c.x[2 + a] + c.before[a] + c.after[a] - (c.w[2 + a] - 1) * c.dilation[a] - 1) /
                c.stride[a] +
            1;
    }
    return c;
}

/* The result of a pass, by its definition: every product of x, w and y that belong together is
 * added to the third. */
static void convolve(const struct dpt_cuda_conv *c, enum dpt_cuda_pass pass, const float *x,
                     const float *w, const float *y, const float *bias, double *out)
{
    const int64_t each = c->w[0] / (c->x[1] / c->w[1]), taps = c->w[2] * c->w[3];

    for (int64_t i = 0; i < c->y[0] * c->y[2] * c->y[3] * c->y[1] * taps * c->w[1]; i++) {
        const int64_t ch = i % c->w[1], tap = i / c->w[1] % taps, k = i / c->w[1] / taps % c->y[1];
        const int64_t pixel = i / c->w[1] / taps / c->y[1], q = pixel % c->y[3];
        const int64_t p = pixel / c->y[3] % c->y[2], n = pixel / c->y[3] / c->y[2];
        const int64_t h = p * c->stride[0] - c->before[0] + tap / c->w[3] * c->dilation[0];
        const int64_t v = q * c->stride[1] - c->before[1] + tap % c->w[3] * c->dilation[1];
        const int64_t at_x =
            ((n * c->x[2] + h) * c->x[3] + v) * c->x_pitch + k / each * c->w[1] + ch;
        const int64_t at_w = (k * taps + tap) * c->w[1] + ch, at_y = pixel * c->y_pitch + k;

        if (h < 0 || v < 0 || h >= c->x[2] || v >= c->x[3])
            continue;
        if (pass == DPT_CUDA_FORWARD)
            out[at_y] += (double)x[at_x] * w[at_w];
        else if (pass == DPT_CUDA_BACKWARD_DATA)
            out[at_x] += (double)w[at_w] * y[at_y];
        else
            out[at_w] += (double)x[at_x] * y[at_y];
    }
    for (int64_t i = 0; bias != NULL && i < c->y[0] * c->y[2] * c->y[3] * c->y[1]; i++) {
        double *to = &out[i / c->y[1] * c->y_pitch + i % c->y[1]];

        *to += bias[i % c->y[1]];
    }
}

/* Arrays of a convolution: x, w, y, bias on the host and on the device. */
struct arrays {
    size_t n[4];
    float *host[4];
    void *at[DPT_CUDA_ARRAYS];
    double *wanted;
    CUdeviceptr workspace;
};

enum { WORKSPACE = 1 << 16 };

static const int results[DPT_CUDA_PASSES] = {DPT_CUDA_Y, DPT_CUDA_X, DPT_CUDA_W};

static void make_arrays(const struct dpt_cuda_conv *c, uint64_t key, struct arrays *a)
{
    a->n[0] = (size_t)(c->x[0] * c->x[2] * c->x[3] * c->x_pitch);
    a->n[1] = (size_t)(c->w[0] * c->w[1] * c->w[2] * c->w[3]);
    a->n[2] = (size_t)(c->y[0] * c->y[2] * c->y[3] * c->y_pitch);
    a->n[3] = (size_t)c->y[1];
    for (int i = 0; i < 4; i++) {
        a->host[i] = random_floats(key * 4 + (uint64_t)i, a->n[i], true);
        a->at[i] = (void *)upload(a->host[i], a->n[i], types[c->precision]);
    }
    WORKS(cuMemAlloc(&a->workspace, WORKSPACE));
}

static void free_arrays(struct arrays *a)
{
    for (int i = 0; i < 4; i++) {
        WORKS(cuMemFreeHost(a->host[i]));
        WORKS(cuMemFree((CUdeviceptr)a->at[i]));
    }
    WORKS(cuMemFree(a->workspace));
}

static int run_plans(const struct dpt_cuda_conv *c, enum dpt_cuda_pass pass, uint64_t key)
{
    static const double tolerances[DPT_PRECISIONS] = {
        [DPT_PRECISION_BF16] = 0x1p-8, [DPT_PRECISION_FP16] = 0x1p-11};
    const struct dpt_cuda_device on = {.handle = handle};
    const struct dpt_cuda_plan_request request = {.workspace = WORKSPACE};
    const int r = results[pass];
    struct dpt_cuda_plans plans;
    struct arrays a;
    float *got;
    int n;

    make_arrays(c, key, &a);
    if (dpt_cuda_plans_build(&lib, &on, c, pass, &request, 16, &plans, &err) != DPT_OK)
        fail_msg("%s", err.text);
    a.wanted = calloc(a.n[r], sizeof *a.wanted);
    got = calloc(a.n[r], sizeof *got);
    convolve(c, pass, a.host[0], a.host[1], a.host[2], plans.bias ? a.host[3] : NULL, a.wanted);
    n = plans.n;
    for (int i = 0; i < n; i++) {
        void *at[DPT_CUDA_ARRAYS] = {a.at[0], a.at[1], a.at[2], plans.bias ? a.at[3] : NULL};
        cudnnBackendDescriptor_t bound;

        WORKS(
            cuMemsetD8Async((CUdeviceptr)a.at[r], 0, a.n[r] * fake_size(types[c->precision]), one));
        assert_int_equal(dpt_cuda_plan_bind(&plans, at, (void *)a.workspace, &bound, &err), DPT_OK);
        assert_int_equal(lib.cudnnBackendExecute(handle, plans.plan[i].plan, bound),
                         CUDNN_STATUS_SUCCESS);
        WORKS(cuStreamSynchronize(one));
        download(got, (CUdeviceptr)a.at[r], a.n[r], types[c->precision]);
        for (size_t k = 0; k < a.n[r]; k++) {
            const double w = plans.relu && a.wanted[k] < 0 ? 0 : a.wanted[k];

            if (!(fabs(got[k] - w) <= tolerances[c->precision] * fabs(w)))
                fail_msg("case %d, %s: element %zu is %g, not %g", (int)key, plans.plan[i].tag, k,
                         got[k], w);
        }
    }
    free(a.wanted);
    free(got);
    dpt_cuda_plans_release(&plans);
    free_arrays(&a);
    return n;
}

static void convolutions(void **state)
{
    int plans = 0;

    (void)state;
    for (int i = 0; i < 60 * DPT_CUDA_PASSES; i++) {
        const enum dpt_precision precision = i / DPT_CUDA_PASSES % DPT_PRECISIONS;
        const struct dpt_cuda_conv c = random_conv((uint64_t)i, precision);

        plans += run_plans(&c, i % DPT_CUDA_PASSES, (uint64_t)i);
    }
    print_message("%d plans\n", plans);
    assert_true(plans > 240);
}

static const struct dpt_cuda_conv small_conv = {.x = {2, 8, 9, 9},
                                                .w = {8, 8, 3, 3},
                                                .y = {2, 8, 9, 9},
                                                .x_pitch = 8,
                                                .y_pitch = 8,
                                                .before = {1, 1},
                                                .after = {1, 1},
                                                .stride = {1, 1},
                                                .dilation = {1, 1}};

/* Sums in another order have other bits: a plan that is built again repeats its own; one that is
 * noted as not deterministic does not. */
static void engines_have_their_bits(void **state)
{
    const struct dpt_cuda_conv c = small_conv;
    const struct dpt_cuda_device on = {.handle = handle};
    const struct dpt_cuda_plan_request request = {.workspace = WORKSPACE};
    float *x = random_floats(1, 2 * 81 * 8, false), *w = random_floats(2, 8 * 72, false);
    enum { OUT = 2 * 81 * 8, PLANS = 16, RUNS = 8 };
    static float y[PLANS][OUT], again[OUT];
    struct dpt_cuda_plans plans;
    CUdeviceptr workspace;
    void *at[DPT_CUDA_ARRAYS] = {0};

    (void)state;
    WORKS(cuMemAlloc(&workspace, WORKSPACE));
    at[DPT_CUDA_X] = (void *)upload(x, OUT, FAKE_F32);
    at[DPT_CUDA_W] = (void *)upload(w, 8 * 72, FAKE_F32);
    at[DPT_CUDA_Y] = (void *)device(OUT);
    assert_int_equal(
        dpt_cuda_plans_build(&lib, &on, &c, DPT_CUDA_FORWARD, &request, PLANS, &plans, &err),
        DPT_OK);
    assert_in_range(plans.n, 3, PLANS);
    for (int i = 0; i < plans.n; i++) {
        const bool steady = !(plans.plan[i].notes >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1);
        cudnnBackendDescriptor_t bound;
        bool same = true;

        assert_int_equal(dpt_cuda_plan_bind(&plans, at, (void *)workspace, &bound, &err), DPT_OK);
        for (int run = 0; run < RUNS; run++) {
            assert_int_equal(lib.cudnnBackendExecute(handle, plans.plan[i].plan, bound),
                             CUDNN_STATUS_SUCCESS);
            WORKS(cuStreamSynchronize(one));
            download(again, (CUdeviceptr)at[DPT_CUDA_Y], OUT, FAKE_F32);
            if (run == 0)
                memcpy(y[i], again, sizeof again);
            /* The bits. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
            same &= memcmp(y[i], again, sizeof again) == 0;
        }
        assert_true(same == steady);
        for (int other = 0; steady && other < i; other++) {
            if (!(plans.plan[other].notes >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1))
                assert_memory_not_equal(y[i], y[other], sizeof again);
        }
    }
    dpt_cuda_plans_release(&plans);
    for (int i = 0; i < 3; i++)
        WORKS(cuMemFree((CUdeviceptr)at[i]));
    WORKS(cuMemFree(workspace));
    WORKS(cuMemFreeHost(x));
    WORKS(cuMemFreeHost(w));
}

/* Every algorithm for D = A B + D and its epilogue, by the definition. */
static void gemm(uint64_t key, enum dpt_precision precision)
{
    static const enum dpt_cuda_epilogue epilogues[] = {DPT_CUDA_PLAIN, DPT_CUDA_BIASED,
                                                       DPT_CUDA_RELU, DPT_CUDA_BIASED_RELU};
    struct dpt_cuda_gemm p = {
        .precision = precision,
        .rows = 1 + below(key, 0, 20),
        .columns = 1 + below(key, 1, 20),
        .depth = 1 + below(key, 2, 40),
        .a_transposed = below(key, 3, 2),
        .b_transposed = below(key, 4, 2),
        .wide = below(key, 5, 2),
        .epilogue = epilogues[below(key, 6, 4)],
    };
    const struct dpt_cuda_plan_request request = {.reproducible = below(key, 7, 2),
                                                  .workspace = WORKSPACE};
    const enum fake_type type = types[precision], out = p.wide ? FAKE_F32 : type;
    struct dpt_cuda_gemms made;
    struct dpt_cuda_factors at;
    float *a, *b, *d, *bias, *got;
    size_t n[4];
    CUdeviceptr workspace;

    p.add = p.epilogue == DPT_CUDA_PLAIN;
    p.a_pitch = (p.a_transposed ? p.rows : p.depth) + below(key, 8, 9);
    p.b_pitch = (p.b_transposed ? p.depth : p.columns) + below(key, 9, 9);
    p.d_pitch = p.columns + below(key, 10, 9);
    n[0] = (size_t)((p.a_transposed ? p.depth : p.rows) * p.a_pitch);
    n[1] = (size_t)((p.b_transposed ? p.columns : p.depth) * p.b_pitch);
    n[2] = (size_t)(p.rows * p.d_pitch);
    n[3] = (size_t)(p.rows > p.columns ? p.rows : p.columns);
    a = random_floats(key * 4, n[0], true);
    b = random_floats(key * 4 + 1, n[1], true);
    d = random_floats(key * 4 + 2, n[2], true);
    bias = random_floats(key * 4 + 3, n[3], true);
    got = calloc(n[2] + n[3], sizeof *got);
    WORKS(cuMemAlloc(&workspace, WORKSPACE));
    if (dpt_cuda_gemms_build(&lib, gemms, &p, &request, 16, &made, &err) != DPT_OK)
        fail_msg("%s", err.text);
    for (int which = 0; which < made.n; which++) {
        at = (struct dpt_cuda_factors){(void *)upload(a, n[0], type), (void *)upload(b, n[1], type),
                                       (void *)upload(d, n[2], out),
                                       (void *)upload(bias, n[3], out)};
        if (dpt_cuda_gemms_run(&made, which, &at, (void *)workspace, one, &err) != DPT_OK)
            fail_msg("%s", err.text);
        WORKS(cuStreamSynchronize(one));
        download(got, (CUdeviceptr)at.d, n[2], out);
        for (int64_t i = 0; i < p.rows * p.columns; i++) {
            const int64_t r = i / p.columns, c = i % p.columns;
            double w = p.add ? d[r * p.d_pitch + c] : 0;

            for (int64_t k = 0; k < p.depth; k++)
                w += (double)a[p.a_transposed ? k * p.a_pitch + r : r * p.a_pitch + k] *
                     b[p.b_transposed ? c * p.b_pitch + k : k * p.b_pitch + c];
            if (made.epilogue == DPT_CUDA_BIASED || made.epilogue == DPT_CUDA_BIASED_RELU)
                w += bias[c];
            if ((made.epilogue == DPT_CUDA_RELU || made.epilogue == DPT_CUDA_BIASED_RELU) && w < 0)
                w = 0;
            if (!(fabs(got[r * p.d_pitch + c] - w) <= (out == FAKE_F32 ? 0 : fabs(w) * 0x1p-7)))
                fail_msg("case %d, %s: [%d][%d] is %g, not %g", (int)key, made.algorithm[which].tag,
                         (int)r, (int)c, got[r * p.d_pitch + c], w);
        }
        WORKS(cuMemFree((CUdeviceptr)at.a));
        WORKS(cuMemFree((CUdeviceptr)at.b));
        WORKS(cuMemFree((CUdeviceptr)at.d));
        WORKS(cuMemFree((CUdeviceptr)at.bias));
    }
    dpt_cuda_gemms_release(&made);
    WORKS(cuMemFree(workspace));
    WORKS(cuMemFreeHost(a));
    WORKS(cuMemFreeHost(b));
    WORKS(cuMemFreeHost(d));
    WORKS(cuMemFreeHost(bias));
    free(got);
}

static void matrix_products(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        gemm((uint64_t)i, i % DPT_PRECISIONS);
}

/* --- libraries that have more to say than there is room for ----------------------------------- */

enum { MANY = 5000, UNKNOWN_NOTE = 40 };

static __typeof__(lib.cudnnBackendGetAttribute) get_attribute;
static __typeof__(lib.cublasLtMatmulAlgoGetHeuristic) get_heuristic;

/* A later cuDNN may have more notes than this header knows, and more configurations than are asked
 * for. The count is of all that exist, and as many are written as the array holds. */
static cudnnStatus_t get_many(cudnnBackendDescriptor_t const descriptor,
                              cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                              int64_t most, int64_t *count, void *to)
{
    const cudnnStatus_t result = get_attribute(descriptor, name, type, most, count, to);
    int *notes = to; /* of both kinds */

    if (result != CUDNN_STATUS_SUCCESS)
        return result;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        for (int64_t n = *count, done = n; done < most; done += n)
            get_attribute(descriptor, name, type, most - done, &n,
                          (cudnnBackendDescriptor_t *)to + done);
        *count = MANY;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE ||
               name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE) {
        for (int64_t i = *count; i < most; i++)
            notes[i] = UNKNOWN_NOTE;
        *count = MANY;
    }
    return result;
}

static cublasStatus_t offer_many(cublasLtHandle_t to, cublasLtMatmulDesc_t operation,
                                 cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                 cublasLtMatmulPreference_t preference, int most,
                                 cublasLtMatmulHeuristicResult_t *results, int *n)
{
    const cublasStatus_t status =
        get_heuristic(to, operation, a, b, c, d, preference, most, results, n);

    for (int i = *n; i < most; i++)
        results[i].state = CUBLAS_STATUS_NOT_SUPPORTED;
    *n = MANY;
    return status;
}

static void counts_beyond_the_arrays(void **state)
{
    const struct dpt_cuda_conv c = small_conv;
    const struct dpt_cuda_gemm p = {
        .rows = 4, .columns = 4, .depth = 4, .a_pitch = 4, .b_pitch = 4, .d_pitch = 4};
    const struct dpt_cuda_device on = {.handle = handle};
    const struct dpt_cuda_plan_request request = {.workspace = WORKSPACE};
    struct dpt_cuda_gemms few, many;
    struct dpt_cuda_plans plans, again;

    (void)state;
    assert_int_equal(
        dpt_cuda_plans_build(&lib, &on, &c, DPT_CUDA_FORWARD, &request, MANY, &plans, &err),
        DPT_OK);
    assert_int_equal(dpt_cuda_gemms_build(&lib, gemms, &p, &request, MANY, &few, &err), DPT_OK);
    get_attribute = lib.cudnnBackendGetAttribute;
    get_heuristic = lib.cublasLtMatmulAlgoGetHeuristic;
    lib.cudnnBackendGetAttribute = get_many;
    lib.cublasLtMatmulAlgoGetHeuristic = offer_many;
    assert_int_equal(
        dpt_cuda_plans_build(&lib, &on, &c, DPT_CUDA_FORWARD, &request, MANY, &again, &err),
        DPT_OK);
    assert_int_equal(dpt_cuda_gemms_build(&lib, gemms, &p, &request, MANY, &many, &err), DPT_OK);
    lib.cudnnBackendGetAttribute = get_attribute;
    lib.cublasLtMatmulAlgoGetHeuristic = get_heuristic;
    assert_int_equal(again.n, plans.n);
    assert_int_equal(many.n, few.n);
    for (int i = 0; i < plans.n; i++) {
        assert_string_equal(again.plan[i].tag, plans.plan[i].tag);
        assert_int_equal(again.plan[i].notes, plans.plan[i].notes);
    }
    dpt_cuda_plans_release(&plans);
    dpt_cuda_plans_release(&again);
    dpt_cuda_gemms_release(&few);
    dpt_cuda_gemms_release(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_run),     cmocka_unit_test(halves),
        cmocka_unit_test(convolutions),    cmocka_unit_test(engines_have_their_bits),
        cmocka_unit_test(matrix_products), cmocka_unit_test(counts_beyond_the_arrays),
    };

    return cmocka_run_group_tests(tests, fake_scene_begin, fake_scene_end);
}
#else
FAKE_SCENE_WITHOUT
#endif

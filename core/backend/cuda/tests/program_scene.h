/*
 * program_scene: programs of the backend `cuda` beside those of `ref`, for tests. They use the fake
 * device's libraries, or a real device's with DPT_CUDA_TESTS=device. To be included once in a
 * program, whose main calls cuda_begin first.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_PROGRAM_SCENE_H
#define DPT_BACKEND_CUDA_TESTS_PROGRAM_SCENE_H

#include "core/backend/tests/compare.h"

#include "core/backend/cuda/tests/begin.h"

/* --- precisions ------------------------------------------------------------------------------- */

/* How far numbers may differ from those of ref, relative to their norm; in layers that choose
 * (maxima, signs), rounding now and then changes a choice. */
struct precision {
    const char *name;
    double outputs, gradients, loss;
};

static inline const struct precision *precision_of(const struct scene *s)
{
    static const struct precision precisions[DPT_PRECISIONS] = {
        [DPT_PRECISION_FP32] = {"fp32", 1e-5, 1e-4, 1e-5},
        [DPT_PRECISION_TF32] = {"tf32", 1e-2, 0.15, 1e-2},
        [DPT_PRECISION_BF16] = {"bf16", 6e-2, 0.8, 8e-2},
        [DPT_PRECISION_FP16] = {"fp16", 1e-2, 0.15, 1e-2},
    };
    /* A real device may use Winograd's algorithm. */
    static const struct precision real_fp32 = {"fp32", 2e-4, 2e-3, 1e-4};

    return s->spec.precision == DPT_PRECISION_FP32 && real_device()
               ? &real_fp32
               : &precisions[s->spec.precision];
}

/* --- programs --------------------------------------------------------------------------------- */

static inline void infer(const struct dpt_backend *backend, const struct scene *s, void *program,
                         float *y, struct dpt_metric_sums *metric_sums)
{
    struct dpt_error err;

    if (backend->infer(program, 0, &s->batch.batch, s->params, y, metric_sums, &err) != DPT_OK)
        fail_msg("%s: %s: %s", s->text, backend->name, err.text);
}

/* --- comparing -------------------------------------------------------------------------------- */

static inline double assert_device_gradients(const struct scene *s, const float *a, const float *b,
                                             double by)
{
    char what[40];

    snprintf(what, sizeof what, "%s: gradient", precision_of(s)->name);
    return assert_near_gradients(s, a, b,
                                 by > 1e-3          ? 3e-2
                                 : has_batchnorm(s) ? 5e-3
                                                    : 1e-3,
                                 by, what);
}

static inline void assert_device_sums(const struct scene *s, const struct dpt_metric_sums *a,
                                      const struct dpt_metric_sums *b)
{
    assert_near_sums(s, a, b, precision_of(s)->loss * (fabs(b->loss) + (double)b->samples));
}

static inline void assert_gaps_stay(const struct scene *s, const float *gradient)
{
    for (int32_t t = 0; t < s->graph.n_tensors; t++) {
        const struct dpt_tensor *tensor = &s->graph.tensors[t];
        const int64_t end = net_tensor_end(tensor);

        for (int64_t i = tensor->offset + tensor->count; i < end; i++)
            assert_true(gradient[i] == 7);
    }
}

/* Outputs, metric sums and gradients are those of ref; with `add` they are added; what lies between
 * tensors stays. loss_scale: of fp16. Returns how far the gradients are. */
static inline double compare(const struct scene *s, float loss_scale)
{
    const double by = precision_of(s)->gradients;
    const size_t n = s->outputs * (size_t)s->batch.batch.count;
    struct dpt_metric_sums wanted = {0}, got = {0};
    void *ref = open_program(&dpt_backend_ref, s), *gpu = open_program(cuda, s);
    float *y_ref = dpt_alloc_array(n, sizeof *y_ref), *y = dpt_alloc_array(n, sizeof *y);
    float *g_ref = new_arena(s), *g = new_arena(s);
    struct dpt_error err;
    double far;

    if (s->spec.precision == DPT_PRECISION_FP16)
        assert_int_equal(cuda->scale(gpu, loss_scale, &err), DPT_OK);
    infer(&dpt_backend_ref, s, ref, y_ref, &wanted);
    infer(cuda, s, gpu, y, &got);
    far = distance(y, y_ref, n, 1e-2);
    if (!(far < precision_of(s)->outputs))
        fail_msg("%s: %s: outputs differ by %g", s->text, precision_of(s)->name, far);
    assert_device_sums(s, &got, &wanted);
    for (int64_t i = 0; i < s->graph.arena; i++)
        g[i] = 7;
    train(&dpt_backend_ref, s, ref, 0, false, g_ref, &wanted);
    train(cuda, s, gpu, 0, false, g, &got);
    assert_device_sums(s, &got, &wanted);
    far = assert_device_gradients(s, g, g_ref, by);
    train(&dpt_backend_ref, s, ref, 0, true, g_ref, &wanted);
    train(cuda, s, gpu, 0, true, g, &got);
    assert_device_gradients(s, g, g_ref, by);
    assert_gaps_stay(s, g);
    assert_true(cuda->bytes(gpu) > 0);
    dpt_backend_ref.close(ref);
    cuda->close(gpu);
    dpt_free(y_ref), dpt_free(y), dpt_free(g_ref), dpt_free(g);
    return far;
}

#endif

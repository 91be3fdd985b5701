/*
 * compare: what tests share that hold one backend against another over scenes.
 */
#ifndef DPT_BACKEND_TESTS_COMPARE_H
#define DPT_BACKEND_TESTS_COMPARE_H

#include "core/backend/backend.h"
#include "core/backend/tests/scene.h"

static inline void *open_program(const struct dpt_backend *backend, const struct scene *s)
{
    struct dpt_error err;
    void *program;

    if (backend->open(&s->spec, &program, &err) != DPT_OK)
        fail_msg("%s: %s: %s", s->text, backend->name, err.text);
    for (int worker = 0; worker < s->spec.threads; worker++)
        assert_int_equal(backend->refresh(program, worker, s->params, &err), DPT_OK);
    return program;
}

static inline float *new_arena(const struct scene *s)
{
    float *arena = dpt_alloc_array((size_t)s->graph.arena, sizeof *arena);

    assert_non_null(arena);
    return arena;
}

static inline void train(const struct dpt_backend *backend, const struct scene *s, void *program,
                         int worker, bool add, float *gradient, struct dpt_metric_sums *metric_sums)
{
    struct dpt_error err;

    if (backend->train(program, worker, &s->batch.batch, s->params, gradient, add, metric_sums,
                       &err) != DPT_OK)
        fail_msg("%s: %s: %s", s->text, backend->name, err.text);
}

/* Relative to the larger norm; `floor` stands for what rounding leaves where all cancels. */
static inline double distance(const float *a, const float *b, size_t n, double floor)
{
    double difference = 0, norm = floor * floor;

    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* Tensor by tensor, so that a small one does not hide behind a large one. */
static inline void assert_same_gradients(const struct scene *s, const float *a, const float *b,
                                         const char *what)
{
    /* What lies in front of a batch norm may have a gradient of zero but for rounding: it takes the
     * mean away again. And what rounding changes in one sample it spreads over the others. */
    const bool spread = s->graph.arena > s->graph.floats;
    const double floor = (spread ? 1e-2 : 1e-3) * sqrt((double)s->batch.batch.count);
    const double most = spread ? 5e-4 : 1e-4;

    for (int32_t t = 0; t < s->graph.n_tensors; t++) {
        const struct dpt_tensor *tensor = &s->graph.tensors[t];
        const double far =
            distance(a + tensor->offset, b + tensor->offset, (size_t)tensor->count, floor);

        if (!(far < most))
            fail_msg("%s: %s of %s differs by %g", s->text, what, tensor->name, far);
    }
}

static inline void assert_same_tally(const struct scene *s, const struct dpt_metric_sums *a,
                                     const struct dpt_metric_sums *b)
{
    if (!(fabs(a->loss - b->loss) <= 1e-5 * (fabs(b->loss) + 1)) || a->samples != b->samples)
        fail_msg("%s: loss %.9g of %d instead of %.9g of %d", s->text, a->loss, (int)a->samples,
                 b->loss, (int)b->samples);
    /* Where the best two outputs are equal but for rounding, either may win. */
    if (fabs(a->correct - b->correct) > 1)
        fail_msg("%s: %d correct instead of %d", s->text, (int)a->correct, (int)b->correct);
}

#endif

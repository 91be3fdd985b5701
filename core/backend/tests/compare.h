/*
 * compare: measures how far the results of two backends differ over a scene.
 */
#ifndef DPT_BACKEND_TESTS_COMPARE_H
#define DPT_BACKEND_TESTS_COMPARE_H

#include "core/backend/tests/scene.h"

/* The gradient that a batch norm passes back has a mean of zero, so that the gradient before it may
 * be zero but for rounding; and a batch norm spreads what rounding changes in one sample over the
 * others. */
static inline bool has_batchnorm(const struct scene *s)
{
    return s->graph.arena > s->graph.floats;
}

/* Compares tensor by tensor, so that a large tensor does not hide errors of a small one: each
 * differs by less than `most` times its norm, which counts as `floor` for each sample at least.
 * Returns the largest difference. */
static inline double assert_near_gradients(const struct scene *s, const float *a, const float *b,
                                           double floor, double most, const char *what)
{
    double largest = 0;

    for (int32_t t = 0; t < s->graph.n_tensors; t++) {
        const struct dpt_tensor *tensor = &s->graph.tensors[t];
        const double far = distance(a + tensor->offset, b + tensor->offset, (size_t)tensor->count,
                                    floor * sqrt((double)s->batch.batch.count));

        if (!(far < most))
            fail_msg("%s: %s of %s differs by %g", s->text, what, tensor->name, far);
        largest = far > largest ? far : largest;
    }
    return largest;
}

/* most: the largest difference of the losses. */
static inline void assert_near_sums(const struct scene *s, const struct dpt_metric_sums *a,
                                    const struct dpt_metric_sums *b, double most)
{
    if (!(fabs(a->loss - b->loss) <= most) || a->samples != b->samples)
        fail_msg("%s: loss %.9g of %d instead of %.9g of %d", s->text, a->loss, (int)a->samples,
                 b->loss, (int)b->samples);
    /* If the best two outputs are equal but for rounding, either may win. */
    if (s->spec.precision == DPT_PRECISION_FP32 && fabs(a->correct - b->correct) > 1)
        fail_msg("%s: %d correct instead of %d", s->text, (int)a->correct, (int)b->correct);
}

/* --- backends of the CPU, in fp32 ------------------------------------------------------------- */

static inline void assert_same_gradients(const struct scene *s, const float *a, const float *b,
                                         const char *what)
{
    assert_near_gradients(s, a, b, has_batchnorm(s) ? 1e-2 : 1e-3, has_batchnorm(s) ? 5e-4 : 1e-4,
                          what);
}

static inline void assert_same_sums(const struct scene *s, const struct dpt_metric_sums *a,
                                    const struct dpt_metric_sums *b)
{
    assert_near_sums(s, a, b, 1e-5 * (fabs(b->loss) + 1));
}

#endif

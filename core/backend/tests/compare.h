/*
 * compare: how far apart backends of the CPU may be over a scene.
 */
#ifndef DPT_BACKEND_TESTS_COMPARE_H
#define DPT_BACKEND_TESTS_COMPARE_H

#include "core/backend/tests/scene.h"

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

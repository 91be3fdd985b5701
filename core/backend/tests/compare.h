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

/* --- sums of several micro-batches ------------------------------------------------------------ */

/* Trains the micro-batches in turn, `times` times: the program adds their gradients, or, if
 * `keeps`, it may keep what they are made of until it writes, or adds, their sum. Returns whether
 * it does. */
static inline bool train_in_turn(const struct dpt_backend *backend, const struct scene *s,
                                 const struct owned_batch *data, int32_t n, int32_t times,
                                 bool keeps, float *gradient)
{
    struct scene with = *s;
    void *program;
    int32_t adds;

    with.spec.adds = keeps ? n : 0;
    program = open_program(backend, &with);
    adds = keeps && backend->adds != NULL ? backend->adds(program) : 1;
    assert_true(adds == 1 || adds == n);
    for (int64_t i = 0; i < s->graph.arena && keeps; i++)
        gradient[i] = NAN;
    for (int32_t k = 0; k < times * n; k++) {
        struct dpt_metric_sums sums = {0};

        with.batch = data[k % n];
        with.batch.batch.before = keeps ? k % n : 0;
        with.batch.batch.more = keeps && k % n + 1 < n;
        train(backend, &with, program, 0, k >= n || (k > 0 && !keeps), gradient, &sums);
    }
    backend->close(program);
    return adds > 1;
}

/* Gradients that the program sums, `times` times the same, have the bits of gradients added one
 * after the other. Returns whether it keeps any. */
static inline bool assert_sums_as_each(const struct dpt_backend *backend, const struct scene *s,
                                       uint64_t seed, int32_t times)
{
    struct owned_batch data[5];
    struct draw d = {seed + 9000};
    const int32_t n = draw_int(&d, 2, 5);
    float *each = new_arena(s), *sum = new_arena(s);
    bool keeps;

    for (int32_t k = 0; k < n; k++)
        batch_fill(&data[k], &s->graph, s->spec.micro,
                   k + 1 < n ? s->spec.micro : draw_int(&d, 1, s->spec.micro), true, &d);
    train_in_turn(backend, s, data, n, times, false, each);
    keeps = train_in_turn(backend, s, data, n, times, true, sum);
    for (int32_t t = 0; t < s->graph.n_tensors; t++) {
        const struct dpt_tensor *tensor = &s->graph.tensors[t];
        const size_t count = (size_t)tensor->count;

        if (memcmp(each + tensor->offset, sum + tensor->offset, count * sizeof *sum) != 0)
            fail_msg("%s, %d micro-batches of %d: gradient of %s differs by %g", s->text, n,
                     s->spec.micro, tensor->name,
                     distance(sum + tensor->offset, each + tensor->offset, count, 1e-3));
    }
    for (int32_t k = 0; k < n; k++)
        batch_release(&data[k]);
    dpt_free(each);
    dpt_free(sum);
    return keeps;
}

/* --- what `train` says while it goes back ----------------------------------------------------- */

struct passing {
    const struct scene *scene;
    const float *whole, *gradient;
    int32_t node; /* the last one that was passed */
    size_t from;  /* its learned tensors, and those after it, begin here */
};

/* The learned tensors from a float on are as they are in the end. */
static inline void assert_written(const struct passing *p, size_t from)
{
    const struct dpt_graph *graph = &p->scene->graph;

    for (int32_t t = 0; t < graph->n_tensors; t++) {
        const struct dpt_tensor *tensor = &graph->tensors[t];

        if (!tensor->state && !tensor->frozen && (size_t)tensor->offset >= from)
            assert_memory_equal(p->gradient + tensor->offset, p->whole + tensor->offset,
                                (size_t)tensor->count * sizeof *p->whole);
    }
}

static inline void pass_node(void *arg, int32_t node)
{
    struct passing *p = arg;

    assert_true(node < p->node);
    p->node = node;
    p->from = dpt_graph_from(&p->scene->graph, node, false);
    assert_written(p, p->from);
}

/* What the batch passes is written, and in the end all is that learns. */
static inline void assert_passes(const struct dpt_backend *backend, const struct scene *s,
                                 void *program)
{
    float *whole = new_arena(s), *gradient = new_arena(s);
    struct passing p = {s, whole, gradient, s->graph.n_nodes + 1, (size_t)s->graph.floats};
    struct scene asking = *s;
    struct dpt_metric_sums sums = {0};

    train(backend, s, program, 0, false, whole, &sums);
    for (int64_t i = 0; i < s->graph.arena; i++)
        gradient[i] = 7;
    asking.batch.batch.passed = pass_node;
    asking.batch.batch.arg = &p;
    train(backend, &asking, program, 0, false, gradient, &sums);
    assert_written(&p, 0);
    for (int32_t t = 0; t < s->graph.n_tensors; t++) /* none learns before the last node passed */
        assert_true(s->graph.tensors[t].state || s->graph.tensors[t].frozen ||
                    (size_t)s->graph.tensors[t].offset >= p.from);
    dpt_free(whole);
    dpt_free(gradient);
}

#endif

/*
 * folding: convolutions with batch norms after them, for programs that evaluate and fold the norms
 * into the weights. To be included once in a program.
 */
#ifndef DPT_BACKEND_TESTS_FOLDING_H
#define DPT_BACKEND_TESTS_FOLDING_H

#include "core/backend/tests/scene.h"

enum { FOLDING = 6, FOLDING_SAMPLES = 3, FOLDING_OUTPUTS = 7 };

struct folding {
    struct scene scene;
    int32_t convs[FOLDING], norms[FOLDING], pool;
};

/* Kernels differ. The last two norms are not folded: another layer reads the convolution's values,
 * or the norm reads a sum. */
static inline void folding_init(struct folding *f, int threads)
{
    static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    static const struct dpt_window point = {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1};
    static const struct dpt_window depthwise = {{3, 3}, {2, 1}, {1, 1}, {1, 1}, {1, 1}, 32};
    static const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    static const struct dpt_window *const windows[FOLDING] = {&same,      &same,  &same,
                                                              &depthwise, &point, &same};
    struct dpt_graph *g = &f->scene.graph;
    struct draw d = {5};
    int32_t at;

    *f = (struct folding){.scene.text = "folding"};
    at = net_input(g, 3, 12, 12);
    for (int i = 0; i < FOLDING; i++) {
        f->convs[i] = net_conv(g, at, 32, windows[i], i % 2 == 0);
        at = i + 1 < FOLDING ? f->convs[i] : net_join(g, f->convs[i], at, DPT_OP_ADD);
        f->norms[i] = net_simple(g, at, DPT_OP_BATCHNORM, 1e-3f);
        at = net_simple(g, f->norms[i], DPT_OP_RELU, 0);
        if (i == 2) /* may be computed by a convolution, too */
            at = f->pool = net_pool(g, at, DPT_OP_MAXPOOL, &halve);
        if (i == FOLDING - 2)
            at = net_join(g, at, f->convs[i], DPT_OP_MULTIPLY);
    }
    net_dense(g, net_simple(g, at, DPT_OP_FLATTEN, 0), FOLDING_OUTPUTS, true);
    f->scene.outputs = FOLDING_OUTPUTS;
    f->scene.spec =
        (struct dpt_program_spec){.graph = g, .micro = FOLDING_SAMPLES, .threads = threads};
    f->scene.params = net_params(g, &d);
    batch_fill(&f->scene.batch, g, FOLDING_SAMPLES, FOLDING_SAMPLES, false, &d);
}

static inline void folding_infer(const struct dpt_backend *backend, const struct scene *s,
                                 void *program, float *y)
{
    struct dpt_error err;

    for (int worker = 0; worker < s->spec.threads; worker++)
        assert_int_equal(backend->refresh(program, worker, s->params, &err), DPT_OK);
    assert_int_equal(
        backend->infer(program, s->spec.threads - 1, &s->batch.batch, s->params, y, NULL, &err),
        DPT_OK);
}

/* If a tensor has a NaN, the program names this node. */
static inline void assert_found(const struct dpt_backend *backend, const struct scene *s,
                                void *program, int32_t tensor, int32_t node)
{
    float *const at = s->params + s->graph.tensors[tensor].offset, was = *at;
    struct dpt_error err;
    int32_t position;

    *at = NAN;
    for (int worker = 0; worker < s->spec.threads; worker++)
        assert_int_equal(backend->refresh(program, worker, s->params, &err), DPT_OK);
    assert_int_equal(
        batch_nonfinite(backend, program, &s->batch, s->params, FOLDING_SAMPLES, &position), node);
    *at = was;
}

/* A batch norm is part of the weights before it, and a relu after it is part of the same pass or
 * the pool's, if nobody else reads the values between; the outputs are the same but for
 * rounding. */
static inline void assert_folds(const struct dpt_backend *backend, int threads, bool pools_relu)
{
    enum { NUMBERS = FOLDING_SAMPLES * FOLDING_OUTPUTS };
    float plain[NUMBERS], y[NUMBERS] = {0}, before[NUMBERS];
    void *programs[2]; /* for evaluation, and for training */
    struct folding f;
    struct scene *s = &f.scene;

    folding_init(&f, threads);
    for (int i = 0; i < 2; i++) {
        s->spec.training = i == 1;
        programs[i] = open_program(backend, s);
    }
    for (int i = 0; i < FOLDING; i++) {
        const int32_t in = i < FOLDING - 2 ? f.convs[i] : f.norms[i];

        assert_int_equal(backend->runs_in(programs[0], f.norms[i], false), in);
        assert_int_equal(backend->runs_in(programs[0], f.norms[i] + 1, false),
                         i == 2 && pools_relu ? f.pool : in);
        assert_int_equal(backend->runs_in(programs[1], f.norms[i], false), f.norms[i]);
        assert_found(backend, s, programs[0], s->graph.nodes[f.convs[i]].weight, f.convs[i]);
        assert_found(backend, s, programs[0], s->graph.nodes[f.norms[i]].variance, f.norms[i]);
    }
    for (int i = 0; i < 2; i++) { /* the second time with other statistics */
        memcpy(before, y, sizeof y);
        folding_infer(backend, s, programs[0], y);
        folding_infer(backend, s, programs[1], plain);
        assert_true(distance(y, plain, NUMBERS, 0) < 1e-5);
        assert_true(i == 0 || distance(y, before, NUMBERS, 0) > 1e-3);
        s->params[s->graph.tensors[s->graph.nodes[f.norms[i]].mean].offset + 1] += 1;
    }
    for (int i = 0; i < 2; i++)
        backend->close(programs[i]);
    scene_release(s);
}

#endif

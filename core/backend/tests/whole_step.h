/*
 * whole_step: a step of several micro-batches, of which the last one is short, through a backend's
 * passes over ranges of nodes, by one worker. Memory is the caller's: whole_step_release.
 */
#ifndef DPT_BACKEND_TESTS_WHOLE_STEP_H
#define DPT_BACKEND_TESTS_WHOLE_STEP_H

#include "core/backend/norm_sums.h"
#include "core/backend/tests/scene.h"

enum { WHOLE_STEP_MOST = 5 };

struct whole_step {
    struct owned_batch data[WHOLE_STEP_MOST];
    int32_t n, micro, samples;
};

/* Makes all or some of the graph's batch norms synchronized; returns how many. */
static inline int whole_step_norms(struct dpt_graph *g, bool each, struct draw *d)
{
    int n = 0;

    for (int32_t i = 0; i < g->n_nodes; i++) {
        g->nodes[i].whole_step =
            g->nodes[i].op == DPT_OP_BATCHNORM && (each || draw_int(d, 0, 3) > 0);
        n += g->nodes[i].whole_step;
    }
    return n;
}

static inline void whole_step_fill(struct whole_step *s, const struct dpt_graph *g, int32_t n,
                                   int32_t micro, bool soft, struct draw *d)
{
    *s = (struct whole_step){.n = n, .micro = micro};
    for (int32_t k = 0; k < n; k++) {
        batch_fill(&s->data[k], g, micro, k + 1 < n ? micro : draw_int(d, 1, micro), soft, d);
        s->samples += s->data[k].batch.count;
    }
}

static inline void whole_step_release(struct whole_step *s)
{
    for (int32_t k = 0; k < s->n; k++)
        batch_release(&s->data[k]);
}

/* Joins the sums of the norm at node `number` over all micro-batches in own[0], which pass->all
 * gets. */
static inline void whole_step_join(const struct whole_step *s, const struct dpt_graph *g,
                                   int32_t number, enum dpt_norm_kind kind,
                                   double *own[WHOLE_STEP_MOST], double *all)
{
    struct dpt_norm_sums sums;

    dpt_norm_sums_begin(&sums, kind, &g->nodes[number].in, s->micro, s->samples);
    for (int32_t k = 0; k < s->n; k++)
        dpt_norm_sums_push(&sums, (struct dpt_block){.begin = k}, own[k]);
    assert_int_equal(sums.tree.n, 1);
    memcpy(all, sums.value[0], 2 * sums.channels * sizeof *all);
}

/* gradient: the sum over the micro-batches, in their order; overwritten. */
static inline void whole_step_run(const struct whole_step *s, const struct dpt_backend *backend,
                                  void *program, int worker, const struct dpt_graph *g,
                                  const float *params, float *gradient,
                                  struct dpt_metric_sums *metric_sums)
{
    struct dpt_pass pass = {
        .params = params, .state = params, .gradient = gradient, .samples = s->samples};
    double *own[WHOLE_STEP_MOST], *all;
    struct dpt_error err;
    size_t widest = 1;

    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].whole_step && (size_t)g->nodes[i].in.c > widest)
            widest = (size_t)g->nodes[i].in.c;
    all = dpt_alloc_array(2 * widest, sizeof *all);
    for (int32_t k = 0; k < s->n; k++)
        own[k] = dpt_alloc_array(2 * widest, sizeof *all);

#define EACH(call, ...)                                                                            \
    for (pass.flight = 0; pass.flight < s->n; pass.flight++) {                                     \
        pass.batch = &s->data[pass.flight].batch;                                                  \
        pass.add = pass.flight > 0;                                                                \
        pass.own = own[pass.flight];                                                               \
        assert_int_equal(backend->call(program, worker, &pass, __VA_ARGS__), DPT_OK);              \
    }
    for (pass.last = 0; pass.last < g->n_nodes; pass.first = pass.last) {
        for (pass.last++; pass.last < g->n_nodes && !g->nodes[pass.last].whole_step;)
            pass.last++;
        EACH(forward, &err)
        pass.all = all;
        if (pass.last < g->n_nodes)
            whole_step_join(s, g, pass.last, DPT_NORM_MOMENTS, own, all);
    }
    EACH(loss, metric_sums, &err)
    for (int32_t norm = g->n_nodes; norm > 0; pass.last = norm + 1) {
        for (norm--; norm > 0 && !g->nodes[norm].whole_step;)
            norm--;
        pass.first = norm > 0 ? norm + 1 : 0;
        EACH(backward, &err)
        if (norm > 0)
            whole_step_join(s, g, norm, DPT_NORM_GRADIENTS, own, all);
    }
#undef EACH
    for (int32_t k = 0; k < s->n; k++)
        dpt_free(own[k]);
    dpt_free(all);
}

/* A graph with branches and at least one synchronized norm, and steps of up to five
 * micro-batches. */
static inline void whole_step_init(struct scene *s, struct whole_step *step, uint64_t seed)
{
    struct draw d = {seed};
    int32_t at;

    *s = (struct scene){0};
    snprintf(s->text, sizeof s->text, "seed %d", (int)seed);
    at = net_input(&s->graph, draw_int(&d, 1, 20), draw_int(&d, 1, 7), draw_int(&d, 2, 7));
    if (draw_int(&d, 0, 1))
        at = net_simple(&s->graph, at, DPT_OP_BATCHNORM, 0.1F);
    at = net_branches(&s->graph, at, 8, &d);
    at = net_simple(&s->graph, at, DPT_OP_BATCHNORM, 0.1F);
    if (draw_int(&d, 0, 1))
        at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    at = net_simple(&s->graph, at, draw_int(&d, 0, 1) ? DPT_OP_FLATTEN : DPT_OP_GLOBAL_AVGPOOL, 0);
    if (draw_int(&d, 0, 1))
        at = net_simple(&s->graph, at, DPT_OP_BATCHNORM, 0.1F);
    at = net_dense(&s->graph, at, draw_int(&d, 1, 12), true);
    while (whole_step_norms(&s->graph, false, &d) == 0)
        ;
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    whole_step_fill(step, &s->graph, draw_int(&d, 1, WHOLE_STEP_MOST), draw_int(&d, 2, 6), false,
                    &d);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1F},
                                        .micro = step->micro,
                                        .threads = 2,
                                        .in_flight = step->n,
                                        .training = true};
    s->params = net_params(&s->graph, &d);
    s->batch.batch.count = step->samples; /* for what is compared */
}

static inline void whole_step_of(const struct scene *s, const struct whole_step *step,
                                 const struct dpt_backend *backend, int worker, float *gradient,
                                 struct dpt_metric_sums *metric_sums)
{
    void *program = open_program(backend, s);

    *metric_sums = (struct dpt_metric_sums){0};
    whole_step_run(step, backend, program, worker, &s->graph, s->params, gradient, metric_sums);
    backend->close(program);
}

#endif

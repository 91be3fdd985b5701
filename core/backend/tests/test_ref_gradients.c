/*
 * Gradients of the ref backend against central finite differences of its own loss, along random
 * directions, tensor by tensor. The layer under test comes after a convolution, whose gradients
 * check what the layer passes back.
 */
#include "core/backend/tests/whole_step.h"

#include "core/backend/backend.h"

static const struct dpt_window point = {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1};

struct bench {
    struct dpt_graph graph;
    struct whole_step data; /* of one micro-batch, or of several */
    float *params, *moved, *gradient, *scratch, *direction;
    void *program;
    int undecided, checks;
    int batches; /* a step; 0: `train` of one */
};

static void bench_open(struct bench *b, const struct dpt_loss *loss, bool soft, struct draw *d)
{
    const int32_t micro = draw_int(d, 1, 5);
    const struct dpt_program_spec spec = {.graph = &b->graph,
                                          .loss = *loss,
                                          .micro = micro,
                                          .threads = 1,
                                          .in_flight = b->batches,
                                          .training = true};
    const size_t n = (size_t)b->graph.arena;
    struct dpt_error err;

    whole_step_fill(&b->data, &b->graph, b->batches > 0 ? b->batches : 1, micro, soft, d);
    b->params = net_params(&b->graph, d);
    b->moved = dpt_alloc_array(n, sizeof(float));
    b->gradient = dpt_alloc_array(n, sizeof(float));
    b->scratch = dpt_alloc_array(n, sizeof(float));
    b->direction = dpt_alloc_array(n, sizeof(float));
    assert_int_equal(dpt_backend_ref.open(&spec, &b->program, &err), DPT_OK);
}

static void bench_close(struct bench *b)
{
    dpt_backend_ref.close(b->program);
    dpt_free(b->params);
    dpt_free(b->moved);
    dpt_free(b->gradient);
    dpt_free(b->scratch);
    dpt_free(b->direction);
    whole_step_release(&b->data);
    dpt_graph_release(&b->graph);
}

static double loss_at(struct bench *b, const float *params, float *gradient)
{
    struct dpt_metric_sums metric_sums = {0};
    struct dpt_error err;

    if (b->batches > 0)
        whole_step_run(&b->data, &dpt_backend_ref, b->program, 0, &b->graph, params, gradient,
                       &metric_sums);
    else
        assert_int_equal(dpt_backend_ref.train(b->program, 0, &b->data.data[0].batch, params,
                                               gradient, false, &metric_sums, &err),
                         DPT_OK);
    return metric_sums.loss;
}

/* The change of the loss along the direction within a step of h, for one tensor: slope, and bend =
 * (right slope - left slope). */
struct probe {
    double slope, bend;
};

static struct probe probe(struct bench *b, const struct dpt_tensor *t, double loss, double h)
{
    double side[2];

    memcpy(b->moved, b->params, (size_t)b->graph.arena * sizeof *b->moved);
    for (int s = 0; s < 2; s++) {
        for (int64_t i = t->offset; i < t->offset + t->count; i++)
            b->moved[i] = (float)(b->params[i] + (s == 0 ? h : -h) * b->direction[i]);
        side[s] = loss_at(b, b->moved, b->scratch);
    }
    return (struct probe){(side[0] - side[1]) / (2 * h), (side[0] + side[1] - 2 * loss) / h};
}

/*
 * Compares one tensor's gradient along one random direction. Returns whether that is conclusive: it
 * is not if there is a kink (ReLU, max-pool) within the step. Then the slopes of two steps differ,
 * or, if the kink is close to the middle, the bend does not shrink with the step. The gradient
 * under test has no part in that decision.
 */
static bool check_direction(struct bench *b, const struct dpt_tensor *t, double loss,
                            struct draw *d)
{
    const double step = 0.01;
    double claimed = 0, size = 0, measured, allowed;
    struct probe coarse, fine;

    for (int64_t i = t->offset; i < t->offset + t->count; i++) {
        const double g = b->gradient[i];

        b->direction[i] = (float)(draw_normal(d) / (t->decay ? sqrt((double)t->fan_in) : 1));
        claimed += g * b->direction[i];
        size += g * g * b->direction[i] * b->direction[i];
    }
    coarse = probe(b, t, loss, step);
    fine = probe(b, t, loss, step / 2);
    measured = (4 * fine.slope - coarse.slope) / 3;
    /* The loss carries the rounding of floats, a few 1e-7 of its size, divided by the step. */
    allowed = 2e-3 * sqrt(size) + 5e-5 * (1 + fabs(loss));
    if (fabs(coarse.slope - fine.slope) > allowed / 2 ||
        fabs(coarse.bend - 2 * fine.bend) > allowed)
        return false;
    if (fabs(measured - claimed) > allowed)
        fail_msg("%s: gradient along a direction is %.8g, measured %.8g (%.8g, %.8g), allowed %.2g",
                 t->name, claimed, measured, coarse.slope, fine.slope, allowed);
    return true;
}

static void check_all(struct bench *b, struct draw *d)
{
    const double loss = loss_at(b, b->params, b->gradient);

    for (int32_t t = 0; t < b->graph.n_tensors; t++) {
        for (int k = 0; k < 3 && !b->graph.tensors[t].state; k++) {
            b->checks++;
            b->undecided += !check_direction(b, &b->graph.tensors[t], loss, d);
        }
    }
}

static void finish(struct bench *b, int32_t last, struct draw *d)
{
    static const enum dpt_loss_kind kinds[] = {DPT_LOSS_MSE, DPT_LOSS_CROSS_ENTROPY,
                                               DPT_LOSS_CROSS_ENTROPY,
                                               DPT_LOSS_BINARY_CROSS_ENTROPY};
    const struct dpt_loss loss = {.kind = kinds[draw_int(d, 0, 3)],
                                  .attribute = draw_int(d, 0, 1) ? 0.1f : 0};

    if (!b->graph.nodes[last].out.flat)
        last = net_simple(&b->graph, last, DPT_OP_FLATTEN, 0);
    net_dense(&b->graph, last, draw_int(d, 2, 6), true);
    bench_open(b, &loss, !dpt_loss_has_classes(loss.kind) || draw_int(d, 0, 1), d);
    check_all(b, d);
}

/* Every type many times, after a convolution; its shape may also be one that its neighbours do not
 * prefer. */
static void each_layer(void **state)
{
    (void)state;
    for (int op = DPT_OP_CONV; op < DPT_OP_COUNT; op++) {
        int undecided = 0, checks = 0;

        for (uint64_t seed = 0; seed < 60; seed += (uint64_t)net_every()) {
            struct draw d = {seed * 100 + (uint64_t)op};
            struct bench b = {0};
            struct dpt_window front = {.groups = 1};
            int32_t at =
                net_input(&b.graph, draw_int(&d, 1, 3), draw_int(&d, 1, 9), draw_int(&d, 1, 9));

            front = draw_window(&d, false, b.graph.nodes[at].out.h, b.graph.nodes[at].out.w);
            front.groups = 1;
            at = net_conv(&b.graph, at, draw_int(&d, 1, 4), &front, true);
            at = net_any(&b.graph, at, (enum dpt_op)op, &d);
            finish(&b, at, &d);
            undecided += b.undecided;
            checks += b.checks;
            bench_close(&b);
        }
        print_message("%s: %d of %d directions undecided\n", dpt_operations[op]->name, undecided,
                      checks);
        assert_true(undecided * 5 < checks);
    }
}

/* Chains of several layers, dropout among them. */
static void chains(void **state)
{
    enum dpt_op types[DPT_OP_COUNT + 1] = {DPT_OP_CONV};
    const int n = 1 + net_operations(1 << DPT_CLASS_CONV | 1 << DPT_CLASS_POOL |
                                         1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_NORM,
                                     types + 1);
    int undecided = 0, checks = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 120; seed += (uint64_t)net_every()) {
        struct draw d = {seed + 1000000};
        struct bench b = {0};
        int32_t at =
            net_input(&b.graph, draw_int(&d, 1, 4), draw_int(&d, 2, 9), draw_int(&d, 2, 9));
        const int32_t layers = draw_int(&d, 2, 6);

        for (int32_t i = 0; i < layers; i++) {
            /* The next layer needs an image. */
            const enum dpt_op op = types[draw_int(&d, 0, n - 1)];

            at = net_any(&b.graph, at, op == DPT_OP_GLOBAL_AVGPOOL ? DPT_OP_CONV : op, &d);
        }
        finish(&b, at, &d);
        undecided += b.undecided;
        checks += b.checks;
        bench_close(&b);
    }
    print_message("chains: %d of %d directions undecided\n", undecided, checks);
    assert_true(undecided * 4 < checks);
}

/* Values that several layers read: their gradients are added up. */
static void branches(void **state)
{
    int undecided = 0, checks = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct draw d = {seed + 2000000};
        struct bench b = {0};
        const int32_t at =
            net_input(&b.graph, draw_int(&d, 1, 4), draw_int(&d, 2, 5), draw_int(&d, 2, 5));

        finish(&b, net_branches(&b.graph, at, 10, &d), &d);
        undecided += b.undecided;
        checks += b.checks;
        bench_close(&b);
    }
    print_message("branches: %d of %d directions undecided\n", undecided, checks);
    assert_true(undecided * 4 < checks);
}

/* Norms that take the statistics of several micro-batches, so that each micro-batch has an
 * influence on the others' losses. */
static void whole_steps(void **state)
{
    int undecided = 0, checks = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct draw d = {seed + 3000000};
        struct bench b = {.batches = draw_int(&d, 1, WHOLE_STEP_MOST)};
        int32_t at =
            net_input(&b.graph, draw_int(&d, 1, 4), draw_int(&d, 1, 4), draw_int(&d, 1, 4));

        at = net_conv(&b.graph, at, draw_int(&d, 1, 4), &point, true);
        at = net_simple(&b.graph, at, DPT_OP_BATCHNORM, 1e-3F);
        at = net_same(&b.graph, at, draw_int(&d, 1, 4), &d);
        at = net_simple(&b.graph, at, DPT_OP_BATCHNORM, 1e-3F);
        whole_step_norms(&b.graph, true, &d);
        finish(&b, at, &d);
        undecided += b.undecided;
        checks += b.checks;
        bench_close(&b);
    }
    print_message("whole steps: %d of %d directions undecided\n", undecided, checks);
    assert_true(undecided * 4 < checks);
}

/* Norms whose running statistics are frozen: no gradient comes from these constants. */
static void frozen_norms(void **state)
{
    int undecided = 0, checks = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct draw d = {seed + 4000000};
        struct bench b = {0};
        int32_t at =
            net_input(&b.graph, draw_int(&d, 1, 4), draw_int(&d, 1, 4), draw_int(&d, 1, 4));

        at = net_conv(&b.graph, at, draw_int(&d, 1, 4), &point, true);
        at = net_simple(&b.graph, at, DPT_OP_BATCHNORM, 1e-3F);
        at = net_simple(&b.graph, at, DPT_OP_TANH, 0);
        for (int32_t t = 0; t < b.graph.n_tensors; t++)
            b.graph.tensors[t].frozen = b.graph.tensors[t].state;
        dpt_graph_freeze(&b.graph);
        finish(&b, at, &d);
        undecided += b.undecided;
        checks += b.checks;
        bench_close(&b);
    }
    print_message("frozen norms: %d of %d directions undecided\n", undecided, checks);
    assert_true(undecided * 4 < checks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_layer),  cmocka_unit_test(chains),       cmocka_unit_test(branches),
        cmocka_unit_test(whole_steps), cmocka_unit_test(frozen_norms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

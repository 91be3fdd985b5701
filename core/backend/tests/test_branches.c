/*
 * Graphs whose values several layers read, and joins of two: the cpu backend computes what ref
 * computes, in training and evaluation; finds NaN in the same place; and holds no more than it
 * needs.
 */
#include "core/backend/tests/compare.h"
#include "core/backend/tests/folding.h"

enum { GRAPHS = 200, WORKERS = 2 };

static const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};

/* A convolution, a relu and a max-pool, which would be one pass but for other readers of what is
 * between them. */
static int32_t add_trap(struct dpt_graph *g, int32_t at, struct draw *d)
{
    const int32_t conv = net_conv(g, at, draw_int(d, 10, 36), &same, true);
    const int32_t relu = net_simple(g, conv, DPT_OP_RELU, 0);
    const int32_t pool = net_pool(g, relu, DPT_OP_MAXPOOL, &halve);

    switch (draw_int(d, 0, 3)) {
    case 0:
        return pool;
    case 1: /* the pool's values twice */
        return net_join(g, pool, pool, DPT_OP_MULTIPLY);
    case 2: /* another node reads the relu's */
        return net_join(g, net_pool(g, relu, DPT_OP_AVGPOOL, &halve), pool, DPT_OP_CONCAT);
    default: /* or the convolution's */
        return net_join(g, pool, net_pool(g, conv, DPT_OP_MAXPOOL, &halve), DPT_OP_ADD);
    }
}

/* Planes with branches, and a vector with some. */
static void branches_init(struct scene *s, uint64_t seed)
{
    enum dpt_op ops[DPT_OP_COUNT];
    const int n = net_operations(1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_NORM |
                                     1 << DPT_CLASS_JOIN | 1 << DPT_CLASS_GEMM,
                                 ops);
    struct draw d = {seed};
    int32_t at;

    *s = (struct scene){0};
    snprintf(s->text, sizeof s->text, "seed %d", (int)seed);
    at = net_input(&s->graph, draw_int(&d, 1, 20), draw_int(&d, 2, 9), draw_int(&d, 2, 9));
    at = net_branches(&s->graph, at, 10, &d);
    if (draw_int(&d, 0, 1))
        at = net_branches(&s->graph, add_trap(&s->graph, at, &d), 4, &d);
    at = net_simple(&s->graph, at, draw_int(&d, 0, 1) ? DPT_OP_FLATTEN : DPT_OP_GLOBAL_AVGPOOL, 0);
    for (int i = draw_int(&d, 0, 4); i > 0; i--)
        at = net_any(&s->graph, at, ops[draw_int(&d, 0, n - 1)], &d);
    if (draw_int(&d, 0, 3))
        at = net_dense(&s->graph, at, draw_int(&d, 1, 12), true);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                        .micro = draw_int(&d, 1, 6),
                                        .threads = WORKERS,
                                        .training = true};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro), false, &d);
}

static void assert_same_outputs(const struct scene *s, void *ref, void *cpu, const char *what)
{
    const size_t n = s->outputs * (size_t)s->batch.batch.count;
    struct dpt_metric_sums wanted = {0}, got = {0};
    float *y_ref = dpt_alloc_array(n, sizeof *y_ref), *y = dpt_alloc_array(n, sizeof *y);
    struct dpt_error err;

    assert_true(y_ref != NULL && y != NULL);
    dpt_backend_ref.infer(ref, 0, &s->batch.batch, s->params, y_ref, &wanted, &err);
    dpt_backend_cpu.infer(cpu, 1, &s->batch.batch, s->params, y, &got, &err);
    if (!(distance(y, y_ref, n, 1e-3) < 1e-4))
        fail_msg("%s: %s: outputs differ by %g", s->text, what, distance(y, y_ref, n, 1e-3));
    assert_same_sums(s, &got, &wanted);
    dpt_free(y_ref);
    dpt_free(y);
}

static void agrees_with_ref(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed += (uint64_t)net_every()) {
        struct dpt_metric_sums wanted = {0}, got = {0};
        struct scene s;

        branches_init(&s, seed);
        if (seed % 2)
            net_freeze(&s.graph, seed);
        void *ref = open_program(&dpt_backend_ref, &s), *cpu = open_program(&dpt_backend_cpu, &s);
        float *g_ref = new_arena(&s), *g = new_arena(&s);

        for (int i = 0; i < 2; i++) { /* written, then added */
            train(&dpt_backend_ref, &s, ref, 0, i > 0, g_ref, &wanted);
            train(&dpt_backend_cpu, &s, cpu, 1, i > 0, g, &got);
            assert_same_sums(&s, &got, &wanted);
            assert_same_gradients(&s, g, g_ref, "gradient");
        }
        assert_passes(&dpt_backend_ref, &s, ref);
        assert_passes(&dpt_backend_cpu, &s, cpu);
        assert_same_outputs(&s, ref, cpu, "a program for training");
        dpt_backend_cpu.close(cpu);
        s.spec.training = false;
        cpu = open_program(&dpt_backend_cpu, &s);
        assert_same_outputs(&s, ref, cpu, "a program for evaluation");
        dpt_backend_cpu.close(cpu);
        dpt_backend_ref.close(ref);
        dpt_free(g_ref);
        dpt_free(g);
        scene_release(&s);
    }
}

/* It is found where ref finds it, though other values took the memory of early ones. */
static void finds_nan_where_ref_does(void **state)
{
    int hidden = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 80; seed += (uint64_t)net_every()) {
        struct draw d = {seed};
        struct scene s;
        int32_t wanted_at = -1, at = -1;

        branches_init(&s, seed);
        s.spec.training = draw_int(&d, 0, 1);
        const int32_t n = (int32_t)dpt_shape_size(&s.graph.nodes[0].out) * s.batch.batch.count;
        const struct dpt_tensor *tensor = &s.graph.tensors[draw_int(&d, 0, s.graph.n_tensors - 1)];

        /* In the middle of a kernel, where it does not fall on padding alone. */
        if (seed % 4 == 0)
            s.batch.input[draw_int(&d, 0, n - 1)] = NAN;
        else
            s.params[tensor->offset + (tensor->n_dims == 4 ? 4 : 0)] = NAN;
        void *ref = open_program(&dpt_backend_ref, &s), *cpu = open_program(&dpt_backend_cpu, &s);
        const int32_t count = s.batch.batch.count;
        const int32_t wanted =
            batch_nonfinite(&dpt_backend_ref, ref, &s.batch, s.params, count, &wanted_at);
        const int32_t found =
            batch_nonfinite(&dpt_backend_cpu, cpu, &s.batch, s.params, count, &at);

        /* A slope of prelu is not read if nothing is below 0. */
        hidden += wanted < 0;
        if (found != wanted || (wanted >= 0 && at != wanted_at))
            fail_msg("%s: found in node %d, sample %d instead of %d, %d", s.text, (int)found,
                     (int)at, (int)wanted, (int)wanted_at);
        dpt_backend_cpu.close(cpu);
        dpt_backend_ref.close(ref);
        scene_release(&s);
    }
    assert_true(hidden < 8);
}

/* Bytes of the values of a residual network of so many blocks, in values of one layer. */
static double values_of(int blocks, bool training)
{
    struct dpt_graph g = {0};
    struct dpt_program_bytes bytes;
    struct dpt_error err;
    int32_t at = net_conv(&g, net_input(&g, 3, 16, 16), 32, &same, true);

    for (int i = 0; i < blocks; i++) {
        int32_t branch = net_simple(&g, net_conv(&g, at, 32, &same, true), DPT_OP_RELU, 0);

        branch = net_conv(&g, branch, 32, &same, true);
        at = net_simple(&g, net_join(&g, branch, at, DPT_OP_ADD), DPT_OP_RELU, 0);
    }
    net_dense(&g, net_simple(&g, at, DPT_OP_GLOBAL_AVGPOOL, 0), 10, true);
    const struct dpt_program_spec spec = {
        .graph = &g, .micro = 8, .threads = 1, .training = training};

    assert_int_equal(dpt_backend_cpu.measure(&spec, &bytes, &err), DPT_OK);
    dpt_graph_release(&g);
    return (double)bytes.values / (8 * 32 * 16 * 16 * sizeof(float));
}

/* In evaluation the block's input, the branch so far, and the value computed from it are in memory.
 * Training keeps two values of each block, and their gradients take the memory of values that were
 * read. */
static void holds_what_it_needs(void **state)
{
    (void)state;
    for (int blocks = 3; blocks <= 30; blocks *= 10) {
        assert_true(values_of(blocks, false) < 3.1);
        assert_true(values_of(blocks, true) < 2 * blocks + 2.5);
    }
}

/* A relu after a sum or a batch norm is part of its passes, unless another layer reads the values
 * between them. */
static void computes_relus_with_what_is_before(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct scene s = {0};
        struct draw d = {1};
        const int32_t start = net_conv(&s.graph, net_input(&s.graph, 3, 6, 6), 16, &same, true);
        const int32_t norm = net_simple(&s.graph, start, DPT_OP_BATCHNORM, 0.9f);
        const int32_t relu = net_simple(&s.graph, norm, DPT_OP_RELU, 0);
        const int32_t sum = net_join(&s.graph, relu, start, DPT_OP_ADD);
        const int32_t last = net_simple(&s.graph, sum, DPT_OP_RELU, 0);
        int32_t at = other ? net_join(&s.graph, last, sum, DPT_OP_MULTIPLY) : last;

        at = other ? net_join(&s.graph, at, norm, DPT_OP_MULTIPLY) : at;
        net_dense(&s.graph, net_simple(&s.graph, at, DPT_OP_FLATTEN, 0), 5, true);
        s.spec = (struct dpt_program_spec){
            .graph = &s.graph, .micro = 2, .threads = 1, .training = true};
        s.params = net_params(&s.graph, &d);
        void *program = open_program(&dpt_backend_cpu, &s);

        for (int backward = 0; backward < 2; backward++) {
            assert_int_equal(dpt_backend_cpu.runs_in(program, relu, backward), other ? relu : norm);
            assert_int_equal(dpt_backend_cpu.runs_in(program, last, backward), other ? last : sum);
        }
        dpt_backend_cpu.close(program);
        scene_release(&s);
    }
}

/* In training a batch norm adds the other input of a sum after it, unless another layer reads the
 * norm too; the sum's backward pass is its own. */
static void norms_take_the_sum_after_them(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        for (int first = 0; first < 2; first++) {
            struct scene s = {0};
            struct draw d = {1};
            const int32_t start = net_conv(&s.graph, net_input(&s.graph, 3, 6, 6), 16, &same, true);
            const int32_t conv = net_conv(&s.graph, start, 16, &same, true);
            const int32_t norm = net_simple(&s.graph, conv, DPT_OP_BATCHNORM, 0.9f);
            const int32_t sum = first ? net_join(&s.graph, norm, start, DPT_OP_ADD)
                                      : net_join(&s.graph, start, norm, DPT_OP_ADD);
            const int32_t last = net_simple(&s.graph, sum, DPT_OP_RELU, 0);
            const int32_t at = other ? net_join(&s.graph, last, norm, DPT_OP_MULTIPLY) : last;

            net_dense(&s.graph, net_simple(&s.graph, at, DPT_OP_FLATTEN, 0), 5, true);
            s.spec = (struct dpt_program_spec){
                .graph = &s.graph, .micro = 2, .threads = 1, .training = true};
            s.params = net_params(&s.graph, &d);
            void *program = open_program(&dpt_backend_cpu, &s);

            assert_int_equal(dpt_backend_cpu.runs_in(program, sum, false), other ? sum : norm);
            assert_int_equal(dpt_backend_cpu.runs_in(program, last, false), other ? sum : norm);
            assert_int_equal(dpt_backend_cpu.runs_in(program, last, true), sum);
            dpt_backend_cpu.close(program);
            scene_release(&s);
        }
    }
}

static void folds_norms_into_weights(void **state)
{
    (void)state;
    assert_folds(&dpt_backend_cpu, WORKERS, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_ref),
        cmocka_unit_test(finds_nan_where_ref_does),
        cmocka_unit_test(holds_what_it_needs),
        cmocka_unit_test(computes_relus_with_what_is_before),
        cmocka_unit_test(norms_take_the_sum_after_them),
        cmocka_unit_test(folds_norms_into_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

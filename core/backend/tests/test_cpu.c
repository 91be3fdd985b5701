/*
 * The cpu backend computes what ref computes, over random graphs: outputs, losses, gradients,
 * accumulation, workers in parallel, evaluation, and reports of NaN.
 */
#include "core/backend/tests/compare.h"

#include "core/backend/backend.h"
#include "core/base/pool.h"

enum { GRAPHS = 400, STACKS = 100, THREADS = 3 };

/* Every third graph is computed with AVX2's kernels if the machine has more; the others with what
 * it has. */
static void limit(uint64_t seed)
{
    dpt_isa_limit(seed % 3 == 2 ? DPT_ISA_AVX2 : DPT_ISA_COUNT);
}

static int no_limit(void **state)
{
    (void)state;
    dpt_isa_limit(DPT_ISA_COUNT);
    return 0;
}

/* Outputs, metric sums and gradients of cpu are those of ref; with `add` they are added; what lies
 * between tensors stays. */
static void agrees_with_ref(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed += (uint64_t)net_every()) {
        struct dpt_metric_sums wanted = {0}, got = {0};
        struct dpt_error err;
        struct scene s;

        limit(seed);
        scene_init(&s, seed);
        s.spec.threads = THREADS;
        void *ref = open_program(&dpt_backend_ref, &s), *cpu = open_program(&dpt_backend_cpu, &s);
        const size_t n = s.outputs * (size_t)s.batch.batch.count;
        float *y_ref = dpt_alloc_array(n, sizeof *y_ref), *y = dpt_alloc_array(n, sizeof *y);
        float *g_ref = new_arena(&s), *g = new_arena(&s);

        dpt_backend_ref.infer(ref, 0, &s.batch.batch, s.params, y_ref, &wanted, &err);
        dpt_backend_cpu.infer(cpu, 1, &s.batch.batch, s.params, y, &got, &err);
        if (!(distance(y, y_ref, n, 1e-3) < 1e-5))
            fail_msg("%s: outputs differ by %g", s.text, distance(y, y_ref, n, 1e-3));
        assert_same_sums(&s, &got, &wanted);
        for (int64_t i = 0; i < s.graph.arena; i++)
            g[i] = 7;
        train(&dpt_backend_ref, &s, ref, 0, false, g_ref, &wanted);
        train(&dpt_backend_cpu, &s, cpu, 1, false, g, &got);
        assert_same_sums(&s, &got, &wanted);
        assert_same_gradients(&s, g, g_ref, "gradient");
        train(&dpt_backend_ref, &s, ref, 1, true, g_ref, &wanted);
        train(&dpt_backend_cpu, &s, cpu, 1, true, g, &got);
        assert_same_gradients(&s, g, g_ref, "sum of gradients");
        assert_passes(&dpt_backend_ref, &s, ref);
        assert_passes(&dpt_backend_cpu, &s, cpu);
        for (int32_t t = 0; t < s.graph.n_tensors; t++) {
            const struct dpt_tensor *tensor = &s.graph.tensors[t];
            const int64_t end = net_tensor_end(tensor);

            for (int64_t i = tensor->offset + tensor->count; i < end; i++)
                assert_true(g[i] == 7);
        }
        dpt_backend_ref.close(ref);
        dpt_backend_cpu.close(cpu);
        dpt_free(y_ref);
        dpt_free(y);
        dpt_free(g_ref);
        dpt_free(g);
        scene_release(&s);
    }
}

/* Ends a stack of layers with a dense one, and draws its weights and samples. */
static void stack_end(struct scene *s, int32_t at, struct draw *d)
{
    net_dense(&s->graph, net_simple(&s->graph, at, DPT_OP_FLATTEN, 0), 7, true);
    s->outputs = 7;
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                        .micro = draw_int(d, 1, 6),
                                        .threads = THREADS,
                                        .training = true};
    s->params = net_params(&s->graph, d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(d, 1, s->spec.micro), false, d);
}

/* Stacks of layers that are fused: a convolution, often a relu, often a max-pool of 2 x 2. */
static void stack_init(struct scene *s, uint64_t seed)
{
    const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    struct draw d = {seed};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, draw_int(&d, 1, 5), draw_int(&d, 6, 20), draw_int(&d, 6, 20));
    note(s, "seed %d: %dx%dx%d", (int)seed, s->graph.nodes[at].out.c, s->graph.nodes[at].out.h,
         s->graph.nodes[at].out.w);
    for (int i = draw_int(&d, 1, 3); i > 0; i--) {
        const int32_t kernel = draw_int(&d, 0, 3) ? 3 : 5, before = draw_int(&d, 0, kernel / 2);
        const struct dpt_window w = {{kernel, kernel},         {1, 1}, {1, 1}, {before, before},
                                     {kernel / 2, kernel / 2}, 1};
        const struct dpt_shape *in = &s->graph.nodes[at].out;

        if (dpt_window_extent(&w, 0, in->h) < 2 || dpt_window_extent(&w, 1, in->w) < 2)
            break;
        at = net_conv(&s->graph, at, draw_int(&d, 10, 40), &w, draw_int(&d, 0, 3) > 0);
        note(s, " conv(%d %dx%d p%d)", s->graph.nodes[at].out.c, kernel, kernel, before);
        if (draw_int(&d, 0, 2)) {
            note(s, " relu");
            at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
        }
        if (draw_int(&d, 0, 2)) {
            note(s, " pool");
            at = net_pool(&s->graph, at, DPT_OP_MAXPOOL, &halve);
        }
    }
    stack_end(s, at, &d);
}

/* Convolutions of few pixels with many channels: the weights' gradient goes by a way of its own. */
static void wide_init(struct scene *s, uint64_t seed)
{
    struct draw d = {seed};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, 16, draw_int(&d, 1, 4), draw_int(&d, 1, 4));
    note(s, "seed %d: 16x%dx%d", (int)seed, s->graph.nodes[at].out.h, s->graph.nodes[at].out.w);
    for (int i = draw_int(&d, 1, 3); i > 0; i--) {
        struct dpt_window w = {.groups = 1};

        for (int axis = 0; axis < 2; axis++) {
            w.kernel[axis] = draw_int(&d, 1, 3);
            w.stride[axis] = draw_int(&d, 1, 2);
            w.dilation[axis] = draw_int(&d, 1, 2);
            w.before[axis] = w.after[axis] = (w.kernel[axis] - 1) * w.dilation[axis];
        }
        at = net_conv(&s->graph, at, 16 * draw_int(&d, 6, 10), &w, draw_int(&d, 0, 1) > 0);
        note(s, " conv(%d %dx%d)", s->graph.nodes[at].out.c, w.kernel[0], w.kernel[1]);
    }
    stack_end(s, at, &d);
}

static void trains_as_ref(void (*init)(struct scene *s, uint64_t seed))
{
    for (uint64_t seed = 0; seed < STACKS; seed += (uint64_t)net_every()) {
        struct dpt_metric_sums wanted = {0}, got = {0};
        struct dpt_error err;
        struct scene s;

        limit(seed);
        init(&s, seed);
        void *ref = open_program(&dpt_backend_ref, &s), *cpu = open_program(&dpt_backend_cpu, &s);
        const size_t n = s.outputs * (size_t)s.batch.batch.count;
        float *y_ref = dpt_alloc_array(n, sizeof *y_ref), *y = dpt_alloc_array(n, sizeof *y);
        float *g_ref = new_arena(&s), *g = new_arena(&s);

        for (int i = 0; i < 2; i++) {
            train(&dpt_backend_ref, &s, ref, 0, i > 0, g_ref, &wanted);
            train(&dpt_backend_cpu, &s, cpu, 1, i > 0, g, &got);
            assert_same_sums(&s, &got, &wanted);
            assert_same_gradients(&s, g, g_ref, "gradient");
        }
        dpt_backend_ref.infer(ref, 0, &s.batch.batch, s.params, y_ref, NULL, &err);
        dpt_backend_cpu.infer(cpu, 1, &s.batch.batch, s.params, y, NULL, &err);
        if (!(distance(y, y_ref, n, 1e-3) < 1e-5))
            fail_msg("%s: outputs differ by %g", s.text, distance(y, y_ref, n, 1e-3));
        dpt_backend_ref.close(ref);
        dpt_backend_cpu.close(cpu);
        dpt_free(y_ref);
        dpt_free(y);
        dpt_free(g_ref);
        dpt_free(g);
        scene_release(&s);
    }
}

/* Equal values in a window are rare here, so apart from rounding the same elements win as in
 * ref. */
static void fuses_without_a_difference(void **state)
{
    (void)state;
    trains_as_ref(stack_init);
}

static void sums_few_pixels(void **state)
{
    (void)state;
    trains_as_ref(wide_init);
}

/* Also if it is written once for several micro-batches. */
static void keeps_few_pixels(void **state)
{
    int kept = 0;

    (void)state;
    for (uint64_t seed = 0; seed < STACKS; seed += (uint64_t)net_every()) {
        struct scene s;

        limit(seed);
        wide_init(&s, seed);
        kept += assert_sums_as_each(&dpt_backend_cpu, &s, seed, 2);
        scene_release(&s);
    }
    assert_true(kept > 0);
}

/* A program that is only for evaluation gives the outputs of one for training. */
static void evaluates_alike(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed += 10) {
        struct dpt_error err;
        struct scene s;

        scene_init(&s, seed);
        s.spec.threads = THREADS;
        const size_t n = s.outputs * (size_t)s.batch.batch.count;
        float *a = dpt_alloc_array(n, sizeof *a), *b = dpt_alloc_array(n, sizeof *b);
        void *program = open_program(&dpt_backend_cpu, &s);

        dpt_backend_cpu.infer(program, 0, &s.batch.batch, s.params, a, NULL, &err);
        dpt_backend_cpu.close(program);
        s.spec.training = false;
        program = open_program(&dpt_backend_cpu, &s);
        dpt_backend_cpu.infer(program, 2, &s.batch.batch, s.params, b, NULL, &err);
        dpt_backend_cpu.close(program);
        if (!(distance(a, b, n, 1e-3) < 1e-5))
            fail_msg("%s: outputs differ by %g", s.text, distance(a, b, n, 1e-3));
        dpt_free(a);
        dpt_free(b);
        scene_release(&s);
    }
}

struct crew {
    const struct scene *scene;
    void *program;
    float *gradients[THREADS];
    struct dpt_metric_sums metric_sums_of[THREADS];
};

static void work(void *arg, int thread)
{
    struct crew *crew = arg;
    struct dpt_error err;

    assert_int_equal(dpt_backend_cpu.refresh(crew->program, thread, crew->scene->params, &err),
                     DPT_OK);
    for (int i = 0; i < 4; i++)
        train(&dpt_backend_cpu, crew->scene, crew->program, thread, i % 2, crew->gradients[thread],
              &crew->metric_sums_of[thread]);
}

/* All workers at once, and one alone: the same bits. */
static void slots_do_not_meet(void **state)
{
    struct dpt_pool *pool;
    struct dpt_error err;

    (void)state;
    assert_int_equal(dpt_pool_open(&pool, THREADS, false, &err), DPT_OK);
    for (uint64_t seed = 1000; seed < 1040; seed++) {
        struct scene s;
        struct crew crew = {.scene = &s};
        struct dpt_metric_sums metric_sums = {0};

        scene_init(&s, seed);
        s.spec.threads = THREADS;
        crew.program = open_program(&dpt_backend_cpu, &s);
        for (int i = 0; i < THREADS; i++)
            crew.gradients[i] = new_arena(&s);
        float *alone = new_arena(&s);

        for (int i = 0; i < 4; i++)
            train(&dpt_backend_cpu, &s, crew.program, 0, i % 2, alone, &metric_sums);
        dpt_pool_run(pool, work, &crew);
        for (int i = 0; i < THREADS; i++) {
            assert_memory_equal(crew.gradients[i], alone, (size_t)s.graph.arena * sizeof *alone);
            assert_true(crew.metric_sums_of[i].loss == metric_sums.loss);
            dpt_free(crew.gradients[i]);
        }
        dpt_free(alone);
        dpt_backend_cpu.close(crew.program);
        scene_release(&s);
    }
    dpt_pool_close(pool);
}

/* NaN in a layer's weights: its first bad output is found where ref finds it, and no relu or pool
 * after it hides it from the loss. */
static void finds_nan(void **state)
{
    enum dpt_op after[DPT_OP_COUNT];
    const int n =
        net_operations(1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_POOL | 1 << DPT_CLASS_NORM, after);
    const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};

    (void)state;
    for (int i = 0; i < 36; i++) {
        struct scene s = {0};
        struct draw d = {(uint64_t)i};
        struct dpt_metric_sums metric_sums = {0};
        struct dpt_error err;
        int32_t at = net_input(&s.graph, 3, 6, 6), position = -1;

        for (int k = 0; k < 2; k++) {
            const enum dpt_op op = after[k == 0 ? i % n : (i + i / n) % n];

            if (op == DPT_OP_GLOBAL_AVGPOOL) /* the next layer needs an image */
                continue;

            at = net_conv(&s.graph, at, 20, &same, true);
            if (op == DPT_OP_MAXPOOL) /* as one with the relu before it */
                at = net_simple(&s.graph, at, DPT_OP_RELU, 0);
            at = net_has_window(op) ? net_pool(&s.graph, at, op, &halve)
                                    : net_simple(&s.graph, at, op, 0);
        }
        at = net_dense(&s.graph, net_simple(&s.graph, at, DPT_OP_FLATTEN, 0), 5, true);
        s.spec = (struct dpt_program_spec){.graph = &s.graph,
                                           .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                           .micro = 4,
                                           .threads = 1,
                                           .training = true};
        s.params = net_params(&s.graph, &d);
        batch_fill(&s.batch, &s.graph, 4, 3, false, &d);
        int32_t owner = 0, tensor;

        do {
            tensor = draw_int(&d, 0, s.graph.n_tensors - 1);
        } while (s.graph.tensors[tensor].state);
        float *planted = s.params + s.graph.tensors[tensor].offset;

        while (s.graph.nodes[owner].weight != tensor && s.graph.nodes[owner].bias != tensor)
            owner++;
        void *program = open_program(&dpt_backend_cpu, &s);
        float *gradient = new_arena(&s);

        train(&dpt_backend_cpu, &s, program, 0, false, gradient, &metric_sums);
        assert_int_equal(
            batch_nonfinite(&dpt_backend_cpu, program, &s.batch, s.params, 3, &position), -1);
        *planted = NAN;
        assert_int_equal(dpt_backend_cpu.refresh(program, 0, s.params, &err), DPT_OK);
        train(&dpt_backend_cpu, &s, program, 0, false, gradient, &metric_sums);
        assert_int_equal(
            batch_nonfinite(&dpt_backend_cpu, program, &s.batch, s.params, 3, &position), owner);
        assert_int_equal(position, 0);
        assert_true(isnan(metric_sums.loss));
        dpt_backend_cpu.close(program);
        dpt_free(gradient);
        scene_release(&s);
    }
}

/* Whole numbers, so that a convolution makes equal values: the pool's gradient goes where ref's
 * does. */
static void ties_go_to_the_first(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct dpt_metric_sums metric_sums = {0};
        struct scene s = {0};
        struct draw d = {seed};
        struct dpt_window w = {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1};
        int32_t at = net_input(&s.graph, 2, 9, 8);

        snprintf(s.text, sizeof s.text, "seed %d", (int)seed);
        at = net_conv(&s.graph, at, 17, &w, true);
        if (seed % 3 == 0)
            at = net_simple(&s.graph, at, DPT_OP_RELU, 0);
        w = draw_window(&d, true, 9, 8);
        at = net_pool(&s.graph, at, DPT_OP_MAXPOOL, &w);
        net_dense(&s.graph, net_simple(&s.graph, at, DPT_OP_FLATTEN, 0), 5, true);
        s.spec = (struct dpt_program_spec){.graph = &s.graph,
                                           .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                           .micro = 3,
                                           .threads = 1,
                                           .training = true};
        s.params = net_params(&s.graph, &d);
        batch_fill(&s.batch, &s.graph, 3, 3, false, &d);
        for (int i = 0; i < 2 * 9 * 8 * 3; i++)
            s.batch.input[i] = roundf(s.batch.input[i]);
        for (int64_t i = 0; i < s.graph.tensors[2].offset; i++)
            s.params[i] = roundf(s.params[i]);
        void *ref = open_program(&dpt_backend_ref, &s), *cpu = open_program(&dpt_backend_cpu, &s);
        float *g_ref = new_arena(&s), *g = new_arena(&s);

        train(&dpt_backend_ref, &s, ref, 0, false, g_ref, &metric_sums);
        train(&dpt_backend_cpu, &s, cpu, 0, false, g, &metric_sums);
        assert_same_gradients(&s, g, g_ref, "gradient");
        dpt_backend_ref.close(ref);
        dpt_backend_cpu.close(cpu);
        dpt_free(g_ref);
        dpt_free(g);
        scene_release(&s);
    }
}

/* One NaN anywhere in the input comes through every layer to the output. */
static void passes_nan_on(void **state)
{
    enum dpt_op ops[DPT_OP_COUNT];
    const int n =
        net_operations(1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_POOL | 1 << DPT_CLASS_NORM, ops);
    const struct dpt_window thirds = {{3, 3}, {3, 3}, {1, 1}, {0, 0}, {0, 0}, 1};

    (void)state;
    for (int i = 0; i < 120; i++) {
        struct scene s = {0};
        struct draw d = {(uint64_t)i};
        struct dpt_error err;
        float y[3][4];
        int32_t at = net_input(&s.graph, i % 2 ? 16 : 5, 6, 6);

        at = net_has_window(ops[i % n]) ? net_pool(&s.graph, at, ops[i % n], &thirds)
                                        : net_simple(&s.graph, at, ops[i % n], 0);
        if (!s.graph.nodes[at].out.flat)
            at = net_simple(&s.graph, at, DPT_OP_FLATTEN, 0);
        net_dense(&s.graph, at, 4, true);
        s.spec = (struct dpt_program_spec){.graph = &s.graph,
                                           .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                           .micro = 3,
                                           .threads = 1,
                                           .training = false};
        s.params = net_params(&s.graph, &d);
        batch_fill(&s.batch, &s.graph, 3, 3, false, &d);
        const int32_t size = (int32_t)dpt_shape_size(&s.graph.nodes[0].out);
        void *program = open_program(&dpt_backend_cpu, &s);

        s.batch.input[size + draw_int(&d, 0, size - 1)] = NAN;
        dpt_backend_cpu.infer(program, 0, &s.batch.batch, s.params, y[0], NULL, &err);
        for (int k = 0; k < 4; k++) {
            assert_true(isfinite(y[0][k]) && isfinite(y[2][k]));
            assert_true(isnan(y[1][k]));
        }
        dpt_backend_cpu.close(program);
        scene_release(&s);
    }
}

/* The code of a pass follows from the shape, whatever the number of threads: bits depend on it. */
static void ways_follow_from_the_shape(void **state)
{
    int named = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed += (uint64_t)net_every()) {
        struct scene s;
        void *programs[2];

        scene_init(&s, seed);
        for (int i = 0; i < 2; i++) {
            s.spec.threads = 1 + 2 * i;
            programs[i] = open_program(&dpt_backend_cpu, &s);
        }
        for (int32_t node = 0; node < s.graph.n_nodes; node++)
            for (int pass = 0; pass < DPT_SPAN_PASSES; pass++) {
                const enum dpt_span_pass p = (enum dpt_span_pass)pass;
                const char *one = dpt_backend_cpu.way(programs[0], node, p);
                const char *other = dpt_backend_cpu.way(programs[1], node, p);
                const enum dpt_op op = s.graph.nodes[node].op;

                if (pass == DPT_PASS_FORWARD)
                    assert_int_equal(one != NULL, op == DPT_OP_CONV || op == DPT_OP_DENSE);
                if ((one == NULL) != (other == NULL) || (one != NULL && strcmp(one, other) != 0))
                    fail_msg("%s: node %d: %s by one thread, %s by three", s.text, node, one,
                             other);
                named += one != NULL;
            }
        for (int i = 0; i < 2; i++)
            dpt_backend_cpu.close(programs[i]);
        scene_release(&s);
    }
    assert_true(named > 0);
}

static void describes_itself(void **state)
{
#if defined(DPT_WITH_ONEDNN) && DPT_WITH_ONEDNN
    const char *const library = "oneDNN ";
#else
    const char *const library = "custom kernels, ";
#endif

    (void)state;
    assert_ptr_equal(strstr(dpt_backend_cpu.describe(), library), dpt_backend_cpu.describe());
    assert_int_equal(dpt_backend_cpu.precisions,
                     1u << DPT_PRECISION_FP32 | 1u << DPT_PRECISION_BF16);
    assert_ptr_equal(strstr(dpt_backend_cpu.uses(), library), dpt_backend_cpu.uses());
    assert_null(strstr(dpt_backend_cpu.uses(), "BF16"));
    assert_null(strstr(dpt_backend_cpu.uses(), "AMX"));
    assert_string_equal(dpt_backend_cpu.name, "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(agrees_with_ref, no_limit),
        cmocka_unit_test(evaluates_alike),
        cmocka_unit_test_teardown(fuses_without_a_difference, no_limit),
        cmocka_unit_test_teardown(sums_few_pixels, no_limit),
        cmocka_unit_test_teardown(keeps_few_pixels, no_limit),
        cmocka_unit_test(slots_do_not_meet),
        cmocka_unit_test(finds_nan),
        cmocka_unit_test(ties_go_to_the_first),
        cmocka_unit_test(passes_nan_on),
        cmocka_unit_test(ways_follow_from_the_shape),
        cmocka_unit_test(describes_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

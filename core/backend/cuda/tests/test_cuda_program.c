/*
 * The backend `cuda` computes what ref computes, over random graphs and in each precision: outputs,
 * losses, gradients, accumulation, sub-batches, teams, and reports of NaN.
 */
#include "core/backend/tests/left_out.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA

#include "core/backend/cuda/program/program.h"
#include "core/backend/cuda/tests/program_scene.h"
#include "core/base/pool.h"
#include "core/comm/sums/tree.h"

enum { GRAPHS = 120, STACKS = 30, THREADS = 3 };

/* Layers that are fused: a convolution, often a relu, often a max-pool; some dense ones. */
static void stack_init(struct scene *s, uint64_t seed)
{
    const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    struct draw d = {seed};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, draw_int(&d, 1, 5), draw_int(&d, 5, 12), draw_int(&d, 5, 12));
    note(s, "stack %d: %dx%dx%d", (int)seed, s->graph.nodes[at].out.c, s->graph.nodes[at].out.h,
         s->graph.nodes[at].out.w);
    for (int i = draw_int(&d, 0, 3); i > 0; i--) {
        const int32_t before = draw_int(&d, 0, 1);
        const struct dpt_window w = {{3, 3}, {1, 1}, {1, 1}, {before, before}, {before, before}, 1};
        const struct dpt_shape *in = &s->graph.nodes[at].out;

        if (dpt_window_extent(&w, 0, in->h) < 2 || dpt_window_extent(&w, 1, in->w) < 2)
            break;
        at = net_conv(&s->graph, at, draw_int(&d, 1, 20), &w, draw_int(&d, 0, 3) > 0);
        note(s, " conv(%d p%d)", s->graph.nodes[at].out.c, before);
        if (draw_int(&d, 0, 2)) {
            note(s, " relu");
            at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
        }
        if (draw_int(&d, 0, 2)) {
            note(s, " pool");
            at = net_pool(&s->graph, at, DPT_OP_MAXPOOL, &halve);
        }
    }
    at = net_simple(&s->graph, at, DPT_OP_FLATTEN, 0);
    if (draw_int(&d, 0, 1)) {
        note(s, " dense relu");
        at = net_dense(&s->graph, at, draw_int(&d, 1, 40), draw_int(&d, 0, 3) > 0);
        at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    }
    net_dense(&s->graph, at, 7, true);
    s->outputs = 7;
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                        .micro = draw_int(&d, 1, 6),
                                        .threads = 1,
                                        .training = true};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro),
               draw_int(&d, 0, 1), &d);
}

static void any_init(struct scene *s, int number)
{
    if (number % 1000 < GRAPHS)
        scene_init(s, (uint64_t)number);
    else
        stack_init(s, (uint64_t)number);
    s->spec.reproducible = number % 3 != 0;
}

/* With DPT_HEAVY=1 many more. */
static void agrees_with_ref(void **state)
{
    const char *heavy = getenv("DPT_HEAVY");
    const int rounds = heavy != NULL && *heavy == '1' ? 8 : 1;

    (void)state;
    for (int i = 0; i < rounds * (GRAPHS + STACKS); i += net_every()) {
        struct scene s;

        any_init(&s, i / (GRAPHS + STACKS) * 1000 + i % (GRAPHS + STACKS));
        compare(&s, 1024);
        scene_release(&s);
    }
}

/* On the whole it is near: if no choice changes, gradients have as many right bits. */
static void agrees_in_each_precision(void **state)
{
    (void)state;
    for (int precision = DPT_PRECISION_TF32; precision < DPT_PRECISIONS; precision++) {
        const char *name = NULL;
        int close = 0, n = 0;

        for (int i = 0; i < GRAPHS + STACKS; i += 4 + net_every()) {
            struct scene s;

            any_init(&s, i);
            s.spec.precision = (enum dpt_precision)precision;
            close += compare(&s, 1024) < precision_of(&s)->outputs;
            name = precision_of(&s)->name;
            n++;
            scene_release(&s);
        }
        if (close < n * 3 / 4)
            fail_msg("%s: only %d of %d gradients are close", name, close, n);
    }
}

/* --- sub-batches ------------------------------------------------------------------------------ */

/* A batch of several sub-batches: the bits of one after another, added up along the tree; and
 * metric sums for each. */
static void leaves_are_one_after_another(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i += 2) {
        struct dpt_metric_sums all[16] = {{0}}, one[16] = {{0}};
        struct dpt_tree tree;
        struct draw d = {(uint64_t)i};
        struct scene s, part;
        int32_t sub_batch, sub_batches;
        float *g, *each[9];
        size_t in;

        any_init(&s, i % 4 ? i : GRAPHS + i / 2);
        s.spec.precision = (enum dpt_precision)(i / 2 % DPT_PRECISIONS);
        sub_batch = s.spec.sub_batch = draw_int(&d, 1, 4);
        sub_batches = draw_int(&d, 1, 9);
        batch_release(&s.batch);
        batch_fill(&s.batch, &s.graph, sub_batch * sub_batches,
                   sub_batch * sub_batches - draw_int(&d, 0, sub_batch - 1),
                   !dpt_loss_has_classes(s.spec.loss.kind), &d);
        s.spec.micro = sub_batch * sub_batches;
        s.spec.reproducible = true;
        in = (size_t)dpt_shape_size(&s.graph.nodes[0].out);
        void *program = open_program(cuda, &s);
        g = new_arena(&s);
        train(cuda, &s, program, 0, false, g, all);
        cuda->close(program);
        part = s;
        part.spec.sub_batch = 0;
        part.spec.micro = sub_batch;
        program = open_program(cuda, &part);
        dpt_tree_begin(&tree, sub_batches);
        for (int32_t k = 0; k < sub_batches; k++) {
            struct dpt_batch *b = &part.batch.batch;
            const int32_t left = s.batch.batch.count - k * sub_batch;

            b->count = left < sub_batch ? left : sub_batch;
            b->input = s.batch.input + (size_t)(k * sub_batch) * in;
            b->sample = s.batch.sample + k * sub_batch;
            b->labels = s.batch.batch.labels != NULL ? s.batch.labels + k * sub_batch : NULL;
            b->targets = s.batch.batch.targets != NULL
                             ? s.batch.targets + (size_t)(k * sub_batch) * s.outputs
                             : NULL;
            each[k] = new_arena(&s);
            train(cuda, &part, program, 0, false, each[k], &one[k]);
            dpt_tree_push(&tree, (struct dpt_block){k, 0}, each[k], (size_t)s.graph.arena, NULL,
                          NULL);
        }
        cuda->close(program);
        assert_int_equal(tree.n, 1);
        if (memcmp(g, tree.value[0], (size_t)s.graph.arena * sizeof *g) != 0)
            fail_msg("%s: %d leaves of %d: other bits", s.text, sub_batches, sub_batch);
        for (int32_t k = 0; k < sub_batches; k++) {
            assert_true(all[k].loss == one[k].loss && all[k].correct == one[k].correct &&
                        all[k].samples == one[k].samples);
            dpt_free(each[k]);
        }
        dpt_free(g);
        scene_release(&s);
    }
}

/* --- threads ---------------------------------------------------------------------------------- */

struct crew {
    const struct scene *scene;
    void *program;
    float *gradient[THREADS];
    float *outputs[THREADS];
    struct dpt_metric_sums metric_sums[THREADS];
    bool team;
};

static void work(void *arg, int thread)
{
    struct crew *crew = arg;
    struct dpt_error err;

    for (int i = 0; i < 3; i++)
        train(cuda, crew->scene, crew->program, thread, i > 1,
              crew->gradient[crew->team ? 0 : thread], &crew->metric_sums[thread]);
    assert_int_equal(cuda->infer(crew->program, thread, &crew->scene->batch.batch,
                                 crew->scene->params, crew->outputs[thread], NULL, &err),
                     DPT_OK);
}

/* A team, threads each for themselves, and one alone: the same bits. */
static void threads_take_turns(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        struct crew crew = {.team = i % 2};
        struct dpt_metric_sums metric_sums = {0};
        struct dpt_pool *pool;
        struct dpt_error err;
        struct scene s;
        float *alone;

        any_init(&s, 300 + i);
        s.spec.reproducible = true;
        crew.scene = &s;
        assert_true(cuda->teams(&s.graph));
        assert_int_equal(dpt_pool_open(&pool, THREADS, false, &err), DPT_OK);
        void *program = open_program(cuda, &s);
        alone = new_arena(&s);
        for (int k = 0; k < 3; k++)
            train(cuda, &s, program, 0, k > 1, alone, &metric_sums);
        cuda->close(program);
        s.spec.threads = THREADS;
        s.spec.team = crew.team ? pool : NULL;
        crew.program = open_program(cuda, &s);
        for (int k = 0; k < THREADS; k++) {
            crew.gradient[k] = new_arena(&s);
            crew.outputs[k] = dpt_alloc_array(s.outputs * (size_t)s.spec.micro, sizeof(float));
        }
        dpt_pool_run(pool, work, &crew);
        for (int k = 0; k < THREADS; k++) {
            if (k == 0 || !crew.team) {
                assert_memory_equal(crew.gradient[k], alone, (size_t)s.graph.arena * sizeof *alone);
                assert_true(crew.metric_sums[k].loss == metric_sums.loss);
                assert_true(crew.metric_sums[k].samples == metric_sums.samples);
            } else {
                assert_int_equal(crew.metric_sums[k].samples, 0);
            }
            assert_memory_equal(crew.outputs[k], crew.outputs[0],
                                s.outputs * (size_t)s.batch.batch.count * sizeof(float));
        }
        for (int k = 0; k < THREADS; k++) {
            dpt_free(crew.gradient[k]);
            dpt_free(crew.outputs[k]);
        }
        dpt_free(alone);
        cuda->close(crew.program);
        dpt_pool_close(pool);
        scene_release(&s);
    }
}

/* --- not a number ----------------------------------------------------------------------------- */

/* NaN in a layer's weights: its first bad output is found where ref finds it. */
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
        struct dpt_metric_sums metric_sums[2] = {{0}};
        struct dpt_error err;
        const int32_t sub_batch =
            i % 2 ? 2 : 0; /* with several sub-batches the last one is searched */
        int32_t at = net_input(&s.graph, 3, 4, 4), position = -1, owner = 0;

        for (int k = 0; k < 2; k++) {
            const enum dpt_op op = after[k == 0 ? i % n : (i + i / n) % n];

            if (op == DPT_OP_GLOBAL_AVGPOOL) /* the next layer needs an image */
                continue;

            at = net_conv(&s.graph, at, 10, &same, true);
            if (op == DPT_OP_MAXPOOL) /* as one with the relu before it */
                at = net_simple(&s.graph, at, DPT_OP_RELU, 0);
            at = net_has_window(op) ? net_pool(&s.graph, at, op, &halve)
                                    : net_simple(&s.graph, at, op, 0.1f);
        }
        net_dense(&s.graph, net_simple(&s.graph, at, DPT_OP_FLATTEN, 0), 5, true);
        s.spec =
            (struct dpt_program_spec){.graph = &s.graph,
                                      .micro = 4,
                                      .sub_batch = sub_batch,
                                      .threads = 1,
                                      .training = true,
                                      .precision = (enum dpt_precision)(i / 2 % DPT_PRECISIONS)};
        s.params = net_params(&s.graph, &d);
        batch_fill(&s.batch, &s.graph, 4, 3, false, &d);
        int32_t tensor;

        do {
            tensor = draw_int(&d, 0, s.graph.n_tensors - 1);
        } while (s.graph.tensors[tensor].state);

        while (s.graph.nodes[owner].weight != tensor && s.graph.nodes[owner].bias != tensor)
            owner++;
        void *program = open_program(cuda, &s);
        float *gradient = new_arena(&s);

        train(cuda, &s, program, 0, false, gradient, metric_sums);
        assert_int_equal(batch_nonfinite(cuda, program, &s.batch, s.params, 3, &position), -1);
        s.params[s.graph.tensors[tensor].offset] = NAN;
        assert_int_equal(cuda->refresh(program, 0, s.params, &err), DPT_OK);
        assert_int_equal(batch_nonfinite(cuda, program, &s.batch, s.params, 3, &position), owner);
        assert_int_equal(position, sub_batch);
        s.params[s.graph.tensors[tensor].offset] = 0;
        assert_int_equal(cuda->refresh(program, 0, s.params, &err), DPT_OK);
        s.batch.input[2 * 3 * 16 + draw_int(&d, 0, 47)] = INFINITY;
        assert_int_equal(batch_nonfinite(cuda, program, &s.batch, s.params, 2, &position) > 0, 0);
        assert_int_equal(batch_nonfinite(cuda, program, &s.batch, s.params, 3, &position), 0);
        assert_int_equal(position, 2);
        cuda->close(program);
        dpt_free(gradient);
        scene_release(&s);
    }
}

/* Convolutions with groups between others, with fewer channels than the tensors' pitch. */
static void groups_init(struct scene *s, uint64_t seed)
{
    struct dpt_window w = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    struct draw d = {seed};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, 3, 5, 5);
    note(s, "groups");
    for (int i = 0; i < 6; i++) {
        w.groups = draw_int(&d, 0, 2) == 0 || i == 5 ? draw_int(&d, 2, 3) : 1;
        at = net_conv(&s->graph, at, 6, &w, draw_int(&d, 0, 1));
    }
    net_dense(&s->graph, net_simple(&s->graph, at, DPT_OP_FLATTEN, 0), 5, true);
    s->outputs = 5;
    s->spec =
        (struct dpt_program_spec){.graph = &s->graph, .micro = 4, .threads = 1, .training = true};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, 4, draw_int(&d, 1, 4), false, &d);
}

/* After a batch that is not finite anywhere the next one, which may be shorter, has the bits of one
 * on a fresh program. */
static void forgets_what_was_not_finite(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct dpt_metric_sums metric_sums = {0}, wanted = {0};
        float *input, *g, *fresh;
        struct scene s;
        size_t floats;

        if (i < 10)
            groups_init(&s, (uint64_t)i);
        else
            any_init(&s, i % 5 ? 500 + i : GRAPHS + i);
        s.spec.reproducible = true;
        s.spec.precision = (enum dpt_precision)(i % DPT_PRECISIONS);
        floats = (size_t)s.spec.micro * (size_t)dpt_shape_size(&s.graph.nodes[0].out);
        input = dpt_alloc_array(floats, sizeof *input);
        g = new_arena(&s), fresh = new_arena(&s);
        void *program = open_program(cuda, &s);

        train(cuda, &s, program, 0, false, fresh, &wanted);
        cuda->close(program);
        program = open_program(cuda, &s);
        memcpy(input, s.batch.input, floats * sizeof *input);
        for (size_t k = 0; k < floats; k++)
            s.batch.input[k] = i % 2 ? NAN : INFINITY;
        const int32_t count = s.batch.batch.count;

        s.batch.batch.count = s.spec.micro;
        train(cuda, &s, program, 0, false, g, &metric_sums);
        memcpy(s.batch.input, input, floats * sizeof *input);
        s.batch.batch.count = count;
        metric_sums = (struct dpt_metric_sums){0};
        train(cuda, &s, program, 0, false, g, &metric_sums);
        if (memcmp(g, fresh, (size_t)s.graph.arena * sizeof *g) != 0 ||
            metric_sums.loss != wanted.loss)
            fail_msg("%s: other bits", s.text);
        cuda->close(program);
        dpt_free(input), dpt_free(g), dpt_free(fresh);
        scene_release(&s);
    }
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* A layer that leads nowhere has a gradient of zero, in ref as here. */
static void dead_ends_have_no_gradient(void **state)
{
    struct dpt_metric_sums wanted = {0}, got = {0};
    struct draw d = {5};
    struct scene s = {0};
    int32_t at = net_input(&s.graph, 6, 1, 1);

    (void)state;
    at = net_dense(&s.graph, at, 9, true);
    net_dense(&s.graph, at, 3, true);
    net_dense(&s.graph, net_simple(&s.graph, at, DPT_OP_TANH, 0), 4, true);
    s.outputs = 4;
    s.spec = (struct dpt_program_spec){
        .graph = &s.graph, .micro = 5, .threads = 1, .training = true, .reproducible = true};
    s.params = net_params(&s.graph, &d);
    batch_fill(&s.batch, &s.graph, 5, 4, false, &d);
    void *ref = open_program(&dpt_backend_ref, &s), *gpu = open_program(cuda, &s);
    float *g_ref = new_arena(&s), *g = new_arena(&s);

    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; i == 0 && k < s.graph.arena; k++)
            g[k] = 1e9f;
        train(&dpt_backend_ref, &s, ref, 0, i == 1, g_ref, &wanted);
        train(cuda, &s, gpu, 0, i == 1, g, &got);
        assert_device_gradients(&s, g, g_ref, 1e-5);
        for (int64_t k = 0; k < s.graph.tensors[2].count; k++)
            assert_true(g[s.graph.tensors[2].offset + k] == 0);
    }
    dpt_backend_ref.close(ref);
    cuda->close(gpu);
    dpt_free(g_ref);
    dpt_free(g);
    scene_release(&s);
}

/* A program that is only for evaluation gives the outputs of one for training, but for rounding if
 * batch norms are part of weights. */
static void evaluates_alike(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPHS + STACKS; i += 7) {
        struct scene s;

        any_init(&s, i);
        s.spec.reproducible = true;
        s.spec.precision = (enum dpt_precision)(i % DPT_PRECISIONS);
        const size_t bytes = s.outputs * (size_t)s.batch.batch.count * sizeof(float);
        float *a = dpt_alloc(bytes), *b = dpt_alloc(bytes);
        bool folds = false;

        for (int training = 0; training < 2; training++) {
            s.spec.training = training;
            void *program = open_program(cuda, &s);

            infer(cuda, &s, program, training ? a : b, NULL);
            folds = folds || dpt_cuda_folds(program);
            cuda->close(program);
        }
        if (folds)
            assert_true(distance(b, a, bytes / sizeof *a, 1e-3) < precision_of(&s)->outputs);
        else
            assert_memory_equal(a, b, bytes);
        dpt_free(a);
        dpt_free(b);
        scene_release(&s);
    }
}

/* The memory of a graph is known without a device, and grows with the micro-batch. */
static void measures_what_it_holds(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i += 3) {
        struct dpt_program_bytes bytes, twice;
        struct dpt_error err;
        struct scene s;

        any_init(&s, i);
        assert_int_equal(cuda->measure(&s.spec, &bytes, &err), DPT_OK);
        s.spec.micro *= 200;
        assert_int_equal(cuda->measure(&s.spec, &twice, &err), DPT_OK);
        assert_true(twice.values > 40 * bytes.values / 2 || twice.values > bytes.values);
        assert_int_equal(twice.copies, bytes.copies);
        s.spec.micro /= 200;
        void *program = open_program(cuda, &s);
        const int64_t held = cuda->bytes(program);

        /* But for the workspace, which is a guess, and for tables. */
        assert_in_range(held, bytes.values / 2,
                        bytes.values + bytes.copies + bytes.scratch + (64 << 20));
        cuda->close(program);
        scene_release(&s);
    }
}

/* Passes are reported per node; a relu that another layer computes is reported with that layer. */
static void tells_where_the_time_goes(void **state)
{
    struct dpt_span_sum sums[DPT_SPAN_NODES + 64 * DPT_SPAN_PASSES] = {{0}};
    struct dpt_spans spans = {.sum = sums};
    struct dpt_metric_sums metric_sums = {0};
    struct scene s;

    (void)state;
    stack_init(&s, 1003);
    void *program = open_program(cuda, &s);
    float *gradient = new_arena(&s);

    cuda->profile(program, 0, &spans);
    dpt_spans_begin(&spans);
    train(cuda, &s, program, 0, false, gradient, &metric_sums);
    cuda->profile(program, 0, NULL);
    assert_true(sums[DPT_SPAN_LOSS].calls > 0 && sums[DPT_SPAN_DATA].calls > 0);
    for (int32_t i = 1; i < s.graph.n_nodes; i++) {
        const int32_t in = cuda->runs_in(program, i, false);

        if (s.graph.nodes[i].op == DPT_OP_FLATTEN)
            continue;
        if (s.graph.nodes[i].op != DPT_OP_RELU)
            assert_int_equal(in, i);
        assert_true(sums[dpt_span_node(in, DPT_PASS_FORWARD)].calls > 0);
        if (s.graph.nodes[i].weight >= 0)
            assert_true(sums[dpt_span_node(i, DPT_PASS_WEIGHTS)].calls > 0);
    }
    cuda->close(program);
    dpt_free(gradient);
    scene_release(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_ref),
        cmocka_unit_test(agrees_in_each_precision),
        cmocka_unit_test(leaves_are_one_after_another),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(finds_nan),
        cmocka_unit_test(forgets_what_was_not_finite),
        cmocka_unit_test(dead_ends_have_no_gradient),
        cmocka_unit_test(evaluates_alike),
        cmocka_unit_test(measures_what_it_holds),
        cmocka_unit_test(tells_where_the_time_goes),
    };

    (void)argc;
    if (!cuda_begin(argv))
        return left_out("neither a GPU nor one that is faked");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return left_out("built without CUDA");
}

#endif

/*
 * A team of any size computes what one thread computes, bit for bit: random graphs without windows,
 * full and short micro-batches, gradients written and added, one micro-batch after another; and
 * with sub-batches, what each of them gives alone.
 */
#include "core/backend/tests/scene.h"

#include "core/backend/backend.h"

enum { GRAPHS = 500, MOST = 4 };

struct crew {
    const struct scene *scene;
    struct dpt_pool *pool;
    void *program;
    float *gradient;
    struct dpt_metric_sums metric_sums[2]; /* of as many sub-batches */
};

static void work(void *arg, int thread)
{
    struct crew *crew = arg;
    struct dpt_metric_sums unused[2] = {0};
    struct dpt_error err;

    /* Sub-batches are never added to a gradient. */
    for (int i = 0; i < (crew->scene->spec.sub_batch > 0 ? 2 : 3); i++) {
        assert_int_equal(dpt_backend_cpu.train(crew->program, thread, &crew->scene->batch.batch,
                                               crew->scene->params, crew->gradient, i > 1,
                                               thread == 0 ? crew->metric_sums : unused, &err),
                         DPT_OK);
        /* When one call has returned all are done: nobody writes there now. */
        for (int64_t k = 0; k < crew->scene->graph.arena; k += 16)
            assert_false(crew->gradient[k] == 1e30f);
        if (crew->pool != NULL)
            dpt_pool_barrier(crew->pool);
    }
    assert_true(unused[0].samples == 0);
}

/* Trains with that many threads, each alone (0) or in a team. */
static void run(const struct scene *s, int threads, struct crew *crew)
{
    struct dpt_program_spec spec = s->spec;
    struct dpt_error err;

    crew->scene = s;
    crew->pool = NULL;
    memset(crew->metric_sums, 0, sizeof crew->metric_sums);
    if (threads > 0)
        assert_int_equal(dpt_pool_open(&crew->pool, threads, false, &err), DPT_OK);
    spec.threads = threads > 0 ? threads : 1;
    spec.team = crew->pool;
    assert_int_equal(dpt_backend_cpu.open(&spec, &crew->program, &err), DPT_OK);
    for (int worker = 0; worker < spec.threads; worker++)
        assert_int_equal(dpt_backend_cpu.refresh(crew->program, worker, s->params, &err), DPT_OK);
    crew->gradient = dpt_alloc_array((size_t)s->graph.arena, sizeof *crew->gradient);
    assert_non_null(crew->gradient);
    for (int64_t i = 0; i < s->graph.arena; i++)
        crew->gradient[i] = 7;
    for (int32_t t = 0; t < s->graph.n_tensors; t++)
        for (int64_t i = 0; i < s->graph.tensors[t].count; i++)
            crew->gradient[s->graph.tensors[t].offset + i] = 1e30f;
    if (threads > 0)
        dpt_pool_run(crew->pool, work, crew);
    else
        work(crew, 0);
    dpt_backend_cpu.close(crew->program);
    dpt_pool_close(crew->pool);
}

static void compare_in(const struct scene *s)
{
    struct crew alone, team;

    run(s, 0, &alone);
    for (int threads = 1; threads <= MOST; threads++) {
        run(s, threads, &team);
        if (memcmp(alone.gradient, team.gradient, (size_t)s->graph.arena * sizeof *team.gradient) !=
            0)
            fail_msg("%s: %d threads: other bits in the gradient", s->text, threads);
        if (alone.metric_sums[0].loss != team.metric_sums[0].loss ||
            alone.metric_sums[0].correct != team.metric_sums[0].correct ||
            alone.metric_sums[0].samples != team.metric_sums[0].samples)
            fail_msg("%s: %d threads: other losses", s->text, threads);
        dpt_free(team.gradient);
    }
    dpt_free(alone.gradient);
}

static void compare(struct scene *s)
{
    compare_in(s);
    s->spec.precision = DPT_PRECISION_BF16;
    compare_in(s);
}

static void teams_have_the_bits_of_one(void **state)
{
    int n = 0;

    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        struct scene s;

        scene_init(&s, seed);
        if (dpt_backend_cpu.teams(&s.graph)) {
            compare(&s);
            n++;
        }
        scene_release(&s);
    }
    assert_true(n > GRAPHS / 10);
}

/* Layers wider than the pieces into which they are cut, and many rows. */
static void wide_layers(void **state)
{
    static const int32_t cases[][4] = {{37, 700, 301, 10}, {784, 256, 10, 128}, {5, 1, 3, 200}};

    (void)state;
    for (uint64_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int32_t *c = cases[i], rows = i == 0 ? 33 : c[3];
        struct scene s = {0};
        struct draw d = {i};
        int32_t at = net_input(&s.graph, c[0], 1, 1);

        at = net_simple(&s.graph, net_dense(&s.graph, at, c[1], true), DPT_OP_RELU, 0);
        at = net_simple(&s.graph, at, DPT_OP_DROPOUT, 0.3f);
        net_dense(&s.graph, at, c[2], true);
        s.spec = (struct dpt_program_spec){.graph = &s.graph,
                                           .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                           .micro = rows,
                                           .threads = 1,
                                           .training = true};
        s.params = net_params(&s.graph, &d);
        batch_fill(&s.batch, &s.graph, rows, rows - 2, false, &d);
        assert_true(dpt_backend_cpu.teams(&s.graph));
        compare(&s);
        scene_release(&s);
    }
}

/* Vectors, or planes, that several layers read, and joins of them. */
static void branches_init(struct scene *s, uint64_t seed)
{
    enum dpt_op ops[DPT_OP_COUNT];
    struct draw d = {seed};
    const bool planes = draw_int(&d, 0, 1);
    const int n = net_operations(1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_NORM |
                                     1 << DPT_CLASS_JOIN | 1 << DPT_CLASS_GEMM,
                                 ops);
    int32_t at = planes ? net_input(&s->graph, 3, draw_int(&d, 2, 5), draw_int(&d, 2, 5))
                        : net_input(&s->graph, draw_int(&d, 1, 40), 1, 1);

    snprintf(s->text, sizeof s->text, "branches, seed %d", (int)seed);
    for (int i = 0; i < 14; i++) {
        enum dpt_op op = ops[draw_int(&d, 0, n - 1)];

        if (i % 3 == 2) /* joins often */
            op = DPT_OP_ADD + (enum dpt_op)(draw_bits(&d) % 3);
        if (planes && i == 8)
            op = DPT_OP_FLATTEN;
        if ((planes && i < 8 && dpt_operations[op]->kind == DPT_CLASS_GEMM) ||
            (op == DPT_OP_CONCAT && dpt_shape_size(&s->graph.nodes[at].out) > 500))
            op = DPT_OP_RELU;
        at = net_any(&s->graph, at, op, &d);
    }
    net_dense(&s->graph, at, draw_int(&d, 1, 12), true);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                        .micro = 2 * draw_int(&d, 1, 9),
                                        .threads = 1,
                                        .training = true};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro), false, &d);
}

/* A team's two sub-batches, the second one short or missing: the sum of what they give alone. */
static void compare_halves(struct scene *s)
{
    const struct owned_batch batch = s->batch;
    const int32_t half = s->spec.micro / 2;
    struct crew together, halves[2];

    s->spec.sub_batch = half;
    run(s, 2, &together);
    s->spec.sub_batch = 0;
    s->spec.micro = half;
    for (int i = 0; i < 2; i++) {
        const int32_t left = batch.batch.count - i * half;

        s->batch.batch.count = left < half ? left : half;
        s->batch.batch.input += i * half * dpt_shape_size(&s->graph.nodes[0].out);
        s->batch.batch.labels += (ptrdiff_t)i * half;
        s->batch.batch.sample += (ptrdiff_t)i * half;
        if (left > 0)
            run(s, 0, &halves[i]);
        for (int64_t k = 0; i > 0 && left > 0 && k < s->graph.arena; k++)
            halves[0].gradient[k] += halves[1].gradient[k];
        if (i > 0 && left > 0)
            dpt_free(halves[1].gradient);
    }
    for (int32_t t = 0; t < s->graph.n_tensors; t++) {
        const struct dpt_tensor *tensor = &s->graph.tensors[t];

        for (int64_t k = 0; k < tensor->count; k++) /* which were added once, exactly doubled */
            together.gradient[tensor->offset + k] *= 2;
        if (memcmp(together.gradient + tensor->offset, halves[0].gradient + tensor->offset,
                   (size_t)tensor->count * sizeof(float)) != 0)
            fail_msg("%s: sub-batches of %d: other bits of %s", s->text, (int)half, tensor->name);
    }
    dpt_free(together.gradient);
    dpt_free(halves[0].gradient);
    s->batch = batch;
}

static void branches(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct scene s = {0};

        branches_init(&s, seed);
        assert_true(dpt_backend_cpu.teams(&s.graph));
        compare(&s);
        compare_halves(&s);
        scene_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(teams_have_the_bits_of_one),
        cmocka_unit_test(wide_layers),
        cmocka_unit_test(branches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

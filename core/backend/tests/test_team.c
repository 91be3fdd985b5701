/*
 * A team of any size computes what one thread computes, bit for bit: random graphs without windows,
 * full and short micro-batches, gradients written and added, one micro-batch after another.
 */
#include "core/backend/tests/scene.h"

#if defined(DPT_WITH_ONEDNN) && DPT_WITH_ONEDNN

#include "core/backend/backend.h"

enum { GRAPHS = 500, MOST = 4 };

struct crew {
    const struct scene *scene;
    struct dpt_pool *pool;
    void *program;
    float *gradient;
    struct dpt_metric_sums metric_sums;
};

static void work(void *arg, int thread)
{
    struct crew *crew = arg;
    struct dpt_metric_sums unused = {0};
    struct dpt_error err;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(dpt_backend_cpu.train(crew->program, thread, &crew->scene->batch.batch,
                                               crew->scene->params, crew->gradient, i > 1,
                                               thread == 0 ? &crew->metric_sums : &unused, &err),
                         DPT_OK);
        /* Done for all when done for one: nobody writes there now. */
        for (int64_t k = 0; k < crew->scene->graph.arena; k += 16)
            assert_false(crew->gradient[k] == 1e30f);
        if (crew->pool != NULL)
            dpt_pool_barrier(crew->pool);
    }
    assert_true(unused.samples == 0);
}

/* Trains with that many threads, each alone (0) or in a team. */
static void run(const struct scene *s, int threads, struct crew *crew)
{
    struct dpt_program_spec spec = s->spec;
    struct dpt_error err;

    crew->scene = s;
    crew->pool = NULL;
    crew->metric_sums = (struct dpt_metric_sums){0};
    if (threads > 0)
        assert_int_equal(dpt_pool_open(&crew->pool, threads, false, &err), DPT_OK);
    spec.threads = threads > 0 ? threads : 1;
    spec.team = crew->pool;
    assert_int_equal(dpt_backend_cpu.open(&spec, &crew->program, &err), DPT_OK);
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

static void compare(const struct scene *s)
{
    struct crew alone, team;

    run(s, 0, &alone);
    for (int threads = 1; threads <= MOST; threads++) {
        run(s, threads, &team);
        if (memcmp(alone.gradient, team.gradient, (size_t)s->graph.arena * sizeof *team.gradient) !=
            0)
            fail_msg("%s: %d threads: other bits in the gradient", s->text, threads);
        if (alone.metric_sums.loss != team.metric_sums.loss ||
            alone.metric_sums.correct != team.metric_sums.correct ||
            alone.metric_sums.samples != team.metric_sums.samples)
            fail_msg("%s: %d threads: other losses", s->text, threads);
        dpt_free(team.gradient);
    }
    dpt_free(alone.gradient);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(teams_have_the_bits_of_one),
        cmocka_unit_test(wide_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 0; /* this build has no such backend */
}

#endif

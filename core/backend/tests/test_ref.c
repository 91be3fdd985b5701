/* The properties of the ref backend beside its gradients: the convolution's definition, adding,
 * workers, batches, branches, messages. */
#include "core/backend/tests/net.h"

#include "core/backend/backend.h"

enum { SENTINEL = 7 };

static void *open_ref(const struct dpt_graph *graph, int32_t micro, int threads, bool training)
{
    const struct dpt_program_spec spec = {.graph = graph,
                                          .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                          .micro = micro,
                                          .threads = threads,
                                          .training = training};
    struct dpt_error err;
    void *program;

    assert_int_equal(dpt_backend_ref.open(&spec, &program, &err), DPT_OK);
    return program;
}

static double train(void *program, int worker, const struct dpt_batch *batch, const float *params,
                    float *gradient, bool add)
{
    struct dpt_metric_sums metric_sums = {0};
    struct dpt_error err;

    assert_int_equal(
        dpt_backend_ref.train(program, worker, batch, params, gradient, add, &metric_sums, &err),
        DPT_OK);
    assert_int_equal(metric_sums.samples, batch->count);
    return metric_sums.loss;
}

/* A small image classifier with everything in it; its dropout is node 5. */
static void small_net(struct dpt_graph *g)
{
    const struct dpt_window conv = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    const struct dpt_window pool = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    int32_t at = net_input(g, 2, 6, 5);

    at = net_conv(g, at, 3, &conv, true);
    at = net_simple(g, at, DPT_OP_GELU, 0);
    at = net_pool(g, at, DPT_OP_MAXPOOL, &pool);
    at = net_simple(g, at, DPT_OP_FLATTEN, 0);
    at = net_simple(g, at, DPT_OP_DROPOUT, 0.4f);
    net_dense(g, at, 5, true);
}

/* y[o][i][j] by its definition (cross-correlation), in double. */
static double conv_at(const struct dpt_graph_node *n, const float *x, const float *weight,
                      int32_t o, int32_t i, int32_t j)
{
    const struct dpt_window *w = &n->window;
    const int32_t channels = n->in.c / w->groups, group = o / (n->out.c / w->groups);
    double sum = 0;

    for (int32_t c = 0; c < channels; c++) {
        for (int32_t a = 0; a < w->kernel[0]; a++) {
            for (int32_t b = 0; b < w->kernel[1]; b++) {
                const int32_t row = i * w->stride[0] + a * w->dilation[0] - w->before[0];
                const int32_t column = j * w->stride[1] + b * w->dilation[1] - w->before[1];

                if (row >= 0 && row < n->in.h && column >= 0 && column < n->in.w)
                    sum += (double)x[((group * channels + c) * n->in.h + row) * n->in.w + column] *
                           weight[((o * channels + c) * w->kernel[0] + a) * w->kernel[1] + b];
            }
        }
    }
    return sum;
}

static void check_conv(struct draw *d, int32_t channels, int32_t h, int32_t w, int32_t filters)
{
    struct dpt_graph g = {0};
    struct dpt_window window = draw_window(d, false, h, w);
    const struct dpt_graph_node *node;
    struct owned_batch data;
    float *params, *y;
    int64_t n;
    void *program;
    struct dpt_error err;

    window.groups = draw_int(d, 1, 3);
    net_conv(&g, net_input(&g, channels * window.groups, h, w), filters * window.groups, &window,
             true);
    node = &g.nodes[1];
    n = dpt_shape_size(&node->out);
    params = net_params(&g, d);
    y = dpt_alloc_array(2 * (size_t)n, sizeof *y);
    program = open_ref(&g, 2, 1, false);
    batch_fill(&data, &g, 2, 2, false, d);
    assert_int_equal(dpt_backend_ref.infer(program, 0, &data.batch, params, y, NULL, &err), DPT_OK);
    for (int64_t at = 0; at < 2 * n; at++) {
        const int32_t o = (int32_t)(at % n / (node->out.h * node->out.w));
        const double want =
            params[g.tensors[1].offset + o] +
            conv_at(node, data.input + at / n * dpt_shape_size(&node->in), params, o,
                    (int32_t)(at / node->out.w % node->out.h), (int32_t)(at % node->out.w));

        if (fabs(y[at] - want) > 1e-5 * (1 + fabs(want)))
            fail_msg("%d groups: y[%lld] is %g, by definition %g", window.groups, (long long)at,
                     y[at], want);
    }
    dpt_backend_ref.close(program);
    dpt_free(params);
    dpt_free(y);
    batch_release(&data);
    dpt_graph_release(&g);
}

/* Small convolutions of every kind, and a few that are larger than one band or one panel of the
 * matrix product. */
static void conv_is_its_definition(void **state)
{
    struct draw d = {1};

    (void)state;
    for (int k = 0; k < 300; k++)
        check_conv(&d, draw_int(&d, 1, 3), draw_int(&d, 1, 9), draw_int(&d, 1, 9),
                   draw_int(&d, 1, 4));
    for (int k = 0; k < 6; k++)
        check_conv(&d, draw_int(&d, 20, 40), draw_int(&d, 10, 30), draw_int(&d, 10, 30),
                   draw_int(&d, 1, 6));
}

/* `add` adds to what is there, false overwrites it, and the floats between tensors stay. */
static void gradients_are_written_or_added(void **state)
{
    struct dpt_graph g = {0};
    struct draw d = {2};
    struct owned_batch data;
    float *params, *plain, *added;
    void *program;

    (void)state;
    small_net(&g);
    batch_fill(&data, &g, 4, 3, false, &d);
    params = net_params(&g, &d);
    plain = dpt_alloc_array((size_t)g.arena, sizeof *plain);
    added = dpt_alloc_array((size_t)g.arena, sizeof *added);
    program = open_ref(&g, 4, 1, true);
    for (int64_t i = 0; i < g.arena; i++)
        plain[i] = added[i] = SENTINEL;
    train(program, 0, &data.batch, params, plain, false);
    train(program, 0, &data.batch, params, added, true);
    for (int32_t t = 0; t < g.n_tensors; t++) {
        const int64_t begin = g.tensors[t].offset, end = begin + g.tensors[t].count;
        const int64_t next = net_tensor_end(&g.tensors[t]);
        double size = 0;

        for (int64_t i = begin; i < end; i++) {
            assert_true(fabsf(added[i] - plain[i] - SENTINEL) < 1e-5);
            size += fabsf(plain[i]);
        }
        assert_true(size > 0);
        for (int64_t i = end; i < next; i++)
            assert_true(plain[i] == SENTINEL && added[i] == SENTINEL);
    }
    dpt_backend_ref.close(program);
    dpt_free(params);
    dpt_free(plain);
    dpt_free(added);
    batch_release(&data);
    dpt_graph_release(&g);
}

/* A batch's loss and gradient are the sums of its samples', dropout included; workers give the same
 * bits. */
static void batches_are_sums_of_samples(void **state)
{
    enum { COUNT = 5 };
    struct dpt_graph g = {0};
    struct draw d = {3};
    struct owned_batch data;
    float *params, *whole, *sum;
    void *program;
    double loss, parts = 0;
    size_t in;

    (void)state;
    small_net(&g);
    batch_fill(&data, &g, COUNT, COUNT, false, &d);
    params = net_params(&g, &d);
    whole = dpt_alloc_array((size_t)g.arena, sizeof *whole);
    sum = dpt_alloc_array((size_t)g.arena, sizeof *sum);
    program = open_ref(&g, COUNT, 2, true);
    in = (size_t)dpt_shape_size(&g.nodes[0].out);
    loss = train(program, 0, &data.batch, params, whole, false);
    assert_true(train(program, 1, &data.batch, params, sum, false) == loss);
    assert_memory_equal(sum, whole, (size_t)g.arena * sizeof *sum);
    for (int32_t i = 0; i < COUNT; i++) {
        struct dpt_batch one = data.batch;

        one.count = 1;
        one.input += (size_t)i * in;
        one.labels += i;
        one.sample += i;
        parts += train(program, i % 2, &one, params, sum, i > 0);
    }
    assert_true(fabs(parts - loss) < 1e-5 * loss);
    for (int64_t i = 0; i < g.arena; i++)
        assert_true(fabsf(sum[i] - whole[i]) < 1e-5 * (1 + fabsf(whole[i])));
    dpt_backend_ref.close(program);
    dpt_free(params);
    dpt_free(whole);
    dpt_free(sum);
    batch_release(&data);
    dpt_graph_release(&g);
}

/* Evaluation drops nothing: it equals training at rate 0, for a program that can train and for one
 * that cannot. */
static void evaluation_drops_nothing(void **state)
{
    struct dpt_graph g = {0};
    struct draw d = {4};
    struct owned_batch data;
    struct dpt_metric_sums metric_sums = {0};
    struct dpt_error err;
    float *params, *gradient;
    void *program;
    double dropped, kept;

    (void)state;
    small_net(&g);
    batch_fill(&data, &g, 4, 4, true, &d);
    params = net_params(&g, &d);
    gradient = dpt_alloc_array((size_t)g.arena, sizeof *gradient);
    program = open_ref(&g, 4, 1, true);
    dropped = train(program, 0, &data.batch, params, gradient, false);
    g.nodes[5].attribute[0] = 0;
    kept = train(program, 0, &data.batch, params, gradient, false);
    g.nodes[5].attribute[0] = 0.4f;
    assert_true(fabs(dropped - kept) > 1e-3);
    assert_int_equal(
        dpt_backend_ref.infer(program, 0, &data.batch, params, NULL, &metric_sums, &err), DPT_OK);
    assert_true(metric_sums.loss == kept);
    dpt_backend_ref.close(program);
    metric_sums.loss = 0;
    program = open_ref(&g, 4, 1, false);
    assert_int_equal(
        dpt_backend_ref.infer(program, 0, &data.batch, params, NULL, &metric_sums, &err), DPT_OK);
    assert_true(metric_sums.loss == kept);
    dpt_backend_ref.close(program);
    dpt_free(params);
    dpt_free(gradient);
    batch_release(&data);
    dpt_graph_release(&g);
}

/* Nodes that read the same one add up: branches that lead nowhere add zero, and their own
 * parameters get zero. */
static void branches_add_up(void **state)
{
    static const int32_t counterpart[] = {0, 1, 4, 5}; /* of the chain's tensors */
    struct dpt_graph chain = {0}, branched = {0};
    struct draw d = {5};
    struct owned_batch data;
    int32_t at, fork;
    float *params[2], *gradient[2];
    void *program;
    double loss;

    (void)state;
    at = net_dense(&chain, net_input(&chain, 6, 1, 1), 8, true);
    at = net_simple(&chain, at, DPT_OP_TANH, 0);
    net_dense(&chain, at, 4, true);
    fork = net_dense(&branched, net_input(&branched, 6, 1, 1), 8, true);
    net_simple(&branched, fork, DPT_OP_SIGMOID, 0);
    at = net_simple(&branched, fork, DPT_OP_TANH, 0);
    net_dense(&branched, at, 3, true);
    net_dense(&branched, at, 4, true);

    batch_fill(&data, &chain, 3, 3, false, &d);
    params[0] = net_params(&chain, &d);
    params[1] = net_params(&branched, &d);
    gradient[0] = dpt_alloc_array((size_t)chain.arena, sizeof(float));
    gradient[1] = dpt_alloc_array((size_t)branched.arena, sizeof(float));
    for (int32_t t = 0; t < chain.n_tensors; t++)
        memcpy(params[1] + branched.tensors[counterpart[t]].offset,
               params[0] + chain.tensors[t].offset, (size_t)chain.tensors[t].count * sizeof(float));
    for (int64_t i = 0; i < branched.arena; i++)
        gradient[1][i] = SENTINEL;
    program = open_ref(&chain, 3, 1, true);
    loss = train(program, 0, &data.batch, params[0], gradient[0], false);
    dpt_backend_ref.close(program);
    program = open_ref(&branched, 3, 1, true);
    for (int again = 0; again < 2; again++)
        assert_true(train(program, 0, &data.batch, params[1], gradient[1], false) == loss);
    dpt_backend_ref.close(program);

    for (int32_t t = 0; t < chain.n_tensors; t++)
        assert_memory_equal(gradient[1] + branched.tensors[counterpart[t]].offset,
                            gradient[0] + chain.tensors[t].offset,
                            (size_t)chain.tensors[t].count * sizeof(float));
    for (int32_t t = 2; t < 4; t++) {
        for (int64_t i = 0; i < branched.tensors[t].count; i++)
            assert_true(gradient[1][branched.tensors[t].offset + i] == 0);
    }
    for (int k = 0; k < 2; k++) {
        dpt_free(params[k]);
        dpt_free(gradient[k]);
    }
    batch_release(&data);
    dpt_graph_release(&chain);
    dpt_graph_release(&branched);
}

/* The first node and the sample with a number that is not finite are found: from the input, and
 * from weights; through ReLU and max-pool. */
static void what_is_not_finite_is_found(void **state)
{
    struct dpt_graph g = {0};
    struct draw d = {6};
    struct owned_batch data;
    float *params, *gradient;
    void *program;
    int32_t position = -1;
    float kept;

    (void)state;
    small_net(&g);
    g.nodes[2].op = DPT_OP_RELU;
    batch_fill(&data, &g, 4, 3, false, &d);
    params = net_params(&g, &d);
    gradient = dpt_alloc_array((size_t)g.arena, sizeof *gradient);
    program = open_ref(&g, 4, 1, true);
    train(program, 0, &data.batch, params, gradient, false);
    assert_int_equal(batch_nonfinite(&dpt_backend_ref, program, &data, params, 3, &position), -1);

    kept = data.input[2 * 60 + 7];
    data.input[2 * 60 + 7] = NAN;
    assert_false(isfinite(train(program, 0, &data.batch, params, gradient, false)));
    assert_int_equal(batch_nonfinite(&dpt_backend_ref, program, &data, params, 3, &position), 0);
    assert_int_equal(position, 2);
    assert_int_equal(batch_nonfinite(&dpt_backend_ref, program, &data, params, 2, &position), -1);
    data.input[2 * 60 + 7] = INFINITY;
    assert_int_equal(batch_nonfinite(&dpt_backend_ref, program, &data, params, 3, &position), 0);
    assert_int_equal(position, 2);
    data.input[2 * 60 + 7] = kept;

    params[g.tensors[1].offset + 1] = -INFINITY;
    assert_int_equal(batch_nonfinite(&dpt_backend_ref, program, &data, params, 3, &position), 1);
    params[g.tensors[1].offset + 1] = NAN;
    assert_false(isfinite(train(program, 0, &data.batch, params, gradient, false)));
    assert_int_equal(batch_nonfinite(&dpt_backend_ref, program, &data, params, 3, &position), 1);
    assert_int_equal(position, 0);
    dpt_backend_ref.close(program);
    dpt_free(params);
    dpt_free(gradient);
    batch_release(&data);
    dpt_graph_release(&g);
}

static void impossible_graphs_are_refused(void **state)
{
    const struct dpt_window pool = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    struct dpt_graph g = {0};
    struct dpt_program_spec spec = {.graph = &g, .micro = 1, .threads = 1, .training = true};
    struct dpt_error err = {0};
    void *program = &g;

    (void)state;
    net_pool(&g, net_input(&g, 1, 4, 4), DPT_OP_MAXPOOL, &pool);
    g.nodes[1].out = (struct dpt_shape){1 << 30, 1 << 30, 4, false};
    assert_int_equal(dpt_backend_ref.open(&spec, &program, &err), DPT_RANK);
    assert_null(program);
    dpt_backend_ref.close(NULL);
    dpt_graph_release(&g);
}

static void backends_are_found_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; dpt_backends[i] != NULL; i++) {
        assert_ptr_equal(dpt_backend_find(dpt_backends[i]->name), dpt_backends[i]);
        assert_true(strlen(dpt_backends[i]->describe()) > 0);
    }
    assert_ptr_equal(dpt_backend_find("ref"), &dpt_backend_ref);
    assert_null(dpt_backend_find("re"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_is_its_definition),
        cmocka_unit_test(gradients_are_written_or_added),
        cmocka_unit_test(batches_are_sums_of_samples),
        cmocka_unit_test(evaluation_drops_nothing),
        cmocka_unit_test(branches_add_up),
        cmocka_unit_test(what_is_not_finite_is_found),
        cmocka_unit_test(impossible_graphs_are_refused),
        cmocka_unit_test(backends_are_found_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

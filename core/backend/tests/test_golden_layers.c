/*
 * Single layers against PyTorch's numbers, in every backend of this build.
 *
 * A backend shows no gradient of its input. So the input is one-hot by sample, and a convolution in
 * front (its kernel as large as the image, padded so that each output meets one weight of each
 * sample) makes the layer's input out of its weights: their gradient is the gradient that the layer
 * passes back.
 */
#include "core/backend/devices.h"
#include "core/backend/tests/net.h"

enum { CELLS = 160, WEIGHTS = 128 };

struct golden {
    const char *name;
    enum dpt_op op;
    int32_t count;
    struct dpt_shape in, out;
    struct dpt_window window;
    float attribute[DPT_MAX_ATTRIBUTES];
    float x[CELLS], target[CELLS];
    double y[CELLS], dx[CELLS];
    int32_t n_weight, n_bias;
    float weight[WEIGHTS], bias[WEIGHTS];
    double dweight[WEIGHTS], dbias[WEIGHTS];
    /* For batch norm, before and after a step; y is what the statistics before give in
     * evaluation. */
    float mean[WEIGHTS], variance[WEIGHTS];
    double new_mean[WEIGHTS], new_variance[WEIGHTS];
};

static const struct golden goldens[] = {
#include "core/backend/tests/golden_layers.h"
};

/* There are PyTorch's numbers for every operation but dropout, whose masks are our own, and joins,
 * each number of which is one addition, one product or a copy. */
static void all_are_here(void **state)
{
    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        bool found = op == DPT_OP_INPUT || op == DPT_OP_DROPOUT ||
                     dpt_operations[op]->kind == DPT_CLASS_JOIN;

        for (size_t k = 0; k < sizeof goldens / sizeof *goldens; k++)
            found |= goldens[k].op == (enum dpt_op)op;
        if (!found)
            fail_msg("%s: no case in golden_layers.h", dpt_operations[op]->name);
    }
}

/* The place of element i of a golden's sample in the front's weight tensor. */
static int64_t front_place(const struct golden *g, int32_t sample, int32_t i)
{
    const int32_t plane = g->in.h * g->in.w;

    /* The kernel is laid over the one input pixel from the bottom right: mirrored. */
    return ((int64_t)(i / plane) * g->count + sample) * plane + (plane - 1 - i % plane);
}

static int32_t add_front(struct dpt_graph *graph, const struct golden *g)
{
    const int32_t input = net_input(graph, g->count, 1, 1);
    const struct dpt_window w = {.kernel = {g->in.h, g->in.w},
                                 .stride = {1, 1},
                                 .dilation = {1, 1},
                                 .before = {g->in.h - 1, g->in.w - 1},
                                 .after = {g->in.h - 1, g->in.w - 1},
                                 .groups = 1};

    if (g->in.flat)
        return net_dense(graph, input, g->in.c, false);
    graph->nodes[input].in.flat = graph->nodes[input].out.flat = false;
    return net_conv(graph, input, g->in.c, &w, false);
}

static void add_layer(struct dpt_graph *graph, const struct golden *g)
{
    const int32_t front = add_front(graph, g);
    struct dpt_graph_node node = net_after(graph, front, g->op, "layer");
    int32_t last;

    node.window = g->window;
    if (g->op == DPT_OP_GLOBAL_AVGPOOL) /* it has none */
        node.window = (struct dpt_window){0};
    memcpy(node.attribute, g->attribute, sizeof node.attribute);
    node.out = g->out;
    last = net_add(graph, &node, g->n_bias > 0);
    assert_memory_equal(&graph->nodes[last].out, &g->out, 3 * sizeof(int32_t));
}

static void near(const struct golden *g, const char *what, int64_t i, double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want))))
        fail_msg("%s: %s[%lld] is %.9g, PyTorch %.9g", g->name, what, (long long)i, got, want);
}

static void compare_gradients(const struct golden *g, const struct dpt_graph *graph,
                              const float *gradient)
{
    const int32_t in = (int32_t)dpt_shape_size(&g->in);

    for (int32_t s = 0; s < g->count; s++) {
        for (int32_t i = 0; i < in; i++)
            near(g, "dx", s * in + i, gradient[front_place(g, s, i)], g->dx[s * in + i]);
    }
    for (int32_t i = 0; i < g->n_weight; i++)
        near(g, "dweight", i, gradient[graph->tensors[1].offset + i], g->dweight[i]);
    for (int32_t i = 0; i < g->n_bias; i++)
        near(g, "dbias", i, gradient[graph->tensors[2].offset + i], g->dbias[i]);
}

/* The change of the running statistics by a step. */
static void compare_state(const struct golden *g, const struct dpt_graph *graph,
                          const float *gradient, float *params)
{
    const struct dpt_step_samples samples = {g->count, g->count, g->count};

    dpt_graph_update_state(graph, &samples, gradient, params);
    for (int32_t i = 0; graph->arena > graph->floats && i < g->n_weight; i++) {
        near(g, "mean", i, params[graph->tensors[3].offset + i], g->new_mean[i]);
        near(g, "variance", i, params[graph->tensors[4].offset + i], g->new_variance[i]);
    }
}

static void check(const struct dpt_backend *backend, const struct golden *g)
{
    const int32_t in = (int32_t)dpt_shape_size(&g->in), out = (int32_t)dpt_shape_size(&g->out);
    struct dpt_graph graph = {0};
    struct dpt_program_spec spec = {.graph = &graph,
                                    .loss = {DPT_LOSS_MSE, 0},
                                    .micro = g->count + 1, /* a short one */
                                    .threads = 1,
                                    .training = true};
    float hot[20] = {0}, y[CELLS], *params, *gradient;
    const int64_t sample[4] = {0, 1, 2, 3};
    const struct dpt_batch batch = {
        .count = g->count, .input = hot, .targets = g->target, .sample = sample};
    struct dpt_metric_sums metric_sums = {0};
    struct dpt_error err = {0};
    void *program;

    add_layer(&graph, g);
    params = dpt_alloc_array((size_t)graph.arena, sizeof *params);
    gradient = dpt_alloc_array((size_t)graph.arena, sizeof *gradient);
    for (int32_t s = 0; s < g->count; s++) {
        hot[s * g->count + s] = 1;
        for (int32_t i = 0; i < in; i++)
            params[front_place(g, s, i)] = g->x[s * in + i];
    }
    if (g->n_weight > 0)
        memcpy(params + graph.tensors[1].offset, g->weight, (size_t)g->n_weight * sizeof(float));
    if (g->n_bias > 0)
        memcpy(params + graph.tensors[2].offset, g->bias, (size_t)g->n_bias * sizeof(float));

    if (graph.arena > graph.floats) {
        memcpy(params + graph.tensors[3].offset, g->mean, (size_t)g->n_weight * sizeof(float));
        memcpy(params + graph.tensors[4].offset, g->variance, (size_t)g->n_weight * sizeof(float));
    }

    if (backend->open(&spec, &program, &err) != DPT_OK)
        fail_msg("%s: %s", g->name, err.text);
    assert_int_equal(backend->refresh(program, 0, params, &err), DPT_OK);
    assert_int_equal(backend->infer(program, 0, &batch, params, y, NULL, &err), DPT_OK);
    for (int32_t i = 0; i < g->count * out; i++)
        near(g, "y", i, y[i], g->y[i]);
    assert_int_equal(
        backend->train(program, 0, &batch, params, gradient, false, &metric_sums, &err), DPT_OK);
    compare_gradients(g, &graph, gradient);
    compare_state(g, &graph, gradient, params);
    backend->close(program);
    dpt_free(params);
    dpt_free(gradient);
    dpt_graph_release(&graph);
}

static void as_pytorch(void **state)
{
    (void)state;
    for (size_t b = 0; dpt_backends[b] != NULL; b++) {
        const struct dpt_backend_devices *devices = dpt_backends[b]->devices;
        struct dpt_error err = {0};
        int count;

        if (devices != NULL && devices->count(&count, &err) != DPT_OK) {
            print_message("backend %s: left out: %s\n", dpt_backends[b]->name, err.text);
            continue;
        }
        for (size_t k = 0; k < sizeof goldens / sizeof *goldens; k++)
            check(dpt_backends[b], &goldens[k]);
        print_message("backend %s: %zu cases\n", dpt_backends[b]->name,
                      sizeof goldens / sizeof *goldens);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_here),
        cmocka_unit_test(as_pytorch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

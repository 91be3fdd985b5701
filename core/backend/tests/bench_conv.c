/*
 * Measures a convolutional network's step on one thread:
 *
 *   build/tests/bench_conv [cnn | mnistcnn | residual | depthwise] [micro-batch] [rounds]
 *
 * It prints a Markdown table, milliseconds per 128 samples (the fastest of the rounds): the time of
 * each node, forward and backward, inside the program; oneDNN's direct primitives for the same
 * passes, alone; and the floating-point operations over the peak that a loop of multiply-adds
 * reaches here.
 */
#include "core/backend/tests/net.h"

#include "core/backend/backend.h"
#include "core/backend/cpu/program/program.h"
#include "core/base/clock.h"

enum { SAMPLES = 128, NODES = 24 };

struct times {
    double forward[NODES], backward[NODES], whole;
};

/* A convolution of each channel, and one of each pixel, at 56 x 56, 28 x 28 and 14 x 14. */
static void build_depthwise(struct dpt_graph *g)
{
    struct dpt_window each = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    struct dpt_window point = {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1};
    int32_t at = net_conv(g, net_input(g, 3, 56, 56), 64, &each, false);

    for (int32_t channels = 64; channels <= 256; channels *= 2) {
        each.groups = channels;
        at = net_simple(g, net_conv(g, at, channels, &each, true), DPT_OP_RELU, 0);
        point.stride[0] = point.stride[1] = channels < 256 ? 2 : 1;
        at = net_simple(g, net_conv(g, at, 2 * channels, &point, true), DPT_OP_RELU, 0);
    }
    net_dense(g, net_simple(g, at, DPT_OP_GLOBAL_AVGPOOL, 0), 10, true);
}

static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};

/* Two blocks of a network for CIFAR, and one that halves. */
static void build_residual(struct dpt_graph *g)
{
    const struct dpt_window half = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {0, 0}, 1};
    const struct dpt_window project = {{1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    int32_t at = net_conv(g, net_input(g, 3, 32, 32), 16, &same, true);

    at = net_simple(g, at, DPT_OP_RELU, 0);
    for (int i = 0; i < 3; i++) {
        const int32_t channels = i < 2 ? 16 : 32;
        int32_t branch = net_conv(g, at, channels, i < 2 ? &same : &half, true);

        branch = net_conv(g, net_simple(g, branch, DPT_OP_RELU, 0), channels, &same, true);
        if (i == 2)
            at = net_conv(g, at, channels, &project, true);
        at = net_simple(g, net_join(g, branch, at, DPT_OP_ADD), DPT_OP_RELU, 0);
    }
    net_dense(g, net_simple(g, at, DPT_OP_GLOBAL_AVGPOOL, 0), 10, true);
}

static void build(struct dpt_graph *g, bool mnist)
{
    const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    int32_t at = mnist ? net_input(g, 1, 28, 28) : net_input(g, 3, 32, 32);

    for (int32_t channels = 32; channels <= 64; channels *= 2) {
        at = net_simple(g, net_conv(g, at, channels, &same, true), DPT_OP_RELU, 0);
        at = net_pool(g, at, DPT_OP_MAXPOOL, &halve);
    }
    at = net_simple(g, at, DPT_OP_FLATTEN, 0);
    if (mnist)
        at = net_simple(g, net_dense(g, at, 128, true), DPT_OP_RELU, 0);
    net_dense(g, at, 10, true);
}

static void run_node(const struct dpt_cpu_run *run, int32_t i, bool backward, double *least)
{
    const struct dpt_cpu_node *node = &run->program->nodes[i];
    const double start = dpt_now();

    for (int32_t k = 0; k < node->n_inputs && !backward; k++)
        if (node->reorder[k] != DPT_CPU_NONE)
            dpt_cpu_execute(run, node->reorder[k]);
    if (node->op->forward != NULL)
        (backward ? node->op->backward : node->op->forward)(run, node);
    if (backward)
        dpt_cpu_pass_back(run, node);
    keep_least(least, dpt_now() - start);
}

/* One micro-batch, node by node, as program.c runs it. */
static void run_nodes(const struct dpt_cpu_run *run, struct times *t)
{
    const struct dpt_cpu_program *program = run->program;
    const struct dpt_cpu_node *last = &program->nodes[program->n_nodes - 1];
    struct dpt_metric_sums metric_sums = {0};

    for (int32_t i = 1; i < program->n_nodes; i++)
        if (!program->nodes[i].skipped)
            run_node(run, i, false, &t->forward[i]);
    dpt_loss_rows(&program->spec.loss, run->batch, last->out.c, (size_t)last->out.c,
                  dpt_cpu_buffer(run, last->y), dpt_cpu_buffer(run, last->dy), &metric_sums);
    for (int32_t i = program->n_nodes - 1; i > 0; i--)
        if (!program->nodes[i].skipped && program->nodes[i].wants_dy)
            run_node(run, i, true, &t->backward[i]);
}

static double primitive(struct dpt_dnnl *dnnl, enum dpt_conv_pass pass,
                        const struct dpt_conv_shape *shape, int rounds)
{
    struct dpt_kernel *forward, *kernel;
    struct dpt_call *call;
    struct dpt_error err;
    double least = 0;
    float *memory[DPT_ROLE_COUNT] = {0}, *scratch;

    if (dpt_kernel_conv(dnnl, DPT_CONV_FORWARD, shape, DPT_LAYOUT_ANY, DPT_LAYOUT_ANY, &forward,
                        &err) != DPT_OK ||
        dpt_kernel_conv(dnnl, pass, shape, forward->layout[DPT_ROLE_X], forward->layout[DPT_ROLE_Y],
                        &kernel, &err) != DPT_OK)
        return 0;
    scratch = dpt_alloc_array((size_t)kernel->scratch + 1, sizeof *scratch);
    dpt_call_open(&call, dnnl, 0, kernel, scratch, &err);
    for (int role = 0; role < DPT_ROLE_COUNT; role++) {
        const int64_t floats = kernel->floats[role];

        memory[role] = dpt_alloc_array((size_t)floats, sizeof *memory[role]);
        for (int64_t i = 0; i < floats; i++)
            memory[role][i] = (float)(i % 1013) * 1e-3f - 0.5f;
        dpt_call_set(call, (enum dpt_role)role, memory[role]);
    }
    for (int i = 0; i < rounds; i++) {
        const double start = dpt_now();

        dpt_call_run(call, &err);
        keep_least(&least, dpt_now() - start);
    }
    dpt_call_close(call);
    dpt_kernel_close(kernel);
    dpt_kernel_close(forward);
    for (int role = 0; role < DPT_ROLE_COUNT; role++)
        dpt_free(memory[role]);
    dpt_free(scratch);
    return least;
}

/* Multiply-adds per second of a matrix product that stays in the cache: about the machine's
 * peak. */
static double peak(void)
{
    enum { N = 384 };
    float *m = dpt_alloc_array((size_t)3 * N * N, sizeof *m);
    struct dpt_error err;
    double least = 0;

    for (int i = 0; i < 40; i++) {
        const double start = dpt_now();

        dpt_dnnl_gemm(N, N, N, m, m + N * N, m + 2 * N * N, &err);
        keep_least(&least, dpt_now() - start);
    }
    dpt_free(m);
    return (double)N * N * N / least;
}

static void print_node(const struct dpt_cpu_program *program, int32_t i, const struct times *t,
                       double speed, int rounds, double *direct, double *ours)
{
    const struct dpt_cpu_node *node = &program->nodes[i];
    const double scale = 1e3 * SAMPLES / program->spec.micro;
    double passes[3] = {0}, limit = 0;

    if (node->op == &dpt_cpu_conv) {
        const struct dpt_conv_shape shape = dpt_cpu_conv_shape(program, node);

        limit = (double)SAMPLES * node->out.c * node->out.h * node->out.w * node->in.c /
                shape.window.groups * shape.window.kernel[0] * shape.window.kernel[1] / speed * 1e3;
        for (int pass = 0; pass < 3; pass++)
            if (pass != DPT_CONV_BACKWARD_DATA || node->wants_dx)
                passes[pass] =
                    scale * primitive(program->dnnl, (enum dpt_conv_pass)pass, &shape, rounds);
    }
    printf("| %s | %.3f | %.3f |", node->name, scale * t->forward[i], scale * t->backward[i]);
    if (node->op == &dpt_cpu_conv)
        printf(" %.3f | %.3f | %.3f | %.3f |\n", passes[0], passes[1], passes[2], limit);
    else
        printf(" | | | |\n");
    *direct += passes[0] + passes[1] + passes[2];
    *ours += scale * (t->forward[i] + t->backward[i]);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "cnn";
    const int32_t micro = argc > 2 ? atoi(argv[2]) : 8;
    const int rounds = argc > 3 ? atoi(argv[3]) : 100;
    struct dpt_graph graph = {0};
    struct draw d = {1};
    struct owned_batch batch;
    struct times t = {0};
    struct dpt_error err;
    double direct = 0, ours = 0, speed;
    enum dpt_status status = DPT_OK;
    void *opened;

    if (strcmp(name, "residual") == 0)
        build_residual(&graph);
    else if (strcmp(name, "depthwise") == 0)
        build_depthwise(&graph);
    else
        build(&graph, strcmp(name, "mnistcnn") == 0);
    const struct dpt_program_spec spec = {.graph = &graph,
                                          .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                          .micro = micro < 1 ? 1 : micro,
                                          .threads = 1,
                                          .training = true};
    float *params = net_params(&graph, &d);
    float *gradient = dpt_alloc_array((size_t)graph.arena, sizeof *gradient);
    batch_fill(&batch, &graph, spec.micro, spec.micro, false, &d);
    if (gradient == NULL || dpt_backend_cpu.open(&spec, &opened, &err) != DPT_OK ||
        dpt_backend_cpu.refresh(opened, 0, params, &err) != DPT_OK)
        return 1;
    const struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_run run = {.program = program,
                                    .worker = &program->workers[0],
                                    .scratch = program->workers[0].memory,
                                    .threads = 1,
                                    .rows = spec.micro,
                                    .batch = &batch.batch,
                                    .params = params,
                                    .gradient = gradient,
                                    .add = true,
                                    .training = true,
                                    .status = &status,
                                    .err = &err};
    for (int i = 0; i < rounds; i++) {
        struct dpt_metric_sums metric_sums = {0};
        const double start = dpt_now();

        dpt_backend_cpu.train(opened, 0, &batch.batch, params, gradient, true, &metric_sums, &err);
        keep_least(&t.whole, dpt_now() - start);
        run_nodes(&run, &t);
    }
    speed = peak();
    printf("%s, micro-batch %d, %s; peak %.0f GFLOP/s (a matrix product in the cache)\n\n", name,
           (int)spec.micro, dpt_backend_cpu.describe(), 2e-9 * speed);
    printf(
        "| ms per %d samples | forward | backward | direct forward | data | weights | limit of a "
        "pass |\n|---|---|---|---|---|---|---|\n",
        SAMPLES);
    for (int32_t i = 1; i < program->n_nodes; i++)
        if (!program->nodes[i].skipped)
            print_node(program, i, &t, speed, rounds, &direct, &ours);
    printf("\nnodes together %.3f, a whole pass %.3f, direct primitives %.3f: %.0f %% of them\n",
           ours, 1e3 * SAMPLES / spec.micro * t.whole, direct,
           100 * direct / (1e3 * SAMPLES / spec.micro * t.whole));
    dpt_backend_cpu.close(opened);
    dpt_free(params);
    dpt_free(gradient);
    batch_release(&batch);
    dpt_graph_release(&graph);
    return 0;
}

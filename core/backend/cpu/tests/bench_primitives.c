/*
 * A residual network's step beside oneDNN's own primitives, on one thread:
 *
 *   build/tests/bench_primitives [resnet20 | resnet18] [bf16 | fp32] [micro-batch] [rounds]
 *
 * Prints a Markdown table, milliseconds per 128 samples (the fastest of the rounds): oneDNN's
 * convolutions in the layouts and by the algorithm that it chooses (forward, data, weights); its
 * batch norms of their outputs, fused with a relu (forward, backward); its sums with a relu. Then
 * their sum, and what `train` of this backend takes for the whole network, loss and all. Each
 * primitive runs alone, on memory of its own; layouts are not converted from one to the next.
 */
#include "core/backend/tests/net.h"

#if defined(DPT_WITH_ONEDNN) && DPT_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

#if defined(DNNL_VERSION_MAJOR) && DNNL_VERSION_MAJOR == 2

#include "core/base/clock.h"

enum { SAMPLES = 128, ARGUMENTS = 16 };

/* What the primitives are made with. */
struct library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_data_type_t type; /* of activations and weights */
    int32_t micro;
    int rounds;
    double sum; /* milliseconds per 128 samples so far */
};

static void must(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
        exit(1);
    }
}

/* --- the networks ----------------------------------------------------------------------------- */

static int32_t add_conv(struct dpt_graph *g, int32_t from, int32_t channels, int32_t kernel,
                        int32_t stride, bool relu)
{
    const int32_t side = kernel / 2;
    const struct dpt_window w = {{kernel, kernel}, {stride, stride}, {1, 1},
                                 {side, side},     {side, side},     1};
    const int32_t at =
        net_simple(g, net_conv(g, from, channels, &w, false), DPT_OP_BATCHNORM, 1e-5f);

    return relu ? net_simple(g, at, DPT_OP_RELU, 0) : at;
}

/* Of basic blocks (He et al. 2016), `blocks` for each size. */
static void build(struct dpt_graph *g, int32_t pixels, int32_t channels, int sizes, int blocks,
                  bool wide_stem)
{
    const struct dpt_window pool = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 1};
    int32_t at = net_input(g, 3, pixels, pixels);

    at = add_conv(g, at, channels, wide_stem ? 7 : 3, wide_stem ? 2 : 1, true);
    if (wide_stem)
        at = net_pool(g, at, DPT_OP_MAXPOOL, &pool);
    for (int size = 0; size < sizes; size++, channels *= 2)
        for (int i = 0; i < blocks; i++) {
            const int32_t stride = size > 0 && i == 0 ? 2 : 1;
            const int32_t branch =
                add_conv(g, add_conv(g, at, channels, 3, stride, true), channels, 3, 1, false);

            if (stride > 1)
                at = add_conv(g, at, channels, 1, stride, false);
            at = net_simple(g, net_join(g, branch, at, DPT_OP_ADD), DPT_OP_RELU, 0);
        }
    net_dense(g, net_simple(g, at, DPT_OP_GLOBAL_AVGPOOL, 0), 10, true);
}

/* --- primitives ------------------------------------------------------------------------------- */

/* Milliseconds per 128 samples of a primitive on memory of its own, the fastest of the rounds. */
static double time_of(struct library *o, const_dnnl_primitive_desc_t pd)
{
    static const int codes[] = {
        DNNL_ARG_SRC_0,      DNNL_ARG_SRC_1,    DNNL_ARG_DST,       DNNL_ARG_WEIGHTS,
        DNNL_ARG_BIAS,       DNNL_ARG_MEAN,     DNNL_ARG_VARIANCE,  DNNL_ARG_WORKSPACE,
        DNNL_ARG_DIFF_SRC_0, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_WEIGHTS,
    };
    dnnl_exec_arg_t args[ARGUMENTS];
    void *memory[ARGUMENTS];
    dnnl_primitive_t primitive;
    double least = 0;
    int n = 0;

    must(dnnl_primitive_create(&primitive, pd), "a primitive");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        const dnnl_memory_desc_t *md =
            dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, codes[i]);
        const size_t bytes = md != NULL ? dnnl_memory_desc_get_size(md) : 0;

        if (bytes == 0)
            continue;
        memory[n] = dpt_alloc(bytes);
        memset(memory[n], 0, bytes);
        args[n].arg = codes[i];
        must(dnnl_memory_create(&args[n].memory, md, o->engine, memory[n]), "memory");
        n++;
    }
    for (int i = 0; i < o->rounds; i++) {
        const double start = dpt_now();

        must(dnnl_primitive_execute(primitive, o->stream, n, args), "a call");
        must(dnnl_stream_wait(o->stream), "a call");
        keep_least(&least, dpt_now() - start);
    }
    for (int i = 0; i < n; i++) {
        dnnl_memory_destroy(args[i].memory);
        dpt_free(memory[i]);
    }
    dnnl_primitive_destroy(primitive);
    least *= 1e3 * SAMPLES / o->micro;
    o->sum += least;
    return least;
}

static dnnl_primitive_desc_t describe(const struct library *o, const_dnnl_op_desc_t op,
                                      const_dnnl_primitive_desc_t forward)
{
    dnnl_primitive_desc_t pd;

    must(dnnl_primitive_desc_create(&pd, op, NULL, o->engine, forward), "a description");
    return pd;
}

/* Times what is described and prints a cell. */
static void print_described(struct library *o, const_dnnl_primitive_desc_t pd)
{
    printf(" %.3f |", time_of(o, pd));
}

/* The same of an operation; forward: the description of its forward pass, NULL: it is none's
 * backward. */
static void print_time(struct library *o, const_dnnl_op_desc_t op,
                       const_dnnl_primitive_desc_t forward)
{
    const dnnl_primitive_desc_t pd = describe(o, op, forward);

    print_described(o, pd);
    dnnl_primitive_desc_destroy(pd);
}

/* A forward pass, and the backward one that belongs to it. */
static void print_pair(struct library *o, const_dnnl_op_desc_t op, const_dnnl_op_desc_t backward)
{
    const dnnl_primitive_desc_t forward = describe(o, op, NULL);

    print_described(o, forward);
    print_time(o, backward, forward);
    dnnl_primitive_desc_destroy(forward);
}

/* The three passes of a convolution; *out: the layout of its outputs. */
static void time_conv(struct library *o, const struct dpt_graph_node *node, dnnl_memory_desc_t *out)
{
    const struct dpt_window *w = &node->window;
    const dnnl_dims_t x = {o->micro, node->in.c, node->in.h, node->in.w},
                      y = {o->micro, node->out.c, node->out.h, node->out.w},
                      k = {node->out.c, node->in.c, w->kernel[0], w->kernel[1]},
                      stride = {w->stride[0], w->stride[1]}, before = {w->before[0], w->before[1]},
                      after = {w->after[0], w->after[1]};
    const dnnl_alg_kind_t any = dnnl_convolution_auto;
    dnnl_memory_desc_t mx, mk, my;
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t forward;

    dnnl_memory_desc_init_by_tag(&mx, 4, x, o->type, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&mk, 4, k, o->type, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&my, 4, y, o->type, dnnl_format_tag_any);
    must(dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, any, &mx, &mk, NULL, &my,
                                            stride, before, after),
         "a convolution");
    forward = describe(o, &op, NULL);
    *out = *dnnl_primitive_desc_query_md(forward, dnnl_query_dst_md, 0);
    print_described(o, forward);
    if (node->inputs[0] > 0) { /* nobody wants the gradient of the samples */
        must(dnnl_convolution_backward_data_desc_init(&op, any, &mx, &mk, &my, stride, before,
                                                      after),
             "a convolution");
        print_time(o, &op, forward);
    } else {
        printf(" |");
    }
    must(dnnl_convolution_backward_weights_desc_init(&op, any, &mx, &mk, NULL, &my, stride, before,
                                                     after),
         "a convolution");
    print_time(o, &op, forward);
    dnnl_primitive_desc_destroy(forward);
}

/* A norm and its relu, of what a convolution gave. */
static void time_norm(struct library *o, const dnnl_memory_desc_t *of)
{
    const unsigned flags = dnnl_use_scaleshift | dnnl_fuse_norm_relu;
    dnnl_batch_normalization_desc_t forward, backward;

    must(dnnl_batch_normalization_forward_desc_init(&forward, dnnl_forward_training, of, 1e-5f,
                                                    flags),
         "a norm");
    must(
        dnnl_batch_normalization_backward_desc_init(&backward, dnnl_backward, of, of, 1e-5f, flags),
        "a norm");
    print_pair(o, &forward, &backward);
}

/* A sum, its relu, and the relu's gradient. */
static void time_sum(struct library *o, const dnnl_memory_desc_t *of)
{
    const dnnl_alg_kind_t kind = dnnl_eltwise_relu;
    dnnl_binary_desc_t sum;
    dnnl_eltwise_desc_t relu, backward;

    must(dnnl_binary_desc_init(&sum, dnnl_binary_add, of, of, of), "a sum");
    print_time(o, &sum, NULL);
    must(dnnl_eltwise_forward_desc_init(&relu, dnnl_forward_training, kind, of, 0, 0), "a relu");
    must(dnnl_eltwise_backward_desc_init(&backward, kind, of, of, 0, 0), "a relu");
    print_pair(o, &relu, &backward);
}

static void time_all(struct library *o, const struct dpt_graph *g)
{
    dnnl_memory_desc_t of;

    printf("| ms per %d samples | forward | data | weights | norm | its gradient |\n"
           "|---|---|---|---|---|---|\n",
           SAMPLES);
    for (int32_t i = 1; i < g->n_nodes; i++) {
        const struct dpt_graph_node *node = &g->nodes[i];

        if (node->op == DPT_OP_CONV) {
            printf("| %s |", node->name);
            time_conv(o, node, &of);
            time_norm(o, &of);
            putchar('\n');
        } else if (node->op == DPT_OP_ADD) {
            printf("| %s, relu, its gradient |", node->name);
            time_sum(o, &of);
            puts(" | |");
        }
    }
}

/* --- ours ------------------------------------------------------------------------------------- */

static double time_ours(const struct dpt_graph *g, enum dpt_precision precision, int32_t micro,
                        int rounds)
{
    const struct dpt_program_spec spec = {.graph = g,
                                          .loss = {DPT_LOSS_CROSS_ENTROPY, 0},
                                          .micro = micro,
                                          .threads = 1,
                                          .training = true,
                                          .precision = precision};
    struct draw d = {1};
    struct owned_batch batch;
    struct dpt_error err;
    float *params = net_params(g, &d);
    float *gradient = dpt_alloc_array((size_t)g->arena, sizeof *gradient);
    double least = 0;
    enum dpt_status status;
    void *program;

    batch_fill(&batch, g, micro, micro, false, &d);
    status = dpt_backend_cpu.open(&spec, &program, &err);
    if (status == DPT_OK)
        status = dpt_backend_cpu.refresh(program, 0, params, &err);
    for (int i = 0; i < rounds && status == DPT_OK; i++) {
        struct dpt_metric_sums sums = {0};
        const double start = dpt_now();

        status =
            dpt_backend_cpu.train(program, 0, &batch.batch, params, gradient, true, &sums, &err);
        keep_least(&least, dpt_now() - start);
    }
    if (status != DPT_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    dpt_backend_cpu.close(program);
    batch_release(&batch);
    dpt_free(params);
    dpt_free(gradient);
    return 1e3 * SAMPLES / micro * least;
}

int main(int argc, char **argv)
{
    const bool small = argc < 2 || strcmp(argv[1], "resnet18") != 0;
    const bool bf16 = argc < 3 || strcmp(argv[2], "fp32") != 0;
    const int micro = argc > 3 && atoi(argv[3]) > 0 ? atoi(argv[3]) : 16;
    struct library o = {.type = bf16 ? dnnl_bf16 : dnnl_f32,
                        .micro = micro,
                        .rounds = argc > 4 && atoi(argv[4]) > 0 ? atoi(argv[4]) : 20};
    struct dpt_graph g = {0};
    double ours;

    build(&g, small ? 32 : 64, small ? 16 : 64, small ? 3 : 4, small ? 3 : 2, !small);
    /* It opens the library, which uses one thread from then on. */
    ours = time_ours(&g, bf16 ? DPT_PRECISION_BF16 : DPT_PRECISION_FP32, micro, o.rounds);
    must(dnnl_engine_create(&o.engine, dnnl_cpu, 0), "an engine");
    must(dnnl_stream_create(&o.stream, o.engine, dnnl_stream_in_order), "a stream");
    printf("%s in %s, micro-batch %d, %s\n\n", small ? "resnet20" : "resnet18",
           bf16 ? "bf16" : "fp32", micro, dpt_backend_cpu.describe());
    time_all(&o, &g);
    printf("\noneDNN's primitives together %.2f, a whole pass here %.2f: %.2f of them\n", o.sum,
           ours, ours / o.sum);
    dnnl_stream_destroy(o.stream);
    dnnl_engine_destroy(o.engine);
    dpt_graph_release(&g);
    return 0;
}

#else

int main(void)
{
    puts("built without oneDNN 2");
    return 0;
}

#endif

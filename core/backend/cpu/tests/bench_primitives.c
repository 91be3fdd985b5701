/*
 * Compares a residual network's step with oneDNN's own primitives, on one thread:
 *
 *   build/tests/bench_primitives [resnet20 | resnet18] [bf16 | fp32] [micro-batch] [rounds]
 *
 * It prints a Markdown table, milliseconds per 128 samples (the fastest of the rounds): oneDNN's
 * direct convolutions in the layouts that it chooses (forward, data, weights); its
 * batch norms of their outputs, fused with a relu (forward, backward); its sums with a relu. Then
 * it prints their sum, and the time of `train` of this backend for the whole network, loss
 * included. Each primitive runs alone, on memory of its own; layouts are not converted from one to
 * the next.
 * In bf16 it also times the conversions that a network in fp32 would need for each convolution: of
 * its input, and of the gradient of its output. On a shared machine compare the least of several
 * runs.
 */
#include "core/backend/tests/net.h"

#include "core/backend/cpu/onednn/dnnl_private.h"
#include "core/base/clock.h"

enum { SAMPLES = 128, ARGUMENTS = 16 };

/* The settings with which the primitives are made. */
struct library {
    dnnl_stream_t stream;
    dnnl_data_type_t type; /* of activations and weights */
    int32_t micro;
    int rounds;
    double sum;              /* milliseconds per 128 samples so far */
    double converting;       /* likewise, from fp32 */
    struct dpt_dnnl library; /* its engine alone */
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

/* Basic blocks (He et al. 2016), `blocks` of them for each size. */
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
        DNNL_ARG_SRC_0,      DNNL_ARG_SRC_1,    DNNL_ARG_DST,        DNNL_ARG_WEIGHTS,
        DNNL_ARG_BIAS,       DNNL_ARG_MEAN,     DNNL_ARG_VARIANCE,   DNNL_ARG_WORKSPACE,
        DNNL_ARG_DIFF_SRC_0, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS,  DNNL_ARG_DIFF_WEIGHTS,
        DNNL_ARG_SCALE,      DNNL_ARG_SHIFT,    DNNL_ARG_DIFF_SCALE, DNNL_ARG_DIFF_SHIFT,
    };
    dnnl_exec_arg_t args[ARGUMENTS];
    void *memory[ARGUMENTS];
    dnnl_primitive_t primitive;
    double least = 0;
    const dpt_borrowed_desc shift =
        dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, DNNL_ARG_DIFF_SHIFT);
    const bool backward = shift != NULL && dnnl_memory_desc_get_size(shift) > 0;
    int n = 0;

    must(dnnl_primitive_create(&primitive, pd), "a primitive");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        const dpt_borrowed_desc md =
            dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, codes[i]);
        const size_t bytes = md != NULL ? dnnl_memory_desc_get_size(md) : 0;

        if (bytes == 0 || (codes[i] == DNNL_ARG_SHIFT && backward))
            continue; /* 3.x describes the shift of a backward pass, and does not take it */
        memory[n] = dpt_alloc(bytes);
        memset(memory[n], 0, bytes);
        args[n].arg = codes[i];
        must(dnnl_memory_create(&args[n].memory, md, o->library.engine, memory[n]), "memory");
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

/* Times the described primitive, frees the description, and prints a cell. */
static void print_time(struct library *o, dnnl_status_t result, dnnl_primitive_desc_t pd)
{
    must(result, "a description");
    printf(" %.3f |", time_of(o, pd));
    dnnl_primitive_desc_destroy(pd);
}

/* --- what 2.x and 3.x describe differently ---------------------------------------------------- */

static const float epsilon = 1e-5f;

#if DNNL_VERSION_MAJOR >= 3

static void layout(dnnl_data_type_t type, dnnl_format_tag_t tag, const dnnl_dims_t dims,
                   dpt_desc *d)
{
    must(dnnl_memory_desc_create_with_tag(d, 4, dims, type, tag), "a layout");
}

static dnnl_status_t norm_pd(const struct library *o, dpt_borrowed_desc of,
                             const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *pd)
{
    const unsigned flags = dnnl_use_scale | dnnl_use_shift | dnnl_fuse_norm_relu;

    if (forward == NULL)
        return dnnl_batch_normalization_forward_primitive_desc_create(
            pd, o->library.engine, dnnl_forward_training, of, of, epsilon, flags, NULL);
    return dnnl_batch_normalization_backward_primitive_desc_create(
        pd, o->library.engine, dnnl_backward, of, of, of, epsilon, flags, forward, NULL);
}

static dnnl_status_t sum_pd(const struct library *o, dpt_borrowed_desc of,
                            dnnl_primitive_desc_t *pd)
{
    return dnnl_binary_primitive_desc_create(pd, o->library.engine, dnnl_binary_add, of, of, of,
                                             NULL);
}

static dnnl_status_t relu_pd(const struct library *o, dpt_borrowed_desc of,
                             const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *pd)
{
    if (forward == NULL)
        return dnnl_eltwise_forward_primitive_desc_create(
            pd, o->library.engine, dnnl_forward_training, dnnl_eltwise_relu, of, of, 0, 0, NULL);
    return dnnl_eltwise_backward_primitive_desc_create(pd, o->library.engine, dnnl_eltwise_relu, of,
                                                       of, of, 0, 0, forward, NULL);
}

#else

static void layout(dnnl_data_type_t type, dnnl_format_tag_t tag, const dnnl_dims_t dims,
                   dpt_desc *d)
{
    must(dnnl_memory_desc_init_by_tag(d, 4, dims, type, tag), "a layout");
}

static dnnl_status_t norm_pd(const struct library *o, dpt_borrowed_desc of,
                             const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *pd)
{
    const unsigned flags = dnnl_use_scaleshift | dnnl_fuse_norm_relu;
    dnnl_batch_normalization_desc_t op;

    must(forward == NULL ? dnnl_batch_normalization_forward_desc_init(&op, dnnl_forward_training,
                                                                      of, epsilon, flags)
                         : dnnl_batch_normalization_backward_desc_init(&op, dnnl_backward, of, of,
                                                                       epsilon, flags),
         "a norm");
    return dnnl_primitive_desc_create(pd, &op, NULL, o->library.engine, forward);
}

static dnnl_status_t sum_pd(const struct library *o, dpt_borrowed_desc of,
                            dnnl_primitive_desc_t *pd)
{
    dnnl_binary_desc_t op;

    must(dnnl_binary_desc_init(&op, dnnl_binary_add, of, of, of), "a sum");
    return dnnl_primitive_desc_create(pd, &op, NULL, o->library.engine, NULL);
}

static dnnl_status_t relu_pd(const struct library *o, dpt_borrowed_desc of,
                             const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *pd)
{
    dnnl_eltwise_desc_t op;

    must(forward == NULL ? dnnl_eltwise_forward_desc_init(&op, dnnl_forward_training,
                                                          dnnl_eltwise_relu, of, 0, 0)
                         : dnnl_eltwise_backward_desc_init(&op, dnnl_eltwise_relu, of, of, 0, 0),
         "a relu");
    return dnnl_primitive_desc_create(pd, &op, NULL, o->library.engine, forward);
}

#endif

/* --- the passes of a layer -------------------------------------------------------------------- */

/* A forward pass, and the backward one that belongs to it. */
static void print_pair(struct library *o, dpt_borrowed_desc of,
                       dnnl_status_t (*describe)(const struct library *, dpt_borrowed_desc,
                                                 const_dnnl_primitive_desc_t,
                                                 dnnl_primitive_desc_t *))
{
    dnnl_primitive_desc_t forward, backward;
    dnnl_status_t result;

    must(describe(o, of, NULL, &forward), "a description");
    result = describe(o, of, forward, &backward);
    print_time(o, dnnl_success, forward);
    print_time(o, result, backward);
}

/* From fp32 in the layout of this backend's values. */
static void print_conversion(struct library *o, const dnnl_dims_t dims, dpt_borrowed_desc to)
{
    const dnnl_format_tag_t tag = dims[1] % 16 == 0 ? dnnl_nChw16c : dnnl_nchw;
    dnnl_primitive_desc_t pd;
    dpt_desc from = {0};
    double time;

    if (o->type == dnnl_f32) {
        printf(" |");
        return;
    }
    layout(dnnl_f32, tag, dims, &from);
    must(dnnl_reorder_primitive_desc_create(&pd, BORROW(from), o->library.engine, to,
                                            o->library.engine, NULL),
         "a conversion");
    time = time_of(o, pd);
    o->sum -= time;
    o->converting += time;
    printf(" %.3f |", time);
    dnnl_primitive_desc_destroy(pd);
    dpt_desc_free(&from);
}

/* The three passes of a convolution; *out: the layout of its outputs, which is owned. */
static void time_conv(struct library *o, const struct dpt_graph_node *node, dpt_desc *out)
{
    const struct dpt_window *w = &node->window;
    const dnnl_dims_t x = {o->micro, node->in.c, node->in.h, node->in.w},
                      y = {o->micro, node->out.c, node->out.h, node->out.w},
                      k = {node->out.c, node->in.c, w->kernel[0], w->kernel[1]};
    struct dpt_conv_descs c = {.stride = {w->stride[0], w->stride[1]},
                               .before = {w->before[0], w->before[1]},
                               .after = {w->after[0], w->after[1]}};
    dnnl_primitive_desc_t forward, pd;
    dnnl_status_t result;

    layout(o->type, dnnl_format_tag_any, x, &c.x);
    layout(o->type, dnnl_format_tag_any, k, &c.w);
    layout(o->type, dnnl_format_tag_any, y, &c.y);
    must(dpt_conv_pd(&o->library, DPT_CONV_FORWARD, &c, NULL, &forward), "a convolution");
    must(dpt_desc_copy(out, dnnl_primitive_desc_query_md(forward, dnnl_query_dst_md, 0)),
         "a layout");
    printf(" %.3f |", time_of(o, forward));
    if (node->inputs[0] > 0) { /* nobody wants the gradient of the samples */
        result = dpt_conv_pd(&o->library, DPT_CONV_BACKWARD_DATA, &c, forward, &pd);
        print_time(o, result, pd);
    } else {
        printf(" |");
    }
    result = dpt_conv_pd(&o->library, DPT_CONV_BACKWARD_WEIGHTS, &c, forward, &pd);
    print_time(o, result, pd);
    print_conversion(o, x, dnnl_primitive_desc_query_md(forward, dnnl_query_src_md, 0));
    print_conversion(o, y, BORROW(*out));
    dnnl_primitive_desc_destroy(forward);
    dpt_desc_free(&c.x);
    dpt_desc_free(&c.w);
    dpt_desc_free(&c.y);
}

/* A sum, its relu, and the relu's gradient. */
static void time_sum(struct library *o, dpt_borrowed_desc of)
{
    dnnl_primitive_desc_t sum;
    const dnnl_status_t result = sum_pd(o, of, &sum);

    print_time(o, result, sum);
    print_pair(o, of, relu_pd);
}

static void time_all(struct library *o, const struct dpt_graph *g)
{
    dpt_desc of = {0};

    printf("| ms per %d samples | forward | data | weights | x from fp32 | dy from fp32 | norm | "
           "its gradient |\n|---|---|---|---|---|---|---|---|\n",
           SAMPLES);
    for (int32_t i = 1; i < g->n_nodes; i++) {
        const struct dpt_graph_node *node = &g->nodes[i];

        if (node->op == DPT_OP_CONV) {
            printf("| %s |", node->name);
            dpt_desc_free(&of);
            time_conv(o, node, &of);
            print_pair(o, BORROW(of), norm_pd);
            putchar('\n');
        } else if (node->op == DPT_OP_ADD) {
            printf("| %s, relu, its gradient |", node->name);
            time_sum(o, BORROW(of));
            puts(" | | | |");
        }
    }
    dpt_desc_free(&of);
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
    must(dnnl_engine_create(&o.library.engine, dnnl_cpu, 0), "an engine");
    must(dnnl_stream_create(&o.stream, o.library.engine, dnnl_stream_in_order), "a stream");
    printf("%s in %s, micro-batch %d, %s\n\n", small ? "resnet20" : "resnet18",
           bf16 ? "bf16" : "fp32", micro, dpt_backend_cpu.describe());
    time_all(&o, &g);
    if (bf16)
        printf("\nconversions from fp32 together %.2f\n", o.converting);
    printf("\noneDNN's primitives together %.2f, a whole pass here %.2f: %.2f of them\n", o.sum,
           ours, ours / o.sum);
    dnnl_stream_destroy(o.stream);
    dnnl_engine_destroy(o.library.engine);
    dpt_graph_release(&g);
    return 0;
}

/* The device's kernels for layers with weights of numbers or channels, run on the host, against the
 * reference backend over random shapes: so many pixels that their sums take several blocks. */
#include "core/backend/ref/ref.h"
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/tensor.h"

/* One layer of ref on n samples, and the kernels' arrays. */
struct layer {
    struct dpt_graph_node node;
    size_t n, in, weights; /* numbers of a sample; of a weight */
    float *x, *y, *dy, *dx, *weight, *bias, *dweight, *dbias;
    struct device_tensor tx, ty, tdy, tdx, tweight, tbias;
};

static void layer_init(struct layer *l, enum dpt_op op, enum type type, struct draw *d)
{
    struct dpt_graph_node *node = &l->node;
    struct dpt_shape of_weight;
    struct dpt_ref_call call;

    *l = (struct layer){.n = (size_t)draw_int(d, 1, 4)};
    node->op = op;
    node->in.c = draw_int(d, 1, 40);
    node->in.h = draw_int(d, 1, op == DPT_OP_LAYERNORM ? 8 : 40);
    node->in.w = draw_int(d, 1, op == DPT_OP_LAYERNORM ? 8 : 40);
    node->out = node->in;
    node->attribute[0] = 1e-3f;
    node->window.groups = 1;
    for (int32_t g = 2; op == DPT_OP_GROUPNORM && g <= node->in.c; g++)
        if (node->in.c % g == 0 && draw_int(d, 0, 1))
            node->window.groups = g;
    of_weight = op == DPT_OP_LAYERNORM ? node->in : (struct dpt_shape){node->in.c, 1, 1, true};
    l->in = (size_t)dpt_shape_size(&node->in);
    l->weights = (size_t)dpt_shape_size(&of_weight);
    l->x = random_values(d, l->n * l->in), l->dy = random_values(d, l->n * l->in);
    l->y = dpt_alloc_array(l->n * l->in, sizeof(float));
    l->dx = dpt_alloc_array(l->n * l->in, sizeof(float));
    l->weight = random_values(d, l->weights), l->bias = random_values(d, l->weights);
    l->dweight = dpt_alloc_array(l->weights, sizeof(float));
    l->dbias = dpt_alloc_array(l->weights, sizeof(float));
    l->tx = tensor_random(type, l->n, &node->in, d); /* the padding has numbers, too */
    l->tdy = tensor_random(type, l->n, &node->in, d);
    l->ty = tensor_random(type, l->n, &node->in, d);
    l->tdx = tensor_random(type, l->n, &node->in, d);
    l->tweight = tensor_make(type, 1, &of_weight), l->tbias = tensor_make(type, 1, &of_weight);
    tensor_fill(&l->tx, l->x), tensor_fill(&l->tdy, l->dy);
    tensor_fill(&l->tweight, l->weight), tensor_fill(&l->tbias, l->bias);
    call = (struct dpt_ref_call){.node = node,
                                 .count = l->n,
                                 .in = l->in,
                                 .out = l->in,
                                 .x = l->x,
                                 .y = l->y,
                                 .dy = l->dy,
                                 .dx = l->dx,
                                 .weight = l->weight,
                                 .bias = l->bias,
                                 .dweight = l->dweight,
                                 .dbias = l->dbias};
    dpt_ref_compute(dpt_ref_ops[op], &call, false);
    dpt_ref_compute(dpt_ref_ops[op], &call, true);
}

static void layer_release(struct layer *l)
{
    dpt_free(l->x), dpt_free(l->y), dpt_free(l->dy), dpt_free(l->dx);
    dpt_free(l->weight), dpt_free(l->bias), dpt_free(l->dweight), dpt_free(l->dbias);
    dpt_free(l->tx.at), dpt_free(l->ty.at), dpt_free(l->tdy.at), dpt_free(l->tdx.at);
    dpt_free(l->tweight.at), dpt_free(l->tbias.at);
}

/* The gradients of the weights, twice, the second time with the blocks in the other order: with the
 * same bits; added to what is there. */
static void check_weights(const struct layer *l, enum dpt_cuda_kernel kernel,
                          struct dpt_cuda_scales_args args, bool norm, struct draw *d, int seed)
{
    const int64_t area = (int64_t)l->tweight.pixels, lanes = lanes_of[l->tx.type];
    const struct dpt_cuda_cut cut = dpt_cuda_scales_cut(
        (int64_t)l->n * (int64_t)l->tx.pixels / area, (int64_t)l->tx.pitch / lanes * area);
    const float *const want[] = {l->dweight, l->dbias};
    uint32_t *counter = dpt_alloc_array((size_t)cut.groups, sizeof *counter);
    float *got[2][2], *start = random_values(d, l->weights);

    args.counted.blocks = cut.groups * cut.chunks;
    args.chunks = (int32_t)cut.chunks;
    args.counter = counter;
    args.partial =
        dpt_alloc_array(2 * (size_t)cut.chunks * tensor_elements(&l->tweight), sizeof(double));
    args.add = seed % 2;
    for (int run = 0; run < 2; run++) {
        for (int which = 0; which < 2; which++) {
            got[run][which] = random_values(d, l->weights);
            memcpy(got[run][which], start, l->weights * sizeof *start);
        }
        args.dweight = got[run][0], args.dbias = got[run][1];
        emulated_backwards = run == 1;
        dpt_emulate(kernel, &args);
    }
    emulated_backwards = false;
    for (int which = 0; which < (norm ? 2 : 1); which++) {
        assert_memory_equal(got[0][which], got[1][which], l->weights * sizeof(float));
        for (size_t i = 0; i < l->weights; i++) {
            const double w = (double)want[which][i] + (args.add ? (double)start[i] : 0);

            if (!(fabs((double)got[0][which][i] - w) <= 2e-4 * (1 + fabs(w))))
                fail_msg("gradient %d, seed %d: number %zu is %.9g, not %.9g", which, seed, i,
                         (double)got[0][which][i], w);
        }
    }
    for (int32_t i = 0; i < cut.groups; i++)
        assert_int_equal(counter[i], 0);
    for (int i = 0; i < 4; i++)
        dpt_free(got[i / 2][i % 2]);
    dpt_free(counter), dpt_free(args.partial), dpt_free(start);
}

static void check_padding(const struct device_tensor *t)
{
    for (size_t i = 0; i < tensor_elements(t); i++)
        assert_true(i % t->pitch < t->c || tensor_get(t, i) == 0);
}

static void as_ref(void **state)
{
    static const enum dpt_op ops[] = {DPT_OP_LAYERNORM, DPT_OP_GROUPNORM, DPT_OP_PRELU};
    int several = 0;

    (void)state;
    for (int seed = 0; seed < 90; seed++) {
        struct draw d = {(uint64_t)seed + 7000};
        const enum type type = (enum type)(seed % TYPES);
        const enum dpt_op op = ops[seed / TYPES % 3];
        const bool norm = op != DPT_OP_PRELU;
        struct dpt_cuda_scales_args args;
        struct layer l;
        float *statistics;

        layer_init(&l, op, type, &d);
        statistics = dpt_alloc_array(3 * l.n * (size_t)l.node.window.groups, sizeof *statistics);
        args = (struct dpt_cuda_scales_args){
            .x = l.tx.at,
            .dy = l.tdy.at,
            .y = l.ty.at,
            .weight = l.tweight.at,
            .bias = l.tbias.at,
            .statistics = statistics,
            .vectors = (int64_t)tensor_elements(&l.tx) / lanes_of[type],
            .n = (int32_t)l.n,
            .channels = (int32_t)l.tx.c,
            .pitch = (int32_t)l.tx.pitch,
            .area = (int32_t)l.tx.pixels,
            .weight_area = (int32_t)l.tweight.pixels,
            .groups = l.node.window.groups,
            .eps = l.node.attribute[0],
        };
        args.counted.blocks = norm ? (int64_t)l.n * l.node.window.groups
                                   : (args.vectors + DPT_CUDA_THREADS - 1) / DPT_CUDA_THREADS;
        several += l.n * l.tx.pixels / l.tweight.pixels > 1024;
        dpt_emulate(norm ? OF(type, layernorm) : OF(type, prelu), &args);
        tensor_check(&l.ty, l.y, 2e-5, dpt_operations[op]->name, seed);
        args.y = l.tdx.at;
        dpt_emulate(norm ? OF(type, layernorm_back) : OF(type, prelu_back), &args);
        tensor_check(&l.tdx, l.dx, 2e-5, dpt_operations[op]->name, seed);
        if (norm) {
            check_padding(&l.ty);
            check_padding(&l.tdx);
        }
        check_weights(&l, norm ? OF(type, layernorm_weights) : OF(type, prelu_weights), args, norm,
                      &d, seed);
        dpt_free(statistics);
        layer_release(&l);
    }
    assert_true(several > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_ref)};

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}

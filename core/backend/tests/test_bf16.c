/*
 * Products of operands rounded to bf16: the rounding itself; ref computes what it computes in fp32
 * from rounded operands; and cpu, on each instruction set of this machine, computes what ref does:
 * single layers equal it but for the order of sums, and random graphs are much closer to it than
 * fp32 is.
 */
#include "core/backend/tests/compare.h"

#include "core/backend/backend.h"
#include "core/backend/bf16.h"
#include "core/base/sum_of_squares.h"

#define CPU &dpt_backend_cpu

enum { LAYERS = 300, GRAPHS = 300, RESIDUALS = 120 };

/* Returns the next bf16 number above or below by the distance of neighbours, in double. */
static double nearest(double x)
{
    int exponent;
    double unit, low;

    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    unit = ldexp(1, exponent - 8);
    low = floor(x / unit);
    if (fabs(x / unit - low) == 0.5)
        low += fmod(low, 2) != 0;
    else
        low = round(x / unit);
    return low * unit;
}

static void rounds_to_the_nearest(void **state)
{
    struct draw d = {1};
    const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e-40f, -1e-40f};
    float got[6];

    (void)state;
    for (int i = 0; i < 100000; i++) {
        /* Every third number lies midway between two neighbours. */
        const uint32_t bits = (0x01000000u + (uint32_t)(draw_bits(&d) >> 33) % 0x7d000000u) |
                              (uint32_t)(draw_bits(&d) & 1) << 31;
        const uint32_t word = i % 3 == 0 ? (bits & 0xffff0000) | 0x8000 : bits;
        float x, y;

        memcpy(&x, &word, sizeof x);
        dpt_bf16_round(1, &x, &y);
        if ((double)y != nearest(x))
            fail_msg("%.9g gives %.9g, not %.9g", (double)x, (double)y, nearest(x));
    }
    dpt_bf16_round(6, special, got);
    assert_memory_equal(got, special, 4 * sizeof *got);
    assert_true(got[4] == 0 && !signbit(got[4]) && got[5] == 0 && signbit(got[5]));
    for (uint32_t low = 1; low < 0x800000; low = low * 2 + 1) {
        const uint32_t word = 0x7f800000 | low;
        float nan;

        memcpy(&nan, &word, sizeof nan);
        dpt_bf16_round(1, &nan, &nan);
        assert_true(isnan(nan));
    }
}

/* Layers that are computed together: a convolution of many channels, often a relu, a max-pool. */
static int32_t add_pooled(struct scene *s, int32_t at, struct draw *d)
{
    const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    const struct dpt_shape in = s->graph.nodes[at].out;
    const int32_t kernel = draw_int(d, 1, 3), before = draw_int(d, 0, kernel - 1);
    const struct dpt_window w = {{kernel, kernel},         {1, 1}, {1, 1}, {before, before},
                                 {kernel - 1, kernel - 1}, 1};

    note(s, " conv(%dx%d p%d) pool", kernel, kernel, before);
    at = net_conv(&s->graph, at, draw_int(d, 1, 150), &w, draw_int(d, 0, 1));
    if (draw_int(d, 0, 2))
        at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    return in.h > 1 ? net_pool(&s->graph, at, DPT_OP_MAXPOOL, &halve) : at;
}

/* One layer that multiplies, and MSE, whose gradient is that of the outputs. */
static void layer_init(struct scene *s, uint64_t seed)
{
    struct draw d = {seed + 5000};
    const bool dense = seed % 3 == 0, first = draw_int(&d, 0, 4) == 0;
    int32_t at;

    *s = (struct scene){0};
    if (dense)
        at = net_input(&s->graph, draw_int(&d, 1, seed % 2 ? 90 : 700), 1, 1);
    else
        at = net_input(&s->graph, draw_int(&d, 1, first ? 4 : 70), draw_int(&d, 3, 19),
                       draw_int(&d, 3, 19));
    note(s, "layer %d: %dx%dx%d", (int)seed, s->graph.nodes[at].out.c, s->graph.nodes[at].out.h,
         s->graph.nodes[at].out.w);
    /* After a layer that only scales, the layer's input has a gradient of its own. */
    if (!first)
        at = net_simple(&s->graph, at, DPT_OP_PRELU, 0);
    if (dense)
        at = net_dense(&s->graph, at, draw_int(&d, 1, 90), draw_int(&d, 0, 1));
    else if (seed % 3 == 1)
        at = add_conv(s, at, &d);
    else
        at = add_pooled(s, at, &d);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_MSE, 0},
                                        .micro = draw_int(&d, 1, dense ? 150 : 5),
                                        .threads = 1,
                                        .training = true,
                                        .precision = DPT_PRECISION_BF16};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro), true, &d);
}

/* The results of a backend for a scene in a precision. */
struct result {
    float *y, *gradient;
    struct dpt_metric_sums sums;
};

static struct result result_of(const struct scene *s, const struct dpt_backend *backend,
                               enum dpt_precision precision)
{
    struct dpt_program_spec spec = s->spec;
    struct result r = {
        .y = dpt_alloc_array(s->outputs * (size_t)s->batch.batch.count, sizeof(float)),
        .gradient = new_arena(s)};
    struct dpt_error err;
    void *program;

    spec.precision = precision;
    if (backend->open(&spec, &program, &err) != DPT_OK)
        fail_msg("%s: %s: %s", s->text, backend->name, err.text);
    assert_int_equal(backend->refresh(program, 0, s->params, &err), DPT_OK);
    backend->infer(program, 0, &s->batch.batch, s->params, r.y, NULL, &err);
    train(backend, s, program, 0, false, r.gradient, &r.sums);
    backend->close(program);
    return r;
}

static void result_free(struct result *r)
{
    dpt_free(r->y);
    dpt_free(r->gradient);
}

/* The outputs of ref in bf16 are those in fp32 of rounded weights and inputs. */
static void ref_rounds_its_operands(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < LAYERS; seed += (uint64_t)net_every()) {
        struct scene s;
        struct result bf16, fp32;
        int32_t node, weight;

        layer_init(&s, seed);
        node = s.graph.n_nodes - 1;
        weight = s.graph.nodes[node].weight;
        if (node == 1) { /* nothing before it changes the input */
            bf16 = result_of(&s, &dpt_backend_ref, DPT_PRECISION_BF16);
            dpt_bf16_round(s.graph.tensors[weight].count, s.params + s.graph.tensors[weight].offset,
                           s.params + s.graph.tensors[weight].offset);
            dpt_bf16_round(dpt_shape_size(&s.graph.nodes[0].out) * s.batch.batch.count,
                           s.batch.input, s.batch.input);
            fp32 = result_of(&s, &dpt_backend_ref, DPT_PRECISION_FP32);
            assert_memory_equal(bf16.y, fp32.y,
                                s.outputs * (size_t)s.batch.batch.count * sizeof *fp32.y);
            result_free(&bf16);
            result_free(&fp32);
        }
        scene_release(&s);
    }
}

/* Tries the instruction sets one by one; those above this machine's are its best one. */
static void limit(uint64_t seed)
{
    dpt_isa_limit((enum dpt_isa)(DPT_ISA_AVX512 + seed / 2 % 3));
}

static int no_limit(void **state)
{
    (void)state;
    dpt_isa_limit(DPT_ISA_COUNT);
    return 0;
}

/* If a sum in fp32 is rounded differently, a gradient may round to a neighbour in bf16, but
 * seldom. */
static void a_layer_is_that_of_ref(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < LAYERS; seed += (uint64_t)net_every()) {
        struct scene s;

        limit(seed);
        layer_init(&s, seed);
        struct result want = result_of(&s, &dpt_backend_ref, DPT_PRECISION_BF16),
                      got = result_of(&s, CPU, DPT_PRECISION_BF16);
        const double far = distance(got.y, want.y, s.outputs * (size_t)s.batch.batch.count, 1e-3);

        if (!(far < 1e-5))
            fail_msg("%s: outputs differ by %g", s.text, far);
        assert_near_gradients(&s, got.gradient, want.gradient, 1e-3, 1e-3, "gradient");
        result_free(&want);
        result_free(&got);
        scene_release(&s);
    }
}

/* In graphs such neighbours add up, and go through kinks: but cpu is nearer to ref in bf16 than ref
 * in fp32 is. */
static void graphs_are_those_of_ref(void **state)
{
    double apart = 0, rounding = 0;

    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed += (uint64_t)net_every()) {
        struct scene s;

        limit(seed);
        scene_init(&s, seed);
        struct result want = result_of(&s, &dpt_backend_ref, DPT_PRECISION_BF16),
                      fp32 = result_of(&s, &dpt_backend_ref, DPT_PRECISION_FP32),
                      got = result_of(&s, CPU, DPT_PRECISION_BF16);
        const size_t n = s.outputs * (size_t)s.batch.batch.count;

        if (!has_batchnorm(&s)) /* which is folded for evaluation, and rounded then */
            apart += distance(got.y, want.y, n, 1e-3);
        if (!has_batchnorm(&s))
            rounding += distance(fp32.y, want.y, n, 1e-3);
        apart += distance(got.gradient, want.gradient, (size_t)s.graph.floats, 1e-3);
        rounding += distance(fp32.gradient, want.gradient, (size_t)s.graph.floats, 1e-3);
        assert_near_sums(&s, &got.sums, &want.sums, 0.1 * (fabs(want.sums.loss) + 1));
        result_free(&want);
        result_free(&fp32);
        result_free(&got);
        scene_release(&s);
    }
    if (!(apart < 0.25 * rounding))
        fail_msg("cpu and ref in bf16 are %g apart, fp32 and bf16 %g", apart, rounding);
}

/* A convolution whose outputs are added to what it reads or to another one's, and what may follow.
 */
static int32_t add_residual(struct scene *s, int32_t at, bool norms, struct draw *d)
{
    static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    static const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    const int32_t channels = s->graph.nodes[at].out.c, from = at;
    int32_t other = from;

    if (draw_int(d, 0, 2) == 0)
        other = net_conv(&s->graph, from, channels, &same, draw_int(d, 0, 1));
    at = net_conv(&s->graph, from, channels, &same, draw_int(d, 0, 1));
    if (norms && draw_int(d, 0, 3) > 0)
        at = net_simple(&s->graph, at, DPT_OP_BATCHNORM, 1e-3f);
    else if (draw_int(d, 0, 4) == 0)
        at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    at = draw_int(d, 0, 1) ? net_join(&s->graph, at, other, DPT_OP_ADD)
                           : net_join(&s->graph, other, at, DPT_OP_ADD);
    if (norms && draw_int(d, 0, 3) == 0) /* the norm of a sum */
        at = net_simple(&s->graph, at, DPT_OP_BATCHNORM, 1e-3f);
    if (draw_int(d, 0, 2) > 0)
        at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    return draw_int(d, 0, 3) == 0 && s->graph.nodes[at].out.h > 1 && s->graph.nodes[at].out.w > 1
               ? net_pool(&s->graph, at, DPT_OP_MAXPOOL, &halve)
               : at;
}

static void residuals_init(struct scene *s, uint64_t seed, bool norms)
{
    struct draw d = {seed + 9000};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, draw_int(&d, 1, 40), draw_int(&d, 2, 19), draw_int(&d, 2, 40));
    note(s, "residuals %d: %dx%dx%d", (int)seed, s->graph.nodes[at].out.c, s->graph.nodes[at].out.h,
         s->graph.nodes[at].out.w);
    for (int i = draw_int(&d, 1, 3); i > 0; i--)
        at = add_residual(s, at, norms, &d);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    s->spec = (struct dpt_program_spec){
        .graph = &s->graph, .loss = {DPT_LOSS_MSE, 0}, .micro = draw_int(&d, 1, 5), .threads = 1};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro), true, &d);
}

static float *inferred(const struct scene *s, enum dpt_precision precision, bool training)
{
    const struct dpt_backend *backend = CPU;
    struct dpt_program_spec spec = s->spec;
    float *y = dpt_alloc_array(s->outputs * (size_t)s->batch.batch.count, sizeof *y);
    struct dpt_error err;
    void *program;

    spec.precision = precision;
    spec.training = training;
    if (backend->open(&spec, &program, &err) != DPT_OK)
        fail_msg("%s: %s", s->text, err.text);
    assert_int_equal(backend->refresh(program, 0, s->params, &err), DPT_OK);
    backend->infer(program, 0, &s->batch.batch, s->params, y, NULL, &err);
    backend->close(program);
    return y;
}

/* Whether the CPU has instructions for bf16 that the limit permits. If not, the kernels of fp32,
 * which may differ in a program that trains, get rounded operands. */
static bool has_own_kernels(void)
{
    const struct dpt_backend *backend = CPU;

    return backend->bf16 != NULL && backend->bf16() != NULL;
}

/* Layers computed together in evaluation are byte-identical to layers computed one after another,
 * as a program that trains does; with batch norms in the weights they differ by rounding only. */
static void evaluates_what_it_trains(void **state)
{
    double apart = 0, rounding = 0;

    (void)state;
    for (uint64_t seed = 0; seed < RESIDUALS; seed += (uint64_t)net_every()) {
        const bool norms = seed % 2;
        struct scene s;

        limit(seed);
        residuals_init(&s, seed, norms);
        float *apiece = inferred(&s, DPT_PRECISION_BF16, true),
              *fused = inferred(&s, DPT_PRECISION_BF16, false),
              *fp32 = inferred(&s, DPT_PRECISION_FP32, true);
        const size_t n = s.outputs * (size_t)s.batch.batch.count;

        if (!norms && has_own_kernels() && memcmp(fused, apiece, n * sizeof *fused) != 0)
            fail_msg("%s: outputs differ by %g", s.text, distance(fused, apiece, n, 1e-3));
        apart += norms ? distance(fused, apiece, n, 1e-3) : 0;
        rounding += norms ? distance(fp32, apiece, n, 1e-3) : 0;
        dpt_free(apiece);
        dpt_free(fused);
        dpt_free(fp32);
        scene_release(&s);
    }
    if (!(apart < 2 * rounding))
        fail_msg("folded and not they are %g apart, fp32 and bf16 %g", apart, rounding);
}

/* Gradients that the program sums have the same bits as gradients added one after the other. */
static void sums_have_the_bits_of_each_added(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < LAYERS && (CPU)->adds != NULL; seed += (uint64_t)net_every()) {
        struct scene s;

        limit(seed);
        layer_init(&s, seed);
        assert_sums_as_each(CPU, &s, seed, 1);
        scene_release(&s);
    }
}

/* A wide layer alone, whose gradient is written past the caches. */
static void wide_init(struct scene *s, uint64_t seed)
{
    struct draw d = {seed + 7000};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, 1024 * draw_int(&d, 1, 2), 1, 1);
    at = net_dense(&s->graph, at, draw_int(&d, 2048, 2100), false);
    note(s, "wide %d: %d to %d", (int)seed, s->graph.nodes[0].out.c, s->graph.nodes[at].out.c);
    s->outputs = (size_t)s->graph.nodes[at].out.c;
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_MSE, 0},
                                        .micro = draw_int(&d, 1, 40),
                                        .threads = 1,
                                        .training = true,
                                        .precision = DPT_PRECISION_BF16};
    s->params = net_params(&s->graph, &d);
}

/* The sums of squares that come with a gradient, of one micro-batch or of several, are those of the
 * gradient in memory; there are none if it is added to another gradient. */
static void squares_are_those_of_the_gradient(void **state)
{
    enum { PIECE = DPT_SUM_OF_SQUARES_CHUNK, MICRO_BATCHES = 3, CASES = 18 };

    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        struct owned_batch data[MICRO_BATCHES];
        struct scene s;

        limit(seed);
        wide_init(&s, seed);
        struct draw d = {seed + 9000};
        const int32_t n = seed / 6 == 0 ? 1 : MICRO_BATCHES; /* each limit has six seeds */
        const bool keeps = seed / 6 == 1;
        const size_t pieces = (size_t)s.graph.tensors[0].count / PIECE;
        double *squares = dpt_alloc_array(pieces, sizeof *squares);
        float *gradient = new_arena(&s);

        for (size_t k = 0; k < pieces; k++)
            squares[k] = -1;
        for (int32_t k = 0; k < n; k++)
            batch_fill(&data[k], &s.graph, s.spec.micro, s.spec.micro, true, &d);
        data[n - 1].batch.squares = &squares;
        train_in_turn(CPU, &s, data, n, 1, keeps, gradient);
        for (size_t k = 0; k < pieces; k++) {
            const double want = has_own_kernels() && (keeps || n == 1)
                                    ? dpt_sum_of_squares(gradient + k * PIECE, PIECE)
                                    : -1;

            if (squares[k] != want)
                fail_msg("%s: squares of piece %zu: %.17g, not %.17g", s.text, k, squares[k], want);
        }
        for (int32_t k = 0; k < n; k++)
            batch_release(&data[k]);
        dpt_free(squares);
        dpt_free(gradient);
        scene_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_to_the_nearest),
        cmocka_unit_test(ref_rounds_its_operands),
        cmocka_unit_test_teardown(a_layer_is_that_of_ref, no_limit),
        cmocka_unit_test_teardown(graphs_are_those_of_ref, no_limit),
        cmocka_unit_test_teardown(evaluates_what_it_trains, no_limit),
        cmocka_unit_test_teardown(sums_have_the_bits_of_each_added, no_limit),
        cmocka_unit_test_teardown(squares_are_those_of_the_gradient, no_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

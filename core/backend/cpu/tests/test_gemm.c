/*
 * The products of dense layers are those of plain loops in double precision, over random shapes; in
 * ranges, by sub-batches and on other instruction sets they have the same bits; NaN and infinities
 * arrive where they must, and only there. Products in bf16 do, too, for numbers that need no
 * rounding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/backend/bf16.h"
#include "core/backend/cpu/bf16/bf16_gemm.h"
#include "core/backend/cpu/fp32/gemm.h"
#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/comm/sums/tree.h"

enum { CASES = 70, MARGIN = 16 };

/* For products in bf16; NULL: they are fp32. */
static const struct dpt_bf16_kernels *bf16;

static int with_amx(void **state)
{
    (void)state;
    bf16 = dpt_bf16_kernels(DPT_ISA_AMX);
    return 0;
}

static int with_avx512_bf16(void **state)
{
    (void)state;
    dpt_isa_limit(dpt_isa_machine()); /* also where it is slower than fp32 */
    bf16 = dpt_bf16_kernels(DPT_ISA_AVX512_BF16);
    return 0;
}

static int with_fp32(void **state)
{
    (void)state;
    bf16 = NULL;
    return 0;
}

/* All arrays of a layer; y, dw, db and dx have a margin that nobody may write to. */
struct layer {
    struct dpt_gemm p;
    bool small;
    float *x, *w, *b, *dy, *y, *dw, *db, *dx, *transposed, *scratch;
    float *packed[DPT_BF16_OPERANDS];
};

static int64_t draw(uint64_t seed, uint64_t what, int64_t low, int64_t high)
{
    const uint64_t word = dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 1, what);

    return low + (int64_t)(word % (uint64_t)(high - low + 1));
}

static float *array(int64_t n)
{
    float *x = dpt_alloc_array((size_t)(n + MARGIN), sizeof *x);

    assert_non_null(x);
    return x;
}

static float *normal(uint64_t seed, uint64_t what, int64_t n)
{
    float *x = array(n);

    dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, what, 0, (size_t)n, x);
    if (bf16 != NULL)
        dpt_bf16_round(n, x, x);
    return x;
}

static void open_memory(struct layer *l)
{
    const struct dpt_gemm *p = &l->p;
    const int64_t fp32 = dpt_gemm_scratch(p), half = dpt_bf16_gemm_scratch(p);

    l->transposed = array(dpt_gemm_transposed(p));
    l->scratch = array(fp32 > half ? fp32 : half);
    for (int i = 0; i < DPT_BF16_OPERANDS; i++)
        l->packed[i] = array(dpt_bf16_gemm_packed(p, (enum dpt_bf16_operand)i));
}

/* Mostly small and odd sizes, at times beyond the pieces into which long sums and wide layers are
 * cut. */
static void open_layer(struct layer *l, uint64_t seed, enum dpt_isa isa)
{
    const bool tiny = seed % 5 == 0, deep = seed % 7 == 1, wide = seed % 7 == 2;
    const int64_t most = tiny ? 8 : 90;
    struct dpt_gemm *p = &l->p;

    *p = (struct dpt_gemm){.isa = isa};
    p->rows = draw(seed, 0, 1, seed % 3 == 0 ? 130 : 20);
    p->inputs = deep ? draw(seed, 1, 500, 1100) : draw(seed, 1, 1, most);
    p->outputs = wide ? draw(seed, 2, 250, 1100) : draw(seed, 2, 1, most);
    l->small = p->inputs * p->outputs <= DPT_SMALL;
    l->x = normal(seed, 10, p->rows * p->inputs);
    l->w = normal(seed, 11, p->outputs * p->inputs);
    l->b = normal(seed, 12, p->outputs);
    l->dy = normal(seed, 13, p->rows * p->outputs);
    l->y = array(p->rows * p->outputs);
    l->dw = normal(seed, 14, p->outputs * p->inputs);
    l->db = normal(seed, 15, p->outputs);
    l->dx = array(p->rows * p->inputs);
    open_memory(l);
}

static void close_layer(struct layer *l)
{
    float *const all[] = {l->x,  l->w,  l->b,  l->dy,         l->y,
                          l->dw, l->db, l->dx, l->transposed, l->scratch};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dpt_free(all[i]);
    for (int i = 0; i < DPT_BF16_OPERANDS; i++)
        dpt_free(l->packed[i]);
}

/* [*first, *last) of n, the part-th of several, at multiples of 16. */
static void part_of(int64_t n, int part, int parts, int64_t *first, int64_t *last)
{
    const int64_t steps = (n + 15) / 16;

    *first = steps * part / parts * 16;
    *last = steps * (part + 1) / parts * 16;
    *last = *last < n ? *last : n;
    *first = *first < *last ? *first : *last;
}

/* Packs an operand in parts. */
static void pack_layer(struct layer *l, const struct dpt_gemm *p, enum dpt_bf16_operand operand,
                       const float *from, int64_t base, int64_t n, int parts)
{
    const struct dpt_bf16_gemm g = {.p = *p, .kernels = bf16};
    const int64_t steps = (n + 31) / 32;

    for (int part = 0; part < parts; part++) {
        const int64_t first = steps * part / parts * 32, last = steps * (part + 1) / parts * 32;

        dpt_bf16_gemm_pack(&g, operand, from, base + first, base + (last < n ? last : n),
                           l->packed[operand]);
    }
}

/* The three products, in fp32 or in bf16, of ranges. */
static void forward(struct layer *l, const struct dpt_gemm *p, const float *w, int64_t first,
                    int64_t last)
{
    const struct dpt_bf16_gemm g = {.p = *p, .kernels = bf16};

    if (bf16 == NULL)
        dpt_gemm_forward(p, l->transposed, w, l->b, first, last, l->scratch, l->y);
    else
        dpt_bf16_gemm_forward(&g, l->packed[DPT_BF16_INPUTS], w, l->b, first, last, l->scratch,
                              l->y);
}

static void weights(struct layer *l, const struct dpt_gemm *p, bool add, int64_t first,
                    int64_t last, float *dw)
{
    const struct dpt_bf16_gemm g = {.p = *p, .kernels = bf16};

    if (bf16 == NULL)
        dpt_gemm_weights(p, l->dy, l->x, add, first, last, l->scratch, dw);
    else
        dpt_bf16_gemm_weights(&g, l->packed[DPT_BF16_OUTPUT_ROWS], l->packed[DPT_BF16_INPUT_ROWS],
                              add, first, last, l->scratch, dw);
}

static void data(struct layer *l, const struct dpt_gemm *p, const float *w, int64_t first,
                 int64_t last)
{
    const struct dpt_bf16_gemm g = {.p = *p, .kernels = bf16};

    if (bf16 == NULL)
        dpt_gemm_data(p, l->dy, w, first, last, l->scratch, l->dx);
    else
        dpt_bf16_gemm_data(&g, l->packed[DPT_BF16_GRADIENT], w, first, last, l->scratch, l->dx);
}

/* own: how many outputs from p->first_output on are this rank's. */
static void pack_all(struct layer *l, const struct dpt_gemm *p, int64_t own, int parts)
{
    if (bf16 == NULL)
        return;
    pack_layer(l, p, DPT_BF16_INPUTS, l->x, 0, p->inputs, parts);
    pack_layer(l, p, DPT_BF16_GRADIENT, l->dy, 0, p->outputs, parts);
    pack_layer(l, p, DPT_BF16_INPUT_ROWS, l->x, 0, p->inputs, parts);
    pack_layer(l, p, DPT_BF16_OUTPUT_ROWS, l->dy, p->first_output, own, parts);
}

static void run_layer(struct layer *l, bool add, int parts)
{
    const struct dpt_gemm *p = &l->p;
    int64_t first, last;

    if (l->small && parts == 1) {
        dpt_small_forward(p, l->x, l->w, l->b, l->y);
        dpt_small_backward(p, l->dy, l->x, l->w, add, l->dw, l->db, l->dx);
        return;
    }
    for (int part = 0; part < parts; part++) {
        part_of(p->inputs, part, parts, &first, &last);
        dpt_gemm_transpose(p, l->x, first, last, l->transposed);
    }
    pack_all(l, p, p->outputs, parts);
    for (int part = 0; part < parts; part++) {
        part_of(p->outputs, part, parts, &first, &last);
        forward(l, p, l->w, first, last);
        weights(l, p, add, first, last, l->dw);
        dpt_gemm_bias(p, l->dy, add, first, last, l->db);
        part_of(p->inputs, part, parts, &first, &last);
        data(l, p, l->w, first, last);
    }
}

/* One of `parts` ranks that divide a layer: it has only the weights of its outputs and of its
 * inputs, in arrays of exactly that size. */
static void run_divided(struct layer *l, bool add, int part, int parts)
{
    struct dpt_gemm p = l->p;
    const int64_t in = p.inputs;
    int64_t first, last, rows;
    float *w, *dw;

    part_of(p.outputs, part, parts, &first, &last);
    rows = last - first;
    p.first_output = first;
    w = array(rows * in);
    dw = array(rows * in);
    memcpy(w, l->w + first * in, (size_t)(rows * in) * sizeof *w);
    memcpy(dw, l->dw + first * in, (size_t)(rows * in) * sizeof *w);
    dpt_gemm_transpose(&p, l->x, 0, in, l->transposed);
    pack_all(l, &p, rows, 1 + part % 2);
    forward(l, &p, w, first, last);
    weights(l, &p, add, first, last, dw);
    dpt_gemm_bias(&p, l->dy, add, first, last, l->db);
    memcpy(l->dw + first * in, dw, (size_t)(rows * in) * sizeof *w);
    dpt_free(w);
    dpt_free(dw);
    part_of(in, part, parts, &first, &last);
    p.first_input = first;
    p.row = last - first;
    w = array(p.outputs * p.row);
    for (int64_t o = 0; o < p.outputs && p.row > 0; o++)
        memcpy(w + o * p.row, l->w + o * in + first, (size_t)p.row * sizeof *w);
    data(l, &p, w, first, last);
    dpt_free(w);
}

/* sum_k a[k * step_a] b[k * step_b] in double, and the sum of the absolute values: to which
 * rounding is relative. */
static double gemm(int64_t k, const float *a, int64_t step_a, const float *b, int64_t step_b,
                   double *size)
{
    double sum = 0;

    for (int64_t i = 0; i < k; i++) {
        const double one = (double)a[i * step_a] * b[i * step_b];

        sum += one;
        *size += fabs(one);
    }
    return sum;
}

static void assert_near(float got, double want, double size, const char *what, uint64_t seed)
{
    if (!(fabs(got - want) <= 2e-6 * size + 1e-7))
        fail_msg("seed %d: %s is %.9g, not %.9g", (int)seed, what, (double)got, want);
}

static void check_layer(const struct layer *l, const struct layer *before, bool add, uint64_t seed)
{
    const int64_t rows = l->p.rows, in = l->p.inputs, out = l->p.outputs;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double size = fabsf(l->b[o]);
            const double sum = gemm(in, l->x + r * in, 1, l->w + o * in, 1, &size);

            assert_near(l->y[r * out + o], sum + l->b[o], size, "an output", seed);
        }
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            const double start = add ? before->dw[o * in + i] : 0;
            double size = fabs(start);
            const double sum = gemm(rows, l->dy + o, out, l->x + i, in, &size);

            assert_near(l->dw[o * in + i], start + sum, size, "a weight's gradient", seed);
        }
    for (int64_t o = 0; o < out; o++) {
        const double start = add ? before->db[o] : 0;
        const float one = 1;
        double size = fabs(start);
        const double sum = gemm(rows, l->dy + o, out, &one, 0, &size);

        assert_near(l->db[o], start + sum, size, "a bias' gradient", seed);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < in; i++) {
            double size = 0;
            const double sum = gemm(out, l->dy + r * out, 1, l->w + i, in, &size);

            assert_near(l->dx[r * in + i], sum, size, "an input's gradient", seed);
        }
    for (int i = 0; i < MARGIN; i++)
        assert_true(l->y[rows * out + i] == 0 && l->dw[out * in + i] == before->dw[out * in + i] &&
                    l->db[out + i] == before->db[out + i] && l->dx[rows * in + i] == 0);
}

static void products_are_those_of_plain_loops(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        const bool add = seed % 2 == 1;
        struct layer l, before;

        open_layer(&l, seed, dpt_isa_here());
        open_layer(&before, seed, dpt_isa_here());
        run_layer(&l, add, 1);
        check_layer(&l, &before, add, seed);
        close_layer(&l);
        close_layer(&before);
    }
}

static void assert_same_bits(const struct layer *a, const struct layer *b, uint64_t seed,
                             const char *what)
{
    const int64_t rows = a->p.rows, in = a->p.inputs, out = a->p.outputs;

    if (memcmp(a->y, b->y, (size_t)(rows * out) * sizeof *a->y) != 0 ||
        memcmp(a->dw, b->dw, (size_t)(out * in) * sizeof *a->dw) != 0 ||
        memcmp(a->db, b->db, (size_t)out * sizeof *a->db) != 0 ||
        memcmp(a->dx, b->dx, (size_t)(rows * in) * sizeof *a->dx) != 0)
        fail_msg("seed %d: other bits %s", (int)seed, what);
}

static void ranges_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        struct layer whole, parts;

        open_layer(&whole, seed, dpt_isa_here());
        open_layer(&parts, seed, dpt_isa_here());
        if (!whole.small) {
            run_layer(&whole, seed % 2 == 1, 1);
            run_layer(&parts, seed % 2 == 1, 2 + (int)(seed % 4));
            assert_same_bits(&whole, &parts, seed, "in parts");
        }
        close_layer(&whole);
        close_layer(&parts);
    }
}

static void divided_layers_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        const int ranks = 2 + (int)(seed % 7);
        struct layer whole, parts;

        open_layer(&whole, seed, dpt_isa_here());
        open_layer(&parts, seed, dpt_isa_here());
        if (!whole.small) {
            run_layer(&whole, seed % 2 == 1, 1);
            for (int r = 0; r < ranks; r++)
                run_divided(&parts, seed % 2 == 1, r, ranks);
            assert_same_bits(&whole, &parts, seed, "where ranks divide it");
        }
        close_layer(&whole);
        close_layer(&parts);
    }
}

/* Each instruction set that this machine has, against the loops; those with FMA also against each
 * other. */
static void instruction_sets_agree(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed += 3) {
        struct layer best;

        open_layer(&best, seed, dpt_isa_here());
        run_layer(&best, false, 2);
        for (enum dpt_isa isa = DPT_ISA_PLAIN; isa < dpt_isa_here() && isa < DPT_ISA_OWN; isa++) {
            struct layer l, before;

            open_layer(&l, seed, isa);
            open_layer(&before, seed, isa);
            run_layer(&l, false, 2);
            check_layer(&l, &before, false, seed);
            if (isa >= DPT_ISA_AVX2)
                assert_same_bits(&l, &best, seed, dpt_isa_names[isa]);
            close_layer(&l);
            close_layer(&before);
        }
        close_layer(&best);
    }
}

/* A NaN in one place of x, w or dy shows in everything computed from it, and in nothing else. */
static void what_is_not_finite_passes_through(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        struct layer l;
        int64_t rows, in, out, at;
        float *planted;

        open_layer(&l, seed, dpt_isa_here());
        rows = l.p.rows, in = l.p.inputs, out = l.p.outputs;
        at = draw(seed, 5, 0,
                  (seed % 3 == 0   ? rows * in
                   : seed % 3 == 1 ? out * in
                                   : rows * out) -
                      1);
        planted = (seed % 3 == 0 ? l.x : seed % 3 == 1 ? l.w : l.dy) + at;
        *planted = seed % 2 == 0 ? NAN : INFINITY;
        run_layer(&l, false, 1);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t o = 0; o < out; o++)
                assert_true(isfinite(l.y[r * out + o]) !=
                            ((seed % 3 == 0 && at / in == r) || (seed % 3 == 1 && at / in == o)));
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                assert_true(isfinite(l.dw[o * in + i]) !=
                            ((seed % 3 == 0 && at % in == i) || (seed % 3 == 2 && at % out == o)));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < in; i++)
                assert_true(isfinite(l.dx[r * in + i]) !=
                            ((seed % 3 == 1 && at % in == i) || (seed % 3 == 2 && at / out == r)));
        close_layer(&l);
    }
}

/* Gradients so large that they are written past the caches have the same bits. */
static void large_gradients(void **state)
{
    struct layer l = {.p = {.rows = 5, .inputs = 2048, .outputs = 1100, .isa = dpt_isa_here()}};
    const struct dpt_gemm *p = &l.p;

    (void)state;
    l.x = normal(1, 1, p->rows * p->inputs);
    l.dy = normal(1, 2, p->rows * p->outputs);
    l.dw = array(p->inputs * p->outputs);
    open_memory(&l);
    pack_all(&l, p, p->outputs, 1);
    weights(&l, p, false, 0, 512, l.dw);
    weights(&l, p, false, 512, p->outputs, l.dw);
    for (int64_t o = 0; o < p->outputs; o++)
        for (int64_t i = 0; i < p->inputs; i += 1 + o % 7) {
            double size = 0;
            const double want = gemm(p->rows, l.dy + o, p->outputs, l.x + i, p->inputs, &size);

            assert_near(l.dw[o * p->inputs + i], want, size, "a weight's gradient", 0);
        }
    close_layer(&l);
}

static void sum_rows(struct layer *l, float *dw, float *db)
{
    if (l->small) {
        dpt_small_backward(&l->p, l->dy, l->x, NULL, false, dw, db, NULL);
        return;
    }
    pack_all(l, &l->p, l->p.outputs, 1);
    weights(l, &l->p, false, 0, l->p.outputs, dw);
    dpt_gemm_bias(&l->p, l->dy, false, 0, l->p.outputs, db);
}

/* Sums by sub-batches have the bits of the sub-batches' own sums, added up along the tree. */
static void leaves_are_joined_along_the_tree(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        const int64_t rows = draw(seed, 0, 1, 9),
                      several = draw(seed, 6, 1, seed % 4 == 0 ? 40 : 9);
        const bool large = seed % 10 == 3;
        const int64_t in = large ? 2048 : draw(seed, 1, 1, seed % 5 == 0 ? 8 : 90);
        const int64_t out = large ? 1100 : draw(seed, 2, 1, seed % 5 == 0 ? 8 : 90), n = in * out;
        struct layer l = {.p = {several * rows, in, out, dpt_isa_here(), rows}},
                     sub_batch = {.p = l.p};
        struct dpt_tree tree, biases;

        sub_batch.p.rows = rows;
        sub_batch.p.sub_batch = 0;
        l.small = sub_batch.small = n <= DPT_SMALL;
        l.x = normal(seed, 10, l.p.rows * in);
        l.dy = normal(seed, 13, l.p.rows * out);
        l.dw = array(n);
        l.db = array(out);
        open_memory(&l);
        open_memory(&sub_batch);
        sub_batch.dw = array(several * n);
        sub_batch.db = array(several * out);
        dpt_tree_begin(&tree, (int32_t)several);
        dpt_tree_begin(&biases, (int32_t)several);
        for (int64_t i = 0; i < several; i++) {
            float *const dw = sub_batch.dw + i * n, *const db = sub_batch.db + i * out;

            sub_batch.dy = l.dy + i * rows * out;
            sub_batch.x = l.x + i * rows * in;
            sum_rows(&sub_batch, dw, db);
            dpt_tree_push(&tree, (struct dpt_block){(int32_t)i, 0}, dw, (size_t)n, NULL, NULL);
            dpt_tree_push(&biases, (struct dpt_block){(int32_t)i, 0}, db, (size_t)out, NULL, NULL);
        }
        sum_rows(&l, l.dw, l.db);
        assert_memory_equal(l.dw, tree.value[0], (size_t)n * sizeof *l.dw);
        assert_memory_equal(l.db, biases.value[0], (size_t)out * sizeof *l.db);
        sub_batch.x = sub_batch.dy = NULL;
        close_layer(&l);
        close_layer(&sub_batch);
    }
}

/* Gradients rounded as they are added have the sums of gradients that were rounded before. */
static void biases_of_rounded_gradients(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        const int64_t rows = draw(seed, 0, 1, 40), out = draw(seed, 2, 1, 90);
        struct dpt_gemm p = {
            .rows = rows, .inputs = 1, .outputs = out, .isa = dpt_isa_here(), .rounds = true};
        float *const dy = normal(seed, 13, rows * out), *const db = array(out),
                     *const want = array(out);

        dpt_gemm_bias(&p, dy, false, 0, out, db);
        dpt_bf16_round(rows * out, dy, dy);
        p.rounds = false;
        dpt_gemm_bias(&p, dy, false, 0, out, want);
        assert_memory_equal(db, want, (size_t)out * sizeof *db);
        dpt_free(dy);
        dpt_free(db);
        dpt_free(want);
    }
}

#define IN_BF16(setup)                                                                             \
    cmocka_unit_test_setup(products_are_those_of_plain_loops, setup),                              \
        cmocka_unit_test(ranges_have_the_bits_of_the_whole),                                       \
        cmocka_unit_test(divided_layers_have_the_bits_of_the_whole),                               \
        cmocka_unit_test(what_is_not_finite_passes_through), cmocka_unit_test(large_gradients),    \
        cmocka_unit_test_teardown(leaves_are_joined_along_the_tree, with_fp32)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_plain_loops),
        cmocka_unit_test(ranges_have_the_bits_of_the_whole),
        cmocka_unit_test(divided_layers_have_the_bits_of_the_whole),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(biases_of_rounded_gradients),
        cmocka_unit_test(what_is_not_finite_passes_through),
        cmocka_unit_test(large_gradients),
        cmocka_unit_test(leaves_are_joined_along_the_tree),
        IN_BF16(with_amx), /* where the machine has these; else once more in less */
        IN_BF16(with_avx512_bf16),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

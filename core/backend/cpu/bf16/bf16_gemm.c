#include "core/backend/cpu/bf16/bf16_gemm.h"

#include <stddef.h>
#include <string.h>

#include "core/backend/cpu/numbers.h"
#include "core/base/memory.h"
#include "core/base/sum_of_squares.h"

enum {
    SIDE = DPT_BF16_SIDE,
    PAIR = 2 * DPT_BF16_SIDE, /* rows or columns of two tiles */
    DEPTH = DPT_BF16_DEPTH,
    TILE = DPT_BF16_TILE,
    LONG = 1024, /* inputs whose weights forward packs at a time */
    HIGH = 256,  /* outputs whose weights data packs at a time, */
    FEW = 128,   /* of so many inputs, */
    MANY = 512,  /* or, with up to FEW rows, of so many: their sums stay in the L2 cache, too */
    LEVELS = DPT_SUB_BATCH_LEVELS,
};

/* Gradients of this many floats are written past the caches, since they would only push out the
 * rest. Plain stores, which would leave a wide layer's gradient in a cache for Adam, are slower
 * (mlp4k: 5 780 -> 4 640 samples/s); for gradients that ranks exchange they made no difference. */
enum { STREAMED = 2 << 20 };

static const int64_t one_tap;

/* Tiles along k where the rows are summed: each sub-batch begins one. */
static int64_t row_steps(const struct dpt_gemm *p)
{
    return p->rows / dpt_gemm_sub_batch(p) * parts(dpt_gemm_sub_batch(p), DEPTH);
}

/* An even number of tiles, so that pairs of them can be read. */
static int64_t tiles_of(int64_t n)
{
    return 2 * parts(n, PAIR);
}

/* --- packed operands -------------------------------------------------------------------------- */

int64_t dpt_bf16_gemm_packed(const struct dpt_gemm *p, enum dpt_bf16_operand operand)
{
    const int64_t tiles[DPT_BF16_OPERANDS] = {
        [DPT_BF16_INPUTS] = tiles_of(p->rows) * parts(p->inputs, DEPTH),
        [DPT_BF16_GRADIENT] = tiles_of(p->rows) * parts(p->outputs, DEPTH),
        [DPT_BF16_INPUT_ROWS] = tiles_of(p->inputs) * row_steps(p),
        [DPT_BF16_OUTPUT_ROWS] = tiles_of(p->outputs) * row_steps(p),
    };

    return tiles[operand] * TILE / 2;
}

/* x [rows][n] with k along its columns: [row / 16][column / 32], tiles of a or b. */
static void pack_along(const struct dpt_bf16_gemm *g, bool as_a, const float *x, int64_t n,
                       int64_t first, int64_t last, uint16_t *to)
{
    const int64_t steps = parts(n, DEPTH), rows = g->p.rows;

    for (int64_t row = 0; row < tiles_of(rows) * SIDE; row += SIDE) {
        const int64_t m = most(least(rows - row, SIDE), 0);
        const float *from = x + (m > 0 ? row : 0) * n;

        for (int64_t at = first; at < last; at += DEPTH)
            (as_a ? g->kernels->pack_a : g->kernels->pack_b_columns)(
                from + at, n, as_a ? m : least(n - at, DEPTH), as_a ? least(n - at, DEPTH) : m,
                to + (row / SIDE * steps + at / DEPTH) * TILE);
    }
}

/* x [rows][n] with k along its rows: [column / 16][sub-batch][its rows / 32], tiles of a or b. The
 * columns after the last one, up to an even number of tiles, are zero. */
static void pack_across(const struct dpt_bf16_gemm *g, bool as_a, const float *x, int64_t n,
                        int64_t base, int64_t first, int64_t last, uint16_t *to)
{
    const int64_t each = dpt_gemm_sub_batch(&g->p), steps = row_steps(&g->p);
    const int64_t end = last < n ? last : base + tiles_of(n - base) * SIDE;

    for (int64_t at = first; at < end; at += SIDE) {
        uint16_t *tile = to + (at - base) / SIDE * steps * TILE;
        const int64_t width = most(least(n - at, SIDE), 0);

        for (int64_t row = 0; row < g->p.rows; row += each)
            for (int64_t i = 0; i < each; i += DEPTH, tile += TILE)
                (as_a ? g->kernels->pack_a_columns
                      : g->kernels->pack_b)(x + (row + i) * n + (width > 0 ? at : 0), n,
                                            as_a ? width : least(each - i, DEPTH),
                                            as_a ? least(each - i, DEPTH) : width, tile);
    }
}

void dpt_bf16_gemm_pack(const struct dpt_bf16_gemm *g, enum dpt_bf16_operand operand,
                        const float *from, int64_t first, int64_t last, float *packed)
{
    const struct dpt_gemm *p = &g->p;
    uint16_t *to = (uint16_t *)packed;

    switch (operand) {
    case DPT_BF16_INPUTS:
        pack_along(g, false, from, p->inputs, first, last, to);
        break;
    case DPT_BF16_GRADIENT:
        pack_along(g, true, from, p->outputs, first, last, to);
        break;
    case DPT_BF16_INPUT_ROWS:
        pack_across(g, false, from, p->inputs, 0, first, last, to);
        break;
    case DPT_BF16_OUTPUT_ROWS:
        pack_across(g, true, from, p->outputs, p->first_output, first, last, to);
        break;
    default:
        break;
    }
}

int64_t dpt_bf16_gemm_packed_weights(const struct dpt_gemm *p, bool data)
{
    const int64_t tiles = data ? tiles_of(p->inputs) * parts(p->outputs, DEPTH)
                               : tiles_of(p->outputs) * parts(p->inputs, DEPTH);

    return tiles * TILE / 2;
}

/* --- the three products ----------------------------------------------------------------------- */

int64_t dpt_bf16_gemm_scratch(const struct dpt_gemm *p)
{
    const int64_t rows = parts(p->rows, PAIR) * PAIR;
    const int64_t forward = LONG * PAIR / 2 + PAIR * rows;
    const int64_t weights = (int64_t)LEVELS * PAIR * PAIR;
    const int64_t data = HIGH * MANY / 2 + most(MANY * least(rows, FEW), FEW * rows);

    return most(forward, most(weights, data));
}

/* Inputs whose gradient data adds up at a time. */
static int64_t width_of(const struct dpt_gemm *p)
{
    return p->rows <= FEW ? MANY : FEW;
}

/* Products of two tiles by two, which lie `a_tile` and `b_tile` numbers apart, in steps of one.
 * Prefetching the weights or the gradient that a product reads next, before it or between its
 * tiles, made no difference or delayed the product's own loads. */
static struct dpt_bf16_product product_of(int64_t m, int64_t n, int64_t steps, int64_t a_tile,
                                          int64_t b_tile)
{
    return (struct dpt_bf16_product){.m = m > SIDE ? 2 : 1,
                                     .n = n > SIDE ? 2 : 1,
                                     .taps = 1,
                                     .steps = steps,
                                     .tap = &one_tap,
                                     .a_row = DEPTH,
                                     .a_tile = a_tile,
                                     .a_step = TILE,
                                     .b_tile = b_tile,
                                     .b_step = TILE,
                                     .c_tile = SIDE};
}

/* The weights of outputs [o, o + m), tiles [at, at + k) of inputs, as tiles of a, `apart` of them
 * from output to output. They are rounded here: when the optimizer wrote them in bf16, forward and
 * data were 1.2 ms faster for mlp4k, but the optimizer, which is bound by memory, was 2 ms
 * slower. */
static void pack_outputs(const struct dpt_bf16_gemm *g, const float *w, int64_t o, int64_t m,
                         int64_t at, int64_t k, int64_t apart, uint16_t *a)
{
    const int64_t inputs = g->p.inputs;

    for (int64_t i = 0; i < m; i += SIDE)
        for (int64_t s = 0; s < k; s++)
            g->kernels->pack_a(w + (o + i - g->p.first_output) * inputs + (at + s) * DEPTH, inputs,
                               least(m - i, SIDE), least(inputs - (at + s) * DEPTH, DEPTH),
                               a + (i / SIDE * apart + s) * TILE);
}

void dpt_bf16_gemm_forward(const struct dpt_bf16_gemm *g, const float *inputs, const float *w,
                           const float *bias, int64_t first, int64_t last, float *scratch, float *y)
{
    enum { PIECE = LONG / DEPTH };
    const struct dpt_gemm *p = &g->p;
    const int64_t line = parts(p->rows, PAIR) * PAIR, steps = parts(p->inputs, DEPTH);
    const int64_t apart = g->forward_weights != NULL ? steps : PIECE;
    const uint16_t *a = (const uint16_t *)scratch;
    float *sum = scratch + LONG * PAIR / 2;

    g->kernels->begin(DPT_BF16_DEPTH);
    for (int64_t o = first; o < last; o += PAIR) {
        const int64_t m = least(last - o, PAIR);

        for (int64_t at = 0; at < steps; at += PIECE) {
            const int64_t k = least(steps - at, PIECE);

            if (g->forward_weights != NULL)
                a = (const uint16_t *)g->forward_weights + (o / SIDE * steps + at) * TILE;
            else
                pack_outputs(g, w, o, m, at, k, PIECE, (uint16_t *)scratch);
            for (int64_t row = 0; row < p->rows; row += PAIR) {
                const struct dpt_bf16_product product =
                    product_of(m, p->rows - row, k, apart * TILE, steps * TILE);

                g->kernels->multiply(&product, a,
                                     (const uint16_t *)inputs + (row / SIDE * steps + at) * TILE,
                                     at > 0, sum + row, line);
            }
        }
        for (int64_t i = 0; bias != NULL && i < m; i++)
            for (int64_t row = 0; row < line; row++)
                sum[i * line + row] += bias[o + i];
        dpt_transpose(sum, line, m, p->rows, y + o, p->outputs);
    }
    g->kernels->end();
}

/* Computes a block of the weights' gradient, of each sub-batch by itself, joined in sums. Returns
 * how many sums are left to be added, 1 or 2. */
static int multiply_sub_batches(const struct dpt_bf16_gemm *g, const uint16_t *a, const uint16_t *b,
                                int64_t m, int64_t n, float *sums)
{
    const int64_t each = parts(dpt_gemm_sub_batch(&g->p), DEPTH), steps = row_steps(&g->p);
    const struct dpt_bf16_product product = product_of(m, n, each, steps * TILE, steps * TILE);
    int top = 0;

    for (int64_t at = 0, done = 1; at < steps; at += each, done++) {
        g->kernels->multiply(&product, a + at * TILE, b + at * TILE, false,
                             sums + (int64_t)top * PAIR * PAIR, PAIR);
        top = dpt_sub_batches_join(sums, (int64_t)PAIR * PAIR, top + 1, done,
                                   at + each < steps ? 1 : 2);
    }
    return dpt_sub_batches_join(sums, (int64_t)PAIR * PAIR, top, 0, 2);
}

/* Computes a block of the weights' gradient of several micro-batches, added from the first to the
 * last. */
static int multiply_several(const struct dpt_bf16_gemm *g, const uint16_t *a, const uint16_t *b,
                            int64_t m, int64_t n, float *sums)
{
    const int64_t steps = row_steps(&g->p);
    const int64_t a_next = 2 * dpt_bf16_gemm_packed(&g->p, DPT_BF16_OUTPUT_ROWS);
    const int64_t b_next = 2 * dpt_bf16_gemm_packed(&g->p, DPT_BF16_INPUT_ROWS);
    struct dpt_bf16_product product = product_of(m, n, steps, steps * TILE, steps * TILE);
    int64_t tap[DPT_BF16_SEVERAL];

    if (g->kernels->adds_tiles && steps == 1) {
        for (int32_t i = 0; i < g->several; i++)
            tap[i] = i * a_next;
        product.taps = g->several;
        product.tap = tap;
        product.b_tap = b_next;
        g->kernels->multiply(&product, a, b, false, sums, PAIR);
        return 1;
    }
    for (int32_t i = 0; i < g->several; i++) {
        if (i > 1)
            dpt_sub_batches_join(sums, (int64_t)PAIR * PAIR, 2, 0, 1);
        g->kernels->multiply(&product, a + i * a_next, b + i * b_next, false,
                             sums + (i > 0 ? (ptrdiff_t)PAIR * PAIR : 0), PAIR);
    }
    return g->several > 1 ? 2 : 1;
}

void dpt_bf16_gemm_weights(const struct dpt_bf16_gemm *g, const float *output_rows,
                           const float *input_rows, bool add, int64_t first, int64_t last,
                           float *scratch, float *dw)
{
    enum { PIECE = DPT_SUM_OF_SQUARES_CHUNK };
    const struct dpt_gemm *p = &g->p;
    const int64_t steps = row_steps(p);
    const bool stream = p->inputs * p->outputs >= STREAMED && p->inputs % SIDE == 0 &&
                        (uintptr_t)dw % (SIDE * sizeof *dw) == 0 && !add;
    const int64_t pieces = p->inputs / PIECE;
    double *squares = stream && p->inputs % PIECE == 0 ? g->squares : NULL;
    double lanes[PAIR][DPT_SUM_OF_SQUARES_LANES]; /* of a piece of each row */

    _Static_assert((int)PAIR == (int)DPT_SUM_OF_SQUARES_LANES, "a pair of tiles fills the lanes");
    g->kernels->begin(DPT_BF16_DEPTH);
    for (int64_t o = first; o < last; o += PAIR) {
        const int64_t m = least(last - o, PAIR), row = o - p->first_output;
        const uint16_t *a = (const uint16_t *)output_rows + row / SIDE * steps * TILE;

        for (int64_t i = 0; i < p->inputs; i += PAIR) {
            const int64_t n = least(p->inputs - i, PAIR);
            const int left = (g->several > 0 ? multiply_several : multiply_sub_batches)(
                g, a, (const uint16_t *)input_rows + i / SIDE * steps * TILE, m, n, scratch);
            const float *second = left > 1 ? scratch + (ptrdiff_t)PAIR * PAIR : NULL;
            float *to = dw + row * p->inputs + i;

            if (squares == NULL) {
                g->kernels->put(scratch, second, add, stream, m, n, to, p->inputs);
                continue;
            }
            if (i % PIECE == 0)
                memset(lanes, 0, sizeof lanes);
            g->kernels->put_squared(scratch, second, m, to, p->inputs, lanes[0]);
            for (int64_t k = 0; k < m && (i + PAIR) % PIECE == 0; k++)
                squares[(row + k) * pieces + i / PIECE] = dpt_sum_of_lanes(lanes[k]);
        }
    }
    g->kernels->end();
    dpt_tile_fence();
}

/* The weights of outputs [at, at + k) and inputs [i, i + n), as tiles of b, `apart` of them from
 * input to input. */
static void pack_inputs(const struct dpt_bf16_gemm *g, const float *w, int64_t at, int64_t k,
                        int64_t i, int64_t n, int64_t apart, uint16_t *b)
{
    const int64_t line = g->p.row > 0 ? g->p.row : g->p.inputs;

    for (int64_t s = 0; s < k; s += DEPTH)
        for (int64_t t = 0; t < n; t += SIDE)
            g->kernels->pack_b(w + (at + s) * line + i + t - g->p.first_input, line,
                               least(k - s, DEPTH), least(n - t, SIDE),
                               b + (t / SIDE * apart + s / DEPTH) * TILE);
}

void dpt_bf16_gemm_data(const struct dpt_bf16_gemm *g, const float *gradient, const float *w,
                        int64_t first, int64_t last, float *scratch, float *dx)
{
    enum { PIECE = HIGH / DEPTH };
    const struct dpt_gemm *p = &g->p;
    const int64_t steps = parts(p->outputs, DEPTH);
    const int64_t apart = g->data_weights != NULL ? steps : PIECE;
    /* Whole tiles go where they belong, unless they would come back to be added to. */
    const bool direct = p->rows % SIDE == 0 && (last - first) % SIDE == 0 && p->outputs <= HIGH;
    const int64_t width = width_of(p), line = direct ? p->inputs : width;
    const uint16_t *b = (const uint16_t *)scratch;

    g->kernels->begin(DPT_BF16_DEPTH);
    for (int64_t i = first; i < last; i += width) {
        const int64_t n = least(last - i, width);
        float *sum = direct ? dx + i : scratch + HIGH * MANY / 2;

        for (int64_t at = 0; at < p->outputs; at += HIGH) {
            const int64_t k = least(p->outputs - at, HIGH);

            if (g->data_weights != NULL)
                b = (const uint16_t *)g->data_weights + (i / SIDE * steps + at / DEPTH) * TILE;
            else
                pack_inputs(g, w, at, k, i, n, apart, (uint16_t *)scratch);
            for (int64_t row = 0; row < p->rows; row += PAIR) {
                const uint16_t *a =
                    (const uint16_t *)gradient + (row / SIDE * steps + at / DEPTH) * TILE;

                for (int64_t t = 0; t < n; t += PAIR) {
                    const struct dpt_bf16_product product = product_of(
                        p->rows - row, n - t, parts(k, DEPTH), steps * TILE, apart * TILE);

                    g->kernels->multiply(&product, a, b + t / SIDE * apart * TILE, at > 0,
                                         sum + row * line + t, line);
                }
            }
        }
        for (int64_t row = 0; row < p->rows && !direct; row++)
            memcpy(dx + row * p->inputs + i, sum + row * width, (size_t)n * sizeof *dx);
    }
    g->kernels->end();
}

void dpt_bf16_gemm_pack_weights(const struct dpt_bf16_gemm *g, bool data, const float *w,
                                int64_t first, int64_t last, float *packed)
{
    const struct dpt_gemm *p = &g->p;
    const int64_t steps = parts(data ? p->outputs : p->inputs, DEPTH);
    uint16_t *to = (uint16_t *)packed + first / SIDE * steps * TILE;

    if (data)
        pack_inputs(g, w, 0, p->outputs, first, last - first, steps, to);
    else
        pack_outputs(g, w, first, last - first, 0, steps, steps, to);
}

enum dpt_status dpt_bf16_product(const struct dpt_bf16_kernels *kernels, int64_t m, int64_t n,
                                 int64_t k, const float *a, const float *b, float *c,
                                 struct dpt_error *err)
{
    const struct dpt_bf16_gemm g = {.p = {.rows = m, .inputs = n, .outputs = k},
                                    .kernels = kernels};
    const int64_t packed = dpt_bf16_gemm_packed(&g.p, DPT_BF16_GRADIENT);
    enum dpt_status status = DPT_OK;
    float *memory = NULL;

    DPT_TRY(DPT_ALLOCATE(memory, (size_t)(packed + dpt_bf16_gemm_scratch(&g.p)), "a matrix product",
                         err));
    dpt_bf16_gemm_pack(&g, DPT_BF16_GRADIENT, a, 0, k, memory);
    dpt_bf16_gemm_data(&g, memory, b, 0, n, memory + packed, c);
out:
    dpt_free(memory);
    return status;
}

#include "core/backend/cpu/fp32/gemm.h"

#include <stddef.h>
#include <string.h>

#include "core/backend/bf16.h"
#include "core/backend/cpu/numbers.h"
#include "core/base/vector.h"

/* --- how the operands are cut ------------------------------------------------------------------
 *
 * k is cut into pieces of at most DEPTH, so that 8 rows of it and a block of columns stay near.
 * What a tile reads is packed: `a` 8 rows at a time, `b` in blocks of up to 48 columns, the last
 * one as wide as it has to be; what is not there is zero.
 */

enum {
    ROWS = DPT_TILE_ROWS,
    LANES = DPT_TILE_LANES,
    MOST = DPT_TILE_MOST,
    DEPTH = DPT_TILE_DEPTH,
    LINE = DPT_TILE_LINE,
    GROUP = 256,   /* outputs whose sums forward keeps at a time */
    CROWDED = 256, /* rows of a multiple of this many floats lie in each other's way in the cache */
};

/* Gradients of this many floats are written past the caches: they would only push out the rest. */
enum { STREAMED = 2 << 20 };

int64_t dpt_gemm_block(int64_t n)
{
    return up((n + up(n, MOST) / MOST - 1) / (up(n, MOST) / MOST), LANES);
}

/* One tile, of which m rows and n columns are wanted. */
static void run_tile(dpt_tile *tile, int64_t k, const float *a, int64_t lda, const float *b,
                     enum dpt_tile_way way, int64_t m, int64_t n, int64_t width, float *c,
                     int64_t ldc, const struct dpt_tile_prefetch *prefetch)
{
    _Alignas(64) float all[ROWS * MOST];

    if (m == ROWS && n == width) {
        tile(k, a, lda, b, way, c, ldc, prefetch);
        return;
    }
    tile(k, a, lda, b, DPT_TILE_WRITE, all, width, prefetch);
    dpt_tile_put(all, NULL, width, way, m, n, c, ldc);
}

/* 8 rows of at most DEPTH floats, as the tiles read them: [8][LINE]. Side by side, a cache line of
 * each at a time: twice as fast as one after another. */
DPT_VECTOR static void pack_lines(const float *x, int64_t ld, int64_t m, int64_t k, float *a)
{
    int64_t j = 0;

    for (; m == ROWS && j + LANES <= k; j += LANES)
        for (int i = 0; i < ROWS; i++)
            memcpy(a + i * LINE + j, x + i * ld + j, LANES * sizeof *a);
    for (int64_t i = 0; i < m; i++)
        memcpy(a + i * LINE + j, x + i * ld + j, (size_t)(k - j) * sizeof *a);
    for (int64_t i = m; i < ROWS; i++)
        memset(a + i * LINE, 0, (size_t)k * sizeof *a);
}

/* k rows of n floats, one after another. The usual widths are constants: a call or a string
 * instruction would take longer than the copy. */
DPT_VECTOR static void pack_rows(const float *restrict x, int64_t ld, int64_t k, int64_t n,
                                 float *restrict b)
{
    if (n == MOST)
        for (int64_t i = 0; i < k; i++)
            memcpy(b + i * MOST, x + i * ld, MOST * sizeof *b);
    else if (n == ROWS)
        for (int64_t i = 0; i < k; i++)
            memcpy(b + i * ROWS, x + i * ld, ROWS * sizeof *b);
    else if (n == LANES)
        for (int64_t i = 0; i < k; i++)
            memcpy(b + i * LANES, x + i * ld, LANES * sizeof *b);
    else
        for (int64_t i = 0; i < k; i++)
            memcpy(b + i * n, x + i * ld, (size_t)n * sizeof *b);
}

/* k rows of n floats, filled up to `width`: [k][width]. */
static void pack_block(const float *x, int64_t ld, int64_t k, int64_t n, int64_t width, float *b)
{
    if (n == width) {
        pack_rows(x, ld, k, n, b);
        return;
    }
    for (int64_t i = 0; i < k; i++, x += ld, b += width) {
        memcpy(b, x, (size_t)n * sizeof *b);
        for (int64_t j = n; j < width; j++)
            b[j] = 0;
    }
}

/* --- transposing ------------------------------------------------------------------------------ */

typedef float four __attribute__((vector_size(16)));

static four load_four(const float *x)
{
    four v;

    memcpy(&v, x, sizeof v);
    return v;
}

/* to[j][i] = from[i][j], 4 by 4. */
static void transpose_square(const float *from, int64_t ld_from, float *to, int64_t ld_to)
{
    const four r0 = load_four(from), r1 = load_four(from + ld_from),
               r2 = load_four(from + 2 * ld_from), r3 = load_four(from + 3 * ld_from);
    const four low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
               high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7),
               low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
               high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    const four t[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                       __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                       __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                       __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};

    for (int j = 0; j < 4; j++)
        memcpy(to + j * ld_to, &t[j], sizeof t[j]);
}

/* Whole lines of `to` one after another. */
void dpt_transpose(const float *from, int64_t ld_from, int64_t m, int64_t n, float *to,
                   int64_t ld_to)
{
    const int64_t whole_m = m / 4 * 4, whole_n = n / 4 * 4;

    for (int64_t start = 0; start < whole_m; start += LANES)
        for (int64_t j = 0; j < whole_n; j += 4)
            for (int64_t i = start; i < least(start + LANES, whole_m); i += 4)
                transpose_square(from + i * ld_from + j, ld_from, to + j * ld_to + i, ld_to);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = i < whole_m ? whole_n : 0; j < n; j++)
            to[j * ld_to + i] = from[i * ld_from + j];
}

int64_t dpt_gemm_transposed(const struct dpt_gemm *p)
{
    return up(p->rows, LANES) * p->inputs;
}

/* Block by block of up to 48 rows: [inputs][width]. */
void dpt_gemm_transpose(const struct dpt_gemm *p, const float *x, int64_t first, int64_t last,
                        float *xt)
{
    const int64_t block = dpt_gemm_block(p->rows);

    for (int64_t row = 0; row < p->rows; row += block) {
        const int64_t n = least(p->rows - row, block), width = up(n, LANES);
        float *to = xt + row * p->inputs + first * width;

        dpt_transpose(x + row * p->inputs + first, p->inputs, n, last - first, to, width);
        for (int64_t i = first; n < width && i < last; i++, to += width)
            memset(to + n, 0, (size_t)(width - n) * sizeof *to);
    }
}

/* --- the three products ----------------------------------------------------------------------- */

int64_t dpt_gemm_scratch(const struct dpt_gemm *p)
{
    const int64_t forward = (int64_t)ROWS * LINE + GROUP * up(p->rows, LANES);
    const int64_t weights = (up(p->outputs, ROWS) + MOST) * p->rows;
    const int64_t data = (int64_t)DEPTH * MOST + up(p->rows, ROWS) * LINE;

    return most(most(forward, weights), data);
}

/* The sums of outputs [first, first + n), over one piece of the inputs: sum [n][up(rows)]. The
 * weights are read where they lie, unless they would push each other out of the cache there. */
static void forward_piece(const struct dpt_gemm *p, const float *xt, const float *w, int64_t first,
                          int64_t n, int64_t at, int64_t k, float *a, float *sum)
{
    const int64_t line = up(p->rows, LANES), block = dpt_gemm_block(p->rows);
    /* Each tile of 8 outputs prefetches its part of the next outputs' weights. */
    const int64_t tiles = least(parts(p->rows, block), ROWS), share = parts(ROWS, tiles);

    for (int64_t o = 0; o < n; o += ROWS) {
        const int64_t m = least(n - o, ROWS);
        const float *rows = w + (first + o - p->first_output) * p->inputs + at;
        const bool packed = m < ROWS || p->inputs % CROWDED == 0;

        if (packed)
            pack_lines(rows, p->inputs, m, k, a);
        for (int64_t row = 0; row < p->rows; row += block) {
            const int64_t width = up(least(p->rows - row, block), LANES);
            const int64_t asked = row / block * share, next = first + o + ROWS + asked;
            const int64_t lines = least(least(ROWS - asked, share), first + n - next);
            const bool more = o + ROWS < n && lines > 0;
            const struct dpt_tile_prefetch prefetch = {
                .at = w + (more ? next - p->first_output : 0) * p->inputs + at,
                .block = LANES,
                .step = p->inputs,
                .lines = (int)lines};

            dpt_tile *tile = dpt_tile_for(p->isa, (int)(width / LANES),
                                          packed ? DPT_TILE_LINES : DPT_TILE_STRIDED);

            run_tile(tile, k, packed ? a : rows, p->inputs, xt + row * p->inputs + at * width,
                     at == 0 ? DPT_TILE_WRITE : DPT_TILE_ADD, m, width, width, sum + o * line + row,
                     line, more ? &prefetch : NULL);
        }
    }
}

void dpt_gemm_forward(const struct dpt_gemm *p, const float *xt, const float *w, const float *bias,
                      int64_t first, int64_t last, float *scratch, float *y)
{
    const int64_t line = up(p->rows, LANES);
    float *a = scratch, *sum = scratch + (int64_t)ROWS * LINE;

    for (int64_t o = first; o < last; o += GROUP) {
        const int64_t n = least(last - o, GROUP);

        for (int64_t at = 0; at < p->inputs; at += DEPTH)
            forward_piece(p, xt, w, o, n, at, least(p->inputs - at, DEPTH), a, sum);
        for (int64_t i = 0; bias != NULL && i < n; i++)
            for (int64_t row = 0; row < line; row++)
                sum[i * line + row] += bias[o + i];
        dpt_transpose(sum, line, n, p->rows, y + o, p->outputs);
    }
}

/* --- sums by sub-batches ---------------------------------------------------------------------- */

enum { LEVELS = DPT_SUB_BATCH_LEVELS };

DPT_VECTOR int dpt_sub_batches_join(float *sums, int64_t width, int top, int64_t done, int least)
{
    for (; top > least && done % 2 == 0; top--, done /= 2) {
        float *restrict to = sums + (top - 2) * width;
        const float *restrict from = to + width;

        for (int64_t i = 0; i < width; i++)
            to[i] += from[i];
    }
    return top;
}

/* A tile of the weights' gradient: the sums of the sub-batches, joined. */
static void run_sub_batches(const struct dpt_gemm *p, dpt_tile *tile, const float *a,
                            const float *b, enum dpt_tile_way way, int64_t m, int64_t n,
                            int64_t width, float *c)
{
    _Alignas(64) float sums[LEVELS * ROWS * MOST];
    const int64_t sub_batch = dpt_gemm_sub_batch(p), size = ROWS * width;
    int top = 0;

    for (int64_t row = 0, done = 1; row < p->rows; row += sub_batch, done++) {
        const bool second = done % 2 == 0; /* its sibling is the last of the sums: added at once */

        top += !second;
        tile(sub_batch, a + row * ROWS, ROWS, b + row * width,
             second ? DPT_TILE_ADD : DPT_TILE_WRITE, sums + (top - 1) * size, width, NULL);
        if (second)
            top =
                dpt_sub_batches_join(sums, size, top, done / 2, row + sub_batch < p->rows ? 1 : 2);
    }
    top = dpt_sub_batches_join(sums, size, top, 0, 2);
    dpt_tile_put(sums, top > 1 ? sums + size : NULL, width, way, m, n, c, p->inputs);
}

/*
 * What was left, for 784-4096-4096-10 with Adam on one rank of two threads (Xeon, Sapphire Rapids
 * without AMX, 128 rows, a step of 58 ms): a gradient that is never written, but computed once for
 * its norm and again for the update, would take another 14.4 ms of products to save the 2.9 that
 * the norm reads for and the seventh of the optimizer's 10.2 (reckoned from the times of these),
 * since stores past the caches hide behind the product. Measured: with few rows at a time (3136 to
 * 128, 8 times 16 rows), one product of kept operands in place of eight that add to the gradient
 * saved 2 % of a step with AVX-512 and nothing with AVX2; weights packed once per step saved 25 %
 * of the data's product, and packing took as long.
 */
void dpt_gemm_weights(const struct dpt_gemm *p, const float *dy, const float *x, bool add,
                      int64_t first, int64_t last, float *scratch, float *dw)
{
    const int64_t rows = p->rows;
    const bool several = dpt_gemm_sub_batch(p) < rows;
    const bool stream = p->inputs * p->outputs >= STREAMED && p->inputs % LANES == 0 &&
                        (uintptr_t)dw % (LANES * sizeof *dw) == 0;
    const enum dpt_tile_way way = add ? DPT_TILE_ADD : stream ? DPT_TILE_STREAM : DPT_TILE_WRITE;
    float *b = scratch, *a = scratch + rows * MOST;

    for (int64_t o = first; o < last; o += ROWS)
        pack_block(dy + o, p->outputs, rows, least(last - o, ROWS), ROWS, a + (o - first) * rows);
    for (int64_t i = 0; i < p->inputs; i += MOST) {
        const int64_t n = least(p->inputs - i, MOST), width = up(n, LANES);
        dpt_tile *tile = dpt_tile_for(p->isa, (int)(width / LANES), DPT_TILE_TRANSPOSED);

        pack_block(x + i, p->inputs, rows, n, width, b);
        for (int64_t o = first; o < last; o += ROWS) {
            const float *from = a + (o - first) * rows;
            const int64_t m = least(last - o, ROWS);
            float *to = dw + (o - p->first_output) * p->inputs + i;

            if (several)
                run_sub_batches(p, tile, from, b, way, m, n, width, to);
            else
                run_tile(tile, rows, from, ROWS, b, way, m, n, width, to, p->inputs, NULL);
        }
    }
    dpt_tile_fence();
}

/* The sum of rows of n floats, at most LANES; zeros after them. */
DPT_VECTOR static void add_rows(const float *restrict d, int64_t ld, int64_t rows, int64_t n,
                                float *restrict result)
{
    float sum[LANES] = {0};

    if (n == LANES)
        for (int64_t row = 0; row < rows; row++, d += ld)
            for (int lane = 0; lane < LANES; lane++)
                sum[lane] += d[lane];
    else
        for (int64_t row = 0; row < rows; row++, d += ld)
            for (int64_t lane = 0; lane < n; lane++)
                sum[lane] += d[lane];
    memcpy(result, sum, sizeof sum);
}

/* The sum of rows of n floats that are rounded first, at most LANES. */
DPT_VECTOR static void add_rounded_rows(const float *restrict d, int64_t ld, int64_t rows,
                                        int64_t n, float *restrict result)
{
    float sum[LANES] = {0};

    for (int64_t row = 0; row < rows; row++, d += ld)
        for (int64_t lane = 0; lane < n; lane++)
            sum[lane] += dpt_bf16_nearest(d[lane]);
    memcpy(result, sum, sizeof sum);
}

void dpt_gemm_bias(const struct dpt_gemm *p, const float *dy, bool add, int64_t first, int64_t last,
                   float *db)
{
    const int64_t sub_batch = dpt_gemm_sub_batch(p);

    for (int64_t o = first; o < last; o += LANES) {
        const int64_t n = least(last - o, LANES);
        float sums[LEVELS * LANES] = {0}; /* for compilers that do not know that there are rows */
        int top = 0;

        for (int64_t row = 0, done = 1; row < p->rows; row += sub_batch, done++) {
            (p->rounds ? add_rounded_rows : add_rows)(dy + row * p->outputs + o, p->outputs,
                                                      sub_batch, n, sums + top * LANES);
            top = dpt_sub_batches_join(sums, LANES, top + 1, done, 1);
        }
        dpt_sub_batches_join(sums, LANES, top, 0, 1);
        for (int64_t lane = 0; lane < n; lane++)
            db[o + lane] = add ? db[o + lane] + sums[lane] : sums[lane];
    }
}

void dpt_gemm_data(const struct dpt_gemm *p, const float *dy, const float *w, int64_t first,
                   int64_t last, float *scratch, float *dx)
{
    const int64_t line = p->row > 0 ? p->row : p->inputs;
    float *b = scratch, *a = scratch + (int64_t)DEPTH * MOST;

    for (int64_t at = 0; at < p->outputs; at += DEPTH) {
        const int64_t k = least(p->outputs - at, DEPTH);
        const enum dpt_tile_way way = at == 0 ? DPT_TILE_WRITE : DPT_TILE_ADD;

        for (int64_t row = 0; row < p->rows; row += ROWS)
            pack_lines(dy + row * p->outputs + at, p->outputs, least(p->rows - row, ROWS), k,
                       a + row * LINE);
        for (int64_t i = first; i < last; i += MOST) {
            const int64_t n = least(last - i, MOST), width = up(n, LANES);
            dpt_tile *tile = dpt_tile_for(p->isa, (int)(width / LANES), DPT_TILE_LINES);

            pack_block(w + at * line + i - p->first_input, line, k, n, width, b);
            for (int64_t row = 0; row < p->rows; row += ROWS) {
                const int64_t next = row / ROWS * (k / LANES); /* row of the next block */
                const bool more = i + 2 * MOST <= last && next + k / LANES <= k;
                const struct dpt_tile_prefetch prefetch = {
                    .at = w + (more ? (at + next) * line + i - p->first_input + MOST : 0),
                    .block = line,
                    .step = LANES,
                    .lines = MOST / LANES};

                run_tile(tile, k, a + row * LINE, LINE, b, way, least(p->rows - row, ROWS), n,
                         width, dx + row * p->inputs + i, p->inputs, more ? &prefetch : NULL);
            }
        }
    }
}

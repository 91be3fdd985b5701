#include "core/backend/cpu/product.h"

#include <stddef.h>
#include <string.h>

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
    GROUP = 256, /* outputs whose sums forward keeps at a time */
};

/* Gradients of this many floats are written past the caches: they would only push out the rest. */
enum { STREAMED = 2 << 20 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* How wide blocks of n columns are, the last one apart: as even as can be. */
static int64_t block_of(int64_t n)
{
    return up((n + up(n, MOST) / MOST - 1) / (up(n, MOST) / MOST), LANES);
}

/* One tile, of which m rows and n columns are wanted. */
static void run_tile(dpt_tile *tile, int64_t k, const float *a, const float *b,
                     enum dpt_tile_way way, int64_t m, int64_t n, int64_t width, float *c,
                     int64_t ldc, const struct dpt_tile_soon *soon)
{
    _Alignas(64) float all[ROWS * MOST];

    if (m == ROWS && n == width) {
        tile(k, a, b, way, c, ldc, soon);
        return;
    }
    tile(k, a, b, DPT_TILE_WRITE, all, width, soon);
    for (int64_t i = 0; i < m; i++) {
        const float *from = all + i * width;
        float *to = c + i * ldc;

        if (way == DPT_TILE_ADD)
            for (int64_t j = 0; j < n; j++)
                to[j] += from[j];
        else
            memcpy(to, from, (size_t)n * sizeof *to);
    }
}

/* 8 rows of at most DEPTH floats, as the tiles read them: [8][LINE]. */
static void pack_lines(const float *x, int64_t ld, int64_t m, int64_t k, float *a)
{
    for (int64_t i = 0; i < m; i++)
        memcpy(a + i * LINE, x + i * ld, (size_t)k * sizeof *a);
    for (int64_t i = m; i < ROWS; i++)
        memset(a + i * LINE, 0, (size_t)k * sizeof *a);
}

/* k rows of n floats, filled up to `width`: [k][width]. */
static void pack_block(const float *x, int64_t ld, int64_t k, int64_t n, int64_t width, float *b)
{
    for (int64_t i = 0; i < k; i++, x += ld, b += width) {
        if (n == MOST)
            memcpy(b, x, MOST * sizeof *b);
        else
            memcpy(b, x, (size_t)n * sizeof *b);
        for (int64_t j = n; j < width; j++)
            b[j] = 0;
    }
}

/* --- turning -----------------------------------------------------------------------------------
 */

typedef float four __attribute__((vector_size(16)));

static four load_four(const float *x)
{
    four v;

    memcpy(&v, x, sizeof v);
    return v;
}

/* to[j][i] = from[i][j], 4 by 4. */
static void turn_square(const float *from, int64_t ld_from, float *to, int64_t ld_to)
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

/* to[j][i] = from[i][j] for i < m, j < n; whole lines of `to` one after another. */
static void turn(const float *from, int64_t ld_from, int64_t m, int64_t n, float *to, int64_t ld_to)
{
    const int64_t whole_m = m / 4 * 4, whole_n = n / 4 * 4;

    for (int64_t start = 0; start < whole_m; start += LANES)
        for (int64_t j = 0; j < whole_n; j += 4)
            for (int64_t i = start; i < least(start + LANES, whole_m); i += 4)
                turn_square(from + i * ld_from + j, ld_from, to + j * ld_to + i, ld_to);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = i < whole_m ? whole_n : 0; j < n; j++)
            to[j * ld_to + i] = from[i * ld_from + j];
}

int64_t dpt_product_turned(const struct dpt_product *p)
{
    return up(p->rows, LANES) * p->inputs;
}

/* Block by block of up to 48 rows: [inputs][width]. */
void dpt_product_turn(const struct dpt_product *p, const float *x, int64_t first, int64_t last,
                      float *xt)
{
    const int64_t block = block_of(p->rows);

    for (int64_t row = 0; row < p->rows; row += block) {
        const int64_t n = least(p->rows - row, block), width = up(n, LANES);
        float *to = xt + row * p->inputs + first * width;

        turn(x + row * p->inputs + first, p->inputs, n, last - first, to, width);
        for (int64_t i = first; n < width && i < last; i++, to += width)
            memset(to + n, 0, (size_t)(width - n) * sizeof *to);
    }
}

/* --- the three products ------------------------------------------------------------------------
 */

int64_t dpt_product_scratch(const struct dpt_product *p)
{
    const int64_t forward = (int64_t)ROWS * LINE + GROUP * up(p->rows, LANES);
    const int64_t weights = (up(p->outputs, ROWS) + MOST) * p->rows;
    const int64_t data = (int64_t)DEPTH * MOST + up(p->rows, ROWS) * LINE;
    const int64_t most = forward > weights ? forward : weights;

    return most > data ? most : data;
}

/* The sums of outputs [first, first + n), over one piece of the inputs: sum [n][up(rows)]. */
static void forward_piece(const struct dpt_product *p, const float *xt, const float *w,
                          int64_t first, int64_t n, int64_t at, int64_t k, float *a, float *sum)
{
    const int64_t line = up(p->rows, LANES), block = block_of(p->rows);

    for (int64_t o = 0; o < n; o += ROWS) {
        const int64_t m = least(n - o, ROWS);

        pack_lines(w + (first + o) * p->inputs + at, p->inputs, m, k, a);
        for (int64_t row = 0; row < p->rows; row += block) {
            const int64_t width = up(least(p->rows - row, block), LANES);
            const int64_t next = first + o + ROWS + row / block * 3; /* of three rows */
            const bool more = o + ROWS < n && row / block * 3 < ROWS && next + 3 <= p->outputs;
            const struct dpt_tile_soon soon = {
                .at = w + (more ? next : 0) * p->inputs + at, .block = LANES, .step = p->inputs};

            run_tile(dpt_tile_for(p->isa, (int)(width / LANES), false), k, a,
                     xt + row * p->inputs + at * width, at == 0 ? DPT_TILE_WRITE : DPT_TILE_ADD, m,
                     width, width, sum + o * line + row, line, more ? &soon : NULL);
        }
    }
}

void dpt_product_forward(const struct dpt_product *p, const float *xt, const float *w,
                         const float *bias, int64_t first, int64_t last, float *scratch, float *y)
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
        turn(sum, line, n, p->rows, y + o, p->outputs);
    }
}

void dpt_product_weights(const struct dpt_product *p, const float *dy, const float *x, bool add,
                         int64_t first, int64_t last, float *scratch, float *dw)
{
    const int64_t rows = p->rows;
    const bool stream = p->inputs * p->outputs >= STREAMED && p->inputs % LANES == 0 &&
                        (uintptr_t)dw % (LANES * sizeof *dw) == 0;
    const enum dpt_tile_way way = add ? DPT_TILE_ADD : stream ? DPT_TILE_STREAM : DPT_TILE_WRITE;
    float *b = scratch, *a = scratch + rows * MOST;

    for (int64_t o = first; o < last; o += ROWS)
        pack_block(dy + o, p->outputs, rows, least(last - o, ROWS), ROWS, a + (o - first) * rows);
    for (int64_t i = 0; i < p->inputs; i += MOST) {
        const int64_t n = least(p->inputs - i, MOST), width = up(n, LANES);
        dpt_tile *tile = dpt_tile_for(p->isa, (int)(width / LANES), true);

        pack_block(x + i, p->inputs, rows, n, width, b);
        for (int64_t o = first; o < last; o += ROWS)
            run_tile(tile, rows, a + (o - first) * rows, b, way, least(last - o, ROWS), n, width,
                     dw + o * p->inputs + i, p->inputs, NULL);
    }
    dpt_tile_fence();
}

DPT_VECTOR void dpt_product_bias(const struct dpt_product *p, const float *restrict dy, bool add,
                                 int64_t first, int64_t last, float *restrict db)
{
    float sum[LANES];

    for (int64_t o = first; o < last; o += LANES) {
        const int64_t n = least(last - o, LANES);

        memset(sum, 0, sizeof sum);
        for (int64_t row = 0; row < p->rows; row++) {
            const float *d = dy + row * p->outputs + o;

            if (n == LANES)
                for (int lane = 0; lane < LANES; lane++)
                    sum[lane] += d[lane];
            else
                for (int64_t lane = 0; lane < n; lane++)
                    sum[lane] += d[lane];
        }
        for (int64_t lane = 0; lane < n; lane++)
            db[o + lane] = add ? db[o + lane] + sum[lane] : sum[lane];
    }
}

void dpt_product_data(const struct dpt_product *p, const float *dy, const float *w, int64_t first,
                      int64_t last, float *scratch, float *dx)
{
    float *b = scratch, *a = scratch + (int64_t)DEPTH * MOST;

    for (int64_t at = 0; at < p->outputs; at += DEPTH) {
        const int64_t k = least(p->outputs - at, DEPTH);
        const enum dpt_tile_way way = at == 0 ? DPT_TILE_WRITE : DPT_TILE_ADD;

        for (int64_t row = 0; row < p->rows; row += ROWS)
            pack_lines(dy + row * p->outputs + at, p->outputs, least(p->rows - row, ROWS), k,
                       a + row * LINE);
        for (int64_t i = first; i < last; i += MOST) {
            const int64_t n = least(last - i, MOST), width = up(n, LANES);
            dpt_tile *tile = dpt_tile_for(p->isa, (int)(width / LANES), false);

            pack_block(w + at * p->inputs + i, p->inputs, k, n, width, b);
            for (int64_t row = 0; row < p->rows; row += ROWS) {
                const int64_t next = row / ROWS * (k / LANES); /* row of the next block */
                const bool more = i + 2 * MOST <= last && next + k / LANES <= k;
                const struct dpt_tile_soon soon = {
                    .at = w + (more ? (at + next) * p->inputs + i + MOST : 0),
                    .block = p->inputs,
                    .step = LANES};

                run_tile(tile, k, a + row * LINE, b, way, least(p->rows - row, ROWS), n, width,
                         dx + row * p->inputs + i, p->inputs, more ? &soon : NULL);
            }
        }
    }
}

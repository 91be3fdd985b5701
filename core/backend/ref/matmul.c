#include "core/backend/ref/ref.h"
#include "core/base/isa.h"
#include "core/base/vector.h"

/* Four rows of c by WIDTH columns, over at most DEPTH products, with the piece of b copied into the
 * cache. */
enum { ROWS = 4, WIDTH = 16, DEPTH = 256 };

struct panel {
    size_t m, depth, columns;
    struct dpt_ref_matrix a;
    const float *b; /* [depth][WIDTH], aligned */
    float *c;
    size_t row;
};

/* Rows after the last one repeat it, and are not stored. The loop over columns stays one until the
 * compiler makes vectors of it: GCC 12 at -O3 takes it apart first, and is three times as slow. */
DPT_VECTOR static void multiply(const struct panel *p)
{
    const size_t step = p->a.column;

    for (size_t i = 0; i < p->m; i += ROWS) {
        float sum[ROWS][WIDTH] = {{0}};
        const float *a[ROWS];

        for (size_t r = 0; r < ROWS; r++)
            a[r] = p->a.at + (i + r < p->m ? i + r : p->m - 1) * p->a.row;
        for (size_t k = 0; k < p->depth; k++) {
#pragma GCC unroll 4
            for (size_t r = 0; r < ROWS; r++)
#pragma GCC unroll 1
                for (size_t j = 0; j < WIDTH; j++)
                    sum[r][j] += a[r][k * step] * p->b[k * WIDTH + j];
        }
        for (size_t r = 0; r < ROWS && i + r < p->m; r++)
            for (size_t j = 0; j < p->columns; j++)
                p->c[(i + r) * p->row + j] += sum[r][j];
    }
}

const char *dpt_ref_describe(void)
{
    if (dpt_isa_here() >= DPT_ISA_AVX512)
        return "plain C, AVX-512";
    if (dpt_isa_here() >= DPT_ISA_AVX2)
        return "plain C, AVX2";
    return dpt_isa_here() == DPT_ISA_NEON ? "plain C, NEON" : "plain C";
}

/* `depth` rows of b from its place `at` on, WIDTH apart; columns after the last one are zero. */
static void pack(size_t depth, size_t columns, const float *at, const struct dpt_ref_matrix *b,
                 float *packed)
{
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < WIDTH; j++)
            *packed++ = j < columns ? at[k * b->row + j * b->column] : 0;
}

void dpt_ref_matmul_add(size_t m, size_t n, size_t depth, struct dpt_ref_matrix a,
                        struct dpt_ref_matrix b, float *c, size_t row)
{
    _Alignas(WIDTH * sizeof(float)) float packed[DEPTH * WIDTH];

    for (size_t j = 0; j < n; j += WIDTH) {
        for (size_t k = 0; k < depth; k += DEPTH) {
            const size_t columns = n - j < WIDTH ? n - j : WIDTH;
            const size_t rows = depth - k < DEPTH ? depth - k : DEPTH;
            const struct panel panel = {
                .m = m,
                .depth = rows,
                .columns = columns,
                .a = {a.at + k * a.column, a.row, a.column},
                .b = packed,
                .c = c + j,
                .row = row,
            };

            pack(rows, columns, b.at + k * b.row + j * b.column, &b, packed);
            multiply(&panel);
        }
    }
}

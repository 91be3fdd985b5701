#include "core/backend/ref/ref.h"
#include "core/base/isa.h"

/*
 * Four rows of c by as many columns as a vector holds, over at most DEPTH products, with the piece
 * of b copied into the cache. The vectors are the compiler's own (GCC, clang), of just the width
 * that the processor has: GCC keeps wider ones in memory.
 */
enum { ROWS = 4, WIDEST = 16, DEPTH = 256 };

struct panel {
    size_t m, depth, columns;
    struct dpt_ref_matrix a;
    const float *b; /* [depth][a vector's width], aligned */
    float *c;
    size_t row;
};

static inline void add_row(const struct panel *p, size_t i, const float *sum)
{
    if (i >= p->m)
        return;
    for (size_t j = 0; j < p->columns; j++)
        p->c[i * p->row + j] += sum[j];
}

/* Rows behind the last one repeat it, and are not stored. */
static inline const float *row_of(const struct panel *p, size_t i)
{
    return p->a.at + (i < p->m ? i : p->m - 1) * p->a.row;
}

#define KERNEL(name, width, target)                                                                \
    target static void name(const struct panel *p)                                                 \
    {                                                                                              \
        typedef float lanes __attribute__((vector_size((width) * sizeof(float)), may_alias));      \
        const lanes *b = (const lanes *)p->b;                                                      \
        const size_t step = p->a.column;                                                           \
                                                                                                   \
        for (size_t i = 0; i < p->m; i += ROWS) {                                                  \
            const float *a0 = row_of(p, i), *a1 = row_of(p, i + 1);                                \
            const float *a2 = row_of(p, i + 2), *a3 = row_of(p, i + 3);                            \
            lanes sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};                                  \
                                                                                                   \
            for (size_t k = 0; k < p->depth; k++) {                                                \
                sum0 += a0[k * step] * b[k];                                                       \
                sum1 += a1[k * step] * b[k];                                                       \
                sum2 += a2[k * step] * b[k];                                                       \
                sum3 += a3[k * step] * b[k];                                                       \
            }                                                                                      \
            add_row(p, i, (const float *)&sum0);                                                   \
            add_row(p, i + 1, (const float *)&sum1);                                               \
            add_row(p, i + 2, (const float *)&sum2);                                               \
            add_row(p, i + 3, (const float *)&sum3);                                               \
        }                                                                                          \
    }

KERNEL(multiply_any, 4, );
#if DPT_X86
KERNEL(multiply_avx2, 8, __attribute__((target("avx2,fma"))));
KERNEL(multiply_avx512, 16, __attribute__((target("avx512f"))));
#endif

struct kernel {
    void (*multiply)(const struct panel *p);
    size_t width;
    const char *describe;
};

static struct kernel best_kernel(void)
{
#if DPT_X86
    if (dpt_isa_here() >= DPT_ISA_AVX512)
        return (struct kernel){multiply_avx512, 16, "plain C, AVX-512"};
    if (dpt_isa_here() >= DPT_ISA_AVX2)
        return (struct kernel){multiply_avx2, 8, "plain C, AVX2"};
#endif
    return (struct kernel){multiply_any, 4, "plain C"};
}

const char *dpt_ref_describe(void)
{
    return best_kernel().describe;
}

/* `depth` rows of b from its place `at` on, `width` apart; columns behind the last one are zero. */
static void pack(size_t depth, size_t columns, size_t width, const float *at,
                 const struct dpt_ref_matrix *b, float *packed)
{
    for (size_t k = 0; k < depth; k++, packed += width) {
        for (size_t j = 0; j < columns; j++)
            packed[j] = at[k * b->row + j * b->column];
        for (size_t j = columns; j < width; j++)
            packed[j] = 0;
    }
}

void dpt_ref_matmul_add(size_t m, size_t n, size_t depth, struct dpt_ref_matrix a,
                        struct dpt_ref_matrix b, float *c, size_t row)
{
    const struct kernel kernel = best_kernel();
    _Alignas(WIDEST * sizeof(float)) float packed[DEPTH * WIDEST];

    for (size_t j = 0; j < n; j += kernel.width) {
        for (size_t k = 0; k < depth; k += DEPTH) {
            const size_t columns = n - j < kernel.width ? n - j : kernel.width;
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

            pack(rows, columns, kernel.width, b.at + k * b.row + j * b.column, &b, packed);
            kernel.multiply(&panel);
        }
    }
}

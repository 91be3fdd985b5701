#include "core/backend/cpu/fp32/gemm.h"

#include <stddef.h>

#if DPT_X86
#include <immintrin.h>
#elif DPT_ARM64
#include <arm_neon.h>
#endif

#include "core/base/vector.h"

/* The innermost loops of the products: 8 rows by 16, 32 or 48 columns of the result are kept in
 * registers while k runs. If the step from row to row of `a` is a constant, all its addresses are
 * one register and a displacement; else four rows are addressed from one register and four from
 * another. */

enum { ROWS = DPT_TILE_ROWS, LANES = DPT_TILE_LANES };

/* The number-th piece of what will be read soon. */
DPT_INLINE void prefetch_piece(const struct dpt_tile_prefetch *prefetch, int64_t number)
{
    for (int i = 0; i < prefetch->lines; i++)
        __builtin_prefetch(prefetch->at + number * prefetch->block + i * prefetch->step, 0, 2);
}

typedef float four __attribute__((vector_size(16), aligned(4)));

/* Four rows by eight columns at a time, in the vectors that every CPU has, without FMA. */
DPT_INLINE void plain_part(int64_t k, const float *a, int64_t row, int64_t column, int v,
                           const float *b, enum dpt_tile_way way, float *c, int64_t ldc)
{
    four sum[4][2] = {{{0}}};

    for (int64_t i = 0; i < k; i++, a += column, b += (int64_t)v * LANES) {
        const four from[2] = {((const four *)b)[0], ((const four *)b)[1]};

        DPT_UNROLL
        for (int m = 0; m < 4; m++) {
            const float factor = a[m * row];

            sum[m][0] += factor * from[0];
            sum[m][1] += factor * from[1];
        }
    }
    DPT_UNROLL
    for (int m = 0; m < 4; m++) {
        four *to = (four *)(c + m * ldc);

        to[0] = way == DPT_TILE_ADD ? to[0] + sum[m][0] : sum[m][0];
        to[1] = way == DPT_TILE_ADD ? to[1] + sum[m][1] : sum[m][1];
    }
}

DPT_INLINE void plain(int64_t k, const float *a, int64_t row, int64_t column, int v, const float *b,
                      enum dpt_tile_way way, float *c, int64_t ldc)
{
    for (int m = 0; m < ROWS; m += 4)
        for (int64_t n = 0; n < (int64_t)v * LANES; n += 8)
            plain_part(k, a + m * row, row, column, v, b + n, way, c + m * ldc + n, ldc);
}

#define PLAIN(name, v, row, column)                                                                \
    static void name(int64_t k, const float *a, int64_t lda, const float *b,                       \
                     enum dpt_tile_way way, float *c, int64_t ldc,                                 \
                     const struct dpt_tile_prefetch *prefetch)                                     \
    {                                                                                              \
        (void)prefetch, (void)lda;                                                                 \
        plain(k, a, row, column, v, b, way, c, ldc);                                               \
    }

// clang-format off
#define FORMS(make, name)                                                                          \
    make(name##_strided_1, 1, lda, 1)                                                                  \
    make(name##_strided_2, 2, lda, 1)                                                                  \
    make(name##_strided_3, 3, lda, 1)                                                                  \
    make(name##_line_1, 1, DPT_TILE_LINE, 1)                                                       \
    make(name##_line_2, 2, DPT_TILE_LINE, 1)                                                       \
    make(name##_line_3, 3, DPT_TILE_LINE, 1)                                                       \
    make(name##_transposed_1, 1, 1, ROWS)                                                              \
    make(name##_transposed_2, 2, 1, ROWS)                                                              \
    make(name##_transposed_3, 3, 1, ROWS)
// clang-format on

FORMS(PLAIN, plain)

#define FAST(isa, target, name, v, row, column)                                                    \
    target static void name(int64_t k, const float *a, int64_t lda, const float *b,                \
                            enum dpt_tile_way way, float *c, int64_t ldc,                          \
                            const struct dpt_tile_prefetch *prefetch)                              \
    {                                                                                              \
        (void)lda;                                                                                 \
        isa(k, a, row, column, v, b, way, c, ldc, prefetch);                                       \
    }

/* The body of a tile whose registers hold four rows by sixteen columns. */
#define BY_PARTS(part)                                                                             \
    for (int64_t i = 0; i < k && prefetch != NULL; i += LANES)                                     \
        prefetch_piece(prefetch, i / LANES);                                                       \
    for (int m = 0; m < ROWS; m += 4)                                                              \
        for (int n = 0; n < v; n++)                                                                \
    part(k, a + m * row, row, column, v, b + (int64_t)n * LANES, way,                              \
         c + m * ldc + (int64_t)n * LANES, ldc)

#if DPT_X86

#define AVX512 __attribute__((target("avx512f")))
#define AVX2   __attribute__((target("avx2,fma")))

DPT_INLINE AVX512 void avx512(int64_t k, const float *a, int64_t row, int64_t column, int v,
                              const float *b, enum dpt_tile_way way, float *c, int64_t ldc,
                              const struct dpt_tile_prefetch *prefetch)
{
    const float *high = a + 4 * row; /* of the fifth row */
    const int64_t row3 = 3 * row;
    __m512 sum[ROWS][3];

#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 3
        for (int n = 0; n < v; n++)
            sum[m][n] = _mm512_setzero_ps();
    for (int64_t done = 0, piece = prefetch != NULL ? LANES : k; done < k; done += piece) {
        const int64_t most = k - done < piece ? k - done : piece;

        if (prefetch != NULL)
            prefetch_piece(prefetch, done / LANES);
        for (int64_t i = 0; i < most; i++, a += column, high += column, b += (int64_t)v * LANES) {
            __m512 from[3];

#pragma GCC unroll 3
            for (int n = 0; n < v; n++)
                from[n] = _mm512_load_ps(b + (int64_t)n * LANES);
#pragma GCC unroll 8
            for (int m = 0; m < ROWS; m++) {
                const float *four = m < 4 ? a : high;
                const __m512 factor = _mm512_set1_ps(four[m % 4 == 3 ? row3 : m % 4 * row]);

#pragma GCC unroll 3
                for (int n = 0; n < v; n++)
                    sum[m][n] = _mm512_fmadd_ps(factor, from[n], sum[m][n]);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++, c += ldc) {
#pragma GCC unroll 3
        for (int n = 0; n < v; n++) {
            float *to = c + (int64_t)n * LANES;

            if (way == DPT_TILE_STREAM)
                _mm512_stream_ps(to, sum[m][n]);
            else if (way == DPT_TILE_ADD)
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum[m][n]));
            else
                _mm512_storeu_ps(to, sum[m][n]);
        }
    }
}

/* Four rows by 16 or 24 columns at a time: there are half as many registers, half as wide. */
DPT_INLINE AVX2 void avx2_part(int64_t k, const float *a, int64_t row, int64_t column, int v,
                               int wide, const float *b, enum dpt_tile_way way, float *c,
                               int64_t ldc)
{
    __m256 sum[4][3];

#pragma GCC unroll 4
    for (int m = 0; m < 4; m++)
#pragma GCC unroll 3
        for (int n = 0; n < wide; n++)
            sum[m][n] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i++, a += column, b += (int64_t)v * LANES) {
        __m256 from[3];

#pragma GCC unroll 3
        for (int n = 0; n < wide; n++)
            from[n] = _mm256_load_ps(b + (int64_t)n * 8);
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) {
            const __m256 factor = _mm256_set1_ps(a[m * row]);

#pragma GCC unroll 3
            for (int n = 0; n < wide; n++)
                sum[m][n] = _mm256_fmadd_ps(factor, from[n], sum[m][n]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++, c += ldc) {
#pragma GCC unroll 3
        for (int n = 0; n < wide; n++) {
            float *to = c + (int64_t)n * 8;

            if (way == DPT_TILE_STREAM)
                _mm256_stream_ps(to, sum[m][n]);
            else if (way == DPT_TILE_ADD)
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sum[m][n]));
            else
                _mm256_storeu_ps(to, sum[m][n]);
        }
    }
}

DPT_INLINE AVX2 void avx2(int64_t k, const float *a, int64_t row, int64_t column, int v,
                          const float *b, enum dpt_tile_way way, float *c, int64_t ldc,
                          const struct dpt_tile_prefetch *prefetch)
{
    const int wide = v == 3 ? 3 : 2;

    for (int64_t i = 0; i < k && prefetch != NULL; i += LANES)
        prefetch_piece(prefetch, i / LANES);
    for (int m = 0; m < ROWS; m += 4)
        for (int64_t n = 0; n < (int64_t)v * LANES; n += (int64_t)wide * 8)
            avx2_part(k, a + m * row, row, column, v, wide, b + n, way, c + m * ldc + n, ldc);
}

#define FAST_AVX512(name, v, row, column) FAST(avx512, AVX512, name, v, row, column)
#define FAST_AVX2(name, v, row, column)   FAST(avx2, AVX2, name, v, row, column)

FORMS(FAST_AVX512, avx512)
FORMS(FAST_AVX2, avx2)

#elif DPT_ARM64

/* Four rows by sixteen columns at a time: half of the registers are sums. Each adds as the other
 * tiles with FMA do, so it has their bits. */
DPT_INLINE void neon_part(int64_t k, const float *a, int64_t row, int64_t column, int v,
                          const float *b, enum dpt_tile_way way, float *c, int64_t ldc)
{
    float32x4_t sum[4][4];

#pragma GCC unroll 4
    for (int m = 0; m < 4; m++)
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            sum[m][n] = vdupq_n_f32(0);
    for (int64_t i = 0; i < k; i++, a += column, b += (int64_t)v * LANES) {
        float32x4_t from[4];

#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            from[n] = vld1q_f32(b + (int64_t)n * 4);
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) {
            const float32x4_t factor = vdupq_n_f32(a[m * row]);

#pragma GCC unroll 4
            for (int n = 0; n < 4; n++)
                sum[m][n] = vfmaq_f32(sum[m][n], factor, from[n]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++, c += ldc) {
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            float *to = c + (int64_t)n * 4;

            vst1q_f32(to, way == DPT_TILE_ADD ? vaddq_f32(vld1q_f32(to), sum[m][n]) : sum[m][n]);
        }
    }
}

DPT_INLINE void neon(int64_t k, const float *a, int64_t row, int64_t column, int v, const float *b,
                     enum dpt_tile_way way, float *c, int64_t ldc,
                     const struct dpt_tile_prefetch *prefetch)
{
    BY_PARTS(neon_part);
}

#define FAST_NEON(name, v, row, column) FAST(neon, , name, v, row, column)

FORMS(FAST_NEON, neon)

#endif

DPT_VECTOR static void put_row(const float *restrict a, const float *restrict b, bool add,
                               int64_t n, float *restrict c)
{
    if (b == NULL)
        for (int64_t i = 0; i < n; i++)
            c[i] = add ? c[i] + a[i] : a[i];
    else
        for (int64_t i = 0; i < n; i++)
            c[i] = add ? c[i] + (a[i] + b[i]) : a[i] + b[i];
}

/* The most frequent case: the whole of the widest tile, sums of two. */
DPT_VECTOR static void put_most(const float *restrict a, const float *restrict b, float *restrict c,
                                int64_t ldc)
{
    for (int m = 0; m < ROWS; m++, a += DPT_TILE_MOST, b += DPT_TILE_MOST, c += ldc)
        for (int i = 0; i < DPT_TILE_MOST; i++)
            c[i] = a[i] + b[i];
}

#if DPT_X86
static void stream_row(const float *a, const float *b, int64_t n, float *c)
{
    for (int64_t i = 0; i < n; i += 4) {
        const __m128 sum = _mm_loadu_ps(a + i);

        _mm_stream_ps(c + i, b == NULL ? sum : _mm_add_ps(sum, _mm_loadu_ps(b + i)));
    }
}
#endif

void dpt_tile_put(const float *a, const float *b, int64_t width, enum dpt_tile_way way, int64_t m,
                  int64_t n, float *c, int64_t ldc)
{
    if (b != NULL && way == DPT_TILE_WRITE && m == ROWS && n == DPT_TILE_MOST) {
        put_most(a, b, c, ldc);
        return;
    }
    for (int64_t i = 0; i < m; i++) {
        const float *with = b != NULL ? b + i * width : NULL;

#if DPT_X86
        if (way == DPT_TILE_STREAM && n % LANES == 0) {
            stream_row(a + i * width, with, n, c + i * ldc);
            continue;
        }
#endif
        put_row(a + i * width, with, way == DPT_TILE_ADD, n, c + i * ldc);
    }
}

void dpt_tile_fence(void)
{
#if DPT_X86
    _mm_sfence();
#endif
}

#define TABLE(name)                                                                                \
    {                                                                                              \
        [DPT_TILE_STRIDED] = {NULL, name##_strided_1, name##_strided_2, name##_strided_3},         \
        [DPT_TILE_LINES] = {NULL, name##_line_1, name##_line_2, name##_line_3},                    \
        [DPT_TILE_TRANSPOSED] = {NULL, name##_transposed_1, name##_transposed_2,                   \
                                 name##_transposed_3},                                             \
    }

dpt_tile *dpt_tile_for(enum dpt_isa isa, int v, enum dpt_tile_layout layout)
{
    static dpt_tile *const tiles[][3][4] = {
        [DPT_ISA_PLAIN] = TABLE(plain),
#if DPT_X86
        [DPT_ISA_NEON] = TABLE(plain), /* never requested */
        [DPT_ISA_AVX2] = TABLE(avx2),
        [DPT_ISA_AVX512] = TABLE(avx512),
#elif DPT_ARM64
        [DPT_ISA_NEON] = TABLE(neon),
#endif
    };

    return tiles[isa < DPT_ISA_OWN ? isa : DPT_ISA_OWN][layout][v];
}

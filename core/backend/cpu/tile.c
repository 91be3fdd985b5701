#include "core/backend/cpu/product.h"

#include <stddef.h>

#if DPT_X86
#include <immintrin.h>
#endif

/* The innermost loops of the products: 8 rows by 16, 32 or 48 columns of the result are kept in
 * registers while k runs. Where the step from row to row of `a` is a constant, all its addresses
 * are one register and a displacement. */

enum { ROWS = DPT_TILE_ROWS, LANES = DPT_TILE_LANES };

#define INLINE static inline __attribute__((always_inline))

/* The number-th piece of what will be read soon. */
INLINE void ask_for(const struct dpt_tile_soon *soon, int64_t number)
{
    for (int i = 0; i < 3; i++)
        __builtin_prefetch(soon->at + number * soon->block + i * soon->step, 0, 2);
}

INLINE void plain(int64_t k, const float *a, int64_t row, int64_t column, int v, const float *b,
                  enum dpt_tile_way way, float *c, int64_t ldc)
{
    for (int m = 0; m < ROWS; m++, c += ldc) {
        for (int part = 0; part < v; part++) {
            float sum[LANES] = {0}, *to = c + (int64_t)part * LANES;

            for (int64_t i = 0; i < k; i++) {
                const float *from = b + i * v * LANES + (int64_t)part * LANES;

                for (int lane = 0; lane < LANES; lane++)
                    sum[lane] += a[m * row + i * column] * from[lane];
            }
            for (int lane = 0; lane < LANES; lane++)
                to[lane] = way == DPT_TILE_ADD ? to[lane] + sum[lane] : sum[lane];
        }
    }
}

#define PLAIN(name, v, row, column)                                                                \
    static void name(int64_t k, const float *a, const float *b, enum dpt_tile_way way, float *c,   \
                     int64_t ldc, const struct dpt_tile_soon *soon)                                \
    {                                                                                              \
        (void)soon;                                                                                \
        plain(k, a, row, column, v, b, way, c, ldc);                                               \
    }

PLAIN(plain_1, 1, DPT_TILE_LINE, 1)
PLAIN(plain_2, 2, DPT_TILE_LINE, 1)
PLAIN(plain_3, 3, DPT_TILE_LINE, 1)
PLAIN(plain_turned_1, 1, 1, ROWS)
PLAIN(plain_turned_2, 2, 1, ROWS)
PLAIN(plain_turned_3, 3, 1, ROWS)

#if DPT_X86

#define AVX512 __attribute__((target("avx512f")))
#define AVX2   __attribute__((target("avx2,fma")))

INLINE AVX512 void avx512(int64_t k, const float *a, int64_t row, int64_t column, int v,
                          const float *b, enum dpt_tile_way way, float *c, int64_t ldc,
                          const struct dpt_tile_soon *soon)
{
    __m512 sum[ROWS][3];

#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 3
        for (int n = 0; n < v; n++)
            sum[m][n] = _mm512_setzero_ps();
    for (int64_t done = 0, piece = soon != NULL ? LANES : k; done < k; done += piece) {
        const int64_t most = k - done < piece ? k - done : piece;

        if (soon != NULL)
            ask_for(soon, done / LANES);
        for (int64_t i = 0; i < most; i++, a += column, b += (int64_t)v * LANES) {
            __m512 from[3];

#pragma GCC unroll 3
            for (int n = 0; n < v; n++)
                from[n] = _mm512_load_ps(b + (int64_t)n * LANES);
#pragma GCC unroll 8
            for (int m = 0; m < ROWS; m++) {
                const __m512 factor = _mm512_set1_ps(a[m * row]);

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

/* Four rows by sixteen columns at a time: there are half as many registers, half as wide. */
INLINE AVX2 void avx2_part(int64_t k, const float *a, int64_t row, int64_t column, int v,
                           const float *b, enum dpt_tile_way way, float *c, int64_t ldc)
{
    __m256 sum[4][2];

#pragma GCC unroll 4
    for (int m = 0; m < 4; m++)
        sum[m][0] = sum[m][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i++, a += column, b += (int64_t)v * LANES) {
        const __m256 low = _mm256_load_ps(b), high = _mm256_load_ps(b + 8);

#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) {
            const __m256 factor = _mm256_set1_ps(a[m * row]);

            sum[m][0] = _mm256_fmadd_ps(factor, low, sum[m][0]);
            sum[m][1] = _mm256_fmadd_ps(factor, high, sum[m][1]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++, c += ldc) {
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
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

INLINE AVX2 void avx2(int64_t k, const float *a, int64_t row, int64_t column, int v, const float *b,
                      enum dpt_tile_way way, float *c, int64_t ldc,
                      const struct dpt_tile_soon *soon)
{
    for (int64_t i = 0; i < k && soon != NULL; i += LANES)
        ask_for(soon, i / LANES);
    for (int m = 0; m < ROWS; m += 4)
        for (int n = 0; n < v; n++)
            avx2_part(k, a + m * row, row, column, v, b + (int64_t)n * LANES, way,
                      c + m * ldc + (int64_t)n * LANES, ldc);
}

#define FAST(isa, target, name, v, row, column)                                                    \
    target static void name(int64_t k, const float *a, const float *b, enum dpt_tile_way way,      \
                            float *c, int64_t ldc, const struct dpt_tile_soon *soon)               \
    {                                                                                              \
        isa(k, a, row, column, v, b, way, c, ldc, soon);                                           \
    }

FAST(avx512, AVX512, avx512_1, 1, DPT_TILE_LINE, 1)
FAST(avx512, AVX512, avx512_2, 2, DPT_TILE_LINE, 1)
FAST(avx512, AVX512, avx512_3, 3, DPT_TILE_LINE, 1)
FAST(avx512, AVX512, avx512_turned_1, 1, 1, ROWS)
FAST(avx512, AVX512, avx512_turned_2, 2, 1, ROWS)
FAST(avx512, AVX512, avx512_turned_3, 3, 1, ROWS)
FAST(avx2, AVX2, avx2_1, 1, DPT_TILE_LINE, 1)
FAST(avx2, AVX2, avx2_2, 2, DPT_TILE_LINE, 1)
FAST(avx2, AVX2, avx2_3, 3, DPT_TILE_LINE, 1)
FAST(avx2, AVX2, avx2_turned_1, 1, 1, ROWS)
FAST(avx2, AVX2, avx2_turned_2, 2, 1, ROWS)
FAST(avx2, AVX2, avx2_turned_3, 3, 1, ROWS)

#endif

void dpt_tile_fence(void)
{
#if DPT_X86
    _mm_sfence();
#endif
}

dpt_tile *dpt_tile_for(enum dpt_isa isa, int v, bool turned)
{
    static dpt_tile *const tiles[][2][4] = {
        [DPT_ISA_PLAIN] = {{NULL, plain_1, plain_2, plain_3},
                           {NULL, plain_turned_1, plain_turned_2, plain_turned_3}},
#if DPT_X86
        [DPT_ISA_AVX2] = {{NULL, avx2_1, avx2_2, avx2_3},
                          {NULL, avx2_turned_1, avx2_turned_2, avx2_turned_3}},
        [DPT_ISA_AVX512] = {{NULL, avx512_1, avx512_2, avx512_3},
                            {NULL, avx512_turned_1, avx512_turned_2, avx512_turned_3}},
#endif
    };

    return tiles[isa][turned][v];
}

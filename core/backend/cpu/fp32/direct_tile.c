#include "core/backend/cpu/fp32/direct.h"

#if DPT_X86
#include <immintrin.h>
#elif DPT_ARM64
#include <arm_neon.h>
#endif

#include "core/base/vector.h"

/* The innermost loops of direct convolutions, as those of tile.c: the sums stay in registers for
 * all segments. */

enum {
    ROWS = DPT_TILE_ROWS,
    LANES = DPT_TILE_LANES,
    AHEAD = 32, /* rows of b that are fetched before they are used */
};

#define PARAMETERS                                                                                 \
    const struct dpt_direct_sum *s, const float *const *rows, const float *b, const float *start,  \
        bool add, float *c, int64_t row, int64_t block

DPT_INLINE void plain(int v, PARAMETERS)
{
    for (int m = 0; m < ROWS; m++) {
        for (int n = 0; n < v; n++) {
            float sum[LANES] = {0}, *to = c + m * row + n * block;

            for (int lane = 0; lane < LANES && start != NULL; lane++)
                sum[lane] = start[n * LANES + lane];
            for (int64_t segment = 0; segment < s->segments; segment++) {
                const float *from = b + (s->first[segment] * v + n) * LANES;

                for (int64_t i = 0; i < s->k; i++, from += (int64_t)v * LANES)
                    for (int lane = 0; lane < LANES; lane++)
                        sum[lane] += rows[m][s->offsets[segment] + i * s->step] * from[lane];
            }
            for (int lane = 0; lane < LANES; lane++)
                to[lane] = add ? to[lane] + sum[lane] : sum[lane];
        }
    }
}

#define TILE(isa, target, v)                                                                       \
    target static void isa##_##v(PARAMETERS)                                                       \
    {                                                                                              \
        isa(v, s, rows, b, start, add, c, row, block);                                             \
    }
#define WIDTHS(isa, target) TILE(isa, target, 1) TILE(isa, target, 2) TILE(isa, target, 3)

WIDTHS(plain, )

#if DPT_X86

#define AVX512 __attribute__((target("avx512f")))
#define AVX2   __attribute__((target("avx2,fma")))

DPT_INLINE AVX512 void avx512(int v, PARAMETERS)
{
    const float *const r[ROWS] = {rows[0], rows[1], rows[2], rows[3],
                                  rows[4], rows[5], rows[6], rows[7]};
    const int64_t step = s->step, length = s->k * step;
    __m512 sum[ROWS][3];

#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 3
        for (int n = 0; n < v; n++)
            sum[m][n] =
                start != NULL ? _mm512_loadu_ps(start + (int64_t)n * LANES) : _mm512_setzero_ps();
    for (int64_t segment = 0; segment < s->segments; segment++) {
        const int64_t first = s->offsets[segment], last = first + length;
        const float *line = b + s->first[segment] * v * LANES;

        for (int64_t i = first; i < last; i += step, line += (int64_t)v * LANES) {
            __m512 from[3];

#pragma GCC unroll 3
            for (int n = 0; n < v; n++) {
                from[n] = _mm512_load_ps(line + (int64_t)n * LANES);
                _mm_prefetch((const char *)(line + ((int64_t)AHEAD * v + n) * LANES), _MM_HINT_T0);
            }
#pragma GCC unroll 8
            for (int m = 0; m < ROWS; m++) {
                const __m512 factor = _mm512_set1_ps(r[m][i]);

#pragma GCC unroll 3
                for (int n = 0; n < v; n++)
                    sum[m][n] = _mm512_fmadd_ps(factor, from[n], sum[m][n]);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++) {
#pragma GCC unroll 3
        for (int n = 0; n < v; n++) {
            float *to = c + m * row + n * block;

            _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum[m][n]) : sum[m][n]);
        }
    }
}

/* Four rows by `wide` times eight columns, the first of which is `at`. */
DPT_INLINE AVX2 void avx2_part(int v, int wide, int at, PARAMETERS)
{
    const float *const r[4] = {rows[0], rows[1], rows[2], rows[3]};
    const int64_t step = s->step, length = s->k * step;
    __m256 sum[4][3];

#pragma GCC unroll 4
    for (int m = 0; m < 4; m++)
#pragma GCC unroll 3
        for (int n = 0; n < wide; n++)
            sum[m][n] =
                start != NULL ? _mm256_loadu_ps(start + at + (int64_t)n * 8) : _mm256_setzero_ps();
    for (int64_t segment = 0; segment < s->segments; segment++) {
        const int64_t first = s->offsets[segment], last = first + length;
        const float *line = b + s->first[segment] * v * LANES + at;

        for (int64_t i = first; i < last; i += step, line += (int64_t)v * LANES) {
            __m256 from[3];

#pragma GCC unroll 3
            for (int n = 0; n < wide; n++)
                from[n] = _mm256_load_ps(line + (int64_t)n * 8);
#pragma GCC unroll 4
            for (int m = 0; m < 4; m++) {
                const __m256 factor = _mm256_set1_ps(r[m][i]);

#pragma GCC unroll 3
                for (int n = 0; n < wide; n++)
                    sum[m][n] = _mm256_fmadd_ps(factor, from[n], sum[m][n]);
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++) {
#pragma GCC unroll 3
        for (int n = 0; n < wide; n++) {
            const int column = at + n * 8;
            float *to = c + m * row + column / LANES * block + column % LANES;

            _mm256_storeu_ps(to, add ? _mm256_add_ps(_mm256_loadu_ps(to), sum[m][n]) : sum[m][n]);
        }
    }
}

/* Of 48 columns 24 at a time: 16 have as many sums as there are multiplications under way. */
DPT_INLINE AVX2 void avx2(int v, PARAMETERS)
{
    const int wide = v == 3 ? 3 : 2;

#pragma GCC unroll 2
    for (int m = 0; m < ROWS; m += 4)
#pragma GCC unroll 3
        for (int at = 0; at < v * LANES; at += wide * 8)
            avx2_part(v, wide, at, s, rows + m, b, start, add, c + m * row, row, block);
}

WIDTHS(avx512, AVX512)
WIDTHS(avx2, AVX2)

#elif DPT_ARM64

DPT_INLINE void neon_part(int v, const struct dpt_direct_sum *s, const float *const *rows,
                          const float *b, const float *start, bool add, float *c, int64_t row)
{
    const float *const r[4] = {rows[0], rows[1], rows[2], rows[3]};
    const int64_t step = s->step, length = s->k * step;
    float32x4_t sum[4][4];

#pragma GCC unroll 4
    for (int m = 0; m < 4; m++)
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            sum[m][n] = start != NULL ? vld1q_f32(start + (int64_t)n * 4) : vdupq_n_f32(0);
    for (int64_t segment = 0; segment < s->segments; segment++) {
        const int64_t first = s->offsets[segment], last = first + length;
        const float *line = b + s->first[segment] * v * LANES;

        for (int64_t i = first; i < last; i += step, line += (int64_t)v * LANES) {
            float32x4_t from[4];

#pragma GCC unroll 4
            for (int n = 0; n < 4; n++)
                from[n] = vld1q_f32(line + (int64_t)n * 4);
#pragma GCC unroll 4
            for (int m = 0; m < 4; m++) {
                const float32x4_t factor = vdupq_n_f32(r[m][i]);

#pragma GCC unroll 4
                for (int n = 0; n < 4; n++)
                    sum[m][n] = vfmaq_f32(sum[m][n], factor, from[n]);
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            float *to = c + m * row + (int64_t)n * 4;

            vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), sum[m][n]) : sum[m][n]);
        }
    }
}

DPT_INLINE void neon(int v, PARAMETERS)
{
    for (int m = 0; m < ROWS; m += 4)
        for (int n = 0; n < v; n++)
            neon_part(v, s, rows + m, b + (int64_t)n * LANES,
                      start != NULL ? start + (int64_t)n * LANES : NULL, add,
                      c + m * row + n * block, row);
}

WIDTHS(neon, )

#endif

#define TABLE(isa)                                                                                 \
    {                                                                                              \
        NULL, isa##_1, isa##_2, isa##_3                                                            \
    }

dpt_direct_tile *dpt_direct_tile_for(enum dpt_isa isa, int v)
{
    static dpt_direct_tile *const tiles[][4] = {
        [DPT_ISA_PLAIN] = TABLE(plain),
#if DPT_X86
        [DPT_ISA_NEON] = TABLE(plain), /* never requested */
        [DPT_ISA_AVX2] = TABLE(avx2),
        [DPT_ISA_AVX512] = TABLE(avx512),
#elif DPT_ARM64
        [DPT_ISA_NEON] = TABLE(neon),
#endif
    };

    return tiles[isa < DPT_ISA_OWN ? isa : DPT_ISA_OWN][v];
}

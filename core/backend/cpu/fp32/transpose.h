/*
 * transpose: words in registers, for the kernels that are compiled for AVX2 and AVX-512.
 */
#ifndef DPT_BACKEND_CPU_TRANSPOSE_H
#define DPT_BACKEND_CPU_TRANSPOSE_H

#include "core/base/isa.h"
#include "core/base/vector.h"

#if DPT_X86

#include <immintrin.h>

/* Transposes the squares of 4 x 4 words of n rows, 128 bits wide: b[4 i + k] has columns k, k +
 * 4, … of the rows 4 i to 4 i + 3. mm: prefix of the instructions; a: of n rows, too. */
#define DPT_TRANSPOSE_SQUARES(mm, n, row, a, b)                                                    \
    do {                                                                                           \
        DPT_UNROLL for (int i = 0; i < (n) / 2; i++)                                               \
        {                                                                                          \
            a[2 * i] = mm##_unpacklo_epi32(row[2 * i], row[2 * i + 1]);                            \
            a[2 * i + 1] = mm##_unpackhi_epi32(row[2 * i], row[2 * i + 1]);                        \
        }                                                                                          \
        DPT_UNROLL for (int i = 0; i < (n) / 4; i++)                                               \
        {                                                                                          \
            b[4 * i] = mm##_unpacklo_epi64(a[4 * i], a[4 * i + 2]);                                \
            b[4 * i + 1] = mm##_unpackhi_epi64(a[4 * i], a[4 * i + 2]);                            \
            b[4 * i + 2] = mm##_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);                        \
            b[4 * i + 3] = mm##_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);                        \
        }                                                                                          \
    } while (0)

/* 8 rows of 8 words become columns. */
DPT_INLINE __attribute__((target("avx2"))) void dpt_transpose_eight(__m256i *row)
{
    __m256i a[8], b[8];

    DPT_TRANSPOSE_SQUARES(_mm256, 8, row, a, b);
    DPT_UNROLL for (int i = 0; i < 4; i++)
    {
        row[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
        row[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
    }
}

/* 16 rows of 16 words become columns. */
DPT_INLINE __attribute__((target("avx512f"))) void dpt_transpose(__m512i *row)
{
    __m512i a[16], b[16];

    DPT_TRANSPOSE_SQUARES(_mm512, 16, row, a, b);
    DPT_UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
        a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
        a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
    }
    DPT_UNROLL for (int i = 0; i < 8; i++)
    {
        row[i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88);
        row[8 + i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd);
    }
}

#endif

#endif

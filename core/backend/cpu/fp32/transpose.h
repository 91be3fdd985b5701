/*
 * transpose: 16 x 16 words in registers, for the kernels that are compiled for AVX-512.
 */
#ifndef DPT_BACKEND_CPU_TRANSPOSE_H
#define DPT_BACKEND_CPU_TRANSPOSE_H

#include "core/base/isa.h"
#include "core/base/vector.h"

#if DPT_X86

#include <immintrin.h>

/* 16 rows of 16 words become columns. */
DPT_INLINE __attribute__((target("avx512f"))) void dpt_transpose(__m512i *row)
{
    __m512i a[16], b[16];

    DPT_UNROLL for (int i = 0; i < 8; i++)
    {
        a[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
    DPT_UNROLL for (int i = 0; i < 4; i++)
    {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
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

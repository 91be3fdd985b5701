/*
 * bf16_lanes: how vectors of 16 floats become the tiles of bf16_tile.h. Private to the files that
 * are compiled for AVX-512 BF16; in other files HAS_BF16 is 0.
 */
#ifndef DPT_BACKEND_CPU_BF16_LANES_H
#define DPT_BACKEND_CPU_BF16_LANES_H

#include "core/backend/cpu/bf16/bf16_tile.h"
#include "core/backend/cpu/fp32/transpose.h"
#include "core/base/vector.h"

#if DPT_X86 && !defined(__clang__) && __GNUC__ >= 12
#define HAS_BF16 1
#else
#define HAS_BF16 0
#endif

#if HAS_BF16

#include <immintrin.h>

#define BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

enum { SIDE = DPT_BF16_SIDE, DEPTH = DPT_BF16_DEPTH, WORDS = DEPTH / 2 };

/* The first n of 16 floats, zeros after them. */
DPT_INLINE BF16 __m512 load_part(const float *x, int64_t n)
{
    if (n >= SIDE)
        return _mm512_loadu_ps(x);
    return n <= 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), x);
}

/* 32 numbers side by side. */
DPT_INLINE BF16 __m512i round_line(const float *x, int64_t n)
{
    return (__m512i)_mm512_cvtne2ps_pbh(load_part(x + SIDE, n - SIDE), load_part(x, n));
}

/* 16 pairs: each of 16 words, with the word 16 words after it. */
DPT_INLINE BF16 __m512i interleave(__m512i words)
{
    static const uint16_t order[DEPTH] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                          21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                          11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), words);
}

/* 16 pairs: each lane's even number, with the odd one next to it. */
DPT_INLINE BF16 __m512i round_two(__m512 even, __m512 odd)
{
    return interleave((__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* 16 pairs: each number, with the one of the next row. rows: how many there are. */
DPT_INLINE BF16 __m512i round_pairs(const float *x, int64_t ldx, int64_t rows, int64_t n)
{
    return round_two(load_part(x, rows > 0 ? n : 0), load_part(x + ldx, rows > 1 ? n : 0));
}

/* Writes row j, `ld` numbers after row j - 1, with word j of each of 16 rows, which are lost. */
DPT_INLINE BF16 void store_transposed(__m512i *rows, uint16_t *to, int64_t ld)
{
    dpt_transpose(rows);
    DPT_UNROLL for (int i = 0; i < SIDE / 2; i++)
    {
        _mm512_storeu_si512(to + i * ld, rows[i]);
        _mm512_storeu_si512(to + (i + SIDE / 2) * ld, rows[i + SIDE / 2]);
    }
}

#endif

#endif

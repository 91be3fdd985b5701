#include "core/backend/cpu/fp32/winograd.h"

#include <stddef.h>

#include "core/base/vector.h"

#if DPT_X86

#include <immintrin.h>

/* --- AVX2 ------------------------------------------------------------------------------------- */

#define NAME(x)       avx2_##x
#define TARGET        __attribute__((target("avx2,fma")))
#define WIDTH         8
#define ROWS          4
#define VEC           __m256
#define LOAD(x)       _mm256_loadu_ps(x)
#define STORE(x, v)   _mm256_storeu_ps(x, v)
#define SET1(s)       _mm256_set1_ps(s)
#define SET1_INT(s)   _mm256_castsi256_ps(_mm256_set1_epi32(s))
#define ADD(a, b)     _mm256_add_ps(a, b)
#define SUB(a, b)     _mm256_sub_ps(a, b)
#define FMA(a, b, c)  _mm256_fmadd_ps(a, b, c)
#define MASK          __m256
#define WINS(a, b)    _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q))
#define BELOW(a, b)   _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define ABOVE(a, b)   _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define PICK(m, a, b) _mm256_blendv_ps(b, a, m)
#include "core/backend/cpu/fp32/winograd_lanes.inc"

/* --- AVX-512 ---------------------------------------------------------------------------------- */

#define NAME(x)       avx512_##x
#define TARGET        __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#define WIDTH         16
#define ROWS          8
#define VEC           __m512
#define LOAD(x)       _mm512_loadu_ps(x)
#define STORE(x, v)   _mm512_storeu_ps(x, v)
#define SET1(s)       _mm512_set1_ps(s)
#define SET1_INT(s)   _mm512_castsi512_ps(_mm512_set1_epi32(s))
#define ADD(a, b)     _mm512_add_ps(a, b)
#define SUB(a, b)     _mm512_sub_ps(a, b)
#define FMA(a, b, c)  _mm512_fmadd_ps(a, b, c)
#define MASK          __mmask16
#define WINS(a, b)    (_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q))
#define BELOW(a, b)   _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define ABOVE(a, b)   _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define PICK(m, a, b) _mm512_mask_blend_ps(m, b, a)
#include "core/backend/cpu/fp32/winograd_lanes.inc"

#endif

const struct dpt_winograd_kernels *dpt_winograd_kernels(enum dpt_isa most)
{
    const enum dpt_isa here = dpt_isa_here(), isa = most < here ? most : here;

#if DPT_X86
    if (isa >= DPT_ISA_AVX512)
        return &avx512_kernels;
    if (isa >= DPT_ISA_AVX2)
        return &avx2_kernels;
#endif
    (void)isa;
    return NULL;
}

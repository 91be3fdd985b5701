#include "core/backend/cpu/fp32/sparse_private.h"

#include <stddef.h>
#include <string.h>

#if DPT_X86
#include <immintrin.h>
#elif DPT_ARM64
#include <arm_neon.h>
#endif

#include "core/backend/cpu/fp32/transpose.h"
#include "core/base/vector.h"

/* --- lists ------------------------------------------------------------------------------------ */

/* Written without a branch: who wins is not to be predicted. */
static void list_plain(int32_t used, int32_t windows, const int32_t *argmax, const float *dy,
                       const int32_t *start, const int32_t *corner, int32_t step, int32_t *n,
                       int32_t *at, float *much)
{
    for (int32_t c = 0; c < used; c++, at += step, much += step) {
        int32_t next = 0;

        for (int32_t i = 0; i < windows; i++) {
            const int32_t where = argmax[i * LANES + c];

            at[next] = start[i] + corner[where & 3];
            much[next] = dy[i * LANES + c];
            next += where >= 0;
        }
        n[c] = next;
    }
}

static void sort_plain(int32_t used, const int32_t *argmax, const float *dy, int32_t first,
                       int32_t step, struct dpt_sparse_bucket *bucket)
{
    for (int32_t c = 0; c < used; c++) {
        if (argmax[c] >= 0) {
            const int32_t n = bucket->n[argmax[c]]++;

            bucket->at[argmax[c]][n] = first + c * step;
            bucket->dy[argmax[c]][n] = dy[c];
        }
    }
}

/* x if `yes`, else 0. GCC 12 turns a condition into masked loads, and for AVX2 it uses the mask of
 * the first eight lanes for the last eight, too. */
DPT_INLINE float keep(float x, bool yes)
{
    int32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits &= -(int32_t)yes;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* --- plain C ---------------------------------------------------------------------------------- */

typedef float four __attribute__((vector_size(16)));

DPT_INLINE four load_four(const float *x)
{
    four v;

    memcpy(&v, x, sizeof v);
    return v;
}

DPT_INLINE void store_four(float *x, four v)
{
    memcpy(x, &v, sizeof v);
}

#define NAME(x) plain_##x
#define TARGET
#define ISA          DPT_ISA_PLAIN
#define WIDTH        4
#define VEC          four
#define LOAD(x)      load_four(x)
#define STORE(x, v)  store_four(x, v)
#define SET1(s)      ((four){0} + (s))
#define ADD(a, b)    ((a) + (b))
#define FMA(a, b, c) ((a) * (b) + (c))
#define LIST         list_plain
#define SORT         sort_plain
#include "core/backend/cpu/fp32/sparse_lanes.inc"

#if DPT_X86

/* --- AVX2 ------------------------------------------------------------------------------------- */

#define AVX2 __attribute__((target("avx2,fma")))

/* For each set of eight lanes, the numbers of those in it, a byte each: AVX2 cannot move the lanes
 * of a mask to the front by itself. */
#define HAS(set, i) ((uint64_t)(set) >> (i)&1)
#define PUT(set, i)                                                                                \
    (HAS(set, i) * (uint64_t)(i) << 8 * __builtin_popcount((set) & ((1 << (i)) - 1)))
#define LANES_OF(set)                                                                              \
    PUT(set, 0) | PUT(set, 1) | PUT(set, 2) | PUT(set, 3) | PUT(set, 4) | PUT(set, 5) |            \
        PUT(set, 6) | PUT(set, 7)
#define FOUR(of, set)    of(set), of(set + 1), of(set + 2), of(set + 3)
#define SIXTEEN(of, set) FOUR(of, set), FOUR(of, set + 4), FOUR(of, set + 8), FOUR(of, set + 12)
#define SETS(set)                                                                                  \
    SIXTEEN(LANES_OF, set), SIXTEEN(LANES_OF, set + 16), SIXTEEN(LANES_OF, set + 32),              \
        SIXTEEN(LANES_OF, set + 48)

static const uint64_t lanes_of[256] = {SETS(0), SETS(64), SETS(128), SETS(192)};

DPT_INLINE AVX2 __m256i front(unsigned set)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)lanes_of[set]));
}

/* Eight windows of eight channels at a time: a register for each window, then one for each channel.
 */
static AVX2 void list_avx2(int32_t used, int32_t windows, const int32_t *argmax, const float *dy,
                           const int32_t *start, const int32_t *corner, int32_t step, int32_t *n,
                           int32_t *at, float *much)
{
    const __m256i corners = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)corner));

    memset(n, 0, (size_t)used * sizeof *n);
    for (int32_t first = 0; first < windows; first += 8) {
        const int32_t left = windows - first;
        const unsigned there = left < 8 ? (1u << left) - 1 : 0xff;
        int32_t begin[8] = {0};
        __m256i starts;

        memcpy(begin, start + first, (size_t)(left < 8 ? left : 8) * sizeof *begin);
        starts = _mm256_loadu_si256((const __m256i *)begin);
        for (int32_t half = 0; half < used; half += 8) {
            __m256i argmaxes[8], values[8];

            for (int i = 0; i < 8; i++) {
                const int64_t from = (int64_t)(i < left ? first + i : first) * LANES + half;

                argmaxes[i] = _mm256_loadu_si256((const __m256i *)(argmax + from));
                values[i] = _mm256_loadu_si256((const __m256i *)(dy + from));
            }
            dpt_transpose_eight(argmaxes);
            dpt_transpose_eight(values);
            for (int32_t c = half; c < used && c < half + 8; c++) {
                const __m256i found = argmaxes[c - half];
                const unsigned won =
                    there & ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(found));
                const __m256i order = front(won);
                const __m256i where = _mm256_add_epi32(
                    starts,
                    _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castsi256_ps(corners), found)));

                _mm256_storeu_si256((__m256i *)(at + c * step + n[c]),
                                    _mm256_permutevar8x32_epi32(where, order));
                _mm256_storeu_si256((__m256i *)(much + c * step + n[c]),
                                    _mm256_permutevar8x32_epi32(values[c - half], order));
                n[c] += __builtin_popcount(won);
            }
        }
    }
}

static AVX2 void sort_avx2(int32_t used, const int32_t *argmax, const float *dy, int32_t first,
                           int32_t step, struct dpt_sparse_bucket *bucket)
{
    const __m256i steps = _mm256_set1_epi32(step);

    for (int32_t half = 0; half < used; half += 8) {
        const __m256i count =
            _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(half));
        const __m256i at =
            _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_mullo_epi32(count, steps));
        const unsigned there = used - half < 8 ? (1u << (used - half)) - 1 : 0xff;
        const __m256i argmaxes = _mm256_loadu_si256((const __m256i *)(argmax + half));
        const __m256 much = _mm256_loadu_ps(dy + half);

        for (int p = 0; p < 4; p++) {
            const __m256i same = _mm256_cmpeq_epi32(argmaxes, _mm256_set1_epi32(p));
            const unsigned won = there & (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(same));
            const __m256i order = front(won);
            const int32_t n = bucket->n[p];

            /* As with AVX-512, all lanes are written. */
            _mm256_storeu_si256((__m256i *)&bucket->at[p][n],
                                _mm256_permutevar8x32_epi32(at, order));
            _mm256_storeu_ps(&bucket->dy[p][n], _mm256_permutevar8x32_ps(much, order));
            bucket->n[p] = n + __builtin_popcount(won);
        }
    }
}

#define NAME(x)      avx2_##x
#define TARGET       AVX2
#define ISA          DPT_ISA_AVX2
#define WIDTH        8
#define VEC          __m256
#define LOAD(x)      _mm256_loadu_ps(x)
#define STORE(x, v)  _mm256_storeu_ps(x, v)
#define SET1(s)      _mm256_set1_ps(s)
#define ADD(a, b)    _mm256_add_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define LIST         list_avx2
#define SORT         sort_avx2
#include "core/backend/cpu/fp32/sparse_lanes.inc"

/* --- AVX-512 ---------------------------------------------------------------------------------- */

#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))

static AVX512 void sort_avx512(int32_t used, const int32_t *argmax, const float *dy, int32_t first,
                               int32_t step, struct dpt_sparse_bucket *bucket)
{
    const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(_mm512_set1_epi32(first),
                                        _mm512_mullo_epi32(count, _mm512_set1_epi32(step)));
    const __mmask16 there = (__mmask16)((1u << used) - 1);
    const __m512i argmaxes = _mm512_loadu_si512(argmax);
    const __m512 much = _mm512_loadu_ps(dy);

    for (int p = 0; p < 4; p++) {
        const __mmask16 won = _mm512_mask_cmpeq_epi32_mask(there, argmaxes, _mm512_set1_epi32(p));
        const int32_t n = bucket->n[p];

        /* All 16 lanes are written: the group has room, and what is after the end does not
         * count. */
        _mm512_storeu_si512(&bucket->at[p][n], _mm512_maskz_compress_epi32(won, at));
        _mm512_storeu_ps(&bucket->dy[p][n], _mm512_maskz_compress_ps(won, much));
        bucket->n[p] = n + __builtin_popcount(won);
    }
}

/* 16 windows at a time: a register for each, then one for each channel. */
static AVX512 void list_avx512(int32_t used, int32_t windows, const int32_t *argmax,
                               const float *dy, const int32_t *start, const int32_t *corner,
                               int32_t step, int32_t *n, int32_t *at, float *much)
{
    const __m512i corners = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)corner));

    memset(n, 0, (size_t)used * sizeof *n);
    for (int32_t first = 0; first < windows; first += 16) {
        const int32_t left = windows - first;
        const __mmask16 there = (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffff);
        const __m512i starts = _mm512_maskz_loadu_epi32(there, start + first);
        __m512i argmaxes[16], values[16];

        for (int i = 0; i < 16; i++) {
            const int64_t from = (int64_t)(i < left ? first + i : first) * 16;

            argmaxes[i] = _mm512_loadu_si512(argmax + from);
            values[i] = _mm512_loadu_si512(dy + from);
        }
        dpt_transpose(argmaxes);
        dpt_transpose(values);
        for (int32_t c = 0; c < used; c++) {
            const __mmask16 won = there & ~_mm512_movepi32_mask(argmaxes[c]);
            const __m512i where =
                _mm512_add_epi32(starts, _mm512_permutexvar_epi32(argmaxes[c], corners));

            _mm512_storeu_si512(at + c * step + n[c], _mm512_maskz_compress_epi32(won, where));
            _mm512_storeu_si512(much + c * step + n[c],
                                _mm512_maskz_compress_epi32(won, values[c]));
            n[c] += __builtin_popcount(won);
        }
    }
}

#define NAME(x)      avx512_##x
#define TARGET       AVX512
#define ISA          DPT_ISA_AVX512
#define WIDTH        16
#define VEC          __m512
#define LOAD(x)      _mm512_loadu_ps(x)
#define STORE(x, v)  _mm512_storeu_ps(x, v)
#define SET1(s)      _mm512_set1_ps(s)
#define ADD(a, b)    _mm512_add_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define LIST         list_avx512
#define SORT         sort_avx512
#include "core/backend/cpu/fp32/sparse_lanes.inc"

#elif DPT_ARM64

/* --- NEON ------------------------------------------------------------------------------------- */

#define NAME(x) neon_##x
#define TARGET
#define ISA          DPT_ISA_NEON
#define WIDTH        4
#define VEC          float32x4_t
#define LOAD(x)      vld1q_f32(x)
#define STORE(x, v)  vst1q_f32(x, v)
#define SET1(s)      vdupq_n_f32(s)
#define ADD(a, b)    vaddq_f32(a, b)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define LIST         list_plain
#define SORT         sort_plain
#include "core/backend/cpu/fp32/sparse_lanes.inc"

#endif

const struct dpt_sparse_kernels *dpt_sparse_kernels(enum dpt_isa most)
{
    static const struct dpt_sparse_kernels *const all[] = {
        &plain_kernels,
#if DPT_X86
        &avx2_kernels,
        &avx512_kernels,
#elif DPT_ARM64
        &neon_kernels,
#endif
    };
    const enum dpt_isa here = dpt_isa_here();
    const struct dpt_sparse_kernels *best = all[0];

    for (size_t i = 1; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->isa <= most && all[i]->isa <= here)
            best = all[i];
    return best;
}

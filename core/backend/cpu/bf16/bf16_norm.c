#include "core/backend/cpu/bf16/bf16_norm.h"

#include "core/backend/cpu/bf16/bf16_lanes.h"

#if HAS_BF16

struct map {
    __m512 center, scale, shift;
};

DPT_INLINE BF16 struct map load_map(const struct dpt_lanes_map *map)
{
    return (struct map){_mm512_loadu_ps(map->center), _mm512_loadu_ps(map->scale),
                        _mm512_loadu_ps(map->shift)};
}

DPT_INLINE BF16 __m512 mapped(const struct map *map, __m512 off)
{
    return _mm512_add_ps(_mm512_mul_ps(off, map->scale), map->shift);
}

DPT_INLINE BF16 void put(uint16_t *to, __m512 v)
{
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(v));
}

/* All numbers of a group, the last sample first, since the end of what was just summed is still in
 * the cache. `at` is where 16 of them are. */
#define FOR_NUMBERS(v, rows)                                                                       \
    for (int64_t row_ = (rows); row_-- > 0;)                                                       \
        for (int64_t at = row_ * (v)->row, end_ = at + (v)->pixels * SIDE; at < end_; at += SIDE)

BF16 void dpt_bf16_norm_apply(const struct dpt_lanes *v, int64_t rows,
                              const struct dpt_lanes_map *from, const float *x, uint16_t *y)
{
    const struct map map = load_map(from);
    const __mmask16 cuts = from->relu ? 0xffff : 0;

    FOR_NUMBERS(v, rows)
    {
        const __m512 a = mapped(&map, _mm512_sub_ps(_mm512_loadu_ps(x + at), map.center));
        const __mmask16 below = _mm512_mask_cmp_ps_mask(cuts, a, _mm512_setzero_ps(), _CMP_LT_OQ);

        put(y + at, _mm512_mask_mov_ps(a, below, _mm512_setzero_ps())); /* NaN passes */
    }
}

BF16 void dpt_bf16_norm_back(const struct dpt_lanes *v, int64_t rows,
                             const struct dpt_lanes_map *from, const float *slope,
                             const float *less, const float *x, const float *dy, uint16_t *dx)
{
    const struct map map = load_map(from);
    const __m512 along = _mm512_loadu_ps(slope), off = _mm512_loadu_ps(less);
    const __mmask16 all = from->relu ? 0 : 0xffff;

    FOR_NUMBERS(v, rows)
    {
        const __m512 a = _mm512_sub_ps(_mm512_loadu_ps(x + at), map.center);
        const __mmask16 pass =
            all | _mm512_cmp_ps_mask(mapped(&map, a), _mm512_setzero_ps(), _CMP_GT_OQ);
        const __m512 g = _mm512_maskz_loadu_ps(pass, dy + at);

        put(dx + at, _mm512_mul_ps(_mm512_sub_ps(_mm512_sub_ps(g, off), _mm512_mul_ps(a, along)),
                                   map.scale));
    }
}

#else

void dpt_bf16_norm_apply(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                         const float *x, uint16_t *y)
{
    (void)v, (void)rows, (void)map, (void)x, (void)y;
}

void dpt_bf16_norm_back(const struct dpt_lanes *v, int64_t rows, const struct dpt_lanes_map *map,
                        const float *slope, const float *less, const float *x, const float *dy,
                        uint16_t *dx)
{
    (void)v, (void)rows, (void)map, (void)slope, (void)less, (void)x, (void)dy, (void)dx;
}

#endif

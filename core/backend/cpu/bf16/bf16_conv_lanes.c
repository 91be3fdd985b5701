#include "core/backend/cpu/bf16/bf16_conv_lanes.h"

#include <stddef.h>

#include "core/backend/cpu/bf16/bf16_lanes.h"

#if HAS_BF16

/* --- lines of pixels -------------------------------------------------------------------------- */

static const float zeros[SIDE];

/* A mask of those of 16 channels that have this argmax. */
DPT_INLINE BF16 __mmask16 argmax_is(const struct dpt_bf16_pixels *p, int64_t from, int which)
{
    return _mm_cmpeq_epi8_mask(_mm_loadu_si128((const void *)(p->argmax + from)),
                               _mm_set1_epi8((char)which));
}

/* Reads 16 channels at a place. */
DPT_INLINE BF16 __m512 pixel(const struct dpt_bf16_pixels *p, bool pooled, int64_t block,
                             int32_t at)
{
    const float *x = (const float *)p->x + block * p->plane;

    if (!pooled)
        return _mm512_loadu_ps(at < 0 ? zeros : x + (int64_t)at * SIDE);
    if (at < 0)
        return _mm512_setzero_ps();
    return _mm512_maskz_loadu_ps(argmax_is(p, block * p->plane + (int64_t)(at / 4) * SIDE, at % 4),
                                 x + (int64_t)(at / 4) * SIDE);
}

/* Reads 16 channels at a place where they are rounded already. */
DPT_INLINE BF16 __m256i rounded_pixel(const struct dpt_bf16_pixels *p, int64_t block, int32_t at)
{
    const uint16_t *x = (const uint16_t *)p->x + block * p->plane;

    return _mm256_loadu_si256(at < 0 ? (const void *)zeros : x + (int64_t)at * SIDE);
}

/* How pixels are read. */
enum form { PLAIN, POOLED, ROUNDED };

/* Twice 16 channels, rounded: those of one block at a place, then those of another block. */
DPT_INLINE BF16 __m512i two_pixels(const struct dpt_bf16_pixels *p, enum form form, int64_t block,
                                   int32_t at, int64_t other, int32_t other_at)
{
    if (form == ROUNDED)
        return _mm512_inserti64x4(_mm512_castsi256_si512(rounded_pixel(p, block, at)),
                                  rounded_pixel(p, other, other_at), 1);
    return (__m512i)_mm512_cvtne2ps_pbh(pixel(p, form == POOLED, other, other_at),
                                        pixel(p, form == POOLED, block, at));
}

/* 16 pairs: each channel's numbers at a place and at the next one. */
DPT_INLINE BF16 __m512i pairs_at(const struct dpt_bf16_pixels *p, enum form form, int64_t block,
                                 int64_t place)
{
    return interleave(two_pixels(p, form, block, p->table[place], block, p->table[place + 1]));
}

/* One channel at 16 places. */
DPT_INLINE BF16 __m512 places(const struct dpt_bf16_pixels *p, int64_t channel, int64_t place)
{
    const __m512i at = _mm512_loadu_si512(p->table + place);
    const __mmask16 there = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());

    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, at,
                                    (const float *)p->x + channel * p->plane, 4);
}

DPT_INLINE BF16 void line_of_blocks(const struct dpt_bf16_pixels *p, enum form form, int32_t lanes,
                                    uint16_t *to)
{
    const int64_t blocks = (p->channels + SIDE - 1) / SIDE;

    for (int64_t b = 0; b * SIDE < lanes; b += 2) {
        uint16_t *at = to + b * SIDE;

        for (int64_t i = 0; i < p->places; i++, at += lanes) {
            const bool both = b + 1 < blocks;
            const __m512i words =
                two_pixels(p, form, b, p->table[i], b + both, both ? p->table[i] : -1);

            if (lanes >= DEPTH)
                _mm512_storeu_si512(at, words);
            else if (lanes == SIDE)
                _mm256_storeu_si256((void *)at, _mm512_castsi512_si256(words));
            else if (lanes == SIDE / 2)
                _mm_storeu_si128((void *)at, _mm512_castsi512_si128(words));
            else
                _mm_storel_epi64((void *)at, _mm512_castsi512_si128(words));
        }
    }
}

/* Four or eight planes become pixels. */
static BF16 void line_of_planes(const struct dpt_bf16_pixels *p, int32_t lanes, uint16_t *to)
{
    for (int64_t i = 0; i < p->places; i += SIDE, to += (ptrdiff_t)SIDE * lanes) {
        uint16_t channel[DPT_BF16_SIDE / 2][SIDE];

        for (int32_t c = 0; c < lanes; c++)
            _mm256_storeu_si256((void *)channel[c],
                                (__m256i)_mm512_cvtneps_pbh(c < p->channels ? places(p, c, i)
                                                                            : _mm512_setzero_ps()));
        if (lanes == 4) {
            static const int32_t low[] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23},
                                 high[] = {8,  24, 9,  25, 10, 26, 11, 27,
                                           12, 28, 13, 29, 14, 30, 15, 31};
            __m512i pair[2];

            for (int c = 0; c < 2; c++)
                pair[c] = _mm512_or_si512(
                    _mm512_cvtepu16_epi32(_mm256_loadu_si256((void *)channel[2 * c])),
                    _mm512_slli_epi32(
                        _mm512_cvtepu16_epi32(_mm256_loadu_si256((void *)channel[2 * c + 1])), 16));
            _mm512_storeu_si512(
                to, _mm512_permutex2var_epi32(pair[0], _mm512_loadu_si512(low), pair[1]));
            _mm512_storeu_si512(
                to + DEPTH, _mm512_permutex2var_epi32(pair[0], _mm512_loadu_si512(high), pair[1]));
        } else {
            for (int k = 0; k < SIDE; k++)
                for (int32_t c = 0; c < lanes; c++)
                    to[k * lanes + c] = channel[c][k];
        }
    }
}

static BF16 void line(const struct dpt_bf16_pixels *pixels, int32_t lanes, uint16_t *to)
{
    const struct dpt_bf16_pixels p = *pixels; /* which no store can change */

    if (p.planes)
        line_of_planes(&p, lanes, to);
    else if (p.argmax != NULL)
        line_of_blocks(&p, POOLED, lanes, to);
    else if (p.bf16)
        line_of_blocks(&p, ROUNDED, lanes, to);
    else
        line_of_blocks(&p, PLAIN, lanes, to);
}

DPT_INLINE BF16 void planes_of_blocks(const struct dpt_bf16_pixels *p, enum form form, int64_t ld,
                                      uint16_t *to)
{
    for (int64_t b = 0; b * SIDE < p->channels; b++) {
        for (int64_t i = 0; i < p->places; i += DEPTH) {
            __m512i pairs[WORDS];

            for (int k = 0; k < WORDS; k++)
                pairs[k] = pairs_at(p, form, b, i + 2 * k);
            store_transposed(pairs, to + b * SIDE * ld + i, ld);
        }
    }
}

static BF16 void planes(const struct dpt_bf16_pixels *pixels, int64_t ld, uint16_t *to)
{
    const struct dpt_bf16_pixels own = *pixels, *p = &own;

    for (int32_t c = 0; p->planes && c < p->channels; c++)
        for (int64_t i = 0; i < p->places; i += DEPTH)
            _mm512_storeu_si512(to + c * ld + i, (__m512i)_mm512_cvtne2ps_pbh(
                                                     places(p, c, i + SIDE), places(p, c, i)));
    if (p->planes)
        return;
    if (p->bf16)
        planes_of_blocks(p, ROUNDED, ld, to);
    else
        planes_of_blocks(p, PLAIN, ld, to);
}

/* Two places of a window's row: the window's number is at one of them, or in the other row. */
DPT_INLINE BF16 __m512i spread(const struct dpt_bf16_pixels *p, int64_t block, int32_t at)
{
    const int64_t from = block * p->plane + (int64_t)(at / 2) * SIDE;
    const __m512i low = _mm512_cvtepu16_epi32(
        (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps((const float *)p->x + from)));
    const int first = at % 2 * 2;

    return _mm512_mask_slli_epi32(_mm512_maskz_mov_epi32(argmax_is(p, from, first), low),
                                  argmax_is(p, from, first + 1), low, 16);
}

/* 16 pairs: each channel's numbers at a place and at the next one, for the channels of a block. */
DPT_INLINE BF16 __m512i pairs_of(const struct dpt_bf16_pixels *p, enum form form, int64_t block,
                                 int64_t place)
{
    const int32_t at = p->table[form == POOLED ? place / 2 : place];

    if (form != POOLED)
        return pairs_at(p, form, block, place);
    return at < 0 ? _mm512_setzero_si512() : spread(p, block, at);
}

DPT_INLINE BF16 void tiles_of(const struct dpt_bf16_pixels *p, enum form form, int32_t tiles,
                              uint16_t *to)
{
    const int64_t blocks = (p->channels + SIDE - 1) / SIDE;

    for (int64_t b = 0; b < tiles; b++) {
        for (int64_t i = 0; i < p->places; i += DEPTH) {
            uint16_t *tile = to + (i / DEPTH * tiles + b) * DPT_BF16_TILE;

            for (int k = 0; k < DEPTH; k += 2)
                _mm512_storeu_si512(tile + (ptrdiff_t)k * SIDE, b < blocks
                                                                    ? pairs_of(p, form, b, i + k)
                                                                    : _mm512_setzero_si512());
        }
    }
}

static BF16 void tiles(const struct dpt_bf16_pixels *pixels, int32_t tiles, uint16_t *to)
{
    const struct dpt_bf16_pixels p = *pixels; /* which no store can change */

    if (p.argmax != NULL)
        tiles_of(&p, POOLED, tiles, to);
    else if (p.bf16)
        tiles_of(&p, ROUNDED, tiles, to);
    else
        tiles_of(&p, PLAIN, tiles, to);
}

static BF16 void sum(const struct dpt_bf16_pixels *p, int64_t n, float *sum)
{
    for (int64_t b = 0; b * SIDE < p->channels; b++) {
        const float *x = (const float *)p->x + b * p->plane;
        __m512 all = _mm512_loadu_ps(sum + b * SIDE);

        for (int64_t i = 0; i < n; i++) {
            const __m256i words = p->bf16
                                      ? rounded_pixel(p, b, (int32_t)i)
                                      : (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i * SIDE));
            const __mmask16 there = p->argmax == NULL
                                        ? 0xffff
                                        : ~_mm_movepi8_mask(_mm_loadu_si128(
                                              (const void *)(p->argmax + b * p->plane + i * SIDE)));

            all = _mm512_mask_add_ps(all, there, all,
                                     (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
        }
        _mm512_storeu_ps(sum + b * SIDE, all);
    }
}

/* --- results ---------------------------------------------------------------------------------- */

/* max gives its second operand if the two are equal, and if one is NaN: so NaN stays. */
DPT_INLINE BF16 __m512 cut(__m512 v)
{
    return _mm512_max_ps(_mm512_setzero_ps(), v);
}

/* NaN over all, the last one. */
static BF16 __m512 prefer_nan(__m512 best, const __m512 v[4], __m128i *where)
{
    for (int i = 0; i < 4; i++) {
        const __mmask16 wins = _mm512_cmp_ps_mask(v[i], v[i], _CMP_UNORD_Q);

        best = _mm512_mask_mov_ps(best, wins, v[i]);
        *where = _mm_mask_mov_epi8(*where, wins, _mm_set1_epi8((char)i));
    }
    return best;
}

/* The first of equal numbers wins. */
DPT_INLINE BF16 void give_window(const float *sum, int64_t below, __m512 bias, bool relu, float *y,
                                 int8_t *argmax)
{
    const __m512 v[4] = {_mm512_loadu_ps(sum), _mm512_loadu_ps(sum + (ptrdiff_t)2 * SIDE),
                         _mm512_loadu_ps(sum + below), _mm512_loadu_ps(sum + below + 2 * SIDE)};
    const __mmask16 nan =
        _mm512_cmp_ps_mask(v[0], v[1], _CMP_UNORD_Q) | _mm512_cmp_ps_mask(v[2], v[3], _CMP_UNORD_Q);
    const __m512 upper = _mm512_max_ps(v[1], v[0]), lower = _mm512_max_ps(v[3], v[2]);
    const __mmask16 second = _mm512_cmp_ps_mask(v[1], v[0], _CMP_GT_OQ),
                    fourth = _mm512_cmp_ps_mask(v[3], v[2], _CMP_GT_OQ);
    __m128i where = _mm_mask_mov_epi8(
        _mm_maskz_set1_epi8(second, 1), _mm512_cmp_ps_mask(lower, upper, _CMP_GT_OQ),
        _mm_mask_mov_epi8(_mm_set1_epi8(2), fourth, _mm_set1_epi8(3)));
    __m512 best = _mm512_max_ps(lower, upper);

    if (__builtin_expect(nan != 0, 0))
        best = prefer_nan(best, v, &where);
    best = _mm512_add_ps(best, bias);
    if (relu) {
        where = _mm_mask_mov_epi8(_mm_set1_epi8(-1),
                                  _mm512_cmp_ps_mask(best, _mm512_setzero_ps(), _CMP_GT_OQ), where);
        best = cut(best);
    }
    _mm512_storeu_ps(y, best);
    if (argmax != NULL)
        _mm_storeu_si128((void *)argmax, where);
}

/* A row of pooled outputs of a block. Writing them in bf16 for the next convolution gained 0.7 %
 * for mnistcnn and nothing for cnn, so they are floats. */
DPT_INLINE BF16 void give_windows(const struct dpt_bf16_result *r, const float *sum, __m512 bias,
                                  bool relu, float *y, int8_t *argmax)
{
    const int64_t line = (int64_t)r->pitch * 2 * SIDE, step = r->step;
    const int32_t n = r->columns / 2;

    for (int32_t i = 0; i < n; i++, sum += (ptrdiff_t)4 * SIDE)
        give_window(sum, line, bias, relu, y + i * step, argmax != NULL ? argmax + i * step : NULL);
}

/* A row, which begins `to` floats after the first one. */
DPT_INLINE BF16 void give_pixels(const struct dpt_bf16_result *r, const float *sum, __m512 bias,
                                 int64_t to)
{
    const float *added = r->added != NULL ? r->added + to : NULL;
    const float *known = r->known != NULL ? r->known + to : NULL;
    float *y = r->y + to;
    const int64_t step = r->step;
    const int32_t n = r->columns;
    const bool relu = r->relu;

    for (int32_t i = 0; i < n; i++, sum += (ptrdiff_t)2 * SIDE) {
        __m512 v = _mm512_add_ps(_mm512_loadu_ps(sum), bias);

        if (added != NULL)
            v = _mm512_add_ps(v, _mm512_loadu_ps(added + i * step));
        if (known != NULL)
            v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_loadu_ps(known + i * step),
                                                       _mm512_setzero_ps(), _CMP_GT_OQ),
                                    v);
        _mm512_storeu_ps(y + i * step, relu ? cut(v) : v);
    }
}

static BF16 void give(const struct dpt_bf16_result *r)
{
    const int32_t each = r->pool ? 2 : 1;
    const int64_t line = (int64_t)r->pitch * 2 * SIDE;

    for (int32_t b = 0; b < r->blocks; b++) {
        const __m512 bias =
            r->bias != NULL ? _mm512_loadu_ps(r->bias + (ptrdiff_t)b * SIDE) : _mm512_setzero_ps();

        for (int32_t row = 0; row < r->rows / each; row++) {
            const float *sum = r->sum + row * each * line + (ptrdiff_t)b * SIDE;
            const int64_t to = b * r->plane + row * r->line;

            if (!r->pool)
                give_pixels(r, sum, bias, to);
            else if (r->relu && r->argmax != NULL)
                give_windows(r, sum, bias, true, r->y + to, r->argmax + to);
            else
                give_windows(r, sum, bias, r->relu, r->y + to,
                             r->argmax != NULL ? r->argmax + to : NULL);
        }
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

DPT_INLINE BF16 __mmask16 first_of(int64_t columns)
{
    return columns >= SIDE ? 0xffff : (__mmask16)((1u << columns) - 1);
}

DPT_INLINE BF16 __m512i every(int64_t step)
{
    const __m512i number = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    return _mm512_mullo_epi32(number, _mm512_set1_epi32((int32_t)step));
}

static BF16 void pack(const float *w, const int32_t from[32], int64_t step, int32_t columns,
                      uint16_t *to)
{
    const __m512i at = every(step);
    const __mmask16 there = first_of(columns);

    for (int i = 0; i < DEPTH; i += 2) {
        __m512 two[2];

        for (int k = 0; k < 2; k++)
            two[k] = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), from[i + k] < 0 ? 0 : there, at,
                                              w + (from[i + k] < 0 ? 0 : from[i + k]), 4);
        _mm512_storeu_si512(to + (ptrdiff_t)i * SIDE, round_two(two[0], two[1]));
    }
}

/* 16 sums of each of 16 outputs at a time: what is read and what is written are whole lines. */
static BF16 void gather(const float *sums, const int32_t *at, int64_t n, int32_t outputs, bool add,
                        float *dw, int64_t filter)
{
    for (int64_t i = 0; i < n; i += SIDE) {
        const __mmask16 there = first_of(n - i);
        __m512i rows[SIDE];

        for (int k = 0; k < SIDE; k++)
            rows[k] = i + k < n ? _mm512_loadu_si512(sums + at[i + k]) : _mm512_setzero_si512();
        dpt_transpose(rows);
        for (int32_t o = 0; o < outputs; o++) {
            float *to = dw + o * filter + i;
            __m512 v = (__m512)rows[o];

            if (add)
                v = _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), v);
            _mm512_mask_storeu_ps(to, there, v);
        }
    }
}

const struct dpt_bf16_conv_lanes dpt_bf16_conv_lanes = {.line = line,
                                                        .planes = planes,
                                                        .tiles = tiles,
                                                        .sum = sum,
                                                        .give = give,
                                                        .pack = pack,
                                                        .gather = gather};

#else

const struct dpt_bf16_conv_lanes dpt_bf16_conv_lanes;

#endif

#include "core/backend/cpu/bf16/bf16_tile.h"

#include <pthread.h>
#include <stddef.h>

#include "core/backend/cpu/bf16/bf16_lanes.h"

#if HAS_BF16

#include <sys/syscall.h>
#include <unistd.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))

/* --- packing ---------------------------------------------------------------------------------- */

static BF16 void pack_a(const float *x, int64_t ldx, int64_t m, int64_t k, uint16_t *a)
{
    for (int64_t i = 0; i < SIDE; i++)
        _mm512_storeu_si512(a + i * DEPTH, round_line(x + i * ldx, i < m ? k : 0));
}

static BF16 void pack_a_columns(const float *x, int64_t ldx, int64_t m, int64_t k, uint16_t *a)
{
    __m512i pairs[WORDS];

    for (int64_t i = 0; i < WORDS; i++)
        pairs[i] = round_pairs(x + 2 * i * ldx, ldx, k - 2 * i, m);
    store_transposed(pairs, a, DEPTH);
}

static BF16 void pack_b(const float *x, int64_t ldx, int64_t k, int64_t n, uint16_t *b)
{
    for (int64_t i = 0; i < WORDS; i++)
        _mm512_storeu_si512(b + i * DEPTH, round_pairs(x + 2 * i * ldx, ldx, k - 2 * i, n));
}

static BF16 void pack_b_columns(const float *x, int64_t ldx, int64_t k, int64_t n, uint16_t *b)
{
    __m512i lines[SIDE];

    for (int64_t i = 0; i < SIDE; i++)
        lines[i] = round_line(x + i * ldx, i < n ? k : 0);
    store_transposed(lines, b, DEPTH);
}

static BF16 void put(const float *a, const float *b, bool add, bool stream, int64_t m, int64_t n,
                     float *to, int64_t ld)
{
    for (int64_t i = 0; i < m; i++, to += ld) {
        for (int64_t k = 0; k < n; k += SIDE) {
            const int64_t at = i * 2 * SIDE + k;
            const __mmask16 there = n - k >= SIDE ? 0xffff : (__mmask16)((1u << (n - k)) - 1);
            __m512 v = _mm512_loadu_ps(a + at);

            if (b != NULL)
                v = _mm512_add_ps(v, _mm512_loadu_ps(b + at));
            if (add)
                v = _mm512_add_ps(_mm512_maskz_loadu_ps(there, to + k), v);
            if (stream)
                _mm512_stream_ps(to + k, v);
            else
                _mm512_mask_storeu_ps(to + k, there, v);
        }
    }
}

static BF16 void put_squared(const float *a, const float *b, int64_t m, float *to, int64_t ld,
                             double *lanes)
{
    for (int64_t i = 0; i < m * 2 * SIDE; i += SIDE) {
        __m512 v = _mm512_loadu_ps(a + i);
        __m512d low, high;

        if (b != NULL)
            v = _mm512_add_ps(v, _mm512_loadu_ps(b + i));
        low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        high = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
        _mm512_stream_ps(to + i / (2 * SIDE) * ld + i % (2 * SIDE), v);
        /* A square is exact: contracted or not, it is rounded once. */
        _mm512_storeu_pd(lanes + i, _mm512_fmadd_pd(low, low, _mm512_loadu_pd(lanes + i)));
        _mm512_storeu_pd(lanes + i + SIDE / 2,
                         _mm512_fmadd_pd(high, high, _mm512_loadu_pd(lanes + i + SIDE / 2)));
    }
}

/* --- AVX-512 BF16 ----------------------------------------------------------------------------- */

enum { ROWS = 8 }; /* of c in registers */

static void begin_nothing(int depth)
{
    (void)depth;
}

static void end_nothing(void)
{
}

DPT_INLINE BF16 void multiply_rows(const struct dpt_bf16_product *p, int n, const uint16_t *a,
                                   const uint16_t *b, bool add, float *c, int64_t ldc)
{
    __m512 sum[ROWS][2];

    DPT_UNROLL for (int r = 0; r < ROWS; r++)
    {
        sum[r][0] = add ? _mm512_loadu_ps(c + r * ldc) : _mm512_setzero_ps();
        sum[r][1] = add && n > 1 ? _mm512_loadu_ps(c + r * ldc + p->c_tile) : _mm512_setzero_ps();
    }
    for (int32_t tap = 0; tap < p->taps; tap++) {
        for (int64_t step = 0; step < p->steps; step++) {
            const uint16_t *from = a + p->tap[tap] + step * p->a_step;
            const uint16_t *by = b + tap * p->b_tap + step * p->b_step;

            for (int k = 0; k < DEPTH; k += 2, by += 2 * SIDE) {
                const __m512bh low = (__m512bh)_mm512_loadu_si512(by);
                const __m512bh high = (__m512bh)_mm512_loadu_si512(by + (n > 1 ? p->b_tile : 0));

                DPT_UNROLL for (int r = 0; r < ROWS; r++)
                {
                    int32_t word;
                    __m512bh pair;

                    __builtin_memcpy(&word, from + r * p->a_row + k, sizeof word);
                    pair = (__m512bh)_mm512_set1_epi32(word);
                    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, low);
                    if (n > 1)
                        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, high);
                }
            }
        }
    }
    DPT_UNROLL for (int r = 0; r < ROWS; r++)
    {
        _mm512_storeu_ps(c + r * ldc, sum[r][0]);
        if (n > 1)
            _mm512_storeu_ps(c + r * ldc + p->c_tile, sum[r][1]);
    }
}

static BF16 void multiply_avx512(const struct dpt_bf16_product *p, const uint16_t *a,
                                 const uint16_t *b, bool add, float *c, int64_t ldc)
{
    for (int row = 0; row < p->m * SIDE; row += ROWS) {
        const uint16_t *from = a + row / SIDE * p->a_tile + row % SIDE * p->a_row;

        if (p->n > 1)
            multiply_rows(p, 2, from, b, add, c + row * ldc, ldc);
        else
            multiply_rows(p, 1, from, b, add, c + row * ldc, ldc);
    }
}

/* --- AMX -------------------------------------------------------------------------------------- */

/* The operand of ldtilecfg: tiles 0 to 3 are c, 4 and 5 a, 6 and 7 b, of 16 rows of 64 bytes. If
 * there is less along k, a's rows are shorter and b has fewer: rows of a that lie close together
 * then need not be read across cache lines, which takes five times as long. */
static AMX void begin_amx(int depth)
{
    const uint16_t bytes = (uint16_t)(2 * depth);
    const uint8_t pairs = (uint8_t)(depth / 2);
    const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .row_bytes = {64, 64, 64, 64, bytes, bytes, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, pairs, pairs}};

    __asm__ volatile("" : : "r"(&config) : "memory"); /* GCC takes it that 8 bytes are read */
    _tile_loadconfig(&config);
}

static AMX void end_amx(void)
{
    _tile_release();
}

DPT_INLINE AMX void multiply_tiles(const struct dpt_bf16_product *p, int m, int n,
                                   const uint16_t *a, const uint16_t *b, bool add, float *c,
                                   int64_t ldc)
{
    const int64_t row = p->a_row * (int64_t)sizeof *a, line = ldc * (int64_t)sizeof *c;
    float *below = c + SIDE * ldc;

    if (add) {
        _tile_loadd(0, c, line);
        if (n > 1)
            _tile_loadd(1, c + p->c_tile, line);
        if (m > 1)
            _tile_loadd(2, below, line);
        if (m > 1 && n > 1)
            _tile_loadd(3, below + p->c_tile, line);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int32_t tap = 0; tap < p->taps; tap++) {
        const uint16_t *from = a + p->tap[tap], *by = b + tap * p->b_tap;

        for (int64_t step = 0; step < p->steps; step++, from += p->a_step, by += p->b_step) {
            _tile_loadd(6, by, 64);
            _tile_loadd(4, from, row);
            _tile_dpbf16ps(0, 4, 6);
            if (n > 1) {
                _tile_loadd(7, by + p->b_tile, 64);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (m > 1) {
                _tile_loadd(5, from + p->a_tile, row);
                _tile_dpbf16ps(2, 5, 6);
            }
            if (m > 1 && n > 1)
                _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, line);
    if (n > 1)
        _tile_stored(1, c + p->c_tile, line);
    if (m > 1)
        _tile_stored(2, below, line);
    if (m > 1 && n > 1)
        _tile_stored(3, below + p->c_tile, line);
}

static AMX void multiply_amx(const struct dpt_bf16_product *p, const uint16_t *a, const uint16_t *b,
                             bool add, float *c, int64_t ldc)
{
    if (p->m > 1 && p->n > 1)
        multiply_tiles(p, 2, 2, a, b, add, c, ldc);
    else if (p->m > 1)
        multiply_tiles(p, 2, 1, a, b, add, c, ldc);
    else if (p->n > 1)
        multiply_tiles(p, 1, 2, a, b, add, c, ldc);
    else
        multiply_tiles(p, 1, 1, a, b, add, c, ldc);
}

/* --- the choice ------------------------------------------------------------------------------- */

#define KERNELS(isa_, adds_tiles_, begin_, end_, multiply_)                                        \
    {                                                                                              \
        .isa = isa_, .adds_tiles = adds_tiles_, .begin = begin_, .end = end_,                      \
        .multiply = multiply_, .pack_a = pack_a, .pack_a_columns = pack_a_columns,                 \
        .pack_b = pack_b, .pack_b_columns = pack_b_columns, .put = put,                            \
        .put_squared = put_squared,                                                                \
    }

static const struct dpt_bf16_kernels avx512 =
    KERNELS(DPT_ISA_AVX512_BF16, false, begin_nothing, end_nothing, multiply_avx512);
static const struct dpt_bf16_kernels amx =
    KERNELS(DPT_ISA_AMX, true, begin_amx, end_amx, multiply_amx);

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool permitted;

/* Linux saves a thread's tiles, 8 KiB, only if the process has asked for them (5.16 on). */
static void ask_for_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

#ifdef SYS_arch_prctl
    permitted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#endif
}

#endif

const struct dpt_bf16_kernels *dpt_bf16_kernels(enum dpt_isa most)
{
#if HAS_BF16
    const enum dpt_isa here = dpt_isa_here(), isa = most < here ? most : here;

    if (isa >= DPT_ISA_AMX)
        pthread_once(&asked, ask_for_tiles);
    if (isa >= DPT_ISA_AMX && permitted)
        return &amx;
    if (isa >= DPT_ISA_AVX512_BF16)
        return &avx512;
#endif
    (void)most;
    return NULL;
}

const char *dpt_bf16_name(const struct dpt_bf16_kernels *kernels)
{
    return kernels->isa >= DPT_ISA_AMX ? "AMX tiles" : "AVX-512 BF16";
}

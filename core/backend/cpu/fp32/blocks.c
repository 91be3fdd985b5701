#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/fp32/transpose.h"

#if DPT_X86

/* The last 16 pixels of a block may be some that were moved before. */
static __attribute__((target("avx512f"))) void move_avx512(int64_t blocks, int64_t pixels,
                                                           bool to_planes, const float *x, float *y)
{
    const int64_t ld_x = to_planes ? DPT_LANES : pixels, ld_y = to_planes ? pixels : DPT_LANES;

    for (; blocks > 0; blocks--, x += pixels * DPT_LANES, y += pixels * DPT_LANES) {
        for (int64_t p = 0; p < pixels; p += DPT_LANES) {
            const int64_t at = p + DPT_LANES <= pixels ? p : pixels - DPT_LANES;
            const float *from = x + at * (to_planes ? DPT_LANES : 1);
            float *to = y + at * (to_planes ? 1 : DPT_LANES);
            __m512i rows[DPT_LANES];

            for (int i = 0; i < DPT_LANES; i++)
                rows[i] = _mm512_loadu_si512(from + i * ld_x);
            dpt_transpose(rows);
            for (int i = 0; i < DPT_LANES; i++)
                _mm512_storeu_si512(to + i * ld_y, rows[i]);
        }
    }
}

bool dpt_moves_blocks(int32_t channels, int64_t pixels)
{
    return channels % DPT_LANES == 0 && pixels >= DPT_LANES && dpt_isa_here() >= DPT_ISA_AVX512;
}

#else

static void move_avx512(int64_t blocks, int64_t pixels, bool to_planes, const float *x, float *y)
{
    (void)blocks, (void)pixels, (void)to_planes, (void)x, (void)y;
}

bool dpt_moves_blocks(int32_t channels, int64_t pixels)
{
    (void)channels, (void)pixels;
    return false;
}

#endif

/* One block, of which `channels` are there. */
DPT_VECTOR static void move_block(int32_t channels, int64_t pixels, bool to_planes,
                                  const float *restrict x, float *restrict y)
{
    for (int64_t p = 0; p < pixels && to_planes; p++)
        for (int32_t c = 0; c < channels; c++)
            y[c * pixels + p] = x[p * DPT_LANES + c];
    for (int64_t p = 0; p < pixels && !to_planes; p++) {
        for (int32_t c = 0; c < channels; c++)
            y[p * DPT_LANES + c] = x[c * pixels + p];
        for (int32_t c = channels; c < DPT_LANES; c++)
            y[p * DPT_LANES + c] = 0;
    }
}

void dpt_move_blocks(int32_t samples, int32_t channels, int64_t pixels, bool to_planes,
                     const float *x, float *y)
{
    if (dpt_moves_blocks(channels, pixels)) {
        move_avx512((int64_t)samples * channels / DPT_LANES, pixels, to_planes, x, y);
        return;
    }
    for (int32_t i = 0; i < samples; i++)
        for (int32_t c = 0; c < channels; c += DPT_LANES) {
            const int32_t n = channels - c < DPT_LANES ? channels - c : DPT_LANES;

            move_block(n, pixels, to_planes, x, y);
            x += pixels * (to_planes ? DPT_LANES : n);
            y += pixels * (to_planes ? n : DPT_LANES);
        }
}

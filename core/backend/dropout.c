#include "core/backend/backend.h"
#include "core/base/rng.h"
#include "core/base/vector.h"

enum { QUAD_BITS = 24, NODE_BITS = 16, QUADS = 256 };

DPT_VECTOR static void drop(size_t n, const uint32_t *restrict words, float rate,
                            float *restrict mask)
{
    const float keep = 1.0f / (1.0f - rate);

    for (size_t i = 0; i < n; i++)
        mask[i] = (float)(int32_t)(words[i] >> 8) * 0x1p-24f < rate ? 0.0f : keep;
}

void dpt_dropout_mask(uint64_t seed, uint64_t step, int64_t sample, int32_t node, float rate,
                      size_t n, float *mask)
{
    const uint64_t a = step << NODE_BITS | (uint64_t)node;
    const uint64_t end = UINT64_C(1) << QUAD_BITS;
    uint32_t words[4 * QUADS];

    for (size_t i = 0, run; i < n; i += run) {
        const uint64_t quad = i / 4;
        /* The counter has 24 bits for the position; the bits above (samples of 2^26 elements and
           more) go into the seed. dpt_mix64 maps 0 to 0, so that all others keep the plain seed. */
        const uint64_t high = dpt_mix64(quad >> QUAD_BITS);
        const uint64_t low = quad & (end - 1);
        size_t quads = (n - i + 3) / 4;

        quads = quads < QUADS ? quads : QUADS;
        quads = quads < end - low ? quads : end - low;
        run = n - i < 4 * quads ? n - i : 4 * quads;
        dpt_random4_run(seed ^ high, DPT_RANDOM_DROPOUT, a, (uint64_t)sample << QUAD_BITS | low,
                        quads, words);
        drop(run, words, rate, mask + i);
    }
}

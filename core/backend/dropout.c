#include "core/backend/backend.h"
#include "core/base/rng.h"

enum { QUAD_BITS = 24, NODE_BITS = 16 };

void dpt_dropout_mask(uint64_t seed, uint64_t step, int64_t sample, int32_t node, float rate,
                      size_t n, float *mask)
{
    const uint64_t a = step << NODE_BITS | (uint64_t)node;
    const float keep = 1.0f / (1.0f - rate);

    for (size_t i = 0; i < n; i += 4) {
        const uint64_t quad = i / 4;
        /* The counter has 24 bits for the position; the bits above (samples of 2^26 elements and
           more) go into the seed. dpt_mix64 maps 0 to 0, so that all others keep the plain seed. */
        const uint64_t high = dpt_mix64(quad >> QUAD_BITS);
        const uint64_t low = quad & ((UINT64_C(1) << QUAD_BITS) - 1);
        const size_t left = n - i < 4 ? n - i : 4;
        uint32_t words[4];

        dpt_random4(seed ^ high, DPT_STREAM_DROPOUT, a, (uint64_t)sample << QUAD_BITS | low, words);
        for (size_t k = 0; k < left; k++)
            mask[i + k] = (float)(words[k] >> 8) * 0x1p-24f < rate ? 0.0f : keep;
    }
}

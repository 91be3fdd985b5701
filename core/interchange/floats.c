/* The number formats of other programs as float32. */
#include <string.h>

#include "core/interchange/weights.h"

static uint64_t bits_at(const unsigned char *bytes, size_t size, bool swapped)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < size; i++)
        bits |= (uint64_t)bytes[i] << 8 * (swapped ? size - 1 - i : i);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16: a sign, 5 bits of exponent, 10 of fraction. Each is a float exactly. */
static float half(uint64_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;

    if (exponent == 0) /* 0 and subnormals: fraction x 2^-24 */
        return (sign != 0 ? -1.0F : 1.0F) * (float)fraction * 0x1p-24F;
    if (exponent == 0x1F)
        return float_of(sign | 0x7F800000U | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static float brain(uint64_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static float single(uint64_t bits)
{
    return float_of((uint32_t)bits);
}

static float twice(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static const struct {
    size_t size;
    float (*from)(uint64_t bits);
} kinds[] = {
    [DPT_FLOAT_NONE] = {0, NULL}, [DPT_FLOAT_16] = {2, half},  [DPT_FLOAT_BF16] = {2, brain},
    [DPT_FLOAT_32] = {4, single}, [DPT_FLOAT_64] = {8, twice},
};

size_t dpt_float_size(enum dpt_float_kind kind)
{
    return kinds[kind].size;
}

void dpt_floats_from(enum dpt_float_kind kind, bool swapped, const unsigned char *bytes, size_t n,
                     float *to)
{
    const size_t size = kinds[kind].size;

    if (kind == DPT_FLOAT_32 && !swapped) {
        memcpy(to, bytes, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = kinds[kind].from(bits_at(bytes + i * size, size, swapped));
}

/*
 * fake_numbers: the types of numbers that the fake libraries compute with, each as floats and back.
 * They are written independently of the kernels' own conversions, which are tested against others.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_NUMBERS_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_NUMBERS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum fake_type { FAKE_F32, FAKE_B16, FAKE_F16 };

static inline size_t fake_size(enum fake_type type)
{
    return type == FAKE_F32 ? 4 : 2;
}

/* Removes bits of the fraction, rounding to nearest, ties to even. */
static inline float fake_round_bits(float f, int less)
{
    uint32_t bits;

    if (!isfinite(f))
        return f;
    memcpy(&bits, &f, 4);
    bits += (1u << (less - 1)) - 1 + (bits >> less & 1);
    bits &= ~((1u << less) - 1);
    memcpy(&f, &bits, 4);
    return f;
}

static inline float fake_to_tf32(float f)
{
    return fake_round_bits(f, 13);
}

static inline uint16_t fake_to_b16(float f)
{
    uint32_t bits;

    if (isnan(f))
        return 0x7fff;
    f = fake_round_bits(f, 16);
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}

static inline uint16_t fake_to_f16(float f)
{
    const uint16_t sign = signbit(f) ? 0x8000 : 0;
    const float size = fabsf(f);
    int exponent;

    if (isnan(f))
        return 0x7fff;
    if (size >= 65520.0f)
        return sign | 0x7c00;
    if (size < 0x1p-14f) /* steps of 2^-24 */
        return (uint16_t)(sign + (uint16_t)rintf(size * 0x1p24f));
    frexpf(size, &exponent);
    /* 10 bits after the first one; rounding up may carry into the exponent, as it should. */
    return (uint16_t)(sign + ((exponent + 13) << 10) + (int)rintf(ldexpf(size, 11 - exponent)));
}

static inline float fake_from_f16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float f;

    if (exponent == 31)
        f = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        f = ldexpf((float)fraction, -24);
    else
        f = ldexpf((float)(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -f : f;
}

static inline float fake_get(enum fake_type type, const void *at, size_t i)
{
    uint32_t wide;
    uint16_t half;
    float f;

    if (type == FAKE_F32) {
        memcpy(&f, (const char *)at + 4 * i, 4);
        return f;
    }
    memcpy(&half, (const char *)at + 2 * i, 2);
    if (type == FAKE_F16)
        return fake_from_f16(half);
    wide = (uint32_t)half << 16;
    memcpy(&f, &wide, 4);
    return f;
}

static inline void fake_put(enum fake_type type, void *at, size_t i, float f)
{
    const uint16_t half = type == FAKE_B16 ? fake_to_b16(f) : type == FAKE_F16 ? fake_to_f16(f) : 0;

    if (type == FAKE_F32)
        memcpy((char *)at + 4 * i, &f, 4);
    else
        memcpy((char *)at + 2 * i, &half, 2);
}

#endif

#include "core/base/hash.h"

#include <string.h>
#include <zlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/isa.h"
#include "core/base/rng.h"
#include "core/base/vector.h"

#if defined(__x86_64__)
/*
 * Carry-less multiplication, four lanes of 128 bits at a time (Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ", Intel 2009, the bit-reflected form with its constants).
 */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i x, __m128i k, __m128i y)
{
    return _mm_xor_si128(
        y, _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)));
}

/* Continues from the lanes of the 64 bytes in front of p. n: a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_lanes(__m128i x[4],
                                                                   const unsigned char *p, size_t n)
{
    const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by64 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i t;

    for (; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = fold(x[i], by512, _mm_loadu_si128((const __m128i *)p + i));
    for (int i = 1; i < 4; i++)
        x[0] = fold(x[0], by128, x[i]);
    for (; n >= 16; p += 16, n -= 16)
        x[0] = fold(x[0], by128, _mm_loadu_si128((const __m128i *)p));
    /* 128 bits to 64, to 32 by Barrett's reduction. */
    t = _mm_xor_si128(_mm_srli_si128(x[0], 8), _mm_clmulepi64_si128(x[0], by128, 0x10));
    t = _mm_xor_si128(_mm_srli_si128(t, 4),
                      _mm_clmulepi64_si128(_mm_and_si128(t, low), by64, 0x00));
    x[0] = _mm_clmulepi64_si128(_mm_and_si128(t, low), barrett, 0x10);
    t = _mm_xor_si128(t, _mm_clmulepi64_si128(_mm_and_si128(x[0], low), barrett, 0x00));
    return (uint32_t)_mm_extract_epi32(t, 1);
}

/* state: the CRC before the final inversion; n: a multiple of 16, at least 64. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc_pclmul(uint32_t state, const unsigned char *p, size_t n)
{
    __m128i x[4];

    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const __m128i *)p + i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)state));
    return crc_lanes(x, p + 64, n - 64);
}

/* The hash with sixteen lanes in four registers. n: a multiple of 16, at least 256. */
__attribute__((target("vpclmulqdq,avx512f,pclmul,sse4.1"))) static uint32_t
crc_vpclmul(uint32_t state, const unsigned char *p, size_t n)
{
    const __m512i by2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a));
    const __m512i by512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    __m512i x[4];
    __m128i lanes[4];

    for (int i = 0; i < 4; i++)
        x[i] = _mm512_loadu_si512(p + i * 64);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; i++)
            x[i] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x[i], by2048, 0x00),
                                             _mm512_clmulepi64_epi128(x[i], by2048, 0x11),
                                             _mm512_loadu_si512(p + i * 64), 0x96);
    for (int i = 1; i < 4; i++)
        x[i] =
            _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x[i - 1], by512, 0x00),
                                      _mm512_clmulepi64_epi128(x[i - 1], by512, 0x11), x[i], 0x96);
    _mm512_storeu_si512(lanes, x[3]);
    return crc_lanes(lanes, p, n);
}

#endif

uint32_t dpt_crc32(uint32_t crc, const void *bytes, size_t n)
{
    size_t whole = 0; /* bytes that are not left to zlib */

#if defined(__x86_64__)
    if (n >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        whole = n / 16 * 16;
    if (whole >= 256 && __builtin_cpu_supports("vpclmulqdq") && dpt_isa_here() >= DPT_ISA_AVX512)
        crc = ~crc_vpclmul(~crc, bytes, whole);
    else if (whole > 0)
        crc = ~crc_pclmul(~crc, bytes, whole);
#endif
    return (uint32_t)crc32_z(crc, (const unsigned char *)bytes + whole, n - whole);
}

uint32_t dpt_crc32_join(uint32_t first, uint32_t second, uint64_t second_length)
{
    return (uint32_t)crc32_combine(first, second, (z_off_t)second_length);
}

static const uint64_t golden = UINT64_C(0x9E3779B97F4A7C15);

/* What is added for an element is injective in its bits: a change of one always shows. */
static uint64_t hash_plain(const float *x, size_t n, uint64_t first)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, x + i, sizeof bits);
        sum += dpt_mix64(bits + golden * (first + i + 1));
    }
    return sum;
}

enum { LANES = 8 };

typedef uint64_t wide __attribute__((vector_size(LANES * sizeof(uint64_t))));
typedef uint32_t narrow __attribute__((vector_size(LANES * sizeof(uint32_t))));

/* The sum of the hash, LANES elements at a time, in two independent chains. n is a multiple of 2
 * LANES. */
DPT_INLINE uint64_t hash_lanes(const float *x, size_t n, uint64_t first)
{
    wide total[2] = {{0}, {0}}, key[2];
    uint64_t sum = 0;

    for (int c = 0; c < 2; c++)
        for (int k = 0; k < LANES; k++)
            key[c][k] = golden * (first + (uint64_t)(c * LANES + k) + 1);
    for (size_t i = 0; i < n; i += 2 * LANES) {
        for (int c = 0; c < 2; c++) {
            narrow bits;
            wide t;

            memcpy(&bits, x + i + c * LANES, sizeof bits);
            t = __builtin_convertvector(bits, wide) + key[c];
            t = (t ^ (t >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
            t = (t ^ (t >> 27)) * UINT64_C(0x94D049BB133111EB);
            total[c] += t ^ (t >> 31);
            key[c] += golden * (2 * LANES);
        }
    }
    for (int c = 0; c < 2; c++)
        for (int k = 0; k < LANES; k++)
            sum += total[c][k];
    return sum;
}

#if defined(__x86_64__)
/* Only these have a 64-bit multiply in their vectors: AVX-512DQ; AVX2 makes it from three. */
__attribute__((target("avx512f,avx512dq"))) static uint64_t hash_avx512(const float *x, size_t n,
                                                                        uint64_t first)
{
    return hash_lanes(x, n, first);
}

__attribute__((target("avx2"))) static uint64_t hash_avx2(const float *x, size_t n, uint64_t first)
{
    return hash_lanes(x, n, first);
}
#endif

static uint64_t hash_fast(const float *x, size_t n, uint64_t first)
{
#if defined(__x86_64__)
    if (dpt_isa_here() >= DPT_ISA_AVX512)
        return hash_avx512(x, n, first);
    if (dpt_isa_here() >= DPT_ISA_AVX2)
        return hash_avx2(x, n, first);
#endif
    return hash_lanes(x, n, first);
}

uint64_t dpt_hash_floats(const float *x, size_t n, uint64_t first)
{
    const size_t whole = n / (2 * LANES) * (2 * LANES);

    return hash_fast(x, whole, first) + hash_plain(x + whole, n - whole, first + whole);
}

/* --- SipHash ---------------------------------------------------------------------------------- */

static inline uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

/* Little-endian, as the algorithm defines it. */
static uint64_t word_at(const uint8_t *p, size_t n)
{
    uint64_t word = 0;

    for (size_t i = 0; i < n; i++)
        word |= (uint64_t)p[i] << (8 * i);
    return word;
}

static void sip_rounds(uint64_t v[4], int n)
{
    for (int i = 0; i < n; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

uint64_t dpt_siphash(const uint8_t key[DPT_SIPHASH_KEY], const void *bytes, size_t n)
{
    const uint64_t low = word_at(key, 8), high = word_at(key + 8, 8);
    const uint8_t *p = bytes;
    uint64_t v[4] = {
        low ^ UINT64_C(0x736f6d6570736575),
        high ^ UINT64_C(0x646f72616e646f6d),
        low ^ UINT64_C(0x6c7967656e657261),
        high ^ UINT64_C(0x7465646279746573),
    };

    for (size_t at = 0; at <= n; at += 8) { /* the last word, of 0 to 7 bytes, holds n as well */
        const uint64_t word =
            n - at >= 8 ? word_at(p + at, 8) : word_at(p + at, n - at) | (uint64_t)n << 56;

        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

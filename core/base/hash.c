#include "core/base/hash.h"

#include <string.h>
#include <zlib.h>

#include "core/base/rng.h"

uint32_t dpt_crc32(uint32_t crc, const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(crc, bytes, n);
}

uint32_t dpt_crc32_join(uint32_t first, uint32_t second, uint64_t second_length)
{
    return (uint32_t)crc32_combine(first, second, (z_off_t)second_length);
}

static const uint64_t golden = UINT64_C(0x9E3779B97F4A7C15);

/* Injective in the bits for a given index: a change of one element always shows. */
static inline uint64_t mix(uint32_t bits, uint64_t index)
{
    return dpt_mix64(bits + golden * (index + 1));
}

static uint64_t hash_plain(const float *x, size_t n, uint64_t first)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, x + i, sizeof bits);
        sum += mix(bits, first + i);
    }
    return sum;
}

enum { LANES = 8 };

typedef uint64_t wide __attribute__((vector_size(LANES * sizeof(uint64_t))));
typedef uint32_t narrow __attribute__((vector_size(LANES * sizeof(uint32_t))));

/* The same sum, LANES elements at a time, two chains side by side. n is a multiple of 2 LANES. */
static inline __attribute__((always_inline)) uint64_t hash_lanes(const float *x, size_t n,
                                                                 uint64_t first)
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

static uint64_t hash_fast(const float *x, size_t n, uint64_t first)
{
    if (__builtin_cpu_supports("avx512dq"))
        return hash_avx512(x, n, first);
    if (__builtin_cpu_supports("avx2"))
        return hash_avx2(x, n, first);
    return hash_lanes(x, n, first);
}
#else
static uint64_t hash_fast(const float *x, size_t n, uint64_t first)
{
    return hash_lanes(x, n, first);
}
#endif

uint64_t dpt_hash_floats(const float *x, size_t n, uint64_t first)
{
    const size_t whole = n / (2 * LANES) * (2 * LANES);

    return hash_fast(x, whole, first) + hash_plain(x + whole, n - whole, first + whole);
}

#include "core/base/rng.h"

#include <math.h>
#include <stdbool.h>

#include "core/base/vector.h"

static const uint64_t golden = UINT64_C(0x9E3779B97F4A7C15); /* 2^64 / the golden ratio */

enum {
    WEYL_0 = 0x9E3779B9, /* added to the two words of the key after each round */
    WEYL_1 = 0xBB67AE85,
    FACTOR_0 = 0xD2511F53,
    FACTOR_1 = 0xCD9E8D57,
};
enum { ROUNDS = 10 };

void dpt_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)FACTOR_0 * c0;
        const uint64_t p1 = (uint64_t)FACTOR_1 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

enum { DRAWS = 32 };

DPT_INLINE void multiply(uint32_t factor, const uint32_t word[DRAWS], uint32_t high[DRAWS],
                         uint32_t low[DRAWS])
{
    /* Two loops: so each becomes one product of vectors. */
    for (int i = 0; i < DRAWS; i++)
        high[i] = (uint32_t)((uint64_t)factor * word[i] >> 32);
    for (int i = 0; i < DRAWS; i++)
        low[i] = factor * word[i];
}

/* dpt_philox of DRAWS counters that differ in their lower half: at first, at + 1, … A quarter of
 * its time each. */
DPT_VECTOR static void philox_run(const uint32_t key[2], uint64_t at, uint64_t above,
                                  uint32_t *restrict out)
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0[DRAWS], c1[DRAWS], c2[DRAWS], c3[DRAWS];

    for (int i = 0; i < DRAWS; i++) {
        const uint64_t below = at + (uint64_t)i;

        c0[i] = (uint32_t)below;
        c1[i] = (uint32_t)(below >> 32);
        c2[i] = (uint32_t)above;
        c3[i] = (uint32_t)(above >> 32);
    }
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t high0[DRAWS], low0[DRAWS], high1[DRAWS], low1[DRAWS];

        multiply(FACTOR_0, c0, high0, low0);
        multiply(FACTOR_1, c2, high1, low1);
        for (int i = 0; i < DRAWS; i++) {
            c0[i] = high1[i] ^ c1[i] ^ k0;
            c2[i] = high0[i] ^ c3[i] ^ k1;
            c1[i] = low1[i];
            c3[i] = low0[i];
        }
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    for (int i = 0; i < DRAWS; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

DPT_INLINE uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t dpt_mix64(uint64_t x)
{
    return mix(x);
}

/* Mixed, so that neighbouring seeds and streams share no key and no pattern. */
static void make_key(uint64_t seed, enum dpt_random_stream stream, uint32_t key[2])
{
    const uint64_t mixed = dpt_mix64(seed + golden * (uint64_t)stream);

    key[0] = (uint32_t)mixed;
    key[1] = (uint32_t)(mixed >> 32);
}

void dpt_random4(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b,
                 uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)b, (uint32_t)(b >> 32), (uint32_t)a,
                                 (uint32_t)(a >> 32)};
    uint32_t key[2];

    make_key(seed, stream, key);
    dpt_philox(key, counter, out);
}

void dpt_random4_run(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b, size_t n,
                     uint32_t *out)
{
    uint32_t key[2];

    make_key(seed, stream, key);
    for (; n >= DRAWS; n -= DRAWS, b += DRAWS, out += 4 * DRAWS)
        philox_run(key, b, a, out);
    for (; n > 0; n--, b++, out += 4)
        dpt_random4(seed, stream, a, b, out);
}

uint64_t dpt_random64(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b)
{
    uint32_t word[4];

    dpt_random4(seed, stream, a, b, word);
    return (uint64_t)word[1] << 32 | word[0];
}

typedef void (*transform)(const uint32_t word[4], float value[4]);

static void to_uniform(const uint32_t word[4], float value[4])
{
    for (int k = 0; k < 4; k++)
        value[k] = (float)(word[k] >> 8) * 0x1p-24f;
}

static void to_normal(const uint32_t word[4], float value[4])
{
    for (int k = 0; k < 4; k += 2) {
        const double u = ((double)word[k] + 1.0) * 0x1p-32; /* in (0, 1]: the logarithm is finite */
        const double angle = 2.0 * M_PI * 0x1p-32 * (double)word[k + 1];
        const double radius = sqrt(-2.0 * log(u));

        value[k] = (float)(radius * cos(angle));
        value[k + 1] = (float)(radius * sin(angle));
    }
}

/* Elements first ... first+n-1 of the sequence of blocks of four, so that an element never depends
 * on where one begins. */
static void fill(transform make, uint64_t seed, enum dpt_random_stream stream, uint64_t a,
                 uint64_t first, size_t n, float *out)
{
    uint32_t word[4];
    float value[4];

    while (n > 0) {
        const unsigned skip = (unsigned)(first % 4);
        size_t take = 4 - skip;

        if (take > n)
            take = n;
        dpt_random4(seed, stream, a, first / 4, word);
        make(word, value);
        for (size_t k = 0; k < take; k++)
            out[k] = value[skip + k];
        out += take;
        first += take;
        n -= take;
    }
}

void dpt_random_uniform(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t first,
                        size_t n, float *out)
{
    fill(to_uniform, seed, stream, a, first, n, out);
}

void dpt_random_normal(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t first,
                       size_t n, float *out)
{
    fill(to_normal, seed, stream, a, first, n, out);
}

enum { PAIRS = DPT_NORMAL_BLOCK / 2 };

/* sqrt(-2 ln u) of u = (word / 2^8 + 1) / 2^24, in (0, 1]: the logarithm is Cephes' logf (Moshier
 * 1989), of 2^e m with m from 1/sqrt(2) to sqrt(2). */
DPT_INLINE float radius_of(uint32_t word)
{
    union {
        float value;
        uint32_t bits;
    } m = {.value = (float)(int32_t)((word >> 8) + 1) * 0x1p-24F};
    const int32_t exponent = (int32_t)(m.bits >> 23) - 127;
    float e, x, z, y;
    bool large;

    m.bits = (m.bits & 0x7FFFFF) | 0x3F800000;
    large = m.value > 1.41421356F;
    e = (float)(exponent + large);
    x = m.value * (large ? 0.5F : 1.0F) - 1;
    z = x * x;
    y = 7.0376836292e-2F * x - 1.1514610310e-1F;
    y = y * x + 1.1676998740e-1F;
    y = y * x - 1.2420140846e-1F;
    y = y * x + 1.4249322787e-1F;
    y = y * x - 1.6668057665e-1F;
    y = y * x + 2.0000714765e-1F;
    y = y * x - 2.4999993993e-1F;
    y = y * x + 3.3333331174e-1F;
    y = y * x * z - 0.5F * z + x + e * 0.693147181F;
    return sqrtf(y < 0 ? -2 * y : 0);
}

/* Cosine and sine of an angle whose quarter the word's upper two bits say, and the others where it
 * lies in that, from -1/8 to 1/8 of a turn; Cephes' polynomials. */
DPT_INLINE void direction_of(uint32_t word, float *right, float *up)
{
    const uint32_t quarter = word >> 30;
    const float x = ((float)(int32_t)(word << 2 >> 8) * 0x1p-24F - 0.5F) * 1.57079633F, z = x * x;
    const float sine =
        ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * x + x;
    const float cosine =
        ((2.4433157118e-5F * z - 1.3887316255e-3F) * z + 4.1666645683e-2F) * z * z - 0.5F * z + 1;
    const float along = (quarter & 1) != 0 ? sine : cosine;
    const float across = (quarter & 1) != 0 ? cosine : sine;

    *right = ((quarter + 1) & 2) != 0 ? -along : along;
    *up = (quarter & 2) != 0 ? -across : across;
}

/* The first half of the words are for the radii. */
DPT_VECTOR static void make_normals(const uint32_t *restrict word, float *restrict out)
{
    float radius[PAIRS], right[PAIRS], up[PAIRS];

    for (int i = 0; i < PAIRS; i++)
        radius[i] = radius_of(word[i]);
    for (int i = 0; i < PAIRS; i++)
        direction_of(word[PAIRS + i], &right[i], &up[i]);
    for (int i = 0; i < PAIRS; i++) {
        out[i] = radius[i] * right[i];
        out[PAIRS + i] = radius[i] * up[i];
    }
}

void dpt_random_normal_block(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b,
                             float out[DPT_NORMAL_BLOCK])
{
    uint32_t word[DPT_NORMAL_BLOCK];

    dpt_random4_run(seed, stream, a, b, DPT_NORMAL_DRAWS, word);
    make_normals(word, out);
}

/* The smallest s with s * s >= n. n > 0. */
static uint64_t root_above(uint64_t n)
{
    uint64_t s = (uint64_t)sqrt((double)n);

    while (s > 0 && (unsigned __int128)s * s >= n)
        s--;
    while ((unsigned __int128)s * s < n)
        s++;
    return s;
}

/* A number below `limit`, at most 2^32, from a random word, without a division: the upper half of
 * their product, from factors that vector units can multiply. */
DPT_INLINE uint64_t scale(uint64_t word, uint64_t limit)
{
    const uint64_t high = (word >> 32) * limit, low = ((word & UINT32_MAX) * limit) >> 32;

    return (high + low) >> 32;
}

/*
 * Positions are pairs (left < rows, right < columns); a round adds a keyed function of one half to
 * the other, modulo its size. rows x columns exceeds n by less than rows, so walking on from an
 * image outside takes a step or two. Small domains get more rounds: their round functions have few
 * values each, and come near to a random permutation more slowly.
 */
struct permutation {
    uint64_t n, rows, columns, key[2];
    int rounds;
};

static struct permutation permutation(uint64_t seed, enum dpt_random_stream stream, uint64_t a,
                                      uint64_t n)
{
    const uint64_t rows = root_above(n);
    uint32_t word[4];

    dpt_random4(seed, stream, a, 0, word);
    return (struct permutation){
        .n = n,
        .rows = rows,
        .columns = (n + rows - 1) / rows,
        .key = {(uint64_t)word[1] << 32 | word[0], (uint64_t)word[3] << 32 | word[2]},
        .rounds = n < 1024 ? 24 : 8,
    };
}

/* Two rounds. */
DPT_INLINE void stir(const struct permutation *p, int round, uint64_t *left, uint64_t *right)
{
    *left += scale(mix(*right + p->key[0] + golden * (uint64_t)round), p->rows);
    *left -= *left >= p->rows ? p->rows : 0;
    *right += scale(mix(*left + p->key[1] + golden * (uint64_t)round), p->columns);
    *right -= *right >= p->columns ? p->columns : 0;
}

static uint64_t walk(const struct permutation *p, uint64_t i)
{
    do {
        uint64_t left = i % p->rows, right = i / p->rows;

        for (int round = 0; round < p->rounds; round += 2)
            stir(p, round, &left, &right);
        i = right * p->rows + left;
    } while (i >= p->n);
    return i;
}

uint64_t dpt_permute(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t n,
                     uint64_t i)
{
    const struct permutation p = permutation(seed, stream, a, n);

    return walk(&p, i);
}

enum { LANES = 16 };

DPT_VECTOR static void stir_lanes(const struct permutation *p, uint64_t *restrict left,
                                  uint64_t *restrict right)
{
    const struct permutation own = *p;

    for (int round = 0; round < own.rounds; round += 2)
        for (int lane = 0; lane < LANES; lane++)
            stir(&own, round, &left[lane], &right[lane]);
}

void dpt_permute_run(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t n,
                     uint64_t first, size_t count, uint64_t *image)
{
    const struct permutation p = permutation(seed, stream, a, n);
    uint64_t left[LANES], right[LANES];

    for (; count >= LANES; count -= LANES, image += LANES) {
        for (int lane = 0; lane < LANES; lane++, first++) {
            left[lane] = first % p.rows;
            right[lane] = first / p.rows;
        }
        stir_lanes(&p, left, right);
        for (int lane = 0; lane < LANES; lane++) {
            const uint64_t i = right[lane] * p.rows + left[lane];

            image[lane] = i < n ? i : walk(&p, i);
        }
    }
    for (size_t k = 0; k < count; k++)
        image[k] = walk(&p, first + k);
}

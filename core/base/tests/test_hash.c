#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/isa.h"
#include "core/base/rng.h"

enum { N = 300 };

/* The check value of CRC-32/ISO-HDLC in the catalogue of CRC algorithms, and the definition bit by
 * bit. */
static uint32_t slow_crc(const unsigned char *bytes, size_t n)
{
    uint32_t crc = 0xFFFFFFFF;

    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

static void crc_is_the_known_one(void **state)
{
    unsigned char bytes[N];

    (void)state;
    assert_int_equal(dpt_crc32(0, "123456789", 9), 0xCBF43926);
    assert_int_equal(dpt_crc32(0, "", 0), 0);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (unsigned char)dpt_random64(1, DPT_RANDOM_SYNTHETIC, 0, i);
    for (size_t n = 0; n <= N; n++) {
        const uint32_t first = dpt_crc32(0, bytes, n);

        assert_int_equal(first, slow_crc(bytes, n));
        assert_int_equal(dpt_crc32(first, bytes + n, N - n), slow_crc(bytes, N));
    }
}

static void random_floats(float *x, uint64_t seed)
{
    dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 0, 0, N, x);
}

/* The sum's definition, one element at a time, so that no vector is involved. */
static uint64_t by_elements(const float *x, size_t n, uint64_t first)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += dpt_hash_floats(x + i, 1, first + i);
    return sum;
}

static void pieces_add_up(void **state)
{
    float x[N];

    (void)state;
    random_floats(x, 1);
    for (size_t n = 0; n <= N; n++)
        assert_true(dpt_hash_floats(x, n, 5) == by_elements(x, n, 5));
    for (size_t from = 0; from < 40; from++)
        for (size_t cut = from; cut <= N; cut += 7)
            assert_true(dpt_hash_floats(x + from, N - from, 1000 + from) ==
                        dpt_hash_floats(x + from, cut - from, 1000 + from) +
                            dpt_hash_floats(x + cut, N - cut, 1000 + cut));
}

static void flip(float *x, int bit)
{
    uint32_t bits;

    memcpy(&bits, x, sizeof bits);
    bits ^= UINT32_C(1) << bit;
    memcpy(x, &bits, sizeof bits);
}

static void any_single_bit_shows(void **state)
{
    float x[N];
    uint64_t want;

    (void)state;
    random_floats(x, 2);
    want = dpt_hash_floats(x, N, 0);
    for (size_t i = 0; i < N; i++) {
        for (int bit = 0; bit < 32; bit++) {
            flip(x + i, bit);
            assert_true(dpt_hash_floats(x, N, 0) != want);
            flip(x + i, bit);
        }
    }
    assert_true(dpt_hash_floats(x, N, 0) == want);
}

/* One bit flipped in two places, two values that change places, and a shift of all. */
static void order_and_pairs_show(void **state)
{
    float x[N];
    uint64_t want;

    (void)state;
    random_floats(x, 3);
    want = dpt_hash_floats(x, N, 0);
    for (size_t i = 0; i < N; i++) {
        const size_t j = (i * 7 + 1) % N;
        const float keep = x[i];

        if (i == j)
            continue;
        for (int bit = 0; bit < 32; bit++) {
            flip(x + i, bit);
            flip(x + j, bit);
            assert_true(dpt_hash_floats(x, N, 0) != want);
            flip(x + i, bit);
            flip(x + j, bit);
        }
        x[i] = x[j];
        x[j] = keep;
        assert_true(dpt_hash_floats(x, N, 0) != want);
        x[j] = x[i];
        x[i] = keep;
    }
    assert_true(dpt_hash_floats(x, N, 1) != want);
    assert_true(dpt_hash_floats(x, N, UINT64_C(1) << 33) != want);
}

static void bits_count_not_values(void **state)
{
    const float zero = 0.0f, minus = -0.0f;
    float nan = NAN, other = NAN;

    (void)state;
    flip(&other, 3);
    assert_true(dpt_hash_floats(&zero, 1, 0) != dpt_hash_floats(&minus, 1, 0));
    assert_true(dpt_hash_floats(&nan, 1, 0) == dpt_hash_floats(&nan, 1, 0));
    assert_true(dpt_hash_floats(&nan, 1, 0) != dpt_hash_floats(&other, 1, 0));
}

/* Each instruction set has a loop of its own. */
static void instruction_sets_agree(void **state)
{
    float x[N];

    (void)state;
    random_floats(x, 9);
    const uint64_t hash = dpt_hash_floats(x, N, 3);
    const uint32_t crc = dpt_crc32(0, x, sizeof x);

    for (int isa = DPT_ISA_COUNT - 1; isa >= DPT_ISA_PLAIN; isa--) {
        dpt_isa_limit((enum dpt_isa)isa);
        assert_true(dpt_isa_here() <= (enum dpt_isa)isa && dpt_isa_here() <= dpt_isa_machine());
        assert_true(dpt_hash_floats(x, N, 3) == hash && dpt_crc32(0, x, sizeof x) == crc);
    }
    dpt_isa_limit(DPT_ISA_COUNT - 1);
}

/* The vectors of the authors: key 00 01 ... 0f, texts 00 01 02 ... of each length. */
static void siphash_is_the_known_one(void **state)
{
    static const uint64_t want[] = {
        UINT64_C(0x726fdb47dd0e0e31), UINT64_C(0x74f839c593dc67fd), UINT64_C(0x0d6c8009d9a94f5a),
        UINT64_C(0x85676696d7fb7e2d), UINT64_C(0xcf2794e0277187b7), UINT64_C(0x18765564cd99a68d),
        UINT64_C(0xcbc9466e58fee3ce), UINT64_C(0xab0200f58b01d137), UINT64_C(0x93f5f5799a932462),
    };
    uint8_t key[DPT_SIPHASH_KEY], text[15];

    (void)state;
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)i;
    for (size_t n = 0; n < sizeof want / sizeof want[0]; n++)
        assert_true(dpt_siphash(key, text, n) == want[n]);
    assert_true(dpt_siphash(key, text, sizeof text) == UINT64_C(0xa129ca6149be45e5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_is_the_known_one),     cmocka_unit_test(pieces_add_up),
        cmocka_unit_test(any_single_bit_shows),     cmocka_unit_test(order_and_pairs_show),
        cmocka_unit_test(bits_count_not_values),    cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(siphash_is_the_known_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * rng: random numbers as a pure function of a key and a counter.
 *
 * There is no generator state: a draw is named by what it is for (seed, epoch or step, sample,
 * layer, element), so it does not depend on ranks, threads or order, and resuming needs nothing
 * saved. Philox-4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
 * SC'11; checked against that paper's known answers.
 */
#ifndef DPT_BASE_RNG_H
#define DPT_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* What a random number is drawn for. It is part of the key, so that no two uses share a random
 * stream. Values are part of the format: never renumber. */
enum dpt_random_stream {
    DPT_RANDOM_INIT = 1,      /* a: tensor number,     b: 4 elements at a time */
    DPT_RANDOM_SHUFFLE = 2,   /* a: epoch,             b: 0 (the keys of the permutation) */
    DPT_RANDOM_DROPOUT = 3,   /* a: step << 16 | node, b: sample << 24 | 4 elements at a time */
    DPT_RANDOM_SYNTHETIC = 4, /* a: what,              b: sample or element */
    DPT_RANDOM_HOLDOUT = 5,   /* a: 0,                 b: group */
    DPT_RANDOM_AUGMENT = 6,
    DPT_RANDOM_SPLIT = 7,       /* a: class,             b: 0 (the keys of the permutation) */
    DPT_RANDOM_IMPORTANCE = 10, /* a: repeat << 32 | column, b: 0 (the keys of the permutation) */
    DPT_RANDOM_PARTNER = 9,     /* a: epoch and step,  b: 0 (the keys of the permutation) */
    DPT_RANDOM_TRANSFORM = 8,   /* a: epoch << 8 | which, b: sample << 24 | 4 numbers at a time */
};

/* Philox-4x32-10 of a 64-bit key and a 128-bit counter (c[0] is the least significant word). */
void dpt_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* Four 32-bit words for (seed, stream, a, b). */
void dpt_random4(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b,
                 uint32_t out[4]);

/* The words of dpt_random4 for b, b + 1, … b + n - 1, one after another: 4 n words, several
 * computed at a time. */
void dpt_random4_run(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b, size_t n,
                     uint32_t *out);

/* One 64-bit word for (seed, stream, a, b). */
uint64_t dpt_random64(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b);

/* n uniform numbers in [0, 1) with 24 random bits each, elements first ... first+n-1 of the
 * sequence (seed, stream, a). */
void dpt_random_uniform(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t first,
                        size_t n, float *out);

/* n standard normal numbers of the same elements (Box & Muller 1958, in double precision, rounded
 * to float). */
void dpt_random_normal(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t first,
                       size_t n, float *out);

/*
 * A block of standard normal numbers from the words of dpt_random4 for b, b + 1, … b +
 * DPT_NORMAL_DRAWS - 1: Box & Muller's in floats, several at a time, a tenth of the time. They are
 * within 1e-6 of the exact ones and at most 5.8, and the same bits on every machine, since they are
 * made by additions, multiplications and roots alone.
 */
enum { DPT_NORMAL_BLOCK = 128, DPT_NORMAL_DRAWS = DPT_NORMAL_BLOCK / 4 };
void dpt_random_normal_block(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t b,
                             float out[DPT_NORMAL_BLOCK]);

/* splitmix64's finaliser (Steele, Lea, Flood 2014): a bijection that mixes all bits. */
uint64_t dpt_mix64(uint64_t x);

/*
 * A permutation of 0 … n-1, any element at once, without a table: the image of i under (seed,
 * stream, a). A Feistel network with cycle walking (Black & Rogaway 2002). n > 0, 0 <= i < n.
 */
uint64_t dpt_permute(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t n,
                     uint64_t i);
/* dpt_permute of first, first + 1, … first + count - 1, several computed at a time. */
void dpt_permute_run(uint64_t seed, enum dpt_random_stream stream, uint64_t a, uint64_t n,
                     uint64_t first, size_t count, uint64_t *image);

#endif

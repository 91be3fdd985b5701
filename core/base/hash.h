/*
 * hash: checksums of files and fingerprints of weights.
 */
#ifndef DPT_BASE_HASH_H
#define DPT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 (ISO 3309, as zlib and Python's zlib.crc32), continued from `crc` (0 to begin). For what
 * lies in files. */
uint32_t dpt_crc32(uint32_t crc, const void *bytes, size_t n);

/* The CRC-32 of A followed by B, from crc(A), crc(B) and the length of B. */
uint32_t dpt_crc32_join(uint32_t first, uint32_t second, uint64_t second_length);

/*
 * Fingerprint of n floats by their bits: the sum modulo 2^64 of mix(bits, index) over all elements.
 * `first` is the index of x[0], so parts of an array can be hashed by several threads, or on a
 * device, in any order, and added.
 */
uint64_t dpt_hash_floats(const float *x, size_t n, uint64_t first);

enum { DPT_SIPHASH_KEY = 16 };

/*
 * SipHash-2-4 of n bytes: who does not know the key cannot make it, however many others were seen
 * (Aumasson, Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012).
 */
uint64_t dpt_siphash(const uint8_t key[DPT_SIPHASH_KEY], const void *bytes, size_t n);

#endif

/*
 * vector: loops that are worth several instruction sets.
 *
 * DPT_VECTOR before a function's definition has it compiled for AVX-512, AVX2 and the baseline; the
 * program chooses when it starts. Elementwise loops give the same bits in all of them: nothing is
 * contracted (-ffp-contract=off), and sums keep the order that the source gives them. So the limit
 * of isa.h, which is known only after the choice was made, need not reach them.
 */
#ifndef DPT_BASE_VECTOR_H
#define DPT_BASE_VECTOR_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__)
#define DPT_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DPT_VECTOR
#endif

#define DPT_INLINE static inline __attribute__((always_inline))

/* Loops over registers have to disappear, or the registers become memory. */
#if defined(__clang__)
#define DPT_UNROLL _Pragma("unroll")
#else
#define DPT_UNROLL _Pragma("GCC unroll 16")
#endif

#endif

/*
 * isa: the instruction sets that results depend on, each one holding those of its kind of CPU
 * before it.
 *
 * The order in which a kernel adds, and whether it rounds between a product and a sum, follow from
 * its set: so all code that chooses a kernel by the machine asks dpt_isa_here, and one limit holds
 * for all of it. Loops under DPT_VECTOR (vector.h) give the same bits in every set and need no
 * limit.
 */
#ifndef DPT_BASE_ISA_H
#define DPT_BASE_ISA_H

#include "core/base/str.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define DPT_X86 1
#else
#define DPT_X86 0
#endif
#if defined(__aarch64__) && defined(__ARM_NEON)
#define DPT_ARM64 1
#else
#define DPT_ARM64 0
#endif

/* neon: arm64's, which every such CPU has and no other one, with FMA. The others are those of
 * x86-64. avx2: with FMA; avx512: F, DQ, BW, VL; the sets after it only make a difference to
 * libraries. */
#define DPT_ISA_SETS(X)                                                                            \
    X(DPT_ISA_NEON, "neon")                                                                        \
    X(DPT_ISA_AVX2, "avx2")                                                                        \
    X(DPT_ISA_AVX512, "avx512")                                                                    \
    X(DPT_ISA_AVX512_BF16, "avx512_bf16")                                                          \
    X(DPT_ISA_AMX, "amx")

enum dpt_isa {
    DPT_ISA_PLAIN, /* whatever the compiler makes of C */
    DPT_ISA_SETS(DPT_LIST_NAME) DPT_ISA_COUNT,
    DPT_ISA_OWN = DPT_ISA_AVX512 /* the last for which kernels of our own are compiled */
};

/* "plain", "avx2", ... */
extern const char *const dpt_isa_names[DPT_ISA_COUNT];

/* What this machine has. */
enum dpt_isa dpt_isa_machine(void);
/* What this process uses of it: as far as the limit lets it; without one all but AVX-512 BF16 on
 * Intel's CPUs, which multiplies at half of fp32's speed there (a Sapphire Rapids without AMX: 73
 * GFLOP/s beside 130 to 190). */
enum dpt_isa dpt_isa_here(void);
/* Lets the whole process use this instruction set and those below it, as a library's own limit
 * does. Call it before kernels are chosen. */
void dpt_isa_limit(enum dpt_isa most);

#endif

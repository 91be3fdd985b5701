/*
 * isa: the instruction sets for which kernels of our own are compiled, each one holding those
 * before it.
 */
#ifndef DPT_BACKEND_CPU_ISA_H
#define DPT_BACKEND_CPU_ISA_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define DPT_X86 1
#else
#define DPT_X86 0
#endif

enum dpt_isa {
    DPT_ISA_PLAIN,  /* whatever the compiler makes of C */
    DPT_ISA_AVX2,   /* with FMA */
    DPT_ISA_AVX512, /* F, DQ, BW, VL */
    DPT_ISA_COUNT
};

/* Of this machine. */
static inline enum dpt_isa dpt_isa_here(void)
{
#if DPT_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return DPT_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return DPT_ISA_AVX2;
#endif
    return DPT_ISA_PLAIN;
}

#endif

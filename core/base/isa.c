#include "core/base/isa.h"

#include <stdatomic.h>

const char *const dpt_isa_names[DPT_ISA_COUNT] = {"plain", DPT_ISA_SETS(DPT_LIST_WORD)};

/* A property of the process like its locale: kernels are chosen in places that know no job.
 * DPT_ISA_COUNT: none was set. */
static _Atomic int limit = DPT_ISA_COUNT;

enum dpt_isa dpt_isa_machine(void)
{
#if DPT_X86
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return DPT_ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return DPT_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return DPT_ISA_AVX512;
#if !defined(__clang__) && __GNUC__ >= 12
    if (__builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
        __builtin_cpu_supports("amx-bf16"))
        return DPT_ISA_AMX;
#endif
    return DPT_ISA_AVX512_BF16;
#elif DPT_ARM64
    return DPT_ISA_NEON;
#else
    return DPT_ISA_PLAIN;
#endif
}

/* The fastest of the machine's sets. */
static enum dpt_isa fastest_of(enum dpt_isa machine)
{
#if DPT_X86
    if (machine == DPT_ISA_AVX512_BF16 && __builtin_cpu_is("intel"))
        return DPT_ISA_AVX512;
#endif
    return machine;
}

enum dpt_isa dpt_isa_here(void)
{
    const enum dpt_isa machine = dpt_isa_machine();
    const int most = atomic_load_explicit(&limit, memory_order_relaxed);

    if (most == DPT_ISA_COUNT)
        return fastest_of(machine);
    return (int)machine < most ? machine : (enum dpt_isa)most;
}

void dpt_isa_limit(enum dpt_isa most)
{
    atomic_store_explicit(&limit, (int)most, memory_order_relaxed);
}

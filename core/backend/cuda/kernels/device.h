/*
 * device: the macros and functions in which kernels.cu is written, so that nvcc compiles it as CUDA
 * and a C compiler, after tests/emulate.h, as C. For kernels.cu and the files that it includes
 * only.
 *
 * Vectors are arrays of 4 or 8 floats that stay in registers, since every loop over them is
 * unrolled.
 */
#ifndef DPT_BACKEND_CUDA_DEVICE_H
#define DPT_BACKEND_CUDA_DEVICE_H

#include "core/backend/cuda/kernels/kernels.h"

#ifdef __CUDACC__
/* Three blocks per multiprocessor allow 80 registers per thread; without that bound the assembler
 * chooses fewer registers and spills. */
#define KERNEL extern "C" __global__ void __launch_bounds__(DPT_CUDA_THREADS, 3)
/* Sums over rows have two blocks a multiprocessor (DPT_CUDA_SUM_BLOCKS), so 128 registers. */
#define KERNEL_OF_SUMS         extern "C" __global__ void __launch_bounds__(DPT_CUDA_THREADS, 2)
#define DEVICE                 static __device__ __forceinline__
#define SHARED                 __shared__
#define UNROLL                 _Pragma("unroll")
#define FETCH(type, at)        (*(const type *)(at))
#define STORE(type, at, value) (*(type *)(at) = (value))
/* Reads what another block wrote, past this multiprocessor's own cache. */
#define FRESH(at)           __ldcg(at)
#define SHUFFLE(v, lane)    __shfl_xor_sync(0xffffffffu, v, lane)
#define MEET()              __syncthreads()
#define FLUSH()             __threadfence()
#define INCREMENT(at, last) atomicInc(at, last)
#define ADD_UP(at, v)       atomicAdd((unsigned long long *)(at), (unsigned long long)(v))
#define LOWER(at, v)        atomicMin((unsigned long long *)(at), (unsigned long long)(v))
#define BITS(f)             __float_as_uint(f)
#define FLOAT(u)            __uint_as_float(u)
#define QUIET_NAN           __int_as_float(0x7fc00000)
#endif

/* IEEE half: rounds to nearest, ties to even; too large values become infinite, denormals are kept,
 * and a NaN becomes 0x7fff, or 0x7fffffff as a float. CUDA has instructions for it; the C code does
 * the same. */
typedef uint16_t h16;

#ifdef __CUDACC__
DEVICE float h16_to_float(uint32_t bits)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)bits));
    return f;
}

DEVICE uint32_t float_to_h16(float f)
{
    uint16_t bits;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
    return bits;
}

/* Converts two floats, the first one into the lower half. */
DEVICE uint32_t floats_to_h16(float low, float high)
{
#if __CUDA_ARCH__ >= 800
    uint32_t both;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return float_to_h16(low) | float_to_h16(high) << 16;
#endif
}
#else
DEVICE float h16_to_float(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;

    if (size > 0x7c00u)
        return FLOAT(0x7fffffffu);
    if (size == 0x7c00u)
        return FLOAT(sign | 0x7f800000u);
    /* The exponents' biases differ by 112; the multiplication is exact for denormals, too. */
    return FLOAT(sign | size << 13) * 0x1p112f;
}

DEVICE uint32_t float_to_h16(float f)
{
    const uint32_t bits = BITS(f), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;

    if (size > 0x7f800000u)
        return 0x7fffu;
    if (size >= 0x47800000u) /* 65536 */
        return sign | 0x7c00u;
    /* Below 2^-14 halves are 2^-24 apart, as are floats in [0.5, 1], so the addition of 0.5 rounds
     * to them. */
    if (size < 0x38800000u)
        return sign | (BITS(FLOAT(size) + 0.5f) - 0x3f000000u);
    return sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
}

DEVICE uint32_t floats_to_h16(float low, float high)
{
    return float_to_h16(low) | float_to_h16(high) << 16;
}
#endif

/* Appends the tensors' type, T, to a kernel's name: dpt_cuda_relu_f32. */
#define PASTE_(name, t) name##_##t
#define PASTE(name, t)  PASTE_(name, t)
#define NAME(name)      PASTE(dpt_cuda_##name, T)

enum { WARP = 32, WARPS = DPT_CUDA_THREADS / WARP };

/* bfloat16 is the upper half of a float's bits. */
typedef uint16_t b16;

DEVICE float b16_to_float(uint32_t bits)
{
    return FLOAT(bits << 16);
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
DEVICE uint32_t float_to_b16(float f)
{
    const uint32_t bits = BITS(f);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

DEVICE uint32_t floats_to_b16(float low, float high)
{
    return float_to_b16(low) | float_to_b16(high) << 16;
}

DEVICE bool is_finite(float f)
{
    return (BITS(f) & 0x7f800000u) != 0x7f800000u;
}

/* The thread's number in the launch, which has less than 2^31 threads. */
DEVICE uint32_t thread_number(void)
{
    return blockIdx.x * (uint32_t)DPT_CUDA_THREADS + threadIdx.x;
}

DEVICE void unpack_f32(float4 four, float *v)
{
    v[0] = four.x;
    v[1] = four.y;
    v[2] = four.z;
    v[3] = four.w;
}

DEVICE void load_f32(const void *at, float *v)
{
    unpack_f32(FETCH(float4, at), v);
}

DEVICE void store_f32(void *at, const float *v)
{
    float4 four;

    four.x = v[0];
    four.y = v[1];
    four.z = v[2];
    four.w = v[3];
    STORE(float4, at, four);
}

/* Loads and stores of eight 16-bit elements. A loop that keeps several loads in flight fetches all
 * of them first and unpacks them then. */
#define PACKED(type)                                                                               \
    DEVICE void unpack_##type(uint4 eight, float *v)                                               \
    {                                                                                              \
        const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};                            \
                                                                                                   \
        UNROLL                                                                                     \
        for (int k = 0; k < 4; k++) {                                                              \
            v[2 * k] = type##_to_float(words[k] & 0xffffu);                                        \
            v[2 * k + 1] = type##_to_float(words[k] >> 16);                                        \
        }                                                                                          \
    }                                                                                              \
    DEVICE void load_##type(const void *at, float *v)                                              \
    {                                                                                              \
        unpack_##type(FETCH(uint4, at), v);                                                        \
    }                                                                                              \
    DEVICE void store_##type(void *at, const float *v)                                             \
    {                                                                                              \
        uint4 eight;                                                                               \
                                                                                                   \
        eight.x = floats_to_##type(v[0], v[1]);                                                    \
        eight.y = floats_to_##type(v[2], v[3]);                                                    \
        eight.z = floats_to_##type(v[4], v[5]);                                                    \
        eight.w = floats_to_##type(v[6], v[7]);                                                    \
        STORE(uint4, at, eight);                                                                   \
    }
PACKED(b16)
PACKED(h16)
#undef PACKED

/* Sums over the lanes of a warp, always in the same order; each lane gets the sum. */
DEVICE double warp_sum(double v)
{
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        v += SHUFFLE(v, apart);
    return v;
}

/* The sum over a block, given to all its threads. shared: WARPS doubles of shared memory. */
DEVICE double block_sum(double v, double *shared)
{
    const uint32_t lane = threadIdx.x % WARP;

    v = warp_sum(v);
    MEET();
    if (lane == 0)
        shared[threadIdx.x / WARP] = v;
    MEET();
    return warp_sum(lane < WARPS ? shared[lane] : 0.0);
}

/* Whether this block is the last of `blocks` to arrive here; it then sees what the others have
 * written. One thread's fences are enough: fences and barriers are cumulative (PTX ISA, "Memory
 * Consistency Model"), and one is much faster than a fence of every thread. */
DEVICE bool last_block(uint32_t *counter, uint32_t blocks)
{
    SHARED uint32_t arrived;

    MEET();
    if (blocks == 1)
        return true;
    if (threadIdx.x == 0) {
        FLUSH();
        arrived = INCREMENT(counter, blocks - 1);
        FLUSH();
    }
    MEET();
    return arrived == blocks - 1;
}

/* The tensor that a block of to_layout or from_layout converts, of n in a list: the last one that
 * does not begin after it. *thread: the thread's number among the tensor's. */
DEVICE struct dpt_cuda_layout layout_of(const struct dpt_cuda_layout *list, int32_t n,
                                        uint32_t *thread)
{
    const uint32_t block = list[0].block + blockIdx.x;
    int32_t tensor = 0, end = n;

    while (end - tensor > 1) {
        const int32_t middle = (tensor + end) / 2;

        if (list[middle].block <= block)
            tensor = middle;
        else
            end = middle;
    }
    *thread = (block - list[tensor].block) * (uint32_t)DPT_CUDA_THREADS + threadIdx.x;
    return list[tensor];
}

/* Copies a part of a range; block: the block's number among n x blocks. */
DEVICE void feed_block(const struct dpt_cuda_feed_args *a, uint32_t block)
{
    const struct dpt_cuda_feed *range = &a->feed[block / (uint32_t)a->blocks];
    const char *from = (const char *)range->from;
    char *to = (char *)range->to;
    const int64_t first = block % (uint32_t)a->blocks * DPT_CUDA_THREADS + threadIdx.x;
    const int64_t stride = (int64_t)a->blocks * DPT_CUDA_THREADS;
    const int64_t vectors = ((uintptr_t)from | (uintptr_t)to) % 16 == 0 ? range->bytes / 16 : 0;

    for (int64_t i = first; i < vectors; i += stride) {
        const uint4 v = FETCH(uint4, from + 16 * i);

        STORE(uint4, to + 16 * i, v);
    }
    for (int64_t i = 4 * vectors + first; i < range->bytes / 4; i += stride)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

/* splitmix64's finaliser and Philox-4x32-10: core/base/rng.c. */
DEVICE uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

DEVICE void philox(uint64_t key, uint64_t low, uint64_t high, uint32_t *c)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    c[0] = (uint32_t)low;
    c[1] = (uint32_t)(low >> 32);
    c[2] = (uint32_t)high;
    c[3] = (uint32_t)(high >> 32);
    UNROLL
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];

        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif

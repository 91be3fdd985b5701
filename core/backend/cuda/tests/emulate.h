/*
 * emulate: runs the device's kernels on the host, for tests. emulate.c is compiled once and linked
 * to each program that needs it.
 *
 * Blocks run one after another, forwards or backwards (the results must not depend on it). The
 * threads of a block run one after another too, if they do not wait for each other; else each has a
 * stack of its own and runs until it waits. Beside the results this finds: vectors that are not
 * aligned, and barriers and shuffles that not all threads reach. One thread at a time.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_EMULATE_H
#define DPT_BACKEND_CUDA_TESTS_EMULATE_H

#include <math.h>
#include <string.h>

#include "core/backend/cuda/kernels/kernels.h"

struct emulated_index {
    uint32_t x, y;
};

enum emulated_wait { EMULATED_RUNS, EMULATED_AT_BLOCK, EMULATED_AT_WARP, EMULATED_ENDED };

extern struct emulated_index threadIdx, blockIdx, gridDim;
extern bool emulated_backwards; /* the order of the blocks */
/* How often each thread of any block has read what other blocks wrote. */
extern uint32_t emulated_fresh[DPT_CUDA_THREADS];

/* One launch. */
void dpt_emulate(enum dpt_cuda_kernel kernel, const void *argument);
/* Frees the stacks. A group's teardown for cmocka: state is not looked at. */
int dpt_emulate_end(void **state);

/* Ends the program with a message that names the block and the thread. */
void emulated_fail(const char *what);
/* The calling thread of a block gives way to the others until all have come as far. */
void emulated_until(enum emulated_wait wait);
/* Shows `mine` to the warp, and copies what the thread with this lane shows to `other`. */
void emulated_exchange(const void *mine, void *other, size_t size, uint32_t lane);

static inline const void *emulated_aligned(const void *at, size_t to)
{
    if ((uintptr_t)at % to != 0)
        emulated_fail("a vector is not aligned");
    return at;
}

typedef struct {
    float x, y, z, w;
} float4;
typedef struct {
    uint32_t x, y, z, w;
} uint4;
typedef struct {
    uint32_t x, y;
} uint2;

// clang-format off
#define KERNEL static void
#define KERNEL_OF_SUMS static void
#define DEVICE static inline
#define SHARED static
#define UNROLL
#define FETCH(type, at)                                                                            \
    ({ type fetched; memcpy(&fetched, emulated_aligned(at, sizeof fetched), sizeof fetched); fetched; })
#define STORE(type, at, value)                                                                     \
    do { const type stored = (value);                                                              \
        memcpy((void *)(uintptr_t)emulated_aligned(at, sizeof stored), &stored, sizeof stored); } while (0)
#define FRESH(at) (emulated_fresh[threadIdx.x]++, *(at))
#define SHUFFLE(v, lane)                                                                           \
    ({ __typeof__(v) got; emulated_exchange(&(v), &got, sizeof got, (uint32_t)(lane)); got; })
#define MEET() emulated_until(EMULATED_AT_BLOCK)
#define FLUSH() ((void)0)
#define INCREMENT(at, last)                                                                        \
    ({ const uint32_t old = *(at); *(at) = old >= (last) ? 0 : old + 1; old; })
#define ADD_UP(at, v) (*(at) += (v))
#define LOWER(at, v) (*(at) = *(at) < (uint64_t)(v) ? *(at) : (uint64_t)(v))
#define BITS(f) ({ const float given = (f); uint32_t bits_; memcpy(&bits_, &given, 4); bits_; })
#define FLOAT(u) ({ const uint32_t given = (u); float float_; memcpy(&float_, &given, 4); float_; })
#define QUIET_NAN NAN
// clang-format on

#include "core/backend/cuda/kernels/device.h"

#endif

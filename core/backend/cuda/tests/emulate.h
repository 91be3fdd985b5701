/*
 * emulate: runs the device's kernels on the host, for tests. To be included once in a program,
 * which then has dpt_emulate; it includes kernels.cu.
 *
 * Blocks run one after another, forwards or backwards (what comes out must not depend on it). The
 * threads of a block run one after another too, where they do not wait for each other; else each
 * has a stack of its own and runs until it waits. Beside the results this finds: vectors that are
 * not aligned, and barriers and shuffles that not all threads reach. One thread at a time.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_EMULATE_H
#define DPT_BACKEND_CUDA_TESTS_EMULATE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "core/backend/cuda/kernels.h"

struct emulated_index {
    uint32_t x, y;
};

enum emulated_wait { EMULATED_RUNS, EMULATED_AT_BLOCK, EMULATED_AT_WARP, EMULATED_ENDED };

enum { EMULATED_STACK = 128 << 10, EMULATED_WORD = 8 };

/* Who has a stack. Its kernel begins by a change of contexts; between those that run already a jump
 * is enough, which needs no system call. */
struct emulated_turn {
    ucontext_t context;
    void *jump[5];
    bool runs;
};

/* A block whose threads have stacks. */
struct emulated_block {
    struct emulated_turn scheduler, turn[DPT_CUDA_THREADS];
    enum emulated_wait wait[DPT_CUDA_THREADS];
    /* What the threads of a warp show each other; two rooms in turn, so that nobody writes what
     * another has yet to read. */
    unsigned char shown[2][DPT_CUDA_THREADS][EMULATED_WORD];
    int room[DPT_CUDA_THREADS];
    void (*kernel)(const void *argument);
    const void *argument;
    char *stacks;
};

static struct emulated_index threadIdx, blockIdx, gridDim;
static struct emulated_block emulated;
static bool emulated_backwards; /* the order of the blocks */

static inline void emulated_fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u %u, thread %u)\n", what, blockIdx.x, blockIdx.y,
            threadIdx.x);
    abort();
}

static inline const void *emulated_aligned(const void *at, size_t to)
{
    if ((uintptr_t)at % to != 0)
        emulated_fail("a vector is not aligned");
    return at;
}

/* Does not return. AddressSanitizer would take the stack that is left for one that ends. */
static __attribute__((noinline, no_sanitize_address)) void emulated_go_to(struct emulated_turn *to)
{
    if (to->runs)
        __builtin_longjmp(to->jump, 1);
    to->runs = true;
    setcontext(&to->context);
}

static __attribute__((noinline, no_sanitize_address)) void
emulated_switch(struct emulated_turn *from, struct emulated_turn *to)
{
    if (__builtin_setjmp(from->jump) == 0)
        emulated_go_to(to);
}

static inline void emulated_until(enum emulated_wait wait)
{
    const uint32_t me = threadIdx.x;

    emulated.wait[me] = wait;
    emulated_switch(&emulated.turn[me], &emulated.scheduler);
}

static inline void emulated_exchange(const void *mine, void *other, size_t size, uint32_t lane)
{
    const uint32_t me = threadIdx.x;
    const int room = emulated.room[me] ^= 1;

    memcpy(emulated.shown[room][me], mine, size);
    emulated_until(EMULATED_AT_WARP);
    memcpy(other, emulated.shown[room][me ^ lane], size);
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
#define DEVICE static inline
#define SHARED static
#define UNROLL
#define FETCH(type, at)                                                                            \
    ({ type fetched; memcpy(&fetched, emulated_aligned(at, sizeof fetched), sizeof fetched); fetched; })
#define STORE(type, at, value)                                                                     \
    do { const type stored = (value);                                                              \
        memcpy((void *)(uintptr_t)emulated_aligned(at, sizeof stored), &stored, sizeof stored); } while (0)
#define FRESH(at) (*(at))
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

#include "core/backend/cuda/kernels.cu"

#define X(name, kind, argument, lanes, meets)                                                      \
    static void emulated_##name(const void *given)                                                 \
    {                                                                                              \
        struct dpt_cuda_##argument##_args a;                                                       \
                                                                                                   \
        memcpy(&a, given, sizeof a);                                                               \
        dpt_cuda_##name(a);                                                                        \
    }
DPT_CUDA_KERNELS(X)
#undef X

static const struct {
    void (*run)(const void *argument);
    bool meets;
} emulated_kernels[DPT_CUDA_KERNEL_COUNT] = {
#define X(name, kind, argument, lanes, meets) {emulated_##name, meets},
    DPT_CUDA_KERNELS(X)
#undef X
};

static void emulated_thread(void)
{
    const uint32_t me = threadIdx.x;

    emulated.kernel(emulated.argument);
    emulated.wait[me] = EMULATED_ENDED;
    emulated_go_to(&emulated.scheduler);
}

/* Lets the threads first ... first+n-1 go on where all of them wait for the same. */
static inline bool emulated_release(uint32_t first, uint32_t n, enum emulated_wait what)
{
    uint32_t waiting = 0;

    for (uint32_t t = first; t < first + n; t++)
        waiting += emulated.wait[t] == what;
    if (waiting < n)
        return false;
    for (uint32_t t = first; t < first + n; t++)
        emulated.wait[t] = EMULATED_RUNS;
    return true;
}

/* A stack for a thread, on which the kernel begins. Apart, since getcontext may return twice. */
static __attribute__((noinline)) void emulated_begin(uint32_t thread)
{
    ucontext_t *c = &emulated.turn[thread].context;

    getcontext(c);
    c->uc_stack.ss_sp = emulated.stacks + (size_t)thread * EMULATED_STACK;
    c->uc_stack.ss_size = EMULATED_STACK;
    c->uc_link = NULL;
    makecontext(c, emulated_thread, 0);
    emulated.turn[thread].runs = false;
    emulated.wait[thread] = EMULATED_RUNS;
    emulated.room[thread] = 0;
}

static inline void emulated_meeting_block(void)
{
    emulated.scheduler.runs = true;
    for (uint32_t t = 0; t < DPT_CUDA_THREADS; t++)
        emulated_begin(t);
    for (;;) {
        bool moved = false;
        uint32_t ended = 0;

        for (uint32_t t = 0; t < DPT_CUDA_THREADS; t++) {
            if (emulated.wait[t] == EMULATED_RUNS) {
                threadIdx.x = t;
                emulated_switch(&emulated.scheduler, &emulated.turn[t]);
                moved = true;
            }
            ended += emulated.wait[t] == EMULATED_ENDED;
        }
        if (ended == DPT_CUDA_THREADS)
            return;
        for (uint32_t t = 0; t < DPT_CUDA_THREADS; t += 32)
            moved |= emulated_release(t, 32, EMULATED_AT_WARP);
        moved |= emulated_release(0, DPT_CUDA_THREADS, EMULATED_AT_BLOCK);
        if (!moved)
            emulated_fail("not all threads reach a barrier or a shuffle");
    }
}

static inline void emulated_run_block(enum dpt_cuda_kernel kernel, const void *argument)
{
    if (emulated_kernels[kernel].meets) {
        emulated.kernel = emulated_kernels[kernel].run;
        emulated.argument = argument;
        emulated_meeting_block();
        return;
    }
    for (threadIdx.x = 0; threadIdx.x < DPT_CUDA_THREADS; threadIdx.x++)
        emulated_kernels[kernel].run(argument);
}

/* One launch. */
static inline void dpt_emulate(enum dpt_cuda_kernel kernel, const void *argument)
{
    struct dpt_cuda_grid grid;

    if (!dpt_cuda_kernel_grid(kernel, argument, &grid))
        emulated_fail("the launch is too large");
    if (emulated.stacks == NULL)
        emulated.stacks = malloc((size_t)DPT_CUDA_THREADS * EMULATED_STACK);
    if (emulated.stacks == NULL)
        emulated_fail("no memory for stacks");
    gridDim = (struct emulated_index){grid.x, grid.y};
    for (uint32_t i = 0; i < grid.x * grid.y; i++) {
        const uint32_t at = emulated_backwards ? grid.x * grid.y - 1 - i : i;

        blockIdx = (struct emulated_index){at % grid.x, at / grid.x};
        emulated_run_block(kernel, argument);
    }
}

/* Frees the stacks. */
static inline void dpt_emulate_end(void)
{
    free(emulated.stacks);
    emulated.stacks = NULL;
}

#endif

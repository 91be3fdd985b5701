/* Runs the kernels in C; see emulate.h. */
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "core/backend/cuda/tests/emulate.h"

#include "core/backend/cuda/kernels/kernels.cu"

enum { EMULATED_STACK = 128 << 10, EMULATED_WORD = 8 };

/* A thread with a stack. Its kernel begins by a change of contexts; between threads that run
 * already a jump is enough, which needs no system call. */
struct emulated_turn {
    ucontext_t context;
    void *jump[5];
    bool runs;
};

/* A block whose threads have stacks. */
struct emulated_block {
    struct emulated_turn scheduler, turn[DPT_CUDA_THREADS];
    enum emulated_wait wait[DPT_CUDA_THREADS];
    /* The values that the threads of a warp show each other, in two alternating buffers, so that no
     * thread overwrites a value that another has yet to read. */
    unsigned char shown[2][DPT_CUDA_THREADS][EMULATED_WORD];
    int room[DPT_CUDA_THREADS];
    void (*kernel)(const void *argument);
    const void *argument;
    char *stacks;
};

struct emulated_index threadIdx, blockIdx, gridDim;
bool emulated_backwards;
uint32_t emulated_fresh[DPT_CUDA_THREADS];
static struct emulated_block emulated;

void emulated_fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u %u, thread %u)\n", what, blockIdx.x, blockIdx.y,
            threadIdx.x);
    abort();
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

void emulated_until(enum emulated_wait wait)
{
    const uint32_t me = threadIdx.x;

    emulated.wait[me] = wait;
    emulated_switch(&emulated.turn[me], &emulated.scheduler);
}

void emulated_exchange(const void *mine, void *other, size_t size, uint32_t lane)
{
    const uint32_t me = threadIdx.x;
    const int room = emulated.room[me] ^= 1;

    memcpy(emulated.shown[room][me], mine, size);
    emulated_until(EMULATED_AT_WARP);
    memcpy(other, emulated.shown[room][me ^ lane], size);
}

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

/* Lets the threads first ... first+n-1 continue if all of them wait for the same. */
static bool emulated_release(uint32_t first, uint32_t n, enum emulated_wait what)
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

/* Makes a stack for a thread, on which the kernel begins; a function of its own, since getcontext
 * may return twice. */
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

static void emulated_meeting_block(void)
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

static void emulated_run_block(enum dpt_cuda_kernel kernel, const void *argument)
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

void dpt_emulate(enum dpt_cuda_kernel kernel, const void *argument)
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

int dpt_emulate_end(void **state)
{
    (void)state;
    free(emulated.stacks);
    emulated.stacks = NULL;
    return 0;
}

/*
 * fake: a device that runs on the CPU, under the names of libcuda, libcudnn, libcublasLt and
 * libnccl.
 *
 * Whole jobs of kind cuda run with it if there is no GPU; it is not for speed but for finding
 * errors. Work is put off until something waits for it, and then done in an order that keeps to
 * streams and events and nothing else (FAKEGPU_SEED chooses one): data that are read too early are
 * old, and data that are overwritten too early are new. Device memory begins as NaNs, cannot be
 * touched by the host (only while work is being done), and has guards around it.
 *
 * `make check-units` builds the three into build/tests/fakegpu; a program takes them with that
 * folder in LD_LIBRARY_PATH, and without CUDA_HOME and CUDNN_ROOT, which come first.
 *
 * Environment, read when the library is loaded, and never by a thread that runs beside others;
 * a test that changes it later uses fake_set.h:
 *   FAKEGPU_DEVICES=1       GPUs; CUDA_VISIBLE_DEVICES picks some, by number or GPU-uuid
 *   FAKEGPU_PEERS=0         no GPU reaches the memory of another
 *   FAKEGPU_MODEL=TEXT      the name of all of them; else each has its own
 *   FAKEGPU_MEMORY=2147483648
 *                           bytes of each; FAKEGPU_SHARED=FILE: counted together by all processes
 *                           that name this file
 *   FAKEGPU_SEED=1          order of work: seed % 4 is 0: only what is waited for; 1: by chance;
 *                           2: oldest first; 3: newest first
 *   FAKEGPU_EAGER=1         work is done at once
 *   FAKEGPU_IDLE_MS=20      work is done when the process has not called for so long; 0: never
 *   FAKEGPU_PROTECT=0       the host may touch device memory, as a CUDA-aware MPI does
 *   FAKEGPU_FAIL=NAME:N,... the Nth call of a function fails (NAME:N+: and all later ones); a third
 *                           number is the code to fail with: cuMemAlloc:3:999
 *   FAKEGPU_TAKES=NAME:A:B,...
 *                           events have the time of a clock that goes by work alone: what has NAME
 *                           in its name takes A microseconds by itself, B in a graph (B < 0: it
 *                           cannot be captured); else 1
 *   FAKEGPU_HANG=N          the device hangs after N pieces of work: whoever waits for it waits for
 *                           ever
 *   FAKEGPU_DROPS_NAN=1     a ReLU after a convolution makes zeros of NaNs although the graph asks
 *                           to keep them; after a product it always does
 *   FAKEGPU_KNOBS=0         knobs of cuDNN's engine 3, up to 40; 0: 2
 *   FAKENCCL_*              fake_nccl.c
 *   FAKEGPU_LOG=FILE        one line per call is added there ("%p" in it: the process's number);
 *                           at the end the number of calls: "total cuMemAlloc 12"
 *   FAKEGPU_LEAKS=1         what was not freed is reported when the context or the program ends
 *   FAKEGPU_QUIET=1         complaints are not written to stderr (only into the log)
 *
 * Calls that a real device would punish are refused with its error code, and reported on stderr:
 * "fakegpu: ...".
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <cuda.h>

/* --- for all three libraries ------------------------------------------------------------------ */

/* Memory that a piece of work touches; checked when it is enqueued and when it is done. */
enum fakegpu_where { FAKEGPU_DEVICE, FAKEGPU_PINNED, FAKEGPU_EITHER };
struct fakegpu_range {
    const void *at;
    size_t bytes;
    enum fakegpu_where where;
    bool written;
};

enum { FAKEGPU_RANGES = 24, FAKEGPU_NAME = 64 };

struct fakegpu_work {
    char name[FAKEGPU_NAME]; /* for messages */
    void (*run)(void *data);
    const void *data; /* copied when it is enqueued */
    size_t bytes;
    struct fakegpu_range ranges[FAKEGPU_RANGES];
    int n;
    bool host; /* a host function: it may call, though not the driver */
};

/* Counts a call and logs it. usual: the code of a failure that is asked for by name only. Returns
 * the code with which it has to fail, or 0. */
__attribute__((format(printf, 3, 4))) int fakegpu_enter(const char *function, int usual,
                                                        const char *format, ...);
__attribute__((format(printf, 1, 2))) void fakegpu_complain(const char *format, ...);
/* Writes a line into the log only. */
__attribute__((format(printf, 1, 2))) void fakegpu_note(const char *format, ...);
/* Notes where an array that work reads holds nothing but zeros. */
void fakegpu_look(const char *name, const void *at, size_t bytes);
/* A variable of the environment as it was when the library was loaded; NULL: it was not set. */
long long fakegpu_number(const char *name, long long usual);
const char *fakegpu_text(const char *name);
/* Reads the environment again; for a test that is its only thread but for the library's own. */
void fakegpu_read_environment(void);
/* For FAKEGPU_SEED; never returns the same number twice. */
uint64_t fakegpu_chance(void);

void fakegpu_add_range(struct fakegpu_work *work, const void *at, size_t bytes,
                       enum fakegpu_where where, bool written);
/* Enqueues work on a stream, or adds it to the graph that is being captured there. */
CUresult fakegpu_enqueue(CUstream stream, const struct fakegpu_work *work);
/* The calling thread's context; NULL: none. */
CUcontext fakegpu_current(void);

#pragma GCC visibility pop

/* At the beginning of an exported function: FAKE(cuMemAlloc, CUDA_ERROR_OUT_OF_MEMORY, "%zu", n) */
#define FAKE(function, usual, ...)                                                                 \
    do {                                                                                           \
        const int failed_ = fakegpu_enter(#function, (int)(usual), __VA_ARGS__);                   \
        if (failed_ != 0)                                                                          \
            return (__typeof__(usual))failed_;                                                     \
    } while (0)

#endif

/*
 * on_kernels: the tests of the kernels, once more on a device. To be included once in a program,
 * before such a test's source: its dpt_emulate then runs on the device, and on the host too.
 *
 * A test's arguments point to the heap, to its own stack and to static memory. Each block of the
 * heap that an argument points to gets device memory of its size, the stack above the launch and
 * the program's data as a whole; the pointers are changed to match. Afterwards the host runs the
 * same kernel on the same memory, and both results must be bitwise equal, except for functions that
 * a GPU computes in its own way. The device's result is left in place for the test.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_ON_KERNELS_H
#define DPT_BACKEND_CUDA_TESTS_ON_KERNELS_H

#include <inttypes.h>
#include <malloc.h>

#include "core/backend/cuda/libraries/context.h"
#include "core/backend/cuda/tests/on_device.h"
#include "core/backend/tests/left_out.h"

/* The toolkit's headers have vectors of these names, as other types. */
#define float4 emulated_float4
#define uint4  emulated_uint4
#define uint2  emulated_uint2
#include "core/backend/cuda/tests/emulate.h"

enum { ON_REGIONS = 32, ON_WORDS = 64, ON_SOME = 37 };

/* A piece of the host's memory that the device has a copy of. */
struct on_region {
    unsigned char *host, *made; /* made: what the device made of it */
    size_t bytes;
    char *device;
};

static struct {
    struct dpt_cuda_module module;
    char *stack_end;
    int64_t launches, made, inexact;
    bool real; /* a GPU */
    int every; /* one launch of so many runs on the device, the others only on the host */
} on;

#if defined(__SANITIZE_ADDRESS__)
#define ON_SANITIZED true
#elif defined(__has_feature)
#define ON_SANITIZED __has_feature(address_sanitizer)
#else
#define ON_SANITIZED false
#endif

extern char __data_start[], _end[]; /* the program's data, from the linker */
extern void *__libc_stack_end;

/* Whether this process has writable memory there that is not a file's. */
static inline bool on_heap(uintptr_t at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096], rights[8];
    uintptr_t from, to, node;
    bool found = false;

    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %" SCNuPTR, &from, &to, rights,
                   &node) == 4)
            found = at >= from && at < to && rights[1] == 'w' && node == 0;
    }
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* The region that a word points into, if it is a pointer at all. */
static inline bool on_locate(uintptr_t word, uintptr_t stack, struct on_region *region)
{
    const uintptr_t data = (uintptr_t)__data_start, end = (uintptr_t)_end;

    *region = (struct on_region){0};
    if (word >= stack && word < (uintptr_t)on.stack_end) {
        region->host = (unsigned char *)stack;
        region->bytes = (uintptr_t)on.stack_end - stack;
    } else if (word >= data && word < end) {
        region->host = (unsigned char *)data;
        region->bytes = end - data;
    } else if (word > 65536 && word % 4 == 0 && on_heap(word)) {
        /* A block of the heap, or an address a few floats after its start. */
        region->host = (unsigned char *)(word & ~(uintptr_t)15);
        region->bytes = malloc_usable_size(region->host);
    }
    return region->host != NULL;
}

/* Each pointer of an argument as the device's. */
static inline int on_translate(uint64_t *words, size_t n, uintptr_t stack,
                               struct on_region *regions)
{
    int count = 0;

    for (size_t w = 0; w < n; w++) {
        struct on_region found;
        int r = 0;

        if (!on_locate((uintptr_t)words[w], stack, &found))
            continue;
        while (r < count && regions[r].host != found.host)
            r++;
        if (r == count) {
            assert_true(count < ON_REGIONS);
            found.device = on_device_put(found.host, found.bytes);
            found.made = malloc(found.bytes + 1);
            assert_non_null(found.made);
            regions[count++] = found;
        }
        words[w] = (uintptr_t)regions[r].device + (words[w] - (uintptr_t)regions[r].host);
    }
    return count;
}

static inline bool on_nan(const unsigned char *at, size_t size)
{
    uint64_t bits = 0;

    memcpy(&bits, at, size);
    if (size == 2) /* of either kind */
        return (bits & 0x7fff) > 0x7f80 || (bits & 0x7fff) > 0x7c00;
    return size == 4 ? (bits & 0x7fffffff) > 0x7f800000
                     : (bits & INT64_MAX) > UINT64_C(0x7ff0000000000000);
}

/* A NaN's sign and payload do not count. */
static inline bool on_both_nan(const struct on_region *r, size_t byte)
{
    for (size_t size = 2; size <= 8; size *= 2) {
        const size_t at = byte / size * size;

        if (at + size <= r->bytes && on_nan(r->host + at, size) && on_nan(r->made + at, size))
            return true;
    }
    return false;
}

/* exp, log, erf and tanh differ in the last bits. */
static inline bool on_inexact(enum dpt_cuda_kernel kernel)
{
    const char *name = dpt_cuda_kernel_name(kernel) + strlen("dpt_cuda_");

    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_operation *o = dpt_operations[op];

        if (!(o->traits & DPT_EXACT) && strncmp(name, o->name, strlen(o->name)) == 0)
            return true;
    }
    return strstr(name, "cross_entropy") != NULL || strstr(name, "focal") != NULL;
}

/* Compares the device's result with the host's, and puts it in its place. Stacks of the emulation
 * are no result. */
static inline void on_compare(enum dpt_cuda_kernel kernel, const struct on_region *r,
                              const unsigned char *before)
{
    const bool inexact = on_inexact(kernel), data = r->host == (unsigned char *)__data_start;

    for (size_t i = 0; i < r->bytes; i++) {
        const bool changed = r->made[i] != before[i];

        if (r->made[i] == r->host[i] || (data && !changed))
            continue;
        if (inexact)
            on.inexact++;
        else if (!on_both_nan(r, i))
            fail_msg("%s: byte %zu of %zu is %02x on the device, %02x on the host",
                     dpt_cuda_kernel_name(kernel), i, r->bytes, r->made[i], r->host[i]);
        r->host[i] = r->made[i];
    }
}

static __attribute__((noinline)) void on_launch(enum dpt_cuda_kernel kernel, const void *argument)
{
    const uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
    const size_t bytes = dpt_cuda_kernel_argument(kernel);
    struct on_region regions[ON_REGIONS];
    unsigned char *before[ON_REGIONS];
    uint64_t words[ON_WORDS] = {0};
    struct dpt_error err;
    int n;

    /* Kernels whose last bits are the device's own always run there, since tests compare
     * launches. */
    if (on.launches++ % on.every != 0 && !(on.real && on_inexact(kernel))) {
        dpt_emulate(kernel, argument);
        return;
    }
    on.made++;
    assert_true(bytes <= sizeof words);
    memcpy(words, argument, bytes);
    n = on_translate(words, bytes / sizeof *words, stack, regions);
    if (dpt_cuda_launch(&gpu.lib, &on.module, gpu.stream, kernel, words, &err) != DPT_OK)
        fail_msg("%s: %s", dpt_cuda_kernel_name(kernel), err.text);
    for (int r = 0; r < n; r++) {
        on_device_get(regions[r].made, regions[r].device, regions[r].bytes);
        on_device_free(regions[r].device);
        before[r] = malloc(regions[r].bytes + 1);
        assert_non_null(before[r]);
        memcpy(before[r], regions[r].host, regions[r].bytes);
    }
    dpt_emulate(kernel, argument);
    for (int r = 0; r < n; r++) {
        on_compare(kernel, &regions[r], before[r]);
        free(before[r]);
        free(regions[r].made);
    }
}

/* DPT_CUDA_TESTS=device: a real GPU; else the device that runs on the CPU, which is slow, so that
 * it only gets some of the launches, or all of them with DPT_HEAVY=1. DPT_CUDA_EVERY=10: one launch
 * in so many, for a memory checker. false: there is no device. */
static inline bool on_begin(unsigned parts)
{
    const char *heavy = getenv("DPT_HEAVY"), *every = getenv("DPT_CUDA_EVERY");
    struct dpt_error err;

    on.stack_end = __libc_stack_end;
    on.real = real_device();
    on.every = on.real || (heavy != NULL && strcmp(heavy, "1") == 0) ? 1 : ON_SOME;
    if (every != NULL && atoi(every) > 0)
        on.every = atoi(every);
    if (ON_SANITIZED) {
        strcpy(gpu.reason, "memory is copied whole here, which the AddressSanitizer forbids");
        return false;
    }
    if (!on_device_find(parts))
        return false;
    if (dpt_cuda_module_load(&gpu.lib, &on.module, &err) == DPT_OK)
        return true;
    snprintf(gpu.reason, sizeof gpu.reason, "%s", err.text);
    return false;
}

static inline void on_end(void)
{
    dpt_cuda_module_release(&gpu.lib, &on.module);
    on_device_close();
    if (on.launches > 0)
        printf("%" PRId64 " of %" PRId64 " launches on the device; %" PRId64
               " bytes differ from the host's where they may\n",
               on.made, on.launches, on.inexact);
}

/* A test's own main, called `tests`, on the device. parts: libraries beside the driver. */
static inline int on_main(unsigned parts, int (*tests)(void))
{
    int failed;

    if (!on_begin(parts))
        return left_out(gpu.reason);
    failed = tests();
    on_end();
    return failed;
}

#define dpt_emulate on_launch

#endif

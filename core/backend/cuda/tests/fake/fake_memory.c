/*
 * The fake device's memory, and pinned memory. Each piece is mapped apart, with a page that nobody
 * may touch before and after it; its end, rounded up to 512 bytes, is the end of a page. The bytes
 * between it and the pages are filled, and checked when it is freed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

enum { PAGE = 4096, GRAIN = 512, FRESH = 0xff, GUARD = 0xab, PINNED = -1 };

struct block {
    struct block *next;
    unsigned char *at, *map, *inside; /* inside: the first page that may be touched */
    size_t bytes, mapped, open;       /* open: bytes from inside to the last page's end */
    int device;                       /* PINNED */
    bool touched;                     /* by the device, since its memory was opened */
    int number;
};

static struct {
    struct block *blocks;
    int opened, number;
    int64_t used[FAKE_DEVICES];
    int64_t *shared; /* [FAKE_DEVICES], among processes */
    struct sigaction before;
} memory;

static bool protects(void)
{
    return fakegpu_number("FAKEGPU_PROTECT", 1) != 0;
}

/* The device may touch its memory while that is open: a block is opened when it is touched.
 * Otherwise the handler reports whose memory it was, and passes the fault to the handler before
 * it. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    const unsigned char *at = info->si_addr;
    char line[256];
    int length = 0;

    (void)context;
    for (struct block *b = memory.opened > 0 ? memory.blocks : NULL; b != NULL; b = b->next) {
        if (b->device >= 0 && !b->touched && at >= b->inside && at < b->inside + b->open) {
            b->touched = true;
            mprotect(b->inside, b->open, PROT_READ | PROT_WRITE);
            return;
        }
    }
    for (const struct block *b = memory.blocks; b != NULL; b = b->next) {
        if (at >= b->map && at < b->map + b->mapped) {
            length = snprintf(
                line, sizeof line, "fakegpu: %s touches byte %lld of %s memory %d, which has %zu\n",
                memory.opened > 0 ? "the device" : "the host", (long long)(at - b->at),
                b->device < 0 ? "pinned" : "device", b->number, b->bytes);
            break;
        }
    }
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        _exit(139);
    sigaction(number, &memory.before, NULL); /* and the instruction runs again */
}

/* Installs the handler again if somebody has replaced it. */
static void handle_faults(void)
{
    const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct sigaction before;

    sigaction(SIGSEGV, &action, &before);
    if (before.sa_sigaction != on_fault)
        memory.before = before;
}

/* Bytes in use on a device: of this process, or of all that share. */
static int64_t *used_on(int device)
{
    const char *path = fakegpu_text("FAKEGPU_SHARED");

    if (path != NULL && memory.shared == NULL) {
        const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        const size_t bytes = FAKE_DEVICES * sizeof(int64_t);
        void *map = MAP_FAILED;

        if (file >= 0 && ftruncate(file, (off_t)bytes) == 0)
            map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        if (map != MAP_FAILED)
            memory.shared = map;
        else
            fakegpu_complain("cannot share by %s", path);
    }
    return memory.shared != NULL ? &memory.shared[device] : &memory.used[device];
}

static int64_t size_of_device(void)
{
    return fakegpu_number("FAKEGPU_MEMORY", 2ll << 30);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void fake_memory_info(int device, size_t *unused, size_t *total)
{
    const int64_t size = size_of_device(), used = __atomic_load_n(used_on(device), 5);

    *total = (size_t)size;
    *unused = (size_t)(size > used ? size - used : 0);
}

static void guard(const struct block *b)
{
    unsigned char *end = b->inside + b->open;

    memset(b->inside, GUARD, (size_t)(b->at - b->inside));
    memset(b->at + b->bytes, GUARD, (size_t)(end - b->at) - b->bytes);
}

/* To be called with the memory open. */
static void check_guard(const struct block *b)
{
    const unsigned char *end = b->inside + b->open;

    for (const unsigned char *at = b->inside; at < end; at++) {
        if (at == b->at)
            at += b->bytes;
        if (at < end && *at != GUARD) {
            fakegpu_complain("byte %lld of %s memory %d was written, which has %zu",
                             (long long)(at - b->at), b->device < 0 ? "pinned" : "device",
                             b->number, b->bytes);
            return;
        }
    }
}

CUresult fake_memory_new(int device, size_t bytes, void **at)
{
    const size_t rounded = round_up(bytes, GRAIN);
    struct block *b;

    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device >= 0) {
        int64_t *used = used_on(device);

        if (__atomic_add_fetch(used, (int64_t)rounded, 5) > size_of_device()) {
            __atomic_sub_fetch(used, (int64_t)rounded, 5);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    handle_faults();
    b = fake_zalloc(sizeof *b);
    b->bytes = bytes;
    b->device = device;
    b->number = ++memory.number;
    b->open = round_up(rounded, PAGE);
    b->mapped = b->open + 2 * (size_t)PAGE;
    b->map = mmap(NULL, b->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->map == MAP_FAILED) {
        free(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->inside = b->map + PAGE;
    b->at = b->inside + b->open - rounded;
    mprotect(b->inside, b->open, PROT_READ | PROT_WRITE);
    guard(b);
    memset(b->at, FRESH, bytes);
    b->touched = device >= 0 && memory.opened > 0;
    if (device >= 0 && !b->touched && protects())
        mprotect(b->inside, b->open, PROT_NONE);
    b->next = memory.blocks;
    memory.blocks = b;
    *at = b->at;
    return CUDA_SUCCESS;
}

CUresult fake_memory_free(void *at, bool pinned)
{
    struct block **link = &memory.blocks, *b;

    while (*link != NULL && (*link)->at != at)
        link = &(*link)->next;
    b = *link;
    if (b == NULL || (b->device == PINNED) != pinned) {
        fakegpu_complain("%p is freed, which is no %s memory", at, pinned ? "pinned" : "device");
        return CUDA_ERROR_INVALID_VALUE;
    }
    mprotect(b->inside, b->open, PROT_READ | PROT_WRITE);
    check_guard(b);
    if (b->device >= 0)
        __atomic_sub_fetch(used_on(b->device), (int64_t)round_up(b->bytes, GRAIN), 5);
    *link = b->next;
    munmap(b->map, b->mapped);
    free(b);
    return CUDA_SUCCESS;
}

static const struct block *block_of(const void *at)
{
    const unsigned char *p = at;

    for (const struct block *b = memory.blocks; b != NULL; b = b->next) {
        if (p >= b->at && p < b->at + b->bytes)
            return b;
    }
    return NULL;
}

bool fake_memory_find(const void *at, int *device)
{
    const struct block *b = block_of(at);

    if (b == NULL)
        return false;
    *device = b->device;
    return true;
}

/* The fault of a range; NULL: none. */
static const char *wrong(int device, const struct fakegpu_range *r)
{
    const struct block *b = block_of(r->at);

    if (b == NULL)
        return "is no memory of the device, nor pinned";
    if (b->device == PINNED && r->where == FAKEGPU_DEVICE)
        return "is pinned memory of the host";
    if (b->device != PINNED && r->where == FAKEGPU_PINNED)
        return "is memory of the device";
    if (b->device != PINNED && b->device != device)
        return "is memory of another device";
    if ((const unsigned char *)r->at + r->bytes > b->at + b->bytes)
        return "ends behind its memory";
    return NULL;
}

bool fake_memory_check(int device, const struct fakegpu_work *work, const char *when)
{
    for (int i = 0; i < work->n; i++) {
        const char *what = wrong(device, &work->ranges[i]);

        if (what == NULL)
            continue;
        fakegpu_complain("%s of %s: array %d (%p, %zu bytes) %s", when, work->name, i,
                         work->ranges[i].at, work->ranges[i].bytes, what);
        return false;
    }
    return true;
}

/* Each thread that works needs this, also while the memory is open for another one: helper threads
 * block all signals, and a fault that is blocked ends the process. */
static void take_faults(void)
{
    sigset_t faults;

    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
    handle_faults();
}

void fake_memory_open(void)
{
    memory.opened++;
    if (protects())
        take_faults();
}

void fake_memory_shut(void)
{
    if (--memory.opened > 0 || !protects())
        return;
    for (struct block *b = memory.blocks; b != NULL; b = b->next) {
        if (b->touched)
            mprotect(b->inside, b->open, PROT_NONE);
        b->touched = false;
    }
}

void fake_memory_leaks(int device)
{
    fake_memory_open();
    for (const struct block *b = memory.blocks; b != NULL; b = b->next) {
        if (device >= -1 && b->device != device)
            continue;
        check_guard(b);
        if (fakegpu_number("FAKEGPU_LEAKS", 0) != 0)
            fakegpu_complain("leak: %s memory %d of %zu bytes", b->device < 0 ? "pinned" : "device",
                             b->number, b->bytes);
    }
    fake_memory_shut();
}

#include "core/base/memory.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 16 * 1024 };

/*
 * Weights of many megabytes lie on huge pages where the system has some: their rows are a page each
 * otherwise, more than a CPU can remember the places of. What is over at the end stays on
 * small ones, so no memory is lost.
 */
enum { HUGE_PAGE = 2 << 20, MANY = 4 * HUGE_PAGE };

struct dpt_region_block {
    struct dpt_region_block *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

void *dpt_alloc(size_t bytes)
{
    void *p = NULL;

    if (bytes > SIZE_MAX - DPT_ALIGN)
        return NULL;
    bytes = bytes == 0 ? DPT_ALIGN : (bytes + DPT_ALIGN - 1) / DPT_ALIGN * DPT_ALIGN;
    if (posix_memalign(&p, bytes >= MANY ? HUGE_PAGE : DPT_ALIGN, bytes) != 0)
        return NULL;
    if (bytes >= MANY)
        madvise(p, bytes / HUGE_PAGE * HUGE_PAGE,
                MADV_HUGEPAGE); /* advice only, its failure is harmless */
    memset(p, 0, bytes);
    return p;
}

void *dpt_alloc_array(size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size)
        return NULL;
    return dpt_alloc(n * size);
}

void dpt_free(void *p)
{
    free(p);
}

void *dpt_reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (bytes >= MANY)
        madvise(p, bytes, MADV_HUGEPAGE); /* as above */
    return p;
}

void dpt_unreserve(void *p, size_t bytes)
{
    if (p != NULL)
        munmap(p, bytes > 0 ? bytes : 1);
}

void dpt_lend(void *p, size_t bytes)
{
    if (madvise(p, bytes, MADV_FREE) != 0)
        madvise(p, bytes, MADV_DONTNEED);
}

void dpt_use_pieces(void *p, size_t bytes, size_t piece)
{
    if (bytes >= MANY && piece < MANY)
        madvise(p, bytes, MADV_NOHUGEPAGE); /* as above */
}

void dpt_decommit(void *from, void *to)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)from + page - 1) / page * page,
                    end = (uintptr_t)to / page * page;

    if (begin < end)
        madvise((char *)from + (begin - (uintptr_t)from), end - begin, MADV_DONTNEED);
}

void *dpt_grow(void *items, size_t *room, size_t n, size_t size)
{
    size_t more = *room + *room / 2 + 16;
    void *larger;

    if (n <= *room && items != NULL)
        return items;
    more = more > n ? more : n;
    larger = more <= SIZE_MAX / size ? realloc(items, more * size) : NULL;
    if (larger != NULL)
        *room = more;
    return larger;
}

size_t dpt_round_up(size_t n, size_t size)
{
    const size_t line = DPT_ALIGN / size;

    return (n + line - 1) / line * line;
}

void *dpt_region_alloc(struct dpt_region *region, size_t bytes)
{
    struct dpt_region_block *block = region->head;
    void *p;

    if (bytes > SIZE_MAX / 2) {
        region->failed = true;
        return NULL;
    }
    bytes = (bytes + 15) / 16 * 16;
    if (block == NULL || block->size - block->used < bytes) {
        const size_t size = bytes > BLOCK ? bytes : BLOCK;

        block = malloc(sizeof *block + size);
        if (block == NULL) {
            region->failed = true;
            return NULL;
        }
        block->next = region->head;
        block->used = 0;
        block->size = size;
        region->head = block;
    }
    p = block->bytes + block->used;
    block->used += bytes;
    memset(p, 0, bytes);
    return p;
}

char *dpt_region_strndup(struct dpt_region *region, const char *text, size_t n)
{
    char *copy = dpt_region_alloc(region, n + 1);

    if (copy != NULL)
        memcpy(copy, text, n);
    return copy;
}

char *dpt_region_strdup(struct dpt_region *region, const char *text)
{
    return dpt_region_strndup(region, text, strlen(text));
}

char *dpt_region_printf(struct dpt_region *region, const char *format, ...)
{
    char *text, *copy;
    va_list args;

    va_start(args, format);
    text = vasprintf(&copy, format, args) < 0 ? NULL : copy;
    va_end(args);
    copy = text != NULL ? dpt_region_strdup(region, text) : NULL;
    region->failed |= copy == NULL;
    free(text);
    return copy;
}

void dpt_region_release(struct dpt_region *region)
{
    while (region->head != NULL) {
        struct dpt_region_block *next = region->head->next;

        free(region->head);
        region->head = next;
    }
}

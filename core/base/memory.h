/*
 * memory: aligned buffers, and a region for many small allocations that are freed together.
 *
 * Buffers are aligned to a cache line (64 bytes, also the width of a 512-bit register) and freed
 * with dpt_free. A region allocates pieces that live until dpt_region_release; only one thread at a
 * time may use it.
 */
#ifndef DPT_BASE_MEMORY_H
#define DPT_BASE_MEMORY_H

#include <stddef.h>

#include "core/base/error.h"

enum {
    DPT_ALIGN = 64,                       /* bytes of a cache line */
    DPT_LINE = DPT_ALIGN / sizeof(float), /* floats of one */
};

/* Zeroed, DPT_ALIGN-aligned bytes, or NULL. `bytes` may be 0 (a valid, empty buffer). */
void *dpt_alloc(size_t bytes);
/* Zeroed array of n elements, or NULL also where n x size overflows. */
void *dpt_alloc_array(size_t n, size_t size);
void dpt_free(void *p);
/* Zeroed address space, aligned to a page, of which only pages that are written take memory; NULL
 * where there is none. dpt_unreserve takes the same number of bytes, and NULL, too. */
void *dpt_reserve(size_t bytes);
void dpt_unreserve(void *p, size_t bytes);
/* What is in such memory is not needed any more: the system takes its pages where it wants them for
 * others. Until then to use it again costs less than new memory. */
void dpt_lend(void *p, size_t bytes);
/* Only pieces of such memory are used, each of so many bytes, apart from each other: where they are
 * small, huge pages would take memory around each. */
void dpt_use_pieces(void *p, size_t bytes, size_t piece);
/* Gives back the whole pages in [from, to) of such memory, which is zero from now on. */
void dpt_decommit(void *from, void *to);
/* Makes `array` one of n zeroed elements, of dpt_alloc_array; gives a status. what: for the message
 * of dpt_fail_memory. n is evaluated twice. */
#define DPT_ALLOCATE(array, n, what, err)                                                          \
    (((array) = dpt_alloc_array((n), sizeof *(array))) != NULL                                     \
         ? DPT_OK                                                                                  \
         : dpt_fail_memory((err), (what), (double)(n) * sizeof *(array)))

/*
 * Room for n elements in an array of malloc that grows: items, or where *room is too small a larger
 * one with what was in it, and *room raised by half at least. NULL where memory ran out; items
 * stay.
 */
void *dpt_grow(void *items, size_t *room, size_t n, size_t size);

/* Makes `items` hold n elements as dpt_grow does, or fails as DPT_TRY does. what: for the
 * message. */
#define DPT_GROW(items, room, n, what, err)                                                        \
    do {                                                                                           \
        void *grown_ = dpt_grow(items, room, n, sizeof *(items));                                  \
        if (grown_ == NULL)                                                                        \
            DPT_TRY(dpt_fail_memory(err, what, (double)(n) * sizeof *(items)));                    \
        (items) = grown_;                                                                          \
    } while (0)

/* Rounds n elements of `size` bytes up to whole cache lines, in elements. `size` must divide
 * DPT_ALIGN. */
size_t dpt_round_up(size_t n, size_t size);

/* Bytes that may still be used on this node: of the machine, and of the control groups that this
 * process is in; below 0: unknown. */
double dpt_memory_available(void);

struct dpt_region_block;

/* Zero-initialise: {0}. */
struct dpt_region {
    struct dpt_region_block *head;
    bool failed; /* memory ran out, for one of its pieces at least */
};

/* Zeroed bytes aligned to 16, owned by the region; NULL where memory ran out. */
void *dpt_region_alloc(struct dpt_region *region, size_t bytes);
/* Copies of a string, of n bytes (and a NUL), of printf's result. NULL where memory ran
 * out. */
char *dpt_region_strdup(struct dpt_region *region, const char *text);
char *dpt_region_strndup(struct dpt_region *region, const char *text, size_t n);
char *dpt_region_printf(struct dpt_region *region, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dpt_region_release(struct dpt_region *region);

#endif

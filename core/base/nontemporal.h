/*
 * nontemporal: copies with non-temporal stores, which go past the caches.
 *
 * A store to a cache line that another core has read waits until that core has given the line up:
 * some ten nanoseconds a line on some machines, longer than a line takes to memory and back. So
 * data that one thread writes for another to read is better written past the caches. The writer
 * calls dpt_nontemporal_fence before it tells other threads that the data is there.
 */
#ifndef DPT_BASE_NONTEMPORAL_H
#define DPT_BASE_NONTEMPORAL_H

#include <stddef.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Copies n floats; both addresses are aligned to 16 bytes. */
static inline void dpt_copy_nontemporal(float *restrict to, const float *restrict from, size_t n)
{
    size_t i = 0;

#if defined(__SSE2__)
    for (; i + 4 <= n; i += 4)
        _mm_stream_ps(to + i, _mm_load_ps(from + i));
#endif
    for (; i < n; i++)
        to[i] = from[i];
}

static inline void dpt_nontemporal_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif

/*
 * stream: copies that go past the caches.
 *
 * A store to a cache line that another core has read waits until that core has let go of it, some
 * ten nanoseconds a line on some machines, and longer than the line takes to memory and back.
 * What one thread writes for another to read, in turn, is therefore better streamed. Whoever
 * streams ends with dpt_stream_end, before others are told that it is there.
 */
#ifndef DPT_BASE_STREAM_H
#define DPT_BASE_STREAM_H

#include <stddef.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* n floats; both places on 16 bytes. */
static inline void dpt_stream(float *restrict to, const float *restrict from, size_t n)
{
    size_t i = 0;

#if defined(__SSE2__)
    for (; i + 4 <= n; i += 4)
        _mm_stream_ps(to + i, _mm_load_ps(from + i));
#endif
    for (; i < n; i++)
        to[i] = from[i];
}

static inline void dpt_stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif

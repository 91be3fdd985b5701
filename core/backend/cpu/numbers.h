/*
 * numbers: small sums of whole numbers. Private to this folder.
 */
#ifndef DPT_BACKEND_CPU_NUMBERS_H
#define DPT_BACKEND_CPU_NUMBERS_H

#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Parts of `of` that hold n, the last one perhaps not full. */
static inline int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

static inline int64_t up(int64_t n, int64_t to)
{
    return parts(n, to) * to;
}

#endif

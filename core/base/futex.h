/*
 * futex: sleeping until a word in memory changes (Linux), and what a thread does between two looks
 * at it.
 */
#ifndef DPT_BASE_FUTEX_H
#define DPT_BASE_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* DPT_FUTEX_SHARED: the word lies in memory that several processes share. */
enum dpt_futex_scope { DPT_FUTEX_THREADS = FUTEX_PRIVATE_FLAG, DPT_FUTEX_SHARED = 0 };

/* Sleeps while the word is `value`, until it is woken or the time is over; may also wake up for
 * nothing. most: NULL: for ever. */
static inline void dpt_futex_wait(_Atomic uint32_t *word, uint32_t value,
                                  enum dpt_futex_scope scope, const struct timespec *most)
{
    syscall(SYS_futex, word, FUTEX_WAIT | (int)scope, value, most, NULL, 0);
}

/* Wakes all that sleep on the word. */
static inline void dpt_futex_wake(_Atomic uint32_t *word, enum dpt_futex_scope scope)
{
    syscall(SYS_futex, word, FUTEX_WAKE | (int)scope, INT_MAX, NULL, NULL, 0);
}

/* Lets the other thread of the core run for a moment, between two looks at a word. */
static inline void dpt_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif

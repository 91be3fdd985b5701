/*
 * pool: a rank's threads.
 *
 * dpt_pool_run calls work(arg, thread) once on each of `threads` threads, the caller being thread
 * 0, and returns when all have returned. Between two runs the others wait: they spin for some
 * microseconds, then sleep. Only the thread that opened the pool may run it. Each thread keeps its
 * number for its whole life, so that per-thread state stays where it is.
 */
#ifndef DPT_BASE_POOL_H
#define DPT_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/span.h"

struct dpt_pool;

/* threads >= 1. spin: wait actively for a while between runs (false where there are more threads
 * than cores). Errors: RANK. */
enum dpt_status dpt_pool_open(struct dpt_pool **pool, int threads, bool spin,
                              struct dpt_error *err);
void dpt_pool_close(struct dpt_pool *pool);
void dpt_pool_run(struct dpt_pool *pool, void (*work)(void *arg, int thread), void *arg);
/* Inside of a run: returns when all threads have called it as often as this one. What they wrote before is then seen by all. */
void dpt_pool_meet(struct dpt_pool *pool);
/*
 * From here on each thread's time is told to its timeline: waiting for work and for each other, and
 * behind each run what is left of it as the timeline's activity of that moment. NULL: no longer.
 * Borrowed; for who runs the pool, between two runs.
 */
void dpt_pool_observe(struct dpt_pool *pool, const struct dpt_timeline *timeline);
int dpt_pool_threads(const struct dpt_pool *pool);

/* The floats [*begin, *end) of n that a thread of `threads` works on: whole cache lines. */
void dpt_thread_part(size_t n, int thread, int threads, size_t *begin, size_t *end);

#endif

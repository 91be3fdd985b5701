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
#include <sys/types.h>

#include "core/base/error.h"
#include "core/base/span.h"

struct dpt_pool;

/* threads >= 1. spin: wait actively for a while between runs (false where there are more threads
 * than cores). Errors: RANK. */
enum dpt_status dpt_pool_open(struct dpt_pool **pool, int threads, bool spin,
                              struct dpt_error *err);
void dpt_pool_close(struct dpt_pool *pool);
void dpt_pool_run(struct dpt_pool *pool, void (*work)(void *arg, int thread), void *arg);
/* A barrier for the threads of a run: returns when all threads have called it as often as this one.
 * All threads then see what the others wrote before it. */
void dpt_pool_barrier(struct dpt_pool *pool);
/*
 * From now on each thread records its time in its timeline: waiting for work, waiting for other
 * threads, and after each run the rest of that run as the timeline's current activity. NULL ends
 * the recording. The timeline is borrowed. Only the thread that runs the pool may call this,
 * between two runs.
 */
void dpt_pool_observe(struct dpt_pool *pool, const struct dpt_timeline *timeline);
int dpt_pool_threads(const struct dpt_pool *pool);

/* A thread beside the main one, and what the two wait for each other by. Zero-initialise. */
struct dpt_thread {
    pthread_t id;
    bool running, stop;
    pthread_mutex_t lock;      /* over `stop`, and what its owner says */
    pthread_cond_t work, done; /* by CLOCK_MONOTONIC; it waits for `work` */
};

/* Starts it, with all signals blocked: they are the main thread's. Returns an errno, 0 where it
 * runs. */
int dpt_thread_start(struct dpt_thread *thread, void *(*work)(void *), void *arg);
/* Tells it to stop, and waits until it has returned. Nothing happens where it does not run. */
void dpt_thread_end(struct dpt_thread *thread);

/* Waits for `done` while busy(arg), for at most so many seconds; gives busy(arg). */
bool dpt_thread_await(struct dpt_thread *thread, bool (*busy)(const void *arg), const void *arg,
                      double seconds);

/* The floats [*begin, *end) of n that a thread of `threads` works on: whole cache lines. */
void dpt_thread_part(size_t n, int thread, int threads, size_t *begin, size_t *end);
/* Part number `part` of `parts`, in whole units of so many floats. */
void dpt_part_in_units(size_t n, size_t unit, int part, int parts, size_t *begin, size_t *end);

#endif

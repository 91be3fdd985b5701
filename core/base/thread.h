/*
 * thread: helper threads beside the main one.
 */
#ifndef DPT_BASE_THREAD_H
#define DPT_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create, with all signals blocked in the new thread: they are the main thread's.
 * Returns an errno, 0 where it runs. */
int dpt_thread_start(pthread_t *thread, void *(*work)(void *), void *arg);

#endif

/*
 * buckets: a thread that works on an array's parts as soon as they are written.
 *
 * Several writers complete an array from its end to its begin, as backward does a gradient. The
 * array is cut into buckets at fixed places. Once all writers are past one, the thread works on it
 * while they go on; always in the order of the buckets, from the last floats to the first.
 */
#ifndef DPT_COMM_BUCKETS_H
#define DPT_COMM_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct dpt_buckets;

struct dpt_buckets_spec {
    size_t n, most; /* floats of the array, and of a bucket at most; both above 0 */
    int writers;
    /* Called by the thread with each bucket [begin, end). */
    void (*work)(void *arg, size_t begin, size_t end);
    void *arg;
};

/* Starts the thread. Errors: RANK. */
enum dpt_status dpt_buckets_open(struct dpt_buckets **buckets, const struct dpt_buckets_spec *spec,
                                 struct dpt_error *err);
/* Ends the thread; between two rounds. NULL is fine. */
void dpt_buckets_close(struct dpt_buckets *buckets);

int dpt_buckets_count(const struct dpt_buckets *buckets);

/* A writer says, by whichever thread, that it writes no more floats from `from` on in this round.
 * counts: whether what it has written counts; its first call decides. */
void dpt_buckets_pass(struct dpt_buckets *buckets, int writer, size_t from, bool counts);
/* Whether what a writer has written counts; for `work`. */
bool dpt_buckets_counts(const struct dpt_buckets *buckets, int writer);

/* No writer writes any more. counts: [writers], of those that have not passed anything yet. */
void dpt_buckets_release(struct dpt_buckets *buckets, const bool *counts);
/* After dpt_buckets_release: waits until n buckets are done. */
void dpt_buckets_await(struct dpt_buckets *buckets, int n);
/* After dpt_buckets_await of all: the next round begins, in which nothing is written yet. Returns
 * how many buckets of this one had begun before dpt_buckets_release. */
int dpt_buckets_rewind(struct dpt_buckets *buckets);

#endif

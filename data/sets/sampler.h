/*
 * sampler: which samples make up which step.
 *
 * One epoch is one permutation of all its samples, a pure function of (seed, epoch); the rank count
 * changes only who computes a sample, never when. Nothing is stored: any position of any epoch is
 * computed at once. Small and immutable after init; ranks and threads each keep their own.
 *
 * A fraction can be held out for validation: of each run of 1/fraction consecutive samples one is
 * drawn (by seed, not by epoch), so the held-out samples are spread evenly over the files and the
 * rest stays in reading order.
 */
#ifndef DPT_DATA_SAMPLER_H
#define DPT_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "data/sets/dataset.h"

enum { DPT_SHUFFLE_BLOCK_SAMPLES = 1024 };

struct dpt_sampler {
    uint64_t seed;
    int64_t total;    /* samples in the data set */
    int64_t held_out; /* of these, in the validation part; 0: none */
    bool validation;  /* this sampler walks the held-out part */
    int64_t samples;  /* that this sampler walks: > 0 */
    int32_t global;   /* samples per optimizer step */
    int32_t micro;    /* samples a forward/backward pass; divides nothing in particular */
    enum dpt_shuffle shuffle;
    bool drop_last; /* leave out the short last step of an epoch */
    /* Micro-batches that a rank takes at a time, one rank after the other, again and again; 0: each
     * rank has one run of a step's. */
    int32_t round_robin;
};

/* Steps of an epoch; samples of one of them; its micro-batches. 0 <= step < dpt_sampler_steps. */
int64_t dpt_sampler_steps(const struct dpt_sampler *s);
int32_t dpt_sampler_count(const struct dpt_sampler *s, int64_t step);
int32_t dpt_sampler_micro_batches(const struct dpt_sampler *s, int64_t step);

/* The micro-batches [*first, *last) of a step that a rank computes: contiguous runs, sizes differ
 * by at most one, maybe none. Taken round-robin, they begin with *first and are *last - *first
 * (dpt_sampler_nth). */
void dpt_sampler_partition(const struct dpt_sampler *s, int64_t step, int rank, int ranks,
                           int32_t *first, int32_t *last);
/* Where each rank's run of contiguous ones begins; first: [ranks + 1], the last entry is how many
 * micro-batches there are. */
void dpt_sampler_firsts(const struct dpt_sampler *s, int64_t step, int ranks, int32_t *first);

/* The number of a rank's k-th micro-batch; first: of dpt_sampler_partition. And the other way
 * round. */
static inline int32_t dpt_sampler_nth(const struct dpt_sampler *s, int ranks, int32_t first,
                                      int32_t k)
{
    const int32_t each = s->round_robin;

    return first + (each > 0 ? k / each * each * ranks + k % each : k);
}
static inline int32_t dpt_sampler_place(const struct dpt_sampler *s, int ranks, int32_t first,
                                        int32_t micro_batch)
{
    const int32_t at = micro_batch - first, each = s->round_robin, all = each * ranks;

    return each > 0 ? at / all * each + at % all : at;
}

/* Writes the data-set numbers of the samples at n consecutive positions (of 0 … samples-1) of an
 * epoch. */
void dpt_sampler_samples(const struct dpt_sampler *s, int64_t epoch, int64_t position, int64_t n,
                         int64_t *index);

#endif

#include "data/sets/sampler.h"

#include "core/base/rng.h"

typedef unsigned __int128 wide; /* sample numbers times sample numbers */

int64_t dpt_sampler_steps(const struct dpt_sampler *s)
{
    return s->samples / s->global + (!s->drop_last && s->samples % s->global != 0);
}

int32_t dpt_sampler_count(const struct dpt_sampler *s, int64_t step)
{
    const int64_t left = s->samples - step * s->global;

    return left < s->global ? (int32_t)left : s->global;
}

int32_t dpt_sampler_micro_batches(const struct dpt_sampler *s, int64_t step)
{
    return (dpt_sampler_count(s, step) - 1) / s->micro + 1;
}

void dpt_sampler_partition(const struct dpt_sampler *s, int64_t step, int rank, int ranks,
                           int32_t *first, int32_t *last)
{
    const int64_t n = dpt_sampler_micro_batches(s, step);

    if (s->round_robin > 0) {
        const int64_t each = s->round_robin, all = each * ranks, begin = each * rank;
        const int64_t rest = n % all - begin, more = rest > each ? each : rest;

        *first = (int32_t)(begin < n ? begin : n);
        *last = *first + (int32_t)(n / all * each + (more > 0 ? more : 0));
        return;
    }
    *first = (int32_t)(rank * n / ranks);
    *last = (int32_t)((rank + 1) * n / ranks);
}

void dpt_sampler_firsts(const struct dpt_sampler *s, int64_t step, int ranks, int32_t *first)
{
    int32_t last;

    for (int r = 0; r < ranks; r++)
        dpt_sampler_partition(s, step, r, ranks, &first[r], &last);
    first[ranks] = dpt_sampler_micro_batches(s, step);
}

/* Group g of the held-out groups begins here. */
static int64_t group_start(const struct dpt_sampler *s, int64_t g)
{
    return (int64_t)((wide)g * (wide)s->total / (wide)s->held_out);
}

/* The member of group g that is held out, counted from the group's start. */
static int64_t group_choice(const struct dpt_sampler *s, int64_t g)
{
    const int64_t size = group_start(s, g + 1) - group_start(s, g);

    return (int64_t)(dpt_random64(s->seed, DPT_RANDOM_HOLDOUT, 0, (uint64_t)g) % (uint64_t)size);
}

/* The data-set number of the i-th sample, in reading order, that this sampler walks. */
static int64_t in_order(const struct dpt_sampler *s, int64_t i)
{
    const wide rest = (wide)(s->total - s->held_out);
    int64_t g, before, within;

    if (s->held_out == 0)
        return i;
    if (s->validation)
        return group_start(s, i) + group_choice(s, i);
    /* floor(g * rest / held_out) samples stay before group g: the last g for which that is <= i. */
    g = (int64_t)((((wide)i + 1) * (wide)s->held_out - 1) / rest);
    before = (int64_t)((wide)g * rest / (wide)s->held_out);
    within = i - before;
    return group_start(s, g) + within + (within >= group_choice(s, g));
}

/*
 * Blocks of consecutive samples in random order, and random order within each. The last block,
 * which may be short, gets a place drawn first and the others are permuted around it: so the place
 * of every block follows from its number without a search.
 */
static int64_t in_blocks(const struct dpt_sampler *s, int64_t epoch, int64_t position)
{
    const int64_t block = DPT_SHUFFLE_BLOCK_SAMPLES;
    const int64_t others = (s->samples - 1) / block; /* blocks but the last, all full */
    const int64_t last = s->samples - others * block;
    const uint64_t draw = dpt_random64(s->seed, DPT_RANDOM_SHUFFLE, (uint64_t)epoch, UINT64_MAX);
    const int64_t place = (int64_t)(draw % (uint64_t)(others + 1)); /* of the last block */
    int64_t number, size = block, within;

    if (position >= place * block && position < place * block + last) {
        number = others;
        within = position - place * block;
        size = last;
    } else {
        const int64_t p = position < place * block ? position : position - last;

        number = (int64_t)dpt_permute(s->seed, DPT_RANDOM_SHUFFLE, (uint64_t)epoch,
                                      (uint64_t)others, (uint64_t)(p / block));
        within = p % block;
    }
    within = (int64_t)dpt_permute(s->seed, DPT_RANDOM_SHUFFLE,
                                  dpt_mix64(dpt_mix64((uint64_t)epoch + 1) + (uint64_t)number),
                                  (uint64_t)size, (uint64_t)within);
    return number * block + within;
}

void dpt_sampler_samples(const struct dpt_sampler *s, int64_t epoch, int64_t position, int64_t n,
                         int64_t *index)
{
    enum { AT_ONCE = 64 };
    uint64_t image[AT_ONCE];

    for (int64_t i = 0; s->shuffle == DPT_SHUFFLE_NONE && i < n; i++)
        index[i] = in_order(s, position + i);
    for (int64_t i = 0; s->shuffle == DPT_SHUFFLE_BLOCK && i < n; i++)
        index[i] = in_order(s, in_blocks(s, epoch, position + i));
    for (int64_t i = 0; s->shuffle == DPT_SHUFFLE_FULL && i < n; i += AT_ONCE) {
        const int64_t m = n - i < AT_ONCE ? n - i : AT_ONCE;

        dpt_permute_run(s->seed, DPT_RANDOM_SHUFFLE, (uint64_t)epoch, (uint64_t)s->samples,
                        (uint64_t)(position + i), (size_t)m, image);
        for (int64_t k = 0; k < m; k++)
            index[i + k] = in_order(s, (int64_t)image[k]);
    }
}

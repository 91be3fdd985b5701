/* Samples divided for training, validation and test: at random, by groups, or by time. */
#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/base/sort.h"
#include "data/sources/source_type.h"

const char *dpt_source_split_name(const struct dpt_source_split *split, size_t part)
{
    return part == 0 ? "train" : part + 1 == split->n ? "test" : "valid";
}

/* How many of n samples each part gets: the largest remainders are rounded up (Hamilton). */
static void apportion(const struct dpt_source_split *split, int64_t n,
                      int64_t count[DPT_SOURCE_PARTS])
{
    int64_t all = 0, left = n, rest[DPT_SOURCE_PARTS];

    for (size_t p = 0; p < split->n; p++)
        all += split->share[p];
    for (size_t p = 0; p < split->n; p++) {
        const __int128 exact = (__int128)n * split->share[p];

        count[p] = (int64_t)(exact / all);
        rest[p] = (int64_t)(exact % all);
        left -= count[p];
    }
    for (; left > 0; left--) {
        size_t best = 0;

        for (size_t p = 1; p < split->n; p++)
            if (rest[p] > rest[best])
                best = p;
        count[best]++;
        rest[best] = -1;
    }
}

/* A class: how many there are, how many of them each part gets, and how many came so far. */
struct stratum {
    int64_t samples, done, count[DPT_SOURCE_PARTS];
};

static size_t part_of(const struct dpt_source_split *split, struct stratum *s, int64_t class)
{
    uint64_t place = dpt_permute(split->seed, DPT_RANDOM_SPLIT, (uint64_t) class,
                                 (uint64_t)s->samples, (uint64_t)s->done++);
    size_t p = 0;

    for (; place >= (uint64_t)s->count[p]; p++)
        place -= (uint64_t)s->count[p];
    return p;
}

/* At random, or each class by itself. */
static enum dpt_status assign_random(const struct dpt_source_split *split,
                                     const struct dpt_source_info *info, const int32_t *class,
                                     uint8_t *part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t n = class != NULL ? info->classes : 1;
    struct stratum *strata;

    DPT_TRY(DPT_ALLOCATE(strata, (size_t)n, "the classes", err));
    for (int64_t i = 0; i < info->samples; i++)
        strata[class != NULL ? class[i] : 0].samples++;
    for (int64_t k = 0; k < n; k++)
        apportion(split, strata[k].samples, strata[k].count);
    for (int64_t i = 0; i < info->samples; i++) {
        const int32_t k = class != NULL ? class[i] : 0;

        part[i] = (uint8_t)part_of(split, &strata[k], k);
    }
out:
    dpt_free(strata);
    return status;
}

/* Gives each group its part, in the order that was drawn: that in whose share its middle sample
 * falls. So parts have about their shares of samples, and each has a group if there are as many. */
static void deal_groups(const struct dpt_source_split *split, int64_t all, const int64_t *samples,
                        const int64_t *order, size_t n, uint8_t *of)
{
    int64_t count[DPT_SOURCE_PARTS], before = 0, end;
    size_t p = 0;

    apportion(split, all, count);
    end = count[0];
    for (size_t i = 0; i < n; i++) {
        const size_t free = split->n - 1 - p; /* parts that have none yet */
        const bool beyond = 2 * before + samples[order[i]] >= 2 * end;

        if (i > 0 && free > 0 && (beyond || n - i <= free))
            end += count[++p];
        of[order[i]] = (uint8_t)p;
        before += samples[order[i]];
    }
}

static enum dpt_status assign_groups(const struct dpt_source_split *split,
                                     const struct dpt_source_info *info, uint8_t *part,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)info->n_groups;
    int64_t *samples = NULL, *order = NULL;
    uint8_t *of = NULL;

    DPT_TRY(DPT_ALLOCATE(samples, n, "the groups", err));
    DPT_TRY(DPT_ALLOCATE(order, n, "the groups", err));
    DPT_TRY(DPT_ALLOCATE(of, n, "the groups", err));
    for (int64_t i = 0; i < info->samples; i++)
        samples[info->groups[i]]++;
    for (size_t g = 0; g < n; g++)
        order[dpt_permute(split->seed, DPT_RANDOM_SPLIT, 0, n, g)] = (int64_t)g;
    deal_groups(split, info->samples, samples, order, n, of);
    for (int64_t i = 0; i < info->samples; i++)
        part[i] = of[info->groups[i]];
out:
    dpt_free(samples);
    dpt_free(order);
    dpt_free(of);
    return status;
}

/* Where a part begins that the at-th of n sorted times would open: samples of one time stay
 * together, so with the first of them or after the last, whatever is nearer, but not at the very
 * first. */
static double begin_at(const double *sorted, int64_t n, int64_t at)
{
    int64_t first = at, end = at;

    if (at >= n)
        return INFINITY;
    while (first > 0 && sorted[first - 1] == sorted[at])
        first--;
    while (end < n && sorted[end] == sorted[at])
        end++;
    if (first > 0 && (at - first <= end - at || end == n))
        return sorted[first];
    return end < n ? sorted[end] : INFINITY;
}

/* The earliest samples go into the first part. */
static enum dpt_status assign_times(const struct dpt_source_split *split,
                                    const struct dpt_source_info *info, uint8_t *part,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t n = info->samples;
    int64_t count[DPT_SOURCE_PARTS], at = 0;
    double *sorted, begins[DPT_SOURCE_PARTS];

    DPT_TRY(DPT_ALLOCATE(sorted, n, "the times", err));
    memcpy(sorted, info->times, (size_t)n * sizeof *sorted);
    dpt_sort(sorted, (size_t)n);
    apportion(split, n, count);
    for (size_t p = 1; p < split->n; p++) {
        at += count[p - 1];
        begins[p] = begin_at(sorted, n, at);
    }
    for (int64_t i = 0; i < n; i++) {
        part[i] = 0;
        for (size_t p = 1; p < split->n; p++)
            part[i] += info->times[i] >= begins[p];
    }
out:
    dpt_free(sorted);
    return status;
}

enum dpt_status dpt_source_split_assign(const struct dpt_source_split *split,
                                        const struct dpt_source_info *info, const int32_t *class,
                                        uint8_t *part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool groups = info->groups != NULL;
    int64_t got[DPT_SOURCE_PARTS] = {0};

    if (info->times != NULL)
        DPT_TRY(assign_times(split, info, part, err));
    else if (groups)
        DPT_TRY(assign_groups(split, info, part, err));
    else
        DPT_TRY(assign_random(split, info, class, part, err));
    for (int64_t i = 0; i < info->samples; i++)
        got[part[i]]++;
    for (size_t p = 0; p < split->n; p++)
        if (got[p] == 0)
            DPT_TRY(dpt_fail(err, DPT_USAGE, "--split: %lld %s leave none for the part %s",
                             (long long)(groups ? info->n_groups : info->samples),
                             groups ? "groups" : "samples", dpt_source_split_name(split, p)));
out:
    return status;
}

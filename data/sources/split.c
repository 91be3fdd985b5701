/* Samples divided at random: for training, validation and test. */
#include <string.h>

#include "core/base/memory.h"
#include "core/base/rng.h"
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

enum dpt_status dpt_source_split_assign(const struct dpt_source_split *split, int64_t samples,
                                        const int32_t *class, int64_t classes, uint8_t *part,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t n = class != NULL ? classes : 1;
    int64_t got[DPT_SOURCE_PARTS] = {0};
    struct stratum *strata;

    DPT_TRY(DPT_ALLOCATE(strata, (size_t)n, "the classes", err));
    for (int64_t i = 0; i < samples; i++)
        strata[class != NULL ? class[i] : 0].samples++;
    for (int64_t k = 0; k < n; k++)
        apportion(split, strata[k].samples, strata[k].count);
    for (int64_t i = 0; i < samples; i++) {
        const int32_t k = class != NULL ? class[i] : 0;

        part[i] = (uint8_t)part_of(split, &strata[k], k);
        got[part[i]]++;
    }
    for (size_t p = 0; p < split->n; p++)
        if (got[p] == 0)
            DPT_TRY(dpt_fail(err, DPT_USAGE,
                             "--split: of %lld samples none is left for the part %s",
                             (long long)samples, dpt_source_split_name(split, p)));
out:
    dpt_free(strata);
    return status;
}

#include "data/shards/labels.h"

#include <stdio.h>

#include "core/base/str.h"
#include "data/shards/shard.h"

enum { FEW = 20 };

bool dpt_labels_seem_classes(int64_t classes, int64_t samples)
{
    return classes > 0 && (classes <= FEW || classes <= samples / 10);
}

/* The labels of a shard that were seen. */
struct seen {
    const struct dpt_field *labels;
    int64_t classes;
};

static enum dpt_status see(void *arg, int64_t row, int64_t n, const void *raw,
                           struct dpt_error *err)
{
    struct seen *seen = arg;

    (void)row, (void)err;
    for (int64_t i = 0; i < n && seen->classes >= 0; i++) {
        const int64_t label = dpt_field_int(seen->labels, raw, (size_t)i);

        if (label < 0 || label >= DPT_MOST_CLASSES)
            seen->classes = -1;
        else if (label >= seen->classes)
            seen->classes = label + 1;
    }
    return DPT_OK;
}

enum dpt_status dpt_labels_count(struct dpt_shard *shard, int64_t *classes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct seen seen = {&shard->labels, *classes};

    DPT_TRY(dpt_shard_attach(shard, err));
    DPT_TRY(dpt_field_scan(&shard->labels, 0, shard->samples, see, &seen, NULL, err));
    *classes = seen.classes;
out:
    dpt_shard_detach(shard);
    return status;
}

bool dpt_labels_doubt(const int64_t *counts, int64_t n, char *buf, size_t size)
{
    enum { MOST = 5 };
    struct dpt_str list = {0};
    char digits[32], most[32];
    bool told;
    int64_t empty = 0, samples = 0;

    for (int64_t i = 0; i < n; i++) {
        samples += counts[i];
        if (counts[i] == 0 && empty++ < MOST)
            dpt_str_printf(&list, "%s%lld", empty > 1 ? ", " : "", (long long)i);
    }
    told = (n > samples && n > FEW) || (empty > 0 && samples >= FEW && !list.failed);
    if (n > samples && n > FEW)
        snprintf(buf, size,
                 "the labels of %s samples go up to %s, so the model has as many outputs: `dptrain "
                 "convert` with --regression makes numbers to predict of them",
                 dpt_group_digits(digits, samples), dpt_group_digits(most, n - 1));
    else if (told)
        snprintf(buf, size,
                 "no sample has the class%s %s%s: the model gets %lld outputs all the same%s",
                 empty > 1 ? "es" : "", list.text, empty > MOST ? ", …" : "", (long long)n,
                 counts[0] == 0 ? "; if the labels begin at 1, subtract 1 from them" : "");
    dpt_str_release(&list);
    return told;
}

/* What the formats of sources share. */
#include "data/sources/source_type.h"

#include "data/shards/labels.h"

const char *const dpt_source_option_names[DPT_SOURCE_OPTION_COUNT] = {
#define X(id, name, value, help) [DPT_SOURCE_##id] = name,
    DPT_SOURCE_OPTION_LIST(X)
#undef X
        [DPT_SOURCE_LABELS] = "--labels",
    [DPT_SOURCE_INVERT] = "--invert",
};

size_t dpt_source_part_of(const struct dpt_source *s, int64_t sample)
{
    size_t low = 0, high = s->n_parts;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (s->parts[middle].first <= sample)
            low = middle;
        else
            high = middle;
    }
    return low;
}

enum dpt_status dpt_source_check_labels(const struct dpt_source *s, struct dpt_error *err)
{
    const char *const *option = s->spec->option;

    return option[DPT_SOURCE_CLASSES] != NULL && option[DPT_SOURCE_REGRESSION] != NULL
               ? dpt_fail(err, DPT_USAGE, "--classes and --regression exclude each other")
               : DPT_OK;
}

void dpt_source_tell_labels(const struct dpt_source *s, const char *path,
                            const struct dpt_label_numbers *numbers, bool classes)
{
    char told[DPT_LABELS_TOLD];

    if (s->spec->log == NULL)
        return;
    if (classes)
        dpt_log_warn(s->spec->log,
                     "%s: the labels are whole numbers, stored as floats: taken as %lld classes; "
                     "--regression takes them as regression targets",
                     path, (long long)numbers->largest + 1);
    else
        dpt_log_warn(s->spec->log,
                     "%s: the labels are %s (--regression); --classes takes each as a class", path,
                     dpt_labels_tell_targets(numbers, told));
}

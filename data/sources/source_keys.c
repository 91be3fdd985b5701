/* What an option, or else the job, says of arrays: their names, the order of their dimensions; and
 * of their labels. */
#include <string.h>

#include "core/base/str.h"
#include "data/shards/labels.h"
#include "data/sources/source_type.h"

enum dpt_status dpt_source_keys(struct dpt_source *s, struct dpt_data_keys *keys,
                                struct dpt_error *err)
{
    *keys = (struct dpt_data_keys){0};
    if (s->spec->conf != NULL)
        *keys = s->spec->conf->keys;
    return dpt_data_keys_take(s->spec->option[DPT_SOURCE_KEYS], &s->region, keys, err);
}

enum dpt_status dpt_source_layout(const struct dpt_source *s, int *layout, struct dpt_error *err)
{
    static const char *const names[] = {DPT_LAYOUTS(DPT_LIST_WORD)};
    const char *text = s->spec->option[DPT_SOURCE_LAYOUT];

    *layout = s->spec->conf != NULL ? s->spec->conf->layout : DPT_LAYOUT_AUTO;
    if (text == NULL)
        return DPT_OK;
    *layout = (int)dpt_find(text, names, DPT_LAYOUT_COUNT);
    if (*layout != DPT_LAYOUT_NCHW && *layout != DPT_LAYOUT_NHWC)
        return dpt_fail(err, DPT_USAGE, "--layout %s: must be nchw or nhwc", text);
    return DPT_OK;
}

enum dpt_status dpt_source_check_labels(const struct dpt_source *s, struct dpt_error *err)
{
    const char *const *option = s->spec->option;

    return option[DPT_SOURCE_CLASSES] != NULL && option[DPT_SOURCE_REGRESSION] != NULL
               ? dpt_fail(err, DPT_USAGE, "--classes and --regression exclude each other")
               : DPT_OK;
}

void dpt_source_tell_targets(const struct dpt_source *s, const char *path,
                             const struct dpt_label_numbers *numbers)
{
    char told[DPT_LABELS_TOLD];

    if (s->spec->log != NULL)
        dpt_log_warn(s->spec->log,
                     "%s: the labels are %s (--regression); --classes takes each as a class", path,
                     dpt_labels_tell_targets(numbers, told));
}

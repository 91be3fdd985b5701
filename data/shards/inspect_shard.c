/* What a job would make of a file's images and labels. */
#include <stdio.h>
#include <string.h>

#include "data/shards/inspect_file.h"

/* An attribute's strings; *texts is NULL where there is none. */
static enum dpt_status read_strings(struct dpt_inspect *f, const struct dpt_inspect_set *set,
                                    const char *name, const char ***texts, size_t *n,
                                    struct dpt_error *err)
{
    char what[128];
    hid_t data;

    snprintf(what, sizeof what, "the attribute %s of %s", name, set->name);
    dpt_inspect_watch(f, what);
    *texts = NULL;
    *n = 0;
    dpt_h5_enter();
    data = H5Dopen2(f->file->id, set->private->field.name, H5P_DEFAULT);
    if (data >= 0) {
        dpt_inspect_strings(f, data, name, texts, n);
        H5Dclose(data);
    }
    dpt_h5_leave();
    return f->region.failed ? dpt_fail_memory(err, "the names of classes", (double)*n) : DPT_OK;
}

static void count_items(void *arg, const void *raw, int64_t n)
{
    struct dpt_inspect_shard *shard = arg;

    for (int64_t i = 0; i < n; i++) {
        const int64_t value = dpt_field_int(&shard->labels->private->field, raw, (size_t)i);

        if (value < 0 || value >= DPT_INSPECT_CLASSES) {
            shard->outside++;
            continue;
        }
        shard->counts[value]++;
        if ((size_t)value >= shard->n_counts)
            shard->n_counts = (size_t)value + 1;
    }
}

static void add_weights(void *arg, const void *raw, int64_t n)
{
    struct dpt_inspect_shard *shard = arg;
    const struct dpt_field *field = &shard->weights->private->field;

    for (int64_t i = 0; i < n; i++) {
        float weight;

        dpt_field_floats(field, (const char *)raw + (size_t)i * field->row_bytes, 1, &weight);
        shard->weight += (double)weight;
        shard->weightless += weight == 0;
    }
}

static struct dpt_inspect_set *either(const struct dpt_inspect *f, const char *name,
                                      const char *other)
{
    struct dpt_inspect_set *set = dpt_inspect_find(f, name);

    return set != NULL ? set : dpt_inspect_find(f, other);
}

enum dpt_status dpt_inspect_shard(struct dpt_inspect *f, struct dpt_inspect_shard *shard, bool *is,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard opened;
    const struct dpt_inspect_set *offsets;
    const char **texts;
    size_t n;

    memset(shard, 0, sizeof *shard);
    shard->images = either(f, "/images", "/x");
    offsets = dpt_inspect_find(f, "/offsets");
    shard->files = shard->images == NULL && offsets != NULL;
    if (shard->files)
        shard->images = dpt_inspect_find(f, "/files");
    shard->labels = either(f, "/labels", "/y");
    *is = shard->images != NULL;
    if (!*is || shard->images->sum == DPT_SUM_UNREADABLE)
        return DPT_OK;
    DPT_TRY(read_strings(f, shard->images, "layout", &texts, &n, err));
    shard->layout = n == 1 ? texts[0] : NULL;
    shard->samples = shard->files ? offsets->items - 1 : shard->images->dims[0];
    if (shard->labels == NULL || shard->labels->sum == DPT_SUM_UNREADABLE)
        return DPT_OK;
    /* The shard is opened as one of numbers to be fitted, which takes class numbers as well. */
    DPT_TRY(dpt_shard_open(&opened, f->path, &(struct dpt_shard_spec){.need_labels = true}, err));
    shard->samples = opened.samples;
    shard->shape = opened.shape;
    shard->width = opened.target_width;
    shard->nhwc = opened.nhwc;
    shard->classes = dpt_shard_whole(&opened) && opened.target_width == 1;
    memcpy(shard->unused, opened.unused, sizeof shard->unused);
    dpt_shard_close(&opened);
    shard->weights = either(f, "/weights", "/mask");
    if (shard->weights != NULL && shard->weights->sum != DPT_SUM_UNREADABLE)
        DPT_TRY(dpt_inspect_scan(f, shard->weights, add_weights, shard, NULL, err));
    DPT_TRY(read_strings(f, shard->labels, "classes", &shard->names, &shard->n_names, err));
    if (!shard->classes)
        goto out;
    shard->counts = dpt_region_alloc(&f->region, DPT_INSPECT_CLASSES * sizeof *shard->counts);
    if (shard->counts == NULL)
        DPT_TRY(dpt_fail_memory(err, "counting classes", DPT_INSPECT_CLASSES * 8.0));
    DPT_TRY(dpt_inspect_scan(f, shard->labels, count_items, shard, NULL, err));
out:
    return status;
}

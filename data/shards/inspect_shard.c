/* What a job would make of a file's images and labels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/shards/inspect_file.h"

/* An attribute's strings; *texts is NULL where there is none. */
static enum dpt_status read_strings(struct dpt_inspect *f, const struct dpt_inspect_set *set,
                                    const char *name, const char ***texts, size_t *n,
                                    struct dpt_error *err)
{
    hid_t data, attribute = -1;
    bool good = true;
    char what[128];

    *texts = NULL;
    *n = 0;
    if (f->watch != NULL) {
        snprintf(what, sizeof what, "the attribute %s of %s", name, set->name);
        f->watch(f->watch_arg, what);
    }
    dpt_h5_enter();
    data = H5Dopen2(f->file->id, set->private->path, H5P_DEFAULT);
    if (data >= 0 && H5Aexists(data, name) > 0)
        attribute = H5Aopen(data, name, H5P_DEFAULT);
    if (attribute >= 0) {
        good = dpt_inspect_strings(f, attribute, texts, n);
        H5Aclose(attribute);
    }
    if (data >= 0)
        H5Dclose(data);
    dpt_h5_leave();
    return good ? DPT_OK : dpt_fail_memory(err, "the names of classes", (double)*n);
}

static void count_items(struct dpt_inspect_shard *shard, const struct dpt_field *field,
                        const void *raw, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t value = dpt_field_int(field, raw, (size_t)i);

        if (value < 0 || value >= DPT_INSPECT_CLASSES) {
            shard->outside++;
            continue;
        }
        shard->counts[value]++;
        if ((size_t)value >= shard->n_counts)
            shard->n_counts = (size_t)value + 1;
    }
}

static void add_weights(struct dpt_inspect_shard *shard, const struct dpt_field *field,
                        const void *raw, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float weight;

        dpt_field_floats(field, (const char *)raw + (size_t)i * field->row_bytes, 1, &weight);
        shard->weight += (double)weight;
        shard->weightless += weight == 0;
    }
}

static enum dpt_status sum_weights(struct dpt_inspect *f, struct dpt_inspect_shard *shard,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_inspect_set *set = shard->weights;
    void *raw = malloc(dpt_inspect_piece_bytes(set));

    if (raw == NULL)
        DPT_TRY(dpt_fail_memory(err, "the weights", (double)dpt_inspect_piece_bytes(set)));
    DPT_TRY(dpt_inspect_attach(f, set, err));
    for (int64_t first = 0, n; first < set->items; first += n) {
        n = dpt_inspect_piece(set, first);
        DPT_TRY(dpt_inspect_items(f, set, first, n, raw, err));
        add_weights(shard, &set->private->field, raw, n);
    }
out:
    dpt_inspect_detach(set);
    free(raw);
    return status;
}

static enum dpt_status count_classes(struct dpt_inspect *f, struct dpt_inspect_shard *shard,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_inspect_set *set = shard->labels;
    const size_t bytes = dpt_inspect_piece_bytes(set);
    void *raw = malloc(bytes);

    shard->counts = dpt_region_alloc(&f->region, DPT_INSPECT_CLASSES * sizeof *shard->counts);
    if (raw == NULL || shard->counts == NULL)
        DPT_TRY(dpt_fail_memory(err, "counting classes", (double)bytes));
    DPT_TRY(dpt_inspect_attach(f, set, err));
    for (int64_t first = 0, n; first < set->items; first += n) {
        n = dpt_inspect_piece(set, first);
        DPT_TRY(dpt_inspect_items(f, set, first, n, raw, err));
        count_items(shard, &set->private->field, raw, n);
    }
out:
    dpt_inspect_detach(set);
    free(raw);
    return status;
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
    const char **texts;
    size_t n;

    memset(shard, 0, sizeof *shard);
    shard->images = either(f, "/images", "/x");
    shard->labels = either(f, "/labels", "/y");
    *is = shard->images != NULL;
    if (!*is || shard->images->sum == DPT_SUM_UNREADABLE)
        return DPT_OK;
    DPT_TRY(read_strings(f, shard->images, "layout", &texts, &n, err));
    shard->layout = n == 1 ? texts[0] : NULL;
    if (shard->labels == NULL || shard->labels->sum == DPT_SUM_UNREADABLE)
        return DPT_OK;
    /* As for numbers to be fitted, which takes class numbers as well. */
    DPT_TRY(dpt_shard_open(&opened, f->path, false, err));
    shard->samples = opened.samples;
    shard->shape = opened.shape;
    shard->nhwc = opened.nhwc;
    shard->classes =
        opened.labels.info.type == DPT_H5_U8 || opened.labels.info.type == DPT_H5_INTEGER;
    memcpy(shard->unused, opened.unused, sizeof shard->unused);
    dpt_shard_close(&opened);
    shard->weights = either(f, "/weights", "/mask");
    if (shard->weights != NULL && shard->weights->sum != DPT_SUM_UNREADABLE)
        DPT_TRY(sum_weights(f, shard, err));
    DPT_TRY(read_strings(f, shard->labels, "classes", &shard->names, &shard->n_names, err));
    if (shard->classes)
        DPT_TRY(count_classes(f, shard, err));
out:
    return status;
}

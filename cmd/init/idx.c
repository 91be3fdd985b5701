#include "cmd/init/idx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "data/sources/source.h"
#include "data/tables/array.h"

enum dpt_status dpt_init_idx_add(struct dpt_init_idx *idx, const char *path, bool *is,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_array array = {0};
    struct stat info;
    const char *copy;

    *is = false;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return DPT_OK;
    status = dpt_array_open_idx(&array, path, NULL, err);
    if (status == DPT_BAD_DATA)
        status = DPT_OK; /* it is of another kind */
    else if (status == DPT_OK)
        *is = true;
    DPT_TRY(status);
    if (!*is)
        goto out;
    DPT_GROW(idx->at, &idx->room, idx->n + 1, "the list of files", err);
    copy = dpt_region_strdup(&idx->paths, path);
    if (copy == NULL)
        DPT_TRY(dpt_fail_memory(err, "the list of files", (double)idx->n));
    idx->at[idx->n++] = (struct dpt_init_idx_file){.path = copy, .dims = array.npy.n_dims};
out:
    dpt_input_close(&array.in);
    return status;
}

void dpt_init_idx_release(struct dpt_init_idx *idx)
{
    free(idx->at);
    dpt_region_release(&idx->paths);
}

/* "train-labels-idx1-ubyte" for "train-images-idx3-ubyte", as far as names have the words that
 * differ, both with or without .gz; false: this is another file's. */
static bool is_labels_of(const char *labels, const char *images)
{
    while (*images != '\0' || *labels != '\0') {
        if (strncmp(images, "images", 6) == 0 && strncmp(labels, "labels", 6) == 0) {
            images += 6;
            labels += 6;
        } else if (strncmp(images, "idx3", 4) == 0 && strncmp(labels, "idx1", 4) == 0) {
            images += 4;
            labels += 4;
        } else if (*images == *labels) {
            images++;
            labels++;
        } else {
            images += strcmp(images, ".gz") == 0 ? 3 : 0;
            labels += strcmp(labels, ".gz") == 0 ? 3 : 0;
            return *images == '\0' && *labels == '\0';
        }
    }
    return true;
}

/* The labels of file i: those with its name, or else the next file. idx->n: there are none. */
static size_t find_labels(const struct dpt_init_idx *idx, size_t i)
{
    for (size_t k = 0; k < idx->n; k++)
        if (idx->at[k].dims == 1 && !idx->at[k].used &&
            is_labels_of(idx->at[k].path, idx->at[i].path))
            return k;
    return i + 1 < idx->n && idx->at[i + 1].dims == 1 && !idx->at[i + 1].used ? i + 1 : idx->n;
}

/* Makes a shard of two files. */
static enum dpt_status convert(const char *const inputs[2], const char *prefix, struct dpt_log *log,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source_spec spec = {.convert = true, .inputs = inputs, .n_inputs = 2, .log = log};
    const struct dpt_shard_output output = {
        .prefix = prefix, .shards = 1, .from = inputs[0], .log = log};
    struct dpt_conversion done = {0};
    char digits[32];

    DPT_TRY(dpt_source_format_find("", "idx", true, &spec.format, err));
    DPT_TRY(dpt_source_convert(&spec, &output, &done, err));
    dpt_log_info(log, "%s: %s samples of %s and %s", done.result[0].first.text,
                 dpt_group_digits(digits, done.samples[0]), inputs[0], inputs[1]);
out:
    dpt_conversion_release(&done);
    return status;
}

/* The prefix and name of the shard of a file of images, in its folder. */
static enum dpt_status name_shard(struct dpt_init_idx *idx, struct dpt_init_idx_file *images,
                                  const char *part, struct dpt_error *err)
{
    const char *slash = strrchr(images->path, '/');
    const int folder = slash != NULL ? (int)(slash + 1 - images->path) : 0;

    images->prefix = dpt_region_printf(&idx->paths, "%.*s%s", folder, images->path, part);
    images->shard =
        dpt_region_printf(&idx->paths, "%.*s%s-00000-of-00001.h5", folder, images->path, part);
    return idx->paths.failed ? dpt_fail_memory(err, "the names of shards", 0) : DPT_OK;
}

/* Finds the labels of each file of images, and checks the shards that are to be made. */
static enum dpt_status match(struct dpt_init_idx *idx, const char *(*part_of)(const char *),
                             bool force, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < idx->n; i++) {
        struct dpt_init_idx_file *images = &idx->at[i];

        if (images->dims == 1)
            continue;
        images->labels = find_labels(idx, i);
        if (images->labels == idx->n)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: no labels found: name them after it, or give them its name with "
                             "`labels` and idx1 for `images` and idx3",
                             images->path));
        idx->at[images->labels].used = true;
        DPT_TRY(name_shard(idx, images, part_of(images->path), err));
        for (size_t k = 0; k < i; k++)
            if (idx->at[k].shard != NULL && strcmp(idx->at[k].shard, images->shard) == 0)
                DPT_TRY(dpt_fail(err, DPT_USAGE,
                                 "%s: would be %s, as %s would; `dptrain convert idx` makes shards "
                                 "under names of your own",
                                 images->path, images->shard, idx->at[k].path));
        if (!force && dpt_file_exists(images->shard))
            DPT_TRY(
                dpt_fail(err, DPT_USAGE,
                         "%s exists already: name it in place of %s, or replace it with --force",
                         images->shard, images->path));
    }
    for (size_t i = 0; i < idx->n; i++)
        if (idx->at[i].dims == 1 && !idx->at[i].used)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: holds labels, and no images are given for them",
                             idx->at[i].path));
out:
    return status;
}

enum dpt_status dpt_init_idx_convert(struct dpt_init_idx *idx, const char *(*part_of)(const char *),
                                     bool force, struct dpt_log *log, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(match(idx, part_of, force, err));
    for (size_t i = 0; i < idx->n; i++) {
        const struct dpt_init_idx_file *images = &idx->at[i];

        if (images->shard != NULL)
            DPT_TRY(convert((const char *const[]){images->path, idx->at[images->labels].path},
                            images->prefix, log, err));
    }
out:
    return status;
}

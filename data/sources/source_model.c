/* What a job's own data tell of the samples that its model takes. */
#include <stdlib.h>
#include <string.h>

#include "data/sets/parts.h"
#include "data/sources/source.h"
#include "data/tables/columns.h"

/* The names of a file's classes, for longer than it is open. */
static enum dpt_status keep_names(const struct dpt_class_names *found, const char *from,
                                  struct dpt_source_model *model, struct dpt_region *region,
                                  struct dpt_error *err)
{
    const size_t n = found->n;
    const char **names = dpt_region_alloc(region, n * sizeof *names);

    if (n == 0)
        return DPT_OK;
    model->classes_of = dpt_region_strdup(region, from);
    for (size_t i = 0; names != NULL && i < n; i++)
        names[i] = dpt_region_strdup(region, found->at[i]);
    if (region->failed)
        return dpt_fail_memory(err, "the names of classes", (double)n * sizeof *names);
    model->classes = names;
    model->n_classes = n;
    return DPT_OK;
}

/* The names of the labels, and what was subtracted from them; check region->failed. */
static void take_labels(struct dpt_source_model *model, const struct dpt_columns *parsed,
                        struct dpt_region *region)
{
    const size_t n = parsed->n_labels;
    const char **names = dpt_region_alloc(region, n * sizeof *names);
    double *offsets = dpt_region_alloc(region, n * sizeof *offsets);
    bool any = false;

    for (size_t k = 0; names != NULL && offsets != NULL && k < n; k++) {
        const struct dpt_column *label = &parsed->at[parsed->labels[k]];

        names[k] = dpt_region_strdup(region, label->name);
        offsets[k] = label->offset;
        any = any || label->offset != 0;
    }
    model->labels = names;
    model->n_labels = n;
    model->offsets = any ? offsets : NULL;
}

/* Takes the text of a shard, or checkpoint. *parsed: out; release it in any case. */
static enum dpt_status take_text(struct dpt_source_model *model, const char *text, const char *from,
                                 struct dpt_columns *parsed, struct dpt_region *region,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_columns_parse(parsed, text, from, err));
    if (parsed->n > 0) {
        model->columns = dpt_region_strdup(region, text);
        model->columns_of = dpt_region_strdup(region, from);
        take_labels(model, parsed, region);
    }
    if (parsed->fit != NULL) {
        model->fit = dpt_region_strdup(region, parsed->fit);
        model->fit_of = dpt_region_strdup(region, from);
    }
    if (region->failed)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)strlen(text)));
out:
    return status;
}

static enum dpt_status read_shard(struct dpt_source_model *model, const char *path,
                                  const struct dpt_shard_spec *how, struct dpt_region *region,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_columns parsed = {0};
    struct dpt_shard shard = {0};

    *model = (struct dpt_source_model){0};
    DPT_TRY(dpt_shard_open(&shard, path, how, err));
    model->known = model->seen = true;
    model->u8 = shard.images.info.type == DPT_H5_U8;
    model->shape = model->stored = shard.shape;
    model->targets = shard.labels.name != NULL && !dpt_shard_whole(&shard);
    if (shard.columns != NULL)
        DPT_TRY(take_text(model, shard.columns, shard.path, &parsed, region, err));
    DPT_TRY(keep_names(&shard.names, shard.path, model, region, err));
out:
    dpt_columns_release(&parsed);
    dpt_shard_close(&shard);
    return status;
}

enum dpt_status dpt_source_model_of(struct dpt_source_model *model, const char *path, bool classes,
                                    struct dpt_region *region, struct dpt_error *err)
{
    return read_shard(model, path, &(struct dpt_shard_spec){.classes = classes}, region, err);
}

/* A checkpoint's columns, and names of classes where nobody else has some. */
static enum dpt_status keep_columns(struct dpt_source_model *model, const char *columns,
                                    const char *from, struct dpt_region *region,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_columns parsed = {0};

    DPT_TRY(take_text(model, columns, from, &parsed, region, err));
    /* In multi-label tables the values are the words for 0 and 1, not classes. */
    for (size_t i = 0; i < parsed.n && model->n_classes == 0 && model->n_labels < 2; i++) {
        const struct dpt_column *label = &parsed.at[i];
        const char **names;

        if (label->role != DPT_COLUMN_LABEL || label->values.n == 0)
            continue;
        names = dpt_region_alloc(region, label->values.n * sizeof *names);
        for (size_t k = 0; names != NULL && k < label->values.n; k++)
            names[k] = dpt_region_strdup(region, label->texts[k]);
        model->classes = names;
        model->n_classes = label->values.n;
        model->classes_of = model->columns_of;
    }
    if (region->failed)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)strlen(columns)));
out:
    dpt_columns_release(&parsed);
    return status;
}

/* Multi-label outputs are named by the file's attribute `classes` if no columns name them. */
static void name_labels(struct dpt_source_model *model)
{
    model->labels = model->classes;
    model->n_labels = model->n_classes;
}

enum dpt_status dpt_source_model_keep(struct dpt_source_model *model,
                                      const struct dpt_source_kept *kept, const char *from,
                                      struct dpt_region *region, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_class_names names = {0};

    if (kept->type[0] != '\0') {
        model->seen = true;
        model->u8 = strcmp(kept->type, "uint8") == 0;
    }
    if (kept->classes != NULL) {
        const bool alike = model->labels == model->classes; /* no columns name the labels */

        DPT_TRY(dpt_class_names_parse(&names, kept->classes, from, err));
        DPT_TRY(keep_names(&names, from, model, region, err));
        if (alike)
            name_labels(model);
    }
    if (kept->columns != NULL)
        DPT_TRY(keep_columns(model, kept->columns, from, region, err));
out:
    dpt_class_names_release(&names);
    return status;
}

static enum dpt_status look(struct dpt_source_model *model, const struct dpt_data_conf *conf,
                            const struct dpt_texts *paths, bool classes, struct dpt_region *region,
                            struct dpt_error *err)
{
    const struct dpt_dataset_spec spec = {.conf = conf, .paths = paths, .classes = classes};
    const struct dpt_shard_spec how = {
        .classes = classes, .keys = conf->keys, .layout = conf->layout};
    enum dpt_status status = DPT_OK;
    struct dpt_dataset set = {0};
    struct dpt_shape resized;
    struct dpt_error ignored;
    char **found = NULL;

    if (paths->n == 1 && strcmp(paths->at[0], "synthetic") == 0) {
        if (dpt_dataset_describe(&set, &spec, NULL, &ignored) == DPT_OK) {
            model->known = model->seen = true;
            model->u8 = set.u8;
            model->shape = set.shape;
            model->stored = set.stored;
            dpt_dataset_close(&set);
        }
        return DPT_OK;
    }
    if (paths->n == 0 || dpt_paths_find(paths, "data", &found, &ignored) != DPT_OK)
        return DPT_OK;
    /* A damaged file here is no hindrance to predict others; but memory that ran out is. */
    if (read_shard(model, found[0], &how, region, &ignored) == DPT_RANK) {
        *err = ignored;
        status = DPT_RANK;
    }
    if (model->known) /* sizes that do not fit are told by what takes them */
        dpt_data_view(conf, "data", &model->stored, &resized, &model->shape, &ignored);
    dpt_paths_release(found);
    return status;
}

enum dpt_status dpt_source_model_find(struct dpt_source_model *model,
                                      const struct dpt_data_conf *conf, bool classes,
                                      struct dpt_region *region, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_texts *const sets[] = {&conf->train, &conf->test, &conf->valid};

    *model = (struct dpt_source_model){0};
    for (size_t i = 0; model->n_classes == 0 && i < sizeof sets / sizeof sets[0]; i++) {
        struct dpt_source_model found = {0};

        DPT_TRY(look(&found, conf, sets[i], classes, region, err));
        if (!model->known)
            *model = found;
        if (model->columns == NULL) {
            model->columns = found.columns;
            model->columns_of = found.columns_of;
            model->labels = found.labels;
            model->n_labels = found.n_labels;
            model->offsets = found.offsets;
        }
        if (model->fit == NULL) {
            model->fit = found.fit;
            model->fit_of = found.fit_of;
        }
        model->classes = found.classes;
        model->n_classes = found.n_classes;
        model->classes_of = found.classes_of;
    }
    if (model->n_labels == 0)
        name_labels(model);
out:
    return status;
}

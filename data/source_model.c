/* What a job's own data tell of the samples that its model takes. */
#include <stdlib.h>
#include <string.h>

#include "data/parts.h"
#include "data/source.h"

enum { NAMES_MOST = 1 << 20 };

/* The strings of an attribute, of fixed or variable length. *n is 0 where it holds none. */
static enum dpt_status read_names(hid_t attribute, struct dpt_source_model *model,
                                  struct dpt_arena *arena, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const hssize_t n = H5Sget_simple_extent_npoints(space);
    const bool text = H5Tget_class(type) == H5T_STRING && n > 0 && n < NAMES_MOST;
    const bool variable = text && H5Tis_variable_str(type) > 0;
    const size_t width = variable ? sizeof(char *) : H5Tget_size(type);
    const char **names = NULL;
    char *bytes = NULL;

    if (!text || width == 0 || width > NAMES_MOST)
        goto out;
    bytes = calloc((size_t)n, width);
    names = dpt_arena_alloc(arena, (size_t)n * sizeof *names);
    if (bytes == NULL || names == NULL)
        DPT_TRY(dpt_fail_memory(err, "the names of classes", (double)n * (double)width));
    if (H5Aread(attribute, type, bytes) < 0)
        goto out;
    for (hssize_t i = 0; i < n; i++) {
        const char *one = variable ? ((char **)(void *)bytes)[i] : bytes + (size_t)i * width;

        names[i] = one == NULL ? ""
                               : dpt_arena_strndup(arena, one,
                                                   variable ? strlen(one) : strnlen(one, width));
        if (names[i] == NULL)
            status = dpt_fail_memory(err, "the names of classes", (double)width);
    }
    if (variable)
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, bytes);
    DPT_TRY(status);
    model->classes = names;
    model->n_classes = (size_t)n;
out:
    free(bytes);
    H5Sclose(space);
    H5Tclose(type);
    return status;
}

static enum dpt_status find_names(const struct dpt_shard *shard, struct dpt_source_model *model,
                                  struct dpt_arena *arena, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t file = H5I_INVALID_HID, data = H5I_INVALID_HID, attribute = H5I_INVALID_HID;
    struct dpt_error ignored;

    if (shard->labels.name[0] == '\0')
        return DPT_OK;
    dpt_h5_enter();
    if (dpt_h5_open(shard->path, &file, &ignored) == DPT_OK)
        data = H5Dopen2(file, shard->labels.name, H5P_DEFAULT);
    if (data >= 0 && H5Aexists(data, "classes") > 0)
        attribute = H5Aopen(data, "classes", H5P_DEFAULT);
    if (attribute >= 0) {
        status = read_names(attribute, model, arena, err);
        H5Aclose(attribute);
    }
    if (data >= 0)
        H5Dclose(data);
    if (file >= 0)
        H5Fclose(file);
    dpt_h5_leave();
    return status;
}

enum dpt_status dpt_source_model_of(struct dpt_source_model *model, const char *path, bool classes,
                                    struct dpt_arena *arena, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard shard = {0};

    *model = (struct dpt_source_model){0};
    DPT_TRY(dpt_shard_open_any(&shard, path, classes, err));
    model->known = model->typed = true;
    model->u8 = shard.images.info.type == DPT_H5_U8;
    model->shape = shard.shape;
    status = find_names(&shard, model, arena, err);
    dpt_shard_close(&shard);
out:
    return status;
}

static enum dpt_status look(struct dpt_source_model *model, const struct dpt_data_conf *conf,
                            const struct dpt_texts *paths, bool classes, struct dpt_arena *arena,
                            struct dpt_error *err)
{
    const struct dpt_dataset_spec spec = {.conf = conf, .paths = paths, .classes = classes};
    enum dpt_status status = DPT_OK;
    struct dpt_dataset set = {0};
    struct dpt_error ignored;
    char **found = NULL;

    if (paths->n == 1 && strcmp(paths->at[0], "synthetic") == 0) {
        if (dpt_dataset_describe(&set, &spec, &ignored) == DPT_OK) {
            model->known = model->typed = true;
            model->u8 = set.u8;
            model->shape = set.shape;
            dpt_dataset_close(&set, NULL);
        }
        return DPT_OK;
    }
    if (paths->n == 0 || dpt_paths_find(paths, "data", &found, &ignored) != DPT_OK)
        return DPT_OK;
    /* A damaged file here is no hindrance to predict others; but memory that ran out is. */
    if (dpt_source_model_of(model, found[0], classes, arena, &ignored) == DPT_RANK) {
        *err = ignored;
        status = DPT_RANK;
    }
    dpt_paths_release(found);
    return status;
}

enum dpt_status dpt_source_model_find(struct dpt_source_model *model,
                                      const struct dpt_data_conf *conf, bool classes,
                                      struct dpt_arena *arena, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_texts *const sets[] = {&conf->train, &conf->test, &conf->valid};

    *model = (struct dpt_source_model){0};
    for (size_t i = 0; !model->known && i < sizeof sets / sizeof sets[0]; i++)
        DPT_TRY(look(model, conf, sets[i], classes, arena, err));
out:
    return status;
}

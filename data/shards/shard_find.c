/* Finds the samples and labels among a file's data sets, or the message if it has none. */
#include <stdio.h>
#include <string.h>

#include "core/base/str.h"
#include "data/shards/shard.h"
#include "data/tables/array_names.h"

enum { NAME = DPT_ARRAY_NAME, LISTED = 12 };

/* The name of the i-th link of a group; false: it cannot be read. */
static bool link_name(hid_t group, hsize_t i, char name[NAME])
{
    return H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, NAME, H5P_DEFAULT) >=
           0;
}

static hsize_t count_links(hid_t group)
{
    H5G_info_t info;

    return H5Gget_info(group, &info) < 0 ? 0 : info.nlinks;
}

/* What a file holds, for the one who looks for other names: "/data, /meta/". taken: [n] names that
 * are left out, NULL after the last. */
static void list_contents(hid_t file, const char *const *taken, size_t n, struct dpt_str *out)
{
    const hsize_t links = count_links(file);

    for (hsize_t i = 0; i < links && i < LISTED; i++) {
        bool left_out = false;
        char name[NAME];
        hid_t object;

        if (!link_name(file, i, name))
            continue;
        for (size_t k = 0; k < n && taken[k] != NULL; k++)
            left_out = left_out || strcmp(name, taken[k]) == 0;
        if (left_out)
            continue;
        object = H5Oopen(file, name, H5P_DEFAULT);
        dpt_str_printf(out, "%s/%s%s", out->length > 0 ? ", " : "", name,
                       object >= 0 && H5Iget_type(object) == H5I_GROUP ? "/" : "");
        dpt_h5_close(object);
    }
    if (links > LISTED)
        dpt_str_printf(out, ", …");
}

static bool has(hid_t file, const char *name)
{
    return H5Lexists(file, name, H5P_DEFAULT) > 0;
}

/* What other programs' files are that hold no samples; NULL: none of these. */
static const char *other_kind(hid_t file)
{
    if (has(file, "model_weights") || has(file, "_layer_checkpoint_dependencies") ||
        (H5Aexists(file, "keras_version") > 0 && H5Aexists(file, "layer_names") > 0))
        return "is a Keras model, not data";
    if (has(file, "params") && has(file, "job"))
        return "is a checkpoint of dptrain, not data";
    return NULL;
}

/* Looks at the names of a group's data sets, and of those in its groups where `deeper`. */
static void guess(hid_t group, const char *prefix, bool deeper, struct dpt_array_names *names)
{
    const hsize_t links = count_links(group);

    for (hsize_t i = 0; i < links && i < LISTED; i++) {
        char name[NAME] = "", path[2 * NAME];
        hid_t object = H5I_INVALID_HID;

        if (link_name(group, i, name))
            object = H5Oopen(group, name, H5P_DEFAULT);
        snprintf(path, sizeof path, "%s%s", prefix, name);
        if (object >= 0 && H5Iget_type(object) == H5I_DATASET)
            dpt_array_names_look(names, path);
        strcat(path, "/");
        if (object >= 0 && H5Iget_type(object) == H5I_GROUP && deeper)
            guess(object, path, false, names);
        dpt_h5_close(object);
    }
}

/* Says that a file has no data set under a name, what it has, and how to name another. */
static enum dpt_status tell_missing(hid_t file, const char *path, const char *missing,
                                    struct dpt_error *err)
{
    const char *kind = other_kind(file);
    struct dpt_str contents = {0};
    struct dpt_array_names names = {0};

    if (kind != NULL)
        return dpt_fail(err, DPT_BAD_DATA, "%s %s: %s", path, kind, missing);
    list_contents(file, NULL, 0, &contents);
    guess(file, "", true, &names);
    if (dpt_h5_is_written(path))
        dpt_fail(err, DPT_BAD_DATA,
                 "%s %s, and another program has it open for writing at the moment: wait until it "
                 "is closed",
                 path, missing);
    else if (contents.length == 0)
        dpt_fail(err, DPT_BAD_DATA, "%s %s: it holds nothing", path, missing);
    else
        dpt_fail(err, DPT_BAD_DATA,
                 "%s %s; it holds %s; other names: `data: {keys: {x: %s, y: %s}}` in the job, or "
                 "--keys %s,%s",
                 path, missing, contents.text, dpt_array_name(names.x), dpt_array_name(names.y),
                 dpt_array_name(names.x), dpt_array_name(names.y));
    dpt_str_release(&contents);
    return DPT_BAD_DATA;
}

enum dpt_status dpt_shard_find(hid_t file, const char *path, const char *key, const char *name,
                               const char *other, struct dpt_field *field, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char missing[256];
    bool exists;

    if (key != NULL) {
        key += *key == '/';
        DPT_TRY(dpt_h5_exists(file, path, key, &exists, err));
        field->name = key;
        if (exists)
            return dpt_field_describe(field, file, path, err);
        field->name = NULL;
        snprintf(missing, sizeof missing, "has no /%.200s", key);
    } else {
        const htri_t first = H5Lexists(file, name, H5P_DEFAULT);
        const htri_t second = H5Lexists(file, other, H5P_DEFAULT);

        if (first < 0 || second < 0)
            return dpt_h5_fail(err, DPT_BAD_DATA, "%s cannot be read: damaged", path);
        if (first || second) {
            field->name = first ? name : other;
            return dpt_field_describe(field, file, path, err);
        }
        snprintf(missing, sizeof missing, "has neither /%s nor /%s", name, other);
    }
    DPT_TRY(tell_missing(file, path, missing, err));
out:
    return status;
}

void dpt_shard_note_unused(struct dpt_shard *shard, hid_t file)
{
    const char *taken[DPT_SHARD_FIELDS + 3] = {0};
    size_t n = 0;
    struct dpt_str text = {0};

    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++)
        if (dpt_shard_field(shard, i)->name != NULL)
            taken[n++] = dpt_shard_field(shard, i)->name;
    if (shard->files)
        taken[n++] = "offsets";
    if (shard->columns != NULL)
        taken[n++] = "columns";
    if (shard->has_ids)
        taken[n++] = "id";
    list_contents(file, taken, n, &text);
    if (text.text != NULL)
        snprintf(shard->unused, sizeof shard->unused, "%s", text.text);
    dpt_str_release(&text);
}

bool dpt_shard_keeps_files(hid_t file)
{
    return has(file, "files") && H5Lexists(file, "images", H5P_DEFAULT) == 0 &&
           H5Lexists(file, "x", H5P_DEFAULT) == 0;
}

#include "data/shards/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/hash.h"
#include "data/tables/columns.h"

static enum dpt_status read_order(hid_t file, struct dpt_shard *shard, int layout,
                                  struct dpt_error *err)
{
    const hid_t data = H5Dopen2(file, shard->images.name, H5P_DEFAULT);
    enum dpt_status status = DPT_OK;
    const char *const *texts;
    size_t n;

    shard->unsaid = H5Aexists(data, "layout") == 0;
    if (shard->unsaid) {
        shard->nhwc = layout == DPT_LAYOUT_NHWC;
        shard->unsaid = layout == DPT_LAYOUT_AUTO;
    } else {
        texts = dpt_h5_texts(data, "layout", &n);
        shard->nhwc = texts != NULL && n == 1 && strcasecmp(texts[0], "NHWC") == 0;
        if (texts == NULL || n != 1 || (!shard->nhwc && strcasecmp(texts[0], "NCHW") != 0))
            status = dpt_fail(
                err, DPT_BAD_DATA, "%s: the attribute layout of /%s is '%.15s', not NCHW or NHWC",
                shard->path, shard->images.name, texts != NULL && n == 1 ? texts[0] : "");
        free((void *)texts);
    }
    H5Dclose(data);
    return status;
}

/* Derives the shape of a sample from the extent of the images. */
static enum dpt_status read_shape(hid_t file, struct dpt_shard *shard, int layout,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->images;
    const struct dpt_h5_info *info = &field->info;
    int64_t c = 1, h = 1, w = 1;
    char text[DPT_DIMS_TEXT];

    if (info->type != DPT_H5_U8 && info->type != DPT_H5_F32 && info->type != DPT_H5_F64)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /%s holds %s values, not uint8 or float32: write it as one of these "
                         "(h5py: file[\"%s\"] = a.astype(\"float32\"))",
                         shard->path, field->name, info->type_text, field->name));
    if (info->n_dims < 2 || info->n_dims > 4)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /%s is %s, not [N, C, H, W], [N, H, W, C], [N, H, W] or [N, D]",
                         shard->path, field->name, dpt_dims_text(info->n_dims, info->dims, text)));
    if (info->n_dims == 4) {
        DPT_TRY(read_order(file, shard, layout, err));
        c = info->dims[shard->nhwc ? 3 : 1];
        h = info->dims[shard->nhwc ? 1 : 2];
        w = info->dims[shard->nhwc ? 2 : 3];
    } else if (info->n_dims == 3) {
        h = info->dims[1];
        w = info->dims[2];
    } else {
        c = info->dims[1];
    }
    if (c < 1 || h < 1 || w < 1 || c > INT32_MAX || h > INT32_MAX || w > INT32_MAX ||
        c * h > INT32_MAX || c * h * w > INT32_MAX / 8)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: /%s is %s: samples of no or too large a size",
                         shard->path, field->name, dpt_dims_text(info->n_dims, info->dims, text)));
    shard->shape.c = (int32_t)c;
    shard->shape.h = (int32_t)h;
    shard->shape.w = (int32_t)w;
    shard->shape.flat = info->n_dims == 2;
    shard->samples = info->dims[0];
out:
    return status;
}

/* Fails where a field has not one row per sample. */
static enum dpt_status check_samples(const struct dpt_shard *shard, const struct dpt_field *field,
                                     struct dpt_error *err)
{
    if (field->info.dims[0] == shard->samples)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA, "%s: /%s has %lld samples, /%s has %lld", shard->path,
                    shard->images.name, (long long)shard->samples, field->name,
                    (long long)field->info.dims[0]);
}

/* What the labels are, given what the loss wants. */
static enum dpt_status read_target(struct dpt_shard *shard, bool classes, struct dpt_error *err)
{
    const struct dpt_field *field = &shard->labels;
    const struct dpt_h5_info *info = &field->info;
    const int64_t width = info->n_dims == 2 ? info->dims[1] : 1;
    char text[DPT_DIMS_TEXT];

    dpt_dims_text(info->n_dims, info->dims, text);
    if (info->type == DPT_H5_OTHER)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: /%s holds %s values: it must be numbers, or class names as numbers with "
            "the names in its attribute classes",
            shard->path, field->name, info->type_text);
    if (info->n_dims < 1 || info->n_dims > 2 || width < 1 || width > INT32_MAX / 8)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: /%s is %s of %s, not [N] numbers or [N, K], K of each sample",
                        shard->path, field->name, text, info->type_text);
    shard->target = classes && width == 1 ? DPT_TARGET_CLASS : DPT_TARGET_VECTOR;
    shard->target_width = (int32_t)width;
    return check_samples(shard, field, err);
}

/* Weights of the samples, where the file has some. */
static enum dpt_status read_weights(hid_t file, struct dpt_shard *shard, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_field *field = &shard->weights;
    const struct dpt_h5_info *info = &field->info;
    const htri_t weights = H5Lexists(file, "weights", H5P_DEFAULT);
    const htri_t mask = H5Lexists(file, "mask", H5P_DEFAULT);
    char text[DPT_DIMS_TEXT];

    if (weights == 0 && mask == 0)
        return DPT_OK;
    if (weights > 0 && mask > 0)
        DPT_TRY(
            dpt_fail(err, DPT_BAD_DATA,
                     "%s holds both /weights and /mask, which mean the same: how much each sample "
                     "counts; delete or rename one of them",
                     shard->path));
    DPT_TRY(dpt_shard_find(file, shard->path, NULL, "weights", "mask", field, err));
    if (info->type == DPT_H5_OTHER || info->n_dims != 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /%s is %s of %s, not [N] numbers: how much each sample counts",
                         shard->path, field->name, dpt_dims_text(info->n_dims, info->dims, text),
                         info->type_text));
    DPT_TRY(check_samples(shard, field, err));
out:
    return status;
}

/* Reads the names of the labels' classes; none where the attribute is missing, damaged or holds
 * something else. */
static enum dpt_status read_class_names(hid_t file, struct dpt_shard *shard, struct dpt_error *err)
{
    const hid_t data = H5Dopen2(file, shard->labels.name, H5P_DEFAULT);
    struct dpt_class_names *names = &shard->names;

    if (data < 0)
        return DPT_OK;
    names->at = dpt_h5_texts(data, "classes", &names->n);
    H5Dclose(data);
    return names->at != NULL || names->n == 0
               ? DPT_OK
               : dpt_fail_memory(err, "the names of classes", (double)names->n);
}

/* Whether a file has texts of one length under this name, in so many dimensions. Others' files may
 * have anything there, which is not ours to complain of, but that it must not lead elsewhere. */
static enum dpt_status find_texts(hid_t file, const char *path, const char *name, int n_dims,
                                  int64_t samples, bool *found, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t set = H5I_INVALID_HID, plist = H5I_INVALID_HID;
    hid_t type = H5I_INVALID_HID, space = H5I_INVALID_HID;
    bool exists;

    *found = false;
    DPT_TRY(dpt_h5_exists(file, path, name, &exists, err));
    set = exists ? H5Oopen(file, name, H5P_DEFAULT) : H5I_INVALID_HID;
    if (set < 0 || H5Iget_type(set) != H5I_DATASET)
        goto out;
    plist = H5Dget_create_plist(set);
    type = H5Dget_type(set);
    if (plist >= 0 && dpt_h5_elsewhere(plist) != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: /%s %s", path, name, dpt_h5_elsewhere(plist)));
    space = plist >= 0 ? H5Dget_space(set) : H5I_INVALID_HID;
    *found = type >= 0 && space >= 0 && H5Tget_class(type) == H5T_STRING &&
             H5Tis_variable_str(type) == 0 && H5Sget_simple_extent_ndims(space) == n_dims &&
             H5Sget_simple_extent_npoints(space) == samples;
out:
    dpt_h5_close(space);
    dpt_h5_close(type);
    dpt_h5_close(plist);
    dpt_h5_close(set);
    return status;
}

/* What a table's shard holds beside samples: how its columns were read, and its rows' names. */
static enum dpt_status read_table(hid_t file, struct dpt_shard *shard, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_h5_info info;
    bool table;

    DPT_TRY(find_texts(file, shard->path, "id", 1, shard->samples, &shard->has_ids, err));
    DPT_TRY(find_texts(file, shard->path, "columns", 0, 1, &table, err));
    if (!table)
        return DPT_OK;
    DPT_TRY(dpt_h5_info(file, shard->path, "columns", &info, err));
    DPT_TRY(dpt_h5_text(file, shard->path, "/columns", &shard->columns, err));
    if (info.has_crc && dpt_crc32(0, shard->columns, (size_t)info.bytes) != info.crc)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /columns does not match its checksum: the file is damaged",
                         shard->path));
    if (!dpt_columns_is(shard->columns)) {
        free(shard->columns);
        shard->columns = NULL;
    }
out:
    return status;
}

enum dpt_status dpt_shard_read_ids(const struct dpt_shard *shard, char **texts, size_t *stride,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_field field = {
        .name = "id", .fd = -1, .data = H5I_INVALID_HID, .type = H5I_INVALID_HID};
    hid_t file = H5I_INVALID_HID;

    *texts = NULL;
    dpt_h5_enter();
    DPT_TRY(dpt_h5_open(shard->path, &file, err));
    DPT_TRY(dpt_field_describe(&field, file, shard->path, err));
    if (field.info.type != DPT_H5_OTHER || field.info.n_dims != 1 ||
        field.info.dims[0] != shard->samples)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: was changed while it was read", shard->path));
    *stride = field.row_bytes + 1;
    *texts = calloc((size_t)shard->samples, *stride);
    if (*texts == NULL)
        DPT_TRY(dpt_fail_memory(err, "the samples' names", (double)shard->samples));
    field.info.contiguous = false; /* a few bytes per sample: by HDF5, without a file of its own */
    DPT_TRY(dpt_field_open(&field, file, err));
    DPT_TRY(dpt_field_read(&field, 0, shard->samples, *texts, err));
    DPT_TRY(dpt_field_check_crc(
        &field, dpt_crc32(0, *texts, (size_t)shard->samples * field.row_bytes), err));
    for (size_t i = (size_t)shard->samples; i-- > 0;) { /* makes room for the NUL of each */
        memmove(*texts + i * *stride, *texts + i * field.row_bytes, field.row_bytes);
        (*texts)[i * *stride + field.row_bytes] = '\0';
    }
out:
    dpt_field_close(&field);
    dpt_h5_close(file);
    dpt_h5_leave();
    if (status != DPT_OK) {
        free(*texts);
        *texts = NULL;
    }
    return status;
}

/* Whether the labels of a file that need not have any are to be looked for. */
static bool has_labels(hid_t file, const struct dpt_shard_spec *spec)
{
    return spec->keys.y != NULL ? H5Oexists_by_name(file, spec->keys.y, H5P_DEFAULT) > 0
                                : H5Lexists(file, "labels", H5P_DEFAULT) != 0 ||
                                      H5Lexists(file, "y", H5P_DEFAULT) != 0;
}

enum dpt_status dpt_shard_begin(struct dpt_shard *shard, const char *path, struct dpt_error *err)
{
    const char *slash;

    shard->fd = -1;
    shard->h5 = H5I_INVALID_HID;
    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++)
        dpt_shard_field(shard, i)->data = dpt_shard_field(shard, i)->type = H5I_INVALID_HID;
    shard->path = strdup(path);
    if (shard->path == NULL)
        return dpt_fail_memory(err, "a path", (double)strlen(path));
    slash = strrchr(shard->path, '/');
    shard->file = slash != NULL ? slash + 1 : shard->path;
    return DPT_OK;
}

enum dpt_status dpt_shard_open(struct dpt_shard *shard, const char *path,
                               const struct dpt_shard_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t file = H5I_INVALID_HID;

    memset(shard, 0, sizeof *shard);
    dpt_h5_enter();
    DPT_TRY(dpt_shard_begin(shard, path, err));
    DPT_TRY(dpt_h5_open(path, &file, err));
    DPT_TRY(dpt_shard_take_mark(dpt_h5_fd(file), path, &shard->mark, err));
    DPT_TRY(dpt_shard_sum_head(dpt_h5_fd(file), path, &shard->head, err));
    if (spec->keys.x == NULL && dpt_shard_keeps_files(file))
        DPT_TRY(dpt_shard_open_files(shard, file, err));
    else
        DPT_TRY(
            dpt_shard_find(file, shard->path, spec->keys.x, "images", "x", &shard->images, err));
    if (spec->need_labels || has_labels(file, spec))
        DPT_TRY(
            dpt_shard_find(file, shard->path, spec->keys.y, "labels", "y", &shard->labels, err));
    if (!shard->files) {
        dpt_shard_turn(shard, file);
        DPT_TRY(read_shape(file, shard, spec->layout, err));
    }
    if (shard->labels.name != NULL) {
        DPT_TRY(read_target(shard, spec->classes, err));
        DPT_TRY(read_class_names(file, shard, err));
    }
    DPT_TRY(read_table(file, shard, err));
    if (shard->files)
        DPT_TRY(dpt_shard_take_fit(shard, err));
    if (spec->need_labels)
        DPT_TRY(read_weights(file, shard, err));
    if (spec->need_labels && spec->keys.x == NULL && spec->keys.y == NULL)
        dpt_shard_note_unused(shard, file);
out:
    dpt_h5_close(file);
    dpt_h5_leave();
    if (status != DPT_OK)
        dpt_shard_close(shard);
    return status;
}

void dpt_shard_close(struct dpt_shard *shard)
{
    dpt_shard_drop(shard);
    dpt_shard_detach(shard);
    dpt_class_names_release(&shard->names);
    free(shard->path);
    free(shard->columns);
    free(shard->texts);
    free(shard->offsets);
    shard->path = shard->columns = shard->texts = NULL;
    shard->offsets = NULL;
}

static bool is_colour(int32_t n)
{
    return n == 1 || n == 3 || n == 4;
}

bool dpt_shard_suspect_layout(const struct dpt_shard *shard)
{
    const struct dpt_shape *s = &shard->shape;

    /* Feature maps of 64x4x4 are no colours. */
    return shard->unsaid && !is_colour(s->c) && is_colour(s->w) && s->h != s->w;
}

bool dpt_shard_direct(const struct dpt_shard *shard)
{
    return shard->images.info.contiguous && shard->images.info.type != DPT_H5_F64;
}

enum dpt_status dpt_shard_check_alike(const struct dpt_shard *a, const struct dpt_shard *b,
                                      struct dpt_error *err)
{
    const struct dpt_field *x = &a->labels, *y = &b->labels;
    char one[40], other[40];

    if (a->files != b->files)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s keeps image files, %s decoded ones: they must be alike",
                        (a->files ? a : b)->path, (a->files ? b : a)->path);
    if (!dpt_same_shape(&a->shape, &b->shape) || dpt_shard_u8(a) != dpt_shard_u8(b) ||
        (a->nhwc != b->nhwc && a->shape.c > 1))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s holds samples of %s %s%s, %s of %s %s%s: they must be alike", a->path,
                        dpt_shape_text(&a->shape, one), a->images.info.type_text,
                        a->nhwc ? " (NHWC)" : "", b->path, dpt_shape_text(&b->shape, other),
                        b->images.info.type_text, b->nhwc ? " (NHWC)" : "");
    if ((x->name != NULL) != (y->name != NULL))
        return dpt_fail(err, DPT_BAD_DATA, "%s has labels, %s has none: they must be alike",
                        (x->name != NULL ? a : b)->path, (x->name != NULL ? b : a)->path);
    if (a->target != b->target || a->target_width != b->target_width)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: /%s has %d %s per sample, /%s of %s has %d %s: they must be alike",
                        a->path, x->name, a->target_width, x->info.type_text, y->name, b->path,
                        b->target_width, y->info.type_text);
    if ((a->weights.name != NULL) != (b->weights.name != NULL)) {
        const struct dpt_shard *with = a->weights.name != NULL ? a : b;

        return dpt_fail(err, DPT_BAD_DATA,
                        "%s has /%s, %s has none: give weights to all shards of a set (1 counts as "
                        "without) or to none",
                        with->path, with->weights.name, (with == a ? b : a)->path);
    }
    return DPT_OK;
}

/* --- names of classes ------------------------------------------------------------------------- */

enum { SHOWN = 64 };

void dpt_class_names_release(struct dpt_class_names *names)
{
    free((void *)names->at);
    *names = (struct dpt_class_names){0};
}

/* Makes a name fit for one line of a message: what is not printed is a question mark. */
static const char *shown(const char *name, char buf[SHOWN])
{
    snprintf(buf, SHOWN, "%s", name);
    for (char *p = buf; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7F)
            *p = '?';
    return buf;
}

/* Names of classes as one text: a line each, in which a line break is "\n" and a backslash "\\". */
void dpt_class_names_write(const char *const *names, size_t n, struct dpt_str *out)
{
    for (size_t i = 0; i < n; i++) {
        for (const char *at = names[i]; *at != '\0'; at++)
            if (*at == '\n' || *at == '\\')
                dpt_str_add(out, *at == '\n' ? "\\n" : "\\\\", 2);
            else
                dpt_str_add(out, at, 1);
        dpt_str_add(out, "\n", 1);
    }
}

enum dpt_status dpt_class_names_parse(struct dpt_class_names *names, const char *text,
                                      const char *from, struct dpt_error *err)
{
    const size_t length = strlen(text);
    const char **at;
    size_t n = 0;
    char *to;

    *names = (struct dpt_class_names){0};
    for (const char *p = text; *p != '\0'; p++)
        n += *p == '\n' || p[1] == '\0';
    if (n == 0)
        return DPT_OK;
    if (n > DPT_MOST_CLASSES)
        return dpt_fail(err, DPT_BAD_DATA, "%s: names %zu classes, no model has more than %d", from,
                        n, DPT_MOST_CLASSES);
    at = malloc(n * sizeof *at + length + 1); /* each line's end makes room for a NUL */
    if (at == NULL)
        return dpt_fail_memory(err, "the names of classes", (double)length);
    to = (char *)(at + n);
    *names = (struct dpt_class_names){at, n};
    for (size_t i = 0; i < n; i++) {
        at[i] = to;
        for (; *text != '\0' && *text != '\n'; text++) {
            const bool escaped = *text == '\\' && (text[1] == 'n' || text[1] == '\\');

            *to++ = escaped && text[1] == 'n' ? '\n' : *text;
            text += escaped;
        }
        *to++ = '\0';
        text += *text == '\n';
    }
    return DPT_OK;
}

enum dpt_status dpt_class_names_check(const struct dpt_class_names *names, const char *path,
                                      const struct dpt_class_names *others, const char *other,
                                      struct dpt_error *err)
{
    char mine[SHOWN], theirs[SHOWN];

    for (size_t i = 0; i < names->n && i < others->n; i++)
        if (strcmp(names->at[i], others->at[i]) != 0)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: class %zu is '%s', in %s it is '%s': a number must mean the "
                            "same class in both; `dptrain convert --like SHARD`, a shard with the "
                            "numbers of the "
                            "second, makes the first again",
                            path, i, shown(names->at[i], mine), other,
                            shown(others->at[i], theirs));
    return DPT_OK;
}

/* Shards that keep image files: where each begins, checked when the shard is opened, and
 * what they are to be decoded to. */
#include <stdlib.h>

#include "core/base/memory.h"
#include "data/shards/shard.h"
#include "data/tables/columns.h"

/* The attribute `shape` of the files: what they are to be decoded to. */
static enum dpt_status read_form(struct dpt_shard *shard, hid_t file, struct dpt_error *err)
{
    const hid_t data = H5Dopen2(file, shard->images.name, H5P_DEFAULT);
    const hid_t attribute =
        H5Aexists(data, "shape") > 0 ? H5Aopen(data, "shape", H5P_DEFAULT) : H5I_INVALID_HID;
    const hid_t type = attribute >= 0 ? H5Aget_type(attribute) : H5I_INVALID_HID;
    const hid_t space = attribute >= 0 ? H5Aget_space(attribute) : H5I_INVALID_HID;
    struct dpt_picture_format *form = &shard->form;
    int64_t shape[3] = {0};
    bool good = type >= 0 && H5Tget_class(type) == H5T_INTEGER &&
                H5Sget_simple_extent_npoints(space) == 3 &&
                H5Aread(attribute, H5T_NATIVE_INT64, shape) >= 0;

    dpt_h5_close(space);
    dpt_h5_close(type);
    dpt_h5_close(attribute);
    dpt_h5_close(data);
    for (int i = 1; i < 3; i++)
        good = good && shape[i] >= 1 && shape[i] <= DPT_PICTURE_SIDE;
    if (!good || (shape[0] != 1 && shape[0] != 3) || shape[0] * shape[1] * shape[2] > INT32_MAX / 8)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: /files has no decoded shape: give it an attribute `shape` of channels (1 or "
            "3), height and width (h5py: file[\"files\"].attrs[\"shape\"] = [3, 224, 224])",
            shard->path);
    *form = (struct dpt_picture_format){
        .channels = (int32_t)shape[0], .height = (int32_t)shape[1], .width = (int32_t)shape[2]};
    shard->shape = (struct dpt_shape){form->channels, form->height, form->width, false};
    return DPT_OK;
}

/* Who takes the offsets. */
struct offsets {
    struct dpt_shard *shard;
    const struct dpt_field *field;
};

/* Each begins after the one before, and none is larger than an image may be. */
static enum dpt_status take_offsets(void *arg, int64_t row, int64_t n, const void *raw,
                                    struct dpt_error *err)
{
    const struct offsets *o = arg;
    const struct dpt_shard *shard = o->shard;
    const int64_t bytes = shard->images.info.bytes;

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = row + i, value = dpt_field_int(o->field, raw, (size_t)i);
        const int64_t before = at > 0 ? shard->offsets[at - 1] : 0;

        if (at == 0 && value != 0)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: /offsets[0] is %lld: the first file begins at byte 0 of /files",
                            shard->path, (long long)value);
        if (at > 0 && value <= before)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: /offsets[%lld] is %lld, not above %lld, the one before: each file "
                            "begins after the last, and none is empty",
                            shard->path, (long long)at, (long long)value, (long long)before);
        if (value > bytes)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: /offsets[%lld] is %lld, past the end of /files, %lld bytes: "
                            "damaged, or not written to the end",
                            shard->path, (long long)at, (long long)value, (long long)bytes);
        if (value - before > DPT_PICTURE_BYTES)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: file %lld of /files has %lld bytes; at most %d MB are taken",
                            shard->path, (long long)at - 1, (long long)(value - before),
                            DPT_PICTURE_BYTES / 1000000);
        shard->offsets[at] = value;
    }
    return DPT_OK;
}

/* Reads and checks where the files begin. */
static enum dpt_status read_offsets(struct dpt_shard *shard, hid_t file, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_field field = {.name = "offsets"};
    struct offsets offsets = {shard, &field};
    const struct dpt_h5_info *info = &field.info;
    uint32_t crc = 0;
    char text[DPT_DIMS_TEXT];

    DPT_TRY(dpt_field_describe(&field, file, shard->path, err));
    if ((info->type != DPT_H5_INTEGER && info->type != DPT_H5_U8) || info->n_dims != 1 ||
        info->dims[0] < 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /offsets is %s of %s, not [N + 1] uint64: where each of N files "
                         "begins in /files, and where the last one ends",
                         shard->path, dpt_dims_text(info->n_dims, info->dims, text),
                         info->type_text));
    if (info->dims[0] - 1 > shard->images.info.bytes)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: /offsets is of %lld files, /files has %lld bytes",
                         shard->path, (long long)info->dims[0] - 1,
                         (long long)shard->images.info.bytes));
    shard->samples = info->dims[0] - 1;
    shard->offsets = calloc((size_t)info->dims[0], sizeof *shard->offsets);
    if (shard->offsets == NULL)
        DPT_TRY(dpt_fail_memory(err, "/offsets", (double)info->dims[0] * sizeof *shard->offsets));
    field.info.contiguous = false; /* a few bytes per sample: by HDF5, without a file of its own */
    DPT_TRY(dpt_field_open(&field, file, err));
    DPT_TRY(dpt_field_scan(&field, 0, info->dims[0], take_offsets, &offsets, &crc, err));
    DPT_TRY(dpt_field_check_crc(&field, crc, err));
    if (shard->offsets[shard->samples] != shard->images.info.bytes)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /offsets ends at %lld, /files has %lld bytes: the last offset is "
                         "where the last file ends",
                         shard->path, (long long)shard->offsets[shard->samples],
                         (long long)shard->images.info.bytes));
out:
    dpt_field_close(&field);
    return status;
}

enum dpt_status dpt_shard_open_files(struct dpt_shard *shard, hid_t file, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_h5_info *info = &shard->images.info;
    char text[DPT_DIMS_TEXT];

    shard->files = true;
    shard->images.name = "files";
    DPT_TRY(dpt_field_describe(&shard->images, file, shard->path, err));
    if (H5Lexists(file, "offsets", H5P_DEFAULT) <= 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s has /files without /offsets, which tells where each begins; or it has "
                         "neither /images nor /x",
                         shard->path));
    if (info->type != DPT_H5_U8 || info->n_dims != 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /files is %s of %s, not the bytes of all files one after the other, "
                         "[B] uint8",
                         shard->path, dpt_dims_text(info->n_dims, info->dims, text),
                         info->type_text));
    DPT_TRY(read_form(shard, file, err));
    DPT_TRY(read_offsets(shard, file, err));
out:
    return status;
}

enum dpt_status dpt_shard_take_fit(struct dpt_shard *shard, struct dpt_error *err)
{
    static const char *const names[] = {DPT_PICTURE_FITS(DPT_LIST_WORD)};
    enum dpt_status status = DPT_OK;
    struct dpt_columns columns = {0};
    size_t fit = DPT_PICTURE_STRETCH;

    if (shard->columns == NULL)
        return DPT_OK;
    DPT_TRY(dpt_columns_parse(&columns, shard->columns, shard->path, err));
    if (columns.fit != NULL)
        fit = dpt_find(columns.fit, names, DPT_PICTURE_FIT_COUNT);
    if (fit == DPT_PICTURE_FIT_COUNT)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: its /columns says that images are fitted by '%s', which is none of "
                         "stretch, crop and pad",
                         shard->path, columns.fit));
    shard->form.fit = (enum dpt_picture_fit)fit;
out:
    dpt_columns_release(&columns);
    return status;
}

#include "data/shards/field.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/tables/array.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw values are little-endian");

enum { PIECE_BYTES = 4 << 20, CACHE_LEAST = 1 << 20, CACHE_MOST = 256 << 20 };

/* Measures the rows of one whose extent is known. */
static void measure(struct dpt_field *field)
{
    field->row_items = 1;
    for (int i = 1; i < field->info.n_dims && field->info.bytes > 0; i++)
        field->row_items *= field->info.dims[i];
    field->row_bytes = (size_t)field->row_items * (size_t)field->info.size;
}

enum dpt_status dpt_field_describe(struct dpt_field *field, hid_t file, const char *path,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    field->path = path;
    field->fd = -1;
    field->data = field->type = H5I_INVALID_HID;
    if (field->name != NULL)
        status = dpt_h5_info(file, path, field->name, &field->info, err);
    measure(field);
    return status;
}

void dpt_field_turn(struct dpt_field *field, const int *axis)
{
    struct dpt_h5_info *info = &field->info;
    const struct dpt_h5_info file = *info;

    for (int i = 0; i < info->n_dims; i++) {
        field->axis[i] = axis[i];
        info->dims[i] = file.dims[axis[i]];
        info->chunk[i] = file.chunk[axis[i]];
    }
    field->turned = true;
    info->contiguous = false; /* HDF5 finds the rows */
    info->has_crc = false;    /* of the bytes in their order in the file */
    info->chunk_rows = info->chunk[0];
    measure(field);
}

enum dpt_status dpt_field_open(struct dpt_field *field, hid_t file, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    double cache = (double)field->info.chunk_rows * (double)field->row_bytes * 1.25;
    hid_t stored;

    cache = cache < CACHE_LEAST ? CACHE_LEAST : cache > CACHE_MOST ? CACHE_MOST : cache;
    H5Pset_chunk_cache(access, 1009, (size_t)cache, 1.0);
    field->data = H5Dopen2(file, field->name, access);
    if (field->data < 0)
        DPT_TRY(
            dpt_h5_fail(err, DPT_BAD_DATA, "%s: /%s cannot be opened", field->path, field->name));
    stored = H5Dget_type(field->data);
    field->type = H5Tcopy(stored);
    if (field->info.type != DPT_H5_OTHER)
        H5Tset_order(field->type, H5T_ORDER_LE);
    H5Tclose(stored);
out:
    H5Pclose(access);
    return status;
}

void dpt_field_close(struct dpt_field *field)
{
    dpt_h5_close(field->type);
    dpt_h5_close(field->data);
    field->data = field->type = H5I_INVALID_HID;
}

/* Puts elements that have the order of the file's axes into that of the field's. count: of each of
 * the file's axes. */
static void turn(const struct dpt_field *field, const hsize_t *count, const char *from, char *to)
{
    const int n = field->info.n_dims;
    const size_t size = (size_t)field->info.size;
    size_t stride[DPT_H5_DIMS], step[DPT_H5_DIMS], index[DPT_H5_DIMS] = {0}, all = 1, at = 0;

    for (int i = n; i-- > 0;) {
        stride[i] = all;
        all *= (size_t)count[i];
    }
    for (int i = 0; i < n; i++)
        step[i] = stride[field->axis[i]];
    for (size_t k = 0; k < all; k++) {
        memcpy(to + k * size, from + at * size, size);
        for (int i = n; i-- > 0;) {
            at += step[i];
            if (++index[i] < (size_t)count[field->axis[i]])
                break;
            at -= step[i] * index[i];
            index[i] = 0;
        }
    }
}

/* One plain block: lists of blocks are far slower. */
static enum dpt_status read_hdf5(const struct dpt_field *field, int64_t row, int64_t rows,
                                 void *raw, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int n = field->info.n_dims;
    hsize_t start[DPT_H5_DIMS] = {0}, count[DPT_H5_DIMS] = {0};
    char *in_file = raw;
    hid_t file_space, memory_space;

    for (int i = 0; i < n; i++)
        count[field->turned ? field->axis[i] : i] = (hsize_t)(i > 0 ? field->info.dims[i] : rows);
    start[field->turned ? field->axis[0] : 0] = (hsize_t)row;
    if (field->turned)
        DPT_TRY(DPT_ALLOCATE(in_file, (size_t)rows * field->row_bytes, field->path, err));
    dpt_h5_enter();
    file_space = H5Dget_space(field->data);
    memory_space = n > 0 ? H5Screate_simple(n, count, NULL) : H5Screate(H5S_SCALAR);
    if ((n > 0 && H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) < 0) ||
        H5Dread(field->data, field->type, memory_space, file_space, H5P_DEFAULT, in_file) < 0)
        status =
            dpt_h5_fail(err, DPT_BAD_DATA, "%s is damaged: /%s cannot be read (rows %lld to %lld)",
                        field->path, field->name, (long long)row, (long long)(row + rows - 1));
    H5Sclose(memory_space);
    H5Sclose(file_space);
    dpt_h5_leave();
    if (field->turned && status == DPT_OK)
        turn(field, count, in_file, raw);
out:
    if (field->turned)
        dpt_free(in_file);
    return status;
}

enum dpt_status dpt_field_read(const struct dpt_field *field, int64_t row, int64_t rows, void *raw,
                               struct dpt_error *err)
{
    if (rows == 0)
        return DPT_OK;
    if (!field->info.contiguous)
        return read_hdf5(field, row, rows, raw, err);
    if (dpt_pread_all(field->fd, raw, (size_t)rows * field->row_bytes,
                      field->info.offset + row * (int64_t)field->row_bytes) == 0)
        return DPT_OK;
    if (errno == EPIPE)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: the file ends before /%s[%lld]: it became shorter while it was read",
                        field->path, field->name, (long long)(row + rows - 1));
    return dpt_fail_errno(err, DPT_IO, "%s: reading /%s[%lld] failed", field->path, field->name,
                          (long long)row);
}

int64_t dpt_field_piece(const struct dpt_field *field, int64_t row, int64_t end)
{
    const int64_t chunk = field->info.chunk_rows;
    int64_t rows = PIECE_BYTES / (int64_t)(field->row_bytes + 1);

    if (rows < 1)
        rows = 1;
    if (chunk > 0 && rows > chunk) /* up to a chunk's border, so that none is unpacked twice */
        rows = (row + rows) / chunk * chunk - row;
    else if (chunk > 0 && rows > chunk - row % chunk)
        rows = chunk - row % chunk;
    return rows < end - row ? rows : end - row;
}

size_t dpt_field_piece_bytes(const struct dpt_field *field, int64_t rows)
{
    const size_t all = (size_t)rows * field->row_bytes;
    const size_t most = field->row_bytes > PIECE_BYTES ? field->row_bytes : PIECE_BYTES;

    return all < most ? all : most;
}

enum dpt_status dpt_field_scan(const struct dpt_field *field, int64_t begin, int64_t end,
                               dpt_field_visit *visit, void *arg, uint32_t *crc,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint8_t *raw;

    DPT_TRY(DPT_ALLOCATE(raw, dpt_field_piece_bytes(field, end - begin), field->path, err));
    for (int64_t row = begin, n; row < end; row += n) {
        n = dpt_field_piece(field, row, end);
        DPT_TRY(dpt_field_read(field, row, n, raw, err));
        if (crc != NULL)
            *crc = dpt_crc32(*crc, raw, (size_t)n * field->row_bytes);
        if (visit != NULL)
            DPT_TRY(visit(arg, row, n, raw, err));
    }
out:
    dpt_free(raw);
    return status;
}

enum dpt_status dpt_field_check_crc(const struct dpt_field *field, uint32_t crc,
                                    struct dpt_error *err)
{
    if (!field->info.has_crc || crc == field->info.crc)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: /%s does not match its checksum (crc32 is %08x, the file says %08x): the "
                    "file is damaged",
                    field->path, field->name, crc, field->info.crc);
}

enum dpt_status dpt_field_verify(const struct dpt_field *field, int64_t rows, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint32_t crc = 0;

    if (!field->info.has_crc)
        return DPT_OK;
    DPT_TRY(dpt_field_scan(field, 0, rows, NULL, NULL, &crc, err));
    DPT_TRY(dpt_field_check_crc(field, crc, err));
out:
    return status;
}

static bool is_float(const struct dpt_field *field)
{
    return field->info.type == DPT_H5_F32 || field->info.type == DPT_H5_F64;
}

double dpt_field_real(const struct dpt_field *field, const void *raw, size_t i)
{
    double value;
    float single;

    if (!is_float(field))
        return (double)dpt_field_int(field, raw, i);
    if (field->info.type == DPT_H5_F64) {
        memcpy(&value, (const char *)raw + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&single, (const char *)raw + i * sizeof single, sizeof single);
    return (double)single;
}

void dpt_field_floats(const struct dpt_field *field, const void *raw, size_t n, float *out)
{
    switch (field->info.type) {
    case DPT_H5_F32:
        memmove(out, raw, n * sizeof *out);
        break;
    case DPT_H5_F64:
        for (size_t i = 0; i < n; i++)
            out[i] = (float)dpt_field_real(field, raw, i);
        break;
    default: /* by no way over doubles, which would round twice */
        for (size_t i = 0; i < n; i++)
            out[i] = (float)dpt_field_int(field, raw, i);
    }
}

int64_t dpt_field_merged(const struct dpt_field *field, const void *raw, int64_t n)
{
    const int64_t items = field->row_items;

    for (int64_t i = items; field->info.type == DPT_H5_F64 && i < n * items; i++)
        if (dpt_float_merges(dpt_field_real(field, raw, (size_t)i),
                             dpt_field_real(field, raw, (size_t)(i - items))))
            return i % items;
    return -1;
}

const char *dpt_field_show(const struct dpt_field *field, const void *raw, size_t i, char *buf)
{
    if (is_float(field))
        snprintf(buf, 32, "%g", dpt_field_real(field, raw, i));
    else
        snprintf(buf, 32, "%lld", (long long)dpt_field_int(field, raw, i));
    return buf;
}

int64_t dpt_field_int(const struct dpt_field *field, const void *raw, size_t i)
{
    const int size = field->info.size;
    uint64_t bits = 0;

    if (is_float(field)) {
        const double value = dpt_field_real(field, raw, i);

        return fabs(value) < 0x1p62 && value == floor(value) ? (int64_t)value : INT64_MIN;
    }

    memcpy(&bits, (const char *)raw + i * (size_t)size, (size_t)size);
    if (!field->info.is_signed)
        return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
    bits <<= 64 - 8 * size; /* the sign bit to the top, then back with it */
    return (int64_t)bits >> (64 - 8 * size);
}

/*
 * npz: NumPy's archives, a zip file with an array in each entry NAME.npy.
 *
 * Written as numpy.savez does, without compression, and with one date for all entries, so that
 * equal models give byte-identical files. Read as numpy.savez and savez_compressed write them:
 * floats of any size and byte order, rows or columns first. libzip checks the entries' checksums.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "core/base/file.h"
#include "core/interchange/weights.h"
#include "data/tables/npy.h"

enum {
    FIRST_DATE = 1 << 5 | 1, /* the first of January 1980, in the words of MS-DOS */
};

static bool is_npz(const unsigned char *head, size_t n)
{
    return n >= 4 && head[0] == 'P' && head[1] == 'K' && (head[2] == 3 || head[2] == 5);
}

/* An entry that is open. */
struct entry {
    zip_file_t *file;
    const char *path, *name; /* of the archive, of the entry */
};

/* Reads the next n bytes of an entry. */
static enum dpt_status take(void *arg, void *bytes, size_t n, struct dpt_error *err)
{
    const struct entry *e = arg;
    char *to = bytes;

    while (n > 0) {
        const zip_int64_t got = zip_fread(e->file, to, n);

        if (got < 0)
            return dpt_fail(err, DPT_BAD_DATA, "%s: %s: %s", e->path, e->name,
                            zip_file_strerror(e->file));
        if (got == 0)
            return dpt_fail(err, DPT_BAD_DATA, "%s: %s: ends too early", e->path, e->name);
        to += got;
        n -= (size_t)got;
    }
    return DPT_OK;
}

static enum dpt_float_kind kind_of(const struct dpt_npy *npy)
{
    if (npy->kind != 'f')
        return DPT_FLOAT_NONE;
    return npy->size == 8 ? DPT_FLOAT_64 : npy->size == 4 ? DPT_FLOAT_32 : DPT_FLOAT_16;
}

/* Opens an entry and reads its array's header; *length: out, of that. */
static enum dpt_status open_entry(struct dpt_weights *w, zip_uint64_t index, const char *name,
                                  struct entry *e, struct dpt_npy *npy, size_t *length,
                                  struct dpt_error *err)
{
    char where[512];

    *e = (struct entry){.path = w->path, .name = name};
    e->file = zip_fopen_index(w->file, index, 0);
    if (e->file == NULL)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %s: %s", w->path, name, zip_strerror(w->file));
    snprintf(where, sizeof where, "%.250s: %.250s", w->path, name);
    return dpt_npy_read(where, take, e, npy, length, err);
}

static enum dpt_status list_entry(struct dpt_weights *w, zip_uint64_t index, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_weight *weight;
    struct entry e = {0};
    struct dpt_npy npy;
    zip_stat_t info;
    size_t length, header;

    if (zip_stat_index(w->file, index, 0, &info) != 0 || (info.valid & ZIP_STAT_NAME) == 0 ||
        (info.valid & ZIP_STAT_SIZE) == 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: entry %llu: %s", w->path, (unsigned long long)index,
                        zip_strerror(w->file));
    length = strlen(info.name);
    if (length > 8 && strcmp(info.name + length - 8, "data.pkl") == 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: is a pickle of PyTorch's, which is a program: save the weights with "
                        "safetensors.torch.save_file(model.state_dict(), FILE)",
                        w->path);
    if (length < 4 || strcmp(info.name + length - 4, ".npy") != 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %.64s: is no array (NAME.npy)", w->path, info.name);
    DPT_TRY(dpt_weights_add(w, info.name, length - 4, &weight, err));
    DPT_TRY(open_entry(w, index, weight->name, &e, &npy, &header, err));
    weight->type = dpt_region_strdup(&w->arena, npy.descr);
    if (weight->type == NULL)
        DPT_TRY(dpt_fail_memory(err, w->path, sizeof npy.descr));
    weight->kind = kind_of(&npy);
    weight->n_dims = npy.n_dims;
    memcpy(weight->dims, npy.dims, sizeof weight->dims);
    weight->position = index;
    weight->swapped = npy.swapped;
    weight->fortran = npy.fortran_order && npy.n_dims > 1;
    DPT_TRY(dpt_weight_count(w, weight, err));
    if (info.size != header + (zip_uint64_t)weight->count * (zip_uint64_t)npy.size)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: %s: has another size than its header says",
                         w->path, weight->name));
out:
    if (e.file != NULL)
        zip_fclose(e.file);
    return status;
}

static enum dpt_status open_npz(struct dpt_weights *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int code = 0;
    const int fd = dup(w->fd); /* libzip closes it */
    zip_int64_t n;

    _Static_assert((int)DPT_NPY_DIMS == (int)DPT_WEIGHT_DIMS, "an array fits a tensor");
    if (fd < 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot open", w->path);
    w->file = zip_fdopen(fd, 0, &code);
    if (w->file == NULL) {
        zip_error_t reason;

        close(fd);
        zip_error_init_with_code(&reason, code);
        dpt_fail(err, DPT_BAD_DATA, "%s: %s", w->path, zip_error_strerror(&reason));
        zip_error_fini(&reason);
        return err->status;
    }
    n = zip_get_num_entries(w->file, 0);
    for (zip_int64_t i = 0; i < n; i++)
        DPT_TRY(list_entry(w, (zip_uint64_t)i, err));
out:
    return status;
}

static void close_npz(struct dpt_weights *w)
{
    if (w->file != NULL)
        zip_discard(w->file);
    w->file = NULL;
}

static enum dpt_status read_npz(struct dpt_weights *w, const struct dpt_weight *weight, void *bytes,
                                size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct entry e = {0};
    struct dpt_npy npy;
    size_t header;
    char more;

    DPT_TRY(open_entry(w, weight->position, weight->name, &e, &npy, &header, err));
    DPT_TRY(take(&e, bytes, n, err));
    /* At its end libzip has compared the checksum. */
    if (zip_fread(e.file, &more, 1) != 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: %s: is damaged: %s", e.path, e.name,
                         zip_file_strerror(e.file)));
out:
    if (e.file != NULL)
        zip_fclose(e.file);
    return status;
}

static bool add_array(zip_t *zip, const struct dpt_weight_entry *e, char header[DPT_NPY_HEADER])
{
    const zip_buffer_fragment_t parts[] = {
        {(zip_uint8_t *)header,
         dpt_npy_header(e->whole ? "<i8" : "<f4", e->dims, e->n_dims, header)},
        {(zip_uint8_t *)e->bytes, e->size},
    };
    zip_source_t *source = zip_source_buffer_fragment(zip, parts, 2, 0);
    char name[DPT_WEIGHT_ENTRY_NAME + 8];
    zip_int64_t index;

    if (source == NULL)
        return false;
    snprintf(name, sizeof name, "%s.npy", e->name);
    index = zip_file_add(zip, name, source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
        zip_source_free(source);
        return false;
    }
    return zip_set_file_compression(zip, (zip_uint64_t)index, ZIP_CM_STORE, 0) == 0 &&
           zip_file_set_dostime(zip, (zip_uint64_t)index, 0, FIRST_DATE, 0) == 0 &&
           zip_file_set_external_attributes(zip, (zip_uint64_t)index, 0, ZIP_OPSYS_UNIX,
                                            0600U << 16) == 0;
}

static enum dpt_status fail_zip(zip_error_t *reason, const char *path, struct dpt_error *err)
{
    if (zip_error_system_type(reason) == ZIP_ET_SYS) {
        errno = zip_error_code_system(reason);
        return dpt_fail_errno(err, DPT_IO, "%s: cannot write", path);
    }
    return dpt_fail(err, DPT_IO, "%s: cannot write: %s", path, zip_error_strerror(reason));
}

/* headers: DPT_NPY_HEADER bytes for each entry, which libzip reads when it closes the archive. */
static enum dpt_status write_archive(const struct dpt_weight_entry *entries, size_t n,
                                     const char *temporary, const char *path, char *headers,
                                     struct dpt_error *err)
{
    int code = 0;
    zip_t *zip = zip_open(temporary, ZIP_CREATE | ZIP_TRUNCATE, &code);
    bool good = zip != NULL;

    if (!good)
        return dpt_fail(err, DPT_IO, "%s: cannot write (libzip's error %d)", path, code);
    for (size_t k = 0; good && k < n; k++)
        good = add_array(zip, &entries[k], headers + k * DPT_NPY_HEADER);
    if (good && zip_close(zip) == 0)
        return DPT_OK;
    fail_zip(zip_get_error(zip), path, err);
    zip_discard(zip);
    return err->status;
}

static enum dpt_status write_npz(const struct dpt_model_view *view, const char *path,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_region region = {0};
    struct dpt_weight_entry *entries;
    char *headers, *temporary = NULL;
    size_t n;

    DPT_TRY(dpt_weights_entries(view, &region, &entries, &n, err));
    headers = dpt_region_alloc(&region, n * DPT_NPY_HEADER);
    if (headers == NULL)
        DPT_TRY(dpt_fail_memory(err, path, (double)n * DPT_NPY_HEADER));
    DPT_TRY(dpt_file_temporary(path, &temporary, err));
    status = write_archive(entries, n, temporary, path, headers, err);
    if (status == DPT_OK)
        status = dpt_file_commit(temporary, path, err);
    else
        unlink(temporary);
out:
    free(temporary);
    dpt_region_release(&region);
    return status;
}

const struct dpt_weights_format dpt_weights_npz = {
    .name = "npz",
    .suffix = ".npz",
    .summary = "for NumPy and JAX: numpy.load(OUT)",
    .is = is_npz,
    .open = open_npz,
    .read = read_npz,
    .close = close_npz,
    .write = write_npz,
    .ordered = true,
};

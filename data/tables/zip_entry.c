#include "data/tables/zip_entry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "core/base/file.h"

enum { PIECE = 1 << 16 /* bytes that are passed over at once */ };

struct dpt_zip_entry {
    zip_t *zip;
    zip_file_t *file;
    zip_uint64_t index;
    const char *shown;
    int64_t at;
};

static enum dpt_status open_archive(zip_t **zip, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int fd, code = 0;

    DPT_TRY(dpt_file_open(path, DPT_FILE_READ, DPT_IO, &fd, err));
    *zip = zip_fdopen(fd, 0, &code); /* which closes it */
    if (*zip == NULL) {
        zip_error_t reason;

        close(fd);
        zip_error_init_with_code(&reason, code);
        dpt_fail(err, DPT_BAD_DATA, "%s: no archive of NumPy's (.npz) that can be read: %s", path,
                 zip_error_strerror(&reason));
        zip_error_fini(&reason);
        status = err->status;
    }
out:
    return status;
}

/* Opens the entry at its beginning. */
static enum dpt_status rewind_entry(struct dpt_zip_entry *e, struct dpt_error *err)
{
    if (e->file != NULL)
        zip_fclose(e->file);
    e->at = 0;
    e->file = zip_fopen_index(e->zip, e->index, 0);
    return e->file != NULL ? DPT_OK
                           : dpt_fail(err, DPT_BAD_DATA, "%s: cannot be unpacked: %s", e->shown,
                                      zip_strerror(e->zip));
}

enum dpt_status dpt_zip_entry_open(struct dpt_zip_entry **entry, const char *path, const char *name,
                                   const char *shown, int64_t *most, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_zip_entry *e = NULL;
    zip_int64_t index;
    zip_stat_t info;

    DPT_TRY(DPT_ALLOCATE(e, 1, "an archive", err));
    e->shown = shown;
    DPT_TRY(open_archive(&e->zip, path, err));
    index = zip_name_locate(e->zip, name, 0);
    if (index < 0 || zip_stat_index(e->zip, (zip_uint64_t)index, 0, &info) != 0 ||
        (info.valid & ZIP_STAT_SIZE) == 0 || (info.valid & ZIP_STAT_COMP_SIZE) == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: has no %s", path, name));
    e->index = (zip_uint64_t)index;
    *most = info.size < INT64_MAX ? (int64_t)info.size : INT64_MAX;
    if (info.comp_size < (zip_uint64_t)*most / DPT_DEFLATE_MOST)
        *most = (int64_t)info.comp_size * DPT_DEFLATE_MOST;
    DPT_TRY(rewind_entry(e, err));
    *entry = e;
    e = NULL;
out:
    dpt_zip_entry_close(e);
    return status;
}

void dpt_zip_entry_close(struct dpt_zip_entry *e)
{
    if (e == NULL)
        return;
    if (e->file != NULL)
        zip_fclose(e->file);
    if (e->zip != NULL)
        zip_discard(e->zip);
    dpt_free(e);
}

enum dpt_status dpt_zip_entry_read(struct dpt_zip_entry *e, void *bytes, size_t n, size_t *got,
                                   struct dpt_error *err)
{
    for (*got = 0; *got < n;) {
        const zip_int64_t some = zip_fread(e->file, (char *)bytes + *got, n - *got);

        if (some < 0)
            return dpt_fail(err, DPT_BAD_DATA, "%s: is damaged: %s", e->shown,
                            zip_file_strerror(e->file));
        if (some == 0)
            break;
        *got += (size_t)some;
        e->at += some;
    }
    return DPT_OK;
}

enum dpt_status dpt_zip_entry_skip(struct dpt_zip_entry *e, int64_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t to = e->at + n;
    char bytes[PIECE];
    size_t got = 1;

    if (n < 0)
        DPT_TRY(rewind_entry(e, err));
    while (e->at < to && got > 0)
        DPT_TRY(dpt_zip_entry_read(e, bytes, to - e->at < PIECE ? (size_t)(to - e->at) : PIECE,
                                   &got, err));
out:
    return status;
}

enum dpt_status dpt_zip_list_npy(const char *path, const char *const **names, size_t *n,
                                 struct dpt_region *region, struct dpt_error *err)
{
    static const char end[] = ".npy";
    enum dpt_status status = DPT_OK;
    zip_t *zip = NULL;
    const char **list;
    zip_int64_t entries;

    *n = 0;
    DPT_TRY(open_archive(&zip, path, err));
    entries = zip_get_num_entries(zip, 0);
    list = dpt_region_alloc(region, (size_t)(entries > 0 ? entries : 1) * sizeof *list);
    for (zip_int64_t i = 0; list != NULL && i < entries; i++) {
        const char *name = zip_get_name(zip, (zip_uint64_t)i, 0);
        const size_t length = name != NULL ? strlen(name) : 0;

        if (length > strlen(end) && strcmp(name + length - strlen(end), end) == 0)
            list[(*n)++] = dpt_region_strndup(region, name, length - strlen(end));
    }
    if (region->failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)entries * sizeof *list));
    *names = list;
out:
    if (zip != NULL)
        zip_discard(zip);
    return status;
}

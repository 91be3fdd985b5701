#include "core/train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/h5.h"

/* One data set of the file, and where its bytes come from. */
struct item {
    char name[DPT_NAME * 2];
    const void *bytes;
    size_t size;
    int n_dims; /* 0: text */
    hsize_t dims[4];
    haddr_t offset; /* in the file, once the skeleton stands */
    uint32_t crc;   /* likewise */
};

struct content {
    struct item *items;
    int n;
};

static void add_tensors(struct content *c, const struct dpt_graph *graph, const char *folder,
                        const float *arena)
{
    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i];
        struct item *item = &c->items[c->n++];

        snprintf(item->name, sizeof item->name, "%s/%s", folder, tensor->name);
        item->bytes = arena + tensor->offset;
        item->size = (size_t)tensor->count * sizeof(float);
        item->n_dims = tensor->n_dims;
        for (int d = 0; d < tensor->n_dims; d++)
            item->dims[d] = (hsize_t)tensor->dims[d];
    }
}

static enum dpt_status list_content(const struct dpt_state *s, struct content *c,
                                    struct dpt_error *err)
{
    const size_t n = (size_t)s->graph->n_tensors * (size_t)(1 + s->slots) + 1;

    c->items = dpt_alloc_array(n, sizeof *c->items);
    if (c->items == NULL)
        return dpt_fail_memory(err, "a checkpoint's list of contents", (double)n);
    add_tensors(c, s->graph, "/params", s->params);
    for (int k = 0; k < s->slots; k++) {
        char folder[DPT_NAME];

        snprintf(folder, sizeof folder, "/optimizer/%s", s->slot_names[k]);
        add_tensors(c, s->graph, folder, s->slot[k]);
    }
    c->items[c->n++] =
        (struct item){.name = "/job", .bytes = s->job_text, .size = strlen(s->job_text)};
    return DPT_OK;
}

static bool put_attribute(hid_t object, const char *name, hid_t stored, hid_t memory,
                          const void *value)
{
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(object, name, stored, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool good = attribute >= 0 && H5Awrite(attribute, memory, value) >= 0;

    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    return good;
}

static bool put_text(hid_t object, const char *name, const char *text)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    bool good = H5Tset_size(type, strlen(text)) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0;

    good = good && put_attribute(object, name, type, type, text);
    H5Tclose(type);
    return good;
}

static bool put_state(hid_t file, const struct dpt_state *s)
{
    const struct dpt_progress *p = &s->progress;
    const struct {
        const char *name, *text;
    } texts[] = {
        {"format", "dptrain checkpoint"},
        {"version", s->version},
        {"backend", s->backend},
        {"library", s->library},
    };
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"format_version", DPT_CHECKPOINT_FORMAT},
        {"step", p->step},
        {"updates", p->updates},
        {"samples", p->samples},
        {"epoch", p->epoch},
        {"epoch_step", p->epoch_step},
        {"seed", s->seed},
        {"parameters", s->graph->parameters},
        {"best_step", p->best_step},
    };
    bool good =
        put_attribute(file, "best_metric", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &p->best_metric);

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        good = good && put_text(file, texts[i].name, texts[i].text);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        good = good && put_attribute(file, numbers[i].name, H5T_STD_I64LE, H5T_NATIVE_INT64,
                                     &numbers[i].value);
    return good;
}

/* The groups on the way to a data set, made by hand because those made on the fly hold their times.
 */
static bool put_groups(hid_t file, const char *name, hid_t create)
{
    char path[DPT_NAME * 2];

    for (const char *slash = strchr(name + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        hid_t group;

        snprintf(path, sizeof path, "%.*s", (int)(slash - name), name);
        if (H5Lexists(file, path, H5P_DEFAULT) > 0)
            continue;
        group = H5Gcreate2(file, path, H5P_DEFAULT, create, H5P_DEFAULT);
        if (group < 0 || H5Gclose(group) < 0)
            return false;
    }
    return true;
}

/* A data set with its place in the file but without its bytes. */
static bool put_item(hid_t file, struct item *item, hid_t create)
{
    hid_t type = H5T_IEEE_F32LE, space, set;
    bool good;

    item->crc = dpt_crc32(0, item->bytes, item->size);
    if (item->n_dims == 0) {
        type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, item->size);
        H5Tset_strpad(type, H5T_STR_NULLPAD);
        space = H5Screate(H5S_SCALAR);
    } else {
        space = H5Screate_simple(item->n_dims, item->dims, NULL);
    }
    set = H5Dcreate2(file, item->name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    good = set >= 0 && put_attribute(set, "crc32", H5T_STD_U32LE, H5T_NATIVE_UINT32, &item->crc);
    if (set >= 0) {
        item->offset = H5Dget_offset(set);
        good = good && item->offset != HADDR_UNDEF;
        H5Dclose(set);
    }
    H5Sclose(space);
    if (item->n_dims == 0)
        H5Tclose(type);
    return good;
}

/* All of the file but the bytes of its data sets, which need not pass through the library. */
static enum dpt_status write_skeleton(const struct dpt_state *state, struct content *c,
                                      const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t create, groups, whole, access, file;
    bool good;

    dpt_h5_enter();
    create = H5Pcreate(H5P_DATASET_CREATE);
    groups = H5Pcreate(H5P_GROUP_CREATE);
    whole = H5Pcreate(H5P_FILE_CREATE);
    access = H5Pcreate(H5P_FILE_ACCESS);
    good = H5Pset_layout(create, H5D_CONTIGUOUS) >= 0 &&
           H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY) >= 0 &&
           H5Pset_fill_time(create, H5D_FILL_TIME_NEVER) >= 0 &&
           H5Pset_obj_track_times(create, 0) >= 0 && H5Pset_obj_track_times(groups, 0) >= 0 &&
           H5Pset_obj_track_times(whole, 0) >= 0 &&
           H5Pset_alignment(access, 4096, DPT_ALIGN) >= 0 &&
           /* Since 1.8 the metadata carry checksums of their own: damage there is noticed too. */
           H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0;
    file = H5Fcreate(path, H5F_ACC_TRUNC, whole, access);
    if (file < 0) {
        status = dpt_h5_fail(err, DPT_IO, "%s: cannot be created", path);
        good = false;
    }
    good = good && put_state(file, state);
    for (int i = 0; good && i < c->n; i++)
        good = put_groups(file, c->items[i].name, groups) && put_item(file, &c->items[i], create);
    if (!good && status == DPT_OK)
        status = dpt_h5_fail(err, DPT_IO, "%s: cannot be written", path);
    if (file >= 0 && H5Fclose(file) < 0 && status == DPT_OK)
        status = dpt_h5_fail(err, DPT_IO, "%s: cannot be closed", path);
    H5Pclose(create);
    H5Pclose(groups);
    H5Pclose(whole);
    H5Pclose(access);
    dpt_h5_leave();
    return status;
}

static int by_offset(const void *a, const void *b)
{
    const haddr_t x = ((const struct item *)a)->offset, y = ((const struct item *)b)->offset;

    return (x > y) - (x < y);
}

/* CRC-32 of what HDF5 itself wrote between the data sets, continued from crc. */
static bool crc_between(int fd, haddr_t from, haddr_t to, uint32_t *crc)
{
    unsigned char bytes[8192];

    while (from < to) {
        const size_t n = to - from < sizeof bytes ? (size_t)(to - from) : sizeof bytes;

        if (dpt_pread_all(fd, bytes, n, (long long)from) != 0)
            return false;
        *crc = dpt_crc32(*crc, bytes, n);
        from += n;
    }
    return true;
}

/* The last line: the checksum of all bytes in front of it. Those of the data sets are known
 * already. */
static bool write_trailer(const struct content *c, int fd, haddr_t size)
{
    char line[DPT_CHECKPOINT_TRAILER + 1];
    haddr_t at = 0;
    uint32_t crc = 0;

    qsort(c->items, (size_t)c->n, sizeof *c->items, by_offset);
    for (int i = 0; i < c->n; i++) {
        if (!crc_between(fd, at, c->items[i].offset, &crc))
            return false;
        crc = dpt_crc32_join(crc, c->items[i].crc, c->items[i].size);
        at = c->items[i].offset + c->items[i].size;
    }
    if (!crc_between(fd, at, size, &crc))
        return false;
    snprintf(line, sizeof line, "dptrain crc32 %08x %020llu\n", crc, (unsigned long long)size);
    return dpt_pwrite_all(fd, line, DPT_CHECKPOINT_TRAILER, (long long)size) == 0;
}

/* Reserves the space first, so that a full disk is told before anything long is written. */
static enum dpt_status write_bytes(const struct content *c, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    int code;

    if (fd < 0 || fstat(fd, &info) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    code = posix_fallocate(fd, 0, info.st_size + DPT_CHECKPOINT_TRAILER);
    if (code != 0 && code != EOPNOTSUPP && code != EINVAL) {
        errno = code;
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    }
    for (int i = 0; i < c->n; i++)
        if (dpt_pwrite_all(fd, c->items[i].bytes, c->items[i].size,
                           (long long)c->items[i].offset) != 0)
            DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    if (!write_trailer(c, fd, (haddr_t)info.st_size) || fsync(fd) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
out:
    if (fd >= 0 && close(fd) != 0 && status == DPT_OK)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
    return status;
}

enum dpt_status dpt_checkpoint_save(const struct dpt_state *state, const char *path,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct content content = {0};
    char temporary[PATH_MAX];

    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    DPT_TRY(list_content(state, &content, err));
    DPT_TRY(write_skeleton(state, &content, temporary, err));
    DPT_TRY(write_bytes(&content, temporary, err));
    if (rename(temporary, path) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    if (status != DPT_OK)
        unlink(temporary);
    dpt_free(content.items);
    return status;
}

#include "core/train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/h5.h"

enum {
    PIECE = 1 << 20,         /* bytes a write */
    COPY = 16 << 10,         /* bytes of the skeleton a write */
    FRAME = 16 << 10,        /* an upper bound of what HDF5 adds to the bytes */
    FRAME_AN_ITEM = 1024,    /* and beside that for each data set */
    HEADROOM = 2 << 20,      /* bytes that HDF5 may want for a skeleton, far above what was seen */
    HEADROOM_AN_ITEM = 4096, /* and beside them for each data set */
};

/* One data set of the file, and where its bytes come from. */
struct item {
    char name[DPT_NAME * 2];
    const void *bytes;
    size_t size;
    uint32_t crc;
    int n_dims; /* 0: text */
    hsize_t dims[4];
    haddr_t offset; /* in the file, once the skeleton stands */
};

struct content {
    struct item *items; /* in the order of their offsets, once the skeleton stands */
    int n;
    /*
     * All of the file but the bytes of its data sets, which are holes: HDF5 makes it in memory and
     * never touches the disk, so that a full disk is an errno of ours and not a library that fails
     * in its own close.
     */
    int skeleton;
    haddr_t size; /* of the file without its last line */
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
    for (int i = 0; i < c->n; i++)
        c->items[i].crc = dpt_crc32(0, c->items[i].bytes, c->items[i].size);
    return DPT_OK;
}

static bool put_attribute(hid_t object, const char *name, hid_t stored, hid_t memory,
                          const void *value)
{
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(object, name, stored, space, H5P_DEFAULT, H5P_DEFAULT);
    bool good = attribute >= 0 && H5Awrite(attribute, memory, value) >= 0;

    good = (attribute < 0 || H5Aclose(attribute) >= 0) && good;
    return H5Sclose(space) >= 0 && good;
}

static hid_t text_type(size_t size)
{
    const hid_t type = H5Tcopy(H5T_C_S1);

    if (H5Tset_size(type, size) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0)
        return type;
    H5Tclose(type);
    return H5I_INVALID_HID;
}

static bool put_text(hid_t object, const char *name, const char *text)
{
    const hid_t type = text_type(strlen(text));
    const bool good = type >= 0 && put_attribute(object, name, type, type, text);

    return H5Tclose(type) >= 0 && good;
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
    const bool text = item->n_dims == 0;
    const hid_t type = text ? text_type(item->size) : H5T_IEEE_F32LE;
    const hid_t space =
        text ? H5Screate(H5S_SCALAR) : H5Screate_simple(item->n_dims, item->dims, NULL);
    const hid_t set = H5Dcreate2(file, item->name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    bool good =
        set >= 0 && put_attribute(set, "crc32", H5T_STD_U32LE, H5T_NATIVE_UINT32, &item->crc);

    item->offset = set >= 0 ? H5Dget_offset(set) : HADDR_UNDEF;
    good = good && item->offset != HADDR_UNDEF && H5Dget_storage_size(set) == item->size;
    good = (set < 0 || H5Dclose(set) >= 0) && good;
    good = H5Sclose(space) >= 0 && good;
    return (!text || H5Tclose(type) >= 0) && good;
}

/* Property lists: data sets laid out without being written, groups, the file, access to it. */
struct lists {
    hid_t create, groups, whole, access;
};

static bool make_lists(struct lists *l)
{
    l->create = H5Pcreate(H5P_DATASET_CREATE);
    l->groups = H5Pcreate(H5P_GROUP_CREATE);
    l->whole = H5Pcreate(H5P_FILE_CREATE);
    l->access = H5Pcreate(H5P_FILE_ACCESS);
    return H5Pset_layout(l->create, H5D_CONTIGUOUS) >= 0 &&
           H5Pset_alloc_time(l->create, H5D_ALLOC_TIME_EARLY) >= 0 &&
           H5Pset_fill_time(l->create, H5D_FILL_TIME_NEVER) >= 0 &&
           H5Pset_obj_track_times(l->create, 0) >= 0 && H5Pset_obj_track_times(l->groups, 0) >= 0 &&
           H5Pset_obj_track_times(l->whole, 0) >= 0 &&
           H5Pset_alignment(l->access, 4096, DPT_ALIGN) >= 0 &&
           /* Others ask for the real path of a link, and a file in memory has none. */
           H5Pset_fapl_stdio(l->access) >= 0 &&
           /* Since 1.8 the metadata carry checksums of their own: damage there is noticed too. */
           H5Pset_libver_bounds(l->access, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0;
}

static void free_lists(const struct lists *l)
{
    H5Pclose(l->create);
    H5Pclose(l->groups);
    H5Pclose(l->whole);
    H5Pclose(l->access);
}

/* Under HDF5's lock. */
static bool put_all(const struct dpt_state *state, struct content *c)
{
    struct lists l;
    hid_t file = H5I_INVALID_HID;
    char path[64];
    bool good = make_lists(&l);

    snprintf(path, sizeof path, "/proc/self/fd/%d", c->skeleton);
    if (good)
        file = H5Fcreate(path, H5F_ACC_TRUNC, l.whole, l.access);
    good = file >= 0 && put_state(file, state);
    for (int i = 0; good && i < c->n; i++)
        good =
            put_groups(file, c->items[i].name, l.groups) && put_item(file, &c->items[i], l.create);
    good = (file < 0 || H5Fclose(file) >= 0) && good;
    free_lists(&l);
    return good;
}

/* HDF5 ends the process where some of its own allocations fail, so its memory is asked for
 * beforehand. */
static bool has_headroom(size_t bytes)
{
    void *probe = malloc(bytes);
    const bool good = probe != NULL;

    free(probe);
    return good;
}

/* A limit on the size of files holds for those in memory as well, and beyond it HDF5 could not even
 * close one. */
static bool may_be_so_large(const struct content *c)
{
    size_t bytes = FRAME;
    struct rlimit limit;

    for (int i = 0; i < c->n; i++)
        bytes += c->items[i].size + FRAME_AN_ITEM;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           limit.rlim_cur >= bytes;
}

static int by_offset(const void *a, const void *b)
{
    const haddr_t x = ((const struct item *)a)->offset, y = ((const struct item *)b)->offset;

    return (x > y) - (x < y);
}

static enum dpt_status make_skeleton(const struct dpt_state *state, struct content *c,
                                     const char *path, struct dpt_error *err)
{
    const size_t headroom = HEADROOM + (size_t)c->n * HEADROOM_AN_ITEM;
    enum dpt_status status = DPT_OK;
    struct stat info;

    if (!may_be_so_large(c)) {
        errno = EFBIG;
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    }
    if (!has_headroom(headroom))
        return dpt_fail_memory(err, "writing a checkpoint", (double)headroom);
    c->skeleton = memfd_create("checkpoint", MFD_CLOEXEC);
    if (c->skeleton < 0)
        return dpt_fail_errno(err, DPT_RANK, "%s: cannot make a file in memory", path);
    dpt_h5_enter();
    if (!put_all(state, c))
        status = dpt_h5_fail(err, DPT_RANK, "%s: cannot be made in memory", path);
    dpt_h5_leave();
    DPT_TRY(status);
    if (fstat(c->skeleton, &info) != 0)
        return dpt_fail_errno(err, DPT_RANK, "%s: cannot make a file in memory", path);
    c->size = (haddr_t)info.st_size;
    qsort(c->items, (size_t)c->n, sizeof *c->items, by_offset);
out:
    return status;
}

/* A file that is being written, and the checksum of all that was. */
struct output {
    int fd;
    haddr_t at;
    uint32_t crc;
};

/* Writes at the end. */
static bool put_bytes(struct output *out, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const size_t n = size - done < PIECE ? size - done : PIECE;

        if (dpt_pwrite_all(out->fd, (const char *)bytes + done, n, (long long)out->at) != 0)
            return false;
        out->at += n;
        done += n;
    }
    return true;
}

/* What HDF5 made between the data sets, up to `end`. */
static bool put_skeleton(struct output *out, int skeleton, haddr_t end)
{
    char bytes[COPY];

    while (out->at < end) {
        const size_t n = end - out->at < COPY ? (size_t)(end - out->at) : COPY;

        if (dpt_pread_all(skeleton, bytes, n, (long long)out->at) != 0)
            return false;
        out->crc = dpt_crc32(out->crc, bytes, n);
        if (!put_bytes(out, bytes, n))
            return false;
    }
    return true;
}

/* From the first byte to the last line, the checksum of all bytes in front of it. Those of the data
 * sets are known already. */
static bool put_file(const struct content *c, int fd)
{
    char line[DPT_CHECKPOINT_TRAILER + 1];
    struct output out = {.fd = fd};

    for (int i = 0; i < c->n; i++) {
        if (!put_skeleton(&out, c->skeleton, c->items[i].offset) ||
            !put_bytes(&out, c->items[i].bytes, c->items[i].size))
            return false;
        out.crc = dpt_crc32_join(out.crc, c->items[i].crc, c->items[i].size);
    }
    if (!put_skeleton(&out, c->skeleton, c->size))
        return false;
    snprintf(line, sizeof line, "dptrain crc32 %08x %020llu\n", out.crc,
             (unsigned long long)c->size);
    return put_bytes(&out, line, DPT_CHECKPOINT_TRAILER);
}

/* Reserves the space first, so that a full disk is told before anything long is written. */
static enum dpt_status write_file(const struct content *c, const char *temporary, const char *path,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int code, fd;

    unlink(temporary); /* of an earlier process with our number */
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    code = posix_fallocate(fd, 0, (off_t)c->size + DPT_CHECKPOINT_TRAILER);
    if (code != 0 && code != EOPNOTSUPP && code != EINVAL) {
        errno = code;
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    }
    if (!put_file(c, fd) || fsync(fd) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
out:
    if (close(fd) != 0 && status == DPT_OK)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
    return status;
}

enum dpt_status dpt_checkpoint_save(const struct dpt_state *state, const char *path,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct content content = {.skeleton = -1};
    char temporary[PATH_MAX];

    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    DPT_TRY(list_content(state, &content, err));
    DPT_TRY(make_skeleton(state, &content, path, err));
    DPT_TRY(write_file(&content, temporary, path, err));
    DPT_TRY(dpt_lock_check(state->lock, err));
    if (rename(temporary, path) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    if (status != DPT_OK)
        unlink(temporary);
    if (content.skeleton >= 0)
        close(content.skeleton);
    dpt_free(content.items);
    return status;
}

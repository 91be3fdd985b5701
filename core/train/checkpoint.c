#include "core/train/checkpoint.h"

#include <dirent.h>
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
};

struct content {
    struct item *items;
    int n;
};

const char *dpt_checkpoint_path(const char *folder, int64_t step, char *buf, size_t size)
{
    snprintf(buf, size, "%s/checkpoints/step-%08lld.h5", folder, (long long)step);
    return buf;
}

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

static enum dpt_status list_content(const struct dpt_trainer *t, const char *job_text,
                                    struct content *c, struct dpt_error *err)
{
    const struct dpt_optimizer_type *type = t->job->optimizer.variant->impl;
    const size_t n = (size_t)t->graph.n_tensors * (size_t)(1 + t->slots) + 1;

    c->items = dpt_alloc_array(n, sizeof *c->items);
    if (c->items == NULL)
        return dpt_fail_memory(err, "a checkpoint's list of contents", (double)n);
    add_tensors(c, &t->graph, "/params", t->params);
    for (int k = 0; k < t->slots; k++) {
        char folder[DPT_NAME];

        snprintf(folder, sizeof folder, "/optimizer/%s", type->slot_names[k]);
        add_tensors(c, &t->graph, folder, t->slot[k]);
    }
    c->items[c->n++] = (struct item){.name = "/job", .bytes = job_text, .size = strlen(job_text)};
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

static bool put_state(hid_t file, const struct dpt_trainer *t)
{
    const struct dpt_progress *p = &t->progress;
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
        {"seed", t->job->seed},
        {"parameters", t->graph.parameters},
    };
    bool good = put_text(file, "format", "dptrain checkpoint");

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
    const uint32_t crc = dpt_crc32(0, item->bytes, item->size);
    hid_t type = H5T_IEEE_F32LE, space, set;
    bool good;

    if (item->n_dims == 0) {
        type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, item->size);
        H5Tset_strpad(type, H5T_STR_NULLPAD);
        space = H5Screate(H5S_SCALAR);
    } else {
        space = H5Screate_simple(item->n_dims, item->dims, NULL);
    }
    set = H5Dcreate2(file, item->name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    good = set >= 0 && put_attribute(set, "crc32", H5T_STD_U32LE, H5T_NATIVE_UINT32, &crc);
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
static enum dpt_status write_skeleton(const struct dpt_trainer *t, struct content *c,
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
    good = good && put_state(file, t);
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

/* Reserves the space first, so that a full disk is told before anything long is written. */
static enum dpt_status write_bytes(const struct content *c, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    struct stat info;
    int code;

    if (fd < 0 || fstat(fd, &info) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    code = posix_fallocate(fd, 0, info.st_size);
    if (code != 0 && code != EOPNOTSUPP && code != EINVAL) {
        errno = code;
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    }
    for (int i = 0; i < c->n; i++)
        if (dpt_pwrite_all(fd, c->items[i].bytes, c->items[i].size,
                           (long long)c->items[i].offset) != 0)
            DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    if (fsync(fd) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
out:
    if (fd >= 0 && close(fd) != 0 && status == DPT_OK)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
    return status;
}

enum dpt_status dpt_checkpoint_save(const struct dpt_trainer *t, const char *job_text,
                                    const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct content content = {0};
    char temporary[PATH_MAX];

    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    DPT_TRY(list_content(t, job_text, &content, err));
    DPT_TRY(write_skeleton(t, &content, temporary, err));
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

static int is_checkpoint(const struct dirent *entry)
{
    const size_t n = strlen(entry->d_name);

    return strncmp(entry->d_name, "step-", 5) == 0 && n > 8 &&
           strcmp(entry->d_name + n - 3, ".h5") == 0;
}

/* By step: names of more digits are later. */
static int by_step(const struct dirent **a, const struct dirent **b)
{
    const size_t n = strlen((*a)->d_name), m = strlen((*b)->d_name);

    return n != m ? (n < m ? -1 : 1) : strcmp((*a)->d_name, (*b)->d_name);
}

enum dpt_status dpt_checkpoint_rotate(const char *folder, const char *path, int64_t keep,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    char latest[PATH_MAX], temporary[PATH_MAX + 16], old[PATH_MAX + 300];
    struct dirent **found = NULL;
    int n;

    snprintf(latest, sizeof latest, "%s/checkpoints/latest", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", latest, (long)getpid());
    unlink(temporary);
    if (symlink(name, temporary) != 0 || rename(temporary, latest) != 0) {
        status = dpt_fail_errno(err, DPT_IO, "%s", latest);
        unlink(temporary);
        return status;
    }
    DPT_TRY(dpt_file_sync_folder(latest, err));
    snprintf(latest, sizeof latest, "%s/checkpoints", folder);
    n = scandir(latest, &found, is_checkpoint, by_step);
    for (int i = 0; i < n; i++) {
        snprintf(old, sizeof old, "%s/%s", latest, found[i]->d_name);
        if (keep > 0 && i < n - keep && strcmp(found[i]->d_name, name) != 0)
            unlink(old);
        free(found[i]);
    }
    free(found);
out:
    return status;
}

static enum dpt_status read_tensor(hid_t file, const char *path, const struct dpt_tensor *tensor,
                                   float *params, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char name[DPT_NAME * 2];
    struct dpt_h5_info info;
    float *to = params + tensor->offset;
    hid_t set = -1;
    bool same;

    snprintf(name, sizeof name, "/params/%s", tensor->name);
    DPT_TRY(dpt_h5_info(file, path, name, &info, err));
    same = info.n_dims == tensor->n_dims && info.type == DPT_H5_F32;
    for (int d = 0; same && d < info.n_dims; d++)
        same = info.dims[d] == tensor->dims[d];
    if (!same)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: %s has another shape than the job's model", path,
                         name));
    set = H5Dopen2(file, name, H5P_DEFAULT);
    if (set < 0 || H5Dread(set, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0)
        DPT_TRY(dpt_h5_fail(err, DPT_BAD_DATA, "%s: %s cannot be read", path, name));
    if (info.has_crc && dpt_crc32(0, to, (size_t)tensor->count * sizeof *to) != info.crc)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s is damaged: %s does not match its checksum", path,
                         name));
out:
    if (set >= 0)
        H5Dclose(set);
    return status;
}

static enum dpt_status read_params(struct dpt_trainer *t, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char latest[PATH_MAX];
    struct stat info;
    hid_t file = -1, attribute = -1;
    int64_t parameters = -1;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(latest, sizeof latest, "%s/checkpoints/latest", path);
        path = latest;
    }
    dpt_h5_enter();
    DPT_TRY(dpt_h5_open(path, &file, err));
    if (H5Aexists(file, "parameters") > 0)
        attribute = H5Aopen(file, "parameters", H5P_DEFAULT);
    if (attribute < 0 || H5Aread(attribute, H5T_NATIVE_INT64, &parameters) < 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: is no checkpoint of dptrain", path));
    for (int32_t i = 0; i < t->graph.n_tensors; i++)
        DPT_TRY(read_tensor(file, path, &t->graph.tensors[i], t->params, err));
    if (parameters != t->graph.parameters)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its model has %lld parameters, the job's has %lld",
                         path, (long long)parameters, (long long)t->graph.parameters));
out:
    if (attribute >= 0)
        H5Aclose(attribute);
    if (file >= 0)
        H5Fclose(file);
    dpt_h5_leave();
    return status;
}

enum dpt_status dpt_checkpoint_load_params(struct dpt_trainer *t, const char *path,
                                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;

    DPT_TRY(dpt_group_agree(world, world->rank == 0 ? read_params(t, path, err) : DPT_OK, err));
    DPT_TRY(dpt_group_broadcast(world, 0, t->params, (size_t)t->graph.floats * sizeof(float), err));
    DPT_TRY(dpt_group_agree(world, dpt_trainer_refresh(t, err), err));
out:
    return status;
}

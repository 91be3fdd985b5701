#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/state/checkpoint_image.h"
#include "data/shards/h5.h"

enum {
    FRAME = 16 << 10,     /* an upper bound of what HDF5 adds to the bytes */
    FRAME_AN_ITEM = 1024, /* and beside that for each data set */
    HEADROOM = 2 << 20,   /* bytes that HDF5 may need for the metadata, far above what was seen */
    HEADROOM_AN_ITEM = 4096, /* and beside them for each data set */
};

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

static bool put_scale(hid_t file, const struct dpt_loss_scale *s)
{
    const double scale = s->scale;
    const int64_t good = s->good;

    return put_attribute(file, "loss_scale", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &scale) &&
           put_attribute(file, "loss_scale_good", H5T_STD_I64LE, H5T_NATIVE_INT64, &good) &&
           put_attribute(file, "loss_scale_overflows", H5T_STD_I64LE, H5T_NATIVE_INT64,
                         &s->overflows);
}

static bool put_state(hid_t file, const struct dpt_state *s)
{
    const struct dpt_progress *p = &s->progress;
    char shape[40] = "";
    const struct {
        const char *name, *text;
    } texts[] = {
        {"format", "dptrain checkpoint"}, {"version", s->version}, {"backend", s->backend},
        {"library", s->library},          {"input_shape", shape},
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

    if (s->scaled)
        good = good && put_scale(file, &s->scale);
    if (s->graph->n_nodes > 0)
        dpt_shape_text(&s->graph->nodes[0].out, shape);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].text[0] != '\0')
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
static bool put_item(hid_t file, struct dpt_item *item, hid_t create)
{
    const bool text = item->n_dims == 0;
    const hid_t type = text ? text_type(item->size) : H5T_IEEE_F32LE;
    hsize_t dims[4] = {0};
    hid_t space, set;
    haddr_t offset;
    bool good;

    for (int d = 0; d < item->n_dims; d++)
        dims[d] = (hsize_t)item->dims[d];
    space = text ? H5Screate(H5S_SCALAR) : H5Screate_simple(item->n_dims, dims, NULL);
    set = H5Dcreate2(file, item->name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    good = set >= 0 && put_attribute(set, "crc32", H5T_STD_U32LE, H5T_NATIVE_UINT32, &item->crc);
    offset = set >= 0 ? H5Dget_offset(set) : HADDR_UNDEF;
    item->offset = offset;
    good = good && offset != HADDR_UNDEF && H5Dget_storage_size(set) == item->size;
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
static bool put_all(const struct dpt_state *state, struct dpt_item *items, int n, int fd)
{
    struct lists l;
    hid_t file = H5I_INVALID_HID;
    char path[64];
    bool good = make_lists(&l);

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (good)
        file = H5Fcreate(path, H5F_ACC_TRUNC, l.whole, l.access);
    good = file >= 0 && put_state(file, state);
    for (int i = 0; good && i < n; i++)
        good = put_groups(file, items[i].name, l.groups) && put_item(file, &items[i], l.create);
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
static bool may_be_so_large(const struct dpt_item *items, int n)
{
    size_t bytes = FRAME;
    struct rlimit limit;

    for (int i = 0; i < n; i++)
        bytes += items[i].size + FRAME_AN_ITEM;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           limit.rlim_cur >= bytes;
}

enum dpt_status dpt_checkpoint_metadata(const struct dpt_state *state, struct dpt_item *items,
                                        int n, const char *path, int *fd, uint64_t *size,
                                        struct dpt_error *err)
{
    const size_t headroom = HEADROOM + (size_t)n * HEADROOM_AN_ITEM;
    enum dpt_status status = DPT_OK;
    struct stat info;

    *fd = -1;
    if (!may_be_so_large(items, n)) {
        errno = EFBIG;
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    }
    if (!has_headroom(headroom))
        return dpt_fail_memory(err, "writing a checkpoint", (double)headroom);
    *fd = memfd_create("checkpoint", MFD_CLOEXEC);
    if (*fd < 0)
        return dpt_fail_errno(err, DPT_RANK, "%s: cannot make a file in memory", path);
    dpt_h5_enter();
    if (!put_all(state, items, n, *fd))
        status = dpt_h5_fail(err, DPT_RANK, "%s: cannot be made in memory", path);
    dpt_h5_leave();
    DPT_TRY(status);
    if (fstat(*fd, &info) != 0)
        return dpt_fail_errno(err, DPT_RANK, "%s: cannot make a file in memory", path);
    *size = (uint64_t)info.st_size;
out:
    return status;
}

#include "data/shards/skeleton.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/str.h"

enum { COPY_BYTES = 64 * 1024 };

enum dpt_status dpt_h5_metadata_open(struct dpt_h5_metadata *s, struct dpt_error *err)
{
    s->memory = memfd_create("skeleton", MFD_CLOEXEC);
    return s->memory >= 0 ? DPT_OK : dpt_fail_errno(err, DPT_RANK, "cannot make a file in memory");
}

void dpt_h5_metadata_close(struct dpt_h5_metadata *s)
{
    if (s->memory >= 0)
        close(s->memory);
    s->memory = -1;
}

/* One value, or n of them. False: HDF5 failed. */
static bool put(hid_t object, const char *name, hid_t type, size_t n, const void *value)
{
    const hsize_t dims[1] = {n};
    const hid_t space = n == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, dims, NULL);
    const hid_t id = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool good = id >= 0 && H5Awrite(id, type, value) >= 0;

    H5Sclose(space);
    return (id < 0 || H5Aclose(id) >= 0) && good;
}

static hid_t text_type(size_t bytes, bool ascii)
{
    const hid_t type = H5Tcopy(H5T_C_S1);

    if (H5Tset_size(type, bytes) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0 &&
        H5Tset_cset(type, ascii ? H5T_CSET_ASCII : H5T_CSET_UTF8) >= 0)
        return type;
    H5Tclose(type);
    return H5I_INVALID_HID;
}

/* One text (n is 0) or several, as strings of one length. */
static bool put_texts(hid_t object, const char *name, const char *const *texts, size_t n,
                      bool ascii)
{
    const size_t all = n > 0 ? n : 1;
    size_t width = 1;
    char *bytes;
    hid_t type;
    bool good;

    for (size_t i = 0; i < all; i++)
        width = strlen(texts[i]) > width ? strlen(texts[i]) : width;
    bytes = dpt_alloc_array(all, width);
    for (size_t i = 0; bytes != NULL && i < all; i++)
        memcpy(bytes + i * width, texts[i], strlen(texts[i]));
    type = text_type(width, ascii);
    good = bytes != NULL && type >= 0 && put(object, name, type, n, bytes);
    dpt_free(bytes);
    H5Tclose(type);
    return good;
}

/* A contiguous data set whose space is there but was never filled; HDF5's own id, or negative. */
static hid_t make_hole(hid_t file, const struct dpt_skeleton_set *set, hid_t type)
{
    const hid_t space = H5Screate_simple(set->n_dims, set->dims, NULL);
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    hid_t id = H5I_INVALID_HID;

    if (space >= 0 && plist >= 0 && H5Pset_layout(plist, H5D_CONTIGUOUS) >= 0 &&
        H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY) >= 0 &&
        H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER) >= 0 &&
        H5Pset_obj_track_times(plist, false) >= 0)
        id = H5Dcreate2(file, set->name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Pclose(plist);
    H5Sclose(space);
    return id;
}

/* The groups on the way to a data set; those that HDF5 makes on the fly hold their times. */
static bool add_groups(hid_t file, const char *name)
{
    const hid_t plist = H5Pcreate(H5P_GROUP_CREATE);
    bool good = plist >= 0 && H5Pset_obj_track_times(plist, false) >= 0;
    char path[256];

    for (const char *slash = strchr(name + 1, '/'); good && slash != NULL;
         slash = strchr(slash + 1, '/')) {
        hid_t group;

        snprintf(path, sizeof path, "%.*s", (int)(slash - name), name);
        if (H5Lexists(file, path, H5P_DEFAULT) > 0)
            continue;
        group = H5Gcreate2(file, path, H5P_DEFAULT, plist, H5P_DEFAULT);
        good = group >= 0 && H5Gclose(group) >= 0;
    }
    H5Pclose(plist);
    return good;
}

static bool add_set(hid_t file, struct dpt_skeleton_set *set, bool ascii)
{
    const hid_t text = set->text_bytes > 0 ? text_type(set->text_bytes, ascii) : H5I_INVALID_HID;
    const hid_t id = add_groups(file, set->name)
                         ? make_hole(file, set, set->text_bytes > 0 ? text : set->type)
                         : H5I_INVALID_HID;
    bool good = id >= 0;

    if (good) {
        set->first = (int64_t)H5Dget_offset(id); /* HADDR_UNDEF, nowhere, is -1 */
        set->end = set->first + (int64_t)H5Dget_storage_size(id);
        good = set->first > 0 && set->end > set->first;
    }
    good = good && (set->crc == NULL || put(id, "crc32", H5T_NATIVE_UINT32, 0, set->crc)) &&
           (set->shape == NULL || put(id, "shape", H5T_NATIVE_INT64, 3, set->shape)) &&
           (set->layout == NULL || put_texts(id, "layout", &set->layout, 0, ascii)) &&
           (set->classes == NULL || put_texts(id, "classes", set->classes, set->n_classes, ascii));
    dpt_h5_close(text);
    return (id < 0 || H5Dclose(id) >= 0) && good;
}

static bool add_attribute(hid_t file, const struct dpt_skeleton_attribute *a, bool ascii)
{
    if (a->name == NULL)
        return true;
    return a->text != NULL   ? put_texts(file, a->name, &a->text, 0, ascii)
           : a->real != NULL ? put(file, a->name, H5T_NATIVE_DOUBLE, 0, a->real)
                             : put(file, a->name, H5T_NATIVE_INT64, 0, &a->number);
}

enum dpt_status dpt_h5_metadata_make(struct dpt_h5_metadata *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t plist, access, file = H5I_INVALID_HID;
    char path[64];
    struct stat st;
    bool good;

    snprintf(path, sizeof path, "/proc/self/fd/%d", s->memory);
    dpt_h5_enter();
    plist = H5Pcreate(H5P_FILE_CREATE);
    /* The stdio driver: others ask for the real path of a link, and a file in memory has none. */
    access = H5Pcreate(H5P_FILE_ACCESS);
    if (plist >= 0 && access >= 0 && H5Pset_fapl_stdio(access) >= 0 &&
        /* Since 1.8 the metadata carry checksums of their own: damage there is noticed too. */
        H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 &&
        (!s->aligned || H5Pset_alignment(access, 4096, DPT_ALIGN) >= 0) &&
        H5Pset_obj_track_times(plist, false) >= 0)
        file = H5Fcreate(path, H5F_ACC_TRUNC, plist, access);
    good = file >= 0;
    for (size_t i = 0; good && i < s->n_attributes; i++)
        good = add_attribute(file, &s->attributes[i], s->ascii);
    for (size_t i = 0; good && i < s->n_sets; i++)
        good = s->sets[i].name == NULL || add_set(file, &s->sets[i], s->ascii);
    if (!good)
        status = dpt_h5_fail(err, DPT_RANK, "cannot make an HDF5 file in memory");
    if (file >= 0 && H5Fclose(file) < 0 && status == DPT_OK)
        status = dpt_h5_fail(err, DPT_RANK, "cannot close an HDF5 file in memory");
    H5Pclose(access);
    H5Pclose(plist);
    dpt_h5_leave();
    DPT_TRY(status);
    if (fstat(s->memory, &st) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "cannot read a file in memory"));
    s->total = st.st_size;
out:
    return status;
}

/* Beyond the limit HDF5 could not even close the file in memory, which has the file's length. */
static enum dpt_status check_limit(const struct dpt_h5_metadata *s, const char *path,
                                   const char *smaller, struct dpt_error *err)
{
    enum { METADATA_MOST = 1 << 20 };
    char need[32], have[32];
    struct rlimit limit;
    double bytes = 0;

    dpt_h5_enter();
    for (size_t i = 0; i < s->n_sets; i++) {
        const struct dpt_skeleton_set *set = &s->sets[i];
        double all;

        if (set->name == NULL)
            continue;
        all = set->text_bytes > 0 ? (double)set->text_bytes : (double)H5Tget_size(set->type);
        for (int d = 0; d < set->n_dims; d++)
            all *= (double)set->dims[d];
        bytes += all;
    }
    dpt_h5_leave();
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        bytes + METADATA_MOST <= (double)limit.rlim_cur)
        return DPT_OK;
    return dpt_fail(err, DPT_IO,
                    "%s: cannot write: %s bytes and what HDF5 adds are too near the limit of %s "
                    "bytes per file (ulimit -f)%s",
                    path, dpt_group_digits(need, (long long)bytes),
                    dpt_group_digits(have, (long long)limit.rlim_cur), smaller);
}

enum dpt_status dpt_h5_metadata_begin(struct dpt_h5_metadata *s, const char *path,
                                      const char *smaller, int fd, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(check_limit(s, path, smaller, err));
    DPT_TRY(dpt_h5_metadata_make(s, err));
    /* File systems that cannot promise space tell at pwrite that there is none. */
    if (fallocate(fd, 0, 0, s->total) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot write", path));
out:
    return status;
}

/* The first data set at or after a byte, or NULL. */
static const struct dpt_skeleton_set *next_set(const struct dpt_h5_metadata *s, int64_t at)
{
    const struct dpt_skeleton_set *next = NULL;

    for (size_t i = 0; i < s->n_sets; i++) {
        const struct dpt_skeleton_set *set = &s->sets[i];

        if (set->name != NULL && set->first >= at && (next == NULL || set->first < next->first))
            next = set;
    }
    return next;
}

int dpt_h5_metadata_copy(const struct dpt_h5_metadata *s, int fd)
{
    char buffer[COPY_BYTES];

    for (int64_t at = 0; at < s->total;) {
        const struct dpt_skeleton_set *next = next_set(s, at);
        const int64_t end = next != NULL ? next->first : s->total;
        const size_t n = end - at < COPY_BYTES ? (size_t)(end - at) : COPY_BYTES;

        if (dpt_pread_all(s->memory, buffer, n, at) != 0 || dpt_pwrite_all(fd, buffer, n, at) != 0)
            return -1;
        at += (int64_t)n;
        if (next != NULL && at == next->first)
            at = next->end;
    }
    return 0;
}

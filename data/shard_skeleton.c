#include "data/shard_skeleton.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/h5.h"

enum { COPY_BYTES = 64 * 1024 };

enum dpt_status dpt_skeleton_open(struct dpt_skeleton *s, struct dpt_error *err)
{
    *s = (struct dpt_skeleton){.memory = memfd_create("shard", MFD_CLOEXEC)};
    return s->memory >= 0 ? DPT_OK : dpt_fail_errno(err, DPT_RANK, "cannot make a file in memory");
}

void dpt_skeleton_close(struct dpt_skeleton *s)
{
    if (s->memory >= 0)
        close(s->memory);
    s->memory = -1;
}

static bool attribute(hid_t object, const char *name, hid_t type, hid_t space, const void *value)
{
    const hid_t id = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool good = id >= 0 && H5Awrite(id, type, value) >= 0;

    return (id < 0 || H5Aclose(id) >= 0) && good;
}

static bool text_attribute(hid_t object, const char *name, const char *const *texts, int64_t n,
                           bool scalar)
{
    const hsize_t dims[1] = {(hsize_t)n};
    const hid_t space = scalar ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, dims, NULL);
    const hid_t type = H5Tcopy(H5T_C_S1);
    size_t width = 1;
    char *bytes;
    bool good;

    for (int64_t i = 0; i < n; i++)
        width = strlen(texts[i]) > width ? strlen(texts[i]) : width;
    bytes = dpt_alloc_array((size_t)n, width);
    good = bytes != NULL && H5Tset_size(type, width) >= 0 &&
           H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0;
    for (int64_t i = 0; good && i < n; i++)
        memcpy(bytes + (size_t)i * width, texts[i], strlen(texts[i]));
    good = good && attribute(object, name, type, space, bytes);
    dpt_free(bytes);
    return H5Tclose(type) >= 0 && H5Sclose(space) >= 0 && good;
}

/* A contiguous data set whose space is there but was never filled; HDF5's own id, or negative. */
static hid_t data_set(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *dims)
{
    const hid_t space = H5Screate_simple(n_dims, dims, NULL);
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    hid_t id = -1;

    if (space >= 0 && plist >= 0 && H5Pset_layout(plist, H5D_CONTIGUOUS) >= 0 &&
        H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY) >= 0 &&
        H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER) >= 0 &&
        H5Pset_obj_track_times(plist, false) >= 0)
        id = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Pclose(plist);
    H5Sclose(space);
    return id;
}

/* Where the bytes of a data set lie in the file. */
static bool find_bytes(hid_t id, int64_t *first, int64_t *end)
{
    *first = (int64_t)H5Dget_offset(id); /* HADDR_UNDEF, nowhere, is -1 */
    *end = *first + (int64_t)H5Dget_storage_size(id);
    return *first > 0 && *end > *first;
}

/* The two data sets with their attributes. */
static bool add_images(hid_t file, const struct dpt_shard_form *form, int64_t samples, uint32_t crc,
                       struct dpt_skeleton *s)
{
    static const char *const nhwc[] = {"NHWC"};
    hsize_t dims[4] = {(hsize_t)samples};
    const hid_t scalar = H5Screate(H5S_SCALAR);
    hid_t id;
    bool good;

    for (int i = 0; i < form->n_dims; i++)
        dims[i + 1] = (hsize_t)form->dims[i];
    id = data_set(file, "images", form->u8 ? H5T_NATIVE_UINT8 : H5T_NATIVE_FLOAT, form->n_dims + 1,
                  dims);
    good = id >= 0 && attribute(id, "crc32", H5T_NATIVE_UINT32, scalar, &crc) &&
           (!form->nhwc || text_attribute(id, "layout", nhwc, 1, true));
    good = good && find_bytes(id, &s->images, &s->images_end);
    H5Sclose(scalar);
    return (id < 0 || H5Dclose(id) >= 0) && good;
}

static bool add_labels(hid_t file, const struct dpt_shard_form *form, int64_t samples, uint32_t crc,
                       struct dpt_skeleton *s)
{
    const hsize_t dims[2] = {(hsize_t)samples, (hsize_t)form->targets};
    const hid_t scalar = H5Screate(H5S_SCALAR);
    const hid_t type = form->targets > 0      ? H5T_NATIVE_FLOAT
                       : form->classes <= 256 ? H5T_NATIVE_UINT8
                                              : H5T_NATIVE_INT32;
    const hid_t id = data_set(file, "labels", type, form->targets > 0 ? 2 : 1, dims);
    bool good = id >= 0 && attribute(id, "crc32", H5T_NATIVE_UINT32, scalar, &crc) &&
                (form->class_names == NULL ||
                 text_attribute(id, "classes", form->class_names, form->classes, false));

    good = good && find_bytes(id, &s->labels, &s->labels_end);
    H5Sclose(scalar);
    return (id < 0 || H5Dclose(id) >= 0) && good;
}

enum dpt_status dpt_skeleton_make(struct dpt_skeleton *s, const struct dpt_shard_form *form,
                                  int64_t samples, uint32_t crc_images, uint32_t crc_labels,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t plist, access, file = -1;
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
        H5Pset_obj_track_times(plist, false) >= 0)
        file = H5Fcreate(path, H5F_ACC_TRUNC, plist, access);
    good = file >= 0 && add_images(file, form, samples, crc_images, s) &&
           add_labels(file, form, samples, crc_labels, s);
    if (!good)
        status = dpt_h5_fail(err, DPT_INTERNAL, "cannot make an HDF5 file in memory");
    if (file >= 0 && H5Fclose(file) < 0 && status == DPT_OK)
        status = dpt_h5_fail(err, DPT_INTERNAL, "cannot close an HDF5 file in memory");
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

/* Bytes first … last-1. */
static int copy(const struct dpt_skeleton *s, int fd, int64_t first, int64_t last)
{
    char buffer[COPY_BYTES];

    for (int64_t at = first; at < last;) {
        const size_t n = last - at < COPY_BYTES ? (size_t)(last - at) : COPY_BYTES;

        if (dpt_pread_all(s->memory, buffer, n, at) != 0 || dpt_pwrite_all(fd, buffer, n, at) != 0)
            return -1;
        at += (int64_t)n;
    }
    return 0;
}

int dpt_skeleton_copy(const struct dpt_skeleton *s, int fd)
{
    const bool images_first = s->images < s->labels;
    const int64_t first = images_first ? s->images : s->labels;
    const int64_t first_end = images_first ? s->images_end : s->labels_end;
    const int64_t second = images_first ? s->labels : s->images;
    const int64_t second_end = images_first ? s->labels_end : s->images_end;

    if (copy(s, fd, 0, first) != 0 || copy(s, fd, first_end, second) != 0)
        return -1;
    return copy(s, fd, second_end, s->total);
}

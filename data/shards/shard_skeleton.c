#include "data/shards/shard_skeleton.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "data/shards/h5_make.h"

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
    id = dpt_h5_make(file, "images", form->u8 ? H5T_NATIVE_UINT8 : H5T_NATIVE_FLOAT,
                     form->n_dims + 1, dims);
    good = id >= 0 && dpt_h5_put(id, "crc32", H5T_NATIVE_UINT32, scalar, &crc) &&
           (!form->nhwc || dpt_h5_put_texts(id, "layout", nhwc, 1, true));
    good = good && dpt_h5_place(id, &s->images, &s->images_end);
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
    const hid_t id = dpt_h5_make(file, "labels", type, form->targets > 0 ? 2 : 1, dims);
    bool good = id >= 0 && dpt_h5_put(id, "crc32", H5T_NATIVE_UINT32, scalar, &crc) &&
                (form->class_names == NULL ||
                 dpt_h5_put_texts(id, "classes", form->class_names, form->classes, false));

    good = good && dpt_h5_place(id, &s->labels, &s->labels_end);
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

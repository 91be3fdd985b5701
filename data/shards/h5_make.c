#include "data/shards/h5_make.h"

#include <string.h>

#include "core/base/memory.h"

bool dpt_h5_put(hid_t object, const char *name, hid_t type, hid_t space, const void *value)
{
    const hid_t id = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool good = id >= 0 && H5Awrite(id, type, value) >= 0;

    return (id < 0 || H5Aclose(id) >= 0) && good;
}

bool dpt_h5_put_texts(hid_t object, const char *name, const char *const *texts, int64_t n,
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
    good = good && dpt_h5_put(object, name, type, space, bytes);
    dpt_free(bytes);
    return H5Tclose(type) >= 0 && H5Sclose(space) >= 0 && good;
}

hid_t dpt_h5_make(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *dims)
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

bool dpt_h5_place(hid_t id, int64_t *first, int64_t *end)
{
    *first = (int64_t)H5Dget_offset(id); /* HADDR_UNDEF, nowhere, is -1 */
    *end = *first + (int64_t)H5Dget_storage_size(id);
    return *first > 0 && *end > *first;
}

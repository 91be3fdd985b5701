/* Texts that HDF5 files hold: in attributes, and as whole data sets. */
#include <stdlib.h>
#include <string.h>

#include "data/shards/h5.h"

/* More than any attribute has, but damage may say so. */
static const double TEXTS_MOST = 64e6;

/* Text i of an attribute's bytes: `width` of them, or where it is variable a pointer to it. */
static const char *text_at(const char *bytes, size_t i, size_t width, bool variable, size_t *length)
{
    const char *text = variable ? ((char *const *)(const void *)bytes)[i] : bytes + i * width;

    *length = text == NULL ? 0 : variable ? strlen(text) : strnlen(text, width);
    return text != NULL ? text : "";
}

static const char *const *copy_texts(const char *bytes, size_t n, size_t width, bool variable)
{
    size_t all = n * sizeof(char *), length;
    const char **texts;
    char *to;

    for (size_t i = 0; i < n; i++) {
        text_at(bytes, i, width, variable, &length);
        all += length + 1;
    }
    texts = malloc(all);
    if (texts == NULL)
        return NULL;
    to = (char *)(texts + n);
    for (size_t i = 0; i < n; i++) {
        const char *from = text_at(bytes, i, width, variable, &length);

        texts[i] = memcpy(to, from, length);
        to[length] = '\0';
        to += length + 1;
    }
    return texts;
}

/* The texts of an open attribute. */
static const char *const *texts_of(hid_t attribute, size_t *n)
{
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const bool text = type >= 0 && H5Tget_class(type) == H5T_STRING;
    const bool variable = text && H5Tis_variable_str(type) > 0;
    const hssize_t count = space >= 0 ? H5Sget_simple_extent_npoints(space) : 0;
    const size_t width = variable ? sizeof(char *) : text ? H5Tget_size(type) : 0;
    const char *const *texts = NULL;
    char *bytes = NULL;

    *n = 0;
    if (width == 0 || count < 1 || (double)count * (double)width > TEXTS_MOST)
        goto out;
    bytes = calloc((size_t)count, width);
    if (bytes == NULL || H5Aread(attribute, type, bytes) >= 0)
        *n = (size_t)count;
    if (bytes != NULL && *n > 0)
        texts = copy_texts(bytes, *n, width, variable);
    if (bytes != NULL && variable)
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, bytes);
out:
    free(bytes);
    H5Sclose(space);
    H5Tclose(type);
    return texts;
}

const char *const *dpt_h5_texts(hid_t object, const char *name, size_t *n)
{
    const hid_t attribute =
        H5Aexists(object, name) > 0 ? H5Aopen(object, name, H5P_DEFAULT) : H5I_INVALID_HID;
    const char *const *texts;

    *n = 0;
    if (attribute < 0)
        return NULL;
    texts = texts_of(attribute, n);
    H5Aclose(attribute);
    return texts;
}

enum dpt_status dpt_h5_text(hid_t file, const char *path, const char *name, char **text,
                            struct dpt_error *err)
{
    /* More than any has, so that no compressed one takes the memory. */
    enum { TEXT_MOST = 16 << 20 };
    enum dpt_status status = DPT_OK;
    hid_t set = H5I_INVALID_HID, type = H5I_INVALID_HID;
    struct dpt_h5_info info;
    bool good;

    *text = NULL;
    DPT_TRY(dpt_h5_info(file, path, name + 1, &info, err));
    set = H5Dopen2(file, name, H5P_DEFAULT);
    type = H5Dget_type(set);
    good = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
           info.bytes == info.size;
    if (good && info.bytes > TEXT_MOST)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: its %s says it holds %lld bytes, no job has more than "
                         "%d",
                         path, name, (long long)info.bytes, TEXT_MOST));
    if (good) {
        *text = calloc((size_t)info.bytes + 1, 1);
        if (*text == NULL)
            DPT_TRY(dpt_fail_memory(err, "a file's text", (double)info.bytes));
        good = H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *text) >= 0;
    }
    if (!good)
        DPT_TRY(dpt_h5_fail(err, DPT_BAD_DATA, "%s: its %s cannot be read", path, name));
out:
    if (status != DPT_OK) {
        free(*text);
        *text = NULL;
    }
    dpt_h5_close(type);
    dpt_h5_close(set);
    return status;
}

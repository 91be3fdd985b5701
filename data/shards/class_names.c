#include "data/shards/class_names.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 64 };

/* More than any data set has, but damage may say so. */
static const double BYTES_MOST = 64e6;

/* Text i of an attribute's bytes: `width` of them, or where it is variable a pointer to it. */
static const char *text_at(const char *bytes, size_t i, size_t width, bool variable, size_t *length)
{
    const char *text = variable ? ((char *const *)(const void *)bytes)[i] : bytes + i * width;

    *length = text == NULL ? 0 : variable ? strlen(text) : strnlen(text, width);
    return text != NULL ? text : "";
}

static enum dpt_status keep(struct dpt_class_names *names, const char *bytes, size_t n,
                            size_t width, bool variable, struct dpt_error *err)
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
        return dpt_fail_memory(err, "the names of classes", (double)all);
    to = (char *)(texts + n);
    for (size_t i = 0; i < n; i++) {
        const char *from = text_at(bytes, i, width, variable, &length);

        texts[i] = memcpy(to, from, length);
        to[length] = '\0';
        to += length + 1;
    }
    *names = (struct dpt_class_names){texts, n};
    return DPT_OK;
}

static enum dpt_status read_texts(struct dpt_class_names *names, hid_t attribute,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const bool text = type >= 0 && H5Tget_class(type) == H5T_STRING;
    const bool variable = text && H5Tis_variable_str(type) > 0;
    const hssize_t n = space >= 0 ? H5Sget_simple_extent_npoints(space) : 0;
    const size_t width = variable ? sizeof(char *) : text ? H5Tget_size(type) : 0;
    char *bytes = NULL;

    if (width == 0 || n < 1 || (double)n * (double)width > BYTES_MOST)
        goto out;
    bytes = calloc((size_t)n, width);
    if (bytes == NULL)
        DPT_TRY(dpt_fail_memory(err, "the names of classes", (double)n * (double)width));
    if (H5Aread(attribute, type, bytes) >= 0)
        status = keep(names, bytes, (size_t)n, width, variable, err);
    if (variable)
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, bytes);
out:
    free(bytes);
    H5Sclose(space);
    H5Tclose(type);
    return status;
}

enum dpt_status dpt_class_names_read(struct dpt_class_names *names, hid_t file, const char *labels,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const hid_t data = H5Dopen2(file, labels, H5P_DEFAULT);
    hid_t attribute = H5I_INVALID_HID;

    *names = (struct dpt_class_names){0};
    if (data >= 0 && H5Aexists(data, "classes") > 0)
        attribute = H5Aopen(data, "classes", H5P_DEFAULT);
    if (attribute >= 0) {
        status = read_texts(names, attribute, err);
        H5Aclose(attribute);
    }
    if (data >= 0)
        H5Dclose(data);
    return status;
}

void dpt_class_names_release(struct dpt_class_names *names)
{
    free((void *)names->at);
    *names = (struct dpt_class_names){0};
}

/* For one line of a message: what is not printed is a question mark. */
static const char *shown(const char *name, char buf[SHOWN])
{
    snprintf(buf, SHOWN, "%s", name);
    for (char *p = buf; *p != '\0'; p++)
        *p = (unsigned char)*p < ' ' || *p == 0x7F ? '?' : *p;
    return buf;
}

enum dpt_status dpt_class_names_check(const struct dpt_class_names *names, const char *path,
                                      const struct dpt_class_names *others, const char *other,
                                      struct dpt_error *err)
{
    char mine[SHOWN], theirs[SHOWN];

    for (size_t i = 0; i < names->n && i < others->n; i++)
        if (strcmp(names->at[i], others->at[i]) != 0)
            return dpt_fail(
                err, DPT_BAD_DATA,
                "%s: class %zu is '%s', in %s it is '%s': a number must mean the "
                "same class in both; `dptrain convert` with `--like %s` makes the first "
                "anew with the second's numbers",
                path, i, shown(names->at[i], mine), other, shown(others->at[i], theirs), other);
    return DPT_OK;
}

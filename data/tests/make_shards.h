/* Shards for tests, written through HDF5, whose values follow from the sample number; and a folder
 * to put them into. */
#ifndef DPT_DATA_TESTS_MAKE_SHARDS_H
#define DPT_DATA_TESTS_MAKE_SHARDS_H

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/base/rng.h"
#include "data/sets/dataset.h"
#include "data/shards/h5.h"

enum { MAKE_ELEMENTS = 2 * 3 * 4 }; /* a sample is 2 x 3 x 4, or 24 */

struct make_form {
    int n_dims;       /* 2: [N, 24], 3: [N, 6, 4], 4: [N, 2, 3, 4] */
    bool nhwc;        /* [N, 3, 4, 2] */
    bool floats, big; /* float32; big-endian */
    bool doubles;     /* float64 */
    bool chunked, gzip;
    bool crc;    /* checksums */
    bool latest; /* HDF5's latest format, which has checksums of its own over all that describes the
                    data */
    bool vectors;                /* labels: [N, 3] float32 */
    const char *images, *labels; /* names; NULL: images, labels */
};

/* The value of element (canonical order) of a sample. */
static inline uint8_t make_pixel(int64_t sample, int element)
{
    return (uint8_t)(dpt_mix64((uint64_t)sample * 1000 + (uint64_t)element) >> 20);
}

static inline float make_float(int64_t sample, int element)
{
    return ((float)make_pixel(sample, element) - 100.0F) / 16.0F;
}

static inline int32_t make_label(int64_t sample)
{
    return (int32_t)((7 * sample + 3) % 10);
}

static inline float make_target(int64_t sample, int k)
{
    return (float)sample * 0.5F - (float)k;
}

/* Writes values (of the machine's type `memory`) as a data set of type `stored`. */
static inline void make_data(hid_t file, const char *name, int n_dims, const hsize_t *dims,
                             hid_t stored, hid_t memory, const void *values,
                             const struct make_form *format)
{
    const hid_t space = H5Screate_simple(n_dims, dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[5];
    size_t n = 1;
    hid_t data;

    H5Pset_obj_track_times(plist, false); /* equal samples make equal bytes */
    for (int i = 0; i < n_dims; i++) {
        chunk[i] = i == 0 && dims[0] > 7 ? 7 : dims[i];
        n *= dims[i];
    }
    if (n_dims == 4)
        chunk[2] = 2; /* chunks that divide a sample */
    if (format->chunked || format->gzip)
        H5Pset_chunk(plist, n_dims, chunk);
    if (format->gzip)
        H5Pset_deflate(plist, 4);
    data = H5Dcreate2(file, name, stored, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Dwrite(data, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    if (format->crc) { /* of the bytes that the file holds, in little-endian order */
        const hid_t little = H5Tcopy(stored), scalar = H5Screate(H5S_SCALAR);
        uint32_t crc;
        void *raw = malloc(n * 8 + 1);
        hid_t attribute;

        H5Tset_order(little, H5T_ORDER_LE);
        H5Dread(data, little, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw);
        crc = dpt_crc32(0, raw, n * H5Tget_size(stored));
        attribute = H5Acreate2(data, "crc32", H5T_STD_U32LE, scalar, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(attribute, H5T_NATIVE_UINT32, &crc);
        H5Aclose(attribute);
        H5Sclose(scalar);
        H5Tclose(little);
        free(raw);
    }
    H5Dclose(data);
    H5Pclose(plist);
    H5Sclose(space);
}

static inline void make_text_attribute(hid_t file, const char *name, const char *key,
                                       const char *value, bool variable)
{
    const hid_t data = H5Dopen2(file, name, H5P_DEFAULT), type = H5Tcopy(H5T_C_S1);
    const hid_t scalar = H5Screate(H5S_SCALAR);
    hid_t attribute;

    H5Tset_size(type, variable ? H5T_VARIABLE : strlen(value));
    attribute = H5Acreate2(data, key, type, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, variable ? (const void *)&value : (const void *)value);
    H5Aclose(attribute);
    H5Sclose(scalar);
    H5Tclose(type);
    H5Dclose(data);
}

/* Element of the file's order -> canonical element. */
static inline int make_canonical(const struct make_form *format, int i)
{
    return format->nhwc ? i % 2 * 12 + i / 2 : i;
}

static inline void make_images(hid_t file, const struct make_form *format, int64_t first, int64_t n)
{
    const char *name = format->images != NULL ? format->images : "images";
    const hsize_t dims[3][4] = {
        {(hsize_t)n, 24, 0, 0},
        {(hsize_t)n, 6, 4, 0},
        {(hsize_t)n, format->nhwc ? 3 : 2, format->nhwc ? 4 : 3, format->nhwc ? 2 : 4}};
    const bool real = format->floats || format->doubles;
    uint8_t *pixels = malloc((size_t)n * MAKE_ELEMENTS + 1);
    float *floats = malloc((size_t)n * MAKE_ELEMENTS * sizeof *floats + 1);
    hid_t stored = H5T_STD_U8LE;

    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < MAKE_ELEMENTS; k++) {
            pixels[i * MAKE_ELEMENTS + k] = make_pixel(first + i, make_canonical(format, k));
            floats[i * MAKE_ELEMENTS + k] = make_float(first + i, make_canonical(format, k));
        }
    if (format->doubles)
        stored = format->big ? H5T_IEEE_F64BE : H5T_IEEE_F64LE;
    else if (format->floats)
        stored = format->big ? H5T_IEEE_F32BE : H5T_IEEE_F32LE;
    make_data(file, name, format->n_dims, dims[format->n_dims - 2], stored,
              real ? H5T_NATIVE_FLOAT : H5T_NATIVE_UINT8, real ? (void *)floats : (void *)pixels,
              format);
    if (format->nhwc)
        make_text_attribute(file, name, "layout", format->floats ? "nhwc" : "NHWC",
                            format->chunked);
    free(pixels);
    free(floats);
}

static inline void make_labels(hid_t file, const struct make_form *format, int64_t first, int64_t n)
{
    const char *name = format->labels != NULL ? format->labels : "labels";
    const hsize_t dims[2] = {(hsize_t)n, 3};
    int32_t *labels = malloc((size_t)n * sizeof *labels + 1);
    float *targets = malloc((size_t)n * 3 * sizeof *targets + 1);

    for (int64_t i = 0; i < n; i++) {
        labels[i] = make_label(first + i);
        for (int k = 0; k < 3; k++)
            targets[i * 3 + k] = make_target(first + i, k);
    }
    if (format->vectors)
        make_data(file, name, 2, dims, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, targets, format);
    else
        make_data(file, name, 1, dims, format->big ? H5T_STD_I64BE : H5T_STD_U8LE, H5T_NATIVE_INT32,
                  labels, format);
    free(labels);
    free(targets);
}

static inline hid_t make_file(const char *path, bool latest)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t file;

    if (latest)
        H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    return file;
}

/* A shard of samples first … first + n - 1. */
static inline void make_shard(const char *path, const struct make_form *format, int64_t first,
                              int64_t n)
{
    hid_t file;

    dpt_h5_enter();
    file = make_file(path, format->latest);
    make_images(file, format, first, n);
    make_labels(file, format, first, n);
    H5Fclose(file);
    dpt_h5_leave();
}

/* Where the bytes of a contiguous data set begin. */
static inline int64_t make_offset(const char *path, const char *name)
{
    struct dpt_h5_info info = {0};
    struct dpt_error err;
    hid_t file;

    if (dpt_h5_open(path, &file, &err) != DPT_OK)
        return -1;
    dpt_h5_enter();
    dpt_h5_info(file, path, name, &info, &err);
    H5Fclose(file);
    dpt_h5_leave();
    return info.offset;
}

static inline void make_damage(const char *path, int64_t offset, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "r+b");

    fseek(file, (long)offset, SEEK_SET);
    fwrite(bytes, 1, n, file);
    fclose(file);
}

/* A new folder; returns buf (at least 128 bytes). */
static inline char *make_folder(char *buf)
{
    const char *base = getenv("TMPDIR");

    snprintf(buf, 128, "%.80s/dpt-test-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(buf);
}

static inline int make_remove(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline void make_remove_folder(const char *folder)
{
    nftw(folder, make_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* A job's data section with defaults. paths: borrowed. */
static inline struct dpt_data_conf make_conf(const char **paths, size_t n)
{
    static double zero = 0, one = 1;

    return (struct dpt_data_conf){
        .train = {paths, n},
        .normalize = {{&zero, 1}, {&one, 1}},
        .verify = true,
        .synthetic = {.samples = 4096, .classes = 10, .outputs = 1, .noise = 0.1},
    };
}

#endif

/*
 * forge: HDF5 files made from a fuzzer's bytes.
 *
 * Such a file is whole as far as HDF5 goes, but holds what it should in any form that HDF5 has:
 * other types, extents, layouts and filters, links to nowhere, attributes of any kind. Each choice
 * is one byte; 0, and what lies after the last byte, is the usual choice, so that no bytes give
 * the file as it ought to be. A file that a fuzzer changed byte by byte tests libhdf5, which is not
 * meant here.
 */
#ifndef DPT_DATA_TESTS_FORGE_H
#define DPT_DATA_TESTS_FORGE_H

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/tests/demand.h"

enum { FORGE_VALUES = 1 << 13, FORGE_DIMS = 10 };

struct forge {
    const uint8_t *at;
    size_t left;
    bool usual;                 /* every choice so far */
    bool quiet;                 /* the present object is as it ought to be */
    uint8_t text[FORGE_VALUES]; /* what unusual data sets and attributes hold */
};

static inline struct forge *forge_new(const uint8_t *data, size_t size)
{
    struct forge *f = calloc(1, sizeof *f);

    DEMAND(f != NULL, "no memory");
    f->at = data;
    f->left = size;
    f->usual = true;
    for (size_t i = 0; size > 0 && i < sizeof f->text; i++)
        f->text[i] = data[size - 1 - i % size];
    return f;
}

static inline unsigned forge_byte(struct forge *f)
{
    if (f->quiet || f->left == 0)
        return 0;
    f->left--;
    return *f->at++;
}

/* A choice among n. */
static inline unsigned forge_pick(struct forge *f, unsigned n)
{
    const unsigned choice = forge_byte(f) % n;

    f->usual = f->usual && choice == 0;
    return choice;
}

/* Before an object: mostly it is to be as it ought to be, and then nothing of it is chosen until
 * forge_loud. Returns what that is to be given. */
static inline bool forge_hush(struct forge *f)
{
    const bool before = f->quiet;

    f->quiet = forge_byte(f) < 0xC0;
    return before;
}

static inline void forge_loud(struct forge *f, bool before)
{
    f->quiet = before;
}

static inline hid_t forge_string(size_t size)
{
    const hid_t type = H5Tcopy(H5T_C_S1);

    H5Tset_size(type, size);
    return type;
}

static inline hid_t forge_compound(void)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, 12);

    H5Tinsert(type, "a", 0, H5T_STD_I64LE);
    H5Tinsert(type, "b", 8, H5T_IEEE_F32LE);
    return type;
}

static inline hid_t forge_enum(void)
{
    const hid_t type = H5Tcreate(H5T_ENUM, 1);
    const int8_t no = 0, yes = 1;

    H5Tenum_insert(type, "no", &no);
    H5Tenum_insert(type, "yes", &yes);
    return type;
}

static inline hid_t forge_narrow(hid_t base, size_t bits)
{
    const hid_t type = H5Tcopy(base);

    H5Tset_precision(type, bits);
    return type;
}

/* A float of 16 bits, which HDF5 can convert but few expect. */
static inline hid_t forge_half(void)
{
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);

    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_precision(type, 16);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
}

/* Makes the types that HDF5 has no name for. */
static inline hid_t forge_made_type(struct forge *f, unsigned which)
{
    const hsize_t four = 4;

    switch (which) {
    case 13:
        return forge_half();
    case 15:
        return forge_narrow(H5T_STD_I32LE, 13);
    case 16:
        return forge_narrow(H5T_STD_U8LE, 7);
    case 17:
        return forge_string(1 + forge_pick(f, 40));
    case 18:
        return forge_string(H5T_VARIABLE);
    case 19:
        return forge_compound();
    case 20:
        return forge_enum();
    case 21:
        return H5Tarray_create2(H5T_IEEE_F32LE, 1, &four);
    case 22:
        return H5Tvlen_create(H5T_STD_U8LE);
    case 23:
        return H5Tcreate(H5T_OPAQUE, 5);
    default:
        return forge_string(5000);
    }
}

/* A type for the caller to close. */
static inline hid_t forge_type(struct forge *f, hid_t usual)
{
    const hid_t named[] = {
        [0] = usual,           [1] = H5T_STD_U8LE,
        [2] = H5T_STD_I8LE,    [3] = H5T_STD_I16BE,
        [4] = H5T_STD_U16LE,   [5] = H5T_STD_I32LE,
        [6] = H5T_STD_U32BE,   [7] = H5T_STD_I64LE,
        [8] = H5T_STD_U64BE,   [9] = H5T_IEEE_F32LE,
        [10] = H5T_IEEE_F32BE, [11] = H5T_IEEE_F64LE,
        [12] = H5T_IEEE_F64BE, [14] = H5T_NATIVE_LDOUBLE,
        [24] = H5T_STD_B8LE,   [25] = H5T_STD_REF_OBJ,
        [26] = H5T_UNIX_D32LE, [27] = 0,
    };
    const unsigned which = forge_pick(f, sizeof named / sizeof named[0]);

    return named[which] != 0 ? H5Tcopy(named[which]) : forge_made_type(f, which);
}

/* An extent; the usual one where n_dims is 0 is a scalar. dims: FORGE_DIMS. */
static inline hid_t forge_space(struct forge *f, int *n_dims, hsize_t *dims)
{
    static const hsize_t lengths[] = {1, 0, 2, 3, 5, 8, 64, 1000, 1 << 20, 1ULL << 31, 1ULL << 40};
    const unsigned how = forge_pick(f, 8);

    if (how == 1 || (how == 0 && *n_dims == 0)) {
        *n_dims = 0;
        return H5Screate(H5S_SCALAR);
    }
    if (how == 2) {
        *n_dims = 0;
        return H5Screate(H5S_NULL);
    }
    if (how == 3) {
        *n_dims += *n_dims == 0;
        dims[forge_pick(f, (unsigned)*n_dims)] = 1 + forge_pick(f, 9);
    }
    if (how >= 4) {
        *n_dims = 1 + (int)forge_pick(f, FORGE_DIMS);
        for (int i = 0; i < *n_dims; i++)
            dims[i] = lengths[forge_pick(f, sizeof lengths / sizeof lengths[0])];
    }
    return H5Screate_simple(*n_dims, dims, NULL);
}

/* Elements; not as HDF5 counts them, whose product overflows. */
static inline double forge_points(hid_t space)
{
    hsize_t dims[FORGE_DIMS];
    const int n = H5Sget_simple_extent_dims(space, dims, NULL);
    double points = H5Sget_simple_extent_type(space) == H5S_NULL ? 0 : 1;

    for (int i = 0; i < n; i++)
        points *= (double)dims[i];
    return points;
}

static inline double forge_bytes(hid_t type, hid_t space)
{
    return forge_points(space) * (double)H5Tget_size(type);
}

/* Whether any bytes will do as a value: those of pointers and references won't. */
static inline bool forge_plain(hid_t type)
{
    return H5Tdetect_class(type, H5T_VLEN) <= 0 && H5Tis_variable_str(type) <= 0 &&
           H5Tget_class(type) != H5T_REFERENCE;
}

/* An attribute, usually n values of a type; 0: one. */
static inline void forge_attribute(struct forge *f, hid_t object, const char *name, hid_t usual,
                                   hsize_t n, const void *value)
{
    const bool before = forge_hush(f);
    const unsigned how = forge_pick(f, 6);
    hsize_t dims[FORGE_DIMS] = {1};
    int n_dims = 0;
    hid_t type, space, attribute;
    char *text = (char *)f->text;

    if (how == 1) {
        forge_loud(f, before);
        return;
    }
    type = how == 0 ? H5Tcopy(usual) : forge_type(f, usual);
    space = how > 2 ? forge_space(f, &n_dims, dims)
            : n > 0 ? H5Screate_simple(1, &n, NULL)
                    : H5Screate(H5S_SCALAR);
    attribute = forge_bytes(type, space) <= FORGE_VALUES / 2
                    ? H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT)
                    : H5I_INVALID_HID;
    f->text[FORGE_VALUES - 1] = 0;
    if (attribute >= 0 && how == 0)
        H5Awrite(attribute, type, value);
    else if (attribute >= 0 && forge_plain(type) && how != 5)
        H5Awrite(attribute, type, f->text);
    else if (attribute >= 0 && H5Tis_variable_str(type) > 0 && forge_points(space) == 1)
        H5Awrite(attribute, type, &text);
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
    forge_loud(f, before);
}

/* What a data set ought to be. */
struct forge_want {
    const char *name; /* "/params/dense1/weight" */
    hid_t type;
    int n_dims; /* 0: one value */
    hsize_t dims[4];
    const void *values;
    const char *layout;   /* an attribute, or NULL */
    bool crc;             /* an attribute */
    const char *classes;  /* an attribute, or NULL */
    const int32_t *shape; /* an attribute of three numbers, or NULL */
};

/* How it is stored. Chunks and compact data cannot take every form: then there is no data set. */
static inline hid_t forge_storage(struct forge *f, int n_dims, const hsize_t *dims, double bytes)
{
    const hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    const unsigned how = forge_pick(f, 12);
    hsize_t chunk[FORGE_DIMS];

    H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
    for (int i = 0; i < n_dims; i++)
        chunk[i] = dims[i] < 3 ? 1 + dims[i] / 2 : how == 3 && dims[i] < 4096 ? dims[i] : 3;
    if (how == 1)
        H5Pset_layout(create, H5D_COMPACT);
    if (how >= 2 && how <= 8 && n_dims > 0)
        H5Pset_chunk(create, n_dims, chunk);
    if (how == 4 || how == 5)
        H5Pset_deflate(create, 1);
    if (how == 5 || how == 6)
        H5Pset_shuffle(create);
    if (how == 7)
        H5Pset_fletcher32(create);
    if (how == 8)
        H5Pset_scaleoffset(create, H5Z_SO_INT, 0);
    if (how == 9)
        H5Pset_external(create, "/proc/self/cmdline", 0, H5F_UNLIMITED);
    if (how == 10 && bytes <= FORGE_VALUES)
        H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
    return create;
}

/* text: NULL is fine. */
static inline void forge_text(struct forge *f, hid_t object, const char *name, const char *text)
{
    hid_t type;

    if (text == NULL)
        return;
    type = forge_string(strlen(text));
    forge_attribute(f, object, name, type, 0, text);
    H5Tclose(type);
}

static inline void forge_crc(struct forge *f, hid_t set, const struct forge_want *want, hid_t type,
                             hid_t space)
{
    const double bytes = forge_bytes(type, space);
    uint32_t crc = 0;
    uint8_t *raw = calloc(FORGE_VALUES, 1);

    if (raw != NULL && want->crc && bytes <= FORGE_VALUES && forge_plain(type)) {
        const hid_t little = H5Tcopy(type);

        H5Tset_order(little, H5T_ORDER_LE);
        H5Dread(set, little, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw);
        H5Tclose(little);
        crc = dpt_crc32(0, raw, (size_t)bytes);
    }
    if (want->crc)
        forge_attribute(f, set, "crc32", H5T_STD_U32LE, 0, &crc);
    free(raw);
}

static inline void forge_data(struct forge *f, hid_t file, const struct forge_want *want,
                              hid_t links)
{
    hid_t type = forge_type(f, want->type), space, create, set;
    hsize_t dims[FORGE_DIMS] = {0};
    int n_dims = want->n_dims;
    const bool same_type = H5Tequal(type, want->type) > 0;
    double points = 1;
    bool as_wanted;

    for (int i = 0; i < want->n_dims; i++)
        points *= (double)want->dims[i];
    memcpy(dims, want->dims, sizeof want->dims);
    space = forge_space(f, &n_dims, dims);
    create = forge_storage(f, n_dims, dims, forge_bytes(type, space));
    /* As many values as are to be there, or more would be read than there are. */
    as_wanted = same_type && forge_points(space) == points;
    set = H5Dcreate2(file, want->name, type, space, links, create, H5P_DEFAULT);
    if (set >= 0 && forge_pick(f, 8) != 7 && forge_bytes(type, space) <= FORGE_VALUES) {
        if (forge_pick(f, 4) != 3 && as_wanted)
            H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, want->values);
        else if (forge_plain(type))
            H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, f->text);
    }
    if (set >= 0) {
        forge_crc(f, set, want, type, space);
        forge_text(f, set, "layout", want->layout);
        forge_text(f, set, "classes", want->classes);
        if (want->shape != NULL)
            forge_attribute(f, set, "shape", H5T_NATIVE_INT32, 3, want->shape);
        H5Dclose(set);
    }
    H5Pclose(create);
    H5Sclose(space);
    H5Tclose(type);
}

/* A data set as it ought to be, or something else in its place, or nothing. */
static inline void forge_put(struct forge *f, hid_t file, const struct forge_want *want)
{
    const bool before = forge_hush(f);
    const hid_t links = H5Pcreate(H5P_LINK_CREATE);
    hid_t object = H5I_INVALID_HID;

    H5Pset_create_intermediate_group(links, 1);
    switch (forge_pick(f, 16)) {
    case 9:
        break;
    case 10:
        object = H5Gcreate2(file, want->name, links, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 11:
        H5Lcreate_soft("/nowhere", file, want->name, links, H5P_DEFAULT);
        break;
    case 12:
        H5Lcreate_soft(want->name, file, want->name, links, H5P_DEFAULT);
        break;
    case 13:
        H5Lcreate_external("/proc/self/cmdline", "/x", file, want->name, links, H5P_DEFAULT);
        break;
    case 14:
        object = H5Tcopy(H5T_STD_U8LE);
        H5Tcommit2(file, want->name, object, links, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 15:
        H5Lcreate_hard(file, "/", file, want->name, links, H5P_DEFAULT);
        break;
    default:
        forge_data(f, file, want, links);
    }
    if (object >= 0)
        H5Oclose(object);
    H5Pclose(links);
    forge_loud(f, before);
}

/* A file for H5Fcreate, which wants a name; in memory, or where TMPDIR says. path: 128 bytes. */
static inline int forge_open(char path[128])
{
    const char *folder = getenv("TMPDIR");
    int fd;

    snprintf(path, 128, "%.100s/fuzz-XXXXXX", folder != NULL ? folder : "/dev/shm");
    fd = mkstemp(path);
    DEMAND(fd >= 0, "%s cannot be made", path);
    return fd;
}

static inline void forge_close(int fd, const char *path)
{
    close(fd);
    unlink(path);
}

/* Opens the file for writing. The newest format, with checksums of all that is not data, or the
 * oldest. */
static inline hid_t forge_create(struct forge *f, const char *path)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    const unsigned format = forge_pick(f, 3);
    hid_t file;

    if (format == 1)
        H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    if (format == 2)
        H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    DEMAND(file >= 0, "no file");
    H5Pclose(access);
    return file;
}

/* Identifiers of HDF5 that are in use: whoever opens one closes it, also after a failure. */
static inline long long forge_identifiers(void)
{
    static const H5I_type_t kinds[] = {H5I_FILE,    H5I_GROUP, H5I_DATATYPE,   H5I_DATASPACE,
                                       H5I_DATASET, H5I_ATTR,  H5I_GENPROP_LST};
    long long sum = 0;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        hsize_t n = 0;

        H5Inmembers(kinds[i], &n);
        sum += (long long)n;
    }
    return sum;
}

#endif

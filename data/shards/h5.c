#include "data/shards/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bool started; /* under the lock */

/* What the last link that was refused is, and where it points; "" before one is. Under the lock. */
static char refused[1024];

#if H5L_LINK_CLASS_T_VERS > 0
#define LISTS        hid_t access, hid_t transfer
#define UNUSED_LISTS (void)access, (void)transfer
#else
#define LISTS        hid_t access
#define UNUSED_LISTS (void)access
#endif

/* Writes "/params/conv1" of a link of the group `in`; gives its length. */
static size_t note_link(hid_t in, const char *name)
{
    char folder[512] = "";
    const ssize_t n = H5Iget_name(in, folder, sizeof folder);

    snprintf(refused, sizeof refused, "%s/%s", n > 1 ? folder : "", name);
    return strlen(refused);
}

static hid_t refuse_external(const char *name, hid_t in, const void *value, size_t size, LISTS)
{
    const size_t used = note_link(in, name);
    const char *file = NULL, *object = NULL;
    unsigned flags;

    UNUSED_LISTS;
    if (H5Lunpack_elink_val(value, size, &flags, &file, &object) >= 0)
        snprintf(refused + used, sizeof refused - used, " is a link to %s in another file, %s",
                 object, file);
    else
        snprintf(refused + used, sizeof refused - used, " is a damaged link to another file");
    return H5I_INVALID_HID;
}

static hid_t refuse_custom(const char *name, hid_t in, const void *value, size_t size, LISTS)
{
    const size_t used = note_link(in, name);

    (void)value, (void)size;
    UNUSED_LISTS;
    snprintf(refused + used, sizeof refused - used,
             " is a link of a type that HDF5 itself does not define");
    return H5I_INVALID_HID;
}

/*
 * Has HDF5 ask us instead of opening another file, which might be a pipe, where opening waits for
 * ever. HDF5 calls these functions for each such link on the way to an object, also where a soft
 * one leads, whichever of its functions is called: so no way around them can be forgotten.
 */
static void refuse_links(void)
{
    H5L_class_t class = {.version = H5L_LINK_CLASS_T_VERS};

    for (int id = H5L_TYPE_UD_MIN; id <= H5L_TYPE_MAX; id++) {
        class.id = (H5L_type_t)id;
        class.trav_func = id == H5L_TYPE_EXTERNAL ? refuse_external : refuse_custom;
        H5Lregister(&class);
    }
}

enum dpt_status dpt_h5_exists(hid_t file, const char *path, const char *name, bool *exists,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    dpt_h5_enter();
    refused[0] = '\0';
    *exists = H5Oexists_by_name(file, name, H5P_DEFAULT) > 0;
    if (refused[0] != '\0')
        status = dpt_fail(err, DPT_BAD_DATA,
                          "%s: %s: dptrain opens no other file for it; copy the data into this one",
                          path, refused);
    dpt_h5_leave();
    return status;
}

void dpt_h5_enter(void)
{
    static _Thread_local bool quiet;

    pthread_mutex_lock(&lock);
    if (!started) {
        /* Every file is closed by hand; the library's own clean-up at exit crashes where a disk was
         * full. */
        H5dont_atexit();
        H5open();
        refuse_links();
        started = true;
    }
    if (!quiet) { /* thread-safe builds keep an error stack per thread */
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
        quiet = true;
    }
}

void dpt_h5_leave(void)
{
    dpt_file_moved();
    pthread_mutex_unlock(&lock);
}

void dpt_h5_close(hid_t id)
{
    if (id >= 0 && H5Iget_type(id) == H5I_DATASET)
        H5Dclose(id); /* the id is gone even where that fails */
    else if (id >= 0)
        H5Idec_ref(id);
}

const char *dpt_h5_version(void)
{
    static char text[32];
    unsigned major = 0, minor = 0, release = 0;

    dpt_h5_enter();
    H5get_libversion(&major, &minor, &release);
    snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
    dpt_h5_leave();
    return text;
}

static herr_t keep_first(unsigned n, const H5E_error2_t *entry, void *text)
{
    if (n == 0 && entry->desc != NULL)
        snprintf(text, 256, "%s", entry->desc);
    return 0;
}

/* The HDF5 that reads what this one calls of an unknown version; "": not known. */
static const char *reader_of(const char *inner)
{
    /* The fourth version of a layout is 1.10's, and the third of a datatype. */
    if (strstr(inner, "layout message") != NULL)
        return " (2.0 or later reads it)";
    if (strstr(inner, "datatype message") != NULL)
        return H5_VERSION_GE(1, 12, 0) ? " (2.0 or later reads it)"
                                       : " (1.12 or later reads it; complex numbers of 2.0: 2.0)";
    return "";
}

/* Fails with `text` and, where there is one, HDF5's innermost message. */
static enum dpt_status fail_with(struct dpt_error *err, enum dpt_status status, const char *text,
                                 const char *inner)
{
    if (strstr(inner, "version number") != NULL)
        return dpt_fail(err, status,
                        "%s: %s (HDF5): damaged, or written for a newer HDF5 than %s, which is "
                        "here%s: h5py writes such files with libver='latest', leave that out",
                        text, inner, dpt_h5_version(), reader_of(inner));
    return inner[0] != '\0' ? dpt_fail(err, status, "%s: %s (HDF5)", text, inner)
                            : dpt_fail(err, status, "%s", text);
}

enum dpt_status dpt_h5_fail(struct dpt_error *err, enum dpt_status status, const char *format, ...)
{
    char inner[256] = "", text[DPT_ERROR_TEXT];
    va_list args;

    dpt_h5_enter();
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, inner);
    H5Eclear2(H5E_DEFAULT);
    dpt_h5_leave();
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail_with(err, status, text, inner);
}

int dpt_h5_fd(hid_t file)
{
    void *fd = NULL;
    int number;

    dpt_h5_enter();
    number = H5Fget_vfd_handle(file, H5P_DEFAULT, &fd) >= 0 && fd != NULL ? *(const int *)fd : -1;
    dpt_h5_leave();
    return number;
}

bool dpt_h5_is_written(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool locked;

    if (fd < 0)
        return false;
    locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return locked;
}

/* What makes an HDF5 file of another one that somebody took for one. */
static const char *advice_for(int fd)
{
    static const struct {
        const char *begins, *advice;
    } kinds[] = {
        {"\x93NUMPY", "; `dptrain convert npy` makes shards of NumPy's arrays"},
        {"PK\3\4", "; `dptrain convert npz` makes shards of NumPy's archives"},
    };
    char head[8] = "";

    if (pread(fd, head, sizeof head, 0) > 0)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (memcmp(head, kinds[i].begins, strlen(kinds[i].begins)) == 0)
                return kinds[i].advice;
    return "";
}

/* Why a file cannot be opened, after HDF5 or stat has failed: what the system says of it is in
 * plainer words than HDF5's. */
static enum dpt_status refuse_file(const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char inner[256] = "", text[DPT_ERROR_TEXT];
    struct stat st;
    int fd = -1;

    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, inner);
    DPT_TRY(dpt_file_open(path, DPT_FILE_READ, DPT_BAD_DATA, &fd, err));
    if (fstat(fd, &st) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_BAD_DATA, "%s: cannot read", path));
    if (st.st_size == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s is empty", path));
    if (H5Fis_hdf5(path) == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s is not an HDF5 file%s", path, advice_for(fd)));
    if (dpt_h5_is_written(path))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: another program has it open for writing at the moment: wait until it "
                         "is closed",
                         path));
    if (strstr(inner, "already open for") != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: is marked as open for writing: another program writes it at the "
                         "moment, or crashed while it did; then `h5clear -s %s` removes the mark",
                         path, path));
    snprintf(text, sizeof text, "%s cannot be opened%s", path,
             strstr(inner, "version number") != NULL ? "" : ": truncated or damaged");
    status = fail_with(err, DPT_BAD_DATA, text, inner);
out:
    if (fd >= 0)
        close(fd);
    return status;
}

enum dpt_status dpt_h5_open_known(const char *path, const struct stat *known, hid_t *file,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t access;
    struct stat now;

    dpt_h5_enter();
    access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_sec2(access); /* whatever HDF5_DRIVER says: dpt_h5_fd knows this one */
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
    H5Pset_file_locking(access, 0, 1);
#endif
    *file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (*file < 0)
        DPT_TRY(refuse_file(path, err));
    /* HDF5 opens by name, so another file may have come there since it was looked at. */
    if (fstat(dpt_h5_fd(*file), &now) != 0 || now.st_dev != known->st_dev ||
        now.st_ino != known->st_ino) {
        H5Fclose(*file);
        *file = H5I_INVALID_HID;
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: was replaced while it was opened", path));
    }
out:
    dpt_h5_close(access);
    dpt_h5_leave();
    return status;
}

enum dpt_status dpt_h5_open(const char *path, hid_t *file, struct dpt_error *err)
{
    enum dpt_status status;
    struct stat st;

    *file = H5I_INVALID_HID;
    dpt_h5_enter();
    H5Eclear2(H5E_DEFAULT);
    /* HDF5 would wait for a pipe's other end. */
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        status = dpt_h5_open_known(path, &st, file, err);
    else
        status = refuse_file(path, err);
    dpt_h5_leave();
    return status;
}

/* A data set that is looked at: what its failures are told with. */
struct look {
    hid_t file, data, plist;
    const char *path, *name;
    struct dpt_h5_info *info;
    struct dpt_error *err;
};

static enum dpt_status refuse(const struct look *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "FILE: /NAME " and what is wrong with it. */
static enum dpt_status refuse(const struct look *l, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dpt_fail(l->err, DPT_BAD_DATA, "%s: /%s %s", l->path, l->name, text);
}

/* The element type, and what to call it. */
static void read_type(hid_t data, struct dpt_h5_info *info)
{
    static const char *const names[] = {
        [H5T_INTEGER] = "int",       [H5T_FLOAT] = "float",         [H5T_TIME] = "time",
        [H5T_STRING] = "string",     [H5T_BITFIELD] = "bits",       [H5T_OPAQUE] = "opaque",
        [H5T_COMPOUND] = "compound", [H5T_REFERENCE] = "reference", [H5T_ENUM] = "enum",
        [H5T_VLEN] = "list",         [H5T_ARRAY] = "array",
    };
    const hid_t type = H5Dget_type(data);
    const H5T_class_t class = H5Tget_class(type);

    info->type = DPT_H5_OTHER;
    info->size = (int)H5Tget_size(type);
    snprintf(info->type_text, sizeof info->type_text, "%s",
             class >= 0 && class < H5T_NCLASSES ? names[class] : "unknown");
    if (class == H5T_INTEGER) {
        info->is_signed = H5Tget_sign(type) == H5T_SGN_2;
        snprintf(info->type_text, sizeof info->type_text, "%sint%d", info->is_signed ? "" : "u",
                 (int)H5Tget_precision(type));
        /* Not a bit field in disguise: all of the element's bits count. */
        if (H5Tget_precision(type) == 8 * (size_t)info->size && info->size <= 8 &&
            (info->size & (info->size - 1)) == 0)
            info->type = info->size == 1 && !info->is_signed ? DPT_H5_U8 : DPT_H5_INTEGER;
    } else if (class == H5T_ENUM && info->size == 1) {
        /* h5py's bool: FALSE and TRUE, a byte each. */
        info->type = DPT_H5_INTEGER;
        snprintf(info->type_text, sizeof info->type_text, "bool");
    } else if (class == H5T_FLOAT) {
        snprintf(info->type_text, sizeof info->type_text, "float%d", 8 * info->size);
        if (H5Tequal(type, H5T_IEEE_F32LE) > 0 || H5Tequal(type, H5T_IEEE_F32BE) > 0)
            info->type = DPT_H5_F32;
        else if (H5Tequal(type, H5T_IEEE_F64LE) > 0 || H5Tequal(type, H5T_IEEE_F64BE) > 0)
            info->type = DPT_H5_F64;
    }
    /* Only provisional: read_layout adds the layout's part. */
    info->contiguous =
        info->size == 1 || info->type == DPT_H5_OTHER ||
        H5Tget_order(type) ==
            (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? H5T_ORDER_LE : H5T_ORDER_BE);
    H5Tclose(type);
}

static enum dpt_status read_extent(const struct look *l)
{
    struct dpt_h5_info *info = l->info;
    const hid_t space = H5Dget_space(l->data);
    hsize_t dims[H5S_MAX_RANK];
    const int n = H5Sget_simple_extent_dims(space, dims, NULL);
    const bool null = H5Sget_simple_extent_type(space) == H5S_NULL;
    int64_t bytes = info->size;

    H5Sclose(space);
    if (n < 0 || n > DPT_H5_DIMS || null || info->size <= 0)
        return refuse(l, "has no extent that can be read");
    info->n_dims = n;
    for (int i = 0; i < n; i++) {
        info->dims[i] = (int64_t)dims[i];
        if (dims[i] > INT64_MAX || __builtin_mul_overflow(bytes, (int64_t)dims[i], &bytes))
            return refuse(l, "says it is larger than any file");
    }
    info->bytes = bytes;
    return DPT_OK;
}

static enum dpt_status check_filters(const struct look *l)
{
    enum { LZF = 32000 }; /* no plugin of it exists */
    const int n = H5Pget_nfilters(l->plist);

    for (int i = 0; i < n; i++) {
        unsigned flags, config;
        size_t values = 0;
        char filter[64] = "";
        const H5Z_filter_t id = H5Pget_filter2(l->plist, (unsigned)i, &flags, &values, NULL,
                                               sizeof filter, filter, &config);

        if (id < 0 || H5Zfilter_avail(id) <= 0)
            return refuse(
                l,
                "was written with the HDF5 filter '%s' (%d), which is missing here: write it with "
                "gzip or without compression%s",
                filter, (int)id,
                id == LZF ? "; lzf is h5py's own"
                          : ", or set HDF5_PLUGIN_PATH to the folder of its plugin (pip install "
                            "hdf5plugin; python3 -c 'import hdf5plugin; "
                            "print(hdf5plugin.PLUGIN_PATH)')");
    }
    return DPT_OK;
}

/* Where the bytes lie, and whether the file holds as many as the extent says. */
static enum dpt_status read_layout(const struct look *l)
{
    enum { MOST_RATIO = 1 << 16 }; /* no filter in use packs tighter; 1032 is the limit of gzip */
    struct dpt_h5_info *info = l->info;
    const H5D_layout_t layout = H5Pget_layout(l->plist);
    const int64_t stored = (int64_t)H5Dget_storage_size(l->data);
    const bool packed = layout == H5D_CHUNKED && H5Pget_nfilters(l->plist) > 0;
    const haddr_t offset = H5Dget_offset(l->data);
    hsize_t size;

    info->contiguous = info->contiguous && layout == H5D_CONTIGUOUS;
    if (info->bytes == 0)
        return DPT_OK;
    if (H5Fget_filesize(l->file, &size) < 0)
        return dpt_h5_fail(l->err, DPT_BAD_DATA, "%s cannot be read: damaged", l->path);
    if (stored == 0)
        return refuse(l, "was created but never written");
    if (stored < 0 || (hsize_t)stored > size ||
        (packed ? info->bytes / MOST_RATIO > stored : info->bytes > stored))
        return refuse(
            l,
            "says it holds %lld bytes, the file has %lld of them: damaged, or not written "
            "to the end",
            (long long)info->bytes, (long long)stored);
    if (layout != H5D_CONTIGUOUS)
        return DPT_OK;
    if (info->type == DPT_H5_OTHER && stored != info->bytes) /* of variable length */
        return refuse(l,
                      "holds %s values: it must be numbers, or class names as numbers with the "
                      "names in its attribute classes",
                      info->type_text);
    if (offset == HADDR_UNDEF || stored != info->bytes || offset > size - (hsize_t)stored)
        return refuse(l, "reaches beyond the end of the file: truncated or damaged");
    info->offset = (int64_t)offset;
    return DPT_OK;
}

/* A chunk may be so large whatever it belongs to. */
static const double CHUNK_MOST = 64 << 20;

/* HDF5 makes no chunk that is longer than an axis of fixed length, and believes one that is: it
 * then reads past the end of what it unpacked. */
static enum dpt_status read_chunks(const struct look *l)
{
    struct dpt_h5_info *info = l->info;
    const hid_t space = H5Dget_space(l->data);
    hsize_t chunk[H5S_MAX_RANK] = {0}, dims[H5S_MAX_RANK] = {0}, most[H5S_MAX_RANK] = {0};
    double bytes = info->size; /* of one, unpacked, which HDF5 makes room for */
    bool good = H5Pget_chunk(l->plist, H5S_MAX_RANK, chunk) == info->n_dims &&
                H5Sget_simple_extent_dims(space, dims, most) == info->n_dims;

    H5Sclose(space);
    for (int i = 0; good && i < info->n_dims; i++)
        good = chunk[i] > 0 &&
               (most[i] == H5S_UNLIMITED || (chunk[i] <= most[i] && dims[i] <= most[i]));
    if (!good)
        return dpt_h5_fail(l->err, DPT_BAD_DATA, "%s: the chunks of /%s are damaged", l->path,
                           l->name);
    for (int i = 0; i < info->n_dims; i++) {
        bytes *= (double)chunk[i];
        info->chunk[i] = (int64_t)chunk[i];
    }
    if (bytes > CHUNK_MOST && bytes > (double)info->bytes)
        return dpt_fail(l->err, DPT_BAD_DATA,
                        "%s: a chunk of /%s unpacks to %.0f MB, the whole of it has %.1f: write it "
                        "with smaller chunks",
                        l->path, l->name, bytes / 1e6, (double)info->bytes / 1e6);
    info->chunk_rows = (int64_t)chunk[0];
    return DPT_OK;
}

static enum dpt_status read_crc(const struct look *l)
{
    hid_t attribute, type, space;
    uint64_t value = 0;
    bool good;

    if (H5Aexists(l->data, "crc32") <= 0)
        return DPT_OK;
    attribute = H5Aopen(l->data, "crc32", H5P_DEFAULT);
    type = H5Aget_type(attribute);
    space = H5Aget_space(attribute);
    good = attribute >= 0 && H5Tget_class(type) == H5T_INTEGER &&
           H5Sget_simple_extent_npoints(space) == 1 &&
           H5Aread(attribute, H5T_NATIVE_UINT64, &value) >= 0 && value <= UINT32_MAX;
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attribute);
    if (!good)
        return dpt_h5_fail(l->err, DPT_BAD_DATA,
                           "%s: the attribute crc32 of /%s is not one 32-bit unsigned number",
                           l->path, l->name);
    l->info->has_crc = true;
    l->info->crc = (uint32_t)value;
    return DPT_OK;
}

const char *dpt_h5_elsewhere(hid_t plist)
{
    const H5D_layout_t layout = H5Pget_layout(plist);

    if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED && layout != H5D_COMPACT)
        return "is a virtual data set, made of other files' data: copy its values into it";
    if (layout == H5D_CONTIGUOUS && H5Pget_external_count(plist) > 0)
        return "keeps its values in other files: copy them here";
    return NULL;
}

enum dpt_status dpt_h5_info(hid_t file, const char *path, const char *name,
                            struct dpt_h5_info *info, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t data = H5I_INVALID_HID, plist = H5I_INVALID_HID;
    struct look look;
    bool exists;

    memset(info, 0, sizeof *info);
    name += *name == '/';
    dpt_h5_enter();
    DPT_TRY(dpt_h5_exists(file, path, name, &exists, err));
    data = H5Oopen(file, name, H5P_DEFAULT);
    if (data < 0)
        DPT_TRY(dpt_h5_fail(err, DPT_BAD_DATA, "%s: /%s cannot be opened", path, name));
    if (H5Iget_type(data) != H5I_DATASET)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: /%s is not a data set", path, name));
    plist = H5Dget_create_plist(data);
    if (plist < 0)
        DPT_TRY(dpt_h5_fail(err, DPT_BAD_DATA, "%s: the layout of /%s is damaged", path, name));
    look = (struct look){file, data, plist, path, name, info, err};
    read_type(data, info);
    /* This comes before the extent: HDF5 opens a virtual data set's other files to know that. */
    if (dpt_h5_elsewhere(plist) != NULL)
        DPT_TRY(refuse(&look, "%s", dpt_h5_elsewhere(plist)));
    DPT_TRY(read_extent(&look));
    DPT_TRY(check_filters(&look));
    DPT_TRY(read_layout(&look));
    if (H5Pget_layout(plist) == H5D_CHUNKED)
        DPT_TRY(read_chunks(&look));
    DPT_TRY(read_crc(&look));
out:
    dpt_h5_close(plist);
    dpt_h5_close(data);
    dpt_h5_leave();
    return status;
}

#include "data/shards/inspect_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/str.h"

enum {
    NAME_BYTES = 512,
    DEPTH_MOST = 16,     /* of groups in groups */
    LINKS_MOST = 100000, /* looked at in all */
};

/* A walk through the groups. */
struct walk {
    struct dpt_inspect *f;
    size_t capacity, links;
    haddr_t above[DEPTH_MOST + 1]; /* the groups that we are in: one may hold itself */
};

void dpt_inspect_watch(const struct dpt_inspect *f, const char *name)
{
    if (f->watch != NULL)
        f->watch(f->watch_arg, name);
}

const char *dpt_inspect_keep(struct dpt_inspect *f, const char *text)
{
    char *copy = dpt_region_strdup(&f->region, text);

    for (unsigned char *c = (unsigned char *)copy; c != NULL && *c != '\0'; c++)
        if (*c < ' ' || *c == 127)
            *c = '?';
    return copy;
}

static void complain(struct dpt_inspect *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Notes what is wrong with the file, where it is the first such thing. */
static void complain(struct dpt_inspect *f, const char *format, ...)
{
    char line[NAME_BYTES + 256];
    const char *text;
    va_list args;

    if (f->fault != NULL)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    text = dpt_region_printf(&f->region, "%s: %s", f->path, line);
    f->fault = dpt_inspect_keep(f, text != NULL ? text : "damaged");
}

/* "chunked gzip+shuffle" */
static void describe_storage(hid_t data, char *text, size_t size)
{
    static const char *const layouts[] = {[H5D_COMPACT] = "compact",
                                          [H5D_CONTIGUOUS] = "contiguous",
                                          [H5D_CHUNKED] = "chunked",
                                          [H5D_VIRTUAL] = "virtual"};
    static const char *const filters[] = {
        [H5Z_FILTER_DEFLATE] = "gzip",
        [H5Z_FILTER_SHUFFLE] = "shuffle",
        [H5Z_FILTER_FLETCHER32] = "fletcher32",
        [H5Z_FILTER_SZIP] = "szip",
        [H5Z_FILTER_NBIT] = "nbit",
        [H5Z_FILTER_SCALEOFFSET] = "scaleoffset",
    };
    const hid_t plist = H5Dget_create_plist(data);
    const int layout = plist >= 0 ? (int)H5Pget_layout(plist) : -1;
    const int n = layout == H5D_CHUNKED ? H5Pget_nfilters(plist) : 0;
    size_t used;

    used = (size_t)snprintf(text, size, "%s",
                            layout >= 0 && layout <= (int)H5D_VIRTUAL ? layouts[layout] : "?");
    if (layout == H5D_CONTIGUOUS && H5Pget_external_count(plist) > 0)
        used = (size_t)snprintf(text, size, "external");
    for (int i = 0; i < n && used < size; i++) {
        size_t values = 0;
        unsigned flags, config;
        const H5Z_filter_t id =
            H5Pget_filter2(plist, (unsigned)i, &flags, &values, NULL, 0, NULL, &config);
        const bool known = id > 0 && (size_t)id < sizeof filters / sizeof filters[0];

        used += known ? (size_t)snprintf(text + used, size - used, "%c%s", i == 0 ? ' ' : '+',
                                         filters[id])
                      : (size_t)snprintf(text + used, size - used, "%cfilter %d",
                                         i == 0 ? ' ' : '+', (int)id);
    }
    dpt_h5_close(plist);
}

/* Values that are their bytes, so that reading them needs no further memory and a checksum covers
 * them. */
static bool plain_bytes(hid_t type)
{
    static const H5T_class_t plain[] = {H5T_INTEGER,  H5T_FLOAT,  H5T_STRING,
                                        H5T_BITFIELD, H5T_OPAQUE, H5T_ENUM};
    const H5T_class_t class = H5Tget_class(type);

    if (class == H5T_STRING && H5Tis_variable_str(type) != 0)
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (class == plain[i])
            return true;
    return false;
}

static void describe(struct dpt_inspect *f, struct dpt_inspect_set *set)
{
    struct dpt_field *field = &set->private->field;
    struct dpt_h5_info *info = &field->info;
    struct dpt_error err = {0};
    bool good = dpt_field_describe(field, f->file->id, f->path, &err) == DPT_OK;
    const hid_t data = H5Oopen(f->file->id, field->name, H5P_DEFAULT);
    hid_t type = -1;

    snprintf(set->type, sizeof set->type, "%s", info->type_text[0] != '\0' ? info->type_text : "?");
    snprintf(set->stored, sizeof set->stored, "?");
    if (data >= 0 && H5Iget_type(data) == H5I_DATASET) {
        describe_storage(data, set->stored, sizeof set->stored);
        type = H5Dget_type(data);
    }
    set->n_dims = info->n_dims;
    set->items = info->bytes > 0 ? info->bytes / info->size : 0;
    memcpy(set->dims, info->dims, sizeof set->dims);
    set->bytes = info->bytes;
    field->fd = f->file->fd;
    if (info->contiguous) {
        field->row_items = 1;
        field->row_bytes = (size_t)info->size;
    }
    set->private->readable = good && type >= 0 && plain_bytes(type);
    if (type >= 0 && !plain_bytes(type)) /* their place and size say nothing */
        good = true;
    set->private->text = set->private->readable && H5Tget_class(type) == H5T_STRING;
    set->numbers = set->private->readable && info->type != DPT_H5_OTHER;
    set->sum = !good ? DPT_SUM_UNREADABLE : info->has_crc ? DPT_SUM_UNCHECKED : DPT_SUM_NONE;
    if (!good)
        set->fault = dpt_inspect_keep(f, err.text);
    dpt_h5_close(type);
    dpt_h5_close(data);
}

static void add_set(struct walk *w, const char *name, haddr_t place)
{
    struct dpt_inspect *f = w->f;
    struct dpt_inspect_set *set = dpt_grow(f->sets, &w->capacity, f->n_sets + 1, sizeof *set);

    if (set == NULL) {
        f->region.failed = true;
        return;
    }
    f->sets = set;
    set += f->n_sets;
    memset(set, 0, sizeof *set);
    set->private = dpt_region_alloc(&f->region, sizeof *set->private);
    set->name = dpt_inspect_keep(f, name);
    if (set->private != NULL)
        set->private->field.name = dpt_region_strdup(&f->region, name + 1);
    if (f->region.failed)
        return;
    f->n_sets++;
    set->place = (int64_t)place;
    describe(f, set);
}

static void walk_group(struct walk *w, hid_t group, const char *path, int depth);

/* Hard links know the address of what they lead to; newer libraries call that by older names. */
#if H5_VERSION_GE(1, 12, 0)
typedef H5L_info1_t link_info;
#define GET_LINK_INFO H5Lget_info1
#else
typedef H5L_info_t link_info;
#define GET_LINK_INFO H5Lget_info
#endif

/* Hard links lead to what this file holds. Others are looked at only where a job would follow them,
 * so that those which it refuses are told. full: "/params/conv1". */
static bool worth_following(const link_info *link, const char *full)
{
    static const char *const read[] = {"images",    "x",       "labels",  "y",      "weights",
                                       "mask",      "id",      "columns", "params", "state",
                                       "optimizer", "targets", "job",     "files",  "offsets"};
    const size_t n = strcspn(full + 1, "/");

    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        if (strlen(read[i]) == n && strncmp(read[i], full + 1, n) == 0)
            return true;
    return link->type == H5L_TYPE_HARD;
}

static void walk_link(struct walk *w, hid_t group, const char *path, const char *name, int depth)
{
    char full[NAME_BYTES * 2];
    link_info link;
    hid_t object;
    H5I_type_t type;

    if (GET_LINK_INFO(group, name, &link, H5P_DEFAULT) < 0) {
        complain(w->f, "the group %s is damaged: %s leads nowhere", path[0] != '\0' ? path : "/",
                 name);
        return;
    }
    for (int i = 0; i < depth; i++)
        if (link.type == H5L_TYPE_HARD && link.u.address == w->above[i])
            return;
    if ((size_t)snprintf(full, sizeof full, "%s/%s", path, name) >= NAME_BYTES) {
        complain(w->f, "a name in %s is longer than %d bytes", path, NAME_BYTES);
        return;
    }
    if (!worth_following(&link, full))
        return;
    dpt_inspect_watch(w->f, full);
    object = H5Oopen(group, name, H5P_DEFAULT);
    type = object >= 0 ? H5Iget_type(object) : H5I_BADID;
    w->above[depth] = link.type == H5L_TYPE_HARD ? link.u.address : HADDR_UNDEF;
    if (type == H5I_GROUP && depth < DEPTH_MOST)
        walk_group(w, object, full, depth + 1);
    dpt_h5_close(object);
    if (type == H5I_GROUP && depth >= DEPTH_MOST)
        complain(w->f, "its groups are nested more than %d deep", DEPTH_MOST);
    else if (type == H5I_DATASET || type == H5I_BADID) /* one that cannot be opened has a fault */
        add_set(w, full, link.type == H5L_TYPE_HARD ? link.u.address : 0);
}

static void walk_group(struct walk *w, hid_t group, const char *path, int depth)
{
    H5G_info_t info;
    char name[NAME_BYTES];

    if (H5Gget_info(group, &info) < 0) {
        complain(w->f, "the group %s is damaged", path[0] != '\0' ? path : "/");
        return;
    }
    for (hsize_t i = 0; i < info.nlinks && !w->f->region.failed; i++) {
        const ssize_t n = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name,
                                             sizeof name, H5P_DEFAULT);

        if (n < 0 || ++w->links > LINKS_MOST) {
            complain(w->f,
                     n < 0 ? "the group %s is damaged: its list of names cannot be read"
                           : "%s: more names than any checkpoint or shard has",
                     path[0] != '\0' ? path : "/");
            return;
        }
        if (n > 0)
            walk_link(w, group, path, name, depth);
    }
}

void dpt_inspect_strings(struct dpt_inspect *f, hid_t object, const char *name, const char ***texts,
                         size_t *n)
{
    const char *const *found = dpt_h5_texts(object, name, n);

    *texts = NULL;
    if (found != NULL && *n <= DPT_INSPECT_CLASSES)
        *texts = dpt_region_alloc(&f->region, *n * sizeof **texts);
    else if (*n > 0 && found == NULL)
        f->region.failed = true;
    for (size_t i = 0; *texts != NULL && i < *n; i++)
        (*texts)[i] = dpt_inspect_keep(f, found[i]);
    if (*texts == NULL)
        *n = 0;
    free((void *)found);
}

/* Fills one entry from an attribute of the root that is open as `id`. */
static void take_attribute(struct dpt_inspect *f, hid_t root, hid_t id,
                           struct dpt_inspect_attribute *a, const char *name)
{
    const hid_t type = H5Aget_type(id), space = H5Aget_space(id);
    const H5T_class_t class = type >= 0 ? H5Tget_class(type) : H5T_NO_CLASS;
    const bool scalar = space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
    struct dpt_str text = {0};
    const char **texts = NULL;
    size_t n = 0;

    if (class == H5T_STRING)
        dpt_inspect_strings(f, root, name, &texts, &n);
    a->kind = DPT_INSPECT_OTHER;
    if (class == H5T_INTEGER && scalar && H5Aread(id, H5T_NATIVE_INT64, &a->integer) >= 0) {
        a->kind = DPT_INSPECT_INTEGER;
        dpt_str_printf(&text, "%lld", (long long)a->integer);
    } else if (class == H5T_FLOAT && scalar && H5Aread(id, H5T_NATIVE_DOUBLE, &a->real) >= 0) {
        a->kind = DPT_INSPECT_REAL;
        if (isfinite(a->real))
            dpt_str_number(&text, a->real);
        else
            dpt_str_printf(&text, "%g", a->real);
    } else if (n == 1) {
        a->kind = DPT_INSPECT_TEXT;
        dpt_str_printf(&text, "%s", texts[0]);
    } else {
        dpt_str_printf(&text, "(no single number or text)");
    }
    f->region.failed |= text.failed;
    a->text = dpt_inspect_keep(f, text.text != NULL ? text.text : "");
    dpt_str_release(&text);
    dpt_h5_close(space);
    dpt_h5_close(type);
}

static void read_attributes(struct dpt_inspect *f)
{
    enum { MOST = 1000 };
    const hid_t root = H5Gopen2(f->file->id, "/", H5P_DEFAULT);
    const int n = root >= 0 ? H5Aget_num_attrs(root) : -1;

    if (n < 0 || n > MOST)
        complain(f, "the attributes of / are damaged");
    else
        f->attributes = dpt_region_alloc(&f->region, (size_t)(n + 1) * sizeof *f->attributes);
    for (int i = 0; f->attributes != NULL && i < n; i++) {
        char name[NAME_BYTES] = "";
        const hid_t id = H5Aopen_by_idx(root, ".", H5_INDEX_NAME, H5_ITER_INC, (hsize_t)i,
                                        H5P_DEFAULT, H5P_DEFAULT);

        if (id < 0 || H5Aget_name(id, sizeof name, name) < 0) {
            complain(f, "the attributes of / are damaged");
        } else {
            struct dpt_inspect_attribute *a = &f->attributes[f->n_attributes++];

            a->name = dpt_inspect_keep(f, name);
            take_attribute(f, root, id, a, name);
        }
        dpt_h5_close(id);
    }
    dpt_h5_close(root);
}

enum dpt_status dpt_inspect_open(struct dpt_inspect *f, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct walk w = {.f = f};
    struct stat info;

    dpt_h5_enter();
    f->path = dpt_region_strdup(&f->region, path);
    f->file = dpt_region_alloc(&f->region, sizeof *f->file);
    if (f->path == NULL || f->file == NULL)
        DPT_TRY(dpt_fail_memory(err, "inspecting a file", sizeof *f->file));
    f->file->fd = -1;
    f->file->id = H5I_INVALID_HID;
    dpt_inspect_watch(f, "its head");
    DPT_TRY(dpt_h5_open(path, &f->file->id, err));
    DPT_TRY(dpt_file_open(path, DPT_FILE_READ, DPT_BAD_DATA, &f->file->fd, err));
    if (fstat(f->file->fd, &info) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_BAD_DATA, "%s", path));
    f->bytes = info.st_size;
    dpt_inspect_watch(f, "the attributes of /");
    read_attributes(f);
    walk_group(&w, f->file->id, "", 0);
    if (f->region.failed)
        DPT_TRY(dpt_fail_memory(err, "the contents of a file", (double)w.links));
out:
    dpt_h5_leave();
    return status;
}

void dpt_inspect_close(struct dpt_inspect *f)
{
    dpt_h5_enter();
    if (f->file != NULL)
        dpt_h5_close(f->file->id);
    if (f->file != NULL && f->file->fd >= 0)
        close(f->file->fd);
    dpt_h5_leave();
    free(f->sets);
    dpt_region_release(&f->region);
    memset(f, 0, sizeof *f);
}

static int by_place(const void *a, const void *b)
{
    const struct dpt_inspect_set *x = a, *y = b;
    const int order = (x->place > y->place) - (x->place < y->place);

    return order != 0 ? order : strcmp(x->name, y->name);
}

void dpt_inspect_sort(struct dpt_inspect *f)
{
    if (f->n_sets > 0)
        qsort(f->sets, f->n_sets, sizeof *f->sets, by_place);
}

struct dpt_inspect_set *dpt_inspect_find(const struct dpt_inspect *f, const char *name)
{
    for (size_t i = 0; i < f->n_sets; i++)
        if (strcmp(f->sets[i].name, name) == 0)
            return &f->sets[i];
    return NULL;
}

const struct dpt_inspect_attribute *dpt_inspect_attribute(const struct dpt_inspect *f,
                                                          const char *name)
{
    for (size_t i = 0; i < f->n_attributes; i++)
        if (strcmp(f->attributes[i].name, name) == 0)
            return &f->attributes[i];
    return NULL;
}

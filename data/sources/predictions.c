/*
 * As for shards, HDF5 makes a skeleton in memory and never touches the disk: a full disk is an
 * errno of ours.
 */
#include "data/sources/predictions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/shards/h5_make.h"

enum { COPY = 64 * 1024, HEADERS = 1 << 20 };

enum which { VALUES, PROBABILITIES, LABELS, TARGETS, LOSS, NAMES, SETS };

/* A data set of the file. */
struct set {
    const char *name; /* NULL: not there */
    hid_t type;
    size_t row;      /* bytes */
    int64_t width;   /* 0: [N] */
    int64_t at, end; /* in the file */
};

struct dpt_predictions {
    struct dpt_predictions_form form;
    const char *path;
    char *temporary; /* NULL: none is there */
    int fd;
    struct set sets[SETS];
    int64_t done;
    char *names; /* of one run, as stored */
    size_t names_room;
};

static enum dpt_status cannot_write(const struct dpt_predictions *p, struct dpt_error *err)
{
    return dpt_fail_errno(err, DPT_IO, "%s: cannot write", p->path);
}

/* Which data sets there are. */
static void list_sets(struct dpt_predictions *p)
{
    const struct dpt_predictions_form *f = &p->form;
    const size_t wide = (size_t)f->outputs * sizeof(float);

    p->sets[VALUES] =
        (struct set){f->classes ? "logits" : "predictions", H5T_IEEE_F32LE, wide, f->outputs, 0, 0};
    if (f->classes) {
        p->sets[PROBABILITIES] =
            (struct set){"probabilities", H5T_IEEE_F32LE, wide, f->outputs, 0, 0};
        p->sets[LABELS] = (struct set){"labels", H5T_STD_I32LE, sizeof(int32_t), 0, 0, 0};
    }
    if (f->truth == DPT_TRUTH_CLASS)
        p->sets[TARGETS] = (struct set){"targets", H5T_STD_I32LE, sizeof(int32_t), 0, 0, 0};
    if (f->truth == DPT_TRUTH_VECTOR)
        p->sets[TARGETS] = (struct set){"targets", H5T_IEEE_F32LE, wide, f->outputs, 0, 0};
    if (f->truth != DPT_TRUTH_NONE)
        p->sets[LOSS] = (struct set){"loss", H5T_IEEE_F32LE, sizeof(float), 0, 0, 0};
    if (f->name_bytes > 0)
        p->sets[NAMES] = (struct set){"names", H5I_INVALID_HID, f->name_bytes, 0, 0, 0};
}

static bool add_set(hid_t file, const struct dpt_predictions *p, enum which which, struct set *set)
{
    const struct dpt_predictions_form *f = &p->form;
    const hsize_t dims[2] = {(hsize_t)f->samples, (hsize_t)set->width};
    hid_t type = H5I_INVALID_HID, id;
    bool good = true;

    if (which == NAMES) {
        type = H5Tcopy(H5T_C_S1);
        good = H5Tset_size(type, set->row) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0 &&
               H5Tset_cset(type, H5T_CSET_UTF8) >= 0;
    }
    id = dpt_h5_make(file, set->name, which == NAMES ? type : set->type, set->width > 0 ? 2 : 1,
                     dims);
    good = good && id >= 0 && dpt_h5_place(id, &set->at, &set->end);
    if (which == LABELS && f->class_names != NULL)
        good =
            good && dpt_h5_put_texts(id, "classes", f->class_names, (int64_t)f->n_classes, false);
    if (type >= 0)
        H5Tclose(type);
    return (id < 0 || H5Dclose(id) >= 0) && good;
}

static bool add_attributes(hid_t file, const struct dpt_predictions_form *f)
{
    const hid_t scalar = H5Screate(H5S_SCALAR);
    const bool good = dpt_h5_put_texts(file, "checkpoint", &f->checkpoint, 1, true) &&
                      dpt_h5_put(file, "step", H5T_NATIVE_INT64, scalar, &f->step) &&
                      dpt_h5_put_texts(file, "job", &f->job, 1, true) &&
                      dpt_h5_put_texts(file, "version", &f->version, 1, true);

    H5Sclose(scalar);
    return good;
}

/* The whole file in memory, its data sets as holes. */
static enum dpt_status make_skeleton(struct dpt_predictions *p, int memory, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    hid_t plist, access, file = H5I_INVALID_HID;
    char path[64];
    bool good;

    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    dpt_h5_enter();
    plist = H5Pcreate(H5P_FILE_CREATE);
    access = H5Pcreate(H5P_FILE_ACCESS); /* the stdio driver: a file in memory has no real path */
    if (plist >= 0 && access >= 0 && H5Pset_fapl_stdio(access) >= 0 &&
        H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 &&
        H5Pset_obj_track_times(plist, false) >= 0)
        file = H5Fcreate(path, H5F_ACC_TRUNC, plist, access);
    list_sets(p);
    good = file >= 0 && add_attributes(file, &p->form);
    for (int i = 0; good && i < SETS; i++)
        good = p->sets[i].name == NULL || add_set(file, p, (enum which)i, &p->sets[i]);
    if (!good)
        status = dpt_h5_fail(err, DPT_INTERNAL, "%s: cannot make an HDF5 file in memory", p->path);
    if (file >= 0 && H5Fclose(file) < 0 && status == DPT_OK)
        status = dpt_h5_fail(err, DPT_INTERNAL, "%s: cannot close an HDF5 file in memory", p->path);
    H5Pclose(access);
    H5Pclose(plist);
    dpt_h5_leave();
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct set *x = *(const struct set *const *)a, *y = *(const struct set *const *)b;

    return (x->at > y->at) - (x->at < y->at);
}

/* Copies what lies between the data sets. 0, or -1 with errno. */
static int copy_headers(struct dpt_predictions *p, int memory, int64_t size)
{
    const struct set *sets[SETS];
    char buffer[COPY];
    int64_t at = 0;
    int n = 0;

    for (int i = 0; i < SETS; i++)
        if (p->sets[i].name != NULL)
            sets[n++] = &p->sets[i];
    qsort(sets, (size_t)n, sizeof *sets, by_place);
    for (int i = 0; i <= n; i++) {
        const int64_t end = i < n ? sets[i]->at : size;

        while (at < end) {
            const size_t some = end - at < COPY ? (size_t)(end - at) : COPY;

            if (dpt_pread_all(memory, buffer, some, at) != 0 ||
                dpt_pwrite_all(p->fd, buffer, some, at) != 0)
                return -1;
            at += (int64_t)some;
        }
        at = i < n ? sets[i]->end : at;
    }
    return 0;
}

/* Beyond the limit HDF5 could not even close the skeleton. */
static enum dpt_status check_limit(const struct dpt_predictions *p, struct dpt_error *err)
{
    const struct dpt_predictions_form *f = &p->form;
    const double bytes =
        (double)f->samples * ((double)f->outputs * 12 + 16 + (double)f->name_bytes);
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        bytes + HEADERS <= (double)limit.rlim_cur)
        return DPT_OK;
    return dpt_fail(err, DPT_IO,
                    "%s: cannot write: %.0f bytes are too near the limit of a file (ulimit -f)",
                    p->path, bytes);
}

static enum dpt_status open_file(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int memory = memfd_create("predictions", MFD_CLOEXEC);
    struct stat st;

    if (memory < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "cannot make a file in memory"));
    DPT_TRY(check_limit(p, err));
    DPT_TRY(make_skeleton(p, memory, err));
    if (fstat(memory, &st) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "cannot read a file in memory"));
    DPT_TRY(dpt_file_temporary(p->path, &p->temporary, err));
    p->fd = open(p->temporary, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (p->fd < 0)
        DPT_TRY(cannot_write(p, err));
    /* A disk that is too full is told now. File systems that cannot promise space tell it later. */
    if (fallocate(p->fd, 0, 0, st.st_size) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        DPT_TRY(cannot_write(p, err));
    if (copy_headers(p, memory, st.st_size) != 0)
        DPT_TRY(cannot_write(p, err));
out:
    if (memory >= 0)
        close(memory);
    return status;
}

enum dpt_status dpt_predictions_open(struct dpt_predictions **predictions, const char *path,
                                     const struct dpt_predictions_form *form, struct dpt_error *err)
{
    struct dpt_predictions *p = calloc(1, sizeof *p);
    enum dpt_status status;

    *predictions = NULL;
    if (p == NULL)
        return dpt_fail_memory(err, "the predictions", sizeof *p);
    p->form = *form;
    p->path = path;
    p->fd = -1;
    status = open_file(p, err);
    if (status == DPT_OK)
        *predictions = p;
    else
        dpt_predictions_close(p);
    return status;
}

/* Names as the file has them: of one length, filled up with zeros. */
static const char *stored_names(struct dpt_predictions *p, const struct dpt_predictions_rows *rows)
{
    const size_t width = p->form.name_bytes, need = (size_t)rows->count * width;

    if (need > p->names_room) {
        dpt_free(p->names);
        p->names = dpt_alloc(need);
        p->names_room = p->names != NULL ? need : 0;
        if (p->names == NULL)
            return NULL;
    }
    memset(p->names, 0, need);
    for (int32_t i = 0; i < rows->count; i++)
        memcpy(p->names + (size_t)i * width, rows->names[i], strnlen(rows->names[i], width));
    return p->names;
}

enum dpt_status dpt_predictions_add(struct dpt_predictions *p,
                                    const struct dpt_predictions_rows *rows, struct dpt_error *err)
{
    const void *from[SETS] = {
        [VALUES] = rows->values,
        [PROBABILITIES] = rows->probabilities,
        [LABELS] = rows->labels,
        [TARGETS] = p->form.truth == DPT_TRUTH_CLASS ? (const void *)rows->classes : rows->targets,
        [LOSS] = rows->loss,
    };

    if (rows->count > p->form.samples - p->done)
        return dpt_fail(err, DPT_INTERNAL, "%s: more samples than were announced", p->path);
    if (p->sets[NAMES].name != NULL) {
        from[NAMES] = stored_names(p, rows);
        if (from[NAMES] == NULL)
            return dpt_fail_memory(err, "the names of the samples",
                                   (double)rows->count * (double)p->form.name_bytes);
    }
    for (int i = 0; i < SETS; i++) {
        const struct set *set = &p->sets[i];

        if (set->name != NULL && dpt_pwrite_all(p->fd, from[i], (size_t)rows->count * set->row,
                                                set->at + p->done * (int64_t)set->row) != 0)
            return cannot_write(p, err);
    }
    p->done += rows->count;
    return DPT_OK;
}

enum dpt_status dpt_predictions_commit(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int fd = p->fd;

    if (p->done != p->form.samples)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were written", p->path,
                         (long long)p->done, (long long)p->form.samples));
    p->fd = -1;
    if (close(fd) != 0)
        DPT_TRY(cannot_write(p, err));
    status = dpt_file_commit(p->temporary, p->path, err);
    free(p->temporary);
    p->temporary = NULL;
out:
    return status;
}

void dpt_predictions_close(struct dpt_predictions *p)
{
    if (p == NULL)
        return;
    if (p->fd >= 0)
        close(p->fd);
    if (p->temporary != NULL)
        unlink(p->temporary);
    free(p->temporary);
    dpt_free(p->names);
    free(p);
}

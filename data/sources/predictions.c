/*
 * As for shards, HDF5 makes its metadata in memory and never touches the disk: a full disk is an
 * errno of ours.
 */
#include "data/sources/predictions.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/shards/skeleton.h"

enum which { VALUES, PROBABILITIES, LABELS, TARGETS, LOSS, NAMES, SETS };

struct dpt_predictions {
    struct dpt_predictions_format format;
    const char *path;
    char *temporary; /* NULL: none is there */
    int fd;
    struct dpt_skeleton_set sets[SETS];
    int64_t done;
    char *names; /* of one run, as stored */
    size_t names_room;
};

static enum dpt_status cannot_write(const struct dpt_predictions *p, struct dpt_error *err)
{
    return dpt_fail_errno(err, DPT_IO, "%s: cannot write", p->path);
}

/* A data set with so many numbers a sample; 0: one, [N]. */
static void add_set(struct dpt_predictions *p, enum which which, const char *name, hid_t type,
                    int32_t width)
{
    p->sets[which] = (struct dpt_skeleton_set){
        .name = name,
        .type = type,
        .n_dims = width > 0 ? 2 : 1,
        .dims = {(hsize_t)p->format.samples, (hsize_t)width},
    };
}

/* Which data sets there are. */
static void list_sets(struct dpt_predictions *p)
{
    const struct dpt_predictions_format *f = &p->format;

    add_set(p, VALUES, f->classes ? "logits" : "predictions", H5T_IEEE_F32LE, f->outputs);
    if (f->classes) {
        add_set(p, PROBABILITIES, "probabilities", H5T_IEEE_F32LE, f->outputs);
        add_set(p, LABELS, "labels", H5T_STD_I32LE, 0);
        p->sets[LABELS].classes = f->class_names;
        p->sets[LABELS].n_classes = f->n_classes;
    }
    if (f->truth == DPT_TRUTH_CLASS)
        add_set(p, TARGETS, "targets", H5T_STD_I32LE, 0);
    if (f->truth == DPT_TRUTH_VECTOR)
        add_set(p, TARGETS, "targets", H5T_IEEE_F32LE, f->outputs);
    if (f->truth != DPT_TRUTH_NONE)
        add_set(p, LOSS, "loss", H5T_IEEE_F32LE, 0);
    if (f->name_bytes > 0) {
        add_set(p, NAMES, "names", H5I_INVALID_HID, 0);
        p->sets[NAMES].text_bytes = f->name_bytes;
    }
}

static enum dpt_status open_file(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_predictions_format *f = &p->format;
    const struct dpt_skeleton_attribute attributes[] = {
        {.name = "checkpoint", .text = f->checkpoint},
        {.name = "step", .number = f->step},
        {.name = "job", .text = f->job},
        {.name = "version", .text = f->version},
    };
    struct dpt_h5_metadata skeleton = {
        .memory = -1,
        .sets = p->sets,
        .n_sets = SETS,
        .attributes = attributes,
        .n_attributes = sizeof attributes / sizeof attributes[0],
    };

    DPT_TRY(dpt_h5_metadata_open(&skeleton, err));
    dpt_h5_enter(); /* which knows the types once it is up */
    list_sets(p);
    dpt_h5_leave();
    DPT_TRY(dpt_file_temporary(p->path, &p->temporary, err));
    p->fd = open(p->temporary, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (p->fd < 0)
        DPT_TRY(cannot_write(p, err));
    DPT_TRY(dpt_h5_metadata_begin(&skeleton, p->path, "", p->fd, err));
    if (dpt_h5_metadata_copy(&skeleton, p->fd) != 0)
        DPT_TRY(cannot_write(p, err));
out:
    dpt_h5_metadata_close(&skeleton);
    return status;
}

enum dpt_status dpt_predictions_open(struct dpt_predictions **predictions, const char *path,
                                     const struct dpt_predictions_format *format,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_predictions *p;

    *predictions = NULL;
    DPT_TRY(DPT_ALLOCATE(p, 1, "the predictions", err));
    p->format = *format;
    p->path = path;
    p->fd = -1;
    DPT_TRY(open_file(p, err));
    *predictions = p;
    p = NULL;
out:
    dpt_predictions_close(p);
    return status;
}

/* Makes p->names the names as the file has them: of one length, filled up with zeros. */
static enum dpt_status store_names(struct dpt_predictions *p,
                                   const struct dpt_predictions_rows *rows, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t width = p->format.name_bytes, need = (size_t)rows->count * width;

    DPT_GROW(p->names, &p->names_room, need, "the names of the samples", err);
    for (int32_t i = 0; i < rows->count; i++) /* which fills up with zeros */
        strncpy(p->names + (size_t)i * width, rows->names[i], width);
out:
    return status;
}

enum dpt_status dpt_predictions_add(struct dpt_predictions *p,
                                    const struct dpt_predictions_rows *rows, struct dpt_error *err)
{
    const void *from[SETS] = {
        [VALUES] = rows->values,
        [PROBABILITIES] = rows->probabilities,
        [LABELS] = rows->labels,
        [TARGETS] =
            p->format.truth == DPT_TRUTH_CLASS ? (const void *)rows->classes : rows->targets,
        [LOSS] = rows->loss,
    };

    if (rows->count > p->format.samples - p->done)
        return dpt_fail(err, DPT_INTERNAL, "%s: more samples than were announced", p->path);
    if (p->sets[NAMES].name != NULL && store_names(p, rows, err) != DPT_OK)
        return err->status;
    from[NAMES] = p->names;
    for (int i = 0; i < SETS; i++) {
        const struct dpt_skeleton_set *set = &p->sets[i];
        const int64_t row = (set->end - set->first) / p->format.samples;

        if (set->name != NULL && dpt_pwrite_all(p->fd, from[i], (size_t)(rows->count * row),
                                                set->first + p->done * row) != 0)
            return cannot_write(p, err);
    }
    p->done += rows->count;
    return DPT_OK;
}

enum dpt_status dpt_predictions_commit(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int fd = p->fd;

    if (p->done != p->format.samples)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were written", p->path,
                         (long long)p->done, (long long)p->format.samples));
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
    free(p->names);
    dpt_free(p);
}

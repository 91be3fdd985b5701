#include "data/sources/predictions.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/sources/predictions_type.h"

static const struct dpt_predictions_kind *const kinds[] = {
    &dpt_predictions_csv, &dpt_predictions_npy, &dpt_predictions_h5};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = end != NULL ? strlen(end) : 0;

    return m > 0 && n > m && strcasecmp(text + n - m, end) == 0;
}

/* NULL: none writes files of such a name. */
static const struct dpt_predictions_kind *find_kind(const char *path)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (ends_with(path, kinds[i]->endings[0]) || ends_with(path, kinds[i]->endings[1]))
            return kinds[i];
    return NULL;
}

enum dpt_status dpt_predictions_check(const char *path, struct dpt_error *err)
{
    if (find_kind(path) != NULL)
        return DPT_OK;
    return dpt_fail(err, DPT_USAGE, "--out %s: the name must end in .csv, .npy or .h5 (.hdf5)",
                    path);
}

bool dpt_predictions_only_numbers(const char *path)
{
    return find_kind(path) == &dpt_predictions_npy;
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
    p->kind = &dpt_predictions_csv;
    if (path != NULL) {
        DPT_TRY(dpt_predictions_check(path, err));
        p->kind = find_kind(path);
        DPT_TRY(dpt_file_temporary(path, &p->temporary, err));
        p->fd = open(p->temporary, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
        if (p->fd < 0)
            DPT_TRY(dpt_predictions_cannot_write(p, err));
    }
    p->state = dpt_alloc(p->kind->state);
    if (p->state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the predictions", (double)p->kind->state));
    DPT_TRY(p->kind->begin(p, err));
    *predictions = p;
    p = NULL;
out:
    dpt_predictions_close(p);
    return status;
}

/* Adds the offsets to n rows of numbers; from may be NULL. */
static enum dpt_status add_offsets(const struct dpt_predictions_format *f, const float *from,
                                   int32_t n, double **to, size_t *room, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t width = (size_t)f->outputs, all = (size_t)n * width;

    if (f->offsets == NULL || from == NULL)
        return DPT_OK;
    DPT_GROW(*to, room, all, "the predictions", err);
    for (size_t i = 0; i < all; i++)
        (*to)[i] = from[i] + f->offsets[i % width];
out:
    return status;
}

enum dpt_status dpt_predictions_add(struct dpt_predictions *p,
                                    const struct dpt_predictions_rows *rows, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (rows->count > p->format.samples - p->done)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: more samples than were announced", p->path));
    DPT_TRY(add_offsets(&p->format, rows->values, rows->count, &p->values, &p->values_room, err));
    DPT_TRY(
        add_offsets(&p->format, rows->targets, rows->count, &p->targets, &p->targets_room, err));
    DPT_TRY(p->kind->add(p, rows, err));
    p->done += rows->count;
out:
    return status;
}

enum dpt_status dpt_predictions_commit(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int fd = p->fd;

    if (p->done != p->format.samples)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were written",
                         p->path != NULL ? p->path : "standard output", (long long)p->done,
                         (long long)p->format.samples));
    if (p->path == NULL)
        goto out;
    p->fd = -1;
    if (close(fd) != 0)
        DPT_TRY(dpt_predictions_cannot_write(p, err));
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
    if (p->state != NULL && p->kind->close != NULL)
        p->kind->close(p->state);
    dpt_free(p->state);
    free(p->values);
    free(p->targets);
    dpt_free(p);
}

/*
 * predictions_type: a file of predictions, as its format sees it. Private to sources/.
 */
#ifndef DPT_DATA_PREDICTIONS_TYPE_H
#define DPT_DATA_PREDICTIONS_TYPE_H

#include "core/base/file.h"
#include "data/sources/predictions.h"

/* One file each. */
struct dpt_predictions_kind {
    const char *endings[2]; /* of the names of such files; the second may be NULL */
    size_t state;           /* bytes of what `state` points to; zeroed before `begin` */
    /* Writes what stands in front of the rows. */
    enum dpt_status (*begin)(struct dpt_predictions *predictions, struct dpt_error *err);
    enum dpt_status (*add)(struct dpt_predictions *predictions,
                           const struct dpt_predictions_rows *rows, struct dpt_error *err);
    void (*close)(void *state); /* NULL: it owns nothing */
};

extern const struct dpt_predictions_kind dpt_predictions_csv, dpt_predictions_npy,
    dpt_predictions_h5;

struct dpt_predictions {
    struct dpt_predictions_format format;
    const struct dpt_predictions_kind *kind;
    const char *path; /* NULL: standard output */
    char *temporary;  /* NULL: none is there */
    int fd;           /* -1: none */
    int64_t done;     /* rows */
    /* The rows that are being added, with their offsets if the format has some. */
    double *values, *targets;
    size_t values_room, targets_room;
    void *state; /* the kind's */
};

/* Fails with the errno of a write. Errors: IO. */
static inline enum dpt_status dpt_predictions_cannot_write(const struct dpt_predictions *p,
                                                           struct dpt_error *err)
{
    return dpt_fail_errno(err, DPT_IO, "%s: cannot write", p->path);
}

/* Writes at a place of the file. Errors: IO. */
static inline enum dpt_status dpt_predictions_put(const struct dpt_predictions *p,
                                                  const void *bytes, size_t n, int64_t at,
                                                  struct dpt_error *err)
{
    return dpt_pwrite_all(p->fd, bytes, n, at) == 0 ? DPT_OK : dpt_predictions_cannot_write(p, err);
}

#endif

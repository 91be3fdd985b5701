/*
 * source_type: what a kind of input has to give to be a source. Private to source*.c.
 *
 * A source is made of parts, files as a rule, one after another; a kind reads rows of one part.
 */
#ifndef DPT_DATA_SOURCE_TYPE_H
#define DPT_DATA_SOURCE_TYPE_H

#include "data/sources/convert.h"
#include "data/sources/source.h"

struct dpt_source_part {
    int64_t first, samples;
};

struct dpt_source_type {
    enum dpt_source_kind kind;
    /* Whether a file of this kind begins so. NULL: any file that begins as no other does. */
    bool (*is)(const uint8_t *head, size_t n);
    /* Opens source->paths: sets the form's shape, u8 and nhwc, parts and info. */
    enum dpt_status (*open)(struct dpt_source *source, int rank, int ranks, struct dpt_error *err);
    void (*close)(struct dpt_source *source);
    /* Rows of a part into stored bytes, as the form says, and what is right into the one of
     * `classes` and `targets` that is not NULL. */
    enum dpt_status (*read)(struct dpt_source *source, size_t part, int64_t row, int64_t n,
                            uint8_t *stored, int32_t *classes, float *targets,
                            struct dpt_error *err);
    /* May be NULL: one sample's stored bytes, where `read` leaves them out; any thread. */
    enum dpt_status (*render)(const struct dpt_source *source, int64_t sample, uint8_t *stored,
                              struct dpt_error *err);
    const char *(*name)(const struct dpt_source *source, int64_t sample); /* may be NULL */
};

extern const struct dpt_source_type dpt_source_h5, dpt_source_idx, dpt_source_csv, dpt_source_npy,
    dpt_source_pictures;

struct dpt_source {
    struct dpt_source_info info;
    const struct dpt_source_spec *spec;
    const struct dpt_source_type *type;
    char **paths; /* what was found, NULL-terminated */
    size_t n_paths;
    struct dpt_convert_job job;    /* for the readers of the converters */
    struct dpt_dataset form;       /* how samples are stored here; none is in it */
    struct dpt_source_part *parts; /* [n_parts] */
    size_t n_parts;
    void *state; /* the kind's */
    /* What was fetched. */
    int64_t first, n, capacity;
    uint8_t *stored;
    int32_t *classes;
    float *targets;
};

/* By value: what lies between the members is anything. */
static inline bool dpt_same_shape(const struct dpt_shape *a, const struct dpt_shape *b)
{
    return a->c == b->c && a->h == b->h && a->w == b->w && a->flat == b->flat;
}

/* Room for n parts, all empty. Errors: RANK. */
enum dpt_status dpt_source_parts(struct dpt_source *source, size_t n, struct dpt_error *err);
/* The part that a sample lies in. */
size_t dpt_source_part_of(const struct dpt_source *source, int64_t sample);

#endif

/*
 * source_type: what a format has to give to be a source. Private to sources/.
 *
 * A source is made of parts, files as a rule, one after another; a format reads rows of one part.
 */
#ifndef DPT_DATA_SOURCE_TYPE_H
#define DPT_DATA_SOURCE_TYPE_H

#include "data/sources/source.h"

struct dpt_source_part {
    int64_t first, samples;
};

struct dpt_source_type {
    /* Whether a file of this format begins so; NULL: that is never looked for. */
    bool (*is)(const uint8_t *head, size_t n);
    /* Opens source->paths: sets the format's shape, u8 and nhwc, parts and info. */
    enum dpt_status (*open)(struct dpt_source *source, int rank, int ranks, struct dpt_error *err);
    void (*close)(struct dpt_source *source);
    /* Reads rows of a part into stored bytes in the source's format, and the classes or targets
     * into the one of `classes` and `targets` that is not NULL. stored NULL: the labels alone. */
    enum dpt_status (*read)(struct dpt_source *source, size_t part, int64_t row, int64_t n,
                            uint8_t *stored, int32_t *classes, float *targets,
                            struct dpt_error *err);
    /* May be NULL: one sample's stored bytes, where `read` leaves them out; any thread. */
    enum dpt_status (*render)(const struct dpt_source *source, int64_t sample, uint8_t *stored,
                              struct dpt_error *err);
    const char *(*name)(const struct dpt_source *source, int64_t sample); /* may be NULL */
};

struct dpt_source {
    struct dpt_source_info info;
    const struct dpt_source_spec *spec;
    const struct dpt_source_format *format;
    const struct dpt_source_type *type; /* the format's */
    char **paths;                       /* what was found, NULL-terminated */
    size_t n_paths;
    struct dpt_source_model like; /* of the shard of --like */
    struct dpt_region region;
    struct dpt_dataset layout;     /* how samples are stored here; none is in it */
    struct dpt_source_part *parts; /* [n_parts] */
    size_t n_parts;
    void *state; /* the format's */
    /* What was fetched. */
    int64_t first, n, capacity;
    uint8_t *stored;
    int32_t *classes;
    float *targets;
};

/* Room for a window of n samples. Errors: RANK. */
enum dpt_status dpt_source_room(struct dpt_source *source, int64_t n, struct dpt_error *err);
/* Allocates n parts, all empty. Errors: RANK. */
enum dpt_status dpt_source_parts(struct dpt_source *source, size_t n, struct dpt_error *err);
/* The part that a sample lies in. */
size_t dpt_source_part_of(const struct dpt_source *source, int64_t sample);

#endif

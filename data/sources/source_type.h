/*
 * source_type: a source, as its format sees it. Private to sources/.
 *
 * A source is made of parts, files as a rule, one after another; a format reads rows of one part.
 */
#ifndef DPT_DATA_SOURCE_TYPE_H
#define DPT_DATA_SOURCE_TYPE_H

#include "data/sources/source.h"

struct dpt_source_part {
    int64_t first, samples;
};

struct dpt_source {
    struct dpt_source_info info;
    const struct dpt_source_spec *spec;
    const struct dpt_source_format *format;
    int rank, ranks; /* who this is: files that have checksums are verified in shares */
    char **paths;    /* what was found, NULL-terminated */
    size_t n_paths;
    struct dpt_source_model like; /* of the shard of --like */
    struct dpt_region region;
    struct dpt_dataset layout;     /* how samples are stored here; none is in it */
    struct dpt_source_part *parts; /* [n_paths], zeroed */
    size_t n_parts;                /* one a path, unless the format's `open` says otherwise */
    void *state;                   /* the format's */
    /* What was fetched. */
    int64_t first, capacity;
    uint8_t *stored;
    int32_t *classes;
    float *targets, *weights;
};

/* Rows [row, row + n) of a part, and where they go. */
struct dpt_source_rows {
    size_t part;
    int64_t row, n;
    uint8_t *stored; /* in the source's layout; NULL: the labels alone */
    int32_t *classes;
    float *targets; /* labels go into the one of the two that is not NULL */
    float *weights; /* NULL: the source has none, or they are not wanted */
};

/* Fails where --classes and --regression are both given. Errors: USAGE. */
enum dpt_status dpt_source_check_labels(const struct dpt_source *source, struct dpt_error *err);
/* Says that whole numbers are taken as targets, or floats as classes, and how to have the other.
 * path: of the labels. */
struct dpt_label_numbers;
void dpt_source_tell_labels(const struct dpt_source *source, const char *path,
                            const struct dpt_label_numbers *numbers, bool classes);

/* The part that a sample lies in. */
size_t dpt_source_part_of(const struct dpt_source *source, int64_t sample);
/* Room for a window of n samples. Errors: RANK. */
enum dpt_status dpt_source_room(struct dpt_source *source, int64_t n, struct dpt_error *err);

/* Divides the samples of a source: by their times or groups, where it has these, else at random.
 * class: [samples], below info->classes; NULL: they are not stratified. part: out, [samples], each
 * below split->n. Errors: USAGE (a part gets none), RANK. */
enum dpt_status dpt_source_split_assign(const struct dpt_source_split *split,
                                        const struct dpt_source_info *info, const int32_t *class,
                                        uint8_t *part, struct dpt_error *err);
/* What the parts are called: "train". */
const char *dpt_source_split_name(const struct dpt_source_split *split, size_t part);

/* A class as it is compared with what a model says: what is no class of any model stays none. */
static inline int32_t dpt_source_class_of(int64_t value)
{
    return value < 0 ? -1 : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

#endif

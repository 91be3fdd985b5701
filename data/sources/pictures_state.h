/*
 * pictures_state: a source of images. Private to source_pictures.c and pictures_*.c.
 */
#ifndef DPT_DATA_PICTURES_STATE_H
#define DPT_DATA_PICTURES_STATE_H

#include "core/base/str.h"
#include "data/pictures/picture.h"
#include "data/pictures/picture_list.h"
#include "data/sources/source_type.h"

/* How --labels is read. */
#define DPT_PICTURES_TABLE_OPTIONS                                                                 \
    (1ull << DPT_SOURCE_LABEL | 1ull << DPT_SOURCE_HEADER | 1ull << DPT_SOURCE_CLASSES |           \
     1ull << DPT_SOURCE_REGRESSION | 1ull << DPT_SOURCE_DELIMITER | 1ull << DPT_SOURCE_DECIMAL |   \
     1ull << DPT_SOURCE_THOUSANDS | 1ull << DPT_SOURCE_MISSING |                                   \
     1ull << DPT_SOURCE_DROP_MISSING_LABEL | 1ull << DPT_SOURCE_ID)

struct dpt_pictures {
    struct dpt_picture_list list;
    int32_t *classes;                 /* [list.classes.n]: the class of each sub-folder */
    struct dpt_picture_format layout; /* height, channels 0: not known yet */
    int64_t *sizes;                   /* [list.n]: bytes of files that are kept; or NULL */
    struct dpt_str told;              /* which images were left out */
    /* --labels; its rows have their images' names. Its state is NULL: sub-folders are classes. */
    struct dpt_source table;
    struct dpt_source_spec table_spec;
    char *table_path;
    int32_t *row_classes; /* [rows], or */
    float *row_targets;   /* [rows][width] */
};

/*
 * Takes --fit, or where that is not given what the shard of --like, or the model's training data,
 * were made with. To become shards: what was said goes into info.columns. Errors: USAGE, BAD_DATA,
 * RANK.
 */
enum dpt_status dpt_pictures_fit(struct dpt_source *source, struct dpt_error *err);

/* Warns of what is rarely meant: sub-folders that are called as splits, to become shards; samples
 * of 16 bits that leave the highest ones out. Looks at a few images, on rank 0. */
void dpt_pictures_doubt(const struct dpt_source *source);

/* dpt_source_format.tell_bad. */
enum dpt_status dpt_pictures_tell_bad(const struct dpt_source *source, struct dpt_error *err);
/* --skip-bad, where it was given: decodes all, leaves out those that cannot be read and lists them
 * in info.told. Errors: BAD_DATA (none is left, or none of a class that shards are to have), RANK,
 * STOPPED. */
enum dpt_status dpt_pictures_skip_bad(struct dpt_source *source, struct dpt_error *err);

/* --- pictures_labels.c ------------------------------------------------------------------------ */

/* Fails for an option that says how --labels is read, where that is not given. Errors: USAGE. */
enum dpt_status dpt_pictures_check_options(const struct dpt_source *source, struct dpt_error *err);
/* Reads --labels: the images of the list that have a row remain, each with its row, and info says
 * what labels are. Errors: USAGE, BAD_DATA (rows without an image, or with those of others), IO,
 * RANK. */
enum dpt_status dpt_pictures_labels(struct dpt_source *source, struct dpt_error *err);
/* Adds to info.columns and info.told what the columns of --labels became. Errors: RANK. */
enum dpt_status dpt_pictures_labels_end(struct dpt_source *source, struct dpt_error *err);
void dpt_pictures_labels_close(struct dpt_pictures *state);

#endif

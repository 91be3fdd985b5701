/*
 * shard_statistics: the statistics of shards that a job file for them needs.
 */
#ifndef DPT_DATA_SHARD_STATISTICS_H
#define DPT_DATA_SHARD_STATISTICS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/graph.h"
#include "core/base/error.h"
#include "data/sets/dataset.h"
#include "data/shards/labels.h"

/* Sums over all targets, of powers of what they differ by from the first. */
struct dpt_target_sums {
    double first, least, n, power[3];
};

/* What labels of one number are known to be; UNKNOWN: what they seem to be (labels.h). */
enum dpt_labels_kind { DPT_LABELS_UNKNOWN, DPT_LABELS_CLASSES, DPT_LABELS_TARGETS };

/* Zero-initialise but for what is in; release. */
struct dpt_shard_statistics {
    enum dpt_labels_kind labels; /* in: as another set of the same data has them */
    int64_t samples;
    struct dpt_shape shape; /* of one sample */
    bool nhwc;              /* four dimensions look as if channels were last, and are read so */
    bool u8;                /* bytes, else numbers */
    /* Labels that are whole numbers, or floats that are, are classes where they seem to be
     * (labels.h): each is below `classes`. */
    int64_t classes;
    const char *floats; /* these have this type ("float32"); NULL: integers, or no classes */
    char told[DPT_LABELS_TOLD]; /* of integers that are none: why; else "" */
    int64_t named;              /* classes that the first file names */
    int64_t *counts;            /* [classes] samples of each */
    int64_t width;              /* without classes: the number of targets per sample */
    bool probabilities;         /* the targets are never negative and sum to 1 */
    bool binary;                /* they are several per sample, each 0 or 1 */
    struct dpt_target_sums targets;
    /* Mean and deviation of the values as training sees them, bytes divided by 255: [shape.c]; std
     * is 1 where all values are the same. Columns of a table that hold 0 and 1 alone have 0 and 1,
     * which leave them as they are. */
    double *mean, *std;
    int64_t zeros_and_ones; /* such columns */
    int64_t merged; /* a value of which two samples have one float32 (dpt_field_merged); -1: none */
    int64_t scanned; /* samples from which mean and std were computed */
};

/*
 * Reads n > 0 shards, whose data sets have these names: all labels, and the values of some thousand
 * samples spread over them. Errors: BAD_DATA (names the file; also labels that are no classes,
 * values that are not finite, shards that do not fit each other), IO, RANK.
 */
enum dpt_status dpt_shard_statistics_collect(struct dpt_shard_statistics *statistics,
                                             const char *const *paths, size_t n,
                                             const struct dpt_data_keys *keys,
                                             struct dpt_error *err);
/* How skewed targets are (Fisher's coefficient of skewness); 0 where all are the same. */
double dpt_target_skew(const struct dpt_target_sums *sums);
void dpt_shard_statistics_release(struct dpt_shard_statistics *statistics);

#endif

/*
 * class_names: what a shard calls its classes, and whether two shards mean the same by a number.
 *
 * The attribute `classes` of a shard's labels, an array of strings, names them in the order of
 * their numbers; h5py or `dptrain convert` wrote it. A shard need not have it, and may name fewer
 * classes than another: only those that both name are compared. Private to data/.
 */
#ifndef DPT_DATA_CLASS_NAMES_H
#define DPT_DATA_CLASS_NAMES_H

#include <hdf5.h>
#include <stddef.h>

#include "core/base/error.h"

struct dpt_class_names {
    const char *const *at; /* one block with its texts; NULL: no names */
    size_t n;
};

/* Of the data set `labels` of an open file; none where the attribute is missing, damaged or holds
 * something else. Under dpt_h5_enter. Errors: RANK. */
enum dpt_status dpt_class_names_read(struct dpt_class_names *names, hid_t file, const char *labels,
                                     struct dpt_error *err);
void dpt_class_names_release(struct dpt_class_names *names);

/* Fails where a class is called otherwise in the file `path` than in the file `other`. Errors:
 * BAD_DATA (names both files, the first such class, and what to do). */
enum dpt_status dpt_class_names_check(const struct dpt_class_names *names, const char *path,
                                      const struct dpt_class_names *others, const char *other,
                                      struct dpt_error *err);

#endif

/*
 * init_idx: shards of IDX files, as MNIST's and Fashion-MNIST's, so that `dptrain init` makes a job
 * of these at once.
 */
#ifndef DPT_CMD_INIT_IDX_H
#define DPT_CMD_INIT_IDX_H

#include "core/base/log.h"
#include "core/base/memory.h"

struct dpt_init_idx_file {
    const char *path;
    int dims;  /* of its array: 1 of labels, more of images */
    bool used; /* labels that are some images' */
    /* Images only, after conversion: the index of their labels' file, and what they become. */
    size_t labels;
    const char *prefix, *shard;
};

/* IDX files, in the order in which they were named. Zero-initialise; release. */
struct dpt_init_idx {
    struct dpt_init_idx_file *at;
    size_t n, room;
    struct dpt_region paths;
};

/* Adds a file if it is one. *is: out. Errors: IO, RANK. */
enum dpt_status dpt_init_idx_add(struct dpt_init_idx *idx, const char *path, bool *is,
                                 struct dpt_error *err);
void dpt_init_idx_release(struct dpt_init_idx *idx);

/*
 * Makes one shard of each file of images and its labels, which have its name with `labels` for
 * `images`, or else stand after it: PART-00000-of-00001.h5 beside the images, where part_of says
 * which part a file is of: "train". force: shards of these names are replaced. Errors: USAGE (a
 * shard is there, two files of one part), BAD_DATA (no labels, ...), IO, RANK.
 */
enum dpt_status dpt_init_idx_convert(struct dpt_init_idx *idx, const char *(*part_of)(const char *),
                                     bool force, struct dpt_log *log, struct dpt_error *err);

#endif

/*
 * shard_skeleton: all of a shard but the bytes of its data sets.
 *
 * HDF5 never touches the disk: it makes a file's skeleton (superblock, headers, attributes) in an
 * anonymous memory file, where the data sets are holes; whoever writes the shard puts their bytes
 * at the offsets and copies the rest. So a full disk is an errno, not a library that fails in its
 * own close, and the checksums can be put in last, when they are known: the same form and number of
 * samples give the same layout again. Private to the writer.
 */
#ifndef DPT_DATA_SHARD_SKELETON_H
#define DPT_DATA_SHARD_SKELETON_H

#include "data/shards/shard_writer.h"

/* An upper bound of the bytes of a skeleton. */
enum { DPT_SKELETON_MOST = 128 * 1024 };

struct dpt_skeleton {
    int memory;                                     /* the anonymous file; -1: closed */
    int64_t images, images_end, labels, labels_end; /* where the data sets lie */
    int64_t total;                                  /* bytes of the file */
};

/* Errors: RANK. */
enum dpt_status dpt_skeleton_open(struct dpt_skeleton *s, struct dpt_error *err);
void dpt_skeleton_close(struct dpt_skeleton *s);

/* Makes the skeleton of a shard of `samples` samples anew. Errors: INTERNAL, RANK. */
enum dpt_status dpt_skeleton_make(struct dpt_skeleton *s, const struct dpt_shard_form *form,
                                  int64_t samples, uint32_t crc_images, uint32_t crc_labels,
                                  struct dpt_error *err);

/* Copies what lies outside the data sets into a file. 0, or -1 with errno. */
int dpt_skeleton_copy(const struct dpt_skeleton *s, int fd);

#endif

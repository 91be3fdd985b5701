/*
 * skeleton: all of a new HDF5 file but the bytes of its data sets.
 *
 * HDF5 never touches the disk: it makes a file's skeleton (superblock, headers, attributes) in an
 * anonymous memory file, where the data sets are holes; whoever writes the file puts their bytes at
 * the offsets and copies the rest. So a full disk is an errno, not a library that fails in its own
 * close, and checksums can be put in last, when they are known: the same sets give the same layout
 * again. Private to the writers.
 */
#ifndef DPT_DATA_SKELETON_H
#define DPT_DATA_SKELETON_H

#include "data/shards/h5.h"

/* An upper bound of the bytes that HDF5 adds to a shard. */
enum { DPT_SHARD_METADATA_MOST = 128 * 1024 };

/* A data set: one run of bytes. */
struct dpt_skeleton_set {
    const char *name;  /* NULL: left out */
    hid_t type;        /* unless: */
    size_t text_bytes; /* texts of so many bytes each; 0: none */
    int n_dims;
    hsize_t dims[4];
    const uint32_t *crc;        /* the attribute crc32; NULL: none */
    const char *layout;         /* the attribute layout; NULL: none */
    const char *const *classes; /* [n_classes]: the attribute classes; NULL: none */
    size_t n_classes;
    int64_t first, end; /* out: its bytes in the file */
};

/* An attribute of the file itself: a text, or else a number. */
struct dpt_skeleton_attribute {
    const char *name, *text;
    int64_t number;
};

struct dpt_shard_metadata {
    int memory; /* the anonymous file; -1: closed */
    struct dpt_skeleton_set *sets;
    size_t n_sets;
    const struct dpt_skeleton_attribute *attributes;
    size_t n_attributes;
    int64_t total; /* out: bytes of the file */
};

/* Sets s->memory; the rest is the caller's. Errors: RANK. */
enum dpt_status dpt_shard_metadata_open(struct dpt_shard_metadata *s, struct dpt_error *err);
void dpt_shard_metadata_close(struct dpt_shard_metadata *s);

/* Makes the skeleton of the sets, anew. Errors: INTERNAL, RANK. */
enum dpt_status dpt_shard_metadata_make(struct dpt_shard_metadata *s, struct dpt_error *err);

/* Copies what lies outside the data sets into a file. 0, or -1 with errno. */
int dpt_shard_metadata_copy(const struct dpt_shard_metadata *s, int fd);

#endif

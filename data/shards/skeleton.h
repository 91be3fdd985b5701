/*
 * skeleton: all of a new HDF5 file but the bytes of its data sets.
 *
 * HDF5 never touches the disk: it makes a file's skeleton (superblock, headers, attributes) in an
 * anonymous memory file, where the data sets are holes; whoever writes the file puts their bytes at
 * the offsets and copies the rest. So a full disk is an errno, not a library that fails in its own
 * close, and checksums can be put in last, when they are known: the same sets give the same layout
 * again. No times are kept. Private to the writers of shards, predictions and checkpoints.
 */
#ifndef DPT_DATA_SKELETON_H
#define DPT_DATA_SKELETON_H

#include "data/shards/h5.h"

/* A data set: one run of bytes. */
struct dpt_skeleton_set {
    const char *name;  /* NULL: left out; groups on the way are made: "/params/conv1/weight" */
    hid_t type;        /* unless: */
    size_t text_bytes; /* texts of so many bytes each; 0: none */
    int n_dims;        /* 0: a scalar */
    hsize_t dims[4];
    const uint32_t *crc;        /* the attribute crc32; NULL: none */
    const char *layout;         /* the attribute layout; NULL: none */
    const int64_t *shape;       /* [3]: the attribute shape; NULL: none */
    const char *const *classes; /* [n_classes]: the attribute classes; NULL: none */
    size_t n_classes;
    int64_t first, end; /* out: its bytes in the file */
};

/* A set of n numbers; width > 0: of n rows of so many. name: NULL: there is none. */
static inline struct dpt_skeleton_set dpt_skeleton_numbers(const char *name, hid_t type, int64_t n,
                                                           int64_t width)
{
    return (struct dpt_skeleton_set){.name = name,
                                     .type = type,
                                     .n_dims = width > 0 ? 2 : 1,
                                     .dims = {(hsize_t)n, (hsize_t)width}};
}

/* An attribute of the file itself: a text, or else the real number that `real` points to, or else a
 * whole one. */
struct dpt_skeleton_attribute {
    const char *name, *text; /* name NULL: left out */
    int64_t number;
    const double *real;
};

struct dpt_h5_metadata {
    int memory; /* the anonymous file; -1: closed */
    struct dpt_skeleton_set *sets;
    size_t n_sets;
    const struct dpt_skeleton_attribute *attributes;
    size_t n_attributes;
    bool ascii;    /* texts are marked as ASCII instead of UTF-8 */
    bool aligned;  /* data sets of a page and more begin at whole cache lines */
    int64_t total; /* out: bytes of the file */
};

/* Sets s->memory; the rest is the caller's. Errors: RANK. */
enum dpt_status dpt_h5_metadata_open(struct dpt_h5_metadata *s, struct dpt_error *err);
void dpt_h5_metadata_close(struct dpt_h5_metadata *s);

/* Makes the skeleton of the sets again. Errors: RANK. */
enum dpt_status dpt_h5_metadata_make(struct dpt_h5_metadata *s, struct dpt_error *err);

/*
 * Makes the metadata as dpt_h5_metadata_make does, and space for all of the file in the new, empty
 * one that is open as `fd`: so a limit or a disk that is too full is told at once. path: what the
 * file will be called; smaller: how to make it smaller, or "". Errors: IO, INTERNAL, RANK.
 */
enum dpt_status dpt_h5_metadata_begin(struct dpt_h5_metadata *s, const char *path,
                                      const char *smaller, int fd, struct dpt_error *err);

/* Copies what lies outside the data sets into a file. 0, or -1 with errno. */
int dpt_h5_metadata_copy(const struct dpt_h5_metadata *s, int fd);

#endif

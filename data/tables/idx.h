/*
 * idx: the header of IDX files, the format of MNIST.
 *
 * http://yann.lecun.com/exdb/mnist/ ("THE IDX FILE FORMAT"): two zero bytes, a type, the number of
 * dimensions, each dimension as a big-endian 32-bit number, the values. Gzipped or not.
 */
#ifndef DPT_DATA_IDX_H
#define DPT_DATA_IDX_H

#include "data/sources/convert_input.h"

enum { DPT_IDX_DIMS = 4 };

/* A file open behind its header. Zero-initialise; close `in`. */
struct dpt_idx {
    struct dpt_input in;
    int n_dims; /* 1 for labels */
    int64_t dims[DPT_IDX_DIMS];
    int64_t sample; /* bytes */
};

/* Errors: BAD_DATA (no IDX file, of other values than unsigned bytes, too short for its header),
 * IO. */
enum dpt_status dpt_idx_open(struct dpt_idx *idx, const char *path,
                             const struct dpt_convert_job *job, struct dpt_error *err);

#endif

/*
 * h5_make: parts of HDF5 files that are made as skeletons in memory, without their data sets'
 * bytes. All under HDF5's lock. Private to the writers.
 */
#ifndef DPT_DATA_H5_MAKE_H
#define DPT_DATA_H5_MAKE_H

#include "data/shards/h5.h"

/* An attribute of one type; n texts, or one, as strings of fixed length. False: HDF5 failed. */
bool dpt_h5_put(hid_t object, const char *name, hid_t type, hid_t space, const void *value);
bool dpt_h5_put_texts(hid_t object, const char *name, const char *const *texts, int64_t n,
                      bool scalar);

/* A contiguous data set whose space is there but was never filled; HDF5's own id, or negative. */
hid_t dpt_h5_make(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *dims);
/* Where the bytes of a data set lie in the file. False: nowhere. */
bool dpt_h5_place(hid_t id, int64_t *first, int64_t *end);

#endif

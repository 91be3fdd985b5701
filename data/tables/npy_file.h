/*
 * npy_file: NumPy's array files, from front to back.
 */
#ifndef DPT_DATA_NPY_FILE_H
#define DPT_DATA_NPY_FILE_H

#include "data/sources/convert_input.h"
#include "data/tables/npy.h"

/* A file open behind its header, read in rows: all numbers of one sample. Zero-initialise; close
 * `in`. */
struct dpt_npy_file {
    struct dpt_input in;
    struct dpt_npy npy;
    int64_t row; /* numbers */
};

/* Errors: BAD_DATA (no .npy file, no samples, too short for its header), IO, RANK. */
enum dpt_status dpt_npy_open(struct dpt_npy_file *a, const char *path,
                             const struct dpt_convert_job *job, struct dpt_error *err);

/* An integer; those above INT64_MAX become INT64_MAX, which is too large for a label as well. */
int64_t dpt_npy_integer(const struct dpt_npy *npy, const uint8_t *at);

/* n floats; `first` is the number of raw[0] in the file, for messages. Errors: BAD_DATA (one is not
 * finite). */
enum dpt_status dpt_npy_floats(const struct dpt_npy_file *a, const uint8_t *raw, int64_t first,
                               int64_t n, float *out, struct dpt_error *err);

#endif

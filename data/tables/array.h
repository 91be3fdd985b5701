/*
 * array: files of one array of numbers, NumPy's (npy.h, also in .npz) and IDX, read from front to
 * back.
 *
 * IDX is the format of MNIST, http://yann.lecun.com/exdb/mnist/ ("THE IDX FILE FORMAT"): two zero
 * bytes, a type, the number of dimensions, each dimension as a big-endian 32-bit number, the
 * values; only those of unsigned bytes are taken, which are told as NumPy's |u1. Gzipped or not.
 */
#ifndef DPT_DATA_ARRAY_H
#define DPT_DATA_ARRAY_H

#include "data/tables/input.h"
#include "data/tables/npy.h"

enum { DPT_IDX_DIMS = 4 };

/* A file open after its header, read in rows: all numbers of one sample. Zero-initialise; close
 * `in`. */
struct dpt_array {
    struct dpt_input in;
    struct dpt_npy npy;
    int64_t row; /* numbers of a row */
    int64_t at;  /* the row that is read next */
    /* By dpt_array_floats: a column in which two rows merge (dpt_float_merges); -1: none. */
    int64_t merged;
};

/* name: NULL: the file is the array; else the array of this name in an archive of NumPy's, which
 * messages call `shown`, borrowed. Errors: BAD_DATA (no file of this kind, no samples, too short
 * for its header), IO, RANK. */
enum dpt_status dpt_array_open_npy(struct dpt_array *a, const char *path, const char *name,
                                   const char *shown, const volatile sig_atomic_t *stop,
                                   struct dpt_error *err);
enum dpt_status dpt_array_open_idx(struct dpt_array *a, const char *path,
                                   const volatile sig_atomic_t *stop, struct dpt_error *err);

/* Rows [row, row + n) as they lie in the file; after the last one nothing may be left. Continuing
 * where the last call ended is cheap, going back is slow in gzipped files. Errors: BAD_DATA, IO. */
enum dpt_status dpt_array_read(struct dpt_array *a, int64_t row, int64_t n, void *raw,
                               struct dpt_error *err);

/* A number. As an integer those above INT64_MAX become INT64_MAX, which is too large for a label as
 * well, and floats that are no whole numbers INT64_MIN. */
int64_t dpt_npy_integer(const struct dpt_npy *npy, const uint8_t *at);
double dpt_npy_real(const struct dpt_npy *npy, const uint8_t *at);

/* Whether two whole numbers are one as float32, as time stamps in milliseconds are. */
bool dpt_float_merges(double a, double b);
/* What to tell of a column that holds such; format it with the column's number (long long). */
#define DPT_FLOAT_MERGES                                                                           \
    "column %lld: whole numbers beyond 2^24 that differ are one number as float32: subtract an "   \
    "offset from the column where the file is written"

/* n rows of raw numbers as floats; `row` is the number of the first, for messages. Errors: BAD_DATA
 * (one is not finite). */
enum dpt_status dpt_array_floats(struct dpt_array *a, const uint8_t *raw, int64_t row, int64_t n,
                                 float *out, struct dpt_error *err);

#endif

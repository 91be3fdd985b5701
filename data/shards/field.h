/*
 * field: one data set of an HDF5 file, read in rows.
 *
 * Values that lie in one run of the file are read with pread past HDF5 (faster, and a damaged file
 * cannot crash the library), all others through HDF5. Raw values are those of the stored type in
 * little-endian order, row after row, which is also what a checksum covers. One that is open may be
 * read by any thread. Private to data/.
 */
#ifndef DPT_DATA_FIELD_H
#define DPT_DATA_FIELD_H

#include "data/shards/h5.h"

struct dpt_field {
    const char *path; /* of the file, for messages; borrowed */
    const char *name; /* "images", "params/conv1/weight"; borrowed; NULL: there is none */
    struct dpt_h5_info info;
    int64_t row_items;     /* elements of a row: a sample */
    size_t row_bytes;      /* of a row, raw */
    bool turned;           /* rows are read in another order of axes than they have in the file */
    int axis[DPT_H5_DIMS]; /* then: the file's axis of each */
    int fd;                /* of the open file, where the values lie in one run; borrowed */
    hid_t data, type;      /* open, where HDF5 reads it; type: raw values in memory */
};

/* Reads what the file says of field->name, if it is not NULL, and measures its rows. Errors: as
 * dpt_h5_info. */
enum dpt_status dpt_field_describe(struct dpt_field *field, hid_t file, const char *path,
                                   struct dpt_error *err);
/* Has the axes of a described one read in another order: axis[i] is the file's number of the i-th.
 */
void dpt_field_turn(struct dpt_field *field, const int *axis);
/* Opens it for HDF5 to read, with room in its cache for the chunks of one row; and closes it. Under
 * HDF5's lock. Errors: BAD_DATA. */
enum dpt_status dpt_field_open(struct dpt_field *field, hid_t file, struct dpt_error *err);
void dpt_field_close(struct dpt_field *field);

/* Raw rows [row, row + rows). Errors: BAD_DATA (damaged, or the file became shorter), IO. */
enum dpt_status dpt_field_read(const struct dpt_field *field, int64_t row, int64_t rows, void *raw,
                               struct dpt_error *err);
/* How many rows from `row` on to read at once (some MiB, whole chunks), none at or after `end`. */
int64_t dpt_field_piece(const struct dpt_field *field, int64_t row, int64_t end);
/* The most bytes that such a piece of `rows` rows has. */
size_t dpt_field_piece_bytes(const struct dpt_field *field, int64_t rows);

/* Is given rows [row, row + n), raw. */
typedef enum dpt_status dpt_field_visit(void *arg, int64_t row, int64_t n, const void *raw,
                                        struct dpt_error *err);
/* Reads rows [begin, end) a piece at a time. visit: may be NULL. *crc: the checksum is continued
 * over their bytes; may be NULL. Errors: those of `visit`, BAD_DATA, IO, RANK. */
enum dpt_status dpt_field_scan(const struct dpt_field *field, int64_t begin, int64_t end,
                               dpt_field_visit *visit, void *arg, uint32_t *crc,
                               struct dpt_error *err);
/* Reads all rows and compares them with their checksum, where there is one. Errors: BAD_DATA, IO,
 * RANK. */
enum dpt_status dpt_field_verify(const struct dpt_field *field, int64_t rows,
                                 struct dpt_error *err);
/* Fails where a checksum is not the one that the file says. Errors: BAD_DATA. */
enum dpt_status dpt_field_check_crc(const struct dpt_field *field, uint32_t crc,
                                    struct dpt_error *err);

/* n raw elements as numbers; element i as one. Unsigned numbers above INT64_MAX become INT64_MAX,
 * floats that are no whole numbers INT64_MIN. */
void dpt_field_floats(const struct dpt_field *field, const void *raw, size_t n, float *out);
double dpt_field_real(const struct dpt_field *field, const void *raw, size_t i);
int64_t dpt_field_int(const struct dpt_field *field, const void *raw, size_t i);
/* An element that merges with that of the row before (dpt_float_merges, data/tables/array.h) in
 * some of n rows; -1: none. */
int64_t dpt_field_merged(const struct dpt_field *field, const void *raw, int64_t n);
/* Element i as it is told, "-1" or "0.5"; returns buf (at least 32 bytes). */
const char *dpt_field_show(const struct dpt_field *field, const void *raw, size_t i, char *buf);

#endif

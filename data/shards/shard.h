/*
 * shard: one HDF5 file of samples.
 *
 * Opening looks at the layout alone and leaves no file open: the metadata is checked against the
 * file's true size before a byte of data is read. Attaching opens it for reading: values that lie
 * in one run are read with pread past HDF5 (quicker, and a damaged file cannot crash the library),
 * all others through HDF5. Raw values are those of the stored type in little-endian order, row
 * after row, which is also what a checksum covers. A shard that is attached may be read by any
 * thread. Private to data/.
 */
#ifndef DPT_DATA_SHARD_H
#define DPT_DATA_SHARD_H

#include "data/sets/dataset.h"
#include "data/shards/h5.h"

/*
 * What a shard calls its classes: the attribute `classes` of its labels, an array of strings, in
 * the order of their numbers; h5py or `dptrain convert` wrote it. A shard need not have it, and may
 * name fewer classes than another: only those that both name are compared.
 */
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

/* One of a shard's data sets. */
struct dpt_field {
    char name[8]; /* "images", "x", "labels", "y", "weights", "mask"; empty: there is none */
    struct dpt_h5_info info;
    int64_t row_items; /* elements of a sample */
    size_t row_bytes;  /* bytes of a sample, raw */
    hid_t data, type;  /* open while attached, where HDF5 reads it; type: raw values in memory */
};

/* Identifies a file, and shows that its content was changed. */
struct dpt_shard_mark {
    dev_t device;
    ino_t number;
    off_t size;
    struct timespec changed;
};

enum dpt_shard_change { DPT_SHARD_SAME, DPT_SHARD_CHANGED, DPT_SHARD_TOLD };

struct dpt_shard {
    char *path;
    const char *file; /* its last part, for short messages; points into path */
    int64_t first;    /* number of its first sample in the data set */
    int64_t samples;
    struct dpt_shape shape; /* of one sample, canonical */
    bool nhwc;
    bool unsaid; /* of four dimensions, and no attribute says in which order */
    enum dpt_target_kind target;
    int32_t target_width; /* VECTOR */
    struct dpt_field images, labels, weights;
    struct dpt_class_names names; /* of the labels' classes */
    char unused[96];              /* what else the file holds: "/ids, /meta"; empty: nothing */
    bool attached;
    int fd;
    hid_t h5;
    struct dpt_shard_mark mark; /* when it was opened */
    _Atomic int
        change; /* enum dpt_shard_change: set by the thread that reads, reported by the main thread */
};

/* Examines a file. classes: as in struct dpt_dataset_spec. Errors: BAD_DATA (names the file), RANK.
 */
enum dpt_status dpt_shard_open(struct dpt_shard *shard, const char *path, bool classes,
                               struct dpt_error *err);
/* A field by its number: what a shard consists of. */
enum { DPT_SHARD_FIELDS = 3 };

static inline struct dpt_field *dpt_shard_field(struct dpt_shard *shard, size_t i)
{
    struct dpt_field *const fields[DPT_SHARD_FIELDS] = {&shard->images, &shard->labels,
                                                        &shard->weights};

    return fields[i];
}

/* Examines a file that may have no labels; then labels.name is empty. Weights are ignored, since no
 * model is trained on it. */
enum dpt_status dpt_shard_open_any(struct dpt_shard *shard, const char *path, bool classes,
                                   struct dpt_error *err);
void dpt_shard_close(struct dpt_shard *shard);

/* Errors: BAD_DATA (it is not the file that was opened, or was changed since), IO. */
enum dpt_status dpt_shard_attach(struct dpt_shard *shard, struct dpt_error *err);
void dpt_shard_detach(struct dpt_shard *shard);

/* Reads a field of an attached shard as a whole, and compares it with its checksum, where it has
 * one. raw: a buffer for a piece. Errors: BAD_DATA, IO. */
enum dpt_status dpt_shard_verify(const struct dpt_shard *shard, const struct dpt_field *field,
                                 void *raw, struct dpt_error *err);

/*
 * Whether an attached shard is still what it was. One that became shorter, or was written to and no
 * longer matches its checksum, is an error; one that was written to and has none, or is not to be
 * verified, is reported once. Errors: BAD_DATA, IO, RANK.
 */
enum dpt_status dpt_shard_look(struct dpt_shard *shard, bool verify, struct dpt_error *err);

/* Whether an attached shard is the file that was opened, unchanged. Errors: BAD_DATA, IO. */
enum dpt_status dpt_shard_check_mark(const struct dpt_shard *shard, struct dpt_error *err);

/* Whether the images can be read with pread in the layout that they have in memory. */
bool dpt_shard_direct(const struct dpt_shard *shard);

/* Raw rows [row, row + rows) of a field. Errors: BAD_DATA (the file became shorter), IO. */
enum dpt_status dpt_shard_read(const struct dpt_shard *shard, const struct dpt_field *field,
                               int64_t row, int64_t rows, void *raw, struct dpt_error *err);

/* Opens the data set `name` for HDF5 to read, with room in its cache for the chunks of one row; and
 * closes it. Under HDF5's lock. Errors: BAD_DATA. */
enum dpt_status dpt_field_open(struct dpt_field *field, hid_t file, const char *path,
                               const char *name, struct dpt_error *err);
void dpt_field_close(struct dpt_field *field);
/* Reads whole rows of an open field through HDF5. Errors: BAD_DATA. */
enum dpt_status dpt_field_read(const struct dpt_field *field, const char *path, const char *name,
                               int64_t row, int64_t rows, void *raw, struct dpt_error *err);

/* How many rows from `row` on to read at once (some MiB, whole chunks), none at or behind `end`. */
int64_t dpt_field_piece(const struct dpt_field *field, int64_t row, int64_t end);
/* The most bytes that a raw piece can have. */
size_t dpt_field_piece_bytes(const struct dpt_field *field);

/* n raw elements as numbers. Unsigned numbers above INT64_MAX become INT64_MAX. */
void dpt_field_floats(const struct dpt_field *field, const void *raw, size_t n, float *out);
int64_t dpt_field_int(const struct dpt_field *field, const void *raw, size_t i);

#endif

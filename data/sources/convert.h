/*
 * convert: files of other programs into shards.
 *
 * A converter is a row: a name, the files it takes, the options it understands, and a source of
 * samples. Shards are written by one writer for all of them: contiguous uncompressed uint8 (or
 * float32) /images [N, C, H, W] or [N, D], /labels [N] or [N, K], a checksum of each data set,
 * under a temporary name until all is written and synced. The same input gives the same bytes.
 */
#ifndef DPT_DATA_CONVERT_H
#define DPT_DATA_CONVERT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/str.h"

/* What single converters can be told: name, what it takes (NULL: a switch), help. Several values
 * are joined by commas. */
#define DPT_CONVERT_OPTION_LIST(X)                                                                 \
    X(LABEL, "--label", "COLUMN,...",                                                              \
      "csv: label column by name or number (1 is the first, -1 the last; default)")                \
    X(HEADER, "--header", "auto|yes|no", "csv: does the first line hold the names of the columns") \
    X(CLASSES, "--classes", NULL, "csv: labels are names of classes, also where they are numbers") \
    X(REGRESSION, "--regression", NULL,                                                            \
      "csv: labels are targets of a regression, also whole numbers")                               \
    X(SHAPE, "--shape", "C,H,W", "csv: the features are an image of this shape")                   \
    X(U8, "--u8", NULL, "csv: store uint8; all features are whole numbers from 0 to 255")          \
    X(LAYOUT, "--layout", "nchw|nhwc", "npy: order of the four dimensions (default: nchw)")        \
    X(SIZE, "--size", "HxW", "pictures: stretch all to this size; else they must have one")        \
    X(GREY, "--grey", NULL, "pictures: one channel, also of those in colour")                      \
    X(LIKE, "--like", "SHARD",                                                                     \
      "csv, pictures: classes and form as in this shard, for a test set beside its training set")  \
    X(SHUFFLE, "--shuffle", "SEED",                                                                \
      "pictures: store them in an order drawn by this number, not that of their names")

enum dpt_convert_option {
#define X(id, name, value, help) DPT_CONVERT_##id,
    DPT_CONVERT_OPTION_LIST(X)
#undef X
        DPT_CONVERT_OPTION_COUNT
};

/*
 * Shards of n samples: `samples` spread evenly (sizes differ by at most one), in order.
 */
struct dpt_shard_form {
    int64_t samples;
    int n_dims; /* of one sample: 1 [D] or 3 [C, H, W] */
    int64_t dims[3];
    bool u8;         /* else float32 */
    bool nhwc;       /* dims are [H, W, C]: stored so, with an attribute `layout` that says it */
    int64_t targets; /* 0: integer labels [N] (uint8 up to 256 classes, else int32); K: float32 [N,
                        K] */
    int64_t classes; /* with targets == 0: labels are below this */
    const char *const *
        class_names; /* `classes` names for the attribute `classes` of /labels, or NULL; borrowed */
};

/* Longest attribute that every HDF5 version reads is 64 KiB: classes x longest name stays below
 * this. */
enum { DPT_CLASS_NAME_BYTES = 60000 };

/* What was written; zero-initialise, release. Filled by dpt_shard_writer_commit. */
struct dpt_convert_result {
    struct dpt_shard_form form; /* without class_names */
    int64_t shards;
    double bytes;           /* of all shards */
    struct dpt_str first;   /* path of the first shard */
    struct dpt_str classes; /* "0 = setosa, 1 = versicolor, …", or empty */
};

void dpt_convert_result_release(struct dpt_convert_result *result);

struct dpt_convert_job {
    const char *const *inputs;
    size_t n_inputs;
    const char *prefix; /* shards become PREFIX-00000-of-0000N.h5; folders are made */
    int64_t shards;     /* 1 … 99999 */
    bool force; /* shards of another count under the same prefix are removed, else refused */
    const char *option[DPT_CONVERT_OPTION_COUNT]; /* NULL: not given; "" for a switch that was */
    struct dpt_log *log;                          /* progress */
    struct dpt_convert_result *result;            /* out, or NULL */
    const volatile sig_atomic_t *stop;            /* not 0: give up as soon as possible; or NULL */
};

struct dpt_converter {
    const char *name;
    const char *summary; /* one line */
    const char *inputs;  /* usage: "IMAGES LABELS" */
    const char *details; /* some lines for --help: what files, what becomes of them */
    unsigned options;    /* bits 1 << enum dpt_convert_option of those it understands */
    /* Errors: USAGE, BAD_DATA (names file and place), IO, RANK. */
    enum dpt_status (*run)(const struct dpt_convert_job *job, struct dpt_error *err);
};

extern const struct dpt_converter dpt_convert_idx, dpt_convert_cifar10, dpt_convert_csv,
    dpt_convert_npy, dpt_convert_pictures;
extern const struct dpt_converter
    *const dpt_converters[]; /* idx, cifar10, csv, npy, pictures; ends with NULL */

/* The converter of a name. Errors: USAGE (lists them, suggests one). */
enum dpt_status dpt_converter_find(const char *name, const struct dpt_converter **converter,
                                   struct dpt_error *err);

/* Runs it, once the options and the number of input files have been checked against its row. */
enum dpt_status dpt_convert(const struct dpt_converter *converter,
                            const struct dpt_convert_job *job, struct dpt_error *err);

/*
 * The writer. Life cycle: open, add (samples in order, any number at a time), then commit, which
 * renames all; close without commit leaves nothing. The first error stays: every later call gives
 * it again.
 */
struct dpt_shard_writer;

/* job is borrowed until close, form is copied. Errors: USAGE (prefix, more shards than samples,
 * shards of another count), IO, RANK. */
enum dpt_status dpt_shard_writer_open(struct dpt_shard_writer **writer,
                                      const struct dpt_convert_job *job,
                                      const struct dpt_shard_form *form, struct dpt_error *err);
/* images: n stored samples; labels: n numbers (targets == 0), or targets: n x K. Errors: IO (disk
 * full: names the file). */
enum dpt_status dpt_shard_writer_add(struct dpt_shard_writer *writer, const void *images,
                                     const int32_t *labels, const float *targets, int64_t n,
                                     struct dpt_error *err);
enum dpt_status dpt_shard_writer_commit(struct dpt_shard_writer *writer, struct dpt_error *err);
void dpt_shard_writer_close(struct dpt_shard_writer *writer);

#endif

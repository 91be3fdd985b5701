/*
 * shard_writer: a set of new shards.
 *
 * Contiguous uncompressed uint8 (or float32) /images [N, C, H, W] or [N, D], /labels [N] or [N, K],
 * or of image files, which stay as they are, /files and /offsets [N + 1] instead of /images;
 * of a table also how its columns were read, /columns, the samples' names, /id [N], and how much
 * each counts, /weights [N]; a checksum of each data set; under a temporary name until all is
 * written and synced. Equal samples give byte-identical files.
 */
#ifndef DPT_DATA_SHARD_WRITER_H
#define DPT_DATA_SHARD_WRITER_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/str.h"

/*
 * Shards of n samples: `samples` spread evenly (sizes differ by at most one), in order.
 */
struct dpt_shard_format {
    int64_t samples;
    int n_dims; /* of one sample: 1 [D] or 3 [C, H, W] */
    int64_t dims[3];
    const int64_t *sizes; /* [samples]: bytes of each file, of which dims say what it is decoded to;
                             borrowed; NULL: images */
    bool files;           /* it has sizes */
    bool u8;              /* else float32 */
    bool nhwc;       /* dims are [H, W, C]: stored so, with an attribute `layout` that says it */
    int64_t targets; /* 0: integer labels [N] (uint8 up to 256 classes, else int32); K: float32 [N,
                        K] */
    int64_t classes; /* with targets == 0: labels are below this */
    const char *const *
        class_names; /* `classes` names for the attribute `classes` of /labels, or NULL; borrowed */
    const char *columns; /* the text of /columns (data/tables/columns.h), or NULL; borrowed */
    bool weighted;       /* float32 /weights [N] */
    size_t id_bytes;     /* /id [N]: texts of so many bytes, filled up with NUL; 0: none */
};

/* Longest attribute that every HDF5 version reads is 64 KiB: classes x longest name stays below
 * this. */
enum { DPT_CLASS_NAME_BYTES = 60000 };

/* What was written; zero-initialise, release. Filled by dpt_shard_writer_commit. */
struct dpt_shard_result {
    struct dpt_shard_format format; /* without class_names, columns and sizes */
    int64_t shards;
    double bytes;           /* of all shards */
    struct dpt_str first;   /* path of the first shard */
    struct dpt_str classes; /* "0 = setosa, 1 = versicolor, …", or empty */
};

void dpt_shard_result_release(struct dpt_shard_result *result);

/* Where to, and who is told. Strings are borrowed. */
struct dpt_shard_output {
    const char *prefix; /* shards become PREFIX-00000-of-0000N.h5; folders are made */
    int64_t shards;     /* 1 … 99999 */
    bool force;       /* shards of another count under the same prefix are removed, else refused */
    const char *from; /* what the samples come from, for messages */
    struct dpt_log *log;               /* progress; NULL: none */
    const volatile sig_atomic_t *stop; /* not 0: give up as soon as possible; or NULL */
};

/*
 * The writer. Life cycle: open, add (samples in order, any number at a time), then commit, which
 * renames all; close without commit leaves nothing. After an error it can only be closed.
 */
struct dpt_shard_writer;

/* output and form are copied. Errors: USAGE (prefix, more shards than samples,
 * shards of another count), IO, RANK. */
enum dpt_status dpt_shard_writer_open(struct dpt_shard_writer **writer,
                                      const struct dpt_shard_output *output,
                                      const struct dpt_shard_format *format, struct dpt_error *err);
/* images: n stored samples, files one after the other; labels: n numbers (targets == 0), which are
 * overwritten, or targets: n x K; weights: n; ids: n x id_bytes. Errors: BAD_DATA (a label is none
 * of the classes), IO (disk full: names the file), STOPPED. */
enum dpt_status dpt_shard_writer_add(struct dpt_shard_writer *writer, const void *images,
                                     int32_t *labels, const float *targets, const float *weights,
                                     const char *ids, int64_t n, struct dpt_error *err);
/* result: out. */
enum dpt_status dpt_shard_writer_commit(struct dpt_shard_writer *writer,
                                        struct dpt_shard_result *result, struct dpt_error *err);
void dpt_shard_writer_close(struct dpt_shard_writer *writer);

#endif

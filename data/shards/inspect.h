/*
 * inspect: what an HDF5 file holds, and whether its checksums are right.
 *
 * For checkpoints and shards alike, and for files of other programs as far as they go. Opening
 * lists the data sets and the attributes of the root; reading a data set verifies its checksum and
 * takes the statistics of its values, a piece at a time, so that a file may be larger than memory.
 * A fault of one data set is stored in its `fault`, and the others are inspected nevertheless. A
 * damaged file can crash the HDF5 library or keep it busy for ever: whoever opens one that is not
 * known to be whole does it in a process of its own.
 *
 * All strings are printable and live until dpt_inspect_close. Not for concurrent use.
 */
#ifndef DPT_DATA_INSPECT_H
#define DPT_DATA_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/graph.h"
#include "core/base/error.h"
#include "core/base/memory.h"

enum { DPT_INSPECT_DIMS = 8 };

/* A data set's checksum. */
enum dpt_inspect_sum {
    DPT_SUM_NONE,      /* it has none */
    DPT_SUM_UNCHECKED, /* it has one, of values that have no bytes of their own (lists, references)
                        */
    DPT_SUM_GOOD,
    DPT_SUM_WRONG,
    DPT_SUM_UNREADABLE, /* its values cannot be read: damaged, elsewhere, or never written */
};

struct dpt_inspect_set {
    const char *name; /* "/params/conv1/weight" */
    char type[24];    /* "float32" */
    char stored[48];  /* "contiguous", "chunked gzip+shuffle" */
    int n_dims;
    int64_t dims[DPT_INSPECT_DIMS];
    int64_t items, bytes; /* bytes: of all items, uncompressed */
    int64_t place;        /* of its header in the file: grows in the order of making */
    /* Known once it was read. */
    enum dpt_inspect_sum sum;
    const char *fault; /* one line that names the file, where sum is WRONG or UNREADABLE; or NULL */
    bool numbers;      /* it holds numbers: what follows is their statistics */
    int64_t finite, nonfinite;
    double min, max, mean, rms;         /* of the finite ones, where there are any */
    struct dpt_inspect_stored *private; /* how its values are read */
};

enum dpt_inspect_kind {
    DPT_INSPECT_INTEGER,
    DPT_INSPECT_REAL,
    DPT_INSPECT_TEXT,
    DPT_INSPECT_OTHER
};

struct dpt_inspect_attribute {
    const char *name;
    enum dpt_inspect_kind kind;
    int64_t integer;
    double real;
    const char *text; /* of any kind, to print; never NULL */
};

struct dpt_inspect {
    const char *path;
    int64_t bytes; /* of the file */
    struct dpt_inspect_set *sets;
    size_t n_sets;
    struct dpt_inspect_attribute *attributes; /* of the root */
    size_t n_attributes;
    const char *fault; /* the first thing wrong outside the data sets' values, or NULL */
    /* Called before each part that is read: with its name, once more for each piece. May be NULL.
     */
    void (*watch)(void *arg, const char *name);
    void *watch_arg;
    struct dpt_region region;
    struct dpt_inspect_file *file;
};

/* Lists a file; *f is zeroed but for `watch`. Close it in any case. Errors: BAD_DATA (missing, not
 * HDF5, truncated), RANK. */
enum dpt_status dpt_inspect_open(struct dpt_inspect *f, const char *path, struct dpt_error *err);
void dpt_inspect_close(struct dpt_inspect *f);

/* Data sets in the order in which they were made: in a checkpoint that of the layers. */
void dpt_inspect_sort(struct dpt_inspect *f);

/* Finds a set by its name; NULL: there is none. */
struct dpt_inspect_set *dpt_inspect_find(const struct dpt_inspect *f, const char *name);
const struct dpt_inspect_attribute *dpt_inspect_attribute(const struct dpt_inspect *f,
                                                          const char *name);

/* Reads all values: checksum and statistics. Errors: IO (the disk), RANK. */
enum dpt_status dpt_inspect_read(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 struct dpt_error *err);

/* The bytes of a text as a string; *text: in the region, NULL where the data set holds no text.
 * Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_inspect_text(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 const char **text, struct dpt_error *err);

/* Where two data sets of the same type and extent differ; values are compared by their bits. */
struct dpt_inspect_difference {
    int64_t items;             /* that differ */
    int64_t first;             /* the first of them */
    double a, b;               /* its two values, where these are numbers */
    double absolute, relative; /* largest |a - b|, and |a - b| / max(|a|, |b|); infinite where one
                                  of the two is not finite */
};

/* Whether two data sets can be compared item by item. */
bool dpt_inspect_alike(const struct dpt_inspect_set *a, const struct dpt_inspect_set *b);
/* Compares two data sets of the same type and extent that can be read. Errors: BAD_DATA, IO,
 * RANK. */
enum dpt_status dpt_inspect_compare(struct dpt_inspect *f, struct dpt_inspect_set *a,
                                    struct dpt_inspect *g, struct dpt_inspect_set *b,
                                    struct dpt_inspect_difference *difference,
                                    struct dpt_error *err);

/* What makes a file a shard. */
struct dpt_inspect_shard {
    struct dpt_inspect_set *images, *labels, *weights; /* the last two may be missing: NULL */
    int64_t samples;
    struct dpt_shape shape; /* of a sample */
    bool nhwc;
    bool files;         /* they are image files, which are decoded to this shape */
    const char *layout; /* the attribute, or NULL */
    int64_t width;      /* labels of a sample */
    bool classes;       /* labels are class numbers, counted here */
    int64_t *counts;    /* [n_counts]; the last one is not 0 */
    size_t n_counts;
    int64_t outside;    /* labels below 0 or above DPT_INSPECT_CLASSES - 1 */
    const char **names; /* [n_names]: of the classes, as the file gives them */
    size_t n_names;
    double weight;      /* sum of the weights */
    int64_t weightless; /* samples of weight 0 */
    char unused[96];    /* "/ids, /meta": what no job reads; empty: nothing */
};

enum { DPT_INSPECT_CLASSES = 1 << 16 };

/*
 * Whether a file has images, and then what the shard is. *is: out. Errors: BAD_DATA (images or
 * labels that no job could read; names what), IO, RANK.
 */
enum dpt_status dpt_inspect_shard(struct dpt_inspect *f, struct dpt_inspect_shard *shard, bool *is,
                                  struct dpt_error *err);

#endif

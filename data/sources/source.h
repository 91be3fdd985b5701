/*
 * source: samples to predict, from files of any kind that dptrain reads, with or without labels.
 *
 * HDF5 shards, IDX, CSV and npy files, and pictures, one by one or folders of them. Every rank
 * opens all of a source and reads from it what it needs: memory is one window of samples, whatever
 * the size of the files. A sample becomes what training would have made of it: normalised NCHW
 * floats. One thread fetches; any thread may fill from what was fetched last.
 */
#ifndef DPT_DATA_SOURCE_H
#define DPT_DATA_SOURCE_H

#include "core/base/log.h"
#include "core/base/memory.h"
#include "data/sets/dataset.h"

/* Kind, name on the command line, what it is. */
#define DPT_SOURCE_LIST(X)                                                                         \
    X(H5, "h5", "HDF5 shards")                                                                     \
    X(IDX, "idx", "IDX files of unsigned bytes")                                                   \
    X(CSV, "csv", "comma-separated text")                                                          \
    X(NPY, "npy", "NumPy arrays")                                                                  \
    X(PICTURES, "pictures", "PNG and JPEG files, or folders of them")

enum dpt_source_kind {
#define X(id, name, help) DPT_SOURCE_##id,
    DPT_SOURCE_LIST(X)
#undef X
        DPT_SOURCE_KINDS
};

/* What is known of the samples that the model was made for, from the job's own data. Zero: nothing.
 */
struct dpt_source_model {
    bool known;     /* the shape */
    bool typed, u8; /* whether it is known how they are stored, and whether as bytes */
    struct dpt_shape shape;
    const char *const *classes; /* names of the classes, or NULL */
    size_t n_classes;
    const char *classes_of; /* the file that has them */
};

struct dpt_source_spec {
    const char *const *inputs; /* files, globs, folders */
    size_t n_inputs;
    const char *const *labels; /* files of labels of idx and npy inputs: none, or one each */
    size_t n_labels;
    const char *format; /* its name; NULL: look into the files */
    const char *label;  /* csv: the label column(s), or "none"; NULL: as the model suggests */
    const char *header; /* csv: auto, yes, no; NULL: auto */
    const char *layout; /* npy: nchw, nhwc; NULL */
    const struct dpt_shape *shape; /* what pictures are made to, where the model's is not known, or
                                      is no picture's; NULL: not given */
    bool invert;                   /* pictures: dark becomes light */
    bool classes;                  /* the loss wants classes, else targets */
    int32_t outputs;               /* of targets, where these are wanted; 0: not known */
    const struct dpt_data_conf *conf;
    struct dpt_source_model model;
    struct dpt_log *log;
};

/* Looks into the first file of each of the job's data sets, of which there may be none here.
 * Names live in the arena. Errors: RANK. */
enum dpt_status dpt_source_model_find(struct dpt_source_model *model,
                                      const struct dpt_data_conf *conf, bool classes,
                                      struct dpt_arena *arena, struct dpt_error *err);

/* The same of one shard. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_source_model_of(struct dpt_source_model *model, const char *path, bool classes,
                                    struct dpt_arena *arena, struct dpt_error *err);

enum dpt_truth { DPT_TRUTH_NONE, DPT_TRUTH_CLASS, DPT_TRUTH_VECTOR };

struct dpt_source_info {
    enum dpt_source_kind kind;
    int64_t samples;
    struct dpt_shape shape; /* of one, as the model gets it */
    enum dpt_truth truth;   /* what comes with the samples */
    int32_t width;          /* VECTOR: numbers a sample */
    bool named;             /* each sample has a name: its file's */
};

struct dpt_source;

/*
 * On this rank alone. rank, ranks: files that have checksums are verified in shares. spec is
 * borrowed until the source is closed. Errors: USAGE (options that do not fit the files), BAD_DATA
 * (names the file), IO, RANK.
 */
enum dpt_status dpt_source_open(struct dpt_source **source, const struct dpt_source_spec *spec,
                                int rank, int ranks, struct dpt_error *err);
void dpt_source_close(struct dpt_source *source);

/* Makes samples first … first + n - 1 ready to be filled. Going on where the last call ended is
 * cheap for all kinds, going back may not be. Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_source_fetch(struct dpt_source *source, int64_t first, int64_t n,
                                 struct dpt_error *err);
/* One of these as normalised floats [c][h][w]. Errors: BAD_DATA (a damaged picture, a value that is
 * not finite), RANK. */
enum dpt_status dpt_source_fill(const struct dpt_source *source, int64_t sample, float *input,
                                struct dpt_error *err);
/* Its truth: a class, or `width` targets. */
int32_t dpt_source_class(const struct dpt_source *source, int64_t sample);
const float *dpt_source_target(const struct dpt_source *source, int64_t sample);

const struct dpt_source_info *dpt_source_info(const struct dpt_source *source);
/* The name of a sample of a named source; borrowed. */
const char *dpt_source_name(const struct dpt_source *source, int64_t sample);
/* "digits.csv, sample 12" of any sample, for messages; returns buf (at least 512 bytes). */
const char *dpt_source_where(const struct dpt_source *source, int64_t sample, char *buf);

#endif

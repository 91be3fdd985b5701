/*
 * source: samples in files of any kind that dptrain reads, with or without labels.
 *
 * HDF5 shards, IDX, CIFAR-10, CSV and npy files, and images, one by one or folders of them, to be
 * predicted or to become shards. Memory is one window of samples, whatever the size of the files.
 * To predict, every rank opens all of a source and reads from it what it needs, and a sample
 * becomes what training would have made of it: normalised NCHW floats. One thread fetches; any
 * thread may fill from what was fetched last.
 */
#ifndef DPT_DATA_SOURCE_H
#define DPT_DATA_SOURCE_H

#include <signal.h>

#include "core/base/log.h"
#include "core/base/memory.h"
#include "data/sets/dataset.h"
#include "data/shards/shard_writer.h"

/* What `convert` can say of single formats: name, what it takes (NULL: a switch), help. Several
 * values are joined by commas. */
#define DPT_SOURCE_OPTION_LIST(X)                                                                  \
    X(LABEL, "--label", "COLUMN,...",                                                              \
      "csv: label column by name or number (1 is the first, -1 the last; default)")                \
    X(HEADER, "--header", "auto|yes|no",                                                           \
      "csv: whether the first line holds the names of the columns")                                \
    X(CLASSES, "--classes", NULL,                                                                  \
      "csv, h5, npy, npz: labels are classes, also numbers that seem to be amounts; csv: by "      \
      "their names, also if they are numbers")                                                     \
    X(REGRESSION, "--regression", NULL,                                                            \
      "csv, h5, idx, npy, npz: labels are targets of a regression, also whole numbers")            \
    X(SHAPE, "--shape", "C,H,W", "csv: the features are an image of this shape")                   \
    X(U8, "--u8", NULL, "csv: store uint8; all features are whole numbers from 0 to 255")          \
    X(DELIMITER, "--delimiter", "C|tab", "csv: separator of columns (default: a comma)")           \
    X(DECIMAL, "--decimal", "C", "csv: the decimal mark of numbers (default: a point)")            \
    X(THOUSANDS, "--thousands", "C",                                                               \
      "csv: separator of groups of digits, as in 1,234.5 (default: none)")                         \
    X(MISSING, "--missing", "TEXT,...",                                                            \
      "csv: cells that hold no value, as NA,?, beside empty ones; --impute fills them")            \
    X(IMPUTE, "--impute", "HOW",                                                                   \
      "csv: value of missing numbers: median, mean or refuse (median if --missing is given)")      \
    X(DROP_MISSING_LABEL, "--drop-missing-label", NULL,                                            \
      "csv: leave out rows whose label is missing; they are counted")                              \
    X(DROP, "--drop", "COL,...", "csv: columns to leave out")                                      \
    X(COLUMNS, "--columns", "COL,...", "csv: the only columns to take as features")                \
    X(ID, "--id", "COLUMN",                                                                        \
      "csv: names of the rows, which predict prints; with --labels the files (default: the "       \
      "first column)")                                                                             \
    X(CATEGORIES, "--categories", "COL,...",                                                       \
      "csv: columns of words; each word becomes a feature of its own, 0 or 1")                     \
    X(LAYOUT, "--layout", "nchw|nhwc",                                                             \
      "h5, npy, npz: order of the four dimensions (default: nchw)")                                \
    X(SIZE, "--size", "HxW",                                                                       \
      "pictures: resize all to this size; default: they must have one size")                       \
    X(GREY, "--grey", NULL, "pictures: one channel, also of those in colour")                      \
    X(FIT, "--fit", "HOW",                                                                         \
      "pictures: fit of other shapes to --size: stretch (default), crop, or pad with black; kept " \
      "with the shards for predict")                                                               \
    X(TABLE, "--labels", "FILE",                                                                   \
      "pictures: a CSV file of file names and labels, instead of sub-folders; read as --label, "   \
      "--id and others say")                                                                       \
    X(KEEP_FILES, "--keep-files", NULL,                                                            \
      "pictures: store the files as they are; training decodes them, to --size")                   \
    X(SKIP_BAD, "--skip-bad", NULL,                                                                \
      "pictures: leave out those that cannot be read, and list them at the end")                   \
    X(LIKE, "--like", "SHARD",                                                                     \
      "csv, pictures: classes and form as in this shard, for a test set beside its training set")  \
    X(SHUFFLE, "--shuffle", "SEED",                                                                \
      "pictures: seed of a random order, instead of that of their names")                          \
    X(KEYS, "--keys", "X,Y",                                                                       \
      "h5, npz: names of the arrays of samples and of labels (default: images or x, labels or y)") \
    X(DATES, "--dates", "COL,...",                                                                 \
      "csv: columns of dates, as 2024-03-01 13:45 or 01.03.2024; they become the year, and sines " \
      "and cosines of month, day of year, weekday and, if there are times, hour")                  \
    X(DAY_FIRST, "--day-first", "auto|yes|no",                                                     \
      "csv: whether the day comes first in dates as 03/04/2024 (auto: if some date tells)")        \
    X(INDICATOR, "--missing-indicator", NULL,                                                      \
      "csv: add a feature to each column whose missing values are filled: 1 if one was missing")   \
    X(WEIGHT, "--weight", "COLUMN",                                                                \
      "csv: weight of each row, a number >= 0, kept as /weights; no feature")                      \
    X(GROUP, "--group", "COLUMN",                                                                  \
      "csv: with --split, keep rows with equal text here in one part; no feature unless named "    \
      "elsewhere")                                                                                 \
    X(TIME, "--time", "COLUMN",                                                                    \
      "csv: with --split, test on the latest rows by these dates or numbers; no feature unless "   \
      "named elsewhere")

enum dpt_source_option {
#define X(id, name, value, help) DPT_SOURCE_##id,
    DPT_SOURCE_OPTION_LIST(X)
#undef X
        DPT_SOURCE_OPTIONS,
    /* These options are `predict`'s alone, which has others of those above, too. */
    DPT_SOURCE_LABELS = DPT_SOURCE_OPTIONS,
    DPT_SOURCE_INVERT,
    DPT_SOURCE_OPTION_COUNT,
};
extern const char *const dpt_source_option_names[DPT_SOURCE_OPTION_COUNT]; /* "--label" */

struct dpt_source;
struct dpt_source_rows;

/* A format: what the commands tell of it, and what reads it. One file each. */
struct dpt_source_format {
    const char *name;    /* "idx" */
    const char *help;    /* for predict; NULL: it takes none of these */
    const char *inputs;  /* for convert: "IMAGES LABELS"; NULL: it takes none of these */
    const char *summary; /* one line */
    const char *details; /* some lines for --help: what files, what becomes of them */
    uint64_t options;    /* bits 1ull << enum dpt_source_option of those it understands */

    /* Private to sources/, as struct dpt_source is (source_type.h). */
    /* Whether a file of this format begins so; NULL: that is never looked for. */
    bool (*is)(const uint8_t *head, size_t n);
    size_t state; /* bytes of what the source's `state` points to; zeroed before `open` */
    /* Opens source->paths: sets the layout's shape, u8 and nhwc, the parts' samples and info. */
    enum dpt_status (*open)(struct dpt_source *source, struct dpt_error *err);
    void (*close)(void *state); /* also of one that failed to open */
    /* Reads rows of a part. */
    enum dpt_status (*read)(struct dpt_source *source, const struct dpt_source_rows *rows,
                            struct dpt_error *err);
    /* May be NULL: one sample's stored bytes, where `read` leaves them out; any thread. */
    enum dpt_status (*render)(const struct dpt_source *source, int64_t sample, uint8_t *stored,
                              struct dpt_error *err);
    /* NULL where info.sizes never is: the whole file of a sample, once it could be decoded,
     * malloc'ed. */
    enum dpt_status (*file)(struct dpt_source *source, int64_t sample, char **bytes, size_t *n,
                            struct dpt_error *err);
    /* May be NULL: what a sample is called; itself NULL where this source's have no names. */
    const char *(*sample_name)(const struct dpt_source *source, int64_t sample);
    /* May be NULL: takes from the samples of part 0, or where `part` is NULL from all, what reading
     * needs of them, and says what was done (info.columns, info.told). To become shards only. */
    enum dpt_status (*fit)(struct dpt_source *source, const uint8_t *part, struct dpt_error *err);
    /* May be NULL: one sample cannot be read, as err says: logs all of which that is true, and
     * gives the error of that one, or of all. By one thread. */
    enum dpt_status (*tell_bad)(const struct dpt_source *source, struct dpt_error *err);
};

/* h5, idx, cifar10, csv, npy, npz, pictures; ends with NULL. */
extern const struct dpt_source_format *const dpt_source_formats[];

/* The format of a file, by how it begins, or of a folder; NULL: none. */
const char *dpt_source_format_name(const char *path);
/* The one of a name that convert, or else predict, takes. what: stands before the name in the
 * message. Errors: USAGE (lists them, suggests one). */
enum dpt_status dpt_source_format_find(const char *what, const char *name, bool convert,
                                       const struct dpt_source_format **format,
                                       struct dpt_error *err);

/* What the job's own data tell about the samples that the model was trained on. Zero: nothing is
 * known. */
struct dpt_source_model {
    bool known; /* their shape */
    bool seen;  /* whether they are stored as bytes, which the model's shape does not tell */
    bool u8;
    struct dpt_shape shape;
    struct dpt_shape stored;    /* before data.resize and data.crop; its height is 0: not known */
    const char *const *classes; /* names of the classes, or NULL */
    size_t n_classes;
    const char *classes_of;    /* the file that has them */
    bool targets;              /* what they are labelled with is no class */
    const char *columns;       /* how their table was read (data/tables/columns.h), or NULL */
    const char *columns_of;    /* the file that says it */
    const char *const *labels; /* names of the label columns of their table, else of the classes,
                                * [n_labels], or NULL */
    size_t n_labels;
    const double *offsets; /* [n_labels] what was subtracted from each; NULL: nothing from any */
    const char *fit;       /* what was done to the sides of images: --fit; NULL: not known */
    const char *fit_of;    /* likewise */
};

/* How samples that become shards are divided at random: n shares, for training, maybe validation,
 * and test. */
enum { DPT_SOURCE_PARTS = 3 };
struct dpt_source_split {
    size_t n; /* 2 or 3; 0: not at all */
    int64_t share[DPT_SOURCE_PARTS];
    bool stratify; /* each class by itself */
    uint64_t seed;
};

struct dpt_source_spec {
    const char *const *inputs; /* files, globs, folders; convert: files, the labels' too */
    size_t n_inputs;
    const struct dpt_source_format *format; /* NULL: look into the files */
    /* NULL: not given; "" for a switch that was. --label of predict may be "none". */
    const char *option[DPT_SOURCE_OPTION_COUNT];
    struct dpt_log *log;
    const volatile sig_atomic_t *stop; /* not 0: give up as soon as possible; or NULL */
    /* The source becomes shards: labels must be there, and say with the options what the samples
     * are. What follows is predict's. */
    bool convert;
    bool labels_only; /* csv to become shards: rows have names and labels, and no features */
    /* What was typed, as a line for a shell, but for what it said of the columns of a table and
     * their missing values; for advice; or NULL. */
    const char *command;
    struct dpt_source_split split;
    bool dry_run;              /* all is read and told, nothing is written */
    const char *const *labels; /* files of labels of idx and npy inputs: none, or one each */
    size_t n_labels;
    const struct dpt_shape *shape; /* what images are made to, where the model's is not known, or
                                      is not an image's; NULL: not given */
    bool classes;                  /* the loss wants classes, else targets */
    int32_t outputs;               /* of targets, where these are wanted; 0: not known */
    const struct dpt_data_conf *conf;
    struct dpt_source_model model;
};

/* Reads this from the first file of each of the job's data sets; the files need not exist here.
 * Names live in the region. Errors: RANK. */
enum dpt_status dpt_source_model_find(struct dpt_source_model *model,
                                      const struct dpt_data_conf *conf, bool classes,
                                      struct dpt_region *region, struct dpt_error *err);

/* What a checkpoint keeps of the samples that its model learned from; what is empty or NULL is not
 * known. Zero-initialise; who fills it frees the texts. */
struct dpt_source_kept {
    char *columns; /* how their table was read (data/tables/columns.h), or what --fit did */
    char *classes; /* names of the classes (data/sets/identity.h) */
    char type[16]; /* as they are stored: "uint8", "float32" */
};

/* Takes this of a checkpoint, which counts more than what the data at hand say. from: its file.
 * Errors: BAD_DATA, RANK. */
enum dpt_status dpt_source_model_keep(struct dpt_source_model *model,
                                      const struct dpt_source_kept *kept, const char *from,
                                      struct dpt_region *region, struct dpt_error *err);

/* Reads this from one shard. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_source_model_of(struct dpt_source_model *model, const char *path, bool classes,
                                    struct dpt_region *region, struct dpt_error *err);

enum dpt_truth { DPT_TRUTH_NONE, DPT_TRUTH_CLASS, DPT_TRUTH_VECTOR };

struct dpt_source_info {
    int64_t samples;
    struct dpt_shape shape; /* of one, as the model gets it */
    enum dpt_truth truth;   /* what comes with the samples */
    int32_t width;          /* VECTOR: numbers per sample */
    bool weighted;          /* each sample has a weight; of a source that becomes shards */
    /* How the samples are divided, of one that is: [samples] the group of each, below n_groups, or
     * its time, all finite; NULL: at random. */
    const int32_t *groups;
    int64_t n_groups;
    const double *times;
    bool named;     /* each sample has a name: its file's, or */
    const char *id; /* what the column `id` of its row says; NULL: its file's */
    /* Labels of a source that becomes shards, with CLASS, are below `classes`; 0: nobody counted.
     * */
    int64_t classes;
    const char *const *class_names; /* [classes], or NULL */
    const int64_t *sizes;           /* [samples]: bytes of their files, which are kept; or NULL */
    const char *columns;            /* the text that shards keep of their columns, or NULL */
    const char *told; /* what was done to each column or which images were left out, a line each,
                       * or NULL */
};

/*
 * Opens a source on this rank alone. rank, ranks: files that have checksums are verified in shares.
 * spec is borrowed until the source is closed. Errors: USAGE (options that do not fit the files),
 * BAD_DATA (names the file), IO, RANK.
 */
enum dpt_status dpt_source_open(struct dpt_source **source, const struct dpt_source_spec *spec,
                                int rank, int ranks, struct dpt_error *err);
void dpt_source_close(struct dpt_source *source);

/* Reads samples first … first + n - 1, so that they can be filled. Continuing where the last call
 * ended is cheap for all kinds, going back may not be. Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_source_fetch(struct dpt_source *source, int64_t first, int64_t n,
                                 struct dpt_error *err);
/* Fills one of the fetched samples as normalised floats [c][h][w], as the model takes it. scratch:
 * of dpt_source_scratch floats. Errors: BAD_DATA (a damaged image, a value that is not finite),
 * RANK. */
size_t dpt_source_scratch(const struct dpt_source *source);
enum dpt_status dpt_source_fill(const struct dpt_source *source, int64_t sample, float *input,
                                float *scratch, struct dpt_error *err);
/* Logs all other samples that cannot be read, after one could not be, as err says, and leaves in
 * err what is to be said of them all. Called on one rank, by one thread. */
enum dpt_status dpt_source_tell_bad(const struct dpt_source *source, struct dpt_error *err);
/* Its truth: a class, or `width` targets. */
int32_t dpt_source_class(const struct dpt_source *source, int64_t sample);
const float *dpt_source_target(const struct dpt_source *source, int64_t sample);

const struct dpt_source_info *dpt_source_info(const struct dpt_source *source);
/* The name of a sample of a named source; borrowed. */
const char *dpt_source_name(const struct dpt_source *source, int64_t sample);

/* What a conversion made: one set of shards, or one per part. Zero-initialise, release. */
struct dpt_conversion {
    size_t parts;
    const char *part[DPT_SOURCE_PARTS];               /* "train"; NULL: there is one */
    int64_t samples[DPT_SOURCE_PARTS];                /* of each */
    struct dpt_shard_result result[DPT_SOURCE_PARTS]; /* empty of a dry run */
    struct dpt_str told;                              /* what became of each column, a line each */
};
void dpt_conversion_release(struct dpt_conversion *done);

/* Makes shards of files: opens a source (spec->convert), divides and copies it. Errors: USAGE,
 * BAD_DATA (names file and place), IO, RANK, STOPPED. */
enum dpt_status dpt_source_convert(const struct dpt_source_spec *spec,
                                   const struct dpt_shard_output *output,
                                   struct dpt_conversion *done, struct dpt_error *err);

/* "digits.csv, sample 12" of any sample, for messages; returns buf (at least 512 bytes). */
const char *dpt_source_where(const struct dpt_source *source, int64_t sample, char *buf);

#endif

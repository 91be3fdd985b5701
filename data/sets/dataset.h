/*
 * dataset: the samples of a job's `data` section.
 *
 * Several shards (HDF5 files, unequal sizes) or a synthetic rule make one data set of numbered
 * samples: 0 … samples-1 in the order of the shards. Labels and weights are always in memory.
 * Images are either in memory, one copy per node in shared memory, or read when needed (loader.h).
 * Images are stored as they lie in the files (uint8 or float32, NCHW or NHWC, or the bytes of
 * image files, of any length) and become normalised NCHW floats when a micro-batch is filled; the
 * thread that fills it decodes. Immutable after opening; any thread may read.
 */
#ifndef DPT_DATA_DATASET_H
#define DPT_DATA_DATASET_H

#include "core/backend/graph.h"
#include "core/base/log.h"
#include "core/base/memory.h"
#include "core/comm/comm.h"
#include "core/conf/option.h"

#define DPT_CACHES(X)                                                                              \
    X(DPT_CACHE_AUTO, "auto") X(DPT_CACHE_MEMORY, "memory") X(DPT_CACHE_NONE, "none")
#define DPT_SHUFFLES(X)                                                                            \
    X(DPT_SHUFFLE_FULL, "full") X(DPT_SHUFFLE_BLOCK, "block") X(DPT_SHUFFLE_NONE, "none")
#define DPT_CLASS_WEIGHTS(X) X(DPT_CLASSES_ALIKE, "none") X(DPT_CLASSES_BALANCED, "balanced")
enum dpt_class_weights {
    DPT_CLASS_WEIGHTS(DPT_LIST_NAME) DPT_CLASSES_GIVEN /* by numbers */
};
enum dpt_cache { DPT_CACHES(DPT_LIST_NAME) DPT_CACHE_COUNT };
enum dpt_shuffle { DPT_SHUFFLES(DPT_LIST_NAME) DPT_SHUFFLE_COUNT };

enum { DPT_MOST_CLASSES = 1 << 20 };

/* What the data sets of a shard are called; NULL: /images or /x, /labels or /y. */
struct dpt_data_keys {
    const char *x, *y;
};

/* Takes --keys, "X_train,y_train" or the first alone; NULL: leaves them. Names live in the region,
 * or are `text`. Errors: USAGE, RANK. */
enum dpt_status dpt_data_keys_take(const char *text, struct dpt_region *region,
                                   struct dpt_data_keys *keys, struct dpt_error *err);

#define DPT_LAYOUTS(X)                                                                             \
    X(DPT_LAYOUT_AUTO, "auto") X(DPT_LAYOUT_NCHW, "nchw") X(DPT_LAYOUT_NHWC, "nhwc")
enum dpt_sample_layout { DPT_LAYOUTS(DPT_LIST_NAME) DPT_LAYOUT_COUNT };

struct dpt_normalize {
    struct dpt_reals mean, std; /* one for all channels, or one per channel; empty: 0 and 1 */
};

struct dpt_synthetic {
    int64_t samples;
    struct dpt_ints shape; /* empty: by the loss */
    int64_t classes;       /* cross_entropy */
    int64_t outputs;       /* mse */
    double noise;          /* mse: standard deviation */
};

#define DPT_TARGET_SCALES(X) X(DPT_TARGETS_AS_THEY_ARE, "none") X(DPT_TARGETS_MEASURED, "auto")
enum dpt_targets_scaled {
    DPT_TARGET_SCALES(DPT_LIST_NAME) DPT_TARGETS_GIVEN /* by mean and std */
};

/* What is learned of a target before it is scaled: itself, log(1 + t), log(t). */
#define DPT_TARGET_TRANSFORMS(X)                                                                   \
    X(DPT_TARGETS_PLAIN, "none") X(DPT_TARGETS_LOG1P, "log1p") X(DPT_TARGETS_LOG, "log")
enum dpt_target_transform { DPT_TARGET_TRANSFORMS(DPT_LIST_NAME) DPT_TARGET_TRANSFORM_COUNT };

/* `data.targets`: what is done to the numbers that a model learns to predict (targets.h). */
struct dpt_target_conf {
    int scaled;    /* enum dpt_targets_scaled */
    int transform; /* enum dpt_target_transform; comes first */
    struct dpt_normalize given;
};

/* `data.class_weights`: how much the samples of each class count in training. */
struct dpt_class_weight_conf {
    int how;                      /* enum dpt_class_weights; GIVEN: one of these */
    struct dpt_reals list;        /* by the classes' numbers; empty: */
    struct dpt_named_reals named; /* by their names, or numbers; others weigh 1 */
};

/* What is done to training samples, at random (augment.h). The first of two numbers is the least.
 * 0, or none: it is not done. */
struct dpt_augment {
    int64_t crop_padding; /* pixels on each side; 0: no crop */
    bool flip;
    bool vertical_flip;
    struct dpt_reals crop_area, crop_ratio; /* shares of the image; width / height */
    double rotate, shear;                   /* degrees at most, to both sides */
    double shift;                           /* share of the sides at most */
    struct dpt_reals scale;
    double brightness, contrast, saturation, hue; /* the most that a factor differs from 1, or 0 */
    double erase;                                 /* how often */
    struct dpt_reals erase_area, erase_ratio;     /* shares of the image; height / width */
    double noise;                                 /* its standard deviation */
    double mixup, cutmix;                         /* both of a Beta distribution's parameters */
};

/* The `data` section. */
struct dpt_data_conf {
    struct dpt_texts train, valid,
        test; /* globs and paths, or the one word "synthetic"; valid may be one fraction */
    struct dpt_data_keys keys;
    int layout; /* enum dpt_sample_layout; of shards of four dimensions that do not say */
    struct dpt_normalize normalize;
    struct dpt_target_conf targets;
    struct dpt_ints resize, crop; /* height and width, or both; none: not done */
    struct dpt_augment augment;
    struct dpt_class_weight_conf class_weights;
    int shuffle; /* enum dpt_shuffle */
    int cache;   /* enum dpt_cache */
    bool drop_last;
    bool verify; /* checksums, where there are any */
    /* No option, for guesses: of many shards some are described, and the others taken to be like
     * them. */
    bool few;
    struct dpt_synthetic synthetic;
};

extern const struct dpt_option dpt_data_options[];

/* Whether images become others before a model sees them, and which: what they are resized to, and
 * what is cut out of that. key: of the set, for messages. Errors: BAD_JOB (they are not images, or
 * smaller than the window). */
bool dpt_data_views(const struct dpt_data_conf *conf);
enum dpt_status dpt_data_view(const struct dpt_data_conf *conf, const char *key,
                              const struct dpt_shape *stored, struct dpt_shape *resized,
                              struct dpt_shape *cut, struct dpt_error *err);

/* Compares by value: what lies between the members is anything. */
static inline bool dpt_same_shape(const struct dpt_shape *a, const struct dpt_shape *b)
{
    return a->c == b->c && a->h == b->h && a->w == b->w && a->flat == b->flat;
}

enum dpt_target_kind { DPT_TARGET_CLASS, DPT_TARGET_VECTOR };

struct dpt_target_scale;

/* Features of each sample that are another's: what is lost without them (importance.h). */
struct dpt_exchange {
    int32_t first, n;    /* numbers of a sample */
    const int64_t *from; /* [samples]: whose they are */
};

struct dpt_dataset {
    int64_t samples;
    struct dpt_shape shape; /* of one sample, canonical [c][h][w]; flat for [N, D] */
    /* A sample's shape as stored; if `views`, data.resize and data.crop turn it into `shape`. */
    struct dpt_shape stored;
    bool views;
    bool u8;       /* stored as uint8, else float32 */
    bool nhwc;     /* stored [h][w][c] */
    bool files;    /* stored as image files, which are decoded to uint8 [c][h][w] */
    size_t stride; /* bytes of one stored sample, of a file once it is decoded */
    int64_t bytes; /* of all stored samples */
    enum dpt_target_kind target;
    int32_t target_width;  /* VECTOR: numbers per sample; CLASS: largest label + 1 */
    const int32_t *labels; /* CLASS: [samples] */
    const float *targets;  /* VECTOR: [samples][target_width] */
    /* The scale of the targets in micro-batches (targets.h), which is the trainer's; NULL: they
     * stay as they are. */
    const struct dpt_target_scale *scale;
    /* Multi-label: [target_width], how much more a label counts if it holds; micro-batches have
     * minus that for 1 (backend.h). NULL: 1 each. */
    const float *positive;
    const float *weights; /* [samples], finite and >= 0: how much each counts; NULL: 1 each */
    const uint8_t
        *memory; /* all stored samples one after another, or NULL: to be read from the shards */
    /* NULL, or for a while, of rows in memory: micro-batches have some features exchanged. */
    const struct dpt_exchange *exchange;
    struct dpt_dataset_parts *parts; /* shards, shared memory, normalisation; private to data/ */
};

/* What the samples of a data set must fit. */
struct dpt_dataset_spec {
    const struct dpt_data_conf *conf;
    const struct dpt_texts *paths; /* which of conf's: train, valid, test */
    bool classes;                  /* the loss wants classes, else vectors */
    bool binary;                   /* and these of numbers from 0 to 1 (binary_cross_entropy) */
    uint64_t seed;                 /* for synthetic data */
    uint64_t part; /* for synthetic data: 0 train, 1 valid, 2 test: other samples, the same rule */
};

/*
 * Opens a data set. Collective over comm->world (each header is read by one rank, the images once
 * per node, in shares): all ranks get the same status. Verifies: every shard is whole, same shape,
 * type and names of classes, as many labels and weights as images, checksums where there are any,
 * float data finite where it is read into memory. Errors: BAD_JOB (a glob matches nothing),
 * BAD_DATA (names the file), IO, RANK.
 */
enum dpt_status dpt_dataset_open(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                 const struct dpt_comm *comm, struct dpt_error *err);
/* A shard that was written to while samples are read from it, as told by its time alone; each once,
 * then NULL. By the main thread. */
const char *dpt_dataset_changed(const struct dpt_dataset *set);

/* Opens a data set without reading a sample: collectively over comm->world, or where comm is NULL
 * on this rank alone. Sets all members but the samples themselves, and for classes in shards
 * target_width, which only the labels tell. Close it as any other. Errors: as dpt_dataset_open. */
enum dpt_status dpt_dataset_describe(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                     const struct dpt_comm *comm, struct dpt_error *err);
/* Warns about data sets of the shards that nothing reads, such as one with a misspelt name. */
void dpt_dataset_warn_unused(const struct dpt_dataset *set, struct dpt_log *log);

/* Whether opening it would put its images into the memory of a node that has so many bytes
 * available (-1: unknown), and how many bytes there are beside them: labels, targets, weights, and
 * where kept files begin. */
bool dpt_dataset_in_memory(const struct dpt_dataset *set, const struct dpt_data_conf *conf,
                           double available);
double dpt_dataset_target_bytes(const struct dpt_dataset *set);

/* A zeroed or closed set is fine. */
void dpt_dataset_close(struct dpt_dataset *set);

/* Checks all labels or targets against a model's outputs. Errors: BAD_DATA
   ("train-00002-of-00004.h5: /labels[377] is 10, the model has 10 outputs (0 to 9)"), or BAD_JOB
   where the kinds or widths do not fit each other. */
enum dpt_status dpt_dataset_check_targets(const struct dpt_dataset *set, int32_t outputs,
                                          struct dpt_error *err);

/* *outputs: how many a model needs for a described set: its classes, which take a look at all
 * labels, or the targets of a sample. Collective over comm->world, whose ranks share out the
 * shards; NULL: on this rank alone. Errors: BAD_DATA (a label that is no class), IO, RANK. */
enum dpt_status dpt_dataset_count_outputs(struct dpt_dataset *set, const struct dpt_comm *comm,
                                          int64_t *outputs, struct dpt_error *err);

/* Sets of one job must mean the same class by a number. *named: the set that names the most so far,
 * or NULL; in and out. Errors: BAD_DATA (names both files and the first class that differs). */
enum dpt_status dpt_dataset_check_classes(const struct dpt_dataset *set,
                                          const struct dpt_dataset **named, struct dpt_error *err);

/* What classes, or labels, are called; one after the last has its number alone. */
struct dpt_called {
    const char *const *at; /* [n], or NULL */
    size_t n;
};
/* What the set calls its classes, *n of them; borrowed; NULL: it does not say. */
const char *const *dpt_dataset_class_names(const struct dpt_dataset *set, size_t *n);

/* How the table that the samples are from was read, as text (data/tables/columns.h); borrowed;
 * NULL: they are from none, or nobody kept it. *from: the shard that says it; may be NULL. */
const char *dpt_dataset_columns(const struct dpt_dataset *set, const char **from);
/* Sets of one job, and the one that a model learned from, must have the same columns as inputs.
 * columns: of the other, from the file `from`; NULL: unknown, then all is well. Errors: BAD_DATA
 * (names both files and the first column that differs), RANK. */
enum dpt_status dpt_dataset_check_columns(const struct dpt_dataset *set, const char *columns,
                                          const char *from, struct dpt_error *err);

/* The normalisation of the stored numbers: x * scale + shift, [c] each. Borrowed. False: the means
 * are so far from 0 that only dpt_dataset's own way keeps their digits. */
bool dpt_dataset_normal(const struct dpt_dataset *set, const float **scale, const float **shift);

/* Whether samples that are read as channels first look as if their channels were last, which their
 * file does not say; then what to do about it, in one line, into buf. */
bool dpt_dataset_suspect_layout(const struct dpt_dataset *set, char *buf, size_t size);
/* Says likewise whether regression targets look like classes: whole numbers, one per sample. */
bool dpt_dataset_suspect_classes(const struct dpt_dataset *set, char *buf, size_t size);

/* Says likewise whether classes seem to be numbered from 1. */
bool dpt_dataset_suspect_numbers(const struct dpt_dataset *set, char *buf, size_t size);

/* A file that is a shard of both sets; NULL: there is none. */
const char *dpt_dataset_shared(const struct dpt_dataset *a, const struct dpt_dataset *b);

/* "train-00001-of-00004.h5, sample 377" of a sample number, for messages; returns buf (at least 256
 * bytes). */
const char *dpt_dataset_where(const struct dpt_dataset *set, int64_t sample, char *buf);

/* The true weights of synthetic regression data: w [outputs][inputs], b [outputs]; NULL for other
 * data. Borrowed. */
const float *dpt_dataset_true_weights(const struct dpt_dataset *set);
const float *dpt_dataset_true_biases(const struct dpt_dataset *set);

/* The HDF5 that reads the shards: "1.10.8". */
const char *dpt_h5_version(void);

#endif

/*
 * shard: one HDF5 file of samples.
 *
 * They are stored as numbers (/images), or as the image files, of any length, one after the
 * other (/files, /offsets), which are decoded when they are used.
 *
 * Opening looks at the layout, and of files at where each begins, and leaves no file open: the
 * metadata is checked against the file's true size before a byte of data is read. What it found can
 * be sent to other ranks (shard_pack.c). Attaching opens its fields for reading (field.h); they may
 * then be read by any thread. Taking does so, too, and leaves the file open for the next one, as
 * long as there are not too many (shard_take.c). Private to data/.
 */
#ifndef DPT_DATA_SHARD_H
#define DPT_DATA_SHARD_H

#include "core/base/str.h"
#include "data/pictures/picture.h"
#include "data/sets/dataset.h"
#include "data/shards/field.h"

/*
 * What a shard calls its classes: the attribute `classes` of its labels, an array of strings, in
 * the order of their numbers; h5py or `dptrain convert` wrote it. A shard need not have it, and may
 * name fewer classes than another: only those that both name are compared.
 */
struct dpt_class_names {
    const char *const *at; /* one block with its texts; NULL: no names */
    size_t n;
};

void dpt_class_names_release(struct dpt_class_names *names);

/* Fails where a class is called otherwise in the file `path` than in the file `other`. Errors:
 * BAD_DATA (names both files, the first such class, and what to do). */
enum dpt_status dpt_class_names_check(const struct dpt_class_names *names, const char *path,
                                      const struct dpt_class_names *others, const char *other,
                                      struct dpt_error *err);

/* Adds n names to a text as checkpoints keep them, a line each; and reads that text, of the file
 * `from`. Errors: BAD_DATA (more than there can be), RANK. */
void dpt_class_names_write(const char *const *names, size_t n, struct dpt_str *out);
enum dpt_status dpt_class_names_parse(struct dpt_class_names *names, const char *text,
                                      const char *from, struct dpt_error *err);

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
    int64_t start;    /* of kept files: bytes of the data set's files before its own */
    int64_t samples;
    struct dpt_shape shape; /* of one sample, canonical */
    bool nhwc;
    bool unsaid; /* of four dimensions, and nobody says in which order */
    bool matlab; /* written by MATLAB, and read in the order of its dimensions */
    enum dpt_target_kind target;
    int32_t target_width;                     /* VECTOR */
    struct dpt_field images, labels, weights; /* images: or the bytes of kept files */
    bool files;                               /* image files are kept, not what they hold */
    int64_t *offsets; /* where each of them begins, [samples + 1]; NULL: there are none, or they
                       * are to come (dpt_shard_unpack) */
    struct dpt_picture_format form; /* what a kept file is decoded to */
    struct dpt_class_names names;   /* of the labels' classes */
    char *columns;   /* how the table that it was made of was read (tables/columns.h); NULL: none */
    bool has_ids;    /* the samples have names: /id */
    char unused[96]; /* what else the file holds: "/ids, /meta"; empty: nothing */
    bool attached;
    int fd;
    hid_t h5;
    /* 0: nobody has taken it since it was last closed; else 1 + how many read it now. */
    _Atomic int takers;
    _Atomic bool recent;        /* it was taken since the last search for one to close */
    struct dpt_shard_mark mark; /* when it was opened */
    uint32_t head;              /* the checksum of its first bytes */
    char *texts;                /* of one that another rank opened: the names of its fields */
    bool elsewhere;             /* that rank is on another host: the mark is not this host's */
    /* enum dpt_shard_change: set by the thread that reads, reported by the main thread */
    _Atomic int change;
};

/* How a file is looked at. */
struct dpt_shard_spec {
    bool classes; /* as in struct dpt_dataset_spec */
    /* Without it the file may have none; then labels.name is NULL, and weights are ignored, since
     * no model is trained on it. */
    bool need_labels;
    struct dpt_data_keys keys; /* borrowed, as long as the shard */
    int layout;                /* enum dpt_sample_layout */
};

/* Examines a file. Errors: BAD_DATA (names the file), RANK. */
enum dpt_status dpt_shard_open(struct dpt_shard *shard, const char *path,
                               const struct dpt_shard_spec *spec, struct dpt_error *err);
/* A field by its number: what a shard consists of. */
enum { DPT_SHARD_FIELDS = 3 };

static inline struct dpt_field *dpt_shard_field(struct dpt_shard *shard, size_t i)
{
    struct dpt_field *const fields[DPT_SHARD_FIELDS] = {&shard->images, &shard->labels,
                                                        &shard->weights};

    return fields[i];
}

/* The row of `images` at which a sample begins, or all end: a row is a sample, or a byte of kept
 * files. */
static inline int64_t dpt_shard_row(const struct dpt_shard *shard, int64_t sample)
{
    return shard->files ? shard->offsets[sample] : sample;
}

void dpt_shard_close(struct dpt_shard *shard);

/* Opens it for reading, and closes it. Errors: BAD_DATA (it is not the file that was opened, or was
 * changed since), IO. */
enum dpt_status dpt_shard_attach(struct dpt_shard *shard, struct dpt_error *err);
void dpt_shard_detach(struct dpt_shard *shard);

/*
 * Opens it for reading unless it still is, and keeps it open until it is released. Any thread, and
 * several at once. *opened: whether it was opened now. strict: fails then if it was written to;
 * otherwise that is for dpt_shard_look to tell. One that nobody has taken may be closed when
 * another one is taken: few are open at a time, whatever RLIMIT_NOFILE is, whose soft limit is
 * raised. One that is taken is not attached, and the other way round. Errors: BAD_DATA (it is not
 * the file that was opened, or another node's), IO, RANK.
 */
enum dpt_status dpt_shard_take(struct dpt_shard *shard, bool strict, bool *opened,
                               struct dpt_error *err);
void dpt_shard_release(struct dpt_shard *shard);
/* Whether taking it now would most likely open nothing. */
bool dpt_shard_is_open(const struct dpt_shard *shard);
/* Closes one that nobody has taken, if it is still open. */
void dpt_shard_drop(struct dpt_shard *shard);
/* How many such shards a thread may hold at a time. */
size_t dpt_shard_most(const struct dpt_shard *shard);

/*
 * What was found out about a shard, for other ranks. Packing adds it to `bytes`, without names of
 * classes and columns that are those of the shard before; zero-initialise, and look at
 * bytes.failed. Unpacking makes the shard of `path` of what lies at *at, and goes on to the next.
 * offsets: where kept files begin is wanted here; else it is left out. Errors: BAD_DATA (too many
 * classes), RANK.
 */
struct dpt_shard_pack {
    struct dpt_str bytes, names, columns; /* the latter two: of the shard before */
};
void dpt_shard_pack(struct dpt_shard_pack *pack, const struct dpt_shard *shard);
void dpt_shard_pack_release(struct dpt_shard_pack *pack);
enum dpt_status dpt_shard_unpack(struct dpt_shard *shard, const char *path, bool offsets,
                                 const char **at, struct dpt_error *err);

/* Reads the samples' names of one that has_ids: [samples] texts of *stride bytes with at least one
 * NUL at their end, malloc'ed. Errors: BAD_DATA (damaged), RANK. */
enum dpt_status dpt_shard_read_ids(const struct dpt_shard *shard, char **texts, size_t *stride,
                                   struct dpt_error *err);

/*
 * Whether an open shard is still what it was. One that became shorter, or was written to and no
 * longer matches its checksum, is an error; one that was written to and has none, or is not to be
 * verified, is reported once. Errors: BAD_DATA, IO, RANK.
 */
enum dpt_status dpt_shard_look(struct dpt_shard *shard, bool verify, struct dpt_error *err);

/* What identifies an open file now, and the checksum of its first bytes. path: for messages.
 * Errors: IO. */
enum dpt_status dpt_shard_take_mark(int fd, const char *path, struct dpt_shard_mark *mark,
                                    struct dpt_error *err);
enum dpt_status dpt_shard_sum_head(int fd, const char *path, uint32_t *head, struct dpt_error *err);
/* Whether an open shard is the file that was opened, and if `strict` unchanged. Of one that was
 * opened on another host, whether it is as long and begins alike; its mark is then this host's.
 * Errors: BAD_DATA, IO. */
enum dpt_status dpt_shard_check_mark(struct dpt_shard *shard, bool strict, struct dpt_error *err);
/* Orders shards by the files that they are; 0: the same file. Hosts may number devices in different
 * ways, so these do not count. */
int dpt_shard_compare_files(const struct dpt_shard *a, const struct dpt_shard *b);

/*
 * Kept files. dpt_shard_open_files describes those of an open file: their shape and offsets
 * (shard_files.c). dpt_shard_picture decodes the n bytes of a sample to the whole, upright image;
 * dpt_shard_decode makes it the set's form, as `dptrain convert` does, too: out [c][h][w]. Any
 * thread. Errors: BAD_DATA (names the shard, the sample and, where /id tells, the file), RANK.
 */
enum dpt_status dpt_shard_open_files(struct dpt_shard *shard, hid_t file, struct dpt_error *err);
enum dpt_status dpt_shard_picture(const struct dpt_shard *shard, int64_t sample,
                                  const uint8_t *bytes, size_t n, struct dpt_picture *picture,
                                  struct dpt_error *err);
enum dpt_status dpt_shard_decode(const struct dpt_shard *shard, int64_t sample,
                                 const uint8_t *bytes, size_t n, uint8_t *out,
                                 struct dpt_error *err);
/* Takes from /columns, which the shard has read, what becomes of images of another shape.
 * Errors: BAD_DATA, RANK. */
enum dpt_status dpt_shard_take_fit(struct dpt_shard *shard, struct dpt_error *err);

/* Gives a zeroed shard its path, with nothing open. Errors: RANK. */
enum dpt_status dpt_shard_begin(struct dpt_shard *shard, const char *path, struct dpt_error *err);
/*
 * Steps of opening, under dpt_h5_enter. dpt_shard_find describes the data set `key`, or where that
 * is NULL whichever of two names the file has. Errors: BAD_DATA (there is none: says what the file
 * holds, and how to name it).
 */
enum dpt_status dpt_shard_find(hid_t file, const char *path, const char *key, const char *name,
                               const char *other, struct dpt_field *field, struct dpt_error *err);
/* If MATLAB wrote the shard, sets shard->matlab, by which its dimensions are read in its order. */
void dpt_shard_turn(struct dpt_shard *shard, hid_t file);
/* Notes what else the file holds (shard->unused). */
void dpt_shard_note_unused(struct dpt_shard *shard, hid_t file);
/* What other programs have under /files is theirs, where there are images. */
bool dpt_shard_keeps_files(hid_t file);

/* Whether samples that are read as channels first look as if their channels were last, which nobody
 * says. */
bool dpt_shard_suspect_layout(const struct dpt_shard *shard);

/* Whether the images can be read with pread in the layout that they have in memory. */
bool dpt_shard_direct(const struct dpt_shard *shard);

/* Whether two shards of one set, or two inputs, are alike: their samples, types, targets and
 * whether they have labels and weights. Errors: BAD_DATA (names both). */
enum dpt_status dpt_shard_check_alike(const struct dpt_shard *a, const struct dpt_shard *b,
                                      struct dpt_error *err);
/* Whether the images are bytes, and the labels whole numbers. */
static inline bool dpt_shard_u8(const struct dpt_shard *shard)
{
    return shard->images.info.type == DPT_H5_U8;
}
static inline bool dpt_shard_whole(const struct dpt_shard *shard)
{
    return shard->labels.info.type == DPT_H5_U8 || shard->labels.info.type == DPT_H5_INTEGER;
}

#endif

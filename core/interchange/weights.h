/*
 * weights: the parameters of a model in files of other programs.
 *
 * A format is a row: a name, what its files begin with, and how it is read, written, or both. Names
 * are PyTorch's, layer and tensor with a dot between them ("conv1.weight"); layouts are the field's
 * (dense [out, in], convolution [out, in / groups, height, width]), which are also those of the
 * arena. A file is untrusted input: its header is checked before it is used, and no more is read
 * than what was asked for. One thread at a time.
 */
#ifndef DPT_INTERCHANGE_WEIGHTS_H
#define DPT_INTERCHANGE_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/graph.h"
#include "core/base/memory.h"
#include "data/sets/dataset.h"
#include "data/sets/targets.h"

enum {
    DPT_WEIGHT_DIMS = 8,
    DPT_WEIGHTS_MOST = 1 << 20,
    DPT_WEIGHT_NAME_MOST = 512,
    DPT_WEIGHT_ENTRY_NAME = DPT_NAME + 24
};

/* Number formats of floats, as in files; all become float32. */
enum dpt_float_kind { DPT_FLOAT_NONE, DPT_FLOAT_16, DPT_FLOAT_BF16, DPT_FLOAT_32, DPT_FLOAT_64 };

/* A tensor that a file holds. */
struct dpt_weight {
    const char *name;         /* as the file has it, '/' replaced by '.'; printable */
    const char *type;         /* as the file has it, for messages: "F32", "<f4" */
    enum dpt_float_kind kind; /* NONE: it holds no floats, and cannot be read */
    int n_dims;
    int64_t dims[DPT_WEIGHT_DIMS];
    int64_t count; /* product of dims, at most what the file can hold */
    /* These are for the format alone: */
    uint64_t position;
    bool swapped, fortran;
};

struct dpt_weights_format;

/* A file that is open for reading. Zero-initialise: {0}. */
struct dpt_weights {
    const struct dpt_weights_format *format;
    const char *path; /* borrowed */
    struct dpt_weight *at;
    size_t n, capacity;
    struct dpt_region arena; /* owns the names and the types */
    int fd;
    void *file; /* the format's own */
};

/* A model with its weights, for writing. All pointers are borrowed. */
struct dpt_model_view {
    const struct dpt_graph *graph;
    const float *params;                    /* arena */
    const char *producer;                   /* "dptrain 0.1.0" */
    int64_t step;                           /* of training, that it is from */
    const struct dpt_normalize *normalize;  /* what was done to its inputs */
    const struct dpt_target_scale *targets; /* and to its targets */
    const char *const *classes;             /* names of the outputs, or NULL */
    size_t n_classes;
    const char *columns; /* how its table was read (data/tables/columns.h), or NULL */
    bool typed;          /* what its inputs are is known: */
    bool bytes;          /* bytes, 0 to 255; else numbers */
    /* These are for graphs (ONNX): */
    bool normalized;    /* inputs come normalised */
    bool probabilities; /* outputs are the softmax of the logits */
    bool labels;        /* with `probabilities`: multi-label, so sigmoids */
};

struct dpt_weights_format {
    const char *name;    /* "safetensors" */
    const char *suffix;  /* ".safetensors" */
    const char *summary; /* one line */
    /* Reading; NULL: it is only written. Whether the first n <= 16 bytes are of such a file. */
    bool (*is)(const unsigned char *head, size_t n);
    /* Fills w->at and ->n; what it allocates elsewhere, `close` frees, also after a failure.
     * Errors: BAD_DATA, IO, RANK. */
    enum dpt_status (*open)(struct dpt_weights *w, struct dpt_error *err);
    /* Reads the n bytes of a tensor's numbers as they lie in the file. Errors: BAD_DATA, IO,
     * RANK. */
    enum dpt_status (*read)(struct dpt_weights *w, const struct dpt_weight *weight, void *bytes,
                            size_t n, struct dpt_error *err);
    void (*close)(struct dpt_weights *w); /* NULL: there is nothing to close */
    /* Writing, the whole file or nothing; NULL: it is only read. Equal models give
     * byte-identical files. Errors: IO (names the file), RANK, USAGE (the format cannot hold
     * it). */
    enum dpt_status (*write)(const struct dpt_model_view *view, const char *path,
                             struct dpt_error *err);
    bool ordered; /* its files hold tensors in the order in which they were given */
};

extern const struct dpt_weights_format dpt_weights_safetensors, dpt_weights_npz, dpt_weights_onnx;
/* The formats of other programs; ends with NULL. */
extern const struct dpt_weights_format *const dpt_weights_formats[];

/*
 * Opens a file of any format that can be read; a run folder stands for a checkpoint
 * (dpt_checkpoint_resolve). own: the row of dptrain's own checkpoints
 * (core/train/use/checkpoint_model.h). Close it in any case. Errors: BAD_DATA (missing, damaged, of
 * no such format; names the file), IO, RANK.
 */
enum dpt_status dpt_weights_open(struct dpt_weights *w, const char *path,
                                 const struct dpt_weights_format *own, struct dpt_error *err);
void dpt_weights_close(struct dpt_weights *w);

/* Whether a path is of a format of other programs: what the file begins with says so, or its name
 * where it cannot be read here. */
bool dpt_weights_foreign(const char *path, const struct dpt_weights_format *own);

/* Reads weight->count floats. Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_weights_read(struct dpt_weights *w, const struct dpt_weight *weight, float *to,
                                 struct dpt_error *err);

/* The format for writing of a name ("npz"), or where that is NULL of a path's suffix. Errors: USAGE
 * (lists them). */
enum dpt_status dpt_weights_target(const char *name, const char *path,
                                   const struct dpt_weights_format **format, struct dpt_error *err);

/* --- for the formats -------------------------------------------------------------------------- */

/* A tensor's name in files of other programs: "conv1.weight"; buf: DPT_NAME bytes; returns buf. */
const char *dpt_weight_name(const struct dpt_tensor *tensor, char buf[DPT_NAME]);

/* What a file of a model's weights holds: a tensor of floats, or one whole number. */
struct dpt_weight_entry {
    char name[DPT_WEIGHT_ENTRY_NAME];
    bool whole; /* int64, not float32 */
    int n_dims;
    const int64_t *dims; /* borrowed, as are the bytes */
    const void *bytes;
    size_t size;
};

/*
 * Lists a model's tensors as PyTorch's state dict has them, which counts the steps that each batch
 * norm has taken. These counts come first: their numbers are the widest, and so all are aligned.
 * *entries: out, [*n] of the region. Errors: RANK.
 */
enum dpt_status dpt_weights_entries(const struct dpt_model_view *view, struct dpt_region *region,
                                    struct dpt_weight_entry **entries, size_t *n,
                                    struct dpt_error *err);
/* Whether a name is such a count's. */
bool dpt_weight_is_count(const char *name);

/* One more entry of w, its name copied and made printable. Errors:
 * BAD_DATA (too many, too long a name), RANK. */
enum dpt_status dpt_weights_add(struct dpt_weights *w, const char *name, size_t length,
                                struct dpt_weight **weight, struct dpt_error *err);
/* Sets count from dims. Errors: BAD_DATA (a negative size, more than any file holds). */
enum dpt_status dpt_weight_count(const struct dpt_weights *w, struct dpt_weight *weight,
                                 struct dpt_error *err);

/* "[0.1307]": the numbers as JSON. */
void dpt_reals_json(const struct dpt_reals *reals, struct dpt_str *out);
/* Adds texts likewise. */
void dpt_texts_json(const char *const *texts, size_t n, struct dpt_str *out);

#endif

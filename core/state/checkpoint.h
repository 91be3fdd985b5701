/*
 * checkpoint: the state of a run as an HDF5 file.
 *
 *   /params/<layer>/weight|bias            float32, canonical layout, unpadded
 *   /state/<layer>/running_mean|running_var  float32: of batch norm; format 2, which only models
 *                                          with state have, so that an older dptrain, which knows
 *                                          format 1, refuses them
 *   /optimizer/<slot>/<layer>/weight|bias  float32, likewise; the slot `ema` is no optimizer's, but
 *                                          the weights' moving average (train.ema)
 *   /targets/mean, /targets/std            float32 [outputs]: where targets were scaled in
 *                                          training; the model's outputs times std plus mean are
 *                                          in the targets' units; format 3, which no other has
 *   /job                                   what of the job decides the result, as YAML text
 *   /plans                                 where there is a choice of kernels: which, as text
 *                                          (program.h)
 *   /columns                               where its training data came of a table: how that was
 *                                          read, as text (data/tables/columns.h)
 *   /classes                               where its training data name classes: the names, as
 *                                          text, a line each (data/sets/identity.h)
 *   attributes of /                        format, format_version, step, updates, samples, epoch,
 * epoch_step, seed, parameters, input_shape ("1x28x28" or "784"), best_metric, best_step, version,
 * backend, library; file_shape, as the samples' files have it, where images are resized or cut
 * (data.resize, data.crop); input_type, "uint8" or "float32", as these have them; trained_on,
 * which tells its training data from others (data/sets/identity.h); norm_chunks where gradients are
 * clipped by a norm of rows (dpt_graph_chunks); numerics, the version of the backend's arithmetic,
 * from 2 on; of a run in half floats (fp16) also loss_scale,
 * loss_scale_good, loss_scale_overflows; of one that says by what its best checkpoint is chosen
 * best_monitor ("valid.loss") and best_loss; of one that may stop early, or whose rate falls on a
 * plateau, what is remembered of that value (struct dpt_watch): early_stop_monitor, _best, _step,
 * _waits, the same after early_stop_also_ of a second value, and after plateau_ with _drops;
 * target_transform, "log1p" or "log", where the model learned that of its targets: format 4, which
 * no other has
 *   attribute crc32 of every data set      CRC-32 of its bytes
 * after HDF5's end, one line of text    "dptrain crc32 <8 hex digits> <20 digits: bytes in front
 * of this line>\n"
 *
 * The bytes are a function of the state and of the machine's numerics alone: no time, host, path,
 * rank or thread count. A file is written under a temporary name, synced and renamed, so a final
 * name always stands for a whole file; and it is verified, the whole of it, before HDF5 gets to see
 * it.
 */
#ifndef DPT_STATE_CHECKPOINT_H
#define DPT_STATE_CHECKPOINT_H

#include "core/backend/graph.h"
#include "core/backend/loss_scale.h"
#include "core/base/log.h"
#include "core/state/lock.h"
#include "core/state/shared_file.h"
#include "data/sets/targets.h"

enum { DPT_CHECKPOINT_FORMAT = 4, DPT_CHECKPOINT_TRAILER = 44 };
enum { DPT_CHECKPOINT_PIECE = 1 << 18 }; /* floats that a state that streams is asked for at once */

/* Floats of a tensor that follow each other. */
struct dpt_stretch {
    int32_t arena; /* -1: the parameters, 0 and up: a slot */
    int32_t tensor;
    int64_t at, n;      /* from the tensor's first float on */
    int64_t not_finite; /* of what was read: the tensor's first such float of them; -1: none */
    uint32_t crc;       /* of their bytes */
    bool is_nan;        /* that float; else it is infinite */
};

/* The slot that is a moving average of the weights. */
#define DPT_CHECKPOINT_AVERAGE "ema"

enum { DPT_WATCH_NAME = 32 };

/* What is remembered of a value that evaluations of data.valid tell, by which something is
 * decided. */
struct dpt_watch {
    char monitor[DPT_WATCH_NAME]; /* "valid.loss"; "": nothing is watched */
    double best;                  /* only where step >= 0 */
    int64_t step;                 /* at which it was reached; -1: never */
    int64_t waits;                /* evaluations since, without a better one */
    int64_t drops;                /* how often the learning rate was lowered for it */
};

/* How far the run is. With the parameters and the optimizer's slots this is all that the next step
 * depends on. */
struct dpt_progress {
    int64_t step;       /* steps done, skipped ones included */
    int64_t updates;    /* updates applied */
    int64_t samples;    /* seen */
    int64_t epoch;      /* of the next step, from 0 */
    int64_t epoch_step; /* of the next step within its epoch */
    double best_metric; /* of data.valid, more is better: accuracy, minus the loss, or what
                           best_monitor names; only where best_step >= 0 */
    int64_t best_step;  /* at which it was reached; -1: never evaluated */
    char best_monitor[DPT_WATCH_NAME];          /* "": the job does not say */
    double best_loss;                           /* there, where the job says it */
    struct dpt_watch early_stop, also, plateau; /* also: a second value of early_stop */
};

/* What a file holds. All pointers are borrowed. */
struct dpt_state {
    const struct dpt_graph *graph;
    float *params; /* arena */
    int slots;
    float *slot[DPT_MAX_SLOTS]; /* arenas */
    const char *const *slot_names;
    struct dpt_target_scale *targets; /* read with the parameters; NULL: not wanted */
    /*
     * NULL: this rank has whole slots. Otherwise what rank 0 has all ranks do that have parts of
     * them, while the others wait for that (core/train/setup/state.h).
     *
     * gather: calls take(arg, i, x, err) on rank 0 with each of n stretches, of at most
     * DPT_CHECKPOINT_PIECE floats, in turn. room: for so many. Errors: RANK, those of take.
     *
     * write: each rank writes its floats of every data set, as far as they fill blocks of the file.
     * file: with path and maker; fd: the new file. offset: [1 + slots][tensors], the parameters in
     * front: where in the file a tensor's floats begin; -1: leave them. *done: out, what was
     * written, in the order of arena, tensor and place, valid until the next call; nothing if a
     * rank does not see the file. *later: it may be written after this returns, of a copy; out,
     * whether it is, and then without checksums. Errors: IO, RANK.
     *
     * read: the other way round, of the file that was verified: each rank reads all that it keeps
     * of the tensors with an offset. sets: numbers in `offset`, which may end before the slots.
     * *done: what was read, each float of these tensors once.
     *
     * give: takes what was read of a tensor, n floats at `at` of slot k, or of the parameters (-1),
     * to its owners; its memory may then be given back.
     */
    enum dpt_status (*gather)(void *owners, const struct dpt_stretch *wanted, size_t n, float *room,
                              enum dpt_status (*take)(void *arg, size_t i, const float *x,
                                                      struct dpt_error *err),
                              void *arg, struct dpt_error *err);
    enum dpt_status (*write)(void *owners, struct dpt_shared_file *file, int fd,
                             const int64_t *offset, bool *later, const struct dpt_stretch **done,
                             size_t *n, struct dpt_error *err);
    enum dpt_status (*read)(void *owners, const int64_t *offset, size_t sets,
                            const struct dpt_stretch **done, size_t *n, struct dpt_error *err);
    enum dpt_status (*give)(void *owners, int k, size_t at, size_t n, float *from,
                            struct dpt_error *err);
    void *owners;
    const bool *seen;    /* whether all ranks see the file that was verified */
    bool gathers_params; /* of the parameters, too, rank 0 has only a part */
    bool streams; /* no rank has room for a file: what rank 0 writes it asks for piece by piece, and
                     writes at once (checkpoint_image.h) */
    bool later;   /* the ranks may write their parts after the save has begun */
    struct dpt_progress progress;
    int64_t seed;
    bool scaled; /* its gradients are half floats */
    struct dpt_loss_scale scale;
    const char *job_text;
    const char *plans;              /* NULL or empty: none */
    const char *columns;            /* likewise */
    const char *classes;            /* likewise */
    const char *training_data;      /* likewise */
    const char *input_type;         /* likewise */
    const struct dpt_shape *stored; /* of its samples in their files; NULL: as the model's input */
    bool clips_rows;                /* its gradients are clipped by a norm of rows */
    bool averaged;                  /* out, with DPT_LOAD_AVERAGE: there was one */
    const char *version, *backend, *library;
    int numerics;                /* the backend's version of its arithmetic */
    const struct dpt_lock *lock; /* looked at before a file gets its final name; NULL: none */
};

/* The format_version of its checkpoints; all up to DPT_CHECKPOINT_FORMAT are read. */
static inline int dpt_checkpoint_format(const struct dpt_state *state)
{
    if (state->targets != NULL && state->targets->transform != DPT_TARGETS_PLAIN)
        return 4;
    if (state->targets != NULL && state->targets->used)
        return 3;
    return state->graph->arena > state->graph->floats ? 2 : 1;
}

/* "FOLDER/checkpoints/step-00001200.h5" into buf; returns buf. */
const char *dpt_checkpoint_path(const char *folder, int64_t step, char *buf, size_t size);

/* The size of the file in bytes, found without allocating memory for it. Errors: RANK, IO (larger
 * than files may be; path: for that message). */
enum dpt_status dpt_checkpoint_size(const struct dpt_state *state, const char *path, uint64_t *size,
                                    struct dpt_error *err);

/*
 * Prepares a save: removes what killed processes left in FOLDER and FOLDER/checkpoints, and puts on
 * the disk what FOLDER/metrics.jsonl and TensorBoard's file tell of the steps so far, so that no
 * power cut leaves a checkpoint that is ahead of it. Errors: IO.
 */
enum dpt_status dpt_checkpoint_prepare(const char *folder, struct dpt_error *err);

/*
 * Tidies up after a save, and when a run resumes from `path`: points FOLDER/checkpoints/latest to
 * `path`, and `best` to the checkpoint of best_step where that is on disk, and removes all but
 * these and the `keep` newest (0: none is removed), later ones aside. Errors: IO, RANK.
 */
enum dpt_status dpt_checkpoint_rotate(const char *folder, const char *path, int64_t keep,
                                      int64_t best_step, struct dpt_error *err);

/* The steps of the checkpoints in FOLDER/checkpoints, newest first; *steps: malloc'ed. *n is 0
 * where there is no folder. Errors: RANK. */
enum dpt_status dpt_checkpoint_list(const char *folder, int64_t **steps, size_t *n,
                                    struct dpt_error *err);

/* Whether something of this name in FOLDER/checkpoints is a run's: a checkpoint, also one set
 * aside, or a link to one. */
bool dpt_checkpoint_is_name(const char *name);

/* Verifies the checksum of a whole file. Errors: BAD_DATA (damaged, cut short, no checkpoint of
 * dptrain), IO. */
enum dpt_status dpt_checkpoint_verify(const char *path, struct dpt_error *err);
/* Does so with the checksum that `take` makes of the first `size` bytes of an open file, which ends
 * with its mark. Errors: as above, those of `take`. */
enum dpt_status dpt_checkpoint_verify_by(const char *path,
                                         enum dpt_status (*take)(void *arg, int fd,
                                                                 const struct dpt_shared_file *file,
                                                                 int64_t size, uint32_t *crc,
                                                                 struct dpt_error *err),
                                         void *arg, struct dpt_error *err);

/* The parts of a checkpoint to load. ANY: numbers that are not finite are accepted; they are
 * refused otherwise. AVERAGE: the weights' moving average instead, if the file has one. */
enum dpt_load_parts {
    DPT_LOAD_PARAMS = 1,
    DPT_LOAD_SLOTS = 2,
    DPT_LOAD_PROGRESS = 4,
    DPT_LOAD_ANY = 8,
    DPT_LOAD_AVERAGE = 16,
    DPT_LOAD_ONLY_AVERAGE = 32 /* with AVERAGE: a file that has none is refused */
};

/* A file that is open for reading. */
struct dpt_checkpoint {
    const char *path; /* borrowed */
    int64_t file;     /* HDF5's number; -1: closed */
};

/* Opens a file that was verified. Errors: BAD_DATA. */
enum dpt_status dpt_checkpoint_open(struct dpt_checkpoint *checkpoint, const char *path,
                                    struct dpt_error *err);
void dpt_checkpoint_close(struct dpt_checkpoint *checkpoint);

/*
 * Reads into the state's arenas and progress, as far as `parts` asks. job_text: out, malloc'ed, or
 * NULL where it is not wanted. Errors: BAD_DATA (damaged; of another model or optimizer, with the
 * first difference in words; a number that is not finite; counters that no run has), IO, RANK.
 */
enum dpt_status dpt_checkpoint_read(const struct dpt_checkpoint *checkpoint,
                                    struct dpt_state *state, unsigned parts, char **job_text,
                                    struct dpt_error *err);

/* The text of its /plans, /columns or /classes, malloc'ed; NULL: it has none. Errors: BAD_DATA,
 * RANK. */
enum dpt_status dpt_checkpoint_text(const struct dpt_checkpoint *checkpoint, const char *name,
                                    char **text, struct dpt_error *err);

/* Copies a text attribute, as "trained_on", into text, and returns text. "": there is none, as in
 * older checkpoints. */
const char *dpt_checkpoint_attribute(const struct dpt_checkpoint *checkpoint, const char *name,
                                     char *text, size_t size);
/* "cpu oneDNN 2.6.3, AVX-512, dptrain 0.1.0": what it was made with, into text; returns text. */
const char *dpt_checkpoint_numerics(const struct dpt_checkpoint *checkpoint, char *text,
                                    size_t size);
/* The version of that backend's arithmetic (dpt_backend.numerics); 1 if it has none. */
int64_t dpt_checkpoint_arithmetic(const struct dpt_checkpoint *checkpoint);

/* The shape that an attribute tells, "input_shape" or "file_shape". False: as above. */
bool dpt_checkpoint_shape(const struct dpt_checkpoint *checkpoint, const char *name,
                          struct dpt_shape *shape);

/* Renames the checkpoints after `step`, so that no run continues from them: step-N.h5 becomes
 * aside-step-N.h5. Errors: IO, RANK. */
enum dpt_status dpt_checkpoint_set_aside(const char *folder, int64_t step, struct dpt_error *err);

/*
 * The checkpoint that a path stands for; buf: PATH_MAX bytes; returns buf. A file stands for
 * itself.
 *
 * resolve: a run folder stands for its best checkpoint where its job says by what that is chosen
 * (checkpoint.monitor), else for its newest. So it is wherever a model is used. newest: where a run
 * resumes, a folder stands for its newest one.
 * tell: logs that and which best checkpoint a folder stands for; of others nothing.
 */
const char *dpt_checkpoint_resolve(const char *path, char *buf);
const char *dpt_checkpoint_newest(const char *path, char *buf);
void dpt_checkpoint_tell(const char *path, struct dpt_log *log);

/*
 * --- inspect.c: what a checkpoint's last line says about the whole file, and where it is damaged -
 *
 * The checksum of the whole file shows that it is damaged, and the checksums of its data sets show
 * where. Damage that no data set's checksum shows lies in the metadata.
 */

struct dpt_inspect; /* data/shards/inspect.h */

/* The last line of a file, the checksum of all that is in front of it. */
enum dpt_trailer {
    DPT_TRAILER_NONE, /* it has none: no checkpoint, or one that is cut short */
    DPT_TRAILER_WRONG,
    DPT_TRAILER_GOOD,
};

/* Reads the whole file, without HDF5. Errors: BAD_DATA (missing, no file), IO, RANK. */
enum dpt_status dpt_checkpoint_trailer(const char *path, enum dpt_trailer *trailer,
                                       struct dpt_error *err);

/* Whether a listed file is or was a checkpoint. */
bool dpt_checkpoint_is(const struct dpt_inspect *f, enum dpt_trailer trailer);

/*
 * The validation result of a file whose data sets were all read: OK, or BAD_DATA with one line that
 * names what is damaged first, and how much more is.
 */
enum dpt_status dpt_inspect_validation_result(const struct dpt_inspect *f, enum dpt_trailer trailer,
                                              struct dpt_error *err);

#endif

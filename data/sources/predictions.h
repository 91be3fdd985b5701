/*
 * predictions: a model's predictions for many samples, as a table, an array or an HDF5 file.
 *
 * .csv: a line per sample, below the names of the columns: what it is called (a name of its
 * table's, its file, else its number from 0), what was right where that is known, then its class
 * and the probability of it (and, with all_probabilities, of each class), or the values, or of
 * several labels the probability of each (and, with decided, whether it holds, before these).
 * Numbers are the shortest that read back as the same float32. Values and targets from which an
 * offset was subtracted (data/tables/columns.h) have it again, as float64, in all three formats. A
 * sample whose outputs are not finite has no class, and `nan` as its probability.
 *
 * .npy: float32 [N, K], the probabilities, or the values.
 *
 * .h5:
 *   /logits, /probabilities  float32 [N, K]   (cross_entropy, binary_cross_entropy)
 *   /labels                  int32 [N]        the chosen class (cross_entropy), -1 of a sample
 *                                             whose outputs are not finite; or with decided
 *                            int32 [N, K]     whether each label holds (binary_cross_entropy)
 *   /predictions             float32 [N, K]   (mse, in the place of the three)
 *   /targets                 int32 [N] or float32 [N, K]: what was right, where it is known
 *   /loss                    float32 [N], likewise
 *   /names                   text [N]: the samples' names, where they have some
 *   attributes of /          checkpoint, step, job, version, and thresholds where classes were
 *                            chosen by some; of /labels: classes, their names
 *
 * Equal samples give byte-identical files: no time, host or rank count is in it. It needs memory
 * for one batch of samples. The file gets its name only once it is complete and on the disk.
 */
#ifndef DPT_DATA_PREDICTIONS_H
#define DPT_DATA_PREDICTIONS_H

#include "data/sources/source.h"

struct dpt_predictions_format {
    int64_t samples;
    int32_t outputs;
    bool classes;           /* of a cross_entropy model */
    bool labels;            /* of a binary_cross_entropy model: a probability for each output */
    bool decided;           /* and whether it holds */
    bool all_probabilities; /* a table has those of all classes */
    const char *thresholds; /* "ill=0.1"; NULL: the largest output chooses */
    enum dpt_truth truth;
    size_t name_bytes; /* of the longest name; 0: none */
    const char *checkpoint, *job, *version;
    int64_t step;
    const char *const *class_names; /* [n_classes], or NULL */
    size_t n_classes;
    const char *id;                 /* what the names are: "file"; NULL: there are none */
    const char *const *value_names; /* [outputs] of what is no class: a label, a number; or NULL */
    const double *offsets; /* [outputs] what is added to values and targets; NULL: nothing */
};

/* Adds the next samples; a pointer is NULL where the format says that there is no such data set. */
struct dpt_predictions_rows {
    int32_t count;
    const float *values, *probabilities;
    const int32_t *labels, *classes; /* said and true; of labels [count][outputs], of classes
                                        [count] */
    const float *targets, *loss;
    const char *const *names;
};

struct dpt_predictions;

/* Whether there is a format for files of this name. Errors: USAGE (lists the endings). */
enum dpt_status dpt_predictions_check(const char *path, struct dpt_error *err);

/* Whether the format of files of this name holds no class. */
bool dpt_predictions_only_numbers(const char *path);

/* path: NULL: a table on standard output; whether all of it arrived is for its owner to ask. All
 * strings are borrowed until close. Errors: USAGE, IO (names the file), RANK. */
enum dpt_status dpt_predictions_open(struct dpt_predictions **predictions, const char *path,
                                     const struct dpt_predictions_format *format,
                                     struct dpt_error *err);
enum dpt_status dpt_predictions_add(struct dpt_predictions *predictions,
                                    const struct dpt_predictions_rows *rows, struct dpt_error *err);
/* Syncs the file and gives it its name. Errors: IO. */
enum dpt_status dpt_predictions_commit(struct dpt_predictions *predictions, struct dpt_error *err);
/* Removes the file unless it was committed. NULL is fine. */
void dpt_predictions_close(struct dpt_predictions *predictions);

#endif

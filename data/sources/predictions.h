/*
 * predictions: a model's predictions for many samples, as an HDF5 file.
 *
 *   /logits, /probabilities  float32 [N, K]   (cross_entropy)
 *   /labels                  int32 [N]        the class of the largest logit
 *   /predictions             float32 [N, K]   (mse, in the place of the three)
 *   /targets                 int32 [N] or float32 [N, K]: what was right, where it is known
 *   /loss                    float32 [N], likewise
 *   /names                   text [N]: files, where each sample is one
 *   attributes of /          checkpoint, step, job, version; of /labels: classes, their names
 *
 * The same samples give the same bytes: no time, host or rank count is in it. It needs memory for
 * one batch of samples. The file gets its name only once it is complete and on the disk.
 */
#ifndef DPT_DATA_PREDICTIONS_H
#define DPT_DATA_PREDICTIONS_H

#include "data/sources/source.h"

struct dpt_predictions_format {
    int64_t samples;
    int32_t outputs;
    bool classes; /* of a cross_entropy model */
    enum dpt_truth truth;
    size_t name_bytes; /* of the longest name; 0: none */
    const char *checkpoint, *job, *version;
    int64_t step;
    const char *const *class_names; /* or NULL */
    size_t n_classes;
};

/* Adds the next samples; a pointer is NULL where the format says that there is no such data set. */
struct dpt_predictions_rows {
    int32_t count;
    const float *values, *probabilities;
    const int32_t *labels, *classes;
    const float *targets, *loss;
    const char *const *names;
};

struct dpt_predictions;

/* All strings are borrowed until close. Errors: IO (names the file), RANK. */
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

/*
 * scores: what an evaluation says of a model beside its loss and accuracy.
 *
 * Each score is a row: its name in metrics.jsonl and TensorBoard, and what a person reads. They are
 * those of scikit-learn, with its conventions, and with the samples' weights where they have any.
 */
#ifndef DPT_TRAIN_SCORES_H
#define DPT_TRAIN_SCORES_H

#include "data/sets/targets.h"

/* A score that the model or the data do not have is NAN. */
struct dpt_scores {
    /* Regression, in the targets' units; means over the outputs. */
    double mae;  /* mean absolute error */
    double rmse; /* root of the mean squared error */
    double r2;   /* coefficient of determination: 1 - squared error / variance of the targets */
};

struct dpt_score {
    const char *name;   /* "rmse" */
    const char *label;  /* "RMSE" */
    const char *format; /* of the value, for a person */
    size_t offset;      /* in struct dpt_scores */
};

extern const struct dpt_score dpt_scores[]; /* ends with a row without a name */

static inline double dpt_score_value(const struct dpt_scores *scores, const struct dpt_score *row)
{
    return *(const double *)(const void *)((const char *)scores + row->offset);
}

enum { DPT_SCORES_TEXT = 160 };
/* "MAE 3.14  RMSE 4.2", those that there are with `between` between them, and in front where there
 * are any; returns buf. */
const char *dpt_scores_text(const struct dpt_scores *scores, const char *front, const char *between,
                            char buf[DPT_SCORES_TEXT]);

/* No score at all. */
void dpt_scores_clear(struct dpt_scores *scores);
/*
 * Those of regression, from the weighted sums of each output's absolute and squared errors over the
 * samples that a sampler walks, whose weights sum up to `weight`. The targets are read twice, and
 * their sums are taken in the order of the samples. Errors: RANK.
 */
enum dpt_status dpt_scores_regression(struct dpt_scores *scores, const struct dpt_dataset *set,
                                      const struct dpt_sampler *sampler, const double *absolute,
                                      const double *squared, double weight, struct dpt_error *err);

#endif

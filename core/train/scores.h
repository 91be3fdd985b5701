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
    /* Classes. Precision, recall and F1 are those of class 1 where there are two classes, else
     * means over the classes that are a sample's or chosen; 0 where they would be 0 / 0. */
    double balanced_accuracy; /* mean recall of the classes that samples have */
    double precision, recall, f1;
    double roc_auc; /* of class 1 of two; else mean over the classes, each against the rest */
    double top5;    /* whether the true class is among the five likeliest; of more than five */
    /* Classes are uneven where the most frequent one has over three times as many samples as the
     * rarest one that there is. */
    bool uneven;
    int32_t common, rare;            /* these two */
    double common_share, rare_share; /* of all samples */
    double rare_recall;
};

/* What was said of the samples of an evaluation: a row each, in the order of their evaluation. */
enum { DPT_SAID_CHOSEN, DPT_SAID_ABOVE, DPT_SAID_PROBABILITY };
struct dpt_said {
    int32_t outputs;
    /* Of a row: the chosen class, how many are likelier than the true one, and the probabilities:
     * of all classes, of class 1 of two, or none. */
    int32_t width;
    float *rows;
};

/* Confusion matrices are made up to so many classes, and what follows from them. */
enum { DPT_SCORES_CLASSES = 1024 };

struct dpt_score {
    const char *name;   /* "rmse" */
    const char *label;  /* "RMSE" */
    const char *format; /* of the value, for a person */
    bool classes;       /* of classes; else of numbers, which the lines of a run tell */
    size_t offset;      /* in struct dpt_scores */
};

extern const struct dpt_score dpt_scores[]; /* ends with a row without a name */

static inline double dpt_score_value(const struct dpt_scores *scores, const struct dpt_score *row)
{
    return *(const double *)(const void *)((const char *)scores + row->offset);
}

enum { DPT_SCORES_TEXT = 160 };
/* "MAE 3.14  RMSE 4.2", those of classes or of numbers that there are, with `between` between them,
 * and `front` where there are any; returns buf. */
const char *dpt_scores_text(const struct dpt_scores *scores, bool classes, const char *front,
                            const char *between, char buf[DPT_SCORES_TEXT]);

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
/* The softmax of a row of logits; gives the first of the largest. */
int32_t dpt_softmax(const float *logits, int32_t n, float *out);
/* Writes the row of a sample. probabilities: room for said->outputs. */
void dpt_said_put(const struct dpt_said *said, int64_t position, int32_t label, const float *logits,
                  float *probabilities);
/*
 * Those of classes, from what was said of the samples that a sampler walks in its first epoch.
 * confusion: [outputs][outputs] zeroed, out: the samples' weights, true class by chosen one.
 * Errors: RANK.
 */
enum dpt_status dpt_scores_classes(struct dpt_scores *scores, const struct dpt_dataset *set,
                                   const struct dpt_sampler *sampler, const struct dpt_said *said,
                                   double *confusion, struct dpt_error *err);

/* One class of a confusion matrix. */
struct dpt_class_score {
    double weight, chosen; /* of its samples; of those that were said to be of it */
    double precision, recall, f1;
};
struct dpt_class_score dpt_scores_class(const double *confusion, int32_t classes, int32_t k);

#endif

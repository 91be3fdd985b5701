/*
 * scores: the results of an evaluation besides loss and accuracy.
 *
 * Each score is a row: its name in metrics.jsonl and TensorBoard, and its label for people. The
 * scores are scikit-learn's, with its conventions, and use the samples' weights if they have any.
 */
#ifndef DPT_TRAIN_SCORES_H
#define DPT_TRAIN_SCORES_H

#include "core/base/str.h"
#include "data/sets/targets.h"

/* A score that the model or the data do not have is NAN. */
struct dpt_scores {
    /* Regression, in the targets' units; means over the outputs. */
    double mae;  /* mean absolute error */
    double rmse; /* root of the mean squared error */
    double r2;   /* coefficient of determination: 1 - squared error / variance of the targets */
    /* Multi-label: the share of all labels that are predicted correctly, 1 - Hamming loss. The
     * accuracy is the share of the samples of which all labels are correct. */
    double label_accuracy;
    /* Classes. With two classes, precision, recall and F1 are the positive class's; else they are
     * means over the classes that any sample has or that are chosen, or over the labels. They are 0
     * if they would be 0 / 0. */
    double balanced_accuracy; /* mean recall of the classes that samples have */
    double precision, recall, f1;
    double roc_auc; /* of two classes; else mean over labels, or each class against the rest */
    double top5;    /* share of samples whose class is among the five likeliest */
    /* Classes are imbalanced if the most frequent class has over three times as many samples as the
     * rarest one present, and there are at least thirty samples per class, so that it is not
     * chance. */
    bool uneven;
    int32_t common, rare;            /* these two */
    double common_share, rare_share; /* of all samples */
    double rare_recall;
    int32_t positive; /* of two classes, or told (struct dpt_positive); else -1 */
};

/* The positive class, which precision, recall and F1 describe. Of two classes it is the one with
 * fewer samples, whatever their weights; class 1 if both have as many, or class 0 has none. With
 * any number of classes, or labels, the user may choose it. */
struct dpt_positive {
    int32_t class;
    bool told;
    int64_t samples, all; /* of the class, of all; all 0: not counted yet */
    bool training;        /* counted in data.train; else in the samples that are evaluated */
};

/* One class of an evaluation, by the samples' weights. */
struct dpt_class_score {
    double weight, chosen, right; /* of its samples; of those predicted as it; of both */
    double precision, recall, f1;
    double roc_auc; /* against the rest; NAN: either is missing, or it was not asked for */
    /* Labels only: the share of samples that are predicted correctly, and of those for which it
     * holds. */
    double accuracy, base_rate;
};

/* The outputs for the samples of an evaluation: one row per sample, in the order of evaluation. */
enum { DPT_SAID_CHOSEN, DPT_SAID_ABOVE, DPT_SAID_LOGITS };
struct dpt_said {
    int32_t outputs;
    /* Columns of a row: the chosen class, how many classes are likelier than the true one, and the
     * logits of all classes, or none. Multi-label: only the logits of all labels. */
    int32_t width;
    float *rows;
};

/* Confusion matrices are made for at most so many classes; the scores do not need them. */
enum { DPT_SCORES_CLASSES = 1024 };

struct dpt_score {
    const char *name;   /* "rmse" */
    const char *label;  /* "RMSE" */
    const char *format; /* of the value, for a person */
    bool classes;       /* for classes; else the lines of a run show it */
    size_t offset;      /* in struct dpt_scores */
    const char *summary;
};

extern const struct dpt_score dpt_scores[]; /* ends with a row without a name */

static inline double dpt_score_value(const struct dpt_scores *scores, const struct dpt_score *row)
{
    return *(const double *)(const void *)((const char *)scores + row->offset);
}

enum { DPT_SCORES_TEXT = 160 };
/* "MAE 3.14  RMSE 4.2", the available scores of classes or of regression, with `between` between
 * them and `front` before them if there are any; returns buf. */
const char *dpt_scores_text(const struct dpt_scores *scores, bool classes, const char *front,
                            const char *between, char buf[DPT_SCORES_TEXT]);

/* Sets every score to none. */
void dpt_scores_clear(struct dpt_scores *scores);
/*
 * Computes the scores of regression, from the weighted sums of each output's absolute and squared
 * errors over the samples that a sampler walks, whose weights sum up to `weight`. The targets are
 * read twice, and their sums are taken in the order of the samples. Errors: RANK.
 */
enum dpt_status dpt_scores_regression(struct dpt_scores *scores, const struct dpt_dataset *set,
                                      const struct dpt_sampler *sampler, const double *absolute,
                                      const double *squared, double weight, struct dpt_error *err);
/*
 * Adds samples to the sums of regression one at a time, without weights. sums: [4][width], zeroed
 * before the first; absolute and squared errors, the targets' mean and their sums of squares about
 * it (Welford 1962). before: how many samples the sums hold.
 */
void dpt_error_sums_add(double *sums, int32_t width, int64_t before, const float *values,
                        const float *targets);
void dpt_scores_of_sums(struct dpt_scores *scores, const double *sums, int32_t width,
                        int64_t samples);

/* The index of the largest; the first, if several are equal. */
int32_t dpt_argmax(const float *x, int32_t n);
/* The softmax of a row of logits; returns the index of the largest, the first if several are
 * equal. */
int32_t dpt_softmax(const float *logits, int32_t n, float *out);
/* The sigmoid of each of a row of logits. */
void dpt_sigmoids(const float *logits, int32_t n, float *out);
/* Whether all of a row of outputs are finite. */
bool dpt_is_finite(const float *row, int64_t n);
/*
 * The log-odds of a class, log(p / (1 - p)), of a row of logits. They rank samples as its
 * probability p does, and still differ when p rounds to 0 or 1: in fp32 from 17 on. sums: of this
 * row.
 */
struct dpt_odds {
    int32_t best; /* the class of the first of the largest logits */
    double rest;  /* log of the sum of the exponentials of all others */
};
struct dpt_odds dpt_odds_sums(const float *logits, int32_t n);
double dpt_log_odds(const struct dpt_odds *sums, const float *logits, int32_t n, int32_t class);
/* Whether a label is predicted to hold: if its logit, which is its log-odds, is at least the
 * threshold or, without one (NAN), positive. */
static inline bool dpt_label_holds(float logit, double threshold)
{
    return threshold == threshold ? (double)logit >= threshold : logit > 0;
}

/* The class of a sample. If the target is a share of each class, it is the class with the largest
 * share, as for accuracy; if it is a single label, 1 if the label holds, else 0. */
int32_t dpt_class_of(const struct dpt_dataset *set, int64_t sample);
/* Whether a sample is of a class, or one of its labels holds. */
bool dpt_is_of(const struct dpt_dataset *set, int64_t sample, bool labels, int32_t class);

/* The width of a row. all: it has the logits of all classes, unless they are too many to keep; with
 * two classes it always has them. labels: it is of labels, and holds the logits of all; 0: there
 * are too many to keep, so there are no scores. */
int32_t dpt_said_width(int32_t outputs, int64_t samples, bool all, bool labels);
/* Writes the row of a sample. */
void dpt_said_put(const struct dpt_said *said, int64_t position, int32_t label,
                  const float *logits);
/* Counts the two classes of a set, or the class or label that the user chose, in all its samples or
 * in those that a sampler walks. */
void dpt_positive_count(struct dpt_positive *positive, const struct dpt_dataset *set,
                        const struct dpt_sampler *sampler, bool labels);
/*
 * Computes the scores of classes, from the outputs for the samples that a sampler walks in its
 * first epoch. positive: the positive class of two, or the one that the user chose. classes:
 * [outputs] zeroed, out. confusion: NULL, or [outputs][outputs] zeroed, out: the samples' weights,
 * true class by chosen one. Errors: RANK.
 */
enum dpt_status dpt_scores_classes(struct dpt_scores *scores, const struct dpt_dataset *set,
                                   const struct dpt_sampler *sampler, const struct dpt_said *said,
                                   const struct dpt_positive *positive,
                                   struct dpt_class_score *classes, double *confusion,
                                   struct dpt_error *err);

/*
 * Computes the multi-label scores. A label holds if its target is 0.5 or more, and is predicted to
 * hold as dpt_label_holds says. thresholds: log-odds [outputs], or NULL. positive: the label that
 * the user chose, if any. labels: [outputs] zeroed, out: each as a class of the samples for which
 * it holds. Errors: RANK.
 */
enum dpt_status dpt_scores_labels(struct dpt_scores *scores, const struct dpt_dataset *set,
                                  const struct dpt_sampler *sampler, const struct dpt_said *said,
                                  const double *thresholds, const struct dpt_positive *positive,
                                  struct dpt_class_score *labels, struct dpt_error *err);

/* Writes how many samples of the rarest of imbalanced classes are found, as text without a full
 * stop. samples: the word for them, "these". */
void dpt_scores_uneven(const struct dpt_scores *scores, const struct dpt_called *called,
                       const char *samples, struct dpt_str *out);
/* "positive: ill (rarer, 37 of 768 training samples)", or "(as told, ...". split: of the evaluated
 * samples, "test". */
void dpt_positive_tell(const struct dpt_positive *positive, const struct dpt_called *called,
                       const char *split, struct dpt_str *out);

#endif

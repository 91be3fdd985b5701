/*
 * scores: what an evaluation says of a model beside its loss and accuracy.
 *
 * Each score is a row: its name in metrics.jsonl and TensorBoard, and what a person reads. They are
 * those of scikit-learn, with its conventions, and with the samples' weights where they have any.
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
    /* Of several labels at once: the share of all labels that are said right, 1 - Hamming loss. The
     * accuracy is the share of the samples of which all are. */
    double label_accuracy;
    /* Classes. Precision, recall and F1 are those of the positive class where there are two, else
     * means over the classes that are a sample's or chosen, or over the labels, of which each holds
     * or not; 0 where they would be 0 / 0. */
    double balanced_accuracy; /* mean recall of the classes that samples have */
    double precision, recall, f1;
    double roc_auc; /* of two classes; else mean over the labels, or classes against the rest */
    double top5;    /* whether the true class is among the five likeliest; of more than five */
    /* Classes are uneven where the most frequent one has over three times as many samples as the
     * rarest one that there is, and there are thirty samples a class, so that it is no chance. */
    bool uneven;
    int32_t common, rare;            /* these two */
    double common_share, rare_share; /* of all samples */
    double rare_recall;
    int32_t positive; /* of two classes, or told (struct dpt_positive); else -1 */
};

/* Which class precision, recall and F1 are about: of two the rarer one by the number of samples,
 * whatever they weigh; class 1 where there are as many of both, or none of class 0. Of any number
 * of classes, or labels, the one that a person told. */
struct dpt_positive {
    int32_t class;
    bool told;
    int64_t samples, all; /* of the class, of all; all 0: not counted yet */
    bool training;        /* counted in data.train; else in the samples that are evaluated */
};

/* One class of an evaluation, by the samples' weights. */
struct dpt_class_score {
    double weight, chosen, right; /* of its samples; of those said to be of it; of both */
    double precision, recall, f1;
    double roc_auc; /* against the rest; NAN: either is missing, or it was not asked for */
    /* Of a label: the share of the samples that are said right, and of those for which it holds. */
    double accuracy, base_rate;
};

/* What was said of the samples of an evaluation: a row each, in the order of their evaluation. */
enum { DPT_SAID_CHOSEN, DPT_SAID_ABOVE, DPT_SAID_LOGITS };
struct dpt_said {
    int32_t outputs;
    /* Of a row: the chosen class, how many are likelier than the true one, and the logits of all
     * classes, or none. Of several labels: the logits of all, and nothing else. */
    int32_t width;
    float *rows;
};

/* Confusion matrices are made up to so many classes; the scores need none. */
enum { DPT_SCORES_CLASSES = 1024 };

struct dpt_score {
    const char *name;   /* "rmse" */
    const char *label;  /* "RMSE" */
    const char *format; /* of the value, for a person */
    bool classes;       /* of classes; else one which the lines of a run tell */
    size_t offset;      /* in struct dpt_scores */
    const char *summary;
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
 * The same of samples that come one after another, without weights. sums: [4][width], zeroed before
 * the first; absolute and squared errors, the targets' mean and their spread about it (Welford
 * 1962). before: samples that are in them.
 */
void dpt_error_sums_add(double *sums, int32_t width, int64_t before, const float *values,
                        const float *targets);
void dpt_scores_of_sums(struct dpt_scores *scores, const double *sums, int32_t width,
                        int64_t samples);

/* The index of the first one of the largest. */
int32_t dpt_argmax(const float *x, int32_t n);
/* The softmax of a row of logits; gives the first of the largest. */
int32_t dpt_softmax(const float *logits, int32_t n, float *out);
/* The sigmoid of each of a row of logits. */
void dpt_sigmoids(const float *logits, int32_t n, float *out);
/* Whether all of a row of outputs are finite. */
bool dpt_is_finite(const float *row, int32_t n);
/*
 * The log-odds of a class, log(p / (1 - p)), of a row of logits. They rank samples as its
 * probability p does, and go on where that rounds to 0 or 1: in fp32 from 17 on. sums: of this row.
 */
struct dpt_odds {
    int32_t best; /* the class of the first of the largest logits */
    double rest;  /* log of the sum of the powers of all others */
};
struct dpt_odds dpt_odds_sums(const float *logits, int32_t n);
double dpt_log_odds(const struct dpt_odds *sums, const float *logits, int32_t n, int32_t class);
/* Whether a label is said to hold: where its logit, which is its log-odds, is at least the
 * threshold or, without one (NAN), positive. */
static inline bool dpt_label_holds(float logit, double threshold)
{
    return threshold == threshold ? (double)logit >= threshold : logit > 0;
}

/* The class of a sample; of one whose target is a share of each class the largest one's, as
 * accuracy has it; of one with a single label 1 where that holds, else 0. */
int32_t dpt_class_of(const struct dpt_dataset *set, int64_t sample);
/* Whether a sample is of a class, or one of its labels holds. */
bool dpt_is_of(const struct dpt_dataset *set, int64_t sample, bool labels, int32_t class);

/* How wide a row is. all: it has the logits of all classes, unless they are too many to be kept; of
 * two classes it has them in any case. */
int32_t dpt_said_width(int32_t outputs, int64_t samples, bool all);
/* How wide a row of labels is, which are all kept; 0: these are too many, so that there are no
 * scores. */
int32_t dpt_said_labels_width(int32_t outputs, int64_t samples, bool all);
/* Writes the row of a sample. */
void dpt_said_put(const struct dpt_said *said, int64_t position, int32_t label,
                  const float *logits);
/* Counts the two classes of a set, or the class or label that was told: of all its samples, or of
 * those that a sampler walks. */
void dpt_positive_count(struct dpt_positive *positive, const struct dpt_dataset *set,
                        const struct dpt_sampler *sampler, bool labels);
/*
 * Computes the scores of classes, from what was said of the samples that a sampler walks in its
 * first epoch. positive: which of two classes is, or of more the one that was told. classes:
 * [outputs] zeroed, out. confusion: NULL, or [outputs][outputs] zeroed, out: the samples' weights,
 * true class by chosen one. Errors: RANK.
 */
enum dpt_status dpt_scores_classes(struct dpt_scores *scores, const struct dpt_dataset *set,
                                   const struct dpt_sampler *sampler, const struct dpt_said *said,
                                   const struct dpt_positive *positive,
                                   struct dpt_class_score *classes, double *confusion,
                                   struct dpt_error *err);

/*
 * Computes the scores of several labels at once, which hold where the targets are 0.5 or more, and
 * are said to where the logits are positive or, by thresholds, log-odds [outputs] or NULL, as
 * dpt_label_holds has it. positive: the one that was told, if any. labels: [outputs] zeroed, out:
 * each as a class of the samples for which it holds. Errors: RANK.
 */
enum dpt_status dpt_scores_labels(struct dpt_scores *scores, const struct dpt_dataset *set,
                                  const struct dpt_sampler *sampler, const struct dpt_said *said,
                                  const double *thresholds, const struct dpt_positive *positive,
                                  struct dpt_class_score *labels, struct dpt_error *err);

/* Of uneven classes, how many of the rarest one are found: words without an end. samples: what
 * these are, "these". */
void dpt_scores_uneven(const struct dpt_scores *scores, const struct dpt_called *called,
                       const char *samples, struct dpt_str *out);
/* "positive: ill (rarer, 37 of 768 training samples)", or "(as told, ...". split: of the evaluated
 * samples, "test". */
void dpt_positive_tell(const struct dpt_positive *positive, const struct dpt_called *called,
                       const char *split, struct dpt_str *out);

#endif

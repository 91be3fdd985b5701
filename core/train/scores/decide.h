/*
 * decide: chooses a class from probabilities by thresholds, instead of the largest.
 *
 * A class is chosen if its probability is at least its threshold; if several classes reach theirs,
 * the likeliest is chosen, and if none does, the likeliest of those without a threshold. In
 * multi-label models a label holds if its probability is at least its threshold. A model with a
 * single label, loss binary_cross_entropy and one output, has two classes here: 1, it holds, and 0.
 *
 * A precision-recall curve shows what each threshold of one class would give, so that a threshold
 * can be chosen by the required recall.
 */
#ifndef DPT_TRAIN_DECIDE_H
#define DPT_TRAIN_DECIDE_H

#include "core/base/memory.h"
#include "core/train/scores/scores.h"

/* A point of a curve: the result of a threshold that these log-odds, and all above, reach. */
struct dpt_curve_point {
    double odds;
    double precision, recall;
};

/* The curve of one class or label, by falling thresholds, so that recall does not fall; n 0: no
 * sample is of it. average_precision: the sum over the points of the recall that one adds times its
 * precision (scikit-learn's average_precision_score). */
struct dpt_curve {
    struct dpt_curve_point *at;
    int64_t n;
    double average_precision;
};

/* A threshold, and what it gives. */
struct dpt_operating_point {
    double threshold; /* a probability */
    double precision, recall;
};

/* Zero-initialise; close what was opened. */
struct dpt_decision {
    int32_t classes; /* or labels */
    bool labels;     /* multi-label: each holds or not */
    bool pair;       /* the two classes of a single label */
    bool decides;    /* there is a threshold */
    struct dpt_called called;
    double *threshold; /* [classes], probabilities as they are typed; NAN: none */
    double *odds;      /* [classes]: the thresholds as log-odds */
    double wished;     /* recall that a threshold must reach; 0: none is sought */
    struct dpt_operating_point found;
    struct dpt_region region;
};

/* outputs: the model's; labels: its loss is binary_cross_entropy. called: borrowed. Errors: RANK.
 */
enum dpt_status dpt_decision_open(struct dpt_decision *d, int32_t outputs, bool labels,
                                  const struct dpt_called *called, struct dpt_error *err);
void dpt_decision_close(struct dpt_decision *d);

/* Finds a class by its name, or else its number. option: the message begins with it. Errors: USAGE,
 * with the existing names; RANK. */
enum dpt_status dpt_decision_find(struct dpt_decision *d, const char *option, const char *name,
                                  int32_t *class, struct dpt_error *err);
/* Takes a threshold, "ill=0.1". Errors: USAGE, RANK. */
enum dpt_status dpt_decision_take(struct dpt_decision *d, const char *text, struct dpt_error *err);
/* Adds the thresholds as they are typed, with `between` between them: "ill=0.1". */
void dpt_decision_tell(const struct dpt_decision *d, const char *between, struct dpt_str *out);
/* Adds a class and its threshold as they are typed. */
void dpt_threshold_tell(const struct dpt_called *called, int32_t class, double threshold,
                        struct dpt_str *out);

/*
 * The smallest log-odds whose probability reaches a threshold as it is typed. If the threshold has
 * no more digits than a float32 is printed with, every probability that is printed as the threshold
 * or larger reaches it. With more digits it is compared exactly, so that thresholds near 1 can be
 * distinguished.
 */
double dpt_threshold_odds(double threshold);
/* The class of a row of logits, [classes]; -1: they are not all finite. */
int32_t dpt_decide(const struct dpt_decision *d, const float *logits);

/* The curve of one class, or label, from the outputs for the samples that a sampler walks in its
 * first epoch; release its `at` by dpt_free. said: with the logits. Errors: RANK. */
enum dpt_status dpt_curve_open(struct dpt_curve *curve, const struct dpt_dataset *set,
                               const struct dpt_sampler *sampler, const struct dpt_said *said,
                               bool labels, int32_t class, struct dpt_error *err);
/*
 * The largest threshold with at least this recall; n > 0. It lies a little below the probability of
 * a sample, so that the last bits of the probability do not matter. It has four digits, of the
 * probability or of its difference from 1, or as many as distinguish it from the next sample's.
 * Samples whose probabilities a double cannot distinguish are taken together.
 */
struct dpt_operating_point dpt_curve_find(const struct dpt_curve *curve, double recall);

#endif

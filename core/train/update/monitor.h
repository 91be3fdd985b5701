/*
 * monitor: the values of data.valid by which a run decides which checkpoint is the best, when it
 * stops early, and when the schedule `plateau` lowers the learning rate.
 *
 * The decisions depend only on the values and on struct dpt_watch, which checkpoints keep. All
 * ranks see the same values, so that all decide alike.
 */
#ifndef DPT_TRAIN_MONITOR_H
#define DPT_TRAIN_MONITOR_H

#include "core/backend/backend.h"
#include "core/base/str.h"
#include "core/state/checkpoint.h"
#include "core/train/scores/scores.h"

/* The loss, the accuracy, and every row of dpt_scores. For the first ones less is better. */
#define DPT_MONITORS_FALLING(X)                                                                    \
    X(DPT_MONITOR_LOSS, "valid.loss")                                                              \
    X(DPT_MONITOR_MAE, "valid.mae")                                                                \
    X(DPT_MONITOR_RMSE, "valid.rmse")
#define DPT_MONITORS_RISING(X)                                                                     \
    X(DPT_MONITOR_ACCURACY, "valid.accuracy")                                                      \
    X(DPT_MONITOR_R2, "valid.r2")                                                                  \
    X(DPT_MONITOR_LABEL_ACCURACY, "valid.label_accuracy")                                          \
    X(DPT_MONITOR_BALANCED_ACCURACY, "valid.balanced_accuracy")                                    \
    X(DPT_MONITOR_PRECISION, "valid.precision")                                                    \
    X(DPT_MONITOR_RECALL, "valid.recall")                                                          \
    X(DPT_MONITOR_F1, "valid.f1")                                                                  \
    X(DPT_MONITOR_ROC_AUC, "valid.roc_auc")                                                        \
    X(DPT_MONITOR_TOP5, "valid.top5_accuracy")
#define DPT_MONITORS(X)         DPT_MONITORS_FALLING(X) DPT_MONITORS_RISING(X)
#define DPT_MONITORS_OR_AUTO(X) DPT_MONITORS(X) X(DPT_MONITOR_AUTO, "auto")
#define DPT_MONITORS_OR_NONE(X) DPT_MONITORS(X) X(DPT_MONITOR_AUTO, "none")

/* AUTO: the accuracy or, if there is none, the loss; the first of equal values is best. */
enum dpt_monitor { DPT_MONITORS_OR_AUTO(DPT_LIST_NAME) DPT_MONITOR_COUNT };

/* When a value counts as better, and how long to wait for it. */
struct dpt_patience {
    int monitor;      /* enum dpt_monitor, not AUTO */
    int64_t patience; /* evaluations */
    double min_delta; /* improvements up to this size do not count */
    bool relative;    /* min_delta is a share of the best value */
};

/* "valid.loss". */
const char *dpt_monitor_name(int monitor);
/* The monitor of that name; AUTO: there is none. */
enum dpt_monitor dpt_monitor_find(const char *name);
/* Whether less is better. */
bool dpt_monitor_falls(int monitor);
/* Whether evaluations with such a loss give it. */
bool dpt_monitor_suits(int monitor, enum dpt_loss_kind loss);
/* The value; NAN: the evaluation does not give it. */
double dpt_monitor_value(int monitor, const struct dpt_metric_sums *sums,
                         const struct dpt_scores *scores);
/* Adds "valid.loss has not fallen below 0.123 for 10 evaluations", for a watch that has waited. */
void dpt_monitor_waits(int monitor, const struct dpt_watch *watch, struct dpt_str *out);

/* Begins to watch the value called `name`, unless the watch already has values of that name. */
void dpt_watch_begin(struct dpt_watch *watch, const char *name);
/*
 * Takes the value of the evaluation at `step` and returns whether it is the best so far.
 * Evaluations after the best one are counted until there is a better one. NAN is never better.
 * Source: the rule of PyTorch's ReduceLROnPlateau, in whose words min_delta is `threshold`.
 */
bool dpt_watch_take(struct dpt_watch *watch, const struct dpt_patience *how, double value,
                    int64_t step);

#endif

/*
 * evaluate: the loss and the scores of a split, and what a person calls them.
 */
#ifndef DPT_TRAIN_EVALUATE_H
#define DPT_TRAIN_EVALUATE_H

#include "core/train/trainer.h"

/* The most sums of micro-batches that an evaluation keeps at once, unless one step has more: what
 * each of them gave is added in their order, so all ranks get a window of steps' at a time. */
enum { DPT_EVALUATION_SUMS = 1 << 16 };

/* Collective. Finds which of two classes is the positive one, for an evaluation of a split, or
 * counts the one that was told: by the labels of data.train where they are open, or with
 * t->all_scores can be read; else by the split's. Does nothing for other models. */
void dpt_trainer_find_positive(struct dpt_trainer *t, const struct dpt_split *split);
/* Does what dpt_trainer_evaluate does, with the weights as they are, which may be an average
 * (train.ema). */
enum dpt_status dpt_evaluate_split(struct dpt_trainer *t, struct dpt_split *split,
                                   struct dpt_metric_sums *total, struct dpt_error *err);
/* Fails if samples of the last evaluation, which was of this split, have outputs that are not
 * finite: reports how many, and names the first. All ranks get the same result. Errors: FAILED. */
enum dpt_status dpt_trainer_check_outputs(const struct dpt_trainer *t,
                                          const struct dpt_split *split, struct dpt_error *err);
/* How many labels each sample has that hold or not; 0: it has a class or numbers. With t->decision
 * a single label is a class, one of two. */
int32_t dpt_trainer_labels(const struct dpt_trainer *t);
/* How many classes, or labels, an evaluation tells of. */
int32_t dpt_trainer_classes(const struct dpt_trainer *t);
/* What a person calls the accuracy: that all labels of a sample are right is "exact match". */
const char *dpt_trainer_accuracy_name(const struct dpt_trainer *t);
/* Adds what an evaluation of a split found, for a person: a line whose loss has so many digits. */
void dpt_trainer_tell(const struct dpt_trainer *t, const char *split,
                      const struct dpt_metric_sums *sums, const struct dpt_scores *scores,
                      int digits, struct dpt_str *out);

/* Makes room for the sums of every split. Errors: RANK. */
enum dpt_status dpt_trainer_open_evaluation(struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_evaluation(struct dpt_trainer *t);

#endif

/*
 * average: the exponential moving average of the weights (train.ema).
 *
 * It is the last of the trainer's slots, so it is divided, saved and resumed as those of the
 * optimizer are. It begins as the weights of the first step, and moves with each update
 * (optimizer.h). The running statistics of norms have no average: those of the weights serve both,
 * as with PyTorch's AveragedModel.
 */
#ifndef DPT_TRAIN_UPDATE_AVERAGE_H
#define DPT_TRAIN_UPDATE_AVERAGE_H

#include "core/train/trainer.h"

/* Whether the trainer keeps one: evaluations without training do not. */
bool dpt_average_is_kept(const struct dpt_trainer *t);
/* The share that a step's weights have in it; 0: there is none. */
double dpt_average_share(const struct dpt_trainer *t);
/* If no update was made yet, sets what this rank keeps of it to the weights, which may just have
 * been loaded. Engines call it with each refresh. */
void dpt_average_begin(struct dpt_trainer *t);
/*
 * Collective, after dpt_trainer_fetch. Exchanges the weights and their average on all ranks, so
 * that the average is what is evaluated; and once more, so that they are back where they were. All
 * that depends on the weights must be refreshed then. Errors: RANK.
 */
enum dpt_status dpt_average_exchange(struct dpt_trainer *t, struct dpt_error *err);

#endif

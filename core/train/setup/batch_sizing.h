/*
 * batch_sizing: how large a micro-batch is, and on how many threads a rank computes them.
 *
 * All of it follows from the job, the model, the number of ranks and the cores. The trainer's model
 * must be built. Nothing here changes the trainer; setup.c keeps what these functions give.
 */
#ifndef DPT_TRAIN_BATCH_SIZING_H
#define DPT_TRAIN_BATCH_SIZING_H

#include "core/train/trainer.h"

/* Samples that a team computes at once, at most. */
enum { DPT_MICRO_TEAM = 256 };

/* Whether a norm of the model takes the statistics of steps of more than one micro-batch. Follows
 * from the job and the model alone. */
bool dpt_trainer_synchronized(const struct dpt_trainer *t);
/* How many threads of a rank a step of the trainer's model can keep busy, at least 1. */
int dpt_trainer_useful_threads(const struct dpt_trainer *t);
/* Whether dptrain may choose the size of the micro-batch by the number of ranks and the machine:
 * the job does not give it, and it does not change the result, as it would under `reproducible` or
 * with a batch norm. */
bool dpt_trainer_micro_is_open(const struct dpt_trainer *t);
/* The size of a trainer's micro-batch. Where dptrain may not choose it, some ranks may be without
 * any. */
int32_t dpt_trainer_choose_micro(const struct dpt_trainer *t);
/* Collective over the node. *cores: out, the cores that this rank may use; those shared with other
 * ranks are divided among them. Errors: RANK. */
enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err);

/* The largest micro-batch with which every rank has one; 0: there are fewer samples than ranks. */
int64_t dpt_feeding_micro(int64_t global, int ranks);

#endif

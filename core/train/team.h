/*
 * team: the threads of a rank, and the work that they share.
 *
 * Functions that take a thread's number are called by that thread, the others by the main one,
 * which is thread 0.
 */
#ifndef DPT_TRAIN_TEAM_H
#define DPT_TRAIN_TEAM_H

#include "core/train/trainer.h"

/* Collective over the node. *cores: out, the cores that this rank may use; cores shared with other
 * ranks are divided among them. Errors: RANK. */
enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err);

/* Opens a buffer of `most` samples for each thread, and the pool, which stays until the trainer
 * closes. Errors: RANK. */
enum dpt_status dpt_trainer_open_team(struct dpt_trainer *t, int32_t most, struct dpt_error *err);
void dpt_trainer_close_team(struct dpt_trainer *t);

/* Runs `work` on every thread of the trainer. Errors: the first failure of its workers. */
enum dpt_status dpt_trainer_run(struct dpt_trainer *t, void (*work)(void *arg, int thread),
                                void *arg, struct dpt_error *err);
/* A barrier of the trainer's threads, for work that all of them do. */
void dpt_trainer_barrier(const struct dpt_trainer *t, int thread);

/* Turns a profile (core/trace/profile.h) on, or off (NULL), between two steps. p is borrowed. */
void dpt_trainer_observe(struct dpt_trainer *t, struct dpt_profile *p);

#endif

/*
 * device: training steps that a device takes in memory of its own.
 *
 * The device computes, adds up and updates by itself (core/backend/steps.h); a step costs the host
 * what it takes to say so. With several ranks each step's gradient comes to the host (or to a
 * CUDA-aware MPI) bucket by bucket, in the order in which backward finishes them; the thread that
 * steps sums them over the ranks with MPI_Allreduce, one by one, while the device computes the
 * next: it has nothing else to do meanwhile, so it is the communication thread. The ranks' flags
 * travel in the tail of the last bucket, as they do on host arenas.
 *
 * Not where somebody has to see each gradient on the host: under `reproducible` (its tree is
 * summed there), with log.hashes and log.trace, with a fault that strikes a gradient. Then the
 * device computes the gradients and all else is as for a CPU.
 *
 * Updates that are withheld, because something is not a number or the loss scale was too large,
 * have numbers too, and t->progress.updates counts them: the host does not know of them in time.
 */
#ifndef DPT_TRAIN_DEVICE_H
#define DPT_TRAIN_DEVICE_H

#include "core/train/trainer.h"

/* Whether this trainer's steps are taken so; its backend and data are chosen. */
bool dpt_device_wanted(const struct dpt_trainer *t);

/* Collective. Finds t->on_device, as comm.cuda_aware wants it, and t->aware. Errors: BAD_JOB, RANK.
 */
enum dpt_status dpt_device_choose_sums(struct dpt_trainer *t, struct dpt_error *err);

/* On this rank alone; the program is open. Errors: BAD_JOB (it does not fit), RANK. */
enum dpt_status dpt_device_open(struct dpt_trainer *t, struct dpt_error *err);
void dpt_device_close(struct dpt_trainer *t);

/* What dpt_trainer_step and dpt_trainer_refresh do. */
enum dpt_status dpt_device_step(struct dpt_trainer *t, struct dpt_step_result *result,
                                struct dpt_error *err);
enum dpt_status dpt_device_put(struct dpt_trainer *t, struct dpt_error *err);

#endif

/*
 * program: what the trainer's backend made of its model (backend.h), and with which kernels.
 *
 * Where a backend may compute the same in several ways, which differ in their bits, it says which
 * it took (t->model.plans). All ranks take rank 0's, and a run that goes on takes those of its
 * checkpoint, whatever would be chosen today: so neither another rank, nor a timing, nor a lost
 * cache changes the bytes of a run.
 */
#ifndef DPT_TRAIN_PROGRAM_H
#define DPT_TRAIN_PROGRAM_H

#include "core/train/trainer.h"

/* Opens t->model.program, on this rank, for t->team.group micro-batches of `leaf` samples; one that
 * is open is closed first. plans: to be taken where they can be had; NULL: none. Sets
 * t->model.plans, and after a failure t->model.too_large. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_trainer_open_program(struct dpt_trainer *t, int32_t leaf, const char *plans,
                                         struct dpt_error *err);
void dpt_trainer_close_program(struct dpt_trainer *t);

/*
 * Collective. Ranks whose plans are not these open their program, and what the engine has
 * attached to it, once more with them. plans: of rank 0; NULL or empty: all stays as it is. Where
 * something was attached dpt_trainer_refresh is to follow. Errors: BAD_JOB, RANK.
 */
enum dpt_status dpt_trainer_share_plans(struct dpt_trainer *t, const char *plans,
                                        struct dpt_error *err);

/* How many lines of `before` have others now; *total: of how many; name: for what the first of
 * them is, cut to `size` bytes. */
int dpt_plans_changed(const char *before, const char *now, int *total, char *name, size_t size);

#endif

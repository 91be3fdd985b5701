/*
 * lockstep: steps whose batch norms take the statistics of all their samples.
 *
 * All micro-batches of a step are under way at once, on all ranks: each goes forward to the first
 * such norm, then what the norm sums over them is exchanged, then each goes on to the next one; and
 * so backward. What a rank has for an exchange are the sums of the blocks of the tree over
 * micro-batch numbers (core/comm/tree.h) that are its own; each is a number on one rank and zero on
 * the others, so MPI's sum of them is exact, and all ranks join them in the same order: the same
 * bits on any number of ranks and threads. So is the gradient's sum, range by range of the nodes
 * between two norms: it needs no more buffers than in any other step (gradient_reduction.h,
 * `again`).
 *
 * Where the ranks take micro-batches in turn (parallel.shard: gradients) each of these is a block
 * of its own in an exchange, and backward goes through a range of nodes round by round, behind each
 * of which the owners add up their part of that range.
 *
 * A rank that fails takes part in what exchanges are left, with zeros, and says so with the step's
 * flags; one that does not come is named by the watchdog, and by the notes where it was.
 */
#ifndef DPT_TRAIN_LOCKSTEP_H
#define DPT_TRAIN_LOCKSTEP_H

#include "core/train/trainer.h"

struct dpt_lockstep;

/* For a trainer whose team.lockstep is set, on this rank. On failure *lockstep is to be closed.
 * Errors: RANK. */
enum dpt_status dpt_lockstep_open(struct dpt_lockstep **lockstep, struct dpt_trainer *t,
                                  struct dpt_error *err);
void dpt_lockstep_close(struct dpt_lockstep *lockstep);

/* How many norms there are, and the most that one exchange sums, in bytes, also of a trainer that
 * is only planned. */
void dpt_lockstep_count(const struct dpt_trainer *t, int32_t *norms, double *bytes);

/* Collective. Computes this rank's micro-batches of the step, whose gradients' sum has begun.
 * status: this rank's so far; where it failed, view is not read, and nothing is computed. Gives the
 * rank's own status, which the others do not know yet. Errors: as dpt_trainer_step's. */
enum dpt_status dpt_lockstep_compute(struct dpt_lockstep *lockstep,
                                     const struct dpt_step_view *view, enum dpt_status status,
                                     struct dpt_error *err);
/* Seconds of the last step that this rank spent in its exchanges. */
double dpt_lockstep_waited(const struct dpt_lockstep *lockstep);

#endif

/*
 * units: the model a part at a time, where each rank keeps only its slice of the weights
 * (parallel.shard: parameters).
 *
 * A unit is a range of the graph's nodes. The ranks take micro-batches in turn (engines/host.c),
 * and all go through the units at the same time, forward and back: a unit's weights are there for
 * its passes alone, and its gradient goes to the owners at once. Arenas keep the offsets of the
 * whole model; what is not there is address space. Where all ranks share one node the weights are
 * there once, in memory that they share, of which each owner writes its slice, so nothing is
 * gathered; the running statistics are node rank 0's then, and all read them. Otherwise a unit is
 * gathered by messages, and each rank has the statistics.
 *
 * A rank that failed, or has no micro-batch, takes part in all that is exchanged.
 */
#ifndef DPT_TRAIN_UNITS_H
#define DPT_TRAIN_UNITS_H

#include "core/train/pipeline.h"
#include "core/train/trainer.h"

/* Finds the units of a trainer whose model is built: sets t->units.n, .node and .edge, where the
 * job wants them. Errors: BAD_JOB (what does not go with it), RANK. */
enum dpt_status dpt_units_plan(struct dpt_trainer *t, struct dpt_error *err);
/* Floats of the largest one. */
size_t dpt_units_largest(const struct dpt_trainer *t);
/* Collective over the node, once the team and arenas are there, and before weights are in these:
 * where all ranks share one node, they get one arena of the parameters. Errors: RANK. */
enum dpt_status dpt_units_open(struct dpt_trainer *t, struct dpt_error *err);
void dpt_units_close(struct dpt_trainer *t);

/* Collective. Initialises the weights: each rank those that it owns, tensor by tensor. Errors:
 * RANK. */
enum dpt_status dpt_units_init(struct dpt_trainer *t, struct dpt_error *err);

/* Collective. Computes the micro-batches of a step, whose gradients' sum has begun. status: this
 * rank's so far; where it failed nothing is computed. *waited: added to, the seconds that it waited
 * for others. Gives the rank's own status, which the others do not know yet. Errors: as
 * dpt_trainer_step's. */
enum dpt_status dpt_units_compute(struct dpt_trainer *t, const struct dpt_step_view *view,
                                  enum dpt_status status, double *waited, struct dpt_error *err);

/* Collective. Forward as in evaluation over a step's micro-batches of a split. status, and what it
 * gives: as above; where it failed, only the split's step is read. */
enum dpt_status dpt_units_infer(struct dpt_trainer *t, const struct dpt_pipeline_pass *pass,
                                int64_t step, enum dpt_status status, struct dpt_error *err);

/* What a pipeline's stage does with its own units (pipeline.c). take, collective: makes a unit the
 * one that is computed, with its weights; status and *waited: as above. drop: gives back what its
 * passes needed, but for this rank's own weights. target: where its gradient goes for a thread that
 * takes micro-batches, as the address of what would be a whole one. */
enum dpt_status dpt_units_take(struct dpt_trainer *t, int unit, enum dpt_status status,
                               double *waited, struct dpt_error *err);
void dpt_units_drop(struct dpt_trainer *t);
float *dpt_units_target(struct dpt_trainer *t, int taker, bool *add);

/* Whether a unit begins with this node. */
bool dpt_units_begins(const struct dpt_trainer *t, int32_t node);

/* Whether this rank holds the model's state, and updates it. */
static inline bool dpt_units_has_state(const struct dpt_trainer *t)
{
    return t->units.n == 0 || t->units.gathers || dpt_trainer_replicas(t)->node.rank == 0;
}

#endif

/*
 * units: the weights of FSDP units (Zhao et al. 2023; `parallel.shard: parameters`).
 *
 * Each rank keeps only its slice of the weights, a unit's weights are there only during its passes,
 * and its gradient goes to the owners at once. The layout says which nodes are a unit. Arenas keep
 * the offsets of the whole model; what is not there is address space. If all ranks share one node,
 * the weights are there once, in memory that they share; each owner writes its slice, so nothing is
 * gathered; the running statistics are node rank 0's then, and all read them. Otherwise a unit is
 * gathered by messages, into one copy for the ranks of a node if they share memory, and each rank
 * has the statistics. Without slices, or where devices keep them (dpt_layout.sliced_there), each
 * rank has all weights, and these functions handle that case, too.
 */
#ifndef DPT_TRAIN_UNITS_H
#define DPT_TRAIN_UNITS_H

#include "core/train/trainer.h"

/* How many ranks keep slices of the weights; 1: each has all. */
static inline int dpt_units_owners(const struct dpt_trainer *t)
{
    return t->layout.sliced ? t->layout.owners : 1;
}
/* Memory for an arena: zeros or, if several owners divide it, address space, of which each uses its
 * part. NULL: there is no memory. close takes NULL, too. */
float *dpt_units_open_arena(size_t floats, int owners);
void dpt_units_close_arena(float *arena, size_t floats, int owners);
/* Makes t->arenas.params, or address space for it, where ranks hold it together. Errors: RANK. */
enum dpt_status dpt_units_open_params(struct dpt_trainer *t, struct dpt_error *err);
void dpt_units_close_params(struct dpt_trainer *t);
/* Collective over the node. To be called once the team and arenas are there, and before the arenas
 * hold weights. If all ranks that keep slices share one node, they get one arena of the
 * parameters. */
void dpt_units_open(struct dpt_trainer *t);
void dpt_units_close(struct dpt_trainer *t);

/* Collective. Gives all ranks the initial weights of the first replica or, with slices, gives each
 * rank those that it owns, tensor by tensor. Errors: RANK. */
enum dpt_status dpt_units_init(struct dpt_trainer *t, struct dpt_error *err);
/* Collective. If it is worth it, the ranks of a node share what the backend derives from the
 * weights (dpt_backend.share). Errors: RANK. */
enum dpt_status dpt_units_share(struct dpt_trainer *t, struct dpt_error *err);
/* Derives what the backend derives from all weights, on all threads. If units are gathered, each is
 * derived when it is gathered, and this does nothing. Errors: as the backend's refresh. */
enum dpt_status dpt_units_refresh(struct dpt_trainer *t, struct dpt_error *err);
/* The first float from which on all replicas hold the same parameters, each in an arena of its own:
 * 0; or, if each keeps a slice of the learned floats, their end; or, if all share one arena, its
 * end. */
size_t dpt_units_alike(const struct dpt_trainer *t);

/* Where the learned floats of the unit that is gathered, or of all, are read: an arena's begin. */
static inline const float *dpt_units_params(const struct dpt_trainer *t)
{
    return t->units.gathers ? t->units.unit : t->arenas.params;
}
/* These are for units that the reduction gathers (gradient_reduction.h). gather: collective.
 * derive: afterwards, on this rank, makes what the backend derives from the weights. release: frees
 * that. Errors: RANK. */
enum dpt_status dpt_units_gather(struct dpt_trainer *t, int unit, struct dpt_error *err);
enum dpt_status dpt_units_derive(struct dpt_trainer *t, int unit, struct dpt_error *err);
void dpt_units_release(struct dpt_trainer *t, int unit);

/* The begin of a whole gradient whose part for a unit is in the target of the reduction. The target
 * of an FSDP unit has room for only that unit, and held another unit's gradient before: so the
 * frozen floats are cleared. target: of the reduction, for this unit. */
float *dpt_units_gradient(const struct dpt_trainer *t, int unit, float *target);

/* Whether this rank holds the model's state, and updates it: one of those that share it does. */
static inline bool dpt_units_has_state(const struct dpt_trainer *t)
{
    return (t->units.weights.bytes == NULL && t->arenas.shared.bytes == NULL) ||
           dpt_trainer_replicas(t)->node.rank == 0;
}

#endif

/*
 * kept: which floats of the whole model a rank has, and which of them it keeps for others.
 *
 * Floats are numbered as in the arenas of the whole model, k as in state.h. All of a range [at,
 * end) are one tensor's.
 */
#ifndef DPT_TRAIN_KEPT_H
#define DPT_TRAIN_KEPT_H

#include "core/train/trainer.h"

/* The tensor that a float is of. */
int32_t dpt_graph_tensor_at(const struct dpt_graph *graph, size_t at);

/* How many replicas keep slices of an arena; 1: all have what the first one has. */
int dpt_trainer_owners(const struct dpt_trainer *t, int k);

/* Finds which of the floats this rank's part of the model has. *from: out, where the first of them
 * is. */
struct dpt_range dpt_trainer_part_floats(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                         float **from);

/* Who keeps floats: a replica of this rank's part of the model, and, of a tensor that all parts
 * have, the one of that part. */
struct dpt_keeper {
    int part, replica;
    bool shares; /* of learned floats that all replicas have each keeps an equal share, instead of
                    the first one all */
};

/* Finds which of the floats a rank keeps. *from: out, where the first of them is on this rank. */
struct dpt_range dpt_trainer_own_floats(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                        const struct dpt_keeper *keeper, float **from);

#endif

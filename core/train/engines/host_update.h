/*
 * host_update: what engines/host.c does with a step's summed gradient: its norm, and the update.
 *
 * In shards a rank updates what it owns, and all get it then; each rank writes its part of slots
 * that a node has once; a rank has its rows of divided layers.
 */
#ifndef DPT_TRAIN_ENGINES_HOST_UPDATE_H
#define DPT_TRAIN_ENGINES_HOST_UPDATE_H

#include "core/train/reduction/gradient_reduction.h"
#include "core/train/trainer.h"

struct dpt_host_update;

/* Opens the update, and fills t->reduction.chunks. The type of the reduction must be known. On
 * failure *update is to be closed. Errors: RANK. */
enum dpt_status dpt_host_update_open(struct dpt_host_update **update, struct dpt_trainer *t,
                                     struct dpt_error *err);
void dpt_host_update_close(struct dpt_host_update *update);

/* To be called before a step's micro-batches. */
void dpt_host_update_begin(struct dpt_host_update *update);

/* Adds the sum of squares of the reduced gradient (a sum over samples) to *sum, which is not finite
 * then if any element is not. All ranks get the same bits. Collective if layers are divided.
 * Errors: RANK. */
enum dpt_status dpt_host_update_squares(struct dpt_host_update *update, double *sum,
                                        struct dpt_error *err);
/* Collective. Updates all parameters. Errors: RANK. */
enum dpt_status dpt_host_update_weights(struct dpt_host_update *update,
                                        const struct dpt_update *how, struct dpt_error *err);

#endif

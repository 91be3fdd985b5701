/*
 * tensor_parallel: dense layers that several ranks divide (parallel.tensor).
 *
 * The ranks of t->mesh.tensor_group take the same micro-batches. Each has some rows of a divided
 * layer's weights, that is outputs (dpt_graph_node.own_outputs), with their gradient and slots. It
 * computes these outputs over all inputs, and all ranks then exchange them. Backward is alike: each
 * rank computes the gradient of some inputs over all outputs, with a copy of those columns of the
 * weights that is derived again after each update. No sum is divided, so the result is
 * byte-identical to that of one rank (unlike Shoeybi et al. 2019, Megatron-LM, where every second
 * layer is divided by inputs, and sums are added up over the ranks). Narrow layers, convolutions
 * and biases are on all.
 *
 * A rank sends, for each micro-batch of m samples, (ranks - 1) / ranks m (outputs + inputs) floats
 * of each divided layer, its inputs only if their gradient is needed, and for the columns of P
 * weights P (ranks - 1) / ranks^2 per step.
 */
#ifndef DPT_TRAIN_TENSOR_PARALLEL_H
#define DPT_TRAIN_TENSOR_PARALLEL_H

#include "core/train/trainer.h"

struct dpt_tensor_parallel;

/* Collective over t->mesh.tensor_group, for a trainer whose program is open. If no layer is divided
 * *divided stays NULL, which the functions below take and then do nothing. On failure *divided is
 * to be closed. Errors: RANK. */
enum dpt_status dpt_tensor_parallel_open(struct dpt_tensor_parallel **divided,
                                         struct dpt_trainer *t, struct dpt_error *err);
/* Collective. */
void dpt_tensor_parallel_close(struct dpt_tensor_parallel *divided);

/* What the passes of a micro-batch take. */
const struct dpt_divided *dpt_tensor_parallel_passes(const struct dpt_tensor_parallel *divided);
/* The first failure of an exchange since the last call. Errors: RANK. */
enum dpt_status dpt_tensor_parallel_status(struct dpt_tensor_parallel *divided,
                                           struct dpt_error *err);
/* Collective. Derives the columns of all nodes, whose weights have changed. With FSDP units
 * (units.h) columns are not kept, and this does nothing. Errors: RANK. */
enum dpt_status dpt_tensor_parallel_refresh(struct dpt_tensor_parallel *divided,
                                            struct dpt_error *err);
/* derive: collective, derives the columns of nodes [first, last), which are an FSDP unit's, before
 * the unit goes back. release: gives back their memory afterwards. Columns that are kept stay as
 * they are. Errors: RANK. */
enum dpt_status dpt_tensor_parallel_derive(struct dpt_tensor_parallel *divided, int32_t first,
                                           int32_t last, struct dpt_error *err);
void dpt_tensor_parallel_release(struct dpt_tensor_parallel *divided, int32_t first, int32_t last);

/*
 * Collective. Takes sums over the *n chunks of this rank's tensors, `each` per chunk (up to
 * DPT_OPTIMIZER_SQUARES), and gives the sums of all ranks' chunks in their order, which last until
 * the next call. Errors: RANK.
 */
enum dpt_status dpt_tensor_parallel_chunks(struct dpt_tensor_parallel *divided, int each,
                                           const double **sums, size_t *n, struct dpt_error *err);

/* Gives how many bytes a rank of the stage has by itself, how many the ranks of a node share, and
 * how many a rank sends per step. */
void dpt_tensor_parallel_bytes(const struct dpt_layout *layout,
                               const struct dpt_layout_stage *stage, double *own, double *shared,
                               double *sent);

#endif

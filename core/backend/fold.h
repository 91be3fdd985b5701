/*
 * fold: batch norms as part of the weights before them, for evaluation.
 *
 * By its running statistics a batch norm is a factor and a shift for each channel. A convolution or
 * dense layer in front of it whose values nobody else reads can take both into its weights and
 * bias. What comes out differs from the two computed one after the other by rounding alone.
 */
#ifndef DPT_BACKEND_FOLD_H
#define DPT_BACKEND_FOLD_H

#include "core/backend/graph.h"

/* The convolution or dense layer that batch norm i of a graph can be folded into; -1: there is
 * none, or i is another kind of node. */
int32_t dpt_fold_target(const struct dpt_graph *graph, int32_t i);

/* Writes weights in canonical order and bias, an entry each channel, of `before` with `norm`, which
 * reads it, folded in. params: an arena of the graph. */
void dpt_fold(const struct dpt_graph *graph, const struct dpt_graph_node *before,
              const struct dpt_graph_node *norm, const float *params, float *weights, float *bias);

/*
 * A graph without the batch norms that can be folded, and its arena; layers that had no bias get
 * one.
 *
 * params: an arena of `graph`. *folded, *arena: out, to be released with dpt_graph_release and
 * dpt_free. *n: out, how many batch norms are gone. Errors: RANK; then nothing is to be released.
 */
enum dpt_status dpt_fold_graph(const struct dpt_graph *graph, const float *params,
                               struct dpt_graph *folded, float **arena, int32_t *n,
                               struct dpt_error *err);

#endif

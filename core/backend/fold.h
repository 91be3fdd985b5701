/*
 * fold: folds batch norms into the weights before them, for evaluation and export.
 *
 * With its running statistics a batch norm is a factor and a shift for each channel. A convolution
 * or dense layer before it, whose output nothing else reads, can include both in its weights and
 * bias. The result differs from that of the two layers by rounding only.
 */
#ifndef DPT_BACKEND_FOLD_H
#define DPT_BACKEND_FOLD_H

#include "core/backend/graph.h"

/* The number of the convolution or dense layer into which batch norm i of a graph can be folded;
 * -1: there is none, or i is no batch norm. */
int32_t dpt_fold_target(const struct dpt_graph *graph, int32_t i);

/* Writes the weights (canonical order) and the bias (one entry per channel) of `before` with
 * `norm`, which reads it, folded in. params, state: arenas of the graph; the learned tensors are
 * read in the first, the others in the second. */
void dpt_fold(const struct dpt_graph *graph, const struct dpt_graph_node *before,
              const struct dpt_graph_node *norm, const float *params, const float *state,
              float *weights, float *bias);

/*
 * Copies a graph without the batch norms that can be folded, and its arena; layers without a bias
 * get one.
 *
 * params: an arena of `graph`. *folded, *arena: out, to be released with dpt_graph_release and
 * dpt_free. *n: out, how many batch norms were folded. Errors: RANK; then there is nothing to
 * release.
 */
enum dpt_status dpt_fold_graph(const struct dpt_graph *graph, const float *params,
                               struct dpt_graph *folded, float **arena, int32_t *n,
                               struct dpt_error *err);

#endif

/*
 * norm_sums: what synchronized batch norms sum over the micro-batches of a step.
 *
 * Each channel has two doubles, [2][channels]. Forward: the mean, and the sum of the squares of the
 * differences from it; backward: the sum of dy, and of dy times the normalised value. The sums of a
 * run of micro-batches are made from those of its halves, along the tree over the numbers of the
 * step's micro-batches (core/comm/sums/tree.h), so their bits do not depend on which rank computes
 * what. Nothing here communicates or allocates.
 */
#ifndef DPT_BACKEND_NORM_SUMS_H
#define DPT_BACKEND_NORM_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "core/backend/graph.h"
#include "core/comm/sums/tree.h"

/* The kind of a channel's two sums. */
enum dpt_norm_kind { DPT_NORM_MOMENTS, DPT_NORM_GRADIENTS };

/* A run that grows to the right: the blocks of the tree that stand for it, as struct dpt_tree has
 * them, each with its sums. */
struct dpt_norm_sums {
    enum dpt_norm_kind kind;
    size_t channels;
    int64_t pixels;                 /* numbers of a channel in a sample */
    int32_t micro, samples;         /* of a micro-batch, and of the step */
    struct dpt_tree tree;           /* without values */
    double *value[DPT_TREE_BLOCKS]; /* borrowed */
};

/* Begins with no blocks. shape: what the norm gets. */
void dpt_norm_sums_begin(struct dpt_norm_sums *sums, enum dpt_norm_kind kind,
                         const struct dpt_shape *shape, int32_t micro, int32_t samples);

/* Appends the next block to the right, a micro-batch or a run of them. value: borrowed; if blocks
 * merge, the left one's becomes that of both. */
void dpt_norm_sums_push(struct dpt_norm_sums *sums, struct dpt_block block, double *value);

#endif

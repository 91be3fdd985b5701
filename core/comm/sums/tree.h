/*
 * tree: one fixed order of adding.
 *
 * Floating-point sums depend on their order, so an order is fixed: the binary tree over the numbers
 * 0 … total-1 whose nodes are the aligned runs of powers of two, [k 2^l, (k+1) 2^l), cut off at
 * `total`; a node's value is that of its left child plus that of its right child, or the left
 * child's alone where the right one is empty. Whoever computes which leaves, the values of nodes
 * are the same bits. A contiguous run of leaves is known by the values of O(log total) nodes, its
 * blocks; joined with its neighbours' blocks they merge further, until one is left. Nothing here
 * communicates.
 */
#ifndef DPT_COMM_TREE_H
#define DPT_COMM_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At most this many blocks stand for one contiguous run of leaves. */
enum { DPT_TREE_BLOCKS = 64 };

/* The node of the leaves [begin, begin + 2^level), cut off at the total. */
struct dpt_block {
    int32_t begin, level;
};

/* Neighbouring blocks from left to right, none of which can be merged, each with a pointer to its
 * value. */
struct dpt_tree {
    int32_t total;
    int n;
    struct dpt_block block[DPT_TREE_BLOCKS];
    float *value[DPT_TREE_BLOCKS]; /* borrowed */
};

/* Begins with no blocks. */
void dpt_tree_begin(struct dpt_tree *tree, int32_t total);

/*
 * Appends the next block to the right; value: its n floats. Where blocks merge, the left block's
 * value becomes the sum, and the right block's buffer is free again: `released` (at least
 * DPT_TREE_BLOCKS entries, or NULL) gets those buffers, *n_released their number.
 */
void dpt_tree_push(struct dpt_tree *tree, struct dpt_block block, float *value, size_t n,
                   float **released, int *n_released);

/* Adds n floats to others. */
void dpt_tree_add(float *restrict to, const float *restrict from, size_t n);

/* The blocks that stand for the leaves first … last-1 of `total`; returns how many. blocks: at
 * least DPT_TREE_BLOCKS. */
int dpt_tree_blocks(int32_t first, int32_t last, int32_t total, struct dpt_block *blocks);

/* Which leaves ranks have: rank r has first[r] … first[r+1]-1 of first[ranks], or, round-robin, in
 * round k number k x ranks + r, as long as there are any. */
struct dpt_tree_division {
    const int32_t *first; /* [ranks + 1]; borrowed */
    int ranks;
    bool round_robin;
};

/* The rounds; 1 unless they are taken round-robin. */
int32_t dpt_tree_rounds(const struct dpt_tree_division *d);
/* The blocks of what ranks begin … end-1 have in a round; returns how many. */
int dpt_tree_blocks_of(const struct dpt_tree_division *d, int32_t round, int begin, int end,
                       struct dpt_block *blocks);

/* The most blocks that stand for leaves first … i-1, for any leaf i of first … last-1. */
int dpt_tree_most(int32_t first, int32_t last, int32_t total);

#endif

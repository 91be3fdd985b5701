#include "core/comm/sums/tree.h"

/* The level of a node that covers all numbers of an int32_t. */
enum { TOP = 30 };

void dpt_tree_begin(struct dpt_tree *tree, int32_t total)
{
    tree->total = total;
    tree->n = 0;
}

/* A node whose right sibling is empty has its parent's value, so it is replaced by its parent as
 * long as that holds. */
static void rise(struct dpt_block *b, int32_t total)
{
    while (b->level < TOP && (b->begin & ((INT64_C(2) << b->level) - 1)) == 0 &&
           b->begin + (INT64_C(1) << b->level) >= total)
        b->level++;
}

/* Whether b is the right sibling of a. Where b begins decides how far it has risen, so their levels
 * are equal then. */
static bool are_siblings(const struct dpt_block *a, const struct dpt_block *b)
{
    return a->level == b->level && (a->begin & ((INT64_C(2) << a->level) - 1)) == 0 &&
           a->begin + (INT64_C(1) << a->level) == b->begin;
}

void dpt_tree_add(float *restrict to, const float *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
}

void dpt_tree_push(struct dpt_tree *tree, struct dpt_block block, float *value, size_t n,
                   float **released, int *n_released)
{
    int free = 0;

    rise(&block, tree->total);
    while (tree->n > 0 && are_siblings(&tree->block[tree->n - 1], &block)) {
        tree->n--;
        dpt_tree_add(tree->value[tree->n], value, n);
        if (released != NULL)
            released[free] = value;
        free++;
        block = tree->block[tree->n];
        value = tree->value[tree->n];
        block.level++;
        rise(&block, tree->total);
    }
    tree->block[tree->n] = block;
    tree->value[tree->n++] = value;
    if (n_released != NULL)
        *n_released = free;
}

int dpt_tree_blocks(int32_t first, int32_t last, int32_t total, struct dpt_block *blocks)
{
    struct dpt_tree tree;

    dpt_tree_begin(&tree, total);
    for (int32_t at = first; at < last;) {
        struct dpt_block b = {at, 0};

        /* The largest aligned run that begins here and does not pass `last`. */
        while (b.level < TOP && (at & ((INT64_C(2) << b.level) - 1)) == 0 &&
               at + (INT64_C(2) << b.level) <= last)
            b.level++;
        at += (int32_t)(INT64_C(1) << b.level);
        dpt_tree_push(&tree, b, NULL, 0, NULL, NULL);
    }
    for (int i = 0; i < tree.n; i++)
        blocks[i] = tree.block[i];
    return tree.n;
}

int32_t dpt_tree_rounds(const struct dpt_tree_division *d)
{
    return d->round_robin ? (d->first[d->ranks] + d->ranks - 1) / d->ranks : 1;
}

int dpt_tree_blocks_of(const struct dpt_tree_division *d, int32_t round, int begin, int end,
                       struct dpt_block *blocks)
{
    const int64_t all = d->first[d->ranks], first = (int64_t)round * d->ranks + begin,
                  last = (int64_t)round * d->ranks + end;

    if (!d->round_robin)
        return dpt_tree_blocks(d->first[begin], d->first[end], (int32_t)all, blocks);
    return dpt_tree_blocks((int32_t)(first < all ? first : all), (int32_t)(last < all ? last : all),
                           (int32_t)all, blocks);
}

int dpt_tree_most(int32_t first, int32_t last, int32_t total)
{
    struct dpt_tree tree;
    int most = 0;

    dpt_tree_begin(&tree, total);
    for (int32_t i = first; i < last; i++) {
        most = tree.n > most ? tree.n : most;
        dpt_tree_push(&tree, (struct dpt_block){i, 0}, NULL, 0, NULL, NULL);
    }
    return most;
}

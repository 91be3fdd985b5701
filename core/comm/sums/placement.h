/*
 * placement: on which host each partial sum of the tree is made, so that few of them travel.
 *
 * The hosts (each the ranks that share memory) know the values of some nodes of the tree, their
 * blocks; the sums of neighbouring nodes lead from there to the root, which one host, the owner,
 * wants. A partial sum is made on a host that has one of its two operands; the other one may have
 * to travel there. Which placement lets the fewest travel is the small parsimony problem of
 * phylogenetics, on a tree whose leaves have their host as label. Sankoff's algorithm (SIAM J.
 * Appl. Math. 28, 1975) solves it exactly: from the leaves up, what a node costs on each host that
 * has one of its leaves; from the root down, the cheapest. So no way of adding along this tree
 * sends less: SCALE.md has what that comes to.
 *
 * Each owner's slice of the sum has a placement of its own. Where all hosts have one block each,
 * and there are 2^k hosts, the placements are those of recursive halving (Rabenseifner 2004).
 * Elsewhere some hosts would send more than others: what a host has sent and received so far, for
 * the owners before, then raises its price.
 *
 * Nothing here communicates, and all is integers: hosts of different processors find the same.
 */
#ifndef DPT_COMM_PLACEMENT_H
#define DPT_COMM_PLACEMENT_H

#include "core/base/error.h"
#include "core/comm/sums/tree.h"

/* The value of a node of the tree. Operands come before their sum. */
struct dpt_partial {
    int left, right; /* operands; -1: a host's block */
    int phase;       /* 0 of a block, else one more than that of both operands */
    int where;       /* host: for the owner that was placed last; of a block always */
    int block;       /* which one of its host's */
    size_t at;       /* in `hosts` and `cost`: its first one */
    int n;           /* hosts that have one of its leaves */
    int64_t least;   /* cost where it is sent from the host from which that is cheapest */
};

struct dpt_placement {
    int hosts;
    struct dpt_partial *partials;
    int n, phases;            /* the last partial is the root */
    int *sums, n_sums;        /* the partials with operands that are placed, rising */
    int *host;                /* of every partial the hosts on which it may be made, rising */
    int64_t *cost;            /* of each of those */
    int64_t *sent, *received; /* [hosts]: values, for all owners so far */
    bool priced, at_owner;
};

/* A host's block. */
struct dpt_placement_block {
    struct dpt_block block;
    int host, index; /* which one of the host's */
};

/* blocks: n of them, at least 1, from left to right, which cover the tree's `total` leaves.
 * Errors: RANK. */
enum dpt_status dpt_placement_open(struct dpt_placement *p, int hosts,
                                   const struct dpt_placement_block *blocks, int n, int32_t total,
                                   struct dpt_error *err);
/* Closes what open has made, also part of it. */
void dpt_placement_close(struct dpt_placement *p);

/* Chooses whether what was sent raises prices: where the busiest host sends and receives less
 * then. at_owner: the root is made on the owner if it has a
 * leaf. */
void dpt_placement_begin(struct dpt_placement *p, bool at_owner);
/* From here on places only the sums that have a leaf of this host, and their operands: the host has
 * to do with no other. So what all owners' slices cost it grows with the hosts, not with their
 * square; but where prices are in use, which depend on all that is sent, all are placed. */
void dpt_placement_only(struct dpt_placement *p, int host);
/* Places the partials for one owner's slice. To be called for all hosts in rising order. */
void dpt_placement_place(struct dpt_placement *p, int owner);

#endif

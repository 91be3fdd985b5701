/*
 * internode: sums between hosts, the ranks that share memory, and what comes back of them.
 *
 * The floats of a sum are cut into slices, one that each rank owns. On every host one rank handles
 * a slice: the one whose number there is that of the owner. So all ranks of a host exchange their
 * share with those of other hosts, and between two hosts no float travels twice: the partial sums
 * are made where placement.h says, and the owners' floats go back along a placement of one block a
 * host. All is planned before the first sum. On 2^k hosts with one block each it is recursive
 * halving, and recursive doubling the way back (Rabenseifner 2004).
 *
 * Messages have at most PIECE floats, and a rank has SLOTS of them under way: it adds one while the
 * next arrives, in as little memory, however large the sum is.
 */
#ifndef DPT_COMM_INTERNODE_H
#define DPT_COMM_INTERNODE_H

#include "core/comm/comm.h"

struct dpt_internode;

/* Collective over comm->world. *nodes: whether the hosts are to be comm's nodes, else each rank is
 * one by itself; false afterwards where the ranks of some node do not follow each other, which
 * would tear their leaves apart. Errors: RANK. */
enum dpt_status dpt_internode_open(struct dpt_internode **internode, const struct dpt_comm *comm,
                                   bool *nodes, struct dpt_error *err);
void dpt_internode_close(struct dpt_internode *internode);

/* The first rank of this host, and that of the next. */
void dpt_internode_members(const struct dpt_internode *internode, int *first, int *end);
/* The number of the slice that a rank owns; slices are cut in the order of their numbers. */
int dpt_internode_slice_of(const struct dpt_internode *internode, int rank);
/* Whether this rank handles a slice on its host. */
bool dpt_internode_handles(const struct dpt_internode *internode, int slice);

/* About how many floats a rank receives into before it adds them, of a sum of n. */
double dpt_internode_floats(double n);

/* Plans sums in which rank r has the leaves from first[r] to first[r + 1] of a tree; NULL: in which
 * each host has one leaf. cut: [ranks + 1] the floats at which slices begin, the same in all calls;
 * a sum may also be of fewer floats that are cut alike. The plans of the last two calls stay.
 * Errors: RANK. */
enum dpt_status dpt_internode_plan(struct dpt_internode *internode, const int32_t *first,
                                   const size_t *cut, struct dpt_error *err);
/*
 * Collective. value: of each of this host's blocks, from left to right, where float 0 of the sum
 * would be; this rank uses the slices that it handles, and what is in them is lost. result: gets
 * the slice that this rank owns, in its place. Errors: RANK.
 */
enum dpt_status dpt_internode_sum(struct dpt_internode *internode, const int32_t *first,
                                  const size_t *cut, float *const *value, float *result,
                                  struct dpt_error *err);
/* Collective. Gives each host all owners' slices of x, of floats begin … end-1: this rank gets
 * those that it handles. Errors: RANK. */
enum dpt_status dpt_internode_gather(struct dpt_internode *internode, const size_t *cut, float *x,
                                     size_t begin, size_t end, struct dpt_error *err);

#endif

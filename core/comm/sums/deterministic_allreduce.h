/*
 * deterministic_allreduce: the sum over all ranks' micro-batches along the fixed tree (tree.h),
 * with the same bits for any number of ranks.
 *
 * Each rank has the values of its blocks: one block where each rank has the same power of two
 * of micro-batches, else a few. The ranks of a node have them in memory that they share from the
 * start (dpt_deterministic_buffer): each rank reads the others' slices in place and writes the sum
 * where all read it. Nothing is sent on one node. Several nodes, or ranks that cannot share memory,
 * exchange what is left of their blocks (internode.h, SCALE.md).
 *
 * Measured against the alternatives, microseconds per sum (core/comm/tests/bench_allreduce.c, Open
 * MPI 4.1.4, 2 ranks on 2 cores, medians, the fastest of three sittings; `hierarchy` is
 * hierarchical_allreduce.h):
 *
 *        floats | allreduce  hierarchy | window  messages  doubling | fixed point
 *            32 |      0.61       0.12 |   0.27      1.29      0.55 |        1.36
 *         1 024 |      2.82       0.20 |   0.34      2.82      2.39 |        8.20
 *        60 362 |        74          4 |      6        67        68 |         524
 *       421 642 |       373         42 |     50       375       441 |       2 621
 *    25 000 000 |    80 547      7 866 | 11 258    40 909    50 367 |     244 326
 *
 * So the window is used on a node: it is 7 times as fast as MPI_Allreduce, which has to copy.
 * Messages are used between nodes: they are at least as fast as MPI_Allreduce and work for any
 * number of ranks and any partition, while recursive doubling sends the whole array log2(ranks)
 * times and keeps the tree's order for powers of two only. Sums in 64-bit fixed point by
 * MPI_Allreduce would need no tree, but take two conversions, twice the bytes and another
 * collective for the common exponent: 3 to 7 times as long, and whatever is below 2^-52 of the
 * largest element is lost.
 */
#ifndef DPT_COMM_DETERMINISTIC_ALLREDUCE_H
#define DPT_COMM_DETERMINISTIC_ALLREDUCE_H

#include "core/base/pool.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/comm.h"
#include "core/comm/sums/tree.h"

/* At most this many words are published with a sum. */
enum { DPT_DETERMINISTIC_WORDS = 8 };

enum dpt_deterministic_way {
    DPT_DETERMINISTIC_AUTO,
    DPT_DETERMINISTIC_WINDOW,
    DPT_DETERMINISTIC_MESSAGES
};

struct dpt_deterministic_allreduce;

struct dpt_deterministic_spec {
    size_t n;    /* floats of a sum, the same on all ranks */
    int buffers; /* that this rank wants, the threads' together */
    enum dpt_deterministic_way way;
    bool spin; /* every thread of the node has a core of its own: waiting may be active */
    /* The chunks of the sum's first floats, whose sums of squares are wanted where they cost
     * little; borrowed. {0}: none are wanted. */
    struct dpt_chunks chunks;
    /* With several ranks each one keeps a slice of the sum, of whole chunks, and the ranks share
     * what the caller makes of it (dpt_deterministic_share). */
    bool sharded;
    bool keeps_sum; /* in shards without rounds: all ranks get the sum all the same */
    /* Rounds: the ranks take micro-batches round-robin, `buffers` of them each, so that a slice's
     * sum grows from left to right, and nobody holds more than the owner's part of it
     * (dpt_deterministic_round). The chunks' floats are added unit by unit: unit k has those from
     * unit[k] to unit[k + 1], and a buffer has room for one unit at a time, or, `whole`, for all,
     * each in its place. leaves: the most of a sum; 2^level of them are given at once. 0 units:
     * there are no rounds. */
    const size_t *unit;
    int units, level;
    bool whole;
    int32_t leaves;
    bool gathers; /* units are gathered, too (dpt_deterministic_gather_unit) */
};

/* Collective over comm->world. AUTO chooses windows if there is enough memory that ranks of a node
 * can share, else messages between all ranks. Errors: RANK. */
enum dpt_status dpt_deterministic_open(struct dpt_deterministic_allreduce **allreduce,
                                       const struct dpt_comm *comm,
                                       const struct dpt_deterministic_spec *spec,
                                       struct dpt_error *err);
/* Collective. */
void dpt_deterministic_close(struct dpt_deterministic_allreduce *allreduce);

/* One of this rank's buffers, n floats aligned to a cache line; and the buffer in which the sum
 * will be, which ranks may share. */
float *dpt_deterministic_buffer(const struct dpt_deterministic_allreduce *allreduce, int i);
float *dpt_deterministic_result(const struct dpt_deterministic_allreduce *allreduce);

/* The sums of squares of the chunks, valid as long as the sum. NULL: they are not computed here,
 * and the caller computes them itself. */
const double *
dpt_deterministic_sums_of_squares(const struct dpt_deterministic_allreduce *allreduce);

/* Allocates what sums over these runs of leaves (as for dpt_deterministic_sum) need, so that a sum
 * allocates nothing. Errors: RANK. */
enum dpt_status dpt_deterministic_reserve(struct dpt_deterministic_allreduce *allreduce,
                                          const int32_t *first, struct dpt_error *err);

/*
 * Collective, before each sum. Publishes this rank's blocks, whose values lie in buffers of the
 * allreduce and must not change from now on, and n words: word_sums gets their sums over the ranks.
 * If these tell them to, all ranks together may skip the sum of the blocks; they must not sum
 * anything after that. Errors: RANK.
 */
enum dpt_status dpt_deterministic_publish(struct dpt_deterministic_allreduce *allreduce,
                                          const struct dpt_tree *mine, const float *words,
                                          float *word_sums, int n, struct dpt_error *err);

/*
 * Collective. mine: as it was published. first: [ranks + 1] the leaf at which each rank's run
 * begins; the last entry is the total of `mine`. The sum is in dpt_deterministic_result until the
 * next sum's beginning; the buffers' contents are lost. In shards only what is after the chunks is
 * there, unless spec.keeps_sum, and this rank's slice is in dpt_deterministic_slice_sum, until
 * dpt_deterministic_share; the sums of squares are those of all chunks. Errors: RANK.
 */
enum dpt_status dpt_deterministic_sum(struct dpt_deterministic_allreduce *allreduce,
                                      const struct dpt_tree *mine, const int32_t *first,
                                      struct dpt_error *err);

/* --- shards ----------------------------------------------------------------------------------- */

/*
 * A sum of shards in rounds, in place of dpt_deterministic_publish and _sum: begin, then round
 * after round of each unit, and of number `units`, which is what is after the chunks; then the end,
 * after which all is as dpt_deterministic_sum leaves it. In a round buffer w of rank r has the
 * value of the leaves from b 2^level on, b = (round ranks + r) buffers + w, 2^level of them or up
 * to the last, and nothing where there are none; it may change as soon as the round returns. The
 * units may go through their rounds one after another as well. Collective but for begin. Errors:
 * RANK.
 */
void dpt_deterministic_begin(struct dpt_deterministic_allreduce *allreduce, int32_t leaves);
enum dpt_status dpt_deterministic_round(struct dpt_deterministic_allreduce *allreduce,
                                        int32_t round, int unit, struct dpt_error *err);
enum dpt_status dpt_deterministic_end(struct dpt_deterministic_allreduce *allreduce,
                                      struct dpt_error *err);
/* Where in a buffer the floats after the chunks are; a unit's are at its beginning, or, `whole`,
 * where they are in all. */
size_t dpt_deterministic_rest(const struct dpt_deterministic_allreduce *allreduce);

/* About how many floats a rank has for it: the owner's part of blocks; its buffers; and, where not
 * all ranks are on one node, what is received at a time. */
void dpt_deterministic_round_robin_floats(int ranks, const struct dpt_deterministic_spec *spec,
                                          double *store, double *buffers, double *received);

/* What one rank owns: floats, and which chunks they are. */
struct dpt_slice {
    size_t begin, end;  /* floats */
    size_t first, last; /* chunks */
};
/* A rank has a slice of each of so many ranges: of all floats, or, in rounds of ranks that do not
 * share memory, of each unit, so that all owners give as much when a unit is summed or gathered. */
int dpt_deterministic_ranges(const struct dpt_deterministic_allreduce *allreduce);
struct dpt_slice dpt_deterministic_slice(const struct dpt_deterministic_allreduce *allreduce,
                                         int rank, int range);

/* The last sum, of which this rank's slice of a range is there. */
const float *dpt_deterministic_slice_sum(const struct dpt_deterministic_allreduce *allreduce,
                                         int range);

/* If the ranks share memory: the place where a rank writes its slice for the others, past the
 * caches (core/base/nontemporal.h) and fenced, before dpt_deterministic_share; else NULL. With
 * rounds it is a rank's first buffer, which has all weights after dpt_deterministic_share. */
float *dpt_deterministic_weights(const struct dpt_deterministic_allreduce *allreduce);
/* Collective. Gives all ranks the owners' slices of x, which is as long as what is in chunks: each
 * rank's own are there. pool: the threads that copy. Errors: RANK. */
enum dpt_status dpt_deterministic_share(struct dpt_deterministic_allreduce *allreduce, float *x,
                                        struct dpt_pool *pool, struct dpt_error *err);
/* Collective, for rounds with spec.gathers. Gives all ranks the floats of one unit, of which each
 * has its own in `own`. They are there until the next call; ranks that share memory have one copy,
 * which they may only read, and each rank of a node receives a part of it. Returns where
 * float 0 of all would be. Errors: RANK. */
enum dpt_status dpt_deterministic_gather_unit(struct dpt_deterministic_allreduce *allreduce,
                                              int unit, const float *own, const float **gathered,
                                              struct dpt_error *err);
/* Collective. Gives all ranks `each` numbers of every chunk. */
enum dpt_status dpt_deterministic_gather_chunks(struct dpt_deterministic_allreduce *allreduce,
                                                double *values, int each, struct dpt_error *err);

#endif

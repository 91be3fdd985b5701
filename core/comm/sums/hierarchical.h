/*
 * hierarchical: what the files of hierarchical_allreduce.h share. Private to core/comm.
 *
 * hierarchical_allreduce.c: who sums by what memory and messages; hierarchical_sums.c: the sums.
 */
#ifndef DPT_COMM_HIERARCHICAL_H
#define DPT_COMM_HIERARCHICAL_H

#include "core/base/memory.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/internal.h"
#include "core/comm/sums/buckets.h"
#include "core/comm/sums/hierarchical_allreduce.h"
#include "core/comm/sums/internode.h"

/* Floats that are added at a time: they fit the L1 cache. */
enum { DPT_HIERARCHICAL_CHUNK = DPT_SUM_OF_SQUARES_CHUNK };

struct dpt_hierarchical_allreduce {
    const struct dpt_comm *job;      /* the caller's */
    const struct dpt_comm *comm;     /* by which this sums: `job`, or `beside` */
    struct dpt_comm beside;          /* open where `buckets` are */
    struct dpt_group one;            /* this rank by itself */
    const struct dpt_group *local;   /* the ranks that add in shared memory: the node, or `one` */
    const struct dpt_group *above;   /* the ranks that add those sums by messages */
    struct dpt_internode *internode; /* how all ranks do that; NULL: `above` alone do */
    size_t *cut;                     /* [ranks + 1]: where their slices begin */
    size_t n;
    size_t stride; /* floats from a buffer to the next; in front of each is a line that says whether
                      it is filled */
    int buffers;   /* of this rank */
    int first;     /* the number of its first one at `base` */
    int all;       /* of all local ranks */
    bool small;    /* each rank adds everything itself, from buffers in shared memory */
    bool large;    /* the buffers are in shared memory, and the sum comes into the first of all */
    int set;       /* the set of buffers for the next sum. Small ones have two sets, since others
                      read one while the next is written */
    struct dpt_shared shared; /* empty where `local` is one rank */
    struct dpt_node_barrier barrier;
    float *base;  /* the buffers: [sets][all] where small, [all] where large, else this rank's */
    float *given; /* [ranks]: each rank's contributions to the others' slices; NULL where large */
    size_t given_stride;
    float *own; /* this rank's own memory, or NULL */
    float *result;
    float **from; /* the buffers that are added: all ranks' where small, else this rank's. Where
                     large a list for each rank, `each` pointers apart */
    int *n_from;  /* [ranks]; the first one, where there is one list */
    int each;     /* buffers of a rank at most */
    size_t from_float, to_float; /* what is summed now, of the n floats */
    size_t begin, end;           /* the slice of it that this rank adds */
    size_t squared;          /* floats at the beginning whose squares are summed, too; 0: none */
    double *sums_of_squares; /* [chunks of those], in shared memory */
    int threads;
    struct dpt_buckets *buckets; /* of the first floats; NULL: all is summed at once */
    size_t bucketed;             /* how many floats these are */
    int64_t early;               /* buckets that began before the call that sums them, so far */
    enum dpt_status failed;      /* of a bucket */
    struct dpt_error err;
};

/* Buffer number `buffer` of those at `base`. */
static inline float *dpt_hierarchical_at(const struct dpt_hierarchical_allreduce *s, int buffer)
{
    return s->base + ((size_t)s->set * (size_t)s->all + (size_t)buffer) * s->stride + DPT_LINE;
}

/* Whether `base` is in shared memory. */
static inline bool dpt_hierarchical_shares(const struct dpt_hierarchical_allreduce *s)
{
    return s->small || s->large;
}

/* Parts of threads and ranks are multiples of this many floats. */
static inline size_t dpt_hierarchical_unit(const struct dpt_hierarchical_allreduce *s)
{
    return s->squared > 0 ? DPT_HIERARCHICAL_CHUNK : DPT_LINE;
}

/* Finds the slice that a local rank adds up. */
static inline void dpt_hierarchical_slice(const struct dpt_hierarchical_allreduce *s, int rank,
                                          size_t *begin, size_t *end)
{
    dpt_part_in_units(s->to_float - s->from_float, dpt_hierarchical_unit(s), s->small ? 0 : rank,
                      s->small ? 1 : s->local->size, begin, end);
    *begin += s->from_float;
    *end += s->from_float;
}

/* From now on the floats [from, to) are summed. */
void dpt_hierarchical_set_range(struct dpt_hierarchical_allreduce *s, size_t from, size_t to);
/* What struct dpt_buckets calls. arg: struct dpt_hierarchical_allreduce. */
void dpt_hierarchical_sum_bucket(void *arg, size_t begin, size_t end);

#endif

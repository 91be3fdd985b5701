/*
 * deterministic: what the files of deterministic_allreduce.h share. Private to core/comm.
 *
 * deterministic_slices.c: which floats a rank adds, and of what; deterministic_rounds.c: sums of
 * micro-batches taken round-robin; deterministic_units.c: units that are gathered;
 * deterministic_allreduce.c: the rest, the window among it.
 */
#ifndef DPT_COMM_DETERMINISTIC_H
#define DPT_COMM_DETERMINISTIC_H

#include "core/base/memory.h"
#include "core/comm/internal.h"
#include "core/comm/sums/deterministic_allreduce.h"
#include "core/comm/sums/internode.h"

/* A rank's message to the others of its node about a sum. */
struct dpt_deterministic_notice {
    float words[DPT_DETERMINISTIC_WORDS];
    int32_t offset[DPT_TREE_BLOCKS]; /* of its blocks' buffers, counted from the window's start */
};

/* A rank's block, and where its values are: in the window, or those of this rank's slice. */
struct dpt_deterministic_part {
    struct dpt_block block;
    float *value;
};

struct dpt_deterministic_allreduce {
    const struct dpt_comm *comm;
    int rank, ranks;
    size_t n, stride; /* floats of a sum; in whole cache lines */
    size_t pitch;     /* of a buffer: that, but in rounds those of a unit and the rest */
    int buffers;
    bool window; /* the buffers of all ranks are in memory that all share */
    bool sharded, keeps_sum;
    struct dpt_internode *internode;
    struct dpt_group one;         /* this rank by itself */
    const struct dpt_group *host; /* the ranks whose buffers this one reads: its node, or `one` */
    int first, end;               /* those ranks */
    struct dpt_shared shared;     /* the host's memory, or that of this rank alone */
    void *memory;
    struct dpt_node_barrier barrier;
    struct dpt_deterministic_notice *notices; /* [the host's ranks] */
    float *own;                               /* this rank's buffers */
    float *base;                              /* the host's first buffer */
    struct dpt_deterministic_part *parts;     /* the host's ranks' of a sum, in order */
    struct dpt_chunks chunks;                 /* whose sums of squares are wanted */
    int ranges;      /* of floats that are cut for themselves: 1, or the units */
    size_t *edge;    /* [ranges + 1]: where these begin */
    size_t *unit;    /* [units + 1]: where the units begin */
    float *gathered; /* room for a unit, in memory of the host */
    size_t *cut;     /* [ranges][ranks + 1]: where slices begin: floats that one rank owns */
    size_t *chunk; /* [ranges][ranks + 1]: where slices are made of chunks: the first one of each */
    double *packed; /* chunks' numbers, rank by rank, where there are several ranges */
    size_t packed_room;
    double *sums_of_squares; /* of the sum's chunks; NULL: slices have no whole chunks */
    double *own_squares;     /* those, where they are in this rank's own memory */
    float *result;
    const float *slice; /* where this rank's slice of the last sum is; NULL: in the result */
    float *weights;     /* sharded: through which a node's ranks share their slices' weights */
    float *received;    /* rounds: all blocks of this rank's part */
    struct dpt_rounds *rounds; /* NULL: ranks take no micro-batches round-robin */
    struct dpt_parts receive;  /* what comes from each rank */
};

/* The floats that are in chunks. */
static inline size_t dpt_deterministic_chunked(const struct dpt_deterministic_allreduce *d)
{
    return d->chunks.begin[d->chunks.n];
}

/* Where the slices of a range begin, by their numbers. */
static inline const size_t *dpt_deterministic_cuts(const struct dpt_deterministic_allreduce *d,
                                                   int range)
{
    return d->cut + (size_t)range * ((size_t)d->ranks + 1);
}

/* Waits for the ranks of the host. */
static inline void dpt_deterministic_await_host(struct dpt_deterministic_allreduce *d)
{
    if (d->host->size > 1)
        dpt_node_barrier_wait(&d->barrier);
}

/* Closes what belongs to the host, also part of it. */
void dpt_deterministic_close_host(struct dpt_deterministic_allreduce *d);

/* Once the way is known: cuts the slices. */
void dpt_deterministic_cut(struct dpt_deterministic_allreduce *d);
/* Whether slices are made of whole chunks: of shards always, else where they are large enough. */
bool dpt_deterministic_in_chunks(const struct dpt_deterministic_allreduce *d);
/* The number of the slice that a rank adds. */
int dpt_deterministic_slice_of(const struct dpt_deterministic_allreduce *d, int rank);
/* Finds the floats of a sum that a rank adds, also of what is after the chunks. */
void dpt_deterministic_floats(const struct dpt_deterministic_allreduce *d, int rank, size_t *begin,
                              size_t *end);

/* Lists the blocks of the host's ranks, in order; returns how many there are. */
int dpt_deterministic_list(struct dpt_deterministic_allreduce *d, int32_t total,
                           const int32_t *first);
/* Adds n floats of all listed parts in the tree's order; what is left of them replaces the values
 * of the left ones, and comes into *sum. */
void dpt_deterministic_add(const struct dpt_deterministic_allreduce *d, int parts, int32_t total,
                           size_t at, size_t n, struct dpt_tree *sum);

/* Finds the sums of squares of the chunks that this rank owns in a range, of which `sum` has the
 * sum. */
void dpt_deterministic_square(struct dpt_deterministic_allreduce *d, int range, const float *sum);

/* The floats of a buffer for micro-batches taken round-robin. */
size_t dpt_rounds_pitch(const struct dpt_deterministic_allreduce *d,
                        const struct dpt_deterministic_spec *spec);
/* Floats of the largest unit, or of all, in whole cache lines: what each buffer has room for. */
size_t dpt_rounds_largest_unit(const struct dpt_deterministic_spec *spec);
/* The range in which a unit lies. */
static inline int dpt_rounds_range_of(const struct dpt_deterministic_allreduce *d, int unit)
{
    return d->ranges > 1 ? unit : 0;
}
/* The floats of a unit [begin, end) in a range that a rank owns. *at: out, the first one. */
size_t dpt_rounds_owned(const struct dpt_deterministic_allreduce *d, int rank, int range,
                        size_t begin, size_t end, size_t *at);
/* Cuts the slices, and makes the memory for micro-batches taken round-robin. Closes what open has
 * made, also part of it. */
enum dpt_status dpt_rounds_open(struct dpt_deterministic_allreduce *d,
                                const struct dpt_deterministic_spec *spec, struct dpt_error *err);
/* Must be called before dpt_rounds_open where all ranks are on one node: it lets them read each
 * other's values in place. */
enum dpt_status dpt_rounds_open_window(struct dpt_deterministic_allreduce *d, bool spin,
                                       struct dpt_error *err);
void dpt_rounds_close(struct dpt_deterministic_allreduce *d);
/* Collective. Makes room for a unit, if spec->gathers: once a node, if `nodes` and its ranks follow
 * each other, else for each rank. Errors: RANK; nothing is open then. */
enum dpt_status dpt_units_open_room(struct dpt_deterministic_allreduce *d,
                                    const struct dpt_deterministic_spec *spec, bool nodes,
                                    struct dpt_error *err);
/* dpt_deterministic_slice_sum of rounds. */
const float *dpt_rounds_slice_sum(const struct dpt_deterministic_allreduce *d, int range);

#endif

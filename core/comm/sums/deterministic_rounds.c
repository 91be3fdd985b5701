#include <math.h>
#include <string.h>

#include "core/comm/sums/deterministic.h"

/* Floats that a rank has room for to receive, of all blocks together, and the fewest of one. */
enum { RECEIVED = 1 << 21, LEAST = 1 << 14 };
/* Floats after the chunks that are worth an owner more: each rank sends each owner a message. */
enum { REST_LEAST = 1 << 10 };

/* The most blocks that a rank keeps while it receives a round's: of those from its own on, and of
 * those before them. A run of n > 1 is 2 log2(n) blocks at most (tree.h). */
static size_t count_kept(size_t blocks)
{
    size_t most = 0;

    while (blocks >> (most / 4 + 1) != 0)
        most += 4;
    return most < blocks ? most : blocks;
}

/* Places for blocks: for those of one rank, and for what it keeps of the others'. */
static size_t count_places(int ranks, int buffers)
{
    return (size_t)buffers + count_kept((size_t)ranks * (size_t)buffers);
}

/* Floats of each owner that are sent and added at a time. */
static size_t piece_floats(int ranks, int buffers)
{
    const size_t floats = RECEIVED / count_places(ranks, buffers);

    return floats > LEAST ? floats : LEAST;
}

/* Among how many ranks n floats after the chunks are divided. */
static int count_rest_owners(int ranks, size_t n)
{
    const size_t owners = n / REST_LEAST;

    return owners < 1 ? 1 : owners < (size_t)ranks ? (int)owners : ranks;
}

/* The MPI tag of messages between two ranks. */
enum { TAG = 0x7ed };

/* The sum so far of a part of a unit's floats, the same part of every owner's; of which this rank
 * adds n, from `at` on: the blocks of the rounds before, each in one of the buffers that lie
 * `stride` floats apart. */
struct piece {
    size_t begin, end; /* of the unit */
    int range;         /* in which it lies */
    size_t shift;      /* a rank's buffer has float i of the unit at i - shift */
    int part, parts;
    size_t at, n;
    float *store;
    size_t stride;
    uint64_t used; /* a bit for each buffer */
    struct dpt_tree tree;
};

struct dpt_rounds {
    int *first; /* [units + 2]: the pieces of each unit, and of what is after the chunks */
    struct piece *pieces;
    int units, n;
    int level;  /* each block has 2^level leaves */
    int levels; /* buffers of a store */
    /* What MPI counts, with an int: cache lines of `line` floats where units begin and end with
     * one, as those of tensors do; else floats, and line is 1. */
    MPI_Datatype type;
    size_t line;
    float *store;
    size_t store_bytes;
    bool *taken; /* of the places for blocks that are kept during a round */
};

/* Whether buffer w of a rank has a block in that round, and which. */
static bool find_block(const struct dpt_deterministic_allreduce *d, int32_t round, int rank, int w,
                       int32_t leaves, struct dpt_block *block)
{
    const int64_t number = ((int64_t)round * d->ranks + rank) * d->buffers + w;
    const int64_t begin = number << d->rounds->level;

    if (begin >= leaves)
        return false;
    *block = (struct dpt_block){(int32_t)begin, d->rounds->level};
    return true;
}

/* The most blocks that a sum of `leaves` leaves holds between two rounds. */
static int count_held(int ranks, const struct dpt_deterministic_spec *spec)
{
    const int32_t block = INT32_C(1) << spec->level, round = ranks * spec->buffers;
    struct dpt_tree tree;
    int most = 1;

    dpt_tree_begin(&tree, spec->leaves);
    for (int32_t i = 0; (int64_t)i * block < spec->leaves; i++) {
        dpt_tree_push(&tree, (struct dpt_block){i * block, spec->level}, NULL, 0, NULL, NULL);
        if ((i + 1) % round == 0 && tree.n > most)
            most = tree.n;
    }
    return most;
}

size_t dpt_rounds_largest_unit(const struct dpt_deterministic_spec *spec)
{
    size_t most = spec->whole ? spec->unit[spec->units] : 0;

    for (int k = 0; k < spec->units; k++)
        most = spec->unit[k + 1] - spec->unit[k] > most ? spec->unit[k + 1] - spec->unit[k] : most;
    return dpt_round_up(most, sizeof(float));
}

void dpt_deterministic_round_robin_floats(int ranks, const struct dpt_deterministic_spec *spec,
                                          double *store, double *buffers, double *received)
{
    const size_t unit = dpt_rounds_largest_unit(spec), rest = spec->n - spec->unit[spec->units];
    const double slice = (double)spec->unit[spec->units] / ranks;
    const double after = (double)rest / count_rest_owners(ranks, rest);
    const double piece = (double)piece_floats(ranks, spec->buffers);
    const double most = fmax((double)unit / ranks, after);

    *store = count_held(ranks, spec) * (slice + after);
    *buffers = (double)spec->buffers * (double)(unit + rest);
    *received = (double)count_places(ranks, spec->buffers) * fmin(most, piece);
}

/* What a rank owns of a range; of the one after the last, what is after the chunks. */
static struct dpt_slice slice_of(const struct dpt_deterministic_allreduce *d, int rank, int range)
{
    const size_t chunked = dpt_deterministic_chunked(d), rest = d->stride - chunked;
    const int owners = count_rest_owners(d->ranks, rest);
    const int i = dpt_deterministic_slice_of(d, rank);
    size_t begin = rest, end = rest;

    if (range < d->ranges)
        return dpt_deterministic_slice(d, rank, range);
    if (i < owners)
        dpt_part_in_units(rest, DPT_LINE, i, owners, &begin, &end);
    return (struct dpt_slice){.begin = chunked + begin, .end = chunked + end};
}

/* Where this rank's floats of a range begin that it owns, among all of them. */
static size_t own_before(const struct dpt_deterministic_allreduce *d, int range)
{
    size_t n = 0;

    for (int k = 0; k < range; k++) {
        const struct dpt_slice slice = slice_of(d, d->rank, k);

        n += slice.end - slice.begin;
    }
    return n;
}

size_t dpt_rounds_owned(const struct dpt_deterministic_allreduce *d, int rank, int range,
                        size_t begin, size_t end, size_t *at)
{
    const struct dpt_slice slice = slice_of(d, rank, range);

    *at = begin > slice.begin ? begin : slice.begin;
    end = end < slice.end ? end : slice.end;
    return end > *at ? end - *at : 0;
}

/* Finds those parts of a rank that are in a piece. */
static size_t find_part(const struct dpt_deterministic_allreduce *d, int rank,
                        const struct piece *p, size_t *at)
{
    size_t from, begin, end;
    const size_t n = dpt_rounds_owned(d, rank, p->range, p->begin, p->end, &from);

    dpt_part_in_units(n, DPT_LINE, p->part, p->parts, &begin, &end);
    *at = from + begin;
    return end - begin;
}

/* The number of pieces into which a unit is cut. */
static int count_parts(const struct dpt_deterministic_allreduce *d, struct piece unit)
{
    const size_t piece = piece_floats(d->ranks, d->buffers);
    size_t most = 1, at;

    for (int r = 0; r < d->ranks && !d->window; r++) {
        const size_t n = dpt_rounds_owned(d, r, unit.range, unit.begin, unit.end, &at);

        most = n > most ? n : most;
    }
    return (int)((most + piece - 1) / piece);
}

/* Finds the floats of a unit, or, of the one after the last, those after the chunks: in which range
 * they lie, and by how much further than in a rank's buffer. */
static struct piece find_unit(const struct dpt_deterministic_allreduce *d,
                              const struct dpt_deterministic_spec *spec, int i)
{
    const size_t chunked = dpt_deterministic_chunked(d);

    if (i == spec->units)
        return (struct piece){.range = d->ranges,
                              .begin = chunked,
                              .end = d->stride,
                              .shift = chunked - dpt_rounds_largest_unit(spec)};
    return (struct piece){.range = dpt_rounds_range_of(d, i),
                          .begin = spec->unit[i],
                          .end = spec->unit[i + 1],
                          .shift = spec->whole ? 0 : spec->unit[i]};
}

static void cut_pieces(struct dpt_deterministic_allreduce *d,
                       const struct dpt_deterministic_spec *spec)
{
    struct dpt_rounds *rounds = d->rounds;

    for (int i = 0; i <= spec->units; i++)
        for (int k = rounds->first[i]; k < rounds->first[i + 1]; k++) {
            struct piece *p = &rounds->pieces[k];

            *p = find_unit(d, spec, i);
            p->part = k - rounds->first[i];
            p->parts = rounds->first[i + 1] - rounds->first[i];
            p->stride = own_before(d, d->ranges + 1);
            p->n = find_part(d, d->rank, p, &p->at);
            p->store = rounds->store + own_before(d, p->range) +
                       (p->n > 0 ? p->at - slice_of(d, d->rank, p->range).begin : 0);
        }
}

size_t dpt_rounds_pitch(const struct dpt_deterministic_allreduce *d,
                        const struct dpt_deterministic_spec *spec)
{
    return dpt_rounds_largest_unit(spec) +
           dpt_round_up(d->stride - dpt_deterministic_chunked(d), sizeof(float));
}

/* Chooses what MPI counts. */
static enum dpt_status make_type(struct dpt_deterministic_allreduce *d,
                                 const struct dpt_deterministic_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_rounds *rounds = d->rounds;

    rounds->line = DPT_LINE;
    for (int k = 0; k <= spec->units; k++)
        if (spec->unit[k] % DPT_LINE != 0)
            rounds->line = 1;
    if (d->pitch / rounds->line > INT32_MAX)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "parallel.shard: over %zu million parameters of a rank are not possible",
                         ((size_t)INT32_MAX + 1) * rounds->line / 1000000));
    DPT_TRY_MPI(MPI_Type_contiguous, (int)rounds->line, MPI_FLOAT, &rounds->type);
    DPT_TRY_MPI(MPI_Type_commit, &rounds->type);
out:
    return status;
}

enum dpt_status dpt_rounds_open(struct dpt_deterministic_allreduce *d,
                                const struct dpt_deterministic_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t places = count_places(d->ranks, d->buffers);
    struct dpt_rounds *rounds;
    size_t most = 0;

    dpt_deterministic_cut(d);
    DPT_TRY(DPT_ALLOCATE(d->rounds, 1, "the gradients", err));
    rounds = d->rounds;
    rounds->type = MPI_DATATYPE_NULL;
    DPT_TRY(make_type(d, spec, err));
    rounds->level = spec->level;
    rounds->levels = count_held(d->ranks, spec);
    rounds->units = spec->units;
    DPT_TRY(DPT_ALLOCATE(rounds->first, (size_t)spec->units + 2, "the gradients", err));
    for (int i = 0; i <= spec->units; i++)
        rounds->first[i + 1] = rounds->first[i] + count_parts(d, find_unit(d, spec, i));
    rounds->n = rounds->first[spec->units + 1];
    DPT_TRY(DPT_ALLOCATE(rounds->pieces, (size_t)rounds->n, "the gradients", err));
    rounds->store_bytes = (size_t)rounds->levels * own_before(d, d->ranges + 1) * sizeof(float);
    rounds->store = dpt_reserve(rounds->store_bytes);
    if (rounds->store == NULL)
        DPT_TRY(dpt_fail_memory(err, "the gradients", (double)rounds->store_bytes));
    cut_pieces(d, spec);
    for (int k = 0; k < rounds->n && !d->window; k++)
        most = places * rounds->pieces[k].n > most ? places * rounds->pieces[k].n : most;
    if (most > 0)
        DPT_TRY(DPT_ALLOCATE(d->received, most, "the ranks' gradients", err));
    DPT_TRY(DPT_ALLOCATE(rounds->taken, places, "the gradients", err));
    DPT_TRY(DPT_ALLOCATE(d->sums_of_squares, d->chunks.n, "the gradients", err));
    d->result = dpt_reserve(d->stride * sizeof(float));
    if (!d->window)
        d->own = dpt_reserve((size_t)d->buffers * d->pitch * sizeof(float));
    if (d->own == NULL || d->result == NULL)
        DPT_TRY(dpt_fail_memory(err, "the gradients", (double)d->stride * sizeof(float)));
out:
    return status;
}

enum dpt_status dpt_rounds_open_window(struct dpt_deterministic_allreduce *d, bool spin,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t barrier = dpt_node_barrier_bytes(d->ranks);
    const size_t bytes = (size_t)d->buffers * d->pitch * sizeof(float);

    DPT_TRY(dpt_shared_open(&d->shared, &d->comm->node, barrier + (size_t)d->ranks * bytes, err));
    dpt_node_barrier_open(&d->barrier, &d->comm->node, d->shared.bytes, spin);
    d->base = (float *)(void *)(d->shared.bytes + barrier);
    d->own = d->base + (size_t)d->rank * (size_t)d->buffers * d->pitch;
    if (d->pitch == d->stride)
        d->weights = d->base; /* no gradient is in it once they are summed */
    d->window = true;
out:
    return status;
}

void dpt_rounds_close(struct dpt_deterministic_allreduce *d)
{
    if (d->window)
        dpt_shared_close(&d->shared);
    else
        dpt_unreserve(d->own, (size_t)d->buffers * d->pitch * sizeof(float));
    dpt_unreserve(d->result, d->stride * sizeof(float));
    dpt_free(d->sums_of_squares);
    if (d->rounds != NULL) {
        if (d->rounds->type != MPI_DATATYPE_NULL)
            MPI_Type_free(&d->rounds->type);
        dpt_free(d->rounds->first);
        dpt_free(d->rounds->pieces);
        dpt_unreserve(d->rounds->store, d->rounds->store_bytes);
        dpt_free(d->rounds->taken);
    }
    dpt_free(d->rounds);
}

void dpt_deterministic_begin(struct dpt_deterministic_allreduce *d, int32_t leaves)
{
    for (int k = 0; k < d->rounds->n; k++) {
        dpt_tree_begin(&d->rounds->pieces[k].tree, leaves);
        d->rounds->pieces[k].used = 0;
    }
}

/* Gives a rank its floats of this rank's blocks, and gets what this one adds of another one's. */
static enum dpt_status swap_slices(struct dpt_deterministic_allreduce *d, int32_t round,
                                   const struct piece *p, int to, int from, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    const MPI_Datatype type = d->rounds->type;
    const size_t line = d->rounds->line;
    size_t at;
    const size_t n = find_part(d, to, p, &at);
    const float *const part = d->own + (n > 0 ? at - p->shift : 0);
    struct dpt_block block;

    for (int w = 0; w < d->buffers && (n > 0 || p->n > 0); w++) {
        const bool sends = n > 0 && find_block(d, round, d->rank, w, p->tree.total, &block);
        const bool gets = p->n > 0 && find_block(d, round, from, w, p->tree.total, &block);

        DPT_TRY_STEP(world, MPI_Sendrecv, part + (size_t)w * d->pitch, sends ? (int)(n / line) : 0,
                     type, sends ? to : MPI_PROC_NULL, TAG, d->received + (size_t)w * p->n,
                     gets ? (int)(p->n / line) : 0, type, gets ? from : MPI_PROC_NULL, TAG,
                     dpt_mpi_comm(world), MPI_STATUS_IGNORE);
    }
out:
    return status;
}

static float *take_buffer(struct piece *p)
{
    int k = 0;

    while ((p->used >> k & 1) != 0)
        k++;
    p->used |= UINT64_C(1) << k;
    return p->store + (size_t)k * p->stride;
}

/* Whether a value is in a buffer of the piece's store. */
static bool in_store(const struct dpt_deterministic_allreduce *d, const struct piece *p,
                     const float *value)
{
    return value >= p->store &&
           value < p->store + (size_t)(d->rounds->levels - 1) * p->stride + p->n;
}

/* The number of the place for blocks in which a value is; -1: in none. */
static int find_place(const struct dpt_deterministic_allreduce *d, const struct piece *p,
                      const float *value)
{
    const size_t places = count_places(d->ranks, d->buffers);

    return !d->window && value >= d->received && value < d->received + places * p->n
               ? (int)((size_t)(value - d->received) / p->n)
               : -1;
}

/* Appends a block to a tree. Frees what has the values that are added to others thereby. */
static void push(struct dpt_deterministic_allreduce *d, struct piece *p, struct dpt_tree *tree,
                 struct dpt_block block, float *value)
{
    float *released[DPT_TREE_BLOCKS];
    int free = 0;

    dpt_tree_push(tree, block, value, p->n, released, &free);
    while (free-- > 0) {
        const int place = find_place(d, p, released[free]);

        if (in_store(d, p, released[free]))
            p->used &= ~(UINT64_C(1) << (size_t)(released[free] - p->store) / p->stride);
        else if (place >= 0)
            d->rounds->taken[place] = false;
    }
}

/* Appends a rank's blocks of a round, which lie `stride` floats apart. */
static void push_rank(struct dpt_deterministic_allreduce *d, int32_t round, struct piece *p,
                      struct dpt_tree *tree, int rank, float *value, size_t stride)
{
    struct dpt_block block;

    for (int w = 0; w < d->buffers; w++)
        if (find_block(d, round, rank, w, p->tree.total, &block))
            push(d, p, tree, block, value + (size_t)w * stride);
}

/* Moves what a tree has in the places into which the next rank's blocks are received. */
static void clear_places(struct dpt_deterministic_allreduce *d, const struct piece *p,
                         struct dpt_tree *tree)
{
    for (int k = 0; k < tree->n; k++) {
        int place = d->buffers;

        if (find_place(d, p, tree->value[k]) < 0 || find_place(d, p, tree->value[k]) >= place)
            continue;
        while (d->rounds->taken[place])
            place++;
        d->rounds->taken[place] = true;
        memcpy(d->received + (size_t)place * p->n, tree->value[k], p->n * sizeof(float));
        tree->value[k] = d->received + (size_t)place * p->n;
    }
}

/*
 * Adds a round's blocks, which the ranks give each other in pairs: each rank gets those of the next
 * one, then of the one after it, and so on, and adds them before the next ones come, so that its
 * memory does not grow with the ranks. The blocks of the ranks before it come last, so there are
 * two trees until then. MPI's own exchange of all with all does the same where there are many
 * ranks, but needs room for all blocks.
 */
static enum dpt_status add_messages(struct dpt_deterministic_allreduce *d, int32_t round,
                                    struct piece *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_tree later; /* from this rank on */

    dpt_tree_begin(&later, p->tree.total);
    if (p->n > 0)
        push_rank(d, round, p, &later, d->rank, d->own + p->at - p->shift, d->pitch);
    for (int s = 1; s < d->ranks; s++) {
        const int to = (d->rank - s + d->ranks) % d->ranks, from = (d->rank + s) % d->ranks;
        struct dpt_tree *tree = from > d->rank ? &later : &p->tree;

        DPT_TRY(swap_slices(d, round, p, to, from, err));
        if (p->n > 0) {
            push_rank(d, round, p, tree, from, d->received, p->n);
            clear_places(d, p, tree);
        }
    }
    for (int k = 0; k < later.n; k++)
        push(d, p, &p->tree, later.block[k], later.value[k]);
out:
    return status;
}

/* Adds a round's blocks where all of them are. */
static void add_present(struct dpt_deterministic_allreduce *d, int32_t round, struct piece *p)
{
    const size_t buffers = (size_t)d->buffers;

    for (int r = 0; r < d->ranks; r++)
        push_rank(d, round, p, &p->tree, r,
                  d->base + (size_t)r * buffers * d->pitch + p->at - p->shift, d->pitch);
}

/* Moves what is left of a round's blocks to buffers of the store. */
static void keep(struct dpt_deterministic_allreduce *d, struct piece *p)
{
    for (int k = 0; k < p->tree.n; k++)
        if (!in_store(d, p, p->tree.value[k])) {
            float *const to = take_buffer(p);

            memcpy(to, p->tree.value[k], p->n * sizeof *to);
            p->tree.value[k] = to;
        }
    memset(d->rounds->taken, 0, count_places(d->ranks, d->buffers) * sizeof *d->rounds->taken);
}

enum dpt_status dpt_deterministic_round(struct dpt_deterministic_allreduce *d, int32_t round,
                                        int unit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_rounds *rounds = d->rounds;

    if (d->window)
        dpt_node_barrier_wait(&d->barrier); /* all values are there */
    for (int k = rounds->first[unit]; k < rounds->first[unit + 1]; k++) {
        struct piece *p = &rounds->pieces[k];

        if (!d->window)
            DPT_TRY(add_messages(d, round, p, err));
        else if (p->n > 0)
            add_present(d, round, p);
        if (p->n > 0)
            keep(d, p);
    }
    if (d->window)
        dpt_node_barrier_wait(&d->barrier); /* nobody reads them any more */
out:
    return status;
}

/* Gives all ranks the sum of what is after the chunks, of which each owner has its part. */
static enum dpt_status gather_rest(struct dpt_deterministic_allreduce *d, const struct piece *p,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    const MPI_Datatype type = d->rounds->type;
    const size_t line = d->rounds->line;

    for (int r = 0; r < d->ranks; r++) {
        size_t at;

        d->receive.count[r] = (int)(dpt_rounds_owned(d, r, p->range, p->begin, p->end, &at) / line);
        d->receive.at[r] = d->receive.count[r] > 0 ? (int)((at - p->begin) / line) : 0;
    }
    DPT_TRY_STEP(world, MPI_Allgatherv, MPI_IN_PLACE, 0, type, d->result + p->begin,
                 d->receive.count, d->receive.at, type, dpt_mpi_comm(world));
out:
    return status;
}

size_t dpt_deterministic_rest(const struct dpt_deterministic_allreduce *d)
{
    const struct piece *rest = &d->rounds->pieces[d->rounds->first[d->rounds->units]];

    return rest->begin - rest->shift;
}

const float *dpt_rounds_slice_sum(const struct dpt_deterministic_allreduce *d, int range)
{
    return d->rounds->store + own_before(d, range) -
           dpt_deterministic_slice(d, d->rank, range).begin;
}

enum dpt_status dpt_deterministic_end(struct dpt_deterministic_allreduce *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_rounds *rounds = d->rounds;
    const struct piece *rest = &rounds->pieces[rounds->first[rounds->units]];

    for (int k = 0; k < rounds->n; k++) {
        const struct piece *p = &rounds->pieces[k];
        float *to = p >= rest ? d->result + p->at : p->store;

        if (p->n > 0 && p->tree.value[0] != to)
            memcpy(to, p->tree.value[0], p->n * sizeof *to);
    }
    DPT_TRY(gather_rest(d, rest, err));
    for (int k = 0; k < d->ranges; k++)
        dpt_deterministic_square(d, k, dpt_rounds_slice_sum(d, k));
    status = dpt_deterministic_gather_chunks(d, d->sums_of_squares, 1, err);
out:
    return status;
}

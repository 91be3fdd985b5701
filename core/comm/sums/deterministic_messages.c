#include <string.h>

#include "core/comm/sums/deterministic.h"

/* The MPI tag of messages between two ranks. */
enum { TAG = 0x7ee };

enum dpt_status dpt_messages_open(struct dpt_deterministic_allreduce *d, struct dpt_error *err)
{
    const size_t bytes = d->stride * sizeof(float);

    d->own = dpt_alloc_array((size_t)d->buffers, bytes);
    d->result = d->ranks > 1 ? dpt_alloc(bytes) : NULL;
    d->before = dpt_alloc_array((size_t)d->ranks + 1, sizeof *d->before);
    d->sums_of_squares =
        d->sharded ? dpt_alloc_array(d->chunks.n, sizeof *d->sums_of_squares) : NULL;
    if (d->own == NULL || (d->ranks > 1 && d->result == NULL) || d->before == NULL ||
        (d->sharded && d->sums_of_squares == NULL))
        return dpt_fail_memory(err, "the gradients", (double)bytes * (d->buffers + 1));
    return DPT_OK;
}

/* Counts the blocks of the ranks before each, and of all; returns the most of one rank. */
static int count_blocks(struct dpt_deterministic_allreduce *d, const int32_t *first)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int most = 0;

    for (int r = 0; r < d->ranks; r++) {
        const int count = dpt_tree_blocks(first[r], first[r + 1], first[d->ranks], blocks);

        d->before[r + 1] = d->before[r] + count;
        most = count > most ? count : most;
    }
    return most;
}

/* Whether the ranks' blocks merge pairwise; the last block may be cut off by the total. */
static bool in_pairs(const struct dpt_deterministic_allreduce *d, const int32_t *first)
{
    const int64_t run = first[1];
    const int64_t last = first[d->ranks] - first[d->ranks - 1];

    if (!dpt_tree_pairs(d->ranks, run) || last < 1 || last > run)
        return false;
    for (int r = 0; r < d->ranks; r++)
        if (first[r] != r * run)
            return false;
    return true;
}

enum dpt_status dpt_deterministic_reserve(struct dpt_deterministic_allreduce *d,
                                          const int32_t *first, struct dpt_error *err)
{
    enum dpt_status status;
    const size_t half = d->cut[d->ranks / 2];
    size_t begin, end, floats = half > d->stride - half ? half : d->stride - half;

    if (d->window || d->ranks == 1)
        return DPT_OK;
    dpt_deterministic_floats(d, d->rank, &begin, &end);
    if (!in_pairs(d, first)) {
        count_blocks(d, first);
        floats = (size_t)d->before[d->ranks] * (end - begin);
    }
    if (floats <= d->received_floats)
        return DPT_OK;
    dpt_free(d->received);
    status = DPT_ALLOCATE(d->received, floats, "the ranks' gradients", err);
    d->received_floats = status == DPT_OK ? floats : 0;
    return status;
}

/* Sends n floats to one rank and receives m floats from another one, or the same, in as many
 * messages as that takes. */
static enum dpt_status transfer(const struct dpt_group *g, int to, const float *send, size_t n,
                                int from, float *receive, size_t m, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t limit = dpt_message_limit(g);

    for (size_t i = 0; i < n || i < m; i += limit) {
        const size_t out = i < n ? n - i : 0, in = i < m ? m - i : 0;

        DPT_TRY_STEP(g, MPI_Sendrecv, send + (out > 0 ? i : 0), (int)(out < limit ? out : limit),
                     MPI_FLOAT, out > 0 ? to : MPI_PROC_NULL, TAG, receive + (in > 0 ? i : 0),
                     (int)(in < limit ? in : limit), MPI_FLOAT, in > 0 ? from : MPI_PROC_NULL, TAG,
                     dpt_mpi_comm(g), MPI_STATUS_IGNORE);
    }
out:
    return status;
}

/* Whether a sum, or what comes of so many blocks of a slice, has more floats than an MPI's int
 * says. All ranks find the same, though slices differ by some floats. */
static bool is_large(const struct dpt_deterministic_allreduce *d, size_t blocks)
{
    const size_t limit = dpt_message_limit(&d->comm->world);
    size_t most = 0;

    for (int i = 0; i < d->ranks; i++)
        most = d->cut[i + 1] - d->cut[i] > most ? d->cut[i + 1] - d->cut[i] : most;
    return d->stride > limit || blocks * most > limit;
}

/* Exchanges with one rank after another, since a place in the buffers exceeds an int, which
 * `exchange`'s one call takes. */
static enum dpt_status exchange_apart(struct dpt_deterministic_allreduce *d, const float *block,
                                      int k, size_t floats, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int s = 0; s < d->ranks; s++) {
        const int to = (d->rank + s) % d->ranks, from = (d->rank - s + d->ranks) % d->ranks;
        const bool has = k < d->before[from + 1] - d->before[from];
        float *const place = d->received + (size_t)(d->before[from] + k) * floats;
        size_t begin, end;

        dpt_deterministic_floats(d, to, &begin, &end);
        if (s == 0 && block != NULL && floats > 0)
            memcpy(place, block + begin, floats * sizeof *place);
        else if (s > 0)
            DPT_TRY(transfer(&d->comm->world, to, block != NULL ? block + begin : d->own,
                             block != NULL ? end - begin : 0, from, place, has ? floats : 0, err));
    }
out:
    return status;
}

/* Sends every rank its slice of all blocks, the k-th block of each rank in the k-th exchange. */
static enum dpt_status exchange(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                                const int32_t *first, size_t floats, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    const int most = count_blocks(d, first);
    const bool apart = is_large(d, (size_t)d->before[d->ranks]);

    for (int k = 0; k < most; k++) {
        if (apart) {
            DPT_TRY(exchange_apart(d, k < mine->n ? mine->value[k] : NULL, k, floats, err));
            continue;
        }
        for (int r = 0; r < d->ranks; r++) {
            const bool has = k < d->before[r + 1] - d->before[r];
            size_t begin, end;

            dpt_deterministic_floats(d, r, &begin, &end);
            d->send.count[r] = k < mine->n ? (int)(end - begin) : 0;
            d->send.at[r] = (int)begin;
            d->receive.count[r] = has ? (int)floats : 0;
            d->receive.at[r] = (int)((size_t)(d->before[r] + k) * floats);
        }
        DPT_TRY_STEP(world, MPI_Alltoallv, k < mine->n ? mine->value[k] : d->own, d->send.count,
                     d->send.at, MPI_FLOAT, d->received, d->receive.count, d->receive.at, MPI_FLOAT,
                     dpt_mpi_comm(world));
    }
out:
    return status;
}

static enum dpt_status sum_blocks(struct dpt_deterministic_allreduce *d,
                                  const struct dpt_tree *mine, const int32_t *first,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t begin, end, floats;

    dpt_deterministic_floats(d, d->rank, &begin, &end);
    floats = end - begin;
    DPT_TRY(exchange(d, mine, first, floats, err));
    if (floats > 0)
        memcpy(d->result + begin,
               dpt_deterministic_add(d, dpt_deterministic_list(d, mine->total, first, floats),
                                     mine->total, 0, floats),
               floats * sizeof *d->result);
out:
    return status;
}

/*
 * Recursive halving (Rabenseifner 2004): with its neighbour each rank exchanges half of the slices
 * and adds up the other half, with the next pair a quarter, and so on up the tree. The most floats
 * go to the nearest ranks.
 */
static enum dpt_status sum_pairs(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t *cut = d->cut;
    struct dpt_block block = mine->block[0];
    float *value = mine->value[0], *spare = d->received; /* value: from the first slice held on */
    int low = 0, high = d->ranks;                        /* the slices held */

    for (int bit = 1; bit < d->ranks; bit *= 2) {
        const int middle = (low + high) / 2;
        const bool upper = (d->rank & bit) != 0;
        const struct dpt_block other = {block.begin ^ (int32_t)1 << block.level, block.level};
        const size_t below = cut[middle] - cut[low], above = cut[high] - cut[middle];
        const size_t n = upper ? above : below;
        float *const kept = upper ? value + below : value, *const given = upper ? value : value + n;
        struct dpt_tree pair;

        DPT_TRY(transfer(&d->comm->world, d->rank ^ bit, given, upper ? below : above,
                         d->rank ^ bit, spare, n, err));
        dpt_tree_begin(&pair, mine->total);
        dpt_tree_push(&pair, upper ? other : block, upper ? spare : kept, n, NULL, NULL);
        dpt_tree_push(&pair, upper ? block : other, upper ? kept : spare, n, NULL, NULL);
        block = pair.block[0];
        value = pair.value[0];
        spare = upper ? kept : spare;
        low = upper ? middle : low;
        high = upper ? high : middle;
    }
    memcpy(d->result + cut[low], value, (cut[high] - cut[low]) * sizeof *value);
out:
    return status;
}

/* The first float of a slice, of the first n. */
static size_t edge(const struct dpt_deterministic_allreduce *d, int i, size_t n)
{
    return d->cut[i] < n ? d->cut[i] : n;
}

/* Recursive doubling: the slices go the way back that the halves came. */
static enum dpt_status gather_pairs(const struct dpt_deterministic_allreduce *d, float *x, size_t n,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int low = dpt_deterministic_slice_of(d, d->rank), held = 1;

    for (int bit = d->ranks / 2; bit > 0; bit /= 2, held *= 2) {
        const int other = (d->rank & bit) != 0 ? low - held : low + held;
        const size_t have = edge(d, low, n), lacks = edge(d, other, n);

        DPT_TRY(transfer(&d->comm->world, d->rank ^ bit, x + have, edge(d, low + held, n) - have,
                         d->rank ^ bit, x + lacks, edge(d, other + held, n) - lacks, err));
        low = other < low ? other : low;
    }
out:
    return status;
}

/* Gives all ranks all slices of the first n floats of x, where a place in it is no int: each goes
 * around, from rank to rank. */
static enum dpt_status gather_around(const struct dpt_deterministic_allreduce *d, float *x,
                                     size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int ranks = d->ranks, next = (d->rank + 1) % ranks, last = (d->rank - 1 + ranks) % ranks;

    for (int s = 0; s + 1 < ranks; s++) {
        const int give = dpt_deterministic_slice_of(d, (d->rank - s + ranks) % ranks);
        const int get = dpt_deterministic_slice_of(d, (last - s + ranks) % ranks);

        DPT_TRY(transfer(&d->comm->world, next, x + edge(d, give, n),
                         edge(d, give + 1, n) - edge(d, give, n), last, x + edge(d, get, n),
                         edge(d, get + 1, n) - edge(d, get, n), err));
    }
out:
    return status;
}

/* Gives all ranks all slices of the first n floats of x. */
static enum dpt_status gather(struct dpt_deterministic_allreduce *d, float *x, size_t n, bool pairs,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;

    if (pairs)
        return gather_pairs(d, x, n, err);
    if (is_large(d, 0))
        return gather_around(d, x, n, err);
    for (int r = 0; r < d->ranks; r++) {
        const int i = dpt_deterministic_slice_of(d, r);

        d->receive.at[r] = (int)edge(d, i, n);
        d->receive.count[r] = (int)(edge(d, i + 1, n) - edge(d, i, n));
    }
    DPT_TRY_STEP(world, MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_FLOAT, x, d->receive.count,
                 d->receive.at, MPI_FLOAT, dpt_mpi_comm(world));
out:
    return status;
}

enum dpt_status dpt_deterministic_gather_chunks(struct dpt_deterministic_allreduce *d,
                                                double *values, int each, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;

    for (int r = 0; r < d->ranks; r++) {
        const struct dpt_slice theirs = dpt_deterministic_slice(d, r);

        d->receive.at[r] = (int)theirs.first * each;
        d->receive.count[r] = (int)(theirs.last - theirs.first) * each;
    }
    DPT_TRY_STEP(world, MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_DOUBLE, values, d->receive.count,
                 d->receive.at, MPI_DOUBLE, dpt_mpi_comm(world));
out:
    return status;
}

enum dpt_status dpt_messages_square(struct dpt_deterministic_allreduce *d, const float *sum,
                                    struct dpt_error *err)
{
    const struct dpt_slice own = dpt_deterministic_slice(d, d->rank);
    const size_t *begin = d->chunks.begin;

    for (size_t k = own.first; k < own.last; k++)
        d->sums_of_squares[k] = dpt_sum_of_squares(sum + begin[k], begin[k + 1] - begin[k]);
    return dpt_deterministic_gather_chunks(d, d->sums_of_squares, 1, err);
}

/* Gives all ranks what they all need of a sum in shards: the sums of squares, and what
 * is after the chunks. */
static enum dpt_status share_rest(struct dpt_deterministic_allreduce *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;

    DPT_TRY(dpt_messages_square(d, d->result, err));
    /* The last rank has the last slice, of 2^k ranks too. */
    DPT_TRY_STEP(world, MPI_Bcast, d->result + dpt_deterministic_chunked(d),
                 (int)(d->stride - dpt_deterministic_chunked(d)), MPI_FLOAT, d->ranks - 1,
                 dpt_mpi_comm(world));
out:
    return status;
}

enum dpt_status dpt_messages_sum(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                                 const int32_t *first, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool pairs = in_pairs(d, first);

    DPT_TRY(pairs ? sum_pairs(d, mine, err) : sum_blocks(d, mine, first, err));
    if (d->sharded)
        DPT_TRY(share_rest(d, err));
    if (!d->sharded || d->keeps_sum)
        DPT_TRY(gather(d, d->result, d->stride, pairs, err));
out:
    return status;
}

enum dpt_status dpt_messages_share(struct dpt_deterministic_allreduce *d, float *x,
                                   struct dpt_error *err)
{
    return gather(d, x, dpt_deterministic_chunked(d), (d->ranks & (d->ranks - 1)) == 0, err);
}

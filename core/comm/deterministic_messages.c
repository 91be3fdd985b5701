#include <string.h>

#include "core/comm/deterministic.h"

/* Of messages between two ranks. */
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
    if (d->stride > INT32_MAX) /* MPI's displacements and counts are int */
        return dpt_fail(err, DPT_BAD_JOB,
                        "comm.reduction: reproducible: over 2^31 parameters on "
                        "several nodes are not possible; allreduce is");
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
    d->received = dpt_alloc_array(floats, sizeof(float));
    d->received_floats = d->received != NULL ? floats : 0;
    return d->received != NULL
               ? DPT_OK
               : dpt_fail_memory(err, "the ranks' gradients", (double)floats * sizeof(float));
}

/* Sends every rank its slice of all blocks, the k-th block of each rank in the k-th exchange. */
static enum dpt_status exchange(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                                const int32_t *first, size_t floats, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    const int most = count_blocks(d, first);

    for (int k = 0; k < most; k++) {
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

/* Sends n floats to `partner` and receives m floats from it, which does the same with n and m
 * exchanged. */
static enum dpt_status sendrecv(const struct dpt_group *g, int partner, const float *send, size_t n,
                                float *receive, size_t m, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_STEP(g, MPI_Sendrecv, send, (int)n, MPI_FLOAT, partner, TAG, receive, (int)m, MPI_FLOAT,
                 partner, TAG, dpt_mpi_comm(g), MPI_STATUS_IGNORE);
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

        DPT_TRY(
            sendrecv(&d->comm->world, d->rank ^ bit, given, upper ? below : above, spare, n, err));
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

        DPT_TRY(sendrecv(&d->comm->world, d->rank ^ bit, x + have, edge(d, low + held, n) - have,
                         x + lacks, edge(d, other + held, n) - lacks, err));
        low = other < low ? other : low;
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
 * is behind the chunks. */
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

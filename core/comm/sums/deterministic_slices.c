#include "core/base/pool.h"
#include "core/comm/sums/deterministic.h"

/* Chunks a rank from which on slices are made of them. */
enum { WORTH = 4 };

bool dpt_deterministic_in_chunks(const struct dpt_deterministic_allreduce *d)
{
    return d->sharded || (d->window && d->chunks.n > 0 &&
                          d->stride >= (size_t)d->ranks * WORTH * DPT_SUM_OF_SQUARES_CHUNK);
}

/* Between nodes the slices differ by at most a cache line where they can, since ranks with longer
 * messages than others fall behind. What is after the chunks goes with the last slice. */
void dpt_deterministic_cut(struct dpt_deterministic_allreduce *d)
{
    const size_t n = d->sharded ? dpt_deterministic_chunked(d) : d->stride;
    size_t begin, end, k = 0;

    for (int i = 0; i < d->ranks; i++) {
        dpt_part_in_units(n, DPT_LINE, i, d->ranks, &begin, &end);
        while (dpt_deterministic_in_chunks(d) && k < d->chunks.n &&
               (d->chunks.begin[k] < begin || d->chunks.begin[k] % DPT_LINE != 0))
            k++;
        d->cut[i] = dpt_deterministic_in_chunks(d) ? d->chunks.begin[k] : begin;
        d->chunk[i] = k;
    }
    d->cut[d->ranks] = d->stride;
    d->chunk[d->ranks] = d->chunks.n;
}

int dpt_deterministic_slice_of(const struct dpt_deterministic_allreduce *d, int rank)
{
    return dpt_internode_slice_of(d->internode, rank);
}

void dpt_deterministic_floats(const struct dpt_deterministic_allreduce *d, int rank, size_t *begin,
                              size_t *end)
{
    const int i = dpt_deterministic_slice_of(d, rank);

    *begin = d->cut[i];
    *end = d->cut[i + 1];
}

struct dpt_slice dpt_deterministic_slice(const struct dpt_deterministic_allreduce *d, int rank)
{
    const int i = dpt_deterministic_slice_of(d, rank);
    const size_t end = d->cut[i + 1];

    return (struct dpt_slice){
        .begin = d->cut[i],
        .end = end < dpt_deterministic_chunked(d) ? end : dpt_deterministic_chunked(d),
        .first = d->chunk[i],
        .last = d->chunk[i + 1]};
}

int dpt_deterministic_list(struct dpt_deterministic_allreduce *d, int32_t total,
                           const int32_t *first)
{
    int n = 0;

    for (int r = d->first; r < d->end; r++) {
        struct dpt_block blocks[DPT_TREE_BLOCKS];
        const int count = dpt_tree_blocks(first[r], first[r + 1], total, blocks);
        const int32_t *offset = d->notices[r - d->first].offset;

        for (int k = 0; k < count; k++)
            d->parts[n++] =
                (struct dpt_deterministic_part){blocks[k], d->base + (size_t)offset[k] * d->stride};
    }
    return n;
}

void dpt_deterministic_add(const struct dpt_deterministic_allreduce *d, int parts, int32_t total,
                           size_t at, size_t n, struct dpt_tree *sum)
{
    dpt_tree_begin(sum, total);
    for (int i = 0; i < parts; i++)
        dpt_tree_push(sum, d->parts[i].block, d->parts[i].value + at, n, NULL, NULL);
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

enum dpt_status dpt_deterministic_square(struct dpt_deterministic_allreduce *d, const float *sum,
                                         struct dpt_error *err)
{
    const struct dpt_slice own = dpt_deterministic_slice(d, d->rank);
    const size_t *begin = d->chunks.begin;

    for (size_t k = own.first; k < own.last; k++)
        d->sums_of_squares[k] = dpt_sum_of_squares(sum + begin[k], begin[k + 1] - begin[k]);
    return dpt_deterministic_gather_chunks(d, d->sums_of_squares, 1, err);
}

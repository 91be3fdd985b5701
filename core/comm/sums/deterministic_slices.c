#include <string.h>

#include "core/base/pool.h"
#include "core/comm/sums/deterministic.h"

/* Chunks a rank from which on slices are made of them. */
enum { WORTH = 4 };

bool dpt_deterministic_in_chunks(const struct dpt_deterministic_allreduce *d)
{
    return d->sharded || (d->window && d->chunks.n > 0 &&
                          d->stride >= (size_t)d->ranks * WORTH * DPT_SUM_OF_SQUARES_CHUNK);
}

/* Cuts a range. */
static void cut_range(struct dpt_deterministic_allreduce *d, size_t *cut, size_t *chunk,
                      size_t from, size_t to)
{
    const bool in_chunks = dpt_deterministic_in_chunks(d);
    size_t begin, end, k = 0;

    while (in_chunks && k < d->chunks.n && d->chunks.begin[k] < from)
        k++;
    for (int i = 0; i < d->ranks; i++) {
        dpt_part_in_units(to - from, DPT_LINE, i, d->ranks, &begin, &end);
        begin += from;
        while (in_chunks && k < d->chunks.n && d->chunks.begin[k] < to &&
               (d->chunks.begin[k] < begin ||
                (d->chunks.begin[k] % DPT_LINE != 0 && d->chunks.begin[k] != from)))
            k++;
        cut[i] = in_chunks ? d->chunks.begin[k] : begin;
        chunk[i] = k;
    }
    while (in_chunks && k < d->chunks.n && d->chunks.begin[k] < to)
        k++;
    cut[d->ranks] = to;
    chunk[d->ranks] = k;
}

/* Between nodes the slices differ by at most a cache line where they can, since ranks with longer
 * messages than others fall behind. What is after the chunks goes with the last slice. */
void dpt_deterministic_cut(struct dpt_deterministic_allreduce *d)
{
    const size_t n = (size_t)d->ranks + 1;

    for (int k = 0; k < d->ranges; k++)
        cut_range(d, d->cut + (size_t)k * n, d->chunk + (size_t)k * n, d->edge[k], d->edge[k + 1]);
    if (d->ranges > 1)
        return;
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

int dpt_deterministic_ranges(const struct dpt_deterministic_allreduce *d)
{
    return d->ranges;
}

struct dpt_slice dpt_deterministic_slice(const struct dpt_deterministic_allreduce *d, int rank,
                                         int range)
{
    const size_t i =
        (size_t)range * ((size_t)d->ranks + 1) + (size_t)dpt_deterministic_slice_of(d, rank);
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

/* Copies `each` numbers of all chunks of a rank, to where they lie rank by rank or back. */
static void copy_chunks(const struct dpt_deterministic_allreduce *d, int rank, double *values,
                        double *packed, int each, bool back)
{
    for (int k = 0; k < d->ranges; k++) {
        const struct dpt_slice slice = dpt_deterministic_slice(d, rank, k);
        const size_t n = (slice.last - slice.first) * (size_t)each;
        double *const here = values + slice.first * (size_t)each;

        memcpy(back ? here : packed, back ? packed : here, n * sizeof *here);
        packed += n;
    }
}

/* Of several ranges all chunks of a rank are packed. */
enum dpt_status dpt_deterministic_gather_chunks(struct dpt_deterministic_allreduce *d,
                                                double *values, int each, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    const bool packs = d->ranges > 1;
    double *all = values;
    int at = 0;

    if (packs) {
        DPT_GROW(d->packed, &d->packed_room, d->chunks.n * (size_t)each, "the norms", err);
        all = d->packed;
    }
    for (int r = 0; r < d->ranks; r++) {
        d->receive.count[r] = 0;
        for (int k = 0; k < d->ranges; k++) {
            const struct dpt_slice theirs = dpt_deterministic_slice(d, r, k);

            d->receive.count[r] += (int)(theirs.last - theirs.first) * each;
            d->receive.at[r] = packs ? at : (int)theirs.first * each;
        }
        at += d->receive.count[r];
    }
    if (packs)
        copy_chunks(d, d->rank, values, all + d->receive.at[d->rank], each, false);
    DPT_TRY_STEP(world, MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_DOUBLE, all, d->receive.count,
                 d->receive.at, MPI_DOUBLE, dpt_mpi_comm(world));
    for (int r = 0; r < d->ranks && packs; r++)
        copy_chunks(d, r, values, all + d->receive.at[r], each, true);
out:
    return status;
}

void dpt_deterministic_square(struct dpt_deterministic_allreduce *d, int range, const float *sum)
{
    const struct dpt_slice own = dpt_deterministic_slice(d, d->rank, range);
    const size_t *begin = d->chunks.begin;

    for (size_t k = own.first; k < own.last; k++)
        d->sums_of_squares[k] = dpt_sum_of_squares(sum + begin[k], begin[k + 1] - begin[k]);
}

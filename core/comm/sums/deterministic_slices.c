#include "core/base/pool.h"
#include "core/comm/sums/deterministic.h"

/* Chunks a rank from which on slices are made of them. */
enum { WORTH = 4 };

bool dpt_deterministic_in_chunks(const struct dpt_deterministic_allreduce *d)
{
    return d->sharded || (d->window && d->chunks.n > 0 &&
                          d->stride >= (size_t)d->ranks * WORTH * DPT_SUM_OF_SQUARES_CHUNK);
}

/* In messages the slices differ by at most a cache line where they can, since ranks with longer
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

/* The slice that a rank adds. With 2^k ranks it is the one that halving leaves it (sum_pairs): the
 * number of the rank with its bits reversed. */
int dpt_deterministic_slice_of(const struct dpt_deterministic_allreduce *d, int rank)
{
    int i = 0;

    if ((d->ranks & (d->ranks - 1)) != 0)
        return rank;
    for (int bit = 1; bit < d->ranks; bit *= 2)
        i = 2 * i + ((rank & bit) != 0);
    return i;
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
                           const int32_t *first, size_t floats)
{
    int n = 0;

    for (int r = 0; r < d->ranks; r++) {
        struct dpt_block blocks[DPT_TREE_BLOCKS];
        const int count = dpt_tree_blocks(first[r], first[r + 1], total, blocks);

        for (int k = 0; k < count; k++, n++)
            d->parts[n] = (struct dpt_deterministic_part){
                blocks[k], d->window ? d->base + (size_t)d->notices[r].offset[k] * d->stride
                                     : d->received + (size_t)n * floats};
    }
    return n;
}

const float *dpt_deterministic_add(const struct dpt_deterministic_allreduce *d, int parts,
                                   int32_t total, size_t at, size_t n)
{
    struct dpt_tree whole;

    dpt_tree_begin(&whole, total);
    for (int i = 0; i < parts; i++)
        dpt_tree_push(&whole, d->parts[i].block, d->parts[i].value + at, n, NULL, NULL);
    return whole.value[0];
}

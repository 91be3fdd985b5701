#include "core/comm/sums/deterministic_allreduce.h"

#include <string.h>

#include "core/comm/sums/deterministic.h"

/* Floats that one thread copies faster than several. */
enum { ALONE = 32 * 1024 };

/* Whether the ranks share their slices' weights through memory of the host, and whether that lies
 * beside the sum: elsewhere than in one window the slice's sum is in it. */
static bool shares_weights(const struct dpt_deterministic_allreduce *d)
{
    return d->sharded && d->host->size > 1;
}

static bool has_room_for_weights(const struct dpt_deterministic_allreduce *d)
{
    return shares_weights(d) && (d->keeps_sum || !d->window);
}

/* All in one piece of the host's memory: the barrier, notices, the sum, every rank's buffers. */
static enum dpt_status open_window(struct dpt_deterministic_allreduce *d, bool spin,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)d->host->size, barrier = dpt_node_barrier_bytes(d->host->size);
    const size_t notices = dpt_round_up(ranks * sizeof *d->notices, 1);
    const bool sum = d->ranks > 1;
    size_t squares, floats, buffers;
    double most;
    char *at;

    /* Each rank gets as many buffers as the rank with the most, so that all know their offsets. */
    DPT_TRY(dpt_group_max(d->host, d->buffers, &most, err));
    buffers = (size_t)most * ranks;
    floats = (buffers + sum + has_room_for_weights(d)) * d->stride * sizeof(float);
    squares =
        d->window && dpt_deterministic_in_chunks(d) ? d->chunks.n * sizeof *d->sums_of_squares : 0;
    if (ranks > 1) {
        DPT_TRY(dpt_shared_open(&d->shared, d->host, barrier + notices + floats + squares, err));
        at = d->shared.bytes;
        dpt_node_barrier_open(&d->barrier, d->host, at, spin);
    } else {
        at = d->memory = dpt_alloc(barrier + notices + floats);
        if (at == NULL)
            DPT_TRY(dpt_fail_memory(err, "the gradients", (double)floats));
    }
    d->notices = (struct dpt_deterministic_notice *)(void *)(at + barrier);
    d->base = (float *)(void *)(at + barrier + notices);
    d->result = sum ? d->base : NULL;
    d->base += sum ? d->stride : 0;
    d->own = d->base + (size_t)most * (size_t)d->host->rank * d->stride;
    d->weights = !shares_weights(d)        ? NULL
                 : has_room_for_weights(d) ? d->base + buffers * d->stride
                                           : d->result;
    if (squares > 0)
        d->sums_of_squares = (double *)(void *)(at + barrier + notices + floats);
out:
    return status;
}

/* Opens the memory of the hosts, which are the nodes, or every rank by itself. */
static enum dpt_status open_host(struct dpt_deterministic_allreduce *d, bool nodes, bool spin,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_internode_open(&d->internode, d->comm, &nodes, err));
    dpt_internode_members(d->internode, &d->first, &d->end);
    d->host = nodes ? &d->comm->node : &d->one;
    d->window = d->ranks > 1 && d->host->size == d->ranks;
    DPT_TRY(dpt_group_agree(&d->comm->world, open_window(d, spin, err), err));
out:
    if (status != DPT_OK)
        dpt_deterministic_close_host(d);
    return status;
}

/* Opens what adds the ranks' blocks. */
static enum dpt_status open_blocks(struct dpt_deterministic_allreduce *d,
                                   const struct dpt_deterministic_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const enum dpt_deterministic_way way = spec->way;

    if (way == DPT_DETERMINISTIC_MESSAGES || open_host(d, true, spec->spin, err) != DPT_OK) {
        if (way == DPT_DETERMINISTIC_WINDOW)
            DPT_TRY(err->status);
        DPT_TRY(open_host(d, false, spec->spin, err));
    }
    d->parts = dpt_alloc_array((size_t)d->host->size * DPT_TREE_BLOCKS, sizeof *d->parts);
    if (d->sharded && !d->window)
        d->own_squares = dpt_alloc_array(d->chunks.n, sizeof *d->own_squares);
    if (d->parts == NULL || (d->sharded && !d->window && d->own_squares == NULL))
        status = dpt_fail_memory(err, "the reduction", 0);
    if (d->own_squares != NULL)
        d->sums_of_squares = d->own_squares;
    DPT_TRY(dpt_group_agree(&d->comm->world, status, err));
    dpt_deterministic_cut(d);
out:
    return status;
}

/* Opens what adds micro-batches taken round-robin. */
static enum dpt_status open_rounds(struct dpt_deterministic_allreduce *d,
                                   const struct dpt_deterministic_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const enum dpt_deterministic_way way = spec->way;
    bool nodes;

    d->host = &d->one;
    memcpy(d->unit, spec->unit, ((size_t)spec->units + 1) * sizeof *d->unit);
    d->pitch = dpt_rounds_pitch(d, spec);
    if (way != DPT_DETERMINISTIC_MESSAGES && d->comm->node.size == d->ranks &&
        dpt_rounds_open_window(d, spec->spin, err) != DPT_OK && way == DPT_DETERMINISTIC_WINDOW)
        DPT_TRY(err->status);
    if (!d->window && spec->units > 1) {
        d->ranges = spec->units;
        memcpy(d->edge, spec->unit, ((size_t)spec->units + 1) * sizeof *d->edge);
    }
    nodes = spec->gathers && !d->window && way != DPT_DETERMINISTIC_MESSAGES;
    if (!nodes || dpt_units_open_room(d, spec, true, err) != DPT_OK)
        DPT_TRY(dpt_units_open_room(d, spec, false, err));
    DPT_TRY(dpt_group_agree(&d->comm->world, dpt_rounds_open(d, spec, err), err));
out:
    return status;
}

enum dpt_status dpt_deterministic_open(struct dpt_deterministic_allreduce **allreduce,
                                       const struct dpt_comm *comm,
                                       const struct dpt_deterministic_spec *spec,
                                       struct dpt_error *err)
{
    static const struct dpt_group one = {.size = 1};
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &comm->world;
    const size_t ranges = spec->units > 1 ? (size_t)spec->units : 1;
    struct dpt_deterministic_allreduce *d = dpt_alloc(sizeof *d);

    *allreduce = NULL;
    if (d != NULL) {
        d->comm = comm;
        d->one = one;
        d->rank = world->rank;
        d->ranks = world->size;
        d->n = spec->n;
        d->pitch = d->stride = dpt_round_up(spec->n, sizeof(float));
        d->buffers = spec->buffers;
        d->chunks = spec->chunks;
        d->sharded = spec->sharded;
        d->keeps_sum = spec->keeps_sum;
        d->receive.count = dpt_alloc_array((size_t)d->ranks * 2, sizeof(int));
        d->cut = dpt_alloc_array(2 * ranges * ((size_t)d->ranks + 1), sizeof *d->cut);
        d->edge = dpt_alloc_array(2 * (ranges + 1), sizeof *d->edge);
        d->ranges = 1;
    }
    if (d == NULL || d->cut == NULL || d->edge == NULL || d->receive.count == NULL)
        status = dpt_fail_memory(err, "the reduction", 0);
    DPT_TRY(dpt_group_agree(world, status, err));
    d->chunk = d->cut + ranges * ((size_t)d->ranks + 1);
    d->unit = d->edge + ranges + 1;
    d->edge[1] = d->sharded ? dpt_deterministic_chunked(d) : d->stride;
    d->receive.at = d->receive.count + d->ranks;
    DPT_TRY(spec->units > 0 ? open_rounds(d, spec, err) : open_blocks(d, spec, err));
out:
    if (status != DPT_OK)
        dpt_deterministic_close(d);
    else
        *allreduce = d;
    return status;
}

void dpt_deterministic_close(struct dpt_deterministic_allreduce *d)
{
    if (d == NULL)
        return;
    if (d->rounds != NULL)
        dpt_rounds_close(d);
    dpt_deterministic_close_host(d);
    dpt_free(d->own_squares);
    dpt_free(d->received);
    dpt_free(d->parts);
    dpt_free(d->cut);
    dpt_free(d->edge);
    dpt_free(d->packed);
    dpt_free(d->receive.count);
    dpt_free(d);
}

float *dpt_deterministic_buffer(const struct dpt_deterministic_allreduce *d, int i)
{
    return d->own + (size_t)i * d->pitch;
}

float *dpt_deterministic_result(const struct dpt_deterministic_allreduce *d)
{
    return d->result != NULL ? d->result : d->own;
}

const float *dpt_deterministic_slice_sum(const struct dpt_deterministic_allreduce *d, int range)
{
    if (d->rounds != NULL)
        return dpt_rounds_slice_sum(d, range);
    return d->slice != NULL ? d->slice : dpt_deterministic_result(d);
}

const double *dpt_deterministic_sums_of_squares(const struct dpt_deterministic_allreduce *d)
{
    return d->sums_of_squares;
}

enum dpt_status dpt_deterministic_reserve(struct dpt_deterministic_allreduce *d,
                                          const int32_t *first, struct dpt_error *err)
{
    return d->ranks == 1 || d->window ? DPT_OK
                                      : dpt_internode_plan(d->internode, first, d->cut, err);
}

enum dpt_status dpt_deterministic_publish(struct dpt_deterministic_allreduce *d,
                                          const struct dpt_tree *mine, const float *words,
                                          float *word_sums, int n, struct dpt_error *err)
{
    struct dpt_deterministic_notice *notice = &d->notices[d->host->rank];

    for (int k = 0; k < mine->n; k++)
        notice->offset[k] = (int32_t)((size_t)(mine->value[k] - d->base) / d->stride);
    if (!d->window) {
        dpt_deterministic_await_host(d); /* all values are there */
        return dpt_group_sum_floats(&d->comm->world, words, word_sums, (size_t)n, err);
    }
    for (int i = 0; i < n; i++) {
        notice->words[i] = words[i];
        word_sums[i] = 0;
    }
    dpt_deterministic_await_host(d);
    for (int r = 0; r < d->ranks; r++)
        for (int i = 0; i < n; i++)
            word_sums[i] += d->notices[r].words[i];
    return DPT_OK;
}

/* Sums this rank's slice chunk by chunk, so that a chunk is still in the cache when it is copied to
 * the result and its squares are summed. In shards a chunk stays where it was summed, since nobody
 * else wants it. */
static void sum_window(struct dpt_deterministic_allreduce *d, int32_t total, int parts)
{
    const bool stays = d->sharded && !d->keeps_sum;
    size_t begin, end, k = d->chunk[dpt_deterministic_slice_of(d, d->rank)];

    dpt_deterministic_floats(d, d->rank, &begin, &end);
    for (size_t at = begin, n; at < end; at += n) {
        const bool squared = d->sums_of_squares != NULL && k < d->chunks.n;
        struct dpt_tree sum;

        n = end - at < DPT_SUM_OF_SQUARES_CHUNK ? end - at : DPT_SUM_OF_SQUARES_CHUNK;
        n = squared ? d->chunks.begin[k + 1] - at : n;
        dpt_deterministic_add(d, parts, total, at, n, &sum);
        if (squared)
            d->sums_of_squares[k++] = dpt_sum_of_squares(sum.value[0], n);
        if (!squared || !stays)
            memcpy(d->result + at, sum.value[0], n * sizeof *sum.value[0]);
    }
    d->slice = stays ? d->parts[0].value : d->result;
    dpt_deterministic_await_host(d); /* all slices are there */
}

/* Adds what the host's ranks have for the slices that this one handles, a cache full at a time.
 * value: gets where the host's blocks are then. */
static void sum_host(struct dpt_deterministic_allreduce *d, int32_t total, int parts,
                     float *value[DPT_TREE_BLOCKS])
{
    for (int slice = 0; slice < d->ranks; slice++) {
        if (!dpt_internode_handles(d->internode, slice))
            continue;
        for (size_t at = d->cut[slice], n; at < d->cut[slice + 1]; at += n) {
            const size_t left = d->cut[slice + 1] - at;
            struct dpt_tree sum;

            n = left < DPT_SUM_OF_SQUARES_CHUNK ? left : DPT_SUM_OF_SQUARES_CHUNK;
            dpt_deterministic_add(d, parts, total, at, n, &sum);
            for (int k = 0; k < sum.n; k++)
                value[k] = sum.value[k] - at;
        }
    }
}

/* The sum of several hosts: each adds its own, then they exchange what they have. */
static enum dpt_status sum_hosts(struct dpt_deterministic_allreduce *d, const int32_t *first,
                                 int32_t total, int parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    float *value[DPT_TREE_BLOCKS];
    const bool all = !d->sharded || d->keeps_sum;

    sum_host(d, total, parts, value);
    DPT_TRY(dpt_internode_sum(d->internode, first, d->cut, value, d->result, err));
    if (d->sharded) {
        dpt_deterministic_square(d, 0, d->result);
        DPT_TRY(dpt_deterministic_gather_chunks(d, d->sums_of_squares, 1, err));
    }
    DPT_TRY(dpt_internode_gather(d->internode, d->cut, d->result,
                                 all ? 0 : dpt_deterministic_chunked(d), d->stride, err));
    dpt_deterministic_await_host(d); /* all that the host's ranks have received is there */
out:
    return status;
}

enum dpt_status dpt_deterministic_sum(struct dpt_deterministic_allreduce *d,
                                      const struct dpt_tree *mine, const int32_t *first,
                                      struct dpt_error *err)
{
    int parts;

    if (d->ranks == 1) {
        if (mine->value[0] != d->own)
            memcpy(d->own, mine->value[0], d->n * sizeof(float));
        return DPT_OK;
    }
    parts = dpt_deterministic_list(d, mine->total, first);
    if (!d->window)
        return sum_hosts(d, first, mine->total, parts, err);
    sum_window(d, mine->total, parts);
    return DPT_OK;
}

/* --- the weights of shards -------------------------------------------------------------------- */

struct copying {
    const struct dpt_deterministic_allreduce *d;
    float *x;
    int threads;
};

static void copy_range(const struct copying *c, size_t begin, size_t end)
{
    if (begin < end)
        memcpy(c->x + begin, c->d->weights + begin, (end - begin) * sizeof *c->x);
}

/* A thread's part of the others' weights, which are counted as if they had no gap. */
static void copy_others(void *arg, int thread)
{
    const struct copying *c = arg;
    const struct dpt_slice own = dpt_deterministic_slice(c->d, c->d->rank, 0);
    const size_t gap = own.begin, width = own.end - gap;
    size_t begin, end;

    dpt_part_in_units(dpt_deterministic_chunked(c->d) - width, DPT_LINE, thread, c->threads, &begin,
                      &end);
    copy_range(c, begin, end < gap ? end : gap);
    copy_range(c, (begin > gap ? begin : gap) + width, end + width);
}

float *dpt_deterministic_weights(const struct dpt_deterministic_allreduce *d)
{
    return d->weights;
}

enum dpt_status dpt_deterministic_share(struct dpt_deterministic_allreduce *d, float *x,
                                        struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct copying c = {d, x, dpt_pool_threads(pool)};
    const size_t n = dpt_deterministic_chunked(d);

    if (d->weights == NULL) {
        for (int k = 0; k < d->ranges; k++)
            DPT_TRY(dpt_internode_gather(d->internode, dpt_deterministic_cuts(d, k), x, d->edge[k],
                                         d->ranges > 1 ? d->edge[k + 1] : n, err));
        return DPT_OK;
    }
    if (!d->window)
        DPT_TRY(dpt_internode_gather(d->internode, d->cut, d->weights, 0, n, err));
    dpt_node_barrier_wait(&d->barrier); /* all weights are there */
    if (c.threads > 1 && n > ALONE) {
        dpt_pool_run(pool, copy_others, &c);
    } else {
        c.threads = 1;
        copy_others(&c, 0);
    }
    if (d->rounds != NULL)
        dpt_node_barrier_wait(&d->barrier); /* a gradient is next in that memory */
out:
    return status;
}

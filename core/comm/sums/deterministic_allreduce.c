#include "core/comm/sums/deterministic_allreduce.h"

#include <string.h>

#include "core/comm/sums/deterministic.h"

/* Floats that one thread copies faster than several. */
enum { ALONE = 32 * 1024 };

/* All in one piece of shared memory: the barrier, notices, the sum, every rank's buffers. */
static enum dpt_status open_window(struct dpt_deterministic_allreduce *d, bool spin,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t barrier = dpt_node_barrier_bytes(d->ranks);
    const size_t notices = dpt_round_up((size_t)d->ranks * sizeof *d->notices, 1);
    size_t sums_of_squares, floats, bytes;
    double most;
    char *at;

    /* Each rank gets as many buffers as the rank with the most, so that all know their offsets. */
    DPT_TRY(dpt_group_max(&d->comm->node, d->buffers, &most, err));
    floats = ((size_t)most * (size_t)d->ranks + 1) * d->stride * sizeof(float);
    floats += d->sharded && d->keeps_sum ? d->stride * sizeof(float) : 0;
    d->window = true;
    sums_of_squares = dpt_deterministic_in_chunks(d) ? d->chunks.n * sizeof *d->sums_of_squares : 0;
    bytes = barrier + notices + floats + sums_of_squares;
    DPT_TRY(dpt_shared_open(&d->shared, &d->comm->node, bytes, err));
    at = d->shared.bytes;
    dpt_node_barrier_open(&d->barrier, &d->comm->node, at, spin);
    d->notices = (struct dpt_deterministic_notice *)(void *)(at + barrier);
    d->result = (float *)(void *)(at + barrier + notices);
    d->base = d->result + d->stride;
    d->own = d->base + (size_t)most * (size_t)d->rank * d->stride;
    d->weights = d->keeps_sum ? d->base + (size_t)most * (size_t)d->ranks * d->stride : d->result;
    if (sums_of_squares > 0)
        d->sums_of_squares = (double *)(void *)(at + barrier + notices + floats);
out:
    d->window = status == DPT_OK;
    return status;
}

enum dpt_status dpt_deterministic_open(struct dpt_deterministic_allreduce **allreduce,
                                       const struct dpt_comm *comm,
                                       const struct dpt_deterministic_spec *spec,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const enum dpt_deterministic_way way = spec->way;
    const struct dpt_group *world = &comm->world;
    struct dpt_deterministic_allreduce *d = dpt_alloc(sizeof *d);

    *allreduce = NULL;
    if (d != NULL) {
        d->comm = comm;
        d->rank = world->rank;
        d->ranks = world->size;
        d->n = spec->n;
        d->stride = dpt_round_up(spec->n, sizeof(float));
        d->buffers = spec->buffers;
        d->chunks = spec->chunks;
        d->sharded = spec->sharded;
        d->keeps_sum = spec->keeps_sum;
        d->send.count = dpt_alloc_array((size_t)d->ranks * 4, sizeof(int));
        d->parts = dpt_alloc_array((size_t)d->ranks * DPT_TREE_BLOCKS, sizeof *d->parts);
        d->cut = dpt_alloc_array((size_t)d->ranks * 2 + 2, sizeof *d->cut);
    }
    if (d == NULL || d->parts == NULL || d->cut == NULL || d->send.count == NULL)
        status = dpt_fail_memory(err, "the reduction", 0);
    DPT_TRY(dpt_group_agree(world, status, err));
    d->chunk = d->cut + d->ranks + 1;
    d->send.at = d->send.count + d->ranks;
    d->receive.count = d->send.at + d->ranks;
    d->receive.at = d->receive.count + d->ranks;
    d->pitch = d->stride;
    if (spec->units > 0) {
        d->pitch = dpt_rounds_pitch(d, spec);
        if (way != DPT_DETERMINISTIC_MESSAGES && comm->node.size == d->ranks &&
            dpt_rounds_open_window(d, spec->spin, err) != DPT_OK && way == DPT_DETERMINISTIC_WINDOW)
            DPT_TRY(err->status);
        DPT_TRY(dpt_group_agree(world, dpt_rounds_open(d, spec, err), err));
        goto out;
    }
    if (way != DPT_DETERMINISTIC_MESSAGES && d->ranks > 1 && comm->node.size == d->ranks) {
        status = open_window(d, spec->spin, err);
        if (status == DPT_OK || way == DPT_DETERMINISTIC_WINDOW)
            goto out;
    }
    DPT_TRY(dpt_group_agree(world, dpt_messages_open(d, err), err));
out:
    if (status == DPT_OK)
        dpt_deterministic_cut(d);
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
    if (d->rounds != NULL) {
        dpt_rounds_close(d);
    } else if (d->window) {
        dpt_shared_close(&d->shared);
    } else {
        dpt_free(d->own);
        dpt_free(d->result);
        dpt_free(d->sums_of_squares);
    }
    dpt_free(d->received);
    dpt_free(d->parts);
    dpt_free(d->cut);
    dpt_free(d->before);
    dpt_free(d->send.count);
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

const float *dpt_deterministic_slice_sum(const struct dpt_deterministic_allreduce *d)
{
    return d->slice != NULL ? d->slice : dpt_deterministic_result(d);
}

const double *dpt_deterministic_sums_of_squares(const struct dpt_deterministic_allreduce *d)
{
    return d->sums_of_squares;
}

enum dpt_status dpt_deterministic_publish(struct dpt_deterministic_allreduce *d,
                                          const struct dpt_tree *mine, const float *words,
                                          float *word_sums, int n, struct dpt_error *err)
{
    struct dpt_deterministic_notice *notice = d->window ? &d->notices[d->rank] : NULL;

    if (notice == NULL)
        return dpt_group_sum_floats(&d->comm->world, words, word_sums, (size_t)n, err);
    for (int k = 0; k < mine->n; k++)
        notice->offset[k] = (int32_t)((size_t)(mine->value[k] - d->base) / d->stride);
    for (int i = 0; i < n; i++) {
        notice->words[i] = words[i];
        word_sums[i] = 0;
    }
    dpt_node_barrier_wait(&d->barrier); /* all values are there */
    for (int r = 0; r < d->ranks; r++)
        for (int i = 0; i < n; i++)
            word_sums[i] += d->notices[r].words[i];
    return DPT_OK;
}

/* Sums this rank's slice chunk by chunk, so that a chunk is still in the cache when it is copied to
 * the result and its squares are summed. In shards a chunk stays where it was summed, since nobody
 * else wants it. */
static void sum_window(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                       const int32_t *first)
{
    const int parts = dpt_deterministic_list(d, mine->total, first, 0);
    const bool stays = d->sharded && !d->keeps_sum;
    size_t begin, end, k = d->chunk[dpt_deterministic_slice_of(d, d->rank)];

    dpt_deterministic_floats(d, d->rank, &begin, &end);
    for (size_t at = begin, n; at < end; at += n) {
        const bool squared = d->sums_of_squares != NULL && k < d->chunks.n;
        const float *sum;

        n = end - at < DPT_SUM_OF_SQUARES_CHUNK ? end - at : DPT_SUM_OF_SQUARES_CHUNK;
        n = squared ? d->chunks.begin[k + 1] - at : n;
        sum = dpt_deterministic_add(d, parts, mine->total, at, n);
        if (squared)
            d->sums_of_squares[k++] = dpt_sum_of_squares(sum, n);
        if (!squared || !stays)
            memcpy(d->result + at, sum, n * sizeof *sum);
    }
    d->slice = stays ? d->parts[0].value : d->result;
    dpt_node_barrier_wait(&d->barrier); /* all slices are there */
}

enum dpt_status dpt_deterministic_sum(struct dpt_deterministic_allreduce *d,
                                      const struct dpt_tree *mine, const int32_t *first,
                                      struct dpt_error *err)
{
    if (d->ranks == 1) {
        if (mine->value[0] != d->own)
            memcpy(d->own, mine->value[0], d->n * sizeof(float));
        return DPT_OK;
    }
    if (!d->window)
        return dpt_messages_sum(d, mine, first, err);
    sum_window(d, mine, first);
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
    const struct dpt_slice own = dpt_deterministic_slice(c->d, c->d->rank);
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
    struct copying c = {d, x, dpt_pool_threads(pool)};

    if (d->weights == NULL)
        return dpt_messages_share(d, x, err);
    dpt_node_barrier_wait(&d->barrier); /* all weights are there */
    if (c.threads > 1 && dpt_deterministic_chunked(d) > ALONE) {
        dpt_pool_run(pool, copy_others, &c);
    } else {
        c.threads = 1;
        copy_others(&c, 0);
    }
    if (d->rounds != NULL)
        dpt_node_barrier_wait(&d->barrier); /* a gradient is next in that memory */
    return DPT_OK;
}

#include "core/comm/deterministic_allreduce.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/base/pool.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/internal.h"

enum {
    LINE = DPT_ALIGN / sizeof(float),
    CHUNK = 1024, /* floats that are added at a time: they fit the L1 cache */
    WORTH = 4,    /* chunks a rank from which on sums of squares are computed here */
    TAG = 0x7ee,  /* of messages between two ranks */
};

/* A rank's message to the others of its node about a sum. */
struct notice {
    float words[DPT_DETERMINISTIC_WORDS];
    int32_t offset[DPT_TREE_BLOCKS]; /* of its blocks' buffers, counted from the window's start */
};

/* A rank's block, and where its values are: in the window, or those of this rank's slice. */
struct part {
    struct dpt_block block;
    float *value;
};

struct dpt_deterministic_allreduce {
    const struct dpt_comm *comm;
    int rank, ranks;
    size_t n, stride; /* floats of a sum; of a buffer */
    int buffers;
    bool window;
    struct dpt_shared shared;
    struct dpt_node_barrier barrier;
    struct notice *notices;   /* [ranks], in the window */
    float *own;               /* this rank's buffers */
    float *base;              /* the window's first buffer */
    struct part *parts;       /* those of a sum, in order: room for every rank's */
    struct dpt_chunks chunks; /* whose sums of squares are wanted */
    size_t *cut;   /* [ranks + 1]: where the slices begin: the floats of a sum that one rank adds */
    size_t *chunk; /* [ranks + 1]: WINDOW: the first chunk of each slice */
    double *sums_of_squares; /* WINDOW: of the sum's chunks; NULL: slices have no whole chunks */
    float *result;
    float *received; /* MESSAGES: all blocks of this rank's slice */
    size_t received_floats;
    struct dpt_parts send, receive; /* MESSAGES: what goes to and comes from each rank */
    int64_t *before;                /* MESSAGES: [ranks + 1]: blocks of the ranks before each */
};

/* Whether slices are to be made of whole chunks, for which they have to be large enough. */
static bool in_chunks(const struct dpt_deterministic_allreduce *d)
{
    return d->window && d->chunks.n > 0 && d->stride >= (size_t)d->ranks * WORTH * CHUNK;
}

/* In messages the slices differ by at most a cache line, since ranks with longer messages than
 * others fall behind. */
static void cut_slices(struct dpt_deterministic_allreduce *d)
{
    size_t begin, end, k = 0;

    for (int r = 0; r < d->ranks; r++) {
        dpt_part_in_units(d->stride, LINE, r, d->ranks, &begin, &end);
        while (in_chunks(d) && k < d->chunks.n &&
               (d->chunks.begin[k] < begin || d->chunks.begin[k] % LINE != 0))
            k++;
        d->cut[r] = in_chunks(d) ? d->chunks.begin[k] : begin;
        d->chunk[r] = k;
    }
    d->cut[d->ranks] = d->stride;
    d->chunk[d->ranks] = d->chunks.n;
}

/* Finds the floats of a sum that rank r adds. */
static void slice(const struct dpt_deterministic_allreduce *d, int r, size_t *begin, size_t *end)
{
    *begin = d->cut[r];
    *end = d->cut[r + 1];
}

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
    d->window = true;
    sums_of_squares = in_chunks(d) ? d->chunks.n * sizeof *d->sums_of_squares : 0;
    bytes = barrier + notices + floats + sums_of_squares;
    DPT_TRY(dpt_shared_open(&d->shared, &d->comm->node, bytes, err));
    at = d->shared.bytes;
    dpt_node_barrier_open(&d->barrier, &d->comm->node, at, spin);
    d->notices = (struct notice *)(void *)(at + barrier);
    d->result = (float *)(void *)(at + barrier + notices);
    d->base = d->result + d->stride;
    d->own = d->base + (size_t)most * (size_t)d->rank * d->stride;
    if (sums_of_squares > 0)
        d->sums_of_squares = (double *)(void *)(at + barrier + notices + floats);
out:
    d->window = status == DPT_OK;
    return status;
}

static enum dpt_status open_messages(struct dpt_deterministic_allreduce *d, struct dpt_error *err)
{
    const size_t bytes = d->stride * sizeof(float);

    d->own = dpt_alloc_array((size_t)d->buffers, bytes);
    d->result = d->ranks > 1 ? dpt_alloc(bytes) : NULL;
    d->before = dpt_alloc_array((size_t)d->ranks + 1, sizeof *d->before);
    d->send.count = dpt_alloc_array((size_t)d->ranks * 4, sizeof(int));
    if (d->own == NULL || (d->ranks > 1 && d->result == NULL) || d->before == NULL ||
        d->send.count == NULL)
        return dpt_fail_memory(err, "the gradients", (double)bytes * (d->buffers + 1));
    d->send.at = d->send.count + d->ranks;
    d->receive.count = d->send.at + d->ranks;
    d->receive.at = d->receive.count + d->ranks;
    if (d->stride > INT32_MAX) /* MPI's displacements and counts are int */
        return dpt_fail(err, DPT_BAD_JOB,
                        "comm.reduction: reproducible: over 2^31 parameters on "
                        "several nodes are not possible; allreduce is");
    return DPT_OK;
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
        d->parts = dpt_alloc_array((size_t)d->ranks * DPT_TREE_BLOCKS, sizeof *d->parts);
        d->cut = dpt_alloc_array((size_t)d->ranks * 2 + 2, sizeof *d->cut);
        d->chunk = d->cut + d->ranks + 1;
    }
    if (d == NULL || d->parts == NULL || d->cut == NULL)
        status = dpt_fail_memory(err, "the reduction", 0);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (way != DPT_DETERMINISTIC_MESSAGES && d->ranks > 1 && comm->node.size == d->ranks) {
        status = open_window(d, spec->spin, err);
        if (status == DPT_OK || way == DPT_DETERMINISTIC_WINDOW)
            goto out;
    }
    DPT_TRY(dpt_group_agree(world, open_messages(d, err), err));
out:
    if (status == DPT_OK)
        cut_slices(d);
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
    if (d->window) {
        dpt_shared_close(&d->shared);
    } else {
        dpt_free(d->own);
        dpt_free(d->result);
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
    return d->own + (size_t)i * d->stride;
}

float *dpt_deterministic_result(const struct dpt_deterministic_allreduce *d)
{
    return d->result != NULL ? d->result : d->own;
}

const double *dpt_deterministic_sums_of_squares(const struct dpt_deterministic_allreduce *d)
{
    return d->sums_of_squares;
}

enum dpt_status dpt_deterministic_publish(struct dpt_deterministic_allreduce *d,
                                          const struct dpt_tree *mine, const float *words,
                                          float *word_sums, int n, struct dpt_error *err)
{
    struct notice *notice = d->window ? &d->notices[d->rank] : NULL;

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

/* Lists the blocks of all ranks, in order; returns how many there are. floats: from one block's
 * values to the next where they were sent. */
static int list_parts(struct dpt_deterministic_allreduce *d, int32_t total, const int32_t *first,
                      size_t floats)
{
    int n = 0;

    for (int r = 0; r < d->ranks; r++) {
        struct dpt_block blocks[DPT_TREE_BLOCKS];
        const int count = dpt_tree_blocks(first[r], first[r + 1], total, blocks);

        for (int k = 0; k < count; k++, n++)
            d->parts[n] = (struct part){
                blocks[k], d->window ? d->base + (size_t)d->notices[r].offset[k] * d->stride
                                     : d->received + (size_t)n * floats};
    }
    return n;
}

/* Adds n floats of all parts in the tree's order; the sum replaces the first part's values. */
static const float *add_parts(const struct dpt_deterministic_allreduce *d, int parts, int32_t total,
                              size_t at, size_t n)
{
    struct dpt_tree whole;

    dpt_tree_begin(&whole, total);
    for (int i = 0; i < parts; i++)
        dpt_tree_push(&whole, d->parts[i].block, d->parts[i].value + at, n, NULL, NULL);
    return whole.value[0];
}

/* Sums this rank's slice chunk by chunk, so that a chunk is still in the cache when it is copied to
 * the result and its squares are summed. */
static void sum_window(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                       const int32_t *first)
{
    const int parts = list_parts(d, mine->total, first, 0);
    size_t begin, end, k = d->chunk[d->rank];

    slice(d, d->rank, &begin, &end);
    for (size_t at = begin, n; at < end; at += n) {
        const bool squared = d->sums_of_squares != NULL && k < d->chunks.n;

        n = end - at < CHUNK ? end - at : CHUNK;
        n = squared ? d->chunks.begin[k + 1] - at : n;
        memcpy(d->result + at, add_parts(d, parts, mine->total, at, n), n * sizeof *d->result);
        if (squared)
            d->sums_of_squares[k++] = dpt_sum_of_squares(d->result + at, n);
    }
    dpt_node_barrier_wait(&d->barrier); /* all slices are there */
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
    size_t begin, end, floats = d->stride / 2 + LINE;

    if (d->window || d->ranks == 1)
        return DPT_OK;
    slice(d, d->rank, &begin, &end);
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

            slice(d, r, &begin, &end);
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

static enum dpt_status sum_messages(struct dpt_deterministic_allreduce *d,
                                    const struct dpt_tree *mine, const int32_t *first,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    const float *sum = NULL;
    size_t begin, end, floats;

    slice(d, d->rank, &begin, &end);
    floats = end - begin;
    DPT_TRY(exchange(d, mine, first, floats, err));
    if (floats > 0)
        sum = add_parts(d, list_parts(d, mine->total, first, floats), mine->total, 0, floats);
    for (int r = 0; r < d->ranks; r++) {
        slice(d, r, &begin, &end);
        d->receive.count[r] = (int)(end - begin);
        d->receive.at[r] = (int)begin;
    }
    DPT_TRY_STEP(world, MPI_Allgatherv, sum, (int)floats, MPI_FLOAT, d->result, d->receive.count,
                 d->receive.at, MPI_FLOAT, dpt_mpi_comm(world));
out:
    return status;
}

struct range {
    size_t begin, end;
};

/* The upper or lower half of a range, of which one rank of a pair keeps one and sends the other. */
static struct range half(struct range whole, bool upper)
{
    const size_t lines = (whole.end - whole.begin) / LINE; /* the stride has whole cache lines */
    const size_t middle = whole.begin + (lines + 1) / 2 * LINE;

    return upper ? (struct range){middle, whole.end} : (struct range){whole.begin, middle};
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
 * Recursive halving and doubling (Rabenseifner 2004): with its neighbour each rank exchanges half
 * of the floats and adds up the other half, with the next pair a quarter, and so on up the tree;
 * then the sums go the same way back. The most floats go to the nearest ranks.
 */
static enum dpt_status sum_pairs(struct dpt_deterministic_allreduce *d, const struct dpt_tree *mine,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm->world;
    struct range held[32] = {{0, d->stride}};
    struct dpt_block block = mine->block[0];
    float *value = mine->value[0], *spare = d->received;
    int depth = 0;

    for (int bit = 1; bit < d->ranks; bit *= 2, depth++) {
        const bool upper = (d->rank & bit) != 0;
        const struct range keep = half(held[depth], upper), give = half(held[depth], !upper);
        const struct dpt_block other = {block.begin ^ (int32_t)1 << block.level, block.level};
        const size_t n = keep.end - keep.begin;
        float *const kept = value + (keep.begin - held[depth].begin);
        struct dpt_tree pair;

        DPT_TRY(sendrecv(world, d->rank ^ bit, value + (give.begin - held[depth].begin),
                         give.end - give.begin, spare, n, err));
        dpt_tree_begin(&pair, mine->total);
        dpt_tree_push(&pair, upper ? other : block, upper ? spare : kept, n, NULL, NULL);
        dpt_tree_push(&pair, upper ? block : other, upper ? kept : spare, n, NULL, NULL);
        block = pair.block[0];
        value = pair.value[0];
        spare = upper ? kept : spare;
        held[depth + 1] = keep;
    }
    memcpy(d->result + held[depth].begin, value,
           (held[depth].end - held[depth].begin) * sizeof *value);
    for (int bit = d->ranks / 2; bit > 0; bit /= 2) {
        const struct range have = held[depth--];
        const struct range lacks = half(held[depth], (d->rank & bit) == 0);

        DPT_TRY(sendrecv(world, d->rank ^ bit, d->result + have.begin, have.end - have.begin,
                         d->result + lacks.begin, lacks.end - lacks.begin, err));
    }
out:
    return status;
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
        return in_pairs(d, first) ? sum_pairs(d, mine, err) : sum_messages(d, mine, first, err);
    sum_window(d, mine, first);
    return DPT_OK;
}

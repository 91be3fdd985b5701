/* Synchronized batch norms: ranks exchange what such a norm sums over all micro-batches of a step,
 * along the tree over micro-batch numbers (core/comm/sums/tree.h): the same bits on any number of
 * ranks and threads.
 *
 * By recursive doubling: two neighbours give each other the sums of what they have, and join them;
 * then two neighbouring pairs do, and so on, so that after log2(ranks) messages all have the step's
 * sums. Where there are not 2^k ranks, the second ones of the first few pairs only give theirs
 * before and get the result afterwards. Halves of the channels, as gradients are summed, would be
 * fewer bytes in twice as many messages; these have some KiB, of which the bytes are the lesser
 * part.
 *
 * A message has the blocks of the tree that stand for the micro-batches of 1, 2, 4, ... ranks. With
 * 2^k ranks of 2^j micro-batches that is one block. Else a run of n micro-batches is fewer than
 * 2 log2(n) + 2 blocks, whatever the number of ranks. Ranks that take micro-batches round-robin
 * have such a run for each round. */
#include <string.h>

#include "core/backend/norm_sums.h"
#include "core/train/step/step.h"

/* --- groups of ranks -------------------------------------------------------------------------- */

/* Where blocks are: a rank's own, those that it gets, and what it makes of both. */
enum { PLACES = 3 };

/* The ranks of a job as 2^k that double, each a rank, or a pair of ranks that are neighbours. */
struct doubling {
    int n;     /* 2^k */
    int pairs; /* the first ones */
};

static struct doubling double_up(int ranks)
{
    struct doubling d = {.n = 1};

    while (d.n <= ranks / 2)
        d.n *= 2;
    d.pairs = ranks - d.n;
    return d;
}

/* The first rank of number i. */
static int first_rank(const struct doubling *d, int i)
{
    return i < d->pairs ? 2 * i : i + d->pairs;
}

/* How many blocks stand for the micro-batches of the ranks [begin, end). */
static int64_t count_blocks(const struct dpt_share *share, int begin, int end)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int32_t first, last;
    int64_t n = 0;

    for (int32_t k = 0; dpt_share_run(share, begin, end, k, &first, &last); k++)
        n += dpt_tree_blocks(first, last, share->all, blocks);
    return n;
}

/* The most blocks of any group when `size` of 2^k have joined theirs. */
static int64_t most_blocks(const struct dpt_share *share, const struct doubling *d, int size)
{
    int64_t most = 0;

    for (int i = 0; i < d->n; i += size) {
        const int64_t n = count_blocks(share, first_rank(d, i), first_rank(d, i + size));

        most = n > most ? n : most;
    }
    return most;
}

/* --- memory and bytes ------------------------------------------------------------------------- */

/* The most blocks that a rank has of a step, and those that it sends of it. */
static void count_step(const struct dpt_layout *l, int64_t step, int64_t *held, int64_t *sent)
{
    const struct dpt_share share = dpt_share_of(l, &l->sampler, step, 0, false);
    const struct doubling d = double_up(l->replicas);

    *held = 0;
    *sent = d.pairs > 0; /* the result */
    for (int r = 0; r < 2 * d.pairs; r++) {
        const int64_t n = count_blocks(&share, r, r + 1);

        *held = n > *held ? n : *held;
    }
    for (int size = 1; size <= d.n; size *= 2) {
        const int64_t n = most_blocks(&share, &d, size);

        *held = n > *held ? n : *held;
        *sent += size < d.n ? n : 0;
    }
}

void dpt_step_exchange_room(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                            size_t *all, size_t *one)
{
    const struct dpt_graph *graph = l->graph;
    /* The last one may be short. */
    const int64_t steps[] = {0, dpt_sampler_steps(&l->sampler) - 1};
    int64_t most = 0;
    int32_t widest = 0;

    for (int k = 1; k < stage->units; k++) { /* a unit may begin with a norm that is exchanged */
        const struct dpt_graph_node *node = &graph->nodes[stage->node[k]];

        widest = node->whole_step && node->in.c > widest ? node->in.c : widest;
    }
    for (int k = 0; k < 2 && widest > 0; k++) {
        int64_t held, sent;

        count_step(l, steps[k], &held, &sent);
        most = held > most ? held : most;
    }
    *one = 2 * (size_t)widest;
    *all = PLACES * (size_t)most * *one;
}

double dpt_step_exchange_bytes(const struct dpt_layout *l, int32_t channels)
{
    int64_t held, sent;

    count_step(l, 0, &held, &sent);
    return (double)sent * 2 * channels * sizeof(double);
}

/* --- joining ---------------------------------------------------------------------------------- */

/* Joins the sums of this rank's micro-batches in flight that are of the run [first, last) into
 * those of its blocks. */
static void join_flights(const struct dpt_runner *r, int32_t first, int32_t last,
                         struct dpt_norm_sums *sums)
{
    for (int worker = 0; worker < r->workers; worker++)
        for (int32_t k = 0, n; k < r->in_flight; k++) {
            const int32_t i = dpt_share_take(&r->share, worker, k, &n);

            if (i >= first && i < last)
                dpt_norm_sums_push(sums, (struct dpt_block){.begin = i},
                                   r->flights[worker * r->in_flight + k].sums);
        }
}

/* Writes the sums of this rank's own blocks. begun: sums without blocks. */
static void write_own(const struct dpt_runner *r, const struct dpt_norm_sums *begun, double *to)
{
    const int rank = r->share.replica;
    const size_t width = 2 * begun->channels;
    int32_t first, last;

    if (r->failed) { /* nobody uses what becomes of it */
        memset(to, 0, (size_t)count_blocks(&r->share, rank, rank + 1) * width * sizeof *to);
        return;
    }
    for (int32_t k = 0; dpt_share_run(&r->share, rank, rank + 1, k, &first, &last); k++) {
        struct dpt_norm_sums sums = *begun;

        join_flights(r, first, last, &sums);
        for (int b = 0; b < sums.tree.n; b++, to += width)
            for (size_t i = 0; i < width; i++)
                to[i] = 0 + sums.value[b][i]; /* a zero has no sign */
    }
}

/* Appends the blocks of the ranks' k-th run to those on their left. Returns what is after them. */
static double *push_run(const struct dpt_share *share, int begin, int end, int32_t k, double *from,
                        struct dpt_norm_sums *sums)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int32_t first, last;
    int n = 0;

    if (dpt_share_run(share, begin, end, k, &first, &last))
        n = dpt_tree_blocks(first, last, share->all, blocks);
    for (int b = 0; b < n; b++, from += 2 * sums->channels)
        dpt_norm_sums_push(sums, blocks[b], from);
    return from;
}

/* Joins the blocks of the ranks [edge[0], edge[1]) and [edge[1], edge[2]) into those of all of
 * them, run by run. */
static void join_groups(const struct dpt_share *share, const struct dpt_norm_sums *begun,
                        const int *edge, double *left, double *right, double *to)
{
    const size_t width = 2 * begun->channels;
    int32_t first, last;

    for (int32_t k = 0; dpt_share_run(share, edge[0], edge[2], k, &first, &last); k++) {
        struct dpt_norm_sums sums = *begun;

        left = push_run(share, edge[0], edge[1], k, left, &sums);
        right = push_run(share, edge[1], edge[2], k, right, &sums);
        for (int b = 0; b < sums.tree.n; b++, to += width)
            memcpy(to, sums.value[b], width * sizeof *to);
    }
}

/* --- doubling --------------------------------------------------------------------------------- */

/* An exchange that goes on: `own` has the blocks of the ranks that have joined theirs with this
 * one's. */
struct exchange {
    const struct dpt_group *world;
    const struct dpt_share *share;
    const struct dpt_norm_sums *begun; /* without blocks */
    double *own, *got, *joined;
};

/* The bytes of the blocks of the ranks [begin, end). */
static size_t count_bytes(const struct exchange *x, int begin, int end)
{
    return (size_t)count_blocks(x->share, begin, end) * 2 * x->begun->channels * sizeof(double);
}

/* Exchanges blocks with another rank, or with none (-1): one has those of the ranks
 * [edge[0], edge[1]), the other one those of [edge[1], edge[2]). gives, gets: what this rank does
 * of it. */
static enum dpt_status meet(struct exchange *x, int other, const int *edge, bool gives, bool gets,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool right = x->share->replica >= edge[1];
    double *const joined = x->joined;

    DPT_TRY(dpt_group_swap(x->world, other, x->own,
                           gives ? count_bytes(x, edge[right], edge[right + 1]) : 0, x->got,
                           gets ? count_bytes(x, edge[!right], edge[!right + 1]) : 0, err));
    if (!gets)
        goto out;
    join_groups(x->share, x->begun, edge, right ? x->got : x->own, right ? x->own : x->got, joined);
    x->joined = x->own;
    x->own = joined;
out:
    return status;
}

/* Sums over all ranks: `result` gets the one block of all micro-batches. */
static enum dpt_status sum_ranks(struct exchange *x, double *result, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int rank = x->share->replica, ranks = x->share->replicas;
    const struct doubling d = double_up(ranks);
    const bool paired = rank < 2 * d.pairs, second = paired && rank % 2 == 1;
    const int number = paired ? rank / 2 : rank - d.pairs;
    const int pair[] = {2 * number, 2 * number + 1, 2 * number + 2};
    const size_t bytes = 2 * x->begun->channels * sizeof(double);
    struct dpt_norm_sums sums = *x->begun;
    int32_t first, last;

    if (d.pairs > 0)
        DPT_TRY(meet(x, paired ? rank ^ 1 : -1, pair, second, paired && !second, err));
    for (int size = 1; size < d.n; size *= 2) {
        const int from = number & ~(2 * size - 1);
        const int edge[] = {first_rank(&d, from), first_rank(&d, from + size),
                            first_rank(&d, from + 2 * size)};

        DPT_TRY(meet(x, second ? -1 : first_rank(&d, number ^ size), edge, !second, !second, err));
    }
    if (!second) {
        for (int32_t k = 0; dpt_share_run(x->share, 0, ranks, k, &first, &last); k++)
            x->own = push_run(x->share, 0, ranks, k, x->own, &sums);
        memmove(result, sums.value[0], bytes);
    }
    if (d.pairs > 0)
        DPT_TRY(dpt_group_swap(x->world, paired ? rank ^ 1 : -1, result,
                               paired && !second ? bytes : 0, result, second ? bytes : 0, err));
out:
    return status;
}

enum dpt_status dpt_step_run_exchange(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = r->t;
    const struct dpt_group *world = &t->comm->world;
    const struct dpt_graph_node *node = &t->model.graph.nodes[r->action->first];
    const enum dpt_norm_kind kind = r->action->back ? DPT_NORM_GRADIENTS : DPT_NORM_MOMENTS;
    const int32_t micro = t->data.train.sampler.micro;
    enum dpt_status struck = DPT_OK;
    struct dpt_norm_sums sums;
    struct exchange x = {world, &r->share, &sums, r->exchanged, NULL, NULL};

    r->exchanges++;
    if (!r->failed)
        struck = dpt_fault_strike(&t->fault, world->rank, t->progress.step + 1, r->exchanges, NULL,
                                  0, err);
    r->failed = r->failed || struck != DPT_OK;
    dpt_norm_sums_begin(&sums, kind, &node->in, micro, r->share.samples);
    x.got = x.own + r->exchange_room / PLACES;
    x.joined = x.got + r->exchange_room / PLACES;
    write_own(r, &sums, x.own);
    DPT_TRY(sum_ranks(&x, r->exchanged, err));
out:
    return struck != DPT_OK ? struck : status;
}

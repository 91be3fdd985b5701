#include <string.h>

#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/steps/steps.h"
#include "core/comm/sums/tree.h"

/*
 * Sums whose bits do not depend on who computes what: along the tree of core/comm/sums/tree.h.
 *
 * Each micro-batch's gradient is a leaf. A rank merges its own as they come: what waits for its
 * right neighbour lies in `blocks`, one arena each, and the value of the last block in the
 * program's gradient. Which values are merged follows from the micro-batches' numbers alone, so a
 * graph contains it.
 *
 * Between linked GPUs each rank sums one slice of every piece of the gradient (steps_slices.c): it
 * receives that slice of the other ranks' blocks, and a kernel adds them in the tree's order. With
 * the gathering that is as much as an allreduce along a ring sends, where each rank has one block.
 *
 * If ranks take micro-batches round-robin, they do that after each round with its micro-batches'
 * gradients (ZeRO's second stage). What then waits for later rounds are sums of this rank's slices,
 * and `blocks` has no more than these.
 *
 * Where several ranks share each node, they first merge what the node has: of the ranks of each
 * node the k-th one sums slices k, k + node_ranks, ... among them. What is left, a block or a few,
 * goes on to the k-th ranks of the other nodes. So the network carries what a node has once.
 */

/* Leaves [first, first + n) of a list, whose sum goes to a block, or becomes the gradient. */
struct merge {
    int first, n; /* n 0: it is none */
    int to;
};
enum { TO_GRADIENT = -1 };

/* The two sums: on a node, and over all. */
enum { NODE, ALL, LEVELS };

/* Who takes part in a sum: ranks `first`, first + each, ..., of which each stands for `each` ranks,
 * whose blocks it has. */
struct level {
    int first, n, each, own;
};

struct merges {
    int n;                        /* leaves */
    struct dpt_cuda_leaf *leaves; /* on the device */
    struct merge *merges;         /* [rounds][most_merges]: from the lowest block on */
    int *blocks;                  /* [rounds][level.n]: how many each has */
};

/* What is merged in steps that are divided alike. */
struct dpt_cuda_schedule {
    int32_t *first; /* [ranks + 1] */
    struct merges merges[LEVELS];
};

/* --- a rank's own ----------------------------------------------------------------------------- */

/* A rank by itself has all micro-batches of a step. */
static int32_t all_of(const struct dpt_cuda_steps *s)
{
    return s->spec.ranks > 1 ? s->tree->all : s->micros;
}

/* The blocks of this rank's first m micro-batches. */
static int blocks_of(const struct dpt_cuda_steps *s, int32_t m)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    const int32_t first = s->spec.ranks > 1 ? s->tree->first : 0;

    return dpt_tree_blocks(first, first + m, all_of(s), blocks);
}

static float *block_at(const struct dpt_cuda_steps *s, int k)
{
    return s->tree->blocks + k * s->tree->stride;
}

/* Enqueues y += x. */
static enum dpt_status add(struct dpt_cuda_steps *s, const float *x, float *y, int64_t n,
                           struct dpt_error *err)
{
    const struct dpt_cuda_add_args args = {x, y, n};

    return dpt_cuda_program_launch(s->p, DPT_CUDA_K_add, &args, DPT_SPAN_REDUCTION, err);
}

/* The last micro-batch's merges end in the gradient itself: a sum of two has the same bits either
 * way round. */
enum dpt_status dpt_cuda_tree_push(struct dpt_cuda_steps *s, int32_t m, int64_t begin, int64_t end,
                                   struct dpt_error *err)
{
    float *const gradient = s->p->gradient + begin, *value = gradient;
    const int before = blocks_of(s, m), merges = before + 1 - blocks_of(s, m + 1);
    const bool last = m == s->micros - 1;
    enum dpt_status status = DPT_OK;

    for (int k = before - 1; k >= before - merges; k--) {
        float *block = block_at(s, k) + begin;

        if (last) {
            DPT_TRY(add(s, block, gradient, end - begin, err));
        } else {
            DPT_TRY(add(s, value, block, end - begin, err));
            value = block;
        }
    }
    if (!last && merges == 0)
        DPT_CUDA_TRY(&s->p->ctx.lib, cuMemcpyDtoDAsync(dpt_cuda_ptr(block_at(s, before) + begin),
                                                       dpt_cuda_ptr(gradient),
                                                       (size_t)(end - begin) * sizeof *gradient,
                                                       dpt_cuda_stream(s->p)));
out:
    return status;
}

int dpt_cuda_steps_parts(const void *steps)
{
    const struct dpt_cuda_steps *s = steps;
    const int blocks = s->tree != NULL ? blocks_of(s, s->micros) : 1;

    if (s->spec.round_robin)
        return s->tree->round < s->micros;
    return blocks > 0 ? blocks : 1;
}

enum dpt_status dpt_cuda_steps_part(void *steps, int k, float *part, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const bool last = k == dpt_cuda_steps_parts(s) - 1;
    const int unit = s->units != NULL ? s->units->computed : 0;
    const int64_t first = s->units != NULL ? (int64_t)s->p->spec.edge[unit] : 0;
    const int64_t end = s->units != NULL ? (int64_t)s->p->spec.edge[unit + 1]
                                         : s->p->spec.graph->arena + DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(dpt_cuda_await_stream(&s->p->ctx, s->p->ctx.compute, err));
    DPT_TRY(dpt_cuda_steps_download(
        s, part + first, last ? dpt_cuda_at(s->p, s->p->gradient, first) : block_at(s, k),
        (size_t)(end - first) * sizeof *part, err));
out:
    return dpt_cuda_steps_prefix_error(status, "fetching the gradient", err);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Whether what a node has is merged before it is sent to others. */
static bool is_merged(const struct dpt_cuda_steps *s)
{
    return s->spec.node_ranks > 1 && s->spec.node_ranks < s->spec.ranks;
}

static enum dpt_status open_exchange(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_tree *t = s->tree;
    const size_t sent = (size_t)(s->spec.blocks + s->spec.merged + 1) * (size_t)s->spec.ranks;
    const int64_t merged = s->spec.merged * (int64_t)(s->spec.ranks / s->spec.node_ranks);

    DPT_TRY(DPT_ALLOCATE(t->messages, sent + (size_t)s->spec.received, "the ranks' sums", err));
    {
        const struct dpt_cuda_piece held[] = {
            {"the ranks' sums", s->spec.received * s->widest * (int64_t)sizeof(float),
             (void **)&t->received, false},
            {"the ranks' sums", is_merged(s) ? merged * s->widest * (int64_t)sizeof(float) : 0,
             (void **)&t->merged, false},
            {"what the ranks tell each other", DPT_TENSOR_ALIGN * (int64_t)sizeof(float),
             (void **)&t->flags, false}};

        DPT_TRY(dpt_cuda_hold(&s->p->ctx, DPT_CUDA_ROWS(held), err));
    }
    DPT_CUDA_TRY(&s->p->ctx.lib,
                 cuMemsetD32Async(dpt_cuda_ptr(t->flags), 0, DPT_TENSOR_ALIGN, s->p->ctx.sums));
out:
    return status;
}

enum dpt_status dpt_cuda_tree_open(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t unit = (int64_t)DPT_TENSOR_ALIGN * s->spec.ranks;

    if (!s->spec.tree)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(s->tree, 1, "the steps", err));
    s->tree->stride =
        s->spec.round_robin ? s->slot_floats : s->p->spec.graph->arena + DPT_TENSOR_ALIGN + unit;
    {
        const struct dpt_cuda_piece piece = {
            "sums of gradients", s->spec.blocks * s->tree->stride * (int64_t)sizeof(float),
            (void **)&s->tree->blocks, false};

        DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    }
    if (s->spec.link != NULL)
        DPT_TRY(open_exchange(s, err));
out:
    return status;
}

/* Forgets the last schedule. */
static void drop_schedule(struct dpt_cuda_tree *t)
{
    const struct dpt_cuda_schedule *last = &t->schedules[--t->n_schedules];

    dpt_free(last->first);
    for (int k = 0; k < LEVELS; k++) {
        dpt_free(last->merges[k].merges);
        dpt_free(last->merges[k].blocks);
    }
}

void dpt_cuda_tree_close(struct dpt_cuda_steps *s)
{
    struct dpt_cuda_tree *t = s->tree;

    if (t == NULL)
        return;
    while (t->n_schedules > 0)
        drop_schedule(t);
    free(t->schedules);
    dpt_free(t->messages);
    dpt_free(s->tree);
}

/* --- what is merged --------------------------------------------------------------------------- */

static struct level level_of(const struct dpt_cuda_steps *s, int which)
{
    const int rank = s->spec.rank, ranks = s->spec.ranks, of_node = s->spec.node_ranks;

    if (!is_merged(s))
        return (struct level){.n = which == ALL ? ranks : 0, .each = 1, .own = rank};
    return which == NODE ? (struct level){rank / of_node * of_node, of_node, 1, rank % of_node}
                         : (struct level){0, ranks / of_node, of_node, rank / of_node};
}

static struct dpt_tree_division division_of(const struct dpt_cuda_steps *s, const int32_t *first)
{
    return (struct dpt_tree_division){first, s->spec.ranks, s->spec.round_robin};
}

/* The blocks that the i-th of a level has in a round. */
static int list_blocks(const struct dpt_cuda_steps *s, const struct level *level,
                       const int32_t *first, int32_t round, int i,
                       struct dpt_block blocks[DPT_TREE_BLOCKS])
{
    const struct dpt_tree_division division = division_of(s, first);
    const int begin = level->first + i * level->each;

    return dpt_tree_blocks_of(&division, round, begin, begin + level->each, blocks);
}

/* The most values that a round's merges make. */
static int most_merges(const struct dpt_cuda_steps *s)
{
    return s->spec.blocks + s->spec.merged + 1;
}

/* Leaves that are being listed. */
struct listing {
    struct dpt_cuda_leaf *leaves;
    struct dpt_tree tree;
    int begin[DPT_TREE_BLOCKS]; /* the first leaf of each value */
};

static void add_leaf(struct merges *merges, struct listing *l, struct dpt_block block,
                     enum dpt_cuda_place place, int number)
{
    const int before = l->tree.n;

    dpt_tree_push(&l->tree, block, NULL, 0, NULL, NULL);
    if (l->tree.n > before)
        l->begin[before] = merges->n;
    l->leaves[merges->n++] =
        (struct dpt_cuda_leaf){.place = place, .number = number, .merges = before + 1 - l->tree.n};
}

/* Lists a round's leaves: what waits, if all are summed, then what each has, from the first one's
 * on. */
static void list_round(const struct dpt_cuda_steps *s, int which, const int32_t *first,
                       int32_t round, struct merges *merges, struct listing *l)
{
    const struct level level = level_of(s, which);
    const struct dpt_tree_division division = division_of(s, first);
    const bool ends = which == ALL && round == dpt_tree_rounds(&division) - 1;
    struct merge *merge = &merges->merges[round * most_merges(s)];
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    const struct dpt_tree waits = l->tree;
    int received = 0, first_new;

    l->tree.n = 0;
    for (int k = 0; which == ALL && k < waits.n; k++)
        add_leaf(merges, l, waits.block[k], DPT_CUDA_IN_BLOCKS, k);
    first_new = merges->n;
    for (int i = 0; i < level.n; i++) {
        const bool own = i == level.own;
        const int n = list_blocks(s, &level, first, round, i, blocks);

        merges->blocks[round * level.n + i] = n;
        for (int k = 0; k < n; k++)
            add_leaf(merges, l, blocks[k],
                     !own             ? DPT_CUDA_RECEIVED
                     : level.each > 1 ? DPT_CUDA_IN_MERGED
                     : k == n - 1     ? DPT_CUDA_IN_SUM
                                      : DPT_CUDA_IN_BLOCKS,
                     own ? k : received++);
    }
    for (int k = 0; k < l->tree.n; k++) {
        const int end = k + 1 < l->tree.n ? l->begin[k + 1] : merges->n;
        const bool stays = end <= first_new;

        dpt_cuda_link_leaves(l->leaves + l->begin[k], end - l->begin[k]);
        if (!stays)
            *merge++ = (struct merge){l->begin[k], end - l->begin[k], ends ? TO_GRADIENT : k};
    }
}

static enum dpt_status list_merges(struct dpt_cuda_steps *s, int which, const int32_t *first,
                                   struct merges *merges, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_tree_division division = division_of(s, first);
    const size_t rounds = (size_t)dpt_tree_rounds(&division);
    const size_t each =
        (size_t)(s->spec.received + s->spec.blocks + s->spec.merged) + 1; /* leaves of a round */
    struct dpt_cuda_piece piece = {"the ranks' sums", 0, (void **)&merges->leaves, false};
    struct listing l;

    l.leaves = NULL;
    DPT_TRY(DPT_ALLOCATE(merges->merges, rounds * (size_t)most_merges(s), "the ranks' sums", err));
    DPT_TRY(DPT_ALLOCATE(merges->blocks, rounds * (size_t)level_of(s, which).n, "the ranks' sums",
                         err));
    DPT_TRY(DPT_ALLOCATE(l.leaves, rounds * each, "the ranks' sums", err));
    dpt_tree_begin(&l.tree, first[s->spec.ranks]);
    for (int32_t k = 0; k < (int32_t)rounds; k++)
        list_round(s, which, first, k, merges, &l);
    piece.bytes = merges->n * (int64_t)sizeof *l.leaves;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    DPT_TRY(dpt_cuda_steps_upload(s, merges->leaves, l.leaves, (size_t)piece.bytes, err));
out:
    dpt_free(l.leaves);
    return status;
}

/* Makes the schedule of such steps, of which a job has one for whole steps, and one for the last of
 * an epoch. */
static enum dpt_status make_schedule(struct dpt_cuda_steps *s, const int32_t *first,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_tree *t = s->tree;
    const size_t ranks = (size_t)s->spec.ranks;
    struct dpt_cuda_schedule *schedule;

    DPT_GROW(t->schedules, &t->schedule_room, (size_t)t->n_schedules + 1, "the ranks' sums", err);
    schedule = &t->schedules[t->n_schedules++];
    *schedule = (struct dpt_cuda_schedule){0};
    DPT_TRY(DPT_ALLOCATE(schedule->first, ranks + 1, "the ranks' sums", err));
    memcpy(schedule->first, first, (ranks + 1) * sizeof *first);
    for (int k = is_merged(s) ? NODE : ALL; k < LEVELS; k++)
        DPT_TRY(list_merges(s, k, first, &schedule->merges[k], err));
out:
    return status;
}

enum dpt_status dpt_cuda_steps_divide(void *steps, const int32_t *first, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    struct dpt_cuda_tree *t = s->tree;
    const size_t bytes = ((size_t)s->spec.ranks + 1) * sizeof *first;
    enum dpt_status status = DPT_OK;

    for (int w = 0; w < 2 && s->units != NULL; w++) /* whatever `put` gave to a rank alone */
        s->units->there[w] = -1;
    t->first = first[s->spec.rank];
    t->all = first[s->spec.ranks];
    t->round = 0;
    for (t->present = 0; t->present < t->n_schedules; t->present++)
        if (memcmp(t->schedules[t->present].first, first, bytes) == 0)
            return DPT_OK;
    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    status = make_schedule(s, first, err);
    if (status != DPT_OK && t->present < t->n_schedules)
        drop_schedule(t);
out:
    return dpt_cuda_steps_prefix_error(status, "dividing the sums", err);
}

/* --- over ranks ------------------------------------------------------------------------------- */

/* Where a block of this rank has a slice of a piece that goes to others. */
static float *slice_of(const struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                       int which, int n, int k, int slice)
{
    const struct dpt_cuda_tree *t = s->tree;
    const int nodes = s->spec.ranks / s->spec.node_ranks;

    if (which == ALL && is_merged(s))
        return t->merged + ((int64_t)k * nodes + slice / s->spec.node_ranks) * piece->width;
    return (k == n - 1 ? dpt_cuda_arena_of(s, s->p->gradient, piece) : block_at(s, k)) +
           piece->first + slice * piece->width;
}

/* Lists what this rank sends of a piece, and what it receives: for each other one of the level its
 * slice of what this one has or, on a node, its slices, one for each node. */
static int list_messages(const struct dpt_cuda_steps *s, int which,
                         const struct dpt_cuda_slices *piece)
{
    const struct dpt_cuda_tree *t = s->tree;
    const struct level level = level_of(s, which);
    const int *blocks = t->schedules[t->present].merges[which].blocks + t->round * level.n;
    const int own = blocks[level.own],
              slices = which == NODE ? s->spec.ranks / s->spec.node_ranks : 1;
    const int offset = which == ALL ? s->spec.rank % level.each : 0;
    const size_t width = (size_t)piece->width;
    float *received = t->received;
    int n = 0;

    for (int i = 0; i < level.n; i++) {
        const int rank = level.first + i * level.each + offset;
        const int others = i == level.own ? 0 : blocks[i];

        for (int k = 0; k < own && i != level.own; k++)
            for (int m = 0; m < slices; m++)
                t->messages[n++] = (struct dpt_cuda_message){
                    .at = slice_of(s, piece, which, own, k, which == NODE ? m * level.n + i : rank),
                    .n = width,
                    .rank = rank,
                    .sends = true};
        for (int k = 0; k < others * slices; k++, received += width)
            t->messages[n++] = (struct dpt_cuda_message){.at = received, .n = width, .rank = rank};
    }
    return n;
}

static enum dpt_status sum_level(struct dpt_cuda_steps *s, int which,
                                 const struct dpt_cuda_slices *piece, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_cuda_tree *t = s->tree;
    const struct merges *merges = &t->schedules[t->present].merges[which];
    const struct merge *merge = &merges->merges[t->round * most_merges(s)];
    const int of_node = s->spec.node_ranks, nodes = s->spec.ranks / of_node;
    const int slice = which == NODE ? s->spec.rank % of_node : s->spec.rank;
    const int64_t first = piece->first + slice * piece->width, apart = nodes * piece->width;
    struct dpt_cuda_tree_args args = {
        .sum = dpt_cuda_arena_of(s, s->p->gradient, piece),
        .blocks = s->spec.round_robin && which == ALL ? dpt_cuda_shifted(t->blocks, piece, first)
                                                      : t->blocks,
        .merged = t->merged,
        .received = t->received,
        .first = first,
        .width = piece->width,
        .stride = t->stride,
        .skip = of_node * piece->width,
        .apart = apart,
        .slices = which == NODE ? nodes : 1,
    };
    enum dpt_status status = DPT_OK;

    if (which == ALL && is_merged(s)) /* of what is merged for each node */
        args.merged += s->spec.rank / of_node * piece->width;
    DPT_TRY(dpt_cuda_link_exchange(s->spec.link, t->messages, list_messages(s, which, piece),
                                   ctx->sums, err));
    for (int k = 0; k < most_merges(s) && merge[k].n > 0; k++) {
        args.leaf = merges->leaves + merge[k].first;
        args.n = merge[k].n;
        args.to = which == NODE ? t->merged + merge[k].to * apart
                  : merge[k].to == TO_GRADIENT
                      ? (s->units != NULL && piece->bucket > 0 ? dpt_cuda_slices_sum_at(s, piece)
                                                               : args.sum + first)
                      : args.blocks + merge[k].to * t->stride + first;
        DPT_TRY(dpt_cuda_launch(&ctx->lib, &ctx->module, ctx->sums, DPT_CUDA_K_tree, &args, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_tree_sum(struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (s->tree->present == s->tree->n_schedules) /* `divide` failed: no messages are known */
        DPT_TRY(dpt_fail(err, DPT_RANK, "the step's sums are not divided"));
    for (int k = is_merged(s) ? NODE : ALL; k < LEVELS; k++)
        DPT_TRY(sum_level(s, k, piece, err));
out:
    return status;
}

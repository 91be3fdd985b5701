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
 */

/* Leaves [first, first + n) of a list, whose sum goes to a block, or becomes the gradient. */
struct merge {
    int first, n; /* n 0: it is none */
    int to;
};
enum { TO_GRADIENT = -1 };

/* The leaves of all ranks in steps that are divided alike. */
struct dpt_cuda_schedule {
    int32_t *first;               /* [ranks + 1] */
    int *blocks;                  /* [ranks]; with rounds not used */
    int n;                        /* leaves */
    struct dpt_cuda_leaf *leaves; /* on the device */
    struct merge *merges;         /* [rounds][merges_of]: from the lowest block on */
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
    const size_t floats = (size_t)s->p->spec.graph->arena + DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(dpt_cuda_await_stream(&s->p->ctx, s->p->ctx.compute, err));
    DPT_TRY(dpt_cuda_steps_download(s, part, last ? s->p->gradient : block_at(s, k),
                                    floats * sizeof *part, err));
out:
    return dpt_cuda_steps_prefix_error(status, "fetching the gradient", err);
}

/* --- opening ---------------------------------------------------------------------------------- */

static enum dpt_status open_exchange(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_tree *t = s->tree;
    const size_t messages =
        (size_t)(s->spec.blocks + 1) * (size_t)s->spec.ranks + (size_t)s->spec.received;

    DPT_TRY(DPT_ALLOCATE(t->messages, messages, "the ranks' sums", err));
    {
        const struct dpt_cuda_piece held[] = {
            {"the ranks' sums", s->spec.received * s->widest * (int64_t)sizeof(float),
             (void **)&t->received, false},
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
    dpt_free(last->blocks);
    dpt_free(last->merges);
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

/* --- over ranks ------------------------------------------------------------------------------- */

static int merges_of(const struct dpt_cuda_steps *s)
{
    return s->spec.round_robin ? s->spec.blocks + 1 : 1;
}

static int32_t rounds_of(const struct dpt_cuda_steps *s, int32_t all)
{
    return s->spec.round_robin ? (all + s->spec.ranks - 1) / s->spec.ranks : 1;
}

/* The blocks that a rank has in a round. */
static int list_blocks(const struct dpt_cuda_steps *s, const int32_t *first, int32_t round, int r,
                       struct dpt_block blocks[DPT_TREE_BLOCKS])
{
    const int32_t all = first[s->spec.ranks], at = round * s->spec.ranks + r;

    if (!s->spec.round_robin)
        return dpt_tree_blocks(first[r], first[r + 1], all, blocks);
    blocks[0] = (struct dpt_block){at, 0};
    return at < all;
}

/* Leaves that are being listed. */
struct listing {
    struct dpt_cuda_leaf *leaves;
    struct dpt_tree tree;
    int begin[DPT_TREE_BLOCKS]; /* the first leaf of each value */
};

static void add_leaf(struct dpt_cuda_schedule *schedule, struct listing *l, struct dpt_block block,
                     enum dpt_cuda_place place, int number)
{
    const int before = l->tree.n;

    dpt_tree_push(&l->tree, block, NULL, 0, NULL, NULL);
    if (l->tree.n > before)
        l->begin[before] = schedule->n;
    l->leaves[schedule->n++] =
        (struct dpt_cuda_leaf){.place = place, .number = number, .merges = before + 1 - l->tree.n};
}

/* Lists a round's leaves: what waits, then what the ranks have, from the first one's on. */
static void list_round(const struct dpt_cuda_steps *s, struct dpt_cuda_schedule *schedule,
                       int32_t round, struct listing *l)
{
    const bool last = round == rounds_of(s, l->tree.total) - 1;
    struct merge *merge = &schedule->merges[round * merges_of(s)];
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    const struct dpt_tree waits = l->tree;
    int received = 0, first_new;

    l->tree.n = 0;
    for (int k = 0; k < waits.n; k++)
        add_leaf(schedule, l, waits.block[k], DPT_CUDA_IN_BLOCKS, k);
    first_new = schedule->n;
    for (int r = 0; r < s->spec.ranks; r++) {
        const bool own = r == s->spec.rank;
        const int n = list_blocks(s, schedule->first, round, r, blocks);

        schedule->blocks[r] = n;
        for (int k = 0; k < n; k++)
            add_leaf(schedule, l, blocks[k],
                     !own         ? DPT_CUDA_RECEIVED
                     : k == n - 1 ? DPT_CUDA_IN_SUM
                                  : DPT_CUDA_IN_BLOCKS,
                     own ? k : received++);
    }
    for (int k = 0; k < l->tree.n; k++) {
        const int end = k + 1 < l->tree.n ? l->begin[k + 1] : schedule->n;
        const bool stays = end <= first_new;

        dpt_cuda_link_leaves(l->leaves + l->begin[k], end - l->begin[k]);
        if (!stays)
            *merge++ = (struct merge){l->begin[k], end - l->begin[k], last ? TO_GRADIENT : k};
    }
}

/* Makes the schedule of such steps, of which a job has one for whole steps, and one for the last of
 * an epoch. */
static enum dpt_status make_schedule(struct dpt_cuda_steps *s, const int32_t *first,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_tree *t = s->tree;
    const size_t ranks = (size_t)s->spec.ranks;
    const size_t rounds = (size_t)rounds_of(s, first[ranks]), merges = (size_t)merges_of(s);
    const size_t each = (size_t)(s->spec.received + s->spec.blocks) + 1; /* leaves of a round */
    struct dpt_cuda_schedule *schedule;
    struct listing l;
    struct dpt_cuda_piece piece = {"the ranks' sums", 0, NULL, false};

    l.leaves = NULL;
    DPT_GROW(t->schedules, &t->schedule_room, (size_t)t->n_schedules + 1, "the ranks' sums", err);
    schedule = &t->schedules[t->n_schedules++];
    *schedule = (struct dpt_cuda_schedule){0};
    DPT_TRY(DPT_ALLOCATE(schedule->first, ranks + 1, "the ranks' sums", err));
    DPT_TRY(DPT_ALLOCATE(schedule->blocks, ranks, "the ranks' sums", err));
    DPT_TRY(DPT_ALLOCATE(schedule->merges, rounds * merges, "the ranks' sums", err));
    DPT_TRY(DPT_ALLOCATE(l.leaves, rounds * each, "the ranks' sums", err));
    memcpy(schedule->first, first, (ranks + 1) * sizeof *first);
    dpt_tree_begin(&l.tree, first[ranks]);
    for (int32_t k = 0; k < (int32_t)rounds; k++)
        list_round(s, schedule, k, &l);
    piece.at = (void **)&schedule->leaves;
    piece.bytes = schedule->n * (int64_t)sizeof *l.leaves;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    DPT_TRY(dpt_cuda_steps_upload(s, schedule->leaves, l.leaves, (size_t)piece.bytes, err));
out:
    dpt_free(l.leaves);
    return status;
}

enum dpt_status dpt_cuda_steps_divide(void *steps, const int32_t *first, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    struct dpt_cuda_tree *t = s->tree;
    const size_t bytes = ((size_t)s->spec.ranks + 1) * sizeof *first;
    enum dpt_status status = DPT_OK;

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

/* How many blocks a rank has in the present round. */
static int count_blocks(const struct dpt_cuda_steps *s, int r)
{
    const struct dpt_cuda_tree *t = s->tree;

    return s->spec.round_robin ? t->round * s->spec.ranks + r < t->all
                               : t->schedules[t->present].blocks[r];
}

/* Lists what this rank sends of a piece, and what it receives. */
static int list_messages(const struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece)
{
    const struct dpt_cuda_tree *t = s->tree;
    const size_t width = (size_t)piece->width;
    const int own = count_blocks(s, s->spec.rank);
    float *received = t->received;
    int n = 0;

    for (int r = 0; r < s->spec.ranks; r++) {
        const int64_t slice = piece->first + r * piece->width;
        const int others = r == s->spec.rank ? 0 : count_blocks(s, r);

        for (int k = 0; k < own && r != s->spec.rank; k++)
            t->messages[n++] = (struct dpt_cuda_message){
                (k == own - 1 ? s->p->gradient : block_at(s, k)) + slice, width, r, true};
        for (int k = 0; k < others; k++, received += width)
            t->messages[n++] = (struct dpt_cuda_message){received, width, r, false};
    }
    return n;
}

enum dpt_status dpt_cuda_tree_sum(struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                                  struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_cuda_tree *t = s->tree;
    const struct dpt_cuda_schedule *schedule = &t->schedules[t->present];
    const int64_t first = piece->first + s->spec.rank * piece->width;
    struct dpt_cuda_tree_args args = {
        .sum = s->p->gradient,
        .blocks = s->spec.round_robin ? dpt_cuda_shifted(t->blocks, piece, first) : t->blocks,
        .received = t->received,
        .first = first,
        .width = piece->width,
        .stride = t->stride};
    const struct merge *merge;
    enum dpt_status status = DPT_OK;

    if (t->present == t->n_schedules) /* `divide` failed, so this rank knows of no messages */
        DPT_TRY(dpt_fail(err, DPT_RANK, "the step's sums are not divided"));
    DPT_TRY(
        dpt_cuda_link_exchange(s->spec.link, t->messages, list_messages(s, piece), ctx->sums, err));
    merge = &schedule->merges[t->round * merges_of(s)];
    for (int k = 0; k < merges_of(s) && merge[k].n > 0; k++) {
        args.leaf = schedule->leaves + merge[k].first;
        args.n = merge[k].n;
        args.to =
            (merge[k].to == TO_GRADIENT ? args.sum : args.blocks + merge[k].to * t->stride) + first;
        DPT_TRY(dpt_cuda_launch(&ctx->lib, &ctx->module, ctx->sums, DPT_CUDA_K_tree, &args, err));
    }
out:
    return status;
}

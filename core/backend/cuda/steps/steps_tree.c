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
 */

/* The leaves of all ranks in steps that are divided alike. */
struct dpt_cuda_schedule {
    int32_t *first;               /* [ranks + 1] */
    int *blocks;                  /* [ranks] */
    int n;                        /* all of them */
    struct dpt_cuda_leaf *leaves; /* on the device */
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
    s->tree->stride = s->p->spec.graph->arena + DPT_TENSOR_ALIGN + unit;
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

/* Fills in the leaves, from the first rank's on, and how they merge. */
static void list_leaves(const struct dpt_cuda_steps *s, struct dpt_cuda_schedule *schedule,
                        struct dpt_cuda_leaf *leaves)
{
    const int32_t all = schedule->first[s->spec.ranks];
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    struct dpt_tree tree;
    int received = 0;

    dpt_tree_begin(&tree, all);
    for (int r = 0; r < s->spec.ranks; r++) {
        const int n = schedule->blocks[r] =
            dpt_tree_blocks(schedule->first[r], schedule->first[r + 1], all, blocks);

        for (int k = 0; k < n; k++) {
            struct dpt_cuda_leaf *leaf = &leaves[schedule->n++];
            const int before = tree.n;

            dpt_tree_push(&tree, blocks[k], NULL, 0, NULL, NULL);
            leaf->merges = before + 1 - tree.n;
            leaf->place = r != s->spec.rank ? DPT_CUDA_RECEIVED
                          : k == n - 1      ? DPT_CUDA_IN_SUM
                                            : DPT_CUDA_IN_BLOCKS;
            leaf->number = r != s->spec.rank ? received++ : k;
        }
    }
    dpt_cuda_link_leaves(leaves, schedule->n);
}

/* Makes the schedule of such steps, of which a job has one for whole steps, and one for the last of
 * an epoch. */
static enum dpt_status make_schedule(struct dpt_cuda_steps *s, const int32_t *first,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_tree *t = s->tree;
    const size_t ranks = (size_t)s->spec.ranks, most = (size_t)(s->spec.received + s->spec.blocks);
    struct dpt_cuda_schedule *schedule;
    struct dpt_cuda_leaf *leaves = NULL;
    struct dpt_cuda_piece piece = {"the ranks' sums", 0, NULL, false};

    DPT_GROW(t->schedules, &t->schedule_room, (size_t)t->n_schedules + 1, "the ranks' sums", err);
    schedule = &t->schedules[t->n_schedules++];
    *schedule = (struct dpt_cuda_schedule){0};
    DPT_TRY(DPT_ALLOCATE(schedule->first, ranks + 1, "the ranks' sums", err));
    DPT_TRY(DPT_ALLOCATE(schedule->blocks, ranks, "the ranks' sums", err));
    DPT_TRY(DPT_ALLOCATE(leaves, most + 1, "the ranks' sums", err));
    memcpy(schedule->first, first, (ranks + 1) * sizeof *first);
    list_leaves(s, schedule, leaves);
    piece.at = (void **)&schedule->leaves;
    piece.bytes = schedule->n * (int64_t)sizeof *leaves;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    DPT_TRY(dpt_cuda_steps_upload(s, schedule->leaves, leaves, (size_t)piece.bytes, err));
out:
    dpt_free(leaves);
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

/* Lists what this rank sends of a piece, and what it receives. */
static int list_messages(const struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece)
{
    const struct dpt_cuda_tree *t = s->tree;
    const struct dpt_cuda_schedule *schedule = &t->schedules[t->present];
    const size_t width = (size_t)piece->width;
    const int own = schedule->blocks[s->spec.rank];
    float *received = t->received;
    int n = 0;

    for (int r = 0; r < s->spec.ranks; r++) {
        const int64_t slice = piece->first + r * piece->width;

        for (int k = 0; k < own && r != s->spec.rank; k++)
            t->messages[n++] = (struct dpt_cuda_message){
                (k == own - 1 ? s->p->gradient : block_at(s, k)) + slice, width, r, true};
        for (int k = 0; k < schedule->blocks[r] && r != s->spec.rank; k++, received += width)
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
    struct dpt_cuda_tree_args args = {.sum = s->p->gradient,
                                      .blocks = t->blocks,
                                      .received = t->received,
                                      .first = piece->first + s->spec.rank * piece->width,
                                      .width = piece->width,
                                      .stride = t->stride};
    enum dpt_status status = DPT_OK;

    if (t->present == t->n_schedules) /* `divide` failed, so this rank knows of no messages */
        DPT_TRY(dpt_fail(err, DPT_RANK, "the step's sums are not divided"));
    args.leaf = schedule->leaves;
    args.n = schedule->n;
    DPT_TRY(
        dpt_cuda_link_exchange(s->spec.link, t->messages, list_messages(s, piece), ctx->sums, err));
    DPT_TRY(dpt_cuda_launch(&ctx->lib, &ctx->module, ctx->sums, DPT_CUDA_K_tree, &args, err));
out:
    return status;
}

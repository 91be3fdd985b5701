#include <string.h>

#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/steps/steps.h"

/*
 * The gradient is summed over linked GPUs between a step's two graphs, on a stream of its own: the
 * sum of each bucket waits for the event that the first graph records after it, so it goes on
 * beside the rest of backward, and the update waits for the last sum. The host only enqueues all
 * that. A rank without micro-batches makes the same calls.
 *
 * The tail lies directly after the first bucket and is summed with it. What the ranks tell each
 * other there comes to the host once that sum has ended, of ranks apart once all have, which the
 * host learns some steps later. Sums along the tree (steps_tree.c) have no place for it, since a
 * rank may have no leaf: it is summed by itself.
 */

enum dpt_status dpt_cuda_sums_open(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const int64_t bytes = s->n_staging * (int64_t)(DPT_TENSOR_ALIGN * sizeof(float));
    const struct dpt_cuda_piece pieces[] = {
        {"what the ranks tell each other", bytes, (void **)&s->tails, true},
        {"what this rank tells", bytes, (void **)&s->flags, true}};
    enum dpt_status status = DPT_OK;

    if (s->spec.link == NULL)
        return DPT_OK;
    dpt_cuda_link_watch(s->spec.link, s->p->ctx.waits);
    if (dpt_cuda_steps_staged(s))
        dpt_cuda_link_among(s->spec.link, s->spec.stage * s->spec.ranks, s->spec.ranks);
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, pieces, sizeof pieces / sizeof *pieces, err));
    DPT_TRY(DPT_ALLOCATE(s->told, (size_t)s->n_staging, "the steps", err));
    for (int i = 0; i < s->n_staging; i++)
        DPT_TRY(dpt_cuda_event(&s->p->ctx, CU_EVENT_DISABLE_TIMING, &s->told[i], err));
out:
    return status;
}

/* Enqueues the sum of a bucket of which no rank has a slice: of the first one with the tail. */
static enum dpt_status sum_whole(struct dpt_cuda_steps *s, int i, struct dpt_error *err)
{
    const struct dpt_cuda_bucket *b = &s->buckets[i];
    const size_t most = DPT_CUDA_SUMMED / sizeof(float);
    size_t n = (size_t)(b->last - b->first) + (i == 0 ? DPT_TENSOR_ALIGN : 0);
    float *at = s->p->gradient + b->first;
    enum dpt_status status = DPT_OK;

    for (; n > 0; at += most, n -= n < most ? n : most)
        DPT_TRY(dpt_cuda_link_sum(s->spec.link, at, n < most ? n : most, s->p->ctx.sums, err));
out:
    return status;
}

/* tells: the ranks tell each other something with the first one. */
static enum dpt_status sum_bucket(struct dpt_cuda_steps *s, int i, bool tells,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (s->tree != NULL && tells && i == 0 && !dpt_cuda_steps_staged(s))
        DPT_TRY(
            dpt_cuda_link_sum(s->spec.link, s->tree->flags, DPT_TENSOR_ALIGN, s->p->ctx.sums, err));
    DPT_TRY(s->n_pieces > 0 ? dpt_cuda_slices_sum(s, i, err) : sum_whole(s, i, err));
out:
    return status;
}

/* Before the update may begin, since the next step writes its own tail. */
static enum dpt_status fetch_tail(struct dpt_cuda_steps *s, size_t slot, int at, int n,
                                  struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const float *tail = dpt_cuda_steps_tail(s);
    const size_t bytes = DPT_TENSOR_ALIGN * sizeof *tail;
    float *to = s->tails + slot * DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(lib, cuMemcpyDtoHAsync(to, dpt_cuda_ptr(tail), bytes, s->p->ctx.sums));
    if (s->tree != NULL)
        DPT_CUDA_TRY(lib, cuMemcpyDtoHAsync(to + at, dpt_cuda_ptr(s->tree->flags),
                                            (size_t)n * sizeof *to, s->p->ctx.sums));
    DPT_CUDA_TRY(lib, cuEventRecord(s->told[slot], s->p->ctx.sums));
out:
    return status;
}

/* Enqueues the sums of all buckets. flags: NULL: of a round that is not the last; else where this
 * rank's words [at, at + n) of the tail are, and the ranks' sum of it is fetched. */
static enum dpt_status sum_all(struct dpt_cuda_steps *s, const float *flags, int at, int n,
                               struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const CUstream sums = s->p->ctx.sums;
    const bool tells = flags != NULL, apart = dpt_cuda_steps_apart(s);
    const int end = !tells ? -1 : apart ? s->n_buckets - 1 : 0; /* when the tail is there */
    float *told = s->tree != NULL ? s->tree->flags : dpt_cuda_steps_tail(s) + at;
    enum dpt_status status = DPT_OK;

    if (s->units != NULL)
        DPT_TRY(dpt_cuda_units_sum(s, err));
    for (int i = 0; i < s->n_buckets; i++) {
        DPT_CUDA_TRY(lib, cuStreamWaitEvent(sums, s->buckets[i].ready, 0));
        if (tells && i == 0)
            DPT_CUDA_TRY(
                lib, cuMemcpyHtoDAsync(dpt_cuda_ptr(told), flags, (size_t)n * sizeof *flags, sums));
        DPT_TRY(sum_bucket(s, i, tells, err));
        if (i == end && apart)
            DPT_TRY(dpt_cuda_slices_end(s, err));
        if (i == end)
            DPT_TRY(fetch_tail(s, (size_t)(s->sums % s->n_staging), at, n, err));
    }
    DPT_CUDA_TRY(lib, cuEventRecord(s->given, sums));
    if (tells)
        s->sums++;
    else
        s->tree->round++;
out:
    return status;
}

enum dpt_status dpt_cuda_sums_round(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const bool due = s->due;

    s->due = false;
    return due ? sum_all(s, NULL, 0, 0, err) : DPT_OK;
}

enum dpt_status dpt_cuda_steps_sum(void *steps, const float *tail, int at, int n,
                                   struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    float *flags = s->flags + (size_t)(s->sums % s->n_staging) * DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    s->due = tail == NULL && dpt_cuda_steps_staged(s);
    if (tail != NULL)
        memcpy(flags, tail, (size_t)n * sizeof *flags);
    if (!s->due)
        DPT_TRY(sum_all(s, tail != NULL ? flags : NULL, at, n, err));
out:
    return dpt_cuda_steps_prefix_error(status, "summing the gradient", err);
}

enum dpt_status dpt_cuda_steps_summed(void *steps, float *tail, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const size_t slot = (size_t)(s->tellings % s->n_staging);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(dpt_cuda_await_event(&s->p->ctx, s->told[slot], err));
    DPT_TRY(dpt_cuda_link_check(s->spec.link, err));
    memcpy(tail, s->tails + slot * DPT_TENSOR_ALIGN, DPT_TENSOR_ALIGN * sizeof *tail);
    s->tellings++;
out:
    return dpt_cuda_steps_prefix_error(status, "summing the gradient", err);
}

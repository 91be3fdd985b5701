#include <string.h>

#include "core/backend/cuda/steps/steps.h"

/* The gradient is reduced in buckets, from the arena's end, in the order in which backward
 * completes them, to the first tensor that learns. In pinned memory the tail lies directly after
 * the last of them, so that one allreduce sums both; the other buckets follow. */

static size_t bytes_of(int64_t floats)
{
    return (size_t)floats * sizeof(float);
}

/* Finds where the tensors of a node that learn begin and end; false if it has none. */
static bool tensors_of(const struct dpt_graph *g, const struct dpt_graph_node *node, int64_t *first,
                       int64_t *last)
{
    const int32_t numbers[2] = {node->weight, node->bias};

    *first = g->floats;
    *last = 0;
    for (int i = 0; i < 2; i++) {
        const struct dpt_tensor *t = numbers[i] >= 0 ? &g->tensors[numbers[i]] : NULL;

        if (t == NULL || t->frozen)
            continue;
        *first = t->offset < *first ? t->offset : *first;
        *last = t->offset + t->count > *last ? t->offset + t->count : *last;
    }
    return *first < *last;
}

/* Where the first tensor that learns begins. */
static int64_t start_of(const struct dpt_graph *g)
{
    int64_t start = g->floats;

    for (int32_t k = 0; k < g->n_tensors; k++)
        if (dpt_graph_updates(g, k) && g->tensors[k].offset < start)
            start = g->tensors[k].offset;
    return start;
}

/* Cuts the arena from `start` on at nodes into buckets of `most` bytes or a little more; `buckets`
 * has an entry for each node. If the tensors' order is not that of the nodes there is one bucket
 * only. */
static int cut_arena(const struct dpt_graph *g, int64_t start, int64_t most,
                     struct dpt_cuda_bucket *buckets)
{
    struct dpt_cuda_bucket rest = {.first = start, .last = g->arena, .end = g->n_nodes};
    int64_t low = g->floats, first, last;
    int n = 0;

    for (int32_t k = g->n_nodes - 1; k >= 0; k--) {
        if (!tensors_of(g, &g->nodes[k], &first, &last))
            continue;
        if (last > low) {
            n = 0, rest.last = g->arena, rest.end = g->n_nodes;
            break;
        }
        low = first;
        if (low == start || (rest.last - low) * (int64_t)sizeof(float) < most)
            continue;
        buckets[n++] =
            (struct dpt_cuda_bucket){.first = low, .last = rest.last, .node = k, .end = rest.end};
        rest.last = low;
        rest.end = k;
    }
    buckets[n++] = rest;
    return n;
}

static const struct dpt_cuda_bucket *last_bucket(const struct dpt_cuda_steps *s)
{
    return &s->buckets[s->n_buckets - 1];
}

static enum dpt_status hold_staging(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const int64_t start = last_bucket(s)->first, floats = s->p->spec.graph->arena - start;
    const bool on_device = s->spec.on_device;
    const struct dpt_cuda_piece piece = {
        on_device ? "what the ranks tell each other" : "the gradient's sum over the ranks",
        (int64_t)bytes_of((on_device ? 0 : floats) + DPT_TENSOR_ALIGN),
        (void **)(on_device ? &s->tail : &s->staging), true};
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    if (on_device)
        goto out;
    s->tail = s->staging + last_bucket(s)->last - start;
    for (int i = 0; i < s->n_buckets; i++) {
        struct dpt_cuda_bucket *b = &s->buckets[i];

        b->staged = s->staging + b->first - start + (b->first > start ? DPT_TENSOR_ALIGN : 0);
    }
out:
    return status;
}

enum dpt_status dpt_cuda_buckets_open(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    enum dpt_status status = DPT_OK;

    if (!s->spec.reduces)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(s->buckets, (size_t)g->n_nodes + 1, "the gradient's parts", err));
    s->buckets[0] =
        (struct dpt_cuda_bucket){.first = g->floats, .last = g->arena, .end = g->n_nodes};
    s->n_buckets = s->p->spec.units > 0 ? 1 : cut_arena(g, start_of(g), s->spec.bucket, s->buckets);
    if (s->spec.link == NULL)
        DPT_TRY(hold_staging(s, err));
    for (int i = 0; i < s->n_buckets; i++) {
        DPT_TRY(dpt_cuda_event(&s->p->ctx, CU_EVENT_DISABLE_TIMING, &s->buckets[i].ready, err));
        DPT_TRY(dpt_cuda_event(&s->p->ctx, CU_EVENT_DISABLE_TIMING, &s->buckets[i].copied, err));
    }
    DPT_TRY(dpt_cuda_event(&s->p->ctx, CU_EVENT_DISABLE_TIMING, &s->given, err));
out:
    return status;
}

/* In a captured graph an event for which another stream waits has to be a node of its own
 * (EXTERNAL); while launches are profiled there is no graph. */
enum dpt_status dpt_cuda_buckets_done(void *arg, int32_t node, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = arg;
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const unsigned flags =
        dpt_cuda_program_profiled(s->p) ? CU_EVENT_RECORD_DEFAULT : CU_EVENT_RECORD_EXTERNAL;
    enum dpt_status status = DPT_OK;
    CUstream stream;

    for (; s->next < s->n_buckets && s->buckets[s->next].node >= node; s->next++) {
        const struct dpt_cuda_bucket *b = &s->buckets[s->next];

        if (s->micros > 0)
            DPT_TRY(dpt_cuda_enqueue_gradient(s->p, b->node, b->end,
                                              s->micros > 1 && s->tree == NULL, err));
        DPT_TRY(dpt_cuda_branches_fork(s->p, &stream, err)); /* after both */
        if (s->micros > 0 && s->tree != NULL && !s->spec.round_robin)
            DPT_TRY(dpt_cuda_tree_push(s, s->micros - 1, b->first,
                                       b->last + (b == s->buckets ? DPT_TENSOR_ALIGN : 0), err));
        DPT_CUDA_TRY(lib, cuEventRecordWithFlags(b->ready, stream, flags));
    }
out:
    dpt_cuda_branches_return(s->p);
    return status;
}

enum dpt_status dpt_cuda_buckets_fetch(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const CUstream copy = s->p->ctx.copy;
    const float *gradient = s->p->gradient;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->n_buckets && s->spec.link == NULL; i++) {
        const struct dpt_cuda_bucket *b = &s->buckets[i];

        DPT_CUDA_TRY(lib, cuStreamWaitEvent(copy, b->ready, 0));
        if (b->staged != NULL)
            DPT_CUDA_TRY(lib, cuMemcpyDtoHAsync(b->staged, dpt_cuda_ptr(gradient + b->first),
                                                bytes_of(b->last - b->first), copy));
        if (i == s->n_buckets - 1)
            DPT_CUDA_TRY(lib, cuMemcpyDtoHAsync(s->tail,
                                                dpt_cuda_ptr(gradient + s->p->spec.graph->arena),
                                                bytes_of(DPT_TENSOR_ALIGN), copy));
        DPT_CUDA_TRY(lib, cuEventRecord(b->copied, copy));
    }
out:
    return status;
}

int dpt_cuda_steps_buckets(const void *steps)
{
    const struct dpt_cuda_steps *s = steps;

    return s->spec.link == NULL ? s->n_buckets : 0;
}

enum dpt_status dpt_cuda_steps_bucket(void *steps, int i, float **at, size_t *n, float **host_tail,
                                      struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_bucket *b = &s->buckets[i];
    const bool whole = b == last_bucket(s); /* the tail is summed with it */
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(dpt_cuda_await_event(&s->p->ctx, b->copied, err));
    *at = b->staged != NULL ? b->staged : s->p->gradient + b->first;
    *n = (size_t)(b->last - b->first) + (whole && b->staged != NULL ? DPT_TENSOR_ALIGN : 0);
    if (host_tail != NULL)
        *host_tail = whole ? s->tail : NULL;
out:
    return dpt_cuda_steps_prefix_error(status, "fetching the gradient", err);
}

enum dpt_status dpt_cuda_steps_give(void *steps, int i, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const struct dpt_cuda_bucket *b = &s->buckets[i];
    /* On a stream of its own: the copies of the next buckets from the device wait for backward. */
    const CUstream back = s->p->ctx.sums;
    float *gradient = s->p->gradient;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    if (b->staged != NULL)
        DPT_CUDA_TRY(lib, cuMemcpyHtoDAsync(dpt_cuda_ptr(gradient + b->first), b->staged,
                                            bytes_of(b->last - b->first), back));
    if (b == last_bucket(s))
        DPT_CUDA_TRY(lib, cuMemcpyHtoDAsync(dpt_cuda_ptr(gradient + s->p->spec.graph->arena),
                                            s->tail, bytes_of(DPT_TENSOR_ALIGN), back));
    DPT_CUDA_TRY(lib, cuEventRecord(s->given, back));
out:
    return dpt_cuda_steps_prefix_error(status, "returning the summed gradient", err);
}

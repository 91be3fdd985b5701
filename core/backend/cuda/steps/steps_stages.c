#include "core/backend/cuda/steps/steps.h"

/*
 * A stage of a pipeline: its micro-batches go through in the schedule's order, those in flight in
 * programs of their own, which share parameters and gradient. A pass is a graph, so is the way
 * back.
 *
 * Between two passes a rank sends what the first one gave, and receives what the next one takes, by
 * one call, on the stream that computes. NCCL takes the messages of a call at once, and calls one
 * after another; so with a call each two neighbours of a 1F1B schedule would wait for each other.
 * All else that goes over the link in a step comes after a stage's last message.
 *
 * What forward gives for the running statistics is merged along the tree at once, since the next
 * micro-batch overwrites it; gradients are after backward. The last stage alone has a tail.
 */

/* What crosses an edge of this stage: a micro-batch's value, or its gradient. n 0: nothing does. */
static struct dpt_cuda_message across(const struct dpt_cuda_steps *s, int flight,
                                      enum dpt_cuda_edge edge, bool gradient)
{
    const bool in = edge == DPT_CUDA_EDGE_IN;
    size_t bytes;
    void *const at = dpt_cuda_edge_of(dpt_cuda_flight(s->p, flight), edge, gradient, &bytes);

    if (at == NULL)
        return (struct dpt_cuda_message){0};
    return (struct dpt_cuda_message){.at = at,
                                     .n = bytes / sizeof(float),
                                     .rank = s->spec.rank + (in ? -s->spec.ranks : s->spec.ranks),
                                     .sends = in == gradient};
}

/* Sends what waits, and receives that. */
static enum dpt_status exchange(struct dpt_cuda_steps *s, const struct dpt_cuda_message *received,
                                struct dpt_error *err)
{
    struct dpt_cuda_message messages[2];
    int n = 0;

    if (s->unsent.n > 0)
        messages[n++] = s->unsent;
    if (received->n > 0)
        messages[n++] = *received;
    s->unsent.n = 0;
    return dpt_cuda_link_exchange(s->spec.link, messages, n, s->p->ctx.compute, err);
}

static enum dpt_status forward(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                               struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_steps_load(s, dpt_cuda_flight(s->p, pass->flight), pass->micro, err));
    DPT_TRY(dpt_cuda_steps_replay(s, DPT_CUDA_PASS_FORWARD, pass->flight, err));
    if (g->arena > g->floats)
        DPT_TRY(dpt_cuda_tree_push(s, pass->micro, g->floats, g->arena, err));
out:
    return status;
}

static enum dpt_status back(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                            struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_steps_replay(s, DPT_CUDA_PASS_BACK, pass->flight, err));
    if (g->floats > 0)
        DPT_TRY(dpt_cuda_tree_push(s, pass->micro, 0, g->floats, err));
    if (dpt_cuda_steps_ends(s))
        DPT_TRY(dpt_cuda_tree_push(s, pass->micro, g->arena, g->arena + DPT_TENSOR_ALIGN, err));
out:
    return status;
}

enum dpt_status dpt_cuda_stages_end(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(&ctx->lib,
                 cuEventRecord(s->staging_buffers[s->staging_buffer].done, ctx->compute));
    for (int i = 0; i < s->n_buckets; i++)
        DPT_CUDA_TRY(&ctx->lib, cuEventRecord(s->buckets[i].ready, ctx->compute));
out:
    return status;
}

enum dpt_status dpt_cuda_stages_begin(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i <= s->p->n_others; i++) /* an evaluation may have set another kind */
        dpt_cuda_program_targets(dpt_cuda_flight(s->p, i), s->spec.targets > 0, s->spec.weights);
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute,
                                              s->staging_buffers[s->staging_buffer].uploaded, 0));
    if (s->micros == 0)
        DPT_TRY(dpt_cuda_stages_end(s, err));
out:
    return status;
}

enum dpt_status dpt_cuda_stages_pass(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                     struct dpt_error *err)
{
    const struct dpt_cuda_message none = {0}, message = across(s, pass->flight,
                                                               pass->back ? DPT_CUDA_EDGE_OUT
                                                                          : DPT_CUDA_EDGE_IN,
                                                               pass->back);
    enum dpt_status status = DPT_OK;

    DPT_TRY(exchange(s, &message, err));
    if (!pass->idle)
        DPT_TRY(pass->back ? back(s, pass, err) : forward(s, pass, err));
    s->unsent =
        across(s, pass->flight, pass->back ? DPT_CUDA_EDGE_IN : DPT_CUDA_EDGE_OUT, pass->back);
    if (pass->last) {
        DPT_TRY(exchange(s, &none, err));
        DPT_TRY(dpt_cuda_stages_end(s, err));
    }
out:
    return status;
}

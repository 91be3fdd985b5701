#include "core/backend/cuda/steps/steps.h"

/*
 * A stage of a pipeline: its micro-batches go through in the schedule's order, those in flight in
 * programs of their own, which share parameters and gradient. A pass is a graph, so is the way
 * back.
 *
 * Between two passes a rank sends what the first one gave, and receives what the next one takes, by
 * one call, on the stream that computes. NCCL takes the messages of a call at once, and calls one
 * after another; so with a call each two neighbours of a 1F1B schedule would wait for each other.
 * Without rounds all else that goes over the link in a step comes after a stage's last message.
 *
 * What forward gives for the running statistics is merged along the tree at once, since the next
 * micro-batch overwrites it; gradients are after backward. The last stage alone has a tail.
 *
 * If ranks take micro-batches round-robin, a round's gradient is summed over the ranks of a stage
 * after its way back, beside the pass that follows, behind whose messages the sum is enqueued: on
 * the link calls end in their order. With units (steps_units.c) a pass goes through one of them,
 * in the whole model or a stage, and the messages come before the first and after the last.
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

/* Copies what a flight's forward gave for the running statistics, until its gradient is there too;
 * and back, for the round's sum. */
static enum dpt_status keep_state(struct dpt_cuda_steps *s, int flight, bool back,
                                  struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    const int64_t n = g->arena - g->floats;
    float *const kept = s->kept + flight * n, *there = dpt_cuda_at(s->p, s->p->gradient, g->floats);
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(&s->p->ctx.lib, cuMemcpyDtoDAsync(dpt_cuda_ptr(back ? there : kept),
                                                   dpt_cuda_ptr(back ? kept : there),
                                                   (size_t)n * sizeof *kept, s->p->ctx.compute));
out:
    return status;
}

/* Merges a micro-batch's leaf with those before it, as far as this pass gave it. */
static enum dpt_status push(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                            struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    enum dpt_status status = DPT_OK;

    if (!pass->back && g->arena > g->floats)
        DPT_TRY(dpt_cuda_tree_push(s, pass->micro, g->floats, g->arena, err));
    if (pass->back && g->floats > 0)
        DPT_TRY(dpt_cuda_tree_push(s, pass->micro, 0, g->floats, err));
    if (pass->back && dpt_cuda_steps_ends(s))
        DPT_TRY(dpt_cuda_tree_push(s, pass->micro, g->arena, g->arena + DPT_TENSOR_ALIGN, err));
out:
    return status;
}

/* Computes a pass, through a unit or the whole stage. */
static enum dpt_status compute(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                               bool begins, bool ends, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (begins && !pass->back)
        DPT_TRY(dpt_cuda_steps_load(s, dpt_cuda_flight(s->p, pass->flight), pass->micro, err));
    DPT_TRY(dpt_cuda_steps_replay(s, pass->back ? DPT_CUDA_PASS_BACK : DPT_CUDA_PASS_FORWARD,
                                  pass->flight * dpt_cuda_steps_units(s) + pass->unit, err));
    if (ends && s->kept != NULL)
        DPT_TRY(keep_state(s, pass->flight, pass->back, err));
    if (!s->spec.round_robin)
        DPT_TRY(push(s, pass, err));
out:
    return status;
}

/* After the last pass of a step, or a round: all of the gradient that is summed by buckets is
 * there, and the host may fill the staging buffer again. */
static enum dpt_status end(struct dpt_cuda_steps *s, struct dpt_error *err)
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

enum dpt_status dpt_cuda_stages_open(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    const struct dpt_cuda_piece piece = {"statistics of micro-batches under way",
                                         (s->p->n_others + 1) * (g->arena - g->floats) *
                                             (int64_t)sizeof(float),
                                         (void **)&s->kept, false};

    return dpt_cuda_steps_staged(s) && s->spec.round_robin && piece.bytes > 0
               ? dpt_cuda_hold(&s->p->ctx, &piece, 1, err)
               : DPT_OK;
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
        DPT_TRY(end(s, err));
out:
    return status;
}

enum dpt_status dpt_cuda_stages_pass(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                     struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_graph *g = s->p->spec.graph;
    const bool staged = dpt_cuda_steps_staged(s), back = pass->back, rounds = s->spec.round_robin;
    const int last = dpt_cuda_steps_units(s) - 1;
    const bool begins = pass->unit == (back ? last : 0), ends = pass->unit == (back ? 0 : last);
    const struct dpt_cuda_message none = {0};
    struct dpt_cuda_message received;
    enum dpt_status status = DPT_OK;

    if (staged && begins) {
        received = across(s, pass->flight, back ? DPT_CUDA_EDGE_OUT : DPT_CUDA_EDGE_IN, back);
        DPT_TRY(exchange(s, &received, err));
        DPT_TRY(dpt_cuda_sums_round(s, err));
    }
    if (rounds && begins && (back || g->arena > g->floats)) /* what it writes is being summed */
        DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute, s->given, 0));
    DPT_TRY(dpt_cuda_units_begin(s, pass, err));
    if (!pass->idle && pass->micro < s->micros)
        DPT_TRY(compute(s, pass, begins, ends, err));
    DPT_TRY(dpt_cuda_units_end(s, pass, err));
    if (staged && ends)
        s->unsent = across(s, pass->flight, back ? DPT_CUDA_EDGE_IN : DPT_CUDA_EDGE_OUT, back);
    if (staged && pass->last)
        DPT_TRY(exchange(s, &none, err));
    if (pass->last || (rounds && back && ends))
        DPT_TRY(end(s, err));
out:
    return status;
}

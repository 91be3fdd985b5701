#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/steps/steps.h"

/*
 * Weights of which each linked rank keeps slices (ZeRO's third stage, Rajbhandari et al. 2020; in
 * units as FSDP, Zhao et al. 2023).
 *
 * Micro-batches go through the model unit by unit, forward and back, round by round, each pass a
 * graph. The memory has two windows for weights, what is derived from them, and gradients: unit k
 * uses number k % 2. A unit's weights are gathered into its window on the stream `sums`, while the
 * unit before it is computed, once the pass that used the window before has ended. After a pass
 * back the gradient is summed there: each rank gets the sum of its slices, and adds those of all
 * rounds along the tree. A window whose weights are wanted again still has them, as at the turn
 * from forward to back. So of all of them a rank has only slices, as of the optimizer's state.
 *
 * Kernels have fixed addresses, so the graphs are the same in each round and step. Running
 * statistics and the tail are whole on each rank.
 */

enum dpt_status dpt_cuda_units_open(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_chunks chunks = {0};
    struct dpt_cuda_context *ctx = &s->p->ctx;
    struct dpt_cuda_units *u;

    if (s->p->spec.units == 0)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(s->units, 1, "the units", err));
    u = s->units;
    u->there[0] = u->there[1] = u->computed = -1;
    DPT_TRY(dpt_graph_chunks(s->p->spec.graph, &chunks, err));
    for (size_t k = 0; k < chunks.n; k++) {
        const size_t n = chunks.begin[k + 1] - chunks.begin[k];
        const int64_t room = (int64_t)dpt_round_up(n, sizeof(float)); /* vectors follow it */

        u->rest = room > u->rest ? room : u->rest;
    }
    {
        const int64_t floats = s->slot_floats * (int64_t)sizeof(float);
        const struct dpt_cuda_piece pieces[] = {
            {"slices of the parameters", floats, (void **)&u->params, false},
            {"slices of the gradient", floats + s->n_pieces * u->rest * (int64_t)sizeof(float),
             (void **)&u->gradient, false}};

        DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(pieces), err));
    }
    for (int w = 0; w < 2; w++) {
        DPT_TRY(dpt_cuda_event(ctx, CU_EVENT_DISABLE_TIMING, &u->gathered[w], err));
        DPT_TRY(dpt_cuda_event(ctx, CU_EVENT_DISABLE_TIMING, &u->passed[w], err));
        DPT_TRY(dpt_cuda_event(ctx, CU_EVENT_DISABLE_TIMING, &u->summed[w], err));
    }
out:
    dpt_free(chunks.begin);
    return status;
}

void dpt_cuda_units_close(struct dpt_cuda_steps *s)
{
    dpt_free(s->units);
}

/* --- the weights of a unit -------------------------------------------------------------------- */

/* Enqueues the gathering of a unit's weights, unless they are there. */
static enum dpt_status gather(struct dpt_cuda_steps *s, int unit, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    struct dpt_cuda_units *u = s->units;
    const int w = unit % 2;
    enum dpt_status status = DPT_OK;

    if (u->there[w] == unit)
        return DPT_OK;
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->sums, u->passed[w], 0));
    DPT_TRY(dpt_cuda_slices_params(s, unit + 1, u->params, ctx->sums, err));
    DPT_CUDA_TRY(&ctx->lib, cuEventRecord(u->gathered[w], ctx->sums));
    u->there[w] = unit;
out:
    if (status != DPT_OK)
        u->there[w] = -1;
    return status;
}

enum dpt_status dpt_cuda_steps_gather(void *steps, int unit, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const int32_t *node = s->p->spec.unit + unit;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    DPT_CUDA_TRY(&ctx->lib, cuEventRecord(s->units->passed[unit % 2], ctx->compute));
    DPT_TRY(gather(s, unit, err));
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute, s->units->gathered[unit % 2], 0));
    DPT_TRY(dpt_cuda_enqueue_layouts(s->p, node[0], node[1], err));
out:
    return dpt_cuda_steps_prefix_error(status, "gathering the weights", err);
}

enum dpt_status dpt_cuda_steps_weights(void *steps, int unit, float *params, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const int64_t first = (int64_t)s->p->spec.edge[unit],
                  n = (int64_t)s->p->spec.edge[unit + 1] - first;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(dpt_cuda_await_stream(&s->p->ctx, s->p->ctx.compute, err));
    DPT_TRY(dpt_cuda_steps_download(s, params + first, dpt_cuda_at(s->p, s->p->params, first),
                                    (size_t)n * sizeof *params, err));
out:
    return dpt_cuda_steps_prefix_error(status, "fetching the weights", err);
}

enum dpt_status dpt_cuda_units_updated(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;

    for (int w = 0; w < 2; w++) {
        s->units->there[w] = -1;
        DPT_CUDA_TRY(&ctx->lib, cuEventRecord(s->units->passed[w], ctx->compute));
    }
out:
    return status;
}

/* --- passes ----------------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_units_sum(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    struct dpt_cuda_units *u = s->units;
    const int unit = u->computed;
    enum dpt_status status = DPT_OK;

    if (unit < 0)
        return DPT_OK;
    u->computed = -1;
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->sums, u->passed[unit % 2], 0));
    DPT_TRY(dpt_cuda_slices_sum(s, unit + 1, err));
    DPT_CUDA_TRY(&ctx->lib, cuEventRecord(u->summed[unit % 2], ctx->sums));
out:
    return status;
}

enum dpt_status dpt_cuda_units_begin(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                     struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_cuda_units *u = s->units;
    enum dpt_status status = DPT_OK;

    if (u == NULL)
        return DPT_OK;
    DPT_TRY(dpt_cuda_units_sum(s, err));
    DPT_TRY(gather(s, pass->unit, err));
    DPT_TRY(gather(s, pass->next, err));
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute, u->gathered[pass->unit % 2], 0));
    if (pass->back)
        DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute, u->summed[pass->unit % 2], 0));
out:
    return status;
}

enum dpt_status dpt_cuda_units_end(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                   struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    struct dpt_cuda_units *u = s->units;
    enum dpt_status status = DPT_OK;

    if (u == NULL)
        return DPT_OK;
    DPT_CUDA_TRY(&ctx->lib, cuEventRecord(u->passed[pass->unit % 2], ctx->compute));
    u->computed = pass->back ? pass->unit : -1;
out:
    return status;
}

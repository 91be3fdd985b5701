#include <math.h>
#include <string.h>

#include "core/backend/cuda/steps/steps.h"

_Static_assert(sizeof(struct dpt_cuda_move) == sizeof(struct dpt_steps_move) &&
                   offsetof(struct dpt_cuda_move, flip) == offsetof(struct dpt_steps_move, flip),
               "staging buffers hold moves as the kernels read them");

static enum dpt_status wait_for_all(const struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->compute, err));
    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->copy, err));
    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->sums, err));
    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->samples, err));
out:
    return status;
}

/* --- life ------------------------------------------------------------------------------------- */

static void steps_close(void *steps)
{
    struct dpt_cuda_steps *s = steps;
    struct dpt_error ignored;

    if (s == NULL)
        return;
    /* Errors are ignored: what fails here has failed before and was reported then. */
    dpt_cuda_context_enter(&s->p->ctx, &ignored);
    wait_for_all(s, &ignored);
    dpt_cuda_steps_forget(s);
    dpt_cuda_tree_close(s);
    dpt_cuda_slices_close(s);
    dpt_cuda_units_close(s);
    dpt_free(s->buckets);
    dpt_free(s->told);
    dpt_free(s->counts);
    dpt_free(s->groups);
    dpt_free(s->staging_buffers);
    dpt_free(s);
}

static enum dpt_status steps_open(void *program, const struct dpt_steps_spec *spec, void **steps,
                                  struct dpt_error *err)
{
    struct dpt_cuda_program *p = program;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_steps *s = NULL;
    int most;

    *steps = NULL;
    DPT_TRY(DPT_ALLOCATE(s, 1, "the steps", err));
    s->p = p;
    s->spec = *spec;
    s->n_staging = spec->staging_buffers;
    s->at_once = 1;
    most = 2 * spec->at_once > s->n_staging ? 2 * spec->at_once : s->n_staging;
    DPT_TRY(DPT_ALLOCATE(s->staging_buffers, (size_t)most, "the steps", err));
    DPT_TRY(DPT_ALLOCATE(s->counts, (size_t)most * (size_t)spec->micros, "the steps", err));
    DPT_TRY(dpt_cuda_context_enter(&p->ctx, err));
    dpt_cuda_program_targets(p, spec->targets > 0, spec->weights);
    DPT_TRY(dpt_cuda_buckets_open(s, err));
    DPT_TRY(dpt_cuda_slices_cut(s, err));
    DPT_TRY(dpt_cuda_steps_hold(s, err));
    DPT_TRY(dpt_cuda_units_open(s, err));
    DPT_TRY(dpt_cuda_stages_open(s, err));
    DPT_TRY(dpt_cuda_slices_open(s, err));
    DPT_TRY(dpt_cuda_tree_open(s, err));
    DPT_TRY(dpt_cuda_sums_open(s, err));
    DPT_TRY(dpt_cuda_steps_warm(s, err));
    *steps = s;
out:
    if (status != DPT_OK)
        steps_close(s);
    return dpt_cuda_steps_prefix_error(status, "preparing the steps", err);
}

/* --- launches that are put off ---------------------------------------------------------------- */

/* Launches the held steps: all in one launch, or each by itself. */
static enum dpt_status launch_held(struct dpt_cuda_steps *s, bool together, struct dpt_error *err)
{
    const int staging_buffer = s->staging_buffer;
    const int32_t micros = s->micros;
    enum dpt_status status = DPT_OK;

    s->micros = s->held_micros;
    while (s->held > 0) {
        const int steps = together ? s->held : 1;

        s->staging_buffer = s->first_held;
        DPT_TRY(dpt_cuda_steps_launch(s, DPT_CUDA_COMPUTE | DPT_CUDA_NORM | DPT_CUDA_UPDATE, steps,
                                      err));
        s->held -= steps;
        s->first_held += steps;
    }
out:
    s->staging_buffer = staging_buffer;
    s->micros = micros;
    return status;
}

/* Launches everything deferred: held steps, and a step that was deferred until an update which does
 * not come. */
static enum dpt_status launch_deferred(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = launch_held(s, false, err);

    if (status == DPT_OK && s->deferred)
        status = dpt_cuda_steps_launch(s, DPT_CUDA_COMPUTE, 1, err);
    s->deferred = false;
    return status;
}

/* Whether the step can go in one launch with those that are held, or others after it. */
static bool can_be_held(const struct dpt_cuda_steps *s)
{
    if (!s->deferred || s->at_once == 1 || s->micros == 0 || dpt_cuda_program_profiled(s->p))
        return false;
    return s->held == 0
               ? s->staging_buffer % s->at_once == 0
               : s->staging_buffer == s->first_held + s->held && s->micros == s->held_micros;
}

/* Launches the step with its update, or holds it. */
static enum dpt_status launch_or_hold(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (can_be_held(s)) {
        if (s->held++ == 0) {
            s->first_held = s->staging_buffer;
            s->held_micros = s->micros;
        }
        s->deferred = false;
        return s->held == s->at_once ? launch_held(s, true, err) : DPT_OK;
    }
    DPT_TRY(launch_held(s, false, err));
    DPT_TRY(dpt_cuda_steps_launch(
        s, (s->deferred ? DPT_CUDA_COMPUTE : 0) | DPT_CUDA_NORM | DPT_CUDA_UPDATE, 1, err));
out:
    return status;
}

static int steps_held(const void *steps)
{
    return ((const struct dpt_cuda_steps *)steps)->held;
}

static enum dpt_status steps_launch(void *steps, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    enum dpt_status status = DPT_OK;

    if (s->held == 0)
        return DPT_OK;
    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(launch_held(s, false, err));
out:
    return dpt_cuda_steps_prefix_error(status, "launching steps", err);
}

/* --- arenas ----------------------------------------------------------------------------------- */

static bool all_finite(const float *x, int64_t n)
{
    float sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] - x[i]; /* 0, or NaN */
    return sum == 0;
}

/* The floats of an arena that each rank has: with units those behind them. */
static int64_t first_whole(const struct dpt_cuda_steps *s)
{
    return s->units != NULL ? s->p->spec.graph->floats : 0;
}

/* Gives each rank all slices of an arena, and waits. */
static enum dpt_status gather_whole(struct dpt_cuda_steps *s, float *arena, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_slices_gather(s, arena, s->p->ctx.sums, err));
    DPT_TRY(wait_for_all(s, err));
out:
    return status;
}

static enum dpt_status put_params(struct dpt_cuda_steps *s, const float *params,
                                  struct dpt_error *err)
{
    const int64_t first = first_whole(s);
    enum dpt_status status = DPT_OK;

    if (s->units != NULL)
        DPT_TRY(dpt_cuda_slices_put(s, s->units->params, params, err));
    DPT_TRY(dpt_cuda_steps_upload(s, dpt_cuda_at(s->p, s->p->params, first), params + first,
                                  (size_t)(s->p->spec.graph->arena - first) * sizeof *params, err));
out:
    return status;
}

static enum dpt_status get_params(struct dpt_cuda_steps *s, bool own, float *params,
                                  struct dpt_error *err)
{
    const int64_t first = first_whole(s);
    enum dpt_status status = DPT_OK;

    if (s->units != NULL)
        DPT_TRY(dpt_cuda_slices_get(s, s->units->params, 0, own, params, err));
    else if (s->spec.shards && !own && s->p->spec.precision >= DPT_PRECISION_BF16)
        DPT_TRY(gather_whole(s, s->p->params, err)); /* layers read the others' rounded */
    DPT_TRY(dpt_cuda_steps_download(s, params + first, dpt_cuda_at(s->p, s->p->params, first),
                                    (size_t)(s->p->spec.graph->arena - first) * sizeof *params,
                                    err));
out:
    return status;
}

static enum dpt_status get_gradient(struct dpt_cuda_steps *s, float *gradient,
                                    struct dpt_error *err)
{
    const int64_t first = first_whole(s), n = s->p->spec.graph->arena + DPT_TENSOR_ALIGN - first;
    enum dpt_status status = DPT_OK;

    if (s->units != NULL) {
        DPT_TRY(dpt_cuda_slices_get(s, s->units->gradient, s->units->rest, false, gradient, err));
    } else if (s->spec.shards) {
        DPT_TRY(gather_whole(s, s->p->gradient, err));
    }
    DPT_TRY(dpt_cuda_steps_download(s, gradient + first, dpt_cuda_at(s->p, s->p->gradient, first),
                                    (size_t)n * sizeof *gradient, err));
out:
    return status;
}

static enum dpt_status steps_put(void *steps, const float *params, float *const *slot,
                                 const struct dpt_loss_scale *scale, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_graph *g = s->p->spec.graph;
    const size_t bytes = (size_t)g->floats * sizeof(float);
    enum dpt_status status = DPT_OK;

    s->deferred = false;
    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    DPT_TRY(launch_held(s, false, err));
    DPT_TRY(wait_for_all(s, err));
    DPT_TRY(put_params(s, params, err));
    for (int k = 0; slot != NULL && k < s->spec.rule.slots; k++)
        DPT_TRY(s->spec.shards ? dpt_cuda_slices_put(s, s->slot[k], slot[k], err)
                               : dpt_cuda_steps_upload(s, s->slot[k], slot[k], bytes, err));
    *s->reported = (struct dpt_cuda_state){.loss_scale = scale->scale,
                                           .good = scale->good,
                                           .overflows = scale->overflows,
                                           .unsound = !all_finite(params, g->arena)};
    DPT_TRY(dpt_cuda_to_device(ctx, s->p->state, s->reported, sizeof *s->reported, err));
    DPT_CUDA_TRY(&ctx->lib, cuMemsetD8Async(dpt_cuda_ptr(s->p->metric_sums), 0,
                                            sizeof *s->p->metric_sums, ctx->compute));
    DPT_TRY(s->units != NULL ? dpt_cuda_units_updated(s, err)
                             : dpt_cuda_enqueue_layouts(s->p, 0, s->p->spec.graph->n_nodes, err));
    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->compute, err));
out:
    return dpt_cuda_steps_prefix_error(status, "sending the parameters there", err);
}

static enum dpt_status steps_get(void *steps, float *params, float *const *slot, float *gradient,
                                 struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const size_t bytes = (size_t)s->p->spec.graph->floats * sizeof(float);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(launch_deferred(s, err));
    DPT_TRY(wait_for_all(s, err));
    if (params != NULL)
        DPT_TRY(get_params(s, slot == NULL, params, err));
    for (int k = 0; slot != NULL && k < s->spec.rule.slots; k++)
        DPT_TRY(s->spec.shards ? dpt_cuda_slices_get(s, s->slot[k], 0, false, slot[k], err)
                               : dpt_cuda_steps_download(s, slot[k], s->slot[k], bytes, err));
    if (gradient != NULL)
        DPT_TRY(get_gradient(s, gradient, err));
out:
    return dpt_cuda_steps_prefix_error(status, "fetching the parameters", err);
}

/* --- a step ----------------------------------------------------------------------------------- */

static int steps_count(const void *steps)
{
    return ((const struct dpt_cuda_steps *)steps)->n_staging;
}

static enum dpt_status steps_staging(void *steps, int which,
                                     struct dpt_staging_buffer *staging_buffer,
                                     struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_staging_layout *at = &s->staging_layout;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;
    void *field[DPT_CUDA_FIELDS];
    unsigned char *pinned;

    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    DPT_TRY(dpt_cuda_await_event(ctx, s->staging_buffers[which].uploaded, err));
    pinned = s->staging_buffers[which].pinned;
    for (int i = 0; i < DPT_CUDA_FIELDS; i++)
        field[i] = at->row[i] > 0 ? pinned + at->offset[i] : NULL;
    *staging_buffer = (struct dpt_staging_buffer){
        .input = field[DPT_CUDA_STAGED_INPUT],
        .labels = field[DPT_CUDA_STAGED_LABELS],
        .targets = field[DPT_CUDA_STAGED_TARGETS],
        .weights = field[DPT_CUDA_STAGED_WEIGHTS],
        .sample = field[DPT_CUDA_STAGED_SAMPLE],
        .move = field[DPT_CUDA_STAGED_MOVE],
        .count = s->counts + (size_t)which * (size_t)s->spec.micros,
    };
out:
    return dpt_cuda_steps_prefix_error(status, "waiting for samples to be copied", err);
}

/* Copies a staging buffer to the device as soon as no earlier step reads its last content there. */
static enum dpt_status steps_send(void *steps, int which, int32_t micros, struct dpt_error *err)
{
    const struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_cuda_staging_buffer *staging_buffer;
    enum dpt_status status = DPT_OK;
    size_t bytes;

    if (micros == 0)
        goto out;
    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    staging_buffer = &s->staging_buffers[which];
    for (int32_t m = 0; m < micros; m++)
        ((struct dpt_cuda_control *)(void *)staging_buffer->pinned)[m] = (struct dpt_cuda_control){
            .count = s->counts[(size_t)which * (size_t)s->spec.micros + (size_t)m]};
    bytes = s->staging_layout.offset[DPT_CUDA_STAGED_INPUT] +
            (size_t)micros * (size_t)s->p->micro * s->staging_layout.row[DPT_CUDA_STAGED_INPUT];
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->samples, staging_buffer->done, 0));
    DPT_CUDA_TRY(&ctx->lib, cuMemcpyHtoDAsync(dpt_cuda_ptr(staging_buffer->device),
                                              staging_buffer->pinned, bytes, ctx->samples));
    DPT_CUDA_TRY(&ctx->lib, cuEventRecord(staging_buffer->uploaded, ctx->samples));
out:
    return dpt_cuda_steps_prefix_error(status, "sending samples there", err);
}

/* Writes the controls of the micro-batches once the last launch that reads them has ended. */
static enum dpt_status write_batches(struct dpt_cuda_steps *s, uint64_t seed, uint64_t step,
                                     struct dpt_error *err)
{
    const int32_t *count = s->counts + (size_t)s->staging_buffer * (size_t)s->spec.micros;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_await_event(&s->p->ctx, s->staging_buffers[s->staging_buffer].done, err));
    for (int32_t m = 0; m < s->micros; m++)
        *dpt_cuda_steps_batch(s, m) =
            (struct dpt_cuda_control){.seed = seed, .step = step, .count = count[m]};
out:
    return status;
}

static enum dpt_status steps_compute(void *steps, int which, int32_t micros, uint64_t seed,
                                     uint64_t step, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    if (s->deferred)
        DPT_TRY(launch_deferred(s, err));
    s->staging_buffer = which;
    s->micros = micros;
    DPT_TRY(write_batches(s, seed, step, err));
    if (dpt_cuda_steps_in_passes(s))
        DPT_TRY(dpt_cuda_stages_begin(s, err));
    else if (s->spec.reduces && (micros > 0 || !s->spec.round_robin))
        DPT_TRY(dpt_cuda_steps_launch(s, DPT_CUDA_COMPUTE, 1, err));
    s->deferred = !s->spec.reduces;
out:
    return dpt_cuda_steps_prefix_error(status, "computing a step", err);
}

static enum dpt_status steps_pass(void *steps, const struct dpt_steps_pass *pass,
                                  struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(&s->p->ctx, err));
    DPT_TRY(dpt_cuda_stages_pass(s, pass, err));
out:
    return dpt_cuda_steps_prefix_error(
        status, s->units != NULL ? "computing a unit" : "computing a stage", err);
}

/* A rank has one gradient, which it computes anew when the others have what they need of it. */
static enum dpt_status steps_next(void *steps, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;

    if (s->tree->round >= s->micros)
        return DPT_OK;
    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute, s->given, 0));
    DPT_TRY(dpt_cuda_steps_launch(s, DPT_CUDA_COMPUTE, 1, err));
out:
    return dpt_cuda_steps_prefix_error(status, "computing a round", err);
}

static enum dpt_status steps_update(void *steps, double lr, int64_t update, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    struct dpt_cuda_rates *rates = dpt_cuda_steps_rates(s);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    /* The last step from this staging buffer may not have read its rates yet. */
    DPT_TRY(dpt_cuda_await_event(ctx, s->staging_buffers[s->staging_buffer].done, err));
    for (int k = 0; k < s->n_groups; k++) {
        const struct dpt_scalars f = dpt_rule_scalars(&s->spec.rule, &s->groups[k], lr, update);

        rates[k] = (struct dpt_cuda_rates){.update = update,
                                           .lr = f.lr,
                                           .keep = f.keep,
                                           .rate = {f.rate[0], f.rate[1]},
                                           .l2 = f.l2};
    }
    if (s->spec.reduces)
        DPT_CUDA_TRY(&ctx->lib, cuStreamWaitEvent(ctx->compute, s->given, 0));
    DPT_TRY(dpt_cuda_steps_apart(s) ? dpt_cuda_slices_update(s, err) : launch_or_hold(s, err));
    if (s->units != NULL)
        DPT_TRY(dpt_cuda_units_updated(s, err));
    s->deferred = false;
out:
    return dpt_cuda_steps_prefix_error(status, "updating the parameters", err);
}

static enum dpt_status steps_read(void *steps, struct dpt_steps_state *state, struct dpt_error *err)
{
    struct dpt_cuda_steps *s = steps;
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_cuda_state *reported = s->reported;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_context_enter(ctx, err));
    DPT_TRY(launch_deferred(s, err));
    DPT_TRY(dpt_cuda_to_host(ctx, s->reported, s->p->state, sizeof *s->reported, err));
    /* From the oldest on: what is waited for at a time is one step, however many are queued, so the
     * watchdog sees that they end. */
    for (int k = 1; k <= s->n_staging; k++)
        DPT_TRY(dpt_cuda_await_event(
            ctx, s->staging_buffers[(s->staging_buffer + k) % s->n_staging].done, err));
    DPT_TRY(wait_for_all(s, err));
    DPT_CUDA_TRY(&ctx->lib, cuMemsetD8Async(dpt_cuda_ptr(&s->p->state->loss), 0,
                                            offsetof(struct dpt_cuda_state, weightless) -
                                                offsetof(struct dpt_cuda_state, loss),
                                            ctx->compute));
    *state = (struct dpt_steps_state){
        .loss = reported->loss,
        .samples = reported->samples,
        .correct = reported->correct,
        .weight = reported->weight,
        .weightless = reported->weightless,
        .norm =
            dpt_cuda_steps_shows(s) && isfinite(reported->norm) ? reported->shown : reported->norm,
        .withheld = !s->spec.skip && reported->withheld == DPT_CUDA_WITHHELD,
        .withheld_update = reported->withheld_update,
        .skipped = reported->skipped,
        .scale = {reported->loss_scale, reported->good, reported->overflows},
    };
out:
    return dpt_cuda_steps_prefix_error(status, "reading what the steps gave", err);
}

const struct dpt_backend_steps dpt_cuda_steps = {
    .open = steps_open,
    .close = steps_close,
    .put = steps_put,
    .get = steps_get,
    .staging_buffers = steps_count,
    .staging_buffer = steps_staging,
    .send = steps_send,
    .divide = dpt_cuda_steps_divide,
    .compute = steps_compute,
    .next = steps_next,
    .pass = steps_pass,
    .gather = dpt_cuda_steps_gather,
    .weights = dpt_cuda_steps_weights,
    .parts = dpt_cuda_steps_parts,
    .part = dpt_cuda_steps_part,
    .buckets = dpt_cuda_steps_buckets,
    .bucket = dpt_cuda_steps_bucket,
    .give = dpt_cuda_steps_give,
    .sum = dpt_cuda_steps_sum,
    .summed = dpt_cuda_steps_summed,
    .update = steps_update,
    .held = steps_held,
    .launch = steps_launch,
    .read = steps_read,
};

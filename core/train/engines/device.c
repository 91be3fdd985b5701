/*
 * Steps that a device takes in memory of its own.
 *
 * The device computes, adds up and updates by itself (core/backend/steps.h); a step costs the host
 * only the calls that enqueue it. With several ranks whose devices are linked the sums are
 * enqueued, too, and the host hears some steps later what the ranks told each other in the tail.
 * Without links each step's gradient comes to the host (or to a CUDA-aware MPI) bucket by bucket,
 * in the order in which backward finishes them; the thread that steps sums them over the ranks, one
 * by one, while the device computes the next: it has nothing else to do meanwhile, so it is the
 * communication thread. On the host the ranks of a node sum in memory that they share, and
 * MPI_Allreduce sums where each is on a node of its own. The ranks' flags travel in the tail of the
 * last bucket, as they do on host arenas.
 *
 * A stage of a pipeline, of linked ranks alone, goes through the passes of its schedule: the
 * backend enqueues each of them with the messages that it needs. So it does with the units of a
 * model of whose weights each device keeps slices.
 *
 * On one rank the backend holds short steps over samples that the device has, and launches them
 * together; their staging buffers go back to the prefetcher then.
 *
 * An optimizer with a step of its own (optimizer.h) is the host's alone, and so are synchronized
 * batch norms (step/exchange.c): their steps are not taken here.
 *
 * Updates that are withheld, because something is not a number or the loss scale was too large,
 * have numbers too, and t->progress.updates counts them: the host does not know of them in time.
 */

#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engines/device.h"
#include "core/train/step/average.h"
#include "data/sets/augment.h"

enum { AT_ONCE = 4 }; /* steps in one launch, where the samples are stored on the device */

/* --- opening ---------------------------------------------------------------------------------- */

/* The host decodes samples, and augments them if that is more than a crop and a flip. */
static struct dpt_steps_data data_of(const struct dpt_batch_form *form)
{
    const struct dpt_dataset *set = form->set;
    const bool as_they_are = !set->files && !set->views &&
                             (form->augment == NULL || dpt_augment_only_moves(form->augment));
    struct dpt_steps_data data = {.memory = as_they_are ? set->memory : NULL,
                                  .samples = set->samples,
                                  .stride = (int64_t)set->stride,
                                  .u8 = set->u8,
                                  .nhwc = set->nhwc};

    if (!dpt_dataset_normal(set, &data.scale, &data.shift))
        data.memory = NULL; /* then the host makes the samples */
    return data;
}

static enum dpt_status open_steps(struct dpt_trainer *t, struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;
    const struct dpt_job *job = t->job;
    const struct dpt_dataset *set = t->data.train.set;
    const struct dpt_sampler *s = &t->data.train.sampler;
    const int ranks = t->layout.replicas;
    const int64_t batches = ((int64_t)s->global + s->micro - 1) / s->micro;
    struct dpt_steps_spec spec = {
        .rule = dpt_optimizer_rule(&job->optimizer),
        .average = dpt_average_share(t),
        .clip = job->train.clip_norm,
        .skip = job->train.on_nan == DPT_ON_NAN_SKIP,
        .micros = (int32_t)((batches + ranks - 1) / ranks),
        .whole = dpt_sampler_count(s, 0),
        .staging_buffers = DPT_STAGING_BUFFERS,
        .at_once = AT_ONCE,
        .targets = t->data.train.form.targets,
        .weights = set->weights != NULL,
        .data = data_of(&t->data.train.form),
    };

    if (t->stage->number > 0) /* it reads no samples, only what is known of them */
        spec.data.memory = NULL;
    spec.rule.slots = t->arenas.slots;
    dpt_device_sums_plan(t, &spec);
    return d->type->open(t->model.program, &spec, &d->steps, err);
}

static enum dpt_status open_device(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    status = DPT_ALLOCATE(t->engine_state, 1, "the device's steps", err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    t->engine_state->type = t->backend->steps;
    DPT_TRY(dpt_device_sums_open(t, err));
out:
    return status;
}

static bool detach(struct dpt_trainer *t)
{
    struct dpt_engine_state *d = t->engine_state;

    if (d == NULL || d->steps == NULL)
        return false;
    dpt_prefetcher_close(d->prefetcher);
    d->type->close(d->steps);
    dpt_device_sums_detach(t);
    dpt_free(t->reduction.sum);
    t->reduction.sum = NULL;
    *d = (struct dpt_engine_state){.type = d->type,
                                   .on_device = d->on_device,
                                   .shared = d->shared,
                                   .piece = d->piece,
                                   .first = d->first,
                                   .node_ranks = d->node_ranks};
    return true;
}

static enum dpt_status attach(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;

    DPT_TRY(open_steps(t, err));
    DPT_TRY(dpt_device_sums_attach(t, err));
    DPT_TRY(dpt_prefetcher_open(
        &d->prefetcher,
        &(struct dpt_prefetcher_spec){.loader = t->data.train.loader,
                                      .form = &t->data.train.form,
                                      .micro = t->data.train.sampler.micro,
                                      .threads = t->layout.decoders,
                                      .staging_buffers = d->type->staging_buffers(d->steps),
                                      .type = d->type,
                                      .steps = d->steps},
        err));
out:
    if (status != DPT_OK)
        detach(t);
    return status;
}

static void close_device(struct dpt_trainer *t)
{
    detach(t);
    dpt_device_sums_close(t);
    dpt_free(t->engine_state);
}

/* --- what the steps gave ---------------------------------------------------------------------- */

/* Reads what the steps since the last call gave, and adds it to `pending`. */
static enum dpt_status read_results(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    struct dpt_step_result *p = &d->pending;
    const struct dpt_steps_state before = d->read;
    const struct dpt_steps_state *now = &d->read;
    int64_t left_out;

    if (d->unread == 0)
        return DPT_OK;
    dpt_comm_note(t->comm, -1, "waiting for its device");
    DPT_TRY(d->type->read(d->steps, &d->read, err));
    p->loss += now->loss;
    p->samples += now->samples;
    p->correct += now->correct;
    p->weight += now->weight;
    p->weightless += now->weightless - before.weightless;
    p->skipped += now->skipped - before.skipped;
    p->overflows += now->scale.overflows - before.scale.overflows;
    p->norm = now->norm;
    t->scale = now->scale;
    left_out = now->skipped - before.skipped + now->weightless - before.weightless +
               now->scale.overflows - before.scale.overflows;
    /* Over links the samples of each step are compared when the host hears of it. */
    if (t->link == NULL && left_out == 0 && !now->withheld && now->samples != d->given)
        DPT_TRY(
            dpt_fail(err, DPT_INTERNAL, "up to step %lld: the device counted %lld of %lld samples",
                     (long long)t->progress.step, (long long)now->samples, (long long)d->given));
    d->unread = d->given = 0;
out:
    return status;
}

static void take_pending(struct dpt_engine_state *d, struct dpt_step_result *since)
{
    *since = d->pending;
    d->pending = (struct dpt_step_result){.norm = d->pending.norm};
}

/* The host has no gradient until a caller asks for one. */
static enum dpt_status make_gradient(struct dpt_trainer *t, struct dpt_error *err)
{
    return t->reduction.sum != NULL
               ? DPT_OK
               : DPT_ALLOCATE(t->reduction.sum,
                              (size_t)dpt_trainer_graph(t)->arena + DPT_TAIL_WORDS, "the gradient",
                              err);
}

static enum dpt_status fetch(struct dpt_trainer *t, bool gradient, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;

    if (d->fetched && (d->with_gradient || !gradient))
        return DPT_OK;
    if (gradient)
        DPT_TRY(make_gradient(t, err));
    DPT_TRY(read_results(t, err));
    DPT_TRY(d->type->get(d->steps, t->arenas.params, t->arenas.slot,
                         gradient ? t->reduction.sum : NULL, err));
    if (gradient)
        t->reduction.weight = t->reduction.sum[dpt_trainer_graph(t)->arena + DPT_TAIL_WEIGHT];
    d->fetched = true;
    d->with_gradient = gradient;
out:
    if (status != DPT_OK && dpt_layout_updates_apart(&t->layout)) /* others' devices wait */
        return dpt_device_give_up(t, status, err);
    return status;
}

/* Staging buffers are refilled after this. The next call of the device retries a launch that
 * failed, and reports it. */
static void stop_prefetching(struct dpt_trainer *t)
{
    const struct dpt_engine_state *d = t->engine_state;
    struct dpt_error ignored;

    dpt_prefetcher_pause(d->prefetcher);
    d->type->launch(d->steps, &ignored);
}

static double waited(const struct dpt_trainer *t)
{
    return dpt_prefetcher_waited(t->engine_state->prefetcher);
}

/* Counts a step with its update, since withheld updates have numbers, too. */
static void advance(struct dpt_trainer *t)
{
    t->progress.updates++;
    dpt_step_advance(t, dpt_sampler_count(&t->data.train.sampler, t->progress.epoch_step));
}

/* A loss or gradient was not finite, and its update and all after it were withheld. So the
 * parameters are those from before that step, which is repeated to find the origin. Collective. */
static enum dpt_status find_nonfinite(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    struct dpt_step_view view;

    status = fetch(t, true, err); /* fetch also allocates what the search needs */
    t->progress = d->base;
    while (t->progress.updates + 1 < d->read.withheld_update)
        advance(t);
    stop_prefetching(t);
    if (status == DPT_OK)
        status =
            dpt_loader_seek(t->data.train.loader, t->progress.epoch, t->progress.epoch_step, err);
    if (status == DPT_OK)
        status = dpt_loader_next(t->data.train.loader, &view, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    DPT_TRY(dpt_trainer_find_nonfinite(t, &view, t->reduction.sum, err));
out:
    return status;
}

static enum dpt_status settle(struct dpt_trainer *t, struct dpt_step_result *since,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_error *failure = &t->engine_state->failure;

    status =
        t->requests.deferred_error != DPT_OK ? t->requests.deferred_error : read_results(t, err);
    if (failure->status != DPT_OK)
        *err = *failure;
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    take_pending(t->engine_state, since);
    if (t->engine_state->read.withheld)
        DPT_TRY(find_nonfinite(t, err));
out:
    return status;
}

static enum dpt_status peek(struct dpt_trainer *t, struct dpt_step_result *since,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(read_results(t, err));
    take_pending(t->engine_state, since);
out:
    return status;
}

/* --- arenas to the device --------------------------------------------------------------------- */

/* slot: NULL: the device keeps its own. */
static enum dpt_status send(struct dpt_trainer *t, float *const *slot, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;

    DPT_TRY(read_results(t, err));
    DPT_TRY(d->type->put(d->steps, t->arenas.params, slot, &t->scale, err));
    d->base = t->progress;
    d->read = (struct dpt_steps_state){.scale = t->scale};
out:
    return status;
}

static enum dpt_status put(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    dpt_average_begin(t);
    DPT_TRY(send(t, t->arenas.slot, err));
    DPT_TRY(dpt_device_sums_measure(t, err));
    t->engine_state->fetched = true;
out:
    return status;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Plays a fault that hits this rank now, on the parameters as if they were the host's. No other
 * rank takes part, so the slots stay where they are. */
static enum dpt_status strike(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int rank = t->comm->world.rank;
    const int64_t step = t->progress.step + 1;

    if (!dpt_fault_strikes(&t->fault, rank, step))
        return DPT_OK;
    DPT_TRY(read_results(t, err));
    DPT_TRY(t->engine_state->type->get(t->engine_state->steps, t->arenas.params, NULL, NULL, err));
    DPT_TRY(dpt_fault_strike(&t->fault, rank, step, 0, t->arenas.params,
                             dpt_trainer_graph(t)->floats, err));
    DPT_TRY(send(t, NULL, err));
out:
    return status;
}

/* Does all of a step that can fail on this rank alone. */
static enum dpt_status compute_rank(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    const long long step = (long long)t->progress.step + 1;
    struct dpt_prefetched prefetched;

    if (d->failure.status != DPT_OK) {
        *err = d->failure;
        return d->failure.status;
    }
    DPT_TRY(t->requests.deferred_error);
    dpt_comm_note(t->comm, step, "reading its samples");
    DPT_TRY(strike(t, err));
    d->fetched = d->with_gradient = false;
    DPT_TRY(dpt_prefetcher_next(d->prefetcher, &prefetched, err));
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_LOADER, DPT_SPAN_OTHER);
    dpt_comm_note(t->comm, step, "computing");
    DPT_TRY(d->type->compute(d->steps, prefetched.staging_buffer, prefetched.micros,
                             (uint64_t)t->job->seed, (uint64_t)t->progress.step, err));
    dpt_profile_switch(t->profile, DPT_SPAN_COMPUTE, DPT_SPAN_REDUCTION);
out:
    return status == DPT_OK ? DPT_OK : dpt_step_fail(t, status, err);
}

/* What fails after the sum on this rank alone is told with the next step. */
static enum dpt_status fail_alone(struct dpt_trainer *t, enum dpt_status status,
                                  struct dpt_error *err)
{
    if (status == DPT_OK)
        return DPT_OK;
    if (t->comm->world.size > 1) {
        t->requests.deferred_error = status;
        return DPT_OK;
    }
    return dpt_step_fail(t, status, err);
}

/* Enqueues the update. */
static enum dpt_status update(struct dpt_trainer *t, struct dpt_step_result *result,
                              struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;
    enum dpt_status status;

    result->lr = dpt_step_rate(t);
    status = d->type->update(d->steps, result->lr, t->progress.updates + 1, err);
    return status != DPT_OK && dpt_layout_updates_apart(&t->layout)
               ? dpt_device_give_up(t, status, err)
               : fail_alone(t, status, err);
}

/* Before an update after which replicas are compared, since all get the others' weights with it.
 * Devices that keep slices have none that others have, too; nor have those whose layers read others
 * in half the width. */
static enum dpt_status hash_weights(struct dpt_trainer *t, const struct dpt_step_result *result,
                                    struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;
    enum dpt_status status;

    if (t->layout.updaters == 1 || t->layout.sliced_there ||
        t->job->device.precision >= DPT_PRECISION_BF16 ||
        !(t->requests.check || result->save || result->signal || result->clock))
        return DPT_OK;
    status = d->type->get(d->steps, t->arenas.params, NULL, NULL, err);
    dpt_trainer_hash_replica(t);
    return status == DPT_OK ? DPT_OK : dpt_device_give_up(t, status, err);
}

/* The first step is waited for while the job still starts, which may take longer than anything
 * later: after it the watchdog knows how long a step takes. */
static enum dpt_status await_first(struct dpt_trainer *t, struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;
    enum dpt_status status = DPT_OK;

    if (!d->stepped)
        status = read_results(t, err);
    d->stepped = true;
    return fail_alone(t, status, err);
}

static enum dpt_status step(struct dpt_trainer *t, struct dpt_step_result *result,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct dpt_engine_state *d = t->engine_state;
    const int32_t total = dpt_sampler_count(&t->data.train.sampler, t->progress.epoch_step);
    const double start = dpt_now();
    double summing = 0;
    float flags[DPT_FLAGS];

    *result = (struct dpt_step_result){.deferred = true};
    mine = dpt_device_sums_begin(t, err);
    if (mine == DPT_OK)
        mine = compute_rank(t, err);
    dpt_step_flags(t, mine != DPT_OK, flags);
    if (t->comm->world.size > 1) {
        DPT_TRY(dpt_device_sum(t, flags, &mine, total, &summing, err));
        if (t->reduction.reduced_flags[DPT_FLAG_FAILED] > 0)
            return dpt_group_agree(&t->comm->world, mine, err);
    } else {
        DPT_TRY(mine);
        memcpy(t->reduction.reduced_flags, flags, sizeof t->reduction.reduced_flags);
    }
    t->busy += dpt_now() - start - summing;
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OPTIMIZER);
    dpt_step_read_flags(t, result);
    DPT_TRY(hash_weights(t, result, err));
    if (mine == DPT_OK || dpt_layout_updates_apart(&t->layout))
        DPT_TRY(update(t, result, err));
    if (mine == DPT_OK)
        dpt_prefetcher_release(d->prefetcher, d->type->held(d->steps));
    else /* it takes part until all have heard of it */
        t->requests.deferred_error = mine;
    dpt_profile_switch(t->profile, DPT_SPAN_OPTIMIZER, DPT_SPAN_OTHER);
    d->unread++;
    d->given += total;
    advance(t);
    DPT_TRY(await_first(t, err));
out:
    return status;
}

static enum dpt_status gather(struct dpt_trainer *t, int unit, struct dpt_error *err)
{
    const struct dpt_engine_state *d = t->engine_state;
    const enum dpt_status status = d->type->gather(d->steps, unit, err);

    return status == DPT_OK ? DPT_OK : dpt_device_give_up(t, status, err);
}

const struct dpt_engine dpt_engine_device = {
    .open = open_device,
    .close = close_device,
    .attach = attach,
    .detach = detach,
    .step = step,
    .refresh = put,
    .waited = waited,
    .settle = settle,
    .peek = peek,
    .fetch = fetch,
    .stop_prefetching = stop_prefetching,
    .gather = gather,
};

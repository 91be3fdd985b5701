/* The host engine takes steps on arenas in host memory, with any backend: it computes the rank's
 * micro-batches (step/runner.h), sums their gradients over the ranks (gradient_reduction.h), and
 * updates the weights. */
#include <math.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engines/host_update.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/step/average.h"
#include "core/train/step/engine.h"
#include "core/train/step/runner.h"

struct dpt_engine_state {
    struct dpt_host_update *update;
};

/* Does what comes before the micro-batches. */
static enum dpt_status begin_rank(struct dpt_trainer *t, struct dpt_step_view *view,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t step = t->progress.step + 1;

    DPT_TRY(t->requests.deferred_error);
    dpt_comm_note(t->comm, step, "reading its samples");
    DPT_TRY(dpt_fault_strike(&t->fault, t->comm->world.rank, step, 0, t->arenas.params,
                             dpt_trainer_graph(t)->floats, err));
    DPT_TRY(dpt_loader_next(t->data.train.loader, view, err));
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_LOADER, DPT_SPAN_OTHER);
    dpt_comm_note(t->comm, step, "computing");
out:
    return status;
}

/* The ranks may wait for each other here: that is neither reading nor computing. */
static void begin_reduction(struct dpt_trainer *t)
{
    dpt_profile_switch(t->profile, DPT_SPAN_OTHER, DPT_SPAN_REDUCTION);
    t->reduction.type->begin(t, t->progress.epoch_step);
    dpt_host_update_begin(t->engine_state->update);
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OTHER);
}

/* Does all of a step that can fail on this rank alone. It is collective if the list of actions is;
 * a rank that fails takes part in it. */
static enum dpt_status compute_rank(struct dpt_trainer *t, struct dpt_step_view *view,
                                    struct dpt_error *err)
{
    const double begin = dpt_now();
    enum dpt_status status = begin_rank(t, view, err);
    const uint64_t start = t->profile != NULL ? t->profile->timeline.threads[0].last : 0;

    status = dpt_runner_train(t->runner, view, status, err);
    t->busy += dpt_now() - begin - dpt_runner_waited(t->runner);
    if (status != DPT_OK)
        return dpt_step_fail(t, status, err);
    dpt_profile_hold(t->profile, DPT_SPAN_COMPUTE, start);
    return DPT_OK;
}

/* Tells the backend the present scale of half floats' gradients. */
static enum dpt_status set_scale(struct dpt_trainer *t, struct dpt_error *err)
{
    if (t->job->device.precision != DPT_PRECISION_FP16 || t->backend->scale == NULL ||
        !t->data.train.present)
        return DPT_OK;
    return t->backend->scale(t->model.program, t->scale.scale, err);
}

/* Derives what the backend derives from the weights. No other rank that has a part in it may be
 * computing meanwhile. After it all ranks of a node have written what they share. */
static enum dpt_status refresh_all(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = dpt_units_refresh(t, err);

    if (status == DPT_OK)
        status = dpt_tensor_parallel_refresh(t->mesh.divided, err);
    return t->model.shared || t->arenas.shared.bytes != NULL
               ? dpt_group_agree(&dpt_trainer_replicas(t)->node, status, err)
               : status;
}

static enum dpt_status refresh(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = set_scale(t, err);

    dpt_average_begin(t);
    if (t->model.shared)
        status = dpt_group_agree(&dpt_trainer_replicas(t)->node, status, err);
    return status == DPT_OK ? refresh_all(t, err) : status;
}

static enum dpt_status reduce(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                              struct dpt_error *err)
{
    enum dpt_status status;

    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    if (t->profile != NULL)
        t->profile->arrived = t->profile->timeline.threads[0].last;
    status = dpt_mesh_sum(t, flags, err);
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_NORM);
    return status;
}

static enum dpt_status update(struct dpt_trainer *t, double norm, struct dpt_step_result *result,
                              struct dpt_error *err)
{
    const double clip = t->job->train.clip_norm;
    struct dpt_update how = {
        .lr = dpt_step_rate(t), .step = t->progress.updates + 1, .average = dpt_average_share(t)};
    enum dpt_status status = DPT_OK;
    const struct dpt_sampler *sampler = &t->data.train.sampler;
    const struct dpt_step_samples samples = {
        .step = result->samples, .whole = dpt_sampler_count(sampler, 0), .micro = sampler->micro};
    double scale = 1.0 / result->weight;

    result->norm = norm * scale;
    if (clip > 0 && result->norm > clip)
        scale *= clip / result->norm;
    how.scale = (float)scale;
    if (t->requests.check || result->save || result->signal || result->clock)
        dpt_trainer_hash_replica(t);
    if (dpt_units_has_state(t))
        dpt_graph_update_state(dpt_trainer_graph(t), &samples, t->reduction.sum, t->arenas.params);
    DPT_TRY(dpt_host_update_weights(t->engine_state->update, &how, err));
    t->progress.updates++;
    dpt_profile_switch(t->profile, DPT_SPAN_OPTIMIZER, DPT_SPAN_LAYOUTS);
    status = refresh_all(t, err); /* all have computed, since their gradients are in the sum */
    dpt_profile_switch(t->profile, DPT_SPAN_LAYOUTS, DPT_SPAN_OTHER);
out:
    return status;
}

static enum dpt_status find_nonfinite(struct dpt_trainer *t, const struct dpt_step_view *view,
                                      struct dpt_error *err)
{
    bool add;

    t->reduction.type->begin(t, view->step);
    return dpt_trainer_find_nonfinite(
        t, view, t->reduction.type->target(t, 0, dpt_gradient_whole(t), &add), err);
}

/* Gives all ranks the gradient's norm and the tail. The stages add up the chunks' squares one after
 * another; then all get the last stage's sum and tail. If what the step adds to the state is no
 * number on one of the ranks that divide the model, the norm is NAN, so that all know. */
static enum dpt_status learn_sums(const struct dpt_trainer *t, bool finite_state, double *norm,
                                  float tail[DPT_TAIL_FLAGS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *next = dpt_mesh_link(t, true);
    const int stage = t->stage->number, last = t->layout.stages - 1;
    struct {
        double squares;
        float tail[DPT_TAIL_FLAGS];
    } sums = {0};
    struct dpt_sending sending;

    if (stage > 0)
        DPT_TRY(
            dpt_group_receive(dpt_mesh_link(t, false), 0, &sums.squares, sizeof sums.squares, err));
    DPT_TRY(dpt_host_update_squares(t->engine_state->update, &sums.squares, err));
    memcpy(sums.tail, t->reduction.sum + dpt_trainer_graph(t)->arena, sizeof sums.tail);
    if (t->layout.model_ranks > 1 && !finite_state)
        sums.squares = NAN;
    if (stage < last) {
        DPT_TRY(dpt_group_send(next, 1, &sums.squares, sizeof sums.squares, &sending, err));
        DPT_TRY(dpt_group_sent(next, &sending, err));
    }
    DPT_TRY(dpt_group_broadcast(&t->mesh.model_group.world, last * t->layout.tensor, &sums,
                                sizeof sums, err));
    memcpy(tail, sums.tail, sizeof sums.tail);
    *norm = sqrt(sums.squares);
out:
    return status;
}

static enum dpt_status step(struct dpt_trainer *t, struct dpt_step_result *result,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct dpt_step_view view = {0};
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    float flags[DPT_FLAGS], tail[DPT_TAIL_FLAGS];
    const bool scaled = t->job->device.precision == DPT_PRECISION_FP16;
    double norm;
    bool overflow = false, finite_state;

    memset(result, 0, sizeof *result);
    begin_reduction(t);
    mine = compute_rank(t, &view, err);
    dpt_step_flags(t, mine != DPT_OK, flags);
    DPT_TRY(reduce(t, flags, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] > 0)
        return dpt_group_agree(&t->comm->world, mine, err);
    /* What the step adds to the state may be no number, which no norm shows. */
    finite_state = dpt_is_finite(t->reduction.sum + graph->floats, graph->arena - graph->floats);
    DPT_TRY(learn_sums(t, finite_state, &norm, tail, err));
    result->loss = tail[DPT_TAIL_LOSS];
    result->samples = (int64_t)tail[DPT_TAIL_SAMPLES];
    result->correct = tail[DPT_TAIL_CORRECT];
    result->weight = t->reduction.weight = tail[DPT_TAIL_WEIGHT];
    dpt_step_read_flags(t, result);
    DPT_TRY(dpt_step_check_count(t, result->samples, view.total, err));
    dpt_profile_switch(t->profile, DPT_SPAN_NORM, DPT_SPAN_OPTIMIZER);
    result->weightless = result->weight == 0;
    result->lr = dpt_step_rate(t); /* of a step that makes no update, too */
    if (scaled && isfinite(result->loss) && !result->weightless) {
        const float before = t->scale.scale;

        dpt_loss_scale_step(&t->scale, isfinite(norm), &overflow);
        if (t->scale.scale != before)
            DPT_TRY(set_scale(t, err));
    }
    if (result->weightless) {
        /* A mean over nothing: an update would still change the optimizer's moments. It has a
         * number all the same, as on devices, whose host does not know of it in time. */
        t->progress.updates++;
    } else if (overflow) {
        result->overflows = 1;
    } else if (isfinite(norm) && isfinite(result->loss) && finite_state) {
        DPT_TRY(update(t, norm, result, err));
    } else {
        status = find_nonfinite(t, &view, err);
        if (status != DPT_FAILED || t->job->train.on_nan != DPT_ON_NAN_SKIP)
            goto out;
        status = DPT_OK;
        result->skipped = 1;
    }
    dpt_step_advance(t, result->samples);
out:
    return status;
}

/* --- the row ---------------------------------------------------------------------------------- */

static enum dpt_status open_host(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!t->data.train.present)
        return DPT_OK;
    t->reduction.type = dpt_gradient_reduction_choose(&t->layout);
    status = DPT_ALLOCATE(t->engine_state, 1, "the engine", err);
    if (status == DPT_OK)
        status = dpt_host_update_open(&t->engine_state->update, t, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    DPT_TRY(dpt_tensor_parallel_open(&t->mesh.divided, t, err));
    DPT_TRY(t->reduction.type->open(t, err));
    /* Takes the pages of what this rank owns now, so that no step waits for them. */
    for (int i = 0; i < t->reduction.type->ranges(t) && t->arenas.owners > 1; i++) {
        const struct dpt_slice own = dpt_gradient_own(t, i);

        for (int k = 0; k < t->arenas.slots; k++)
            memset(t->arenas.slot[k] + own.begin, 0, (own.end - own.begin) * sizeof(float));
    }
out:
    return status;
}

static void close_host(struct dpt_trainer *t)
{
    if (t->reduction.type != NULL)
        t->reduction.type->close(t);
    if (t->engine_state != NULL)
        dpt_host_update_close(t->engine_state->update);
    dpt_free(t->engine_state);
    dpt_tensor_parallel_close(t->mesh.divided);
    t->mesh.divided = NULL;
}

static double waited(const struct dpt_trainer *t)
{
    return dpt_loader_waited(t->data.train.loader);
}

const struct dpt_engine dpt_engine_host = {
    .open = open_host,
    .close = close_host,
    .step = step,
    .refresh = refresh,
    .waited = waited,
};

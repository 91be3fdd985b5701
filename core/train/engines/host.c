/* Steps on arenas in host memory, by any backend: the threads' micro-batches, their gradients' sum
 * over the ranks (gradient_reduction.h), the update. */
#include <math.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engine.h"
#include "core/train/engines/host_update.h"
#include "core/train/gradient_reduction.h"
#include "core/train/lockstep.h"
#include "core/train/mesh.h"
#include "core/train/parts.h"
#include "core/train/pipeline.h"
#include "core/train/tensor_parallel.h"
#include "core/train/units.h"

const struct dpt_gradient_reduction_type *dpt_gradient_reduction_choose(const struct dpt_trainer *t)
{
    if (dpt_trainer_dealt(t))
        return &dpt_gradient_reduction_dealt;
    return t->job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE
               ? &dpt_gradient_reduction_reproducible
               : &dpt_gradient_reduction_allreduce;
}

struct dpt_engine_state {
    struct dpt_lockstep *lockstep; /* NULL: micro-batches do not wait for each other */
    struct dpt_host_update *update;
};

struct step_work {
    struct dpt_trainer *t;
    struct dpt_step_view view;
    int32_t round; /* of dealt micro-batches */
    double waited; /* seconds, in their exchanges */
};

/* The micro-batches of the whole step. */
static int32_t micro_batches(const struct step_work *w)
{
    const int32_t micro = w->t->data.train.sampler.micro;

    return (w->view.total + micro - 1) / micro;
}

/* Computes n micro-batches from i on, together with the others of a team, whose first thread
 * records what they gave. */
static void compute_group(struct step_work *w, int thread, int32_t i, int32_t n)
{
    struct dpt_trainer *t = w->t;
    struct dpt_worker *worker = &t->team.workers[thread],
                      *gradient_worker = &t->team.workers[t->team.together ? 0 : thread];
    const bool leads = worker == gradient_worker;
    struct dpt_batch batch = {.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};

    if (leads) {
        memset(gradient_worker->own, 0, (size_t)n * sizeof gradient_worker->own[0]);
        gradient_worker->target = t->reduction.type->target(t, thread, &gradient_worker->add);
    }
    if (t->team.together)
        dpt_trainer_barrier(t, thread);
    worker->status = dpt_trainer_train(t, thread, &w->view, i, n, &batch, gradient_worker->target,
                                       gradient_worker->add, gradient_worker->own, &worker->err);
    if (worker->status != DPT_OK || !leads)
        return;
    if (i == w->view.first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  gradient_worker->target, 0, dpt_trainer_graph(t)->floats);
    t->reduction.type->done(t, thread, i, n, gradient_worker->target, dpt_gradient_whole(t),
                            gradient_worker->own);
    if (t->reduction.type == &dpt_gradient_reduction_reproducible) /* it adds up in `done` */
        dpt_profile_mark(t->profile, thread, DPT_SPAN_REDUCTION);
}

/* A thread's contiguous run of the rank's micro-batches; a team goes through all of them. */
static void compute(void *arg, int thread)
{
    struct step_work *w = arg;
    struct dpt_trainer *t = w->t;
    const int32_t all = micro_batches(w);
    int32_t begin, end;

    dpt_step_run(w->view.first, w->view.last, t->team.together ? 0 : thread,
                 t->team.gradient_workers, &begin, &end);
    for (int32_t i = begin, n; i < end && t->team.workers[thread].status == DPT_OK; i += n) {
        n = dpt_step_group(t, all, i, end);
        compute_group(w, thread, i, n);
    }
}

/* The thread's group of micro-batches in a round in which all threads of all ranks take one. */
static void compute_dealt(void *arg, int thread)
{
    struct step_work *w = arg;
    int32_t begin;
    const int32_t n =
        dpt_step_deal(w->t, micro_batches(w), w->round, w->t->team.together ? 0 : thread, &begin);

    if (n > 0)
        compute_group(w, thread, begin, n);
}

/* Collective. Round after round on all ranks; one that failed takes part in what they exchange. */
static enum dpt_status compute_rounds(struct step_work *w, enum dpt_status status,
                                      struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    const struct dpt_step_view step = {.step = t->progress.epoch_step};
    const int32_t rounds =
        dpt_step_rounds(t, dpt_sampler_micro_batches(&t->data.train.sampler, step.step));

    t->reduction.type->begin(t, &step); /* a rank that failed has not come so far */
    if (t->units.n > 0)
        return dpt_units_compute(t, &w->view, status, &w->waited, err);
    for (w->round = 0; w->round < rounds; w->round++) {
        struct dpt_error other;
        enum dpt_status added = DPT_OK;
        double start;

        if (status == DPT_OK)
            status = dpt_trainer_run(t, compute_dealt, w, err);
        dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
        start = dpt_now();
        for (int unit = 0; unit < 2 && added == DPT_OK; unit++) /* all, and what is behind it */
            added = t->reduction.type->round(t, w->round, unit, status == DPT_OK ? err : &other);
        w->waited += dpt_now() - start;
        dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OTHER);
        status = status == DPT_OK ? added : status;
    }
    return status;
}

/* What comes before the micro-batches. */
static enum dpt_status begin_rank(struct step_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = w->t;
    const int64_t step = t->progress.step + 1;

    DPT_TRY(t->requests.deferred_error);
    dpt_comm_note(t->comm, step, "reading its samples");
    DPT_TRY(dpt_fault_strike(&t->fault, t->comm->world.rank, step, t->arenas.params,
                             dpt_trainer_graph(t)->floats, err));
    DPT_TRY(dpt_loader_next(t->data.train.loader, &w->view, err));
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_LOADER, DPT_SPAN_OTHER);
    dpt_comm_note(t->comm, step, "computing");
    t->reduction.type->begin(t, &w->view);
out:
    return status;
}

/* All of a step that can fail on this rank alone; collective where its micro-batches are in
 * lockstep or dealt, or go through stages, in which a rank that fails takes part. */
static enum dpt_status compute_rank(struct step_work *w, struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    struct dpt_lockstep *lockstep = t->engine_state->lockstep;
    struct dpt_pipeline *pipeline = t->mesh.pipeline;
    const double begin = dpt_now();
    enum dpt_status status = begin_rank(w, err);
    const uint64_t start = t->profile != NULL ? t->profile->timeline.threads[0].last : 0;

    if (pipeline != NULL)
        status = dpt_pipeline_compute(pipeline, &w->view, status, err);
    else if (lockstep != NULL)
        status = dpt_lockstep_compute(lockstep, &w->view, status, err);
    else if (dpt_trainer_dealt(t))
        status = compute_rounds(w, status, err);
    else if (status == DPT_OK)
        status = dpt_trainer_run(t, compute, w, err);
    if (pipeline != NULL || lockstep != NULL)
        w->waited +=
            pipeline != NULL ? dpt_pipeline_waited(pipeline) : dpt_lockstep_waited(lockstep);
    t->busy += dpt_now() - begin - w->waited;
    if (status != DPT_OK)
        return dpt_step_fail(t, status, err);
    dpt_profile_hold(t->profile, DPT_SPAN_COMPUTE, start);
    return DPT_OK;
}

/* Half floats' gradients are scaled: tells the backend the present scale. */
static enum dpt_status set_scale(struct dpt_trainer *t, struct dpt_error *err)
{
    if (t->job->device.precision != DPT_PRECISION_FP16 || t->backend->scale == NULL ||
        !t->data.train.present)
        return DPT_OK;
    return t->backend->scale(t->model.program, t->scale.scale, err);
}

static void refresh_part(void *arg, int thread)
{
    struct dpt_trainer *t = arg;
    struct dpt_worker *worker = &t->team.workers[thread];

    worker->status = t->backend->refresh(t->model.program, thread, t->arenas.params, &worker->err);
}

/* No other rank that has a part in it may be computing. Behind it all ranks of a node have written
 * what they share. */
static enum dpt_status refresh_all(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = /* of units as each is gathered */
        t->units.gathers ? DPT_OK : dpt_trainer_run(t, refresh_part, t, err);

    if (t->mesh.divided != NULL && t->units.n == 0 && status == DPT_OK)
        status = dpt_tensor_parallel_refresh(t->mesh.divided, err);
    return t->model.shared || t->arenas.shared.bytes != NULL
               ? dpt_group_agree(&dpt_trainer_replicas(t)->node, status, err)
               : status;
}

static enum dpt_status refresh(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = set_scale(t, err);

    if (t->model.shared)
        status = dpt_group_agree(&dpt_trainer_replicas(t)->node, status, err);
    return status == DPT_OK ? refresh_all(t, err) : status;
}

static enum dpt_status reduce(struct step_work *w, const float flags[DPT_FLAGS],
                              struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    enum dpt_status status;

    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    if (t->profile != NULL)
        t->profile->arrived = t->profile->timeline.threads[0].last;
    status = t->mesh.stages > 0 ? dpt_pipeline_sum(t, &w->view, flags, err)
                                : t->reduction.type->sum(t, &w->view, flags, err);
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_NORM);
    return status;
}

static enum dpt_status update(struct step_work *w, double norm, struct dpt_step_result *result,
                              struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    const double clip = t->job->train.clip_norm;
    struct dpt_update how = {.lr = dpt_step_rate(t), .step = t->progress.updates + 1};
    enum dpt_status status = DPT_OK;
    double scale = 1.0 / result->weight;

    result->norm = norm * scale;
    if (clip > 0 && result->norm > clip)
        scale *= clip / result->norm;
    result->lr = how.lr;
    how.scale = (float)scale;
    if (dpt_trainer_sharded(t) &&
        (t->requests.check || result->save || result->signal || result->clock))
        dpt_trainer_hash_replica(t);
    if (dpt_units_has_state(t))
        dpt_graph_update_state(dpt_trainer_graph(t), result->samples, t->reduction.sum,
                               t->arenas.params);
    DPT_TRY(dpt_host_update_weights(t->engine_state->update, &how, err));
    t->progress.updates++;
    dpt_profile_switch(t->profile, DPT_SPAN_OPTIMIZER, DPT_SPAN_LAYOUTS);
    status = refresh_all(t, err); /* all have computed, since their gradients are in the sum */
    dpt_profile_switch(t->profile, DPT_SPAN_LAYOUTS, DPT_SPAN_OTHER);
out:
    return status;
}

/* Adapts the loss scale of half floats. finite: the gradient is; overflow: out, the scale was too
 * large for this step, and is smaller now. */
static enum dpt_status update_scale(struct dpt_trainer *t, bool finite, bool *overflow,
                                    struct dpt_error *err)
{
    const float before = t->scale.scale;

    dpt_loss_scale_step(&t->scale, finite, overflow);
    return t->scale.scale != before ? set_scale(t, err) : DPT_OK;
}

static enum dpt_status find_nonfinite(struct step_work *w, struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    bool add;

    t->reduction.type->begin(t, &w->view);
    return dpt_trainer_find_nonfinite(t, &w->view, t->reduction.type->target(t, 0, &add), err);
}

/* Whether what the step adds to the state is a number: no norm shows that. */
static bool state_is_finite(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    bool finite = true;

    for (int64_t i = graph->floats; i < graph->arena; i++)
        finite = finite && isfinite(t->reduction.sum[i]);
    return finite;
}

/* The gradient's norm and the tail. With stages all ranks get the norm of all of them, NAN where
 * the state of one is not finite, and the tail of the last. */
static enum dpt_status learn_sums(struct step_work *w, double *norm, float tail[DPT_TAIL_FLAGS],
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = w->t;
    const float *own = t->reduction.sum + dpt_trainer_graph(t)->arena;
    struct dpt_pipeline_words words = {0};

    _Static_assert(sizeof words.words >= DPT_TAIL_FLAGS * sizeof *tail, "the tail has more words");
    if (t->mesh.stages > 0)
        DPT_TRY(dpt_pipeline_before(t, &words.squares, err));
    DPT_TRY(dpt_host_update_squares(t->engine_state->update, &words.squares, err));
    if (t->mesh.stages > 0 && !state_is_finite(t)) /* so that all ranks know */
        words.squares = NAN;
    memcpy(words.words, own, DPT_TAIL_FLAGS * sizeof *tail);
    if (t->mesh.stages > 0)
        DPT_TRY(dpt_pipeline_share(t, &words, err));
    memcpy(tail, words.words, DPT_TAIL_FLAGS * sizeof *tail);
    *norm = sqrt(words.squares);
out:
    return status;
}

static enum dpt_status step(struct dpt_trainer *t, struct dpt_step_result *result,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct step_work w = {.t = t};
    float flags[DPT_FLAGS], tail[DPT_TAIL_FLAGS];
    const bool scaled = t->job->device.precision == DPT_PRECISION_FP16;
    double norm;
    bool overflow = false;

    memset(result, 0, sizeof *result);
    mine = compute_rank(&w, err);
    dpt_step_flags(t, mine != DPT_OK, flags);
    DPT_TRY(reduce(&w, flags, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] > 0)
        return dpt_group_agree(&t->comm->world, mine, err);
    DPT_TRY(learn_sums(&w, &norm, tail, err));
    result->loss = tail[DPT_TAIL_LOSS];
    result->samples = (int64_t)tail[DPT_TAIL_SAMPLES];
    result->correct = tail[DPT_TAIL_CORRECT];
    result->weight = t->reduction.weight = tail[DPT_TAIL_WEIGHT];
    dpt_step_read_flags(t, result);
    DPT_TRY(dpt_step_check_count(t, result->samples, w.view.total, err));
    dpt_profile_switch(t->profile, DPT_SPAN_NORM, DPT_SPAN_OPTIMIZER);
    result->weightless = result->weight == 0;
    if (scaled && isfinite(result->loss) && !result->weightless)
        DPT_TRY(update_scale(t, isfinite(norm), &overflow, err));
    if (result->weightless) {
        /* A mean over nothing: an update would still change the optimizer's moments. */
    } else if (overflow) {
        result->overflows = 1;
    } else if (isfinite(norm) && isfinite(result->loss) && state_is_finite(t)) {
        DPT_TRY(update(&w, norm, result, err));
    } else {
        status = find_nonfinite(&w, err);
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

static bool takes(const struct dpt_trainer *t)
{
    (void)t;
    return true;
}

/* Takes the pages of what this rank owns now, so that no step waits for them. */
static void touch_slots(struct dpt_trainer *t)
{
    const struct dpt_slice own = dpt_host_update_owned(t);

    for (int k = 0; k < t->arenas.slots; k++)
        memset(t->arenas.slot[k] + own.begin, 0, (own.end - own.begin) * sizeof(float));
}

static enum dpt_status open_host(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!t->data.train.present)
        return DPT_OK;
    t->reduction.type = dpt_gradient_reduction_choose(t);
    status = DPT_ALLOCATE(t->engine_state, 1, "the engine", err);
    if (status == DPT_OK)
        status = dpt_host_update_open(&t->engine_state->update, t, err);
    if (status == DPT_OK && t->team.lockstep)
        status = dpt_lockstep_open(&t->engine_state->lockstep, t, err);
    if (status == DPT_OK && t->mesh.stages > 0)
        status = dpt_pipeline_open(&t->mesh.pipeline, t, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    if (t->mesh.tensor > 1)
        DPT_TRY(dpt_tensor_parallel_open(&t->mesh.divided, t, err));
    DPT_TRY(t->reduction.type->open(t, err));
    if (dpt_trainer_sharded(t))
        touch_slots(t);
out:
    return status;
}

static void close_host(struct dpt_trainer *t)
{
    if (t->reduction.type != NULL)
        t->reduction.type->close(t);
    if (t->engine_state != NULL) {
        dpt_lockstep_close(t->engine_state->lockstep);
        dpt_host_update_close(t->engine_state->update);
    }
    dpt_free(t->engine_state);
    dpt_pipeline_close(t->mesh.pipeline);
    t->mesh.pipeline = NULL;
    dpt_tensor_parallel_close(t->mesh.divided);
    t->mesh.divided = NULL;
}

static double waited(const struct dpt_trainer *t)
{
    return dpt_loader_waited(t->data.train.loader);
}

const struct dpt_engine dpt_engine_host = {
    .takes = takes,
    .open = open_host,
    .close = close_host,
    .step = step,
    .refresh = refresh,
    .evaluate = dpt_evaluate_split,
    .waited = waited,
};

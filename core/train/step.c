#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/hash.h"
#include "core/base/squares.h"
#include "core/train/device.h"
#include "core/train/gather.h"
#include "core/train/profile.h"
#include "core/train/schedule.h"
#include "core/train/trainer.h"

/* Below this many floats one thread is faster than waking the others. */
enum { ALONE = 16 * 1024 };

struct step_work {
    struct dpt_trainer *t;
    struct dpt_step_view view;
    struct dpt_update update;
};

enum dpt_status dpt_trainer_run(struct dpt_trainer *t, void (*work)(void *arg, int thread),
                                void *arg, struct dpt_error *err)
{
    for (int i = 0; i < t->threads; i++)
        t->workers[i].status = DPT_OK;
    dpt_pool_run(t->pool, work, arg);
    for (int i = 0; i < t->threads; i++)
        if (t->workers[i].status != DPT_OK) {
            *err = t->workers[i].err;
            return err->status;
        }
    return DPT_OK;
}

void dpt_thread_part(size_t n, int thread, int threads, size_t *begin, size_t *end)
{
    const size_t lines = (n + DPT_TENSOR_ALIGN - 1) / DPT_TENSOR_ALIGN;

    *begin = lines * (size_t)thread / (size_t)threads * DPT_TENSOR_ALIGN;
    *end = lines * ((size_t)thread + 1) / (size_t)threads * DPT_TENSOR_ALIGN;
    *end = *end < n ? *end : n;
}

static void meet(const struct dpt_trainer *t, int thread)
{
    if (t->threads == 1)
        return;
    dpt_pool_meet(t->pool);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_WAIT_THREADS);
}

/* This thread's part of each of n micro-batches, one behind the other in the first one's buffer. */
static enum dpt_status fill_part(struct dpt_trainer *t, int thread,
                                 const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                 struct dpt_batch *batch, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset *set = t->train.set;
    const struct dpt_batch_buffer *whole = &t->workers[0].buffer;
    const size_t micro = (size_t)t->train.sampler.micro, size = (size_t)dpt_shape_size(&set->shape),
                 targets = (size_t)set->target_width;
    struct dpt_batch_buffer buffer = *whole;
    int32_t count = 0;

    for (int32_t i = 0; i < n; i++) {
        DPT_TRY(dpt_loader_fill_part(t->train.loader, view, micro_batch + i, thread, t->threads,
                                     &buffer, t->workers[thread].buffer.image, batch, err));
        count += batch->count;
        buffer.input += micro * size;
        buffer.labels += micro;
        buffer.sample += micro;
        if (batch->weights != NULL)
            buffer.weights += micro;
        if (batch->targets != NULL)
            buffer.targets += micro * targets;
    }
    batch->count = count;
    batch->input = whole->input;
    batch->sample = whole->sample;
    batch->labels = batch->labels != NULL ? whole->labels : NULL;
    batch->targets = batch->targets != NULL ? whole->targets : NULL;
    batch->weights = batch->weights != NULL ? whole->weights : NULL;
out:
    return status;
}

/* Each fills its part of the rows; all learn whether all could. */
static enum dpt_status fill_together(struct dpt_trainer *t, int thread,
                                     const struct dpt_step_view *view, int32_t micro_batch,
                                     int32_t n, struct dpt_batch *batch, struct dpt_error *err)
{
    struct dpt_worker *worker = &t->workers[thread];

    worker->filled = fill_part(t, thread, view, micro_batch, n, batch, &worker->err);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    meet(t, thread);
    for (int i = 0; i < t->threads; i++) {
        if (t->workers[i].filled == DPT_OK)
            continue;
        *err = t->workers[i].err;
        return err->status;
    }
    return DPT_OK;
}

enum dpt_status dpt_trainer_train(struct dpt_trainer *t, int thread,
                                  const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                  struct dpt_batch *batch, float *gradient, bool add,
                                  struct dpt_tally *tally, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->team) {
        DPT_TRY(fill_together(t, thread, view, micro_batch, n, batch, err));
    } else {
        DPT_TRY(dpt_loader_fill(t->train.loader, view, micro_batch, &t->workers[thread].buffer,
                                batch, err));
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    }
    DPT_TRY(t->backend->train(t->program, thread, batch, t->params, gradient, add, tally, err));
out:
    return status;
}

/* How many micro-batches from i on are computed at once: a node of the tree over all of the step's,
 * as large as may be. */
static int32_t group_at(const struct dpt_trainer *t, const struct dpt_step_view *view, int32_t i,
                        int32_t end)
{
    const int32_t all = (view->total + t->train.sampler.micro - 1) / t->train.sampler.micro;
    int32_t n = 1;

    while (2 * n <= t->group && i % (2 * n) == 0 &&
           (i + 2 * n <= end || (end == all && i + n < all)))
        n *= 2;
    return n < end - i ? n : end - i;
}

/* A thread's contiguous run of the rank's micro-batches; the first thread has one whenever the rank
 * has. A team goes through all of them, and its first thread keeps the books. */
static void compute(void *arg, int thread)
{
    struct step_work *w = arg;
    struct dpt_trainer *t = w->t;
    struct dpt_worker *worker = &t->workers[thread], *taker = &t->workers[t->team ? 0 : thread];
    const int32_t n = w->view.last - w->view.first, takers = t->takers;
    const int32_t number = t->team ? 0 : thread;
    const int32_t begin = w->view.first + (n * number + takers - 1) / takers;
    const int32_t end = w->view.first + (n * (number + 1) + takers - 1) / takers;
    const bool leads = worker == taker;
    struct dpt_batch batch = {.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};

    for (int32_t i = begin, several; i < end; i += several) {
        several = group_at(t, &w->view, i, end);
        if (leads) {
            memset(taker->own, 0, (size_t)several * sizeof taker->own[0]);
            taker->target = t->gather_type->target(t, thread, &taker->add);
        }
        if (t->team)
            meet(t, thread);
        worker->status = dpt_trainer_train(t, thread, &w->view, i, several, &batch, taker->target,
                                           taker->add, taker->own, &worker->err);
        if (worker->status != DPT_OK)
            return;
        if (!leads)
            continue;
        if (i == w->view.first)
            dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                      taker->target, t->graph.floats);
        t->gather_type->done(t, thread, i, several, taker->target, taker->own);
        if (t->gather_type == &dpt_gather_reproducible) /* it adds as it goes */
            dpt_profile_mark(t->profile, thread, DPT_SPAN_REDUCTION);
    }
}

/* All of a step that can fail on this rank alone. */
static enum dpt_status compute_rank(struct step_work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = w->t;
    const long long step = (long long)t->progress.step + 1;
    struct dpt_error plain;
    uint64_t start;

    DPT_TRY(t->trouble);
    dpt_comm_note(t->comm, step, "reading its samples");
    DPT_TRY(
        dpt_fault_strike(&t->fault, t->comm->world.rank, step, t->params, t->graph.floats, err));
    DPT_TRY(dpt_loader_next(t->train.loader, &w->view, err));
    dpt_profile_turn(t->profile, DPT_SPAN_WAIT_LOADER, DPT_SPAN_OTHER);
    start = t->profile != NULL ? t->profile->timeline.threads[0].last : 0;
    dpt_comm_note(t->comm, step, "computing");
    t->gather_type->begin(t, &w->view);
    DPT_TRY(dpt_trainer_run(t, compute, w, err));
    dpt_profile_hold(t->profile, DPT_SPAN_COMPUTE, start);
out:
    if (status != DPT_OK) {
        plain = *err;
        dpt_fail(err, status, "step %lld: %s", step, plain.text);
    }
    return status;
}

static void norm_runs(const struct dpt_trainer *t, size_t first, size_t last)
{
    const size_t n = (size_t)t->graph.floats;

    for (size_t run = first; run < last; run++)
        t->norms[run] = dpt_squares_of_run(t->reduced, n, run);
}

static void norm_part(void *arg, int thread)
{
    const struct dpt_trainer *t = ((struct step_work *)arg)->t;
    const size_t runs = dpt_squares_runs((size_t)t->graph.floats);

    norm_runs(t, runs * (size_t)thread / (size_t)t->threads,
              runs * ((size_t)thread + 1) / (size_t)t->threads);
}

/* Euclidean norm of the reduced gradient (a sum over samples); not finite where any element is not.
 * Same bits on all ranks. */
static double gradient_norm(struct step_work *w)
{
    struct dpt_trainer *t = w->t;
    const size_t n = (size_t)t->graph.floats, runs = dpt_squares_runs(n);
    const double *squares = t->gather_type->squares(t);
    double sum = 0;

    if (squares == NULL && n <= ALONE)
        norm_runs(t, 0, runs);
    else if (squares == NULL)
        dpt_pool_run(t->pool, norm_part, w);
    squares = squares != NULL ? squares : t->norms;
    for (size_t i = 0; i < runs; i++)
        sum += squares[i];
    return sqrt(sum);
}

static void update_part(void *arg, int thread)
{
    struct step_work *w = arg;
    struct dpt_trainer *t = w->t;
    size_t begin, end;

    dpt_thread_part((size_t)t->graph.floats, thread, t->threads, &begin, &end);
    dpt_optimizer_apply(&t->job->optimizer, &t->graph, &w->update, begin, end, t->params,
                        t->reduced, t->slot);
}

/* Half floats' gradients are scaled: dpt_trainer_refresh begins with it, and it changes. */
static enum dpt_status set_scale(struct dpt_trainer *t, struct dpt_error *err)
{
    if (t->job->device.precision != DPT_PRECISION_FP16 || t->backend->scale == NULL ||
        !t->train.present)
        return DPT_OK;
    return t->backend->scale(t->program, t->scale.scale, err);
}

static void refresh_part(void *arg, int thread)
{
    struct dpt_trainer *t = arg;
    struct dpt_worker *worker = &t->workers[thread];

    worker->status = t->backend->refresh(t->program, thread, t->params, &worker->err);
}

enum dpt_status dpt_trainer_refresh(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->device != NULL)
        return dpt_device_put(t, err);
    DPT_TRY(set_scale(t, err));
    DPT_TRY(dpt_trainer_run(t, refresh_part, t, err));
out:
    return status;
}

static enum dpt_status reduce(struct step_work *w, const float flags[DPT_FLAGS],
                              struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    enum dpt_status status;

    dpt_profile_turn(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    if (t->profile != NULL)
        t->profile->arrived = t->profile->timeline.threads[0].last;
    status = t->gather_type->sum(t, &w->view, flags, err);
    dpt_profile_turn(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_NORM);
    return status;
}

static enum dpt_status update(struct step_work *w, double norm, struct dpt_step_result *result,
                              struct dpt_error *err)
{
    struct dpt_trainer *t = w->t;
    const double clip = t->job->train.clip_norm;
    enum dpt_status status;
    const struct dpt_schedule_point point = {t->progress.step, t->steps, t->steps_per_epoch};
    double scale = 1.0 / result->weight;

    result->norm = norm * scale;
    if (clip > 0 && result->norm > clip)
        scale *= clip / result->norm;
    result->lr = dpt_schedule_rate(&t->job->schedule, t->lr, &point);
    w->update = (struct dpt_update){
        .lr = result->lr, .step = t->progress.updates + 1, .scale = (float)scale};
    if (t->graph.floats <= ALONE)
        dpt_optimizer_apply(&t->job->optimizer, &t->graph, &w->update, 0, (size_t)t->graph.floats,
                            t->params, t->reduced, t->slot);
    else
        dpt_pool_run(t->pool, update_part, w);
    t->progress.updates++;
    dpt_profile_turn(t->profile, DPT_SPAN_OPTIMIZER, DPT_SPAN_LAYOUTS);
    status = dpt_trainer_run(t, refresh_part, t, err);
    dpt_profile_turn(t->profile, DPT_SPAN_LAYOUTS, DPT_SPAN_OTHER);
    return status;
}

void dpt_trainer_advance(struct dpt_trainer *t, int64_t samples)
{
    t->progress.step++;
    t->progress.samples += samples;
    if (++t->progress.epoch_step == t->steps_per_epoch) {
        t->progress.epoch_step = 0;
        t->progress.epoch++;
    }
}

/* Half floats: whether the loss scale was too large for this step, and is smaller now. finite: of
 * the gradient. */
static enum dpt_status judge_scale(struct dpt_trainer *t, bool finite, bool *mended,
                                   struct dpt_error *err)
{
    const float before = t->scale.scale;

    dpt_loss_scale_step(&t->scale, finite, mended);
    return t->scale.scale != before ? set_scale(t, err) : DPT_OK;
}

static enum dpt_status step(struct dpt_trainer *t, struct dpt_step_result *result,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct step_work w = {.t = t};
    const float *tail = t->reduced + t->graph.floats;
    float flags[DPT_FLAGS] = {
        [DPT_FLAG_SAVE] = t->want_save,
        [DPT_FLAG_SIGNAL] = t->signalled,
        [DPT_FLAG_CLOCK] = t->out_of_time,
    };
    const bool scaled = t->job->device.precision == DPT_PRECISION_FP16;
    double norm, start = dpt_now();
    bool mended = false;

    memset(result, 0, sizeof *result);
    mine = compute_rank(&w, err);
    t->busy += dpt_now() - start;
    flags[DPT_FLAG_FAILED] = mine != DPT_OK;
    DPT_TRY(reduce(&w, flags, err));
    if (t->said[DPT_FLAG_FAILED] > 0)
        return dpt_group_agree(&t->comm->world, mine, err);
    result->loss = tail[DPT_TAIL_LOSS];
    result->samples = (int64_t)tail[DPT_TAIL_SAMPLES];
    result->correct = tail[DPT_TAIL_CORRECT];
    result->weight = tail[DPT_TAIL_WEIGHT];
    result->save = t->said[DPT_FLAG_SAVE] > 0;
    result->signal = t->said[DPT_FLAG_SIGNAL] > 0;
    result->clock = t->said[DPT_FLAG_CLOCK] > 0;
    if (result->samples != w.view.total)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "step %lld: the ranks counted %lld of %d samples",
                         (long long)t->progress.step + 1, (long long)result->samples,
                         w.view.total));
    norm = gradient_norm(&w);
    dpt_profile_turn(t->profile, DPT_SPAN_NORM, DPT_SPAN_OPTIMIZER);
    result->weightless = result->weight == 0;
    if (scaled && isfinite(result->loss) && !result->weightless)
        DPT_TRY(judge_scale(t, isfinite(norm), &mended, err));
    if (result->weightless) {
        /* A mean of nothing: no update, and none that the optimizer's moments would go on from. */
    } else if (mended) {
        result->overflows = 1;
    } else if (isfinite(norm) && isfinite(result->loss)) {
        DPT_TRY(update(&w, norm, result, err));
    } else {
        status = dpt_trainer_blame(t, &w.view, err);
        if (status != DPT_FAILED || t->job->train.on_nan != DPT_ON_NAN_SKIP)
            goto out;
        status = DPT_OK;
        result->skipped = 1;
    }
    dpt_trainer_advance(t, result->samples);
out:
    return status;
}

enum dpt_status dpt_trainer_step(struct dpt_trainer *t, struct dpt_step_result *result,
                                 struct dpt_error *err)
{
    enum dpt_status status;

    dpt_profile_begin(t->profile, t->progress.step + 1);
    status = t->device != NULL ? dpt_device_step(t, result, err) : step(t, result, err);
    dpt_profile_end(t->profile, DPT_SPAN_STEP);
    return status;
}

/* Weights and slots; each array with a place of its own in the sum. */
static uint64_t replica_hash(const struct dpt_trainer *t)
{
    const size_t n = (size_t)t->graph.floats;
    uint64_t hash = dpt_hash_floats(t->params, n, 0);

    for (int k = 0; k < t->slots; k++)
        hash += dpt_hash_floats(t->slot[k], n, n * ((uint64_t)k + 1));
    return hash;
}

/* Names those that differ from most, or all where there is no majority: of two that differ nobody
 * can say which is right. */
static enum dpt_status fail_replicas(const struct dpt_trainer *t, uint64_t common, bool majority,
                                     struct dpt_error *err)
{
    char ranks[512] = "";
    size_t used = 0;
    int n = 0;

    for (int i = 0; i < t->comm->world.size && used < sizeof ranks; i++)
        if (!majority || t->hashes[i] != common)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d (%s)",
                                     n++ ? ", " : "", i, dpt_comm_host(t->comm, i));
    return dpt_fail(
        err, DPT_FAILED,
        "step %lld: the replicas differ: rank%s %s hold%s other weights than %s (a fault "
        "of memory or network)",
        (long long)t->progress.step, n == 1 ? "" : "s", ranks, n == 1 ? "s" : "",
        majority ? "the majority" : "each other");
}

enum dpt_status dpt_trainer_check_replicas(const struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int size = t->comm->world.size;
    const uint64_t mine = replica_hash(t);
    uint64_t common = mine;
    int most = 0;

    dpt_comm_note(t->comm, -1, "comparing the weights of all ranks");
    DPT_TRY(dpt_group_gather(&t->comm->world, &mine, t->hashes, sizeof mine, err));
    for (int i = 0; i < size; i++) {
        int same = 0;

        for (int k = 0; k < size; k++)
            same += t->hashes[k] == t->hashes[i];
        if (same > most) {
            most = same;
            common = t->hashes[i];
        }
    }
    if (most < size)
        status = fail_replicas(t, common, most * 2 > size, err);
out:
    return status;
}

#include "core/train/pipeline_stage.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/trace/profile.h"
#include "core/train/engine.h"
#include "core/train/gradient_reduction.h"
#include "core/train/tensor_parallel.h"
#include "core/train/units.h"

/* --- what an action takes --------------------------------------------------------------------- */

bool dpt_pipeline_in_groups(const struct dpt_pipeline *p)
{
    return p->work.infers == NULL && p->t->team.together;
}

/* Whether the threads compute each micro-batch together, or there is one: also in evaluation where
 * layers are divided, since the main thread is the one that tells others of them, or where a device
 * computes one after the other. */
static bool together(const struct dpt_pipeline *p)
{
    return p->t->mesh.divided != NULL || p->t->backend->devices != NULL ||
           dpt_pipeline_in_groups(p);
}

int dpt_pipeline_takers(const struct dpt_pipeline *p)
{
    if (together(p))
        return 1;
    return p->work.infers != NULL ? p->t->team.threads : p->takers;
}

bool dpt_pipeline_in_rounds(const struct dpt_pipeline *p)
{
    return p->work.infers == NULL && dpt_trainer_dealt(p->t);
}

int32_t dpt_pipeline_micro_batch(const struct dpt_pipeline *p, int taker)
{
    const struct dpt_trainer *t = p->t;
    const struct dpt_sampler *s = &p->work.split->sampler;
    int32_t begin, end, k;

    if (dpt_pipeline_in_rounds(p))
        return dpt_step_deal(t, p->all, p->work.action.micro_batch, taker, &begin) > 0 ? begin : -1;
    if (dpt_pipeline_in_groups(p))
        return p->begin[p->work.action.micro_batch];
    dpt_step_run(p->first, p->last, taker, dpt_pipeline_takers(p), &begin, &end);
    k = begin + p->work.action.micro_batch;
    if (k >= end)
        return -1;
    return dpt_sampler_nth(s, dpt_trainer_replicas(t)->world.size, p->first, k - p->first);
}

int32_t dpt_pipeline_group(const struct dpt_pipeline *p, int taker)
{
    const int32_t *at = &p->begin[p->work.action.micro_batch];
    int32_t begin;

    if (dpt_pipeline_in_rounds(p))
        return dpt_step_deal(p->t, p->all, p->work.action.micro_batch, taker, &begin);
    return dpt_pipeline_in_groups(p) ? at[1] - at[0] : 1;
}

/* Whether the present pass is the first one of the action, or the last: there is one for each of
 * the stage's units. */
static bool begins(const struct dpt_pipeline *p)
{
    const int n = p->t->units.n;

    return n == 0 || p->work.unit == (p->work.action.back ? n - 1 : 0);
}

static bool ends(const struct dpt_pipeline *p)
{
    const int n = p->t->units.n;

    return n == 0 || p->work.unit == (p->work.action.back ? 0 : n - 1);
}

int dpt_pipeline_slot_number(const struct dpt_pipeline *p)
{
    return p->work.infers != NULL ? 0 : p->work.action.micro_batch % p->n_slots;
}

struct dpt_pipeline_slot *dpt_pipeline_slot(const struct dpt_pipeline *p, int taker)
{
    return p->work.infers != NULL ? &p->infer[taker]
                                  : &p->slots[taker * p->n_slots + dpt_pipeline_slot_number(p)];
}

/* A micro-batch's samples or, behind the first stage, what is to be said of them. */
static enum dpt_status fill_one(const struct dpt_pipeline *p, int32_t micro_batch,
                                struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset *set = p->work.split->set;
    const bool classes = set->target == DPT_TARGET_CLASS;

    if (p->t->mesh.stage == 0)
        return dpt_loader_fill(p->work.split->loader, p->work.view, micro_batch, buffer, batch,
                               err);
    DPT_TRY(dpt_batch_buffer_widen(buffer, set, p->work.split->sampler.micro, err));
    dpt_loader_fill_labels(p->work.split->loader, p->work.view, micro_batch, buffer, NULL,
                           &batch->count);
    batch->sample = buffer->sample;
    batch->labels = classes ? buffer->labels : NULL;
    batch->targets = classes ? NULL : buffer->targets;
    batch->weights = set->weights != NULL ? buffer->weights : NULL;
out:
    return status;
}

/* What an action takes: micro-batches one behind the other. */
static enum dpt_status fill(const struct dpt_pipeline *p, int taker, struct dpt_pipeline_slot *slot,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = p->t;
    const size_t micro = (size_t)t->data.train.sampler.micro;
    const int32_t micro_batch = dpt_pipeline_micro_batch(p, taker),
                  n = dpt_pipeline_group(p, taker);

    slot->batch =
        (struct dpt_batch){.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};
    memset(slot->metric_sums, 0, sizeof slot->metric_sums);
    DPT_TRY(fill_one(p, micro_batch, slot->buffer, &slot->batch, err));
    for (int32_t i = 1; i < n; i++) {
        struct dpt_batch_buffer buffer =
            dpt_batch_buffer_from(slot->buffer, p->work.split->set, (size_t)i * micro);
        struct dpt_batch more;

        DPT_TRY(fill_one(p, micro_batch + i, &buffer, &more, err));
        slot->batch.count += more.count;
    }
out:
    return status;
}

/* Samples for which a program's values have room. */
static size_t rows_of(const struct dpt_trainer *t)
{
    return (size_t)t->data.train.sampler.micro * (size_t)t->team.group;
}

/* What forward gave in an evaluation: the loss of its outputs, or the value for the next stage. */
static enum dpt_status take_value(const struct dpt_pipeline *p, int thread, int32_t micro_batch,
                                  struct dpt_pipeline_slot *slot, struct dpt_error *err)
{
    const struct dpt_trainer *t = p->t;
    const struct dpt_pipeline_pass *infers = p->work.infers;
    enum dpt_status status = DPT_OK;
    size_t floats;
    const float *value = t->backend->value(t->model.program, thread, slot->pass.slot,
                                           t->mesh.first[t->mesh.stage + 1], false, &floats);

    if (dpt_pipeline_is_last(t))
        DPT_TRY(t->backend->loss(t->model.program, thread, &slot->pass, slot->metric_sums, err));
    DPT_TRY(infers->take(infers->arg, thread, micro_batch, &slot->batch, value,
                         floats / rows_of(t) * (size_t)slot->batch.count, slot->metric_sums, err));
out:
    return status;
}

/* leads: this thread is the first of those that compute the micro-batch. */
static enum dpt_status forward(struct dpt_pipeline *p, int thread, bool leads, int32_t micro_batch,
                               struct dpt_pipeline_slot *slot, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = p->t;
    void *program = t->model.program;

    DPT_TRY(t->backend->forward(program, thread, &slot->pass, err));
    if (!ends(p))
        return DPT_OK;
    if (p->work.infers != NULL && leads)
        DPT_TRY(take_value(p, thread, micro_batch, slot, err));
    else if (p->work.infers == NULL && dpt_pipeline_is_last(t))
        DPT_TRY(t->backend->loss(program, thread, &slot->pass, slot->metric_sums, err));
out:
    return status;
}

/* Backward, by the threads of a team or by one alone; the first one of them adds up. */
static enum dpt_status back(struct dpt_pipeline *p, int thread, int taker, int32_t micro_batch,
                            const struct dpt_pipeline_slot *slot, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = p->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const bool units = t->units.n > 0;
    const size_t *edge = units ? &t->units.edge[p->work.unit] : NULL;
    float *whole = slot->pass.gradient; /* that is, its state and its tail */

    DPT_TRY(t->backend->backward(t->model.program, thread, &slot->pass, err));
    if (thread != taker)
        return DPT_OK;
    if (micro_batch == p->first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  slot->pass.gradient, units ? (int64_t)edge[0] : 0,
                                  units ? (int64_t)edge[1] : graph->floats);
    if (!ends(p))
        return DPT_OK;
    if (units)
        whole = t->reduction.type->rest(t, taker);
    memcpy(whole + graph->floats, slot->state,
           (size_t)(graph->arena - graph->floats) * sizeof(float));
    t->reduction.type->done(t, thread, micro_batch, dpt_pipeline_group(p, taker), whole,
                            dpt_gradient_whole(t), slot->metric_sums);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_REDUCTION);
out:
    return status;
}

static void compute(void *arg, int thread)
{
    struct dpt_pipeline *p = arg;
    const struct dpt_trainer *t = p->t;
    const bool alone = !together(p);
    const int taker = alone ? thread : 0;
    const int32_t micro_batch = dpt_pipeline_micro_batch(p, taker);
    struct dpt_worker *worker = &t->team.workers[thread];
    struct dpt_pipeline_slot *slot = dpt_pipeline_slot(p, taker);

    if (micro_batch < 0)
        return;
    if (alone && !p->work.action.back && begins(p)) {
        worker->status = fill(p, taker, slot, &worker->err);
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    }
    if (worker->status == DPT_OK)
        worker->status = p->work.action.back
                             ? back(p, thread, taker, micro_batch, slot, &worker->err)
                             : forward(p, thread, taker == thread, micro_batch, slot, &worker->err);
}

/* --- the passes of an action
 * ------------------------------------------------------------------- */

/* A large message waits for both sides: without this the next stage would wait until this one has
 * computed another micro-batch. */
static void get_on(void *arg)
{
    const struct dpt_pipeline *p = arg;

    dpt_group_progress(&p->t->mesh.line.world);
}

/* The pass of the stage's nodes, or of those of the present unit. */
static void prepare(struct dpt_pipeline *p, int taker)
{
    struct dpt_trainer *t = p->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const int32_t *node =
        t->units.n > 0 ? &t->units.node[p->work.unit] : &t->mesh.first[t->mesh.stage];
    struct dpt_pipeline_slot *slot = dpt_pipeline_slot(p, taker);
    struct dpt_pass *pass = &slot->pass;

    *pass = (struct dpt_pass){
        .slot = dpt_pipeline_slot_number(p),
        .first = node[0],
        .last = node[1],
        .infers = p->work.infers != NULL,
        .nonfinite = p->work.infers != NULL && p->work.infers->nonfinite != NULL
                         ? &p->work.infers->nonfinite[taker]
                         : NULL,
        .batch = &slot->batch,
        .params = t->arenas.params,
        .between = taker == 0 ? get_on : NULL,
        .arg = p,
        .divided = t->mesh.divided != NULL ? dpt_tensor_parallel_passes(t->mesh.divided) : NULL,
    };
    if (p->work.action.back)
        pass->gradient = t->units.n > 0 ? dpt_units_target(t, taker, &pass->add)
                                        : t->reduction.type->target(t, taker, &pass->add);
    else if (!pass->infers) /* forward writes no other floats than those of the state */
        pass->gradient = slot->state - graph->floats;
}

/* Collective. A pass of all threads over the stage's nodes, or those of a unit. */
static enum dpt_status pass_nodes(struct dpt_pipeline *p, enum dpt_status status,
                                  struct dpt_error *err)
{
    struct dpt_trainer *t = p->t;
    struct dpt_tensor_parallel *divided = t->mesh.divided;

    for (int k = 0; k < dpt_pipeline_takers(p) && status == DPT_OK; k++)
        if (dpt_pipeline_micro_batch(p, k) >= 0)
            prepare(p, k);
    if (together(p) && status == DPT_OK && !p->work.action.back && begins(p) &&
        dpt_pipeline_micro_batch(p, 0) >= 0) {
        status = fill(p, 0, dpt_pipeline_slot(p, 0), err);
        dpt_profile_mark(t->profile, 0, DPT_SPAN_DATA);
    }
    if (divided != NULL) /* all of them tell each other of their layers, or none does */
        status = dpt_group_agree(&t->mesh.parts.world, status, err);
    if (divided != NULL && t->units.n > 0 && p->work.action.back && status == DPT_OK)
        status = dpt_tensor_parallel_renew(divided, t->units.node[p->work.unit],
                                           t->units.node[p->work.unit + 1], err);
    if (status == DPT_OK)
        status = dpt_trainer_run(t, compute, p, err);
    if (divided != NULL && status == DPT_OK)
        status = dpt_tensor_parallel_status(divided, err);
    if (divided != NULL && t->units.n > 0 && p->work.action.back)
        dpt_tensor_parallel_forget(divided, t->units.node[p->work.unit],
                                   t->units.node[p->work.unit + 1]);
    return status;
}

/* Collective over the replicas. Adds what this round gave of a unit to what its owners have; or,
 * behind the last unit, of the rest. */
static enum dpt_status add_round(struct dpt_pipeline *p, int unit, enum dpt_status status,
                                 struct dpt_error *err)
{
    struct dpt_trainer *t = p->t;
    const double start = dpt_now();
    enum dpt_status added;
    struct dpt_error other;

    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    added = t->reduction.type->round(t, p->work.action.micro_batch, unit,
                                     status == DPT_OK ? err : &other);
    p->waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OTHER);
    return status == DPT_OK ? added : status;
}

enum dpt_status dpt_pipeline_pass_stage(struct dpt_pipeline *p, enum dpt_status status,
                                        struct dpt_error *err)
{
    struct dpt_trainer *t = p->t;
    const bool back = p->work.action.back;
    const int n = t->units.n;

    for (int i = 0; i < n; i++) {
        p->work.unit = back ? n - 1 - i : i;
        status = dpt_units_take(t, p->work.unit, status, &p->waited, err);
        status = pass_nodes(p, status, err);
        dpt_units_drop(t);
        if (back)
            status = add_round(p, p->work.unit, status, err);
    }
    if (n == 0)
        status = pass_nodes(p, status, err);
    if (n == 0 && back && dpt_pipeline_in_rounds(p))
        status = add_round(p, 0, status, err);
    return back && dpt_pipeline_in_rounds(p) ? add_round(p, n > 0 ? n : 1, status, err) : status;
}

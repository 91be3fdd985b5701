#include "core/train/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engine.h"
#include "core/train/gradient_reduction.h"
#include "core/train/mesh.h"
#include "core/train/pipeline_schedule.h"
#include "core/train/tensor_parallel.h"
#include "models/model.h"

/* A micro-batch under way on a thread, or a team's group of them. */
struct slot {
    struct dpt_batch_buffer *buffer;
    struct dpt_batch batch;
    struct dpt_pass pass;
    struct dpt_metric_sums metric_sums[DPT_GROUP_MOST];
    float
        *state; /* what forward gives for the running statistics: like a gradient's part of them */
    struct dpt_sending forward, back;
};

/* What all threads do now. */
struct work {
    const struct dpt_split *split;
    const struct dpt_step_view *view;
    const struct dpt_pipeline_pass *infers; /* NULL: it trains */
    struct dpt_pipeline_action action;
};

struct dpt_pipeline {
    struct dpt_trainer *t;            /* borrowed */
    int takers;                       /* threads that take micro-batches of their own in training */
    int n_slots;                      /* of each of them */
    struct slot *slots;               /* [threads][n_slots] */
    struct slot *infer;               /* [threads]: of evaluations, on the workers' buffers */
    struct dpt_batch_buffer *buffers; /* [threads][n_slots] */
    int32_t first, last;              /* this rank's micro-batches */
    int32_t all;                      /* those of the step, where it trains */
    int32_t *begin; /* [run + 2]: of a team, where each of its groups begins, and the end */
    struct work work;
    double waited;
};

/* --- opening ---------------------------------------------------------------------------------- */

static const struct dpt_pipeline_schedule *schedule_of(const struct dpt_trainer *t)
{
    return &dpt_pipeline_schedules[t->job->parallel.pipeline.schedule];
}

/* The groups of a run of a step's `all` micro-batches: where they begin, NULL: not wanted. */
static int32_t find_groups(const struct dpt_trainer *t, int32_t all, int32_t first, int32_t last,
                           int32_t *begin)
{
    int32_t n = 0;

    for (int32_t i = first; i < last; n++) {
        if (begin != NULL)
            begin[n] = i;
        i += dpt_step_group(t, all, i, last);
    }
    if (begin != NULL)
        begin[n] = last;
    return n;
}

int32_t dpt_pipeline_actions(const struct dpt_trainer *t, int32_t micro)
{
    struct dpt_sampler s = t->data.train.sampler;
    const int ranks = dpt_trainer_replicas(t)->world.size, threads = t->team.gradient_workers;
    int64_t steps;
    int32_t most = 1;

    s.micro = micro;
    s.global = (int32_t)t->job->batch.global;
    s.drop_last = t->job->data.drop_last;
    steps = dpt_sampler_steps(&s);
    for (int64_t step = 0; step<steps; step += steps> 1 && step == 0 ? steps - 1 : 1)
        for (int r = 0; r < ranks; r++) { /* a full step, and the last, which may be short */
            int32_t first, last, n;

            dpt_sampler_partition(&s, step, r, ranks, &first, &last);
            n = t->team.together
                    ? find_groups(t, dpt_sampler_micro_batches(&s, step), first, last, NULL)
                    : (last - first + threads - 1) / threads;
            most = n > most ? n : most;
        }
    return most;
}

int dpt_pipeline_slots(const struct dpt_trainer *t, int32_t micro)
{
    return (int)schedule_of(t)->under_way(t->mesh.stages, t->mesh.stage,
                                          dpt_pipeline_actions(t, micro));
}

/* A stage behind the first one reads no samples, only what is to be said of them. */
static void drop_input(struct dpt_batch_buffer *buffer)
{
    dpt_free(buffer->input);
    buffer->input = NULL;
}

enum dpt_status dpt_pipeline_open(struct dpt_pipeline **pipeline, struct dpt_trainer *t,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t state = (size_t)(graph->arena - graph->floats) + DPT_TENSOR_ALIGN;
    const int32_t micro = t->data.train.sampler.micro;
    struct dpt_pipeline *p = NULL;
    size_t floats;

    DPT_TRY(DPT_ALLOCATE(p, 1, "the pipeline", err));
    *pipeline = p;
    p->t = t;
    p->takers = t->team.gradient_workers;
    p->n_slots = t->team.slots;
    DPT_TRY(DPT_ALLOCATE(p->slots, (size_t)(p->takers * p->n_slots), "the pipeline", err));
    DPT_TRY(DPT_ALLOCATE(p->buffers, (size_t)(p->takers * p->n_slots), "the pipeline", err));
    DPT_TRY(DPT_ALLOCATE(p->infer, (size_t)t->team.threads, "the pipeline", err));
    DPT_TRY(DPT_ALLOCATE(p->begin, (size_t)dpt_sampler_micro_batches(&t->data.train.sampler, 0) + 1,
                         "the pipeline", err));
    for (int i = 0; i < p->takers * p->n_slots; i++) {
        DPT_TRY(
            dpt_batch_buffer_open(&p->buffers[i], t->data.train.set, micro * t->team.group, err));
        if (t->mesh.stage > 0)
            drop_input(&p->buffers[i]);
        p->slots[i].buffer = &p->buffers[i];
        DPT_TRY(DPT_ALLOCATE(p->slots[i].state, state, "the pipeline", err));
    }
    for (int i = 0; i < t->team.threads; i++)
        p->infer[i].buffer = &t->team.workers[i].buffer;
    for (int k = 1; k < t->mesh.stages; k++) {
        t->backend->value(t->model.program, 0, 0, t->mesh.first[k], false, &floats);
        if (floats > DPT_MESSAGE_BYTES / sizeof(float))
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                             "parallel.pipeline: %zu numbers go to %s with each micro-batch, more "
                             "than a message takes: a smaller batch.micro would do",
                             floats, t->model.graph.nodes[t->mesh.first[k]].name));
    }
out:
    return status;
}

void dpt_pipeline_close(struct dpt_pipeline *p)
{
    if (p == NULL)
        return;
    for (int i = 0; p->slots != NULL && i < p->takers * p->n_slots; i++) {
        if (p->buffers != NULL)
            dpt_batch_buffer_close(&p->buffers[i]);
        dpt_free(p->slots[i].state);
    }
    dpt_free(p->buffers);
    dpt_free(p->slots);
    dpt_free(p->infer);
    dpt_free(p->begin);
    dpt_free(p);
}

/* --- computing -------------------------------------------------------------------------------- */

static bool is_last(const struct dpt_trainer *t)
{
    return t->mesh.stage == t->mesh.stages - 1;
}

/* Whether the threads compute together, a group of micro-batches with an action. */
static bool in_groups(const struct dpt_pipeline *p)
{
    return p->work.infers == NULL && p->t->team.together;
}

/* Whether the threads compute each micro-batch together, or there is one: also in evaluation where
 * layers are divided, since the main thread is the one that tells others of them. */
static bool together(const struct dpt_pipeline *p)
{
    return p->t->mesh.divided != NULL || in_groups(p);
}

/* Threads that take micro-batches of their own: in evaluation all do. */
static int takers_of(const struct dpt_pipeline *p)
{
    if (together(p))
        return 1;
    return p->work.infers != NULL ? p->t->team.threads : p->takers;
}

/* The micro-batch that a thread takes with the present action, or the first one of a team's group;
 * -1: it has no more. */
static int32_t micro_batch_of(const struct dpt_pipeline *p, int taker)
{
    int32_t begin, end;

    if (in_groups(p))
        return p->begin[p->work.action.micro_batch];
    dpt_step_run(p->first, p->last, taker, takers_of(p), &begin, &end);
    return begin + p->work.action.micro_batch < end ? begin + p->work.action.micro_batch : -1;
}

/* How many micro-batches the action takes. */
static int32_t group_of(const struct dpt_pipeline *p)
{
    const int32_t *at = &p->begin[p->work.action.micro_batch];

    return in_groups(p) ? at[1] - at[0] : 1;
}

static int slot_number(const struct dpt_pipeline *p)
{
    return p->work.infers != NULL ? 0 : p->work.action.micro_batch % p->n_slots;
}

static struct slot *slot_of(const struct dpt_pipeline *p, int taker)
{
    return p->work.infers != NULL ? &p->infer[taker]
                                  : &p->slots[taker * p->n_slots + slot_number(p)];
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
static enum dpt_status fill(const struct dpt_pipeline *p, int32_t micro_batch, struct slot *slot,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = p->t;
    const size_t micro = (size_t)t->data.train.sampler.micro;

    slot->batch =
        (struct dpt_batch){.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};
    memset(slot->metric_sums, 0, sizeof slot->metric_sums);
    DPT_TRY(fill_one(p, micro_batch, slot->buffer, &slot->batch, err));
    for (int32_t i = 1; i < group_of(p); i++) {
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
                                  struct slot *slot, struct dpt_error *err)
{
    const struct dpt_trainer *t = p->t;
    const struct dpt_pipeline_pass *infers = p->work.infers;
    const int32_t width = dpt_graph_outputs(&t->model.graph);
    size_t floats;
    const float *value = t->backend->value(t->model.program, thread, slot->pass.slot,
                                           t->mesh.first[t->mesh.stage + 1], false, &floats);

    if (is_last(t))
        dpt_loss_rows(&t->model.loss, &slot->batch, width, (size_t)width, value, NULL,
                      slot->metric_sums);
    return infers->take(infers->arg, thread, micro_batch, &slot->batch, value,
                        floats / rows_of(t) * (size_t)slot->batch.count, slot->metric_sums, err);
}

/* leads: this thread is the first of those that compute the micro-batch. */
static enum dpt_status forward(struct dpt_pipeline *p, int thread, bool leads, int32_t micro_batch,
                               struct slot *slot, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = p->t;
    void *program = t->model.program;

    DPT_TRY(t->backend->forward(program, thread, &slot->pass, err));
    if (p->work.infers != NULL && leads)
        DPT_TRY(take_value(p, thread, micro_batch, slot, err));
    else if (p->work.infers == NULL && is_last(t))
        DPT_TRY(t->backend->loss(program, thread, &slot->pass, slot->metric_sums, err));
out:
    return status;
}

/* Backward, by the threads of a team or by one alone; the first one of them adds up. */
static enum dpt_status back(struct dpt_pipeline *p, int thread, bool leads, int32_t micro_batch,
                            const struct slot *slot, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = p->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);

    DPT_TRY(t->backend->backward(t->model.program, thread, &slot->pass, err));
    if (!leads)
        return DPT_OK;
    memcpy(slot->pass.gradient + graph->floats, slot->state,
           (size_t)(graph->arena - graph->floats) * sizeof(float));
    if (micro_batch == p->first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  slot->pass.gradient, 0, graph->floats);
    t->reduction.type->done(t, thread, micro_batch, group_of(p), slot->pass.gradient,
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
    const int32_t micro_batch = micro_batch_of(p, taker);
    struct dpt_worker *worker = &t->team.workers[thread];
    struct slot *slot = slot_of(p, taker);

    if (micro_batch < 0)
        return;
    if (alone && !p->work.action.back) {
        worker->status = fill(p, micro_batch, slot, &worker->err);
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    }
    if (worker->status == DPT_OK)
        worker->status = p->work.action.back
                             ? back(p, thread, taker == thread, micro_batch, slot, &worker->err)
                             : forward(p, thread, taker == thread, micro_batch, slot, &worker->err);
}

/* --- messages --------------------------------------------------------------------------------- */

/* The value that a stage gives the next one, or that value's gradient: of the samples' rows, which
 * come first. */
static float *edge(const struct dpt_pipeline *p, int taker, int stage, bool gradient, size_t *bytes)
{
    const struct dpt_trainer *t = p->t;
    size_t floats;
    float *value = t->backend->value(t->model.program, taker, slot_number(p),
                                     t->mesh.first[stage + 1], gradient, &floats);

    *bytes = floats / (size_t)t->team.group * (size_t)group_of(p) * sizeof(float);
    return value;
}

/* Waits until what was sent from a slot has gone, so that it may be written over. */
static enum dpt_status settle(const struct dpt_pipeline *p, struct slot *slot,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_group_sent(dpt_mesh_edge(p->t, true), &slot->forward, err));
    DPT_TRY(dpt_group_sent(dpt_mesh_edge(p->t, false), &slot->back, err));
out:
    return status;
}

/* Gets what the present action needs from the stage in front of it. */
static enum dpt_status receive(struct dpt_pipeline *p, int taker, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = p->t;
    const bool back = p->work.action.back;
    size_t bytes;
    float *to;

    DPT_TRY(settle(p, slot_of(p, taker), err));
    if (back ? is_last(t) : t->mesh.stage == 0)
        return DPT_OK;
    to = edge(p, taker, t->mesh.stage - !back, back, &bytes);
    if (to != NULL)
        DPT_TRY(dpt_group_receive(dpt_mesh_edge(t, back), back, to, bytes, err));
out:
    return status;
}

/* Sends what it gave to the stage behind it. */
static enum dpt_status send(struct dpt_pipeline *p, int taker, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = p->t;
    const bool back = p->work.action.back;
    struct slot *slot = slot_of(p, taker);
    size_t bytes;
    const float *from;

    if (back ? t->mesh.stage == 0 : is_last(t))
        return DPT_OK;
    from = edge(p, taker, t->mesh.stage - back, back, &bytes);
    if (from != NULL)
        DPT_TRY(dpt_group_send(dpt_mesh_edge(t, !back), !back, from, bytes,
                               back ? &slot->back : &slot->forward, err));
out:
    return status;
}

/* --- a walk through the schedule -------------------------------------------------------------- */

/* A large message waits for both sides: without this the next stage would wait until this one has
 * computed another micro-batch. */
static void get_on(void *arg)
{
    const struct dpt_pipeline *p = arg;

    dpt_group_progress(&p->t->mesh.line.world);
}

static void prepare(struct dpt_pipeline *p, int taker)
{
    struct dpt_trainer *t = p->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    struct slot *slot = slot_of(p, taker);
    struct dpt_pass *pass = &slot->pass;

    *pass = (struct dpt_pass){
        .slot = slot_number(p),
        .first = t->mesh.first[t->mesh.stage],
        .last = t->mesh.first[t->mesh.stage + 1],
        .infers = p->work.infers != NULL,
        .batch = &slot->batch,
        .params = t->arenas.params,
        .between = taker == 0 ? get_on : NULL,
        .arg = p,
        .divided = t->mesh.divided != NULL ? dpt_tensor_parallel_passes(t->mesh.divided) : NULL,
    };
    if (p->work.action.back)
        pass->gradient = t->reduction.type->target(t, taker, &pass->add);
    else if (!pass->infers) /* forward writes no other floats than those of the state */
        pass->gradient = slot->state - graph->floats;
}

/* Collective. An action on all threads, with its messages, which are sent also where it fails. */
static enum dpt_status act(struct dpt_pipeline *p, enum dpt_status status, struct dpt_error *err)
{
    struct dpt_trainer *t = p->t;
    const double start = dpt_now();

    for (int k = 0; k < takers_of(p); k++)
        if (micro_batch_of(p, k) >= 0 && receive(p, k, err) != DPT_OK)
            return err->status;
    p->waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_STAGE, DPT_SPAN_WAIT_STAGE);
    for (int k = 0; k < takers_of(p) && status == DPT_OK; k++)
        if (micro_batch_of(p, k) >= 0)
            prepare(p, k);
    if (together(p) && status == DPT_OK && !p->work.action.back && micro_batch_of(p, 0) >= 0) {
        status = fill(p, micro_batch_of(p, 0), slot_of(p, 0), err);
        dpt_profile_mark(t->profile, 0, DPT_SPAN_DATA);
    }
    if (t->mesh.divided != NULL) /* all of them tell each other of their layers, or none does */
        status = dpt_group_agree(&t->mesh.parts.world, status, err);
    if (status == DPT_OK)
        status = dpt_trainer_run(t, compute, p, err);
    if (t->mesh.divided != NULL && status == DPT_OK)
        status = dpt_tensor_parallel_status(t->mesh.divided, err);
    for (int k = 0; k < takers_of(p); k++) {
        struct dpt_error other;

        if (micro_batch_of(p, k) >= 0 && send(p, k, status == DPT_OK ? err : &other) != DPT_OK)
            return status == DPT_OK ? err->status : status;
    }
    return status;
}

static enum dpt_status walk(struct dpt_pipeline *p, const struct dpt_pipeline_schedule *schedule,
                            enum dpt_status status, struct dpt_error *err)
{
    struct dpt_pipeline_walk walk = {
        .schedule = schedule, .stages = p->t->mesh.stages, .stage = p->t->mesh.stage};
    const int takers = takers_of(p);

    if (in_groups(p))
        walk.micro_batches = find_groups(p->t, p->all, p->first, p->last, p->begin);
    else /* the first thread has one whenever another one has */
        walk.micro_batches = (p->last - p->first + takers - 1) / takers;
    p->waited = 0;
    while (dpt_pipeline_next(&walk, &p->work.action)) {
        struct dpt_error *to = err, other;

        if (status != DPT_OK)
            to = &other; /* the first one counts */
        status = act(p, status, to);
    }
    for (int k = 0; k < takers * (p->work.infers != NULL ? 1 : p->n_slots); k++)
        if (settle(p, p->work.infers != NULL ? &p->infer[k] : &p->slots[k], err) != DPT_OK)
            return err->status;
    return status;
}

enum dpt_status dpt_pipeline_compute(struct dpt_pipeline *p, const struct dpt_step_view *view,
                                     enum dpt_status status, struct dpt_error *err)
{
    const struct dpt_trainer *t = p->t;
    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;

    dpt_comm_note(t->comm, t->progress.step + 1, "computing");
    dpt_sampler_partition(&t->data.train.sampler, t->progress.epoch_step, replicas->rank,
                          replicas->size, &p->first, &p->last);
    p->all = dpt_sampler_micro_batches(&t->data.train.sampler, t->progress.epoch_step);
    p->work = (struct work){.split = &t->data.train, .view = view};
    return walk(p, schedule_of(t), status, err);
}

enum dpt_status dpt_pipeline_infer(struct dpt_pipeline *p, const struct dpt_pipeline_pass *pass,
                                   int64_t step, enum dpt_status status, struct dpt_error *err)
{
    const struct dpt_group *replicas = &dpt_trainer_replicas(p->t)->world;

    dpt_sampler_partition(&pass->split->sampler, step, replicas->rank, replicas->size, &p->first,
                          &p->last);
    p->work = (struct work){.split = pass->split, .view = pass->view, .infers = pass};
    return walk(p, &dpt_pipeline_schedules[DPT_PIPELINE_FORWARD], status, err);
}

double dpt_pipeline_waited(const struct dpt_pipeline *p)
{
    return p->waited;
}

/* --- what all stages know of a step ----------------------------------------------------------- */

enum dpt_status dpt_pipeline_sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                                 const float flags[DPT_FLAGS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const float none[DPT_FLAGS] = {0};
    float all[DPT_FLAGS];

    DPT_TRY(dpt_group_sum_floats(&t->comm->world, flags, all, DPT_FLAGS, err));
    if (all[DPT_FLAG_FAILED] <= 0)
        DPT_TRY(t->reduction.type->sum(t, view, none, err));
    memcpy(t->reduction.reduced_flags, all, sizeof all);
out:
    return status;
}

enum dpt_status dpt_pipeline_before(const struct dpt_trainer *t, double *squares,
                                    struct dpt_error *err)
{
    *squares = 0;
    if (t->mesh.stage == 0)
        return DPT_OK;
    return dpt_group_receive(dpt_mesh_edge(t, false), 0, squares, sizeof *squares, err);
}

enum dpt_status dpt_pipeline_share(const struct dpt_trainer *t, struct dpt_pipeline_words *words,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *next = dpt_mesh_edge(t, true);
    struct dpt_sending sending;

    if (!is_last(t)) {
        DPT_TRY(dpt_group_send(next, 1, &words->squares, sizeof words->squares, &sending, err));
        DPT_TRY(dpt_group_sent(next, &sending, err));
    }
    DPT_TRY(dpt_group_broadcast(&t->mesh.line.world, (t->mesh.stages - 1) * t->mesh.tensor, words,
                                sizeof *words, err));
out:
    return status;
}

#include "core/train/pipeline.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engine.h"
#include "core/train/gradient_reduction.h"
#include "core/train/mesh.h"
#include "core/train/pipeline_stage.h"

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
            n = dpt_trainer_dealt(t) ? dpt_step_rounds(t, dpt_sampler_micro_batches(&s, step))
                : t->team.together
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

/* --- messages --------------------------------------------------------------------------------- */

/* The value that a stage gives the next one, or that value's gradient: of the samples' rows, which
 * come first. */
static float *edge(const struct dpt_pipeline *p, int taker, int stage, bool gradient, size_t *bytes)
{
    const struct dpt_trainer *t = p->t;
    size_t floats;
    float *value = t->backend->value(t->model.program, taker, dpt_pipeline_slot_number(p),
                                     t->mesh.first[stage + 1], gradient, &floats);

    *bytes = floats / (size_t)t->team.group * (size_t)dpt_pipeline_group(p, taker) * sizeof(float);
    return value;
}

/* Waits until what was sent from a slot has gone, so that it may be written over. */
static enum dpt_status settle(const struct dpt_pipeline *p, struct dpt_pipeline_slot *slot,
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

    DPT_TRY(settle(p, dpt_pipeline_slot(p, taker), err));
    if (back ? dpt_pipeline_is_last(t) : t->mesh.stage == 0)
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
    struct dpt_pipeline_slot *slot = dpt_pipeline_slot(p, taker);
    size_t bytes;
    const float *from;

    if (back ? t->mesh.stage == 0 : dpt_pipeline_is_last(t))
        return DPT_OK;
    from = edge(p, taker, t->mesh.stage - back, back, &bytes);
    if (from != NULL)
        DPT_TRY(dpt_group_send(dpt_mesh_edge(t, !back), !back, from, bytes,
                               back ? &slot->back : &slot->forward, err));
out:
    return status;
}

/* --- a walk through the schedule -------------------------------------------------------------- */

/* How many actions a walk has forward. */
static int32_t count_actions(struct dpt_pipeline *p)
{
    const struct dpt_trainer *t = p->t;
    const struct dpt_sampler *s = &p->work.split->sampler;
    const int takers = dpt_pipeline_takers(p), replicas = dpt_trainer_replicas(t)->world.size;
    int32_t most = p->last - p->first;

    if (dpt_pipeline_in_rounds(p))
        return dpt_step_rounds(t, p->all);
    if (dpt_pipeline_in_groups(p))
        return find_groups(t, p->all, p->first, p->last, p->begin);
    for (int r = 0; r < replicas && t->units.n > 0; r++) { /* all gather their weights */
        int32_t first, last;

        dpt_sampler_partition(s, p->step, r, replicas, &first, &last);
        most = last - first > most ? last - first : most;
    }
    return (most + takers - 1) / takers; /* the first thread has one whenever another one has */
}

/* Collective. An action on all threads, with its messages, which are sent also where it fails. */
static enum dpt_status act(struct dpt_pipeline *p, enum dpt_status status, struct dpt_error *err)
{
    struct dpt_trainer *t = p->t;
    const double start = dpt_now();

    for (int k = 0; k < dpt_pipeline_takers(p); k++)
        if (dpt_pipeline_micro_batch(p, k) >= 0 && receive(p, k, err) != DPT_OK)
            return err->status;
    p->waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_STAGE, DPT_SPAN_WAIT_STAGE);
    status = dpt_pipeline_pass_stage(p, status, err);
    for (int k = 0; k < dpt_pipeline_takers(p); k++) {
        struct dpt_error other;

        if (dpt_pipeline_micro_batch(p, k) >= 0 &&
            send(p, k, status == DPT_OK ? err : &other) != DPT_OK)
            return status == DPT_OK ? err->status : status;
    }
    return status;
}

static enum dpt_status walk(struct dpt_pipeline *p, const struct dpt_pipeline_schedule *schedule,
                            enum dpt_status status, struct dpt_error *err)
{
    struct dpt_pipeline_walk walk = {
        .schedule = schedule, .stages = p->t->mesh.stages, .stage = p->t->mesh.stage};
    const int takers = dpt_pipeline_takers(p);

    walk.micro_batches = count_actions(p);
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
    struct dpt_trainer *t = p->t;
    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;

    dpt_comm_note(t->comm, t->progress.step + 1, "computing");
    dpt_sampler_partition(&t->data.train.sampler, t->progress.epoch_step, replicas->rank,
                          replicas->size, &p->first, &p->last);
    p->all = dpt_sampler_micro_batches(&t->data.train.sampler, t->progress.epoch_step);
    p->step = t->progress.epoch_step;
    p->work = (struct dpt_pipeline_work){.split = &t->data.train, .view = view};
    if (dpt_trainer_dealt(t)) /* a rank that failed has not come so far */
        t->reduction.type->begin(t, &(struct dpt_step_view){.step = p->step});
    return walk(p, schedule_of(t), status, err);
}

enum dpt_status dpt_pipeline_infer(struct dpt_pipeline *p, const struct dpt_pipeline_pass *pass,
                                   int64_t step, enum dpt_status status, struct dpt_error *err)
{
    const struct dpt_group *replicas = &dpt_trainer_replicas(p->t)->world;

    dpt_sampler_partition(&pass->split->sampler, step, replicas->rank, replicas->size, &p->first,
                          &p->last);
    p->step = step;
    p->work = (struct dpt_pipeline_work){.split = pass->split, .view = pass->view, .infers = pass};
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

    if (!dpt_pipeline_is_last(t)) {
        DPT_TRY(dpt_group_send(next, 1, &words->squares, sizeof words->squares, &sending, err));
        DPT_TRY(dpt_group_sent(next, &sending, err));
    }
    DPT_TRY(dpt_group_broadcast(&t->mesh.line.world, (t->mesh.stages - 1) * t->mesh.tensor, words,
                                sizeof *words, err));
out:
    return status;
}

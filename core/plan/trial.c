/* Trials of what a rank's threads do in a step, with the parts that a trainer has for it. */
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/base/sort.h"
#include "core/plan/plan.h"
#include "core/train/setup/parts.h"
#include "core/train/step/average.h"
#include "core/train/step/engine.h"
#include "core/train/team.h"
#include "models/model.h"

enum { LEAST = 7, MOST = 1000, MOST_TOGETHER = 4096 };

static const double seconds = 0.3; /* for micro-batches; and as many again for updates, at most */
static const double together_least = 30e-6;

struct trial {
    struct dpt_lone lone; /* with arenas and a program */
    double *squares;      /* [threads] times what the optimizer wants */
    double *taken;        /* [threads]: by each, of what is timed */
    void (*work)(void *arg, int thread);
    bool add; /* gradients are added to those that are there */
    enum dpt_status status;
    struct dpt_error *err;
};

enum dpt_status dpt_lone_open(struct dpt_lone *lone, const struct dpt_plan *p, int threads,
                              int32_t samples, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &lone->t;

    *lone = (struct dpt_lone){
        .comm = {.world.size = 1, .node.size = 1, .leaders.size = 1, .nodes = 1},
        .job = *p->job,
        .t = {.backend = p->backend,
              .engine = &dpt_engine_host,
              .data = p->data,
              .model = {.loss = p->model.loss, .graph = p->model.graph},
              .team = {.spin = true}},
    };
    t->job = &lone->job;
    t->comm = t->mesh.replicas = &lone->comm;
    lone->job.parallel.data = 0; /* the model is whole */
    lone->job.parallel.tensor = 1;
    lone->job.parallel.pipeline.stages = 0;
    lone->job.parallel.shard = DPT_SHARD_NONE;
    DPT_TRY(dpt_plan_layout(p, &lone->job, 1, 1, &t->layout, err));
    dpt_layout_set_threads(&t->layout, threads, threads, 0);
    t->stage = t->layout.stage;
    DPT_TRY(dpt_trainer_open_team(t, samples, err));
out:
    return status;
}

void dpt_lone_close(struct dpt_lone *lone)
{
    struct dpt_trainer *t = &lone->t;

    dpt_trainer_close_team(t);
    dpt_pool_close(t->team.pool);
    dpt_layout_close(&t->layout);
}

/* Made-up samples for a thread, and a buffer for their gradient. */
static enum dpt_status fill_worker(struct dpt_trainer *t, int thread, struct dpt_error *err)
{
    struct dpt_worker *worker = &t->team.workers[thread];
    const struct dpt_batch_buffer *buffer = &worker->buffer;
    const size_t samples = (size_t)t->layout.micro * (size_t)t->layout.at_once;
    const int32_t outputs = dpt_graph_outputs(&t->model.graph);

    dpt_random_normal((uint64_t)thread, DPT_RANDOM_SYNTHETIC, 0, 0,
                      samples * (size_t)dpt_shape_size(&t->data.train.set->shape), buffer->input);
    for (size_t i = 0; i < buffer->target_floats; i++)
        buffer->targets[i] = 1.0F / (float)outputs;
    for (size_t i = 0; i < samples; i++) {
        buffer->labels[i] = (int32_t)(i % (size_t)outputs);
        buffer->sample[i] = (int64_t)i;
    }
    return DPT_ALLOCATE(worker->target, (size_t)t->model.graph.arena, "a trial", err);
}

static enum dpt_status open_trial(struct trial *r, const struct dpt_plan *p, int threads,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &r->lone.t;
    const size_t squares =
        dpt_optimizer_chunks(&p->job->optimizer, &p->model.graph) * DPT_OPTIMIZER_SQUARES;

    DPT_TRY(dpt_lone_open(&r->lone, p, threads, p->layout.micro * p->layout.at_once, err));
    /* The trial computes what a rank of the plan does, one micro-batch or group at a time. */
    t->layout.micro = p->layout.micro;
    t->layout.at_once = p->layout.at_once;
    t->layout.adds = p->adds;
    t->layout.stage[0].in_flight = 1;
    for (int i = 0; i < t->layout.gradient_workers; i++)
        DPT_TRY(fill_worker(t, i, err));
    DPT_TRY(dpt_trainer_open_arenas(t, err));
    DPT_TRY(DPT_ALLOCATE(r->taken, (size_t)threads, "a trial", err));
    DPT_TRY(DPT_ALLOCATE(r->squares, squares * (size_t)threads, "a trial", err));
    DPT_TRY(dpt_trainer_open_program(t, NULL, err));
out:
    return status;
}

static void close_trial(struct trial *r)
{
    struct dpt_trainer *t = &r->lone.t;

    dpt_trainer_close_program(t);
    for (int i = 0; t->team.workers != NULL && i < t->layout.gradient_workers; i++)
        dpt_free(t->team.workers[i].target);
    if (t->stage != NULL)
        dpt_trainer_close_arenas(t);
    dpt_lone_close(&r->lone);
    dpt_free(r->taken);
    dpt_free(r->squares);
}

/* One micro-batch; in a team all threads work on the first one's. */
static void compute(void *arg, int thread)
{
    const struct trial *r = arg;
    const struct dpt_trainer *t = &r->lone.t;
    struct dpt_worker *worker = &t->team.workers[thread],
                      *of = t->layout.together ? t->team.workers : worker;
    const bool classes = t->data.train.form.targets == 0;
    const struct dpt_batch batch = {
        .count = t->layout.micro * t->layout.at_once,
        .input = of->buffer.input,
        .labels = classes ? of->buffer.labels : NULL,
        .targets = classes ? NULL : of->buffer.targets,
        .sample = of->buffer.sample,
    };

    if (worker->status == DPT_OK)
        worker->status = t->backend->train(t->model.program, thread, &batch, t->arenas.params,
                                           of->target, r->add, of->own, &worker->err);
}

static void compute_together(void *arg, int thread)
{
    struct trial *r = arg;

    (void)thread;
    if (r->status == DPT_OK)
        r->status = dpt_trainer_run(&r->lone.t, compute, r, r->err);
}

/* This thread's part of what a step does after the sum. */
static void update(void *arg, int thread)
{
    struct trial *r = arg;
    struct dpt_trainer *t = &r->lone.t;
    struct dpt_worker *worker = &t->team.workers[thread];
    const struct dpt_update rates = {
        .lr = 1e-6, .step = 1, .scale = 1e-3F, .average = dpt_average_share(t)};
    const size_t chunks = dpt_optimizer_chunks(&t->job->optimizer, &t->model.graph);
    /* Nobody waits for the others' */
    double *squares = r->squares + chunks * DPT_OPTIMIZER_SQUARES * (size_t)thread;
    size_t begin, end;

    dpt_part_in_units(chunks, 1, thread, t->layout.threads, &begin, &end);
    if (chunks > 0)
        dpt_optimizer_measure(&t->job->optimizer, &t->model.graph, &rates, begin, end,
                              t->arenas.params, t->team.workers[0].target, t->arenas.slot, squares);
    dpt_thread_part((size_t)t->model.graph.floats, thread, t->layout.threads, &begin, &end);
    dpt_optimizer_apply(&t->job->optimizer, &t->model.graph, &rates, begin, end, t->arenas.params,
                        t->team.workers[0].target, t->arenas.slot, squares);
    worker->status = t->backend->refresh(t->model.program, thread, t->arenas.params, &worker->err);
}

/*
 * Measures the typical time of one call, from many one after another. Several short calls are timed
 * together, since reading the clock takes time, too. Machines have slow spells: the lower quartile
 * is closer to the time in a step.
 */
static double time_calls(void (*work)(void *arg, int thread), struct trial *r, int thread,
                         double (*clock)(void))
{
    double times[MOST];
    const double start = dpt_now();
    int n = 0, together = 1;

    while (n < MOST && (n < LEAST || dpt_now() - start < seconds)) {
        const double begin = clock();
        double taken;

        for (int i = 0; i < together; i++)
            work(r, thread);
        taken = clock() - begin;
        if (taken < together_least && together < MOST_TOGETHER)
            together *= 2;
        else
            times[n++] = taken / together;
    }
    dpt_sort(times, (size_t)n);
    return times[n / 4];
}

static void time_part(void *arg, int thread)
{
    struct trial *r = arg;

    r->taken[thread] = time_calls(r->work, r, thread, dpt_thread_seconds);
}

/* Measures the mean time of work that each thread does by itself, all threads at once. */
static enum dpt_status time_threads(struct trial *r, void (*work)(void *arg, int thread),
                                    double *mean, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    r->work = work;
    DPT_TRY(dpt_trainer_run(&r->lone.t, time_part, r, err));
    *mean = 0;
    for (int i = 0; i < r->lone.t.layout.threads; i++)
        *mean += r->taken[i] / r->lone.t.layout.threads;
out:
    return status;
}

enum dpt_status dpt_trial_run(const struct dpt_plan *p, int threads, struct dpt_trial *trial,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct trial r = {.err = err};
    struct dpt_trainer *t = &r.lone.t;

    DPT_TRY(open_trial(&r, p, threads, err));
    DPT_TRY(dpt_trainer_refresh(t, err));
    DPT_TRY(dpt_trainer_run(t, compute, &r, err)); /* also makes the gradients */
    r.add = t->layout.at_once == 1;                /* several at once are never added to others */
    if (t->layout.together) {
        trial->micro_batch = time_calls(compute_together, &r, 0, dpt_now);
        DPT_TRY(r.status);
    } else {
        DPT_TRY(time_threads(&r, compute, &trial->micro_batch, err));
    }
    DPT_TRY(time_threads(&r, update, &trial->update, err));
    trial->micro = t->layout.micro * t->layout.at_once;
    trial->done = true;
out:
    close_trial(&r);
    return status;
}

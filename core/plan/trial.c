/* Trials of what a rank's threads do in a step, with the parts that a trainer has for it. */
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/base/sort.h"
#include "core/plan/plan.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/team.h"
#include "core/train/update/average.h"
#include "models/model.h"

enum { LEAST = 7, MOST = 1000, MOST_TOGETHER = 4096 };

static const double seconds = 0.3; /* of micro-batches; and as much again of updates, at most */
static const double together_least = 30e-6;

struct trial {
    struct dpt_trainer t; /* with arenas, threads and a program of its own */
    double *squares;      /* [threads] times what the optimizer wants */
    double *taken;        /* [threads]: by each, of what is timed */
    void (*work)(void *arg, int thread);
    bool add; /* gradients are added to those that are there */
    enum dpt_status status;
    struct dpt_error *err;
};

/* Made-up samples for a thread, and a buffer for their gradient. */
static enum dpt_status fill_worker(struct dpt_trainer *t, int thread, struct dpt_error *err)
{
    struct dpt_worker *worker = &t->team.workers[thread];
    const struct dpt_batch_buffer *buffer = &worker->buffer;
    const size_t samples = (size_t)t->data.train.sampler.micro * (size_t)t->team.group;
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

static enum dpt_status open_trial(struct trial *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = &r->t;
    const size_t threads = (size_t)t->team.threads;
    const int32_t micro = t->data.train.sampler.micro;

    DPT_TRY(dpt_trainer_open_team(t, micro * t->team.group, err));
    for (int i = 0; i < t->team.gradient_workers; i++)
        DPT_TRY(fill_worker(t, i, err));
    DPT_TRY(dpt_trainer_open_arenas(t, err));
    DPT_TRY(DPT_ALLOCATE(r->taken, threads, "a trial", err));
    DPT_TRY(DPT_ALLOCATE(r->squares,
                         dpt_optimizer_chunks(&t->job->optimizer, &t->model.graph) *
                             DPT_OPTIMIZER_SQUARES * threads,
                         "a trial", err));
    DPT_TRY(dpt_trainer_open_program(t, micro, NULL, err));
out:
    return status;
}

static void close_trial(struct trial *r)
{
    struct dpt_trainer *t = &r->t;

    dpt_trainer_close_program(t);
    for (int i = 0; t->team.workers != NULL && i < t->team.gradient_workers; i++)
        dpt_free(t->team.workers[i].target);
    dpt_trainer_close_team(t);
    dpt_pool_close(t->team.pool);
    dpt_trainer_close_arenas(t);
    dpt_free(r->taken);
    dpt_free(r->squares);
}

/* One micro-batch; in a team all threads work on the first one's. */
static void compute(void *arg, int thread)
{
    const struct trial *r = arg;
    const struct dpt_trainer *t = &r->t;
    struct dpt_worker *worker = &t->team.workers[thread],
                      *of = t->team.together ? t->team.workers : worker;
    const bool classes = t->data.train.form.targets == 0;
    const struct dpt_batch batch = {
        .count = t->data.train.sampler.micro * t->team.group,
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
        r->status = dpt_trainer_run(&r->t, compute, r, r->err);
}

/* This thread's part of what a step does behind the sum. */
static void update(void *arg, int thread)
{
    struct trial *r = arg;
    struct dpt_trainer *t = &r->t;
    struct dpt_worker *worker = &t->team.workers[thread];
    const struct dpt_update rates = {
        .lr = 1e-6, .step = 1, .scale = 1e-3F, .average = dpt_average_share(t)};
    const size_t chunks = dpt_optimizer_chunks(&t->job->optimizer, &t->model.graph);
    /* Nobody waits for the others' */
    double *squares = r->squares + chunks * DPT_OPTIMIZER_SQUARES * (size_t)thread;
    size_t begin, end;

    dpt_part_in_units(chunks, 1, thread, t->team.threads, &begin, &end);
    if (chunks > 0)
        dpt_optimizer_measure(&t->job->optimizer, &t->model.graph, &rates, begin, end,
                              t->arenas.params, t->team.workers[0].target, t->arenas.slot, squares);
    dpt_thread_part((size_t)t->model.graph.floats, thread, t->team.threads, &begin, &end);
    dpt_optimizer_apply(&t->job->optimizer, &t->model.graph, &rates, begin, end, t->arenas.params,
                        t->team.workers[0].target, t->arenas.slot, squares);
    worker->status = t->backend->refresh(t->model.program, thread, t->arenas.params, &worker->err);
}

/*
 * The typical time of one call, of many one after another; short ones are timed several together,
 * since a look at the clock takes its time, too. Machines have slow spells: the lower quarter is
 * nearer to what a step has.
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

/* The mean time of what each thread does by itself, all of them at once. */
static enum dpt_status time_threads(struct trial *r, void (*work)(void *arg, int thread),
                                    double *mean, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    r->work = work;
    DPT_TRY(dpt_trainer_run(&r->t, time_part, r, err));
    *mean = 0;
    for (int i = 0; i < r->t.team.threads; i++)
        *mean += r->taken[i] / r->t.team.threads;
out:
    return status;
}

enum dpt_status dpt_trial_run(const struct dpt_trainer *t, int threads, struct dpt_trial *trial,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct trial r = {.t = *t, .err = err};

    r.t.team.threads = threads;
    r.t.team.in_flight = 1;
    r.t.team.gradient_workers = t->team.together ? 1 : threads;
    r.t.team.spin = true;
    r.t.team.pool = NULL;
    DPT_TRY(open_trial(&r, err));
    DPT_TRY(dpt_trainer_refresh(&r.t, err));
    DPT_TRY(dpt_trainer_run(&r.t, compute, &r, err)); /* also makes the gradients */
    r.add = t->team.group == 1; /* several at once are never added to others */
    if (t->team.together) {
        trial->micro_batch = time_calls(compute_together, &r, 0, dpt_now);
        DPT_TRY(r.status);
    } else {
        DPT_TRY(time_threads(&r, compute, &trial->micro_batch, err));
    }
    DPT_TRY(time_threads(&r, update, &trial->update, err));
    trial->micro = t->data.train.sampler.micro * t->team.group;
    trial->done = true;
out:
    close_trial(&r);
    return status;
}

#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/base/sort.h"
#include "core/plan/plan.h"
#include "core/train/gradient_reduction.h"
#include "models/model.h"

enum { LEAST = 7, MOST = 1000, MOST_TOGETHER = 4096 };

static const double seconds = 0.3; /* of micro-batches; and as much again of updates, at most */
static const double together_least = 30e-6;

/* What a thread computes with; in a team all use the first one's. */
struct own {
    struct dpt_batch batch;
    float *input, *targets, *gradient;
    int32_t *labels;
    int64_t *sample;
    struct dpt_metric_sums *metric_sums; /* [group] */
    double taken;                        /* of a micro-batch */
    enum dpt_status status;
    struct dpt_error err;
};

struct run {
    const struct dpt_trainer *t;
    int threads;
    void *program;
    struct dpt_pool *pool;
    struct own *own;
    float *params, *slot[DPT_MAX_SLOTS];
    double *squares; /* [threads] times what the optimizer wants */
    bool add;
};

/* Machines have slow spells: the lower quarter is nearer to what a step has. */
static double typical(double *times, int n)
{
    dpt_sort(times, (size_t)n);
    return times[n / 4];
}

static enum dpt_status open_own(const struct run *r, struct own *own, uint64_t number,
                                struct dpt_error *err)
{
    const struct dpt_trainer *t = r->t;
    const struct dpt_dataset *set = t->data.train.set;
    const size_t micro = (size_t)t->data.train.sampler.micro * (size_t)t->team.group;
    const size_t floats = micro * (size_t)dpt_shape_size(&set->shape);
    const int32_t outputs = dpt_graph_outputs(&t->model.graph);
    const size_t targets = micro * (size_t)outputs;

    own->input = dpt_alloc_array(floats, sizeof(float));
    own->labels = dpt_alloc_array(micro, sizeof *own->labels);
    own->sample = dpt_alloc_array(micro, sizeof *own->sample);
    own->targets = dpt_alloc_array(targets, sizeof(float));
    own->metric_sums = dpt_alloc_array((size_t)t->team.group, sizeof *own->metric_sums);
    own->gradient = dpt_alloc_array((size_t)t->model.graph.floats, sizeof(float));
    if (own->input == NULL || own->labels == NULL || own->sample == NULL || own->targets == NULL ||
        own->gradient == NULL || own->metric_sums == NULL)
        return dpt_fail_memory(err, "a trial", (double)t->model.graph.floats * sizeof(float));
    dpt_random_normal(number, DPT_RANDOM_SYNTHETIC, 0, 0, floats, own->input);
    for (size_t i = 0; i < targets; i++)
        own->targets[i] = 1.0F / (float)outputs;
    for (size_t i = 0; i < micro; i++) {
        own->labels[i] = (int32_t)(i % (size_t)outputs);
        own->sample[i] = (int64_t)i;
    }
    own->batch = (struct dpt_batch){
        .count = (int32_t)micro,
        .input = own->input,
        .labels = set->target == DPT_TARGET_CLASS ? own->labels : NULL,
        .targets = set->target == DPT_TARGET_CLASS ? NULL : own->targets,
        .sample = own->sample,
    };
    return DPT_OK;
}

static enum dpt_status open_run(struct run *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = r->t;
    const size_t floats = (size_t)t->model.graph.floats;
    struct dpt_program_spec spec = {.graph = &t->model.graph,
                                    .loss = t->model.loss,
                                    .micro = t->data.train.sampler.micro * t->team.group,
                                    .sub_batch = t->data.train.sampler.micro,
                                    .threads = r->threads,
                                    .training = true};

    r->own = dpt_alloc_array((size_t)r->threads, sizeof *r->own);
    r->params = dpt_alloc_array(floats, sizeof(float));
    r->squares = dpt_alloc_array(
        dpt_optimizer_squares(&t->job->optimizer, &t->model.graph) * (size_t)r->threads + 1,
        sizeof *r->squares);
    if (r->own == NULL || r->params == NULL || r->squares == NULL)
        DPT_TRY(dpt_fail_memory(err, "a trial", (double)floats * sizeof(float)));
    for (int k = 0; k < t->arenas.slots; k++) {
        r->slot[k] = dpt_alloc_array(floats, sizeof(float));
        if (r->slot[k] == NULL)
            DPT_TRY(dpt_fail_memory(err, "a trial", (double)floats * sizeof(float)));
    }
    for (int i = 0; i < (t->team.together ? 1 : r->threads); i++)
        DPT_TRY(open_own(r, &r->own[i], (uint64_t)i, err));
    dpt_model_init(&t->model.graph, (uint64_t)t->job->seed, r->params);
    DPT_TRY(dpt_pool_open(&r->pool, r->threads, true, err));
    spec.team = t->team.together ? r->pool : NULL;
    DPT_TRY(t->backend->open(&spec, &r->program, err));
out:
    return status;
}

static void close_run(struct run *r)
{
    r->t->backend->close(r->program);
    dpt_pool_close(r->pool);
    for (int i = 0; r->own != NULL && i < r->threads; i++) {
        dpt_free(r->own[i].input);
        dpt_free(r->own[i].labels);
        dpt_free(r->own[i].sample);
        dpt_free(r->own[i].targets);
        dpt_free(r->own[i].gradient);
        dpt_free(r->own[i].metric_sums);
    }
    dpt_free(r->own);
    dpt_free(r->params);
    dpt_free(r->squares);
    for (int k = 0; k < DPT_MAX_SLOTS; k++)
        dpt_free(r->slot[k]);
}

static void refresh(void *arg, int thread)
{
    struct run *r = arg;

    r->own[thread].status =
        r->t->backend->refresh(r->program, thread, r->params, &r->own[thread].err);
}

static void compute(struct run *r, int thread)
{
    struct own *own = &r->own[thread], *of = r->t->team.together ? r->own : own;

    if (own->status == DPT_OK)
        own->status = r->t->backend->train(r->program, thread, &of->batch, r->params, of->gradient,
                                           r->add, of->metric_sums, &own->err);
}

static void compute_one(void *arg, int thread)
{
    compute(arg, thread);
}

/* The typical time of one, of many one after another; short ones are timed several together, since
 * a look at the clock takes its time, too. */
static double time_runs(void (*work)(struct run *r, int thread), struct run *r, int thread,
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
    return typical(times, n);
}

/* Each for itself, all at once. */
static void compute_many(void *arg, int thread)
{
    struct run *r = arg;

    r->own[thread].taken = time_runs(compute, r, thread, dpt_thread_seconds);
}

static void compute_together(struct run *r, int thread)
{
    (void)thread;
    dpt_pool_run(r->pool, compute_one, r);
}

/* This thread's part of what a step does behind the sum. */
static void update(struct run *r, int thread)
{
    const struct dpt_trainer *t = r->t;
    const struct dpt_update rates = {.lr = 1e-6, .step = 1, .scale = 1e-3F};
    const size_t wanted = dpt_optimizer_squares(&t->job->optimizer, &t->model.graph);
    double *squares = r->squares + wanted * (size_t)thread; /* nobody waits for the others' */
    size_t begin, end;

    if (wanted > 0)
        dpt_optimizer_measure(&t->job->optimizer, &t->model.graph, &rates, thread, r->threads,
                              r->params, r->own[0].gradient, r->slot, squares);
    dpt_thread_part((size_t)t->model.graph.floats, thread, r->threads, &begin, &end);
    dpt_optimizer_apply(&t->job->optimizer, &t->model.graph, &rates, begin, end, r->params,
                        r->own[0].gradient, r->slot, squares);
    refresh(r, thread);
}

static void update_many(void *arg, int thread)
{
    struct run *r = arg;

    r->own[thread].taken = time_runs(update, r, thread, dpt_thread_seconds);
}

static double mean_taken(const struct run *r)
{
    double sum = 0;

    for (int i = 0; i < r->threads; i++)
        sum += r->own[i].taken;
    return sum / r->threads;
}

static enum dpt_status result(const struct run *r, struct dpt_error *err)
{
    for (int i = 0; i < r->threads; i++)
        if (r->own[i].status != DPT_OK) {
            *err = r->own[i].err;
            return r->own[i].status;
        }
    return DPT_OK;
}

enum dpt_status dpt_trial_run(const struct dpt_trainer *t, int threads, struct dpt_trial *trial,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct run r = {.t = t, .threads = threads};

    DPT_TRY(open_run(&r, err));
    dpt_pool_run(r.pool, refresh, &r);
    DPT_TRY(result(&r, err));
    dpt_pool_run(r.pool, compute_one, &r); /* and makes the gradients */
    r.add = t->team.group == 1;            /* several at once are never added to others */
    if (t->team.together) {
        trial->micro_batch = time_runs(compute_together, &r, 0, dpt_now);
    } else {
        dpt_pool_run(r.pool, compute_many, &r);
        trial->micro_batch = mean_taken(&r);
    }
    DPT_TRY(result(&r, err));
    dpt_pool_run(r.pool, update_many, &r);
    trial->update = mean_taken(&r);
    DPT_TRY(result(&r, err));
    trial->micro = t->data.train.sampler.micro * t->team.group;
    trial->done = true;
out:
    close_run(&r);
    return status;
}

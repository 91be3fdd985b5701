/*
 * steps_device: the jobs of steps_scene.h on the backend `cuda`, with the fake device's libraries,
 * or a real device's with DPT_CUDA_TESTS=device. To be included once in a program, whose main calls
 * cuda_begin first.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_STEPS_DEVICE_H
#define DPT_BACKEND_CUDA_TESTS_STEPS_DEVICE_H

#include <pthread.h>
#include <semaphore.h>

#include "core/backend/cuda/tests/begin.h"
#include "core/backend/cuda/tests/steps_scene.h"
#include "core/comm/sums/tree.h"

/* Expects a call to succeed; needs a local `err`. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != DPT_OK)                                                                      \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)

/* --- a job on the device ---------------------------------------------------------------------- */

struct device {
    void *program, *steps;
    sem_t full[8], empty[8]; /* by staging buffer */
    const struct scene *scene;
    int first, last; /* steps */
    int staging_buffers;
    bool failed;
};

static inline enum dpt_status fill(struct device *d, int step, struct dpt_error *err)
{
    const struct scene *s = d->scene;
    struct dpt_staging_buffer staging_buffer;
    enum dpt_status status =
        cuda->steps->staging_buffer(d->steps, step % d->staging_buffers, &staging_buffer, err);

    if (status == DPT_OK && (staging_buffer.input == NULL) != s->plan.stored)
        return dpt_fail(err, DPT_FAILED, "the samples are in the wrong place");
    for (int32_t m = 0; status == DPT_OK && m < scene_micros(s, step); m++)
        scene_fill(s, step, m, &staging_buffer);
    if (status == DPT_OK)
        status = cuda->steps->send(d->steps, step % d->staging_buffers, scene_micros(s, step), err);
    return status;
}

static inline void *loader(void *arg)
{
    struct device *d = arg;
    const int staging_buffers = d->staging_buffers;
    struct dpt_error err;

    for (int step = d->first; step <= d->last; step++) {
        sem_wait(&d->empty[step % staging_buffers]);
        d->failed |= fill(d, step, &err) != DPT_OK;
        sem_post(&d->full[step % staging_buffers]);
    }
    return NULL;
}

/* Adds up over the ranks, which all have the same samples. */
static inline enum dpt_status reduce(struct device *d, struct dpt_error *err)
{
    const float ranks = (float)d->scene->plan.ranks;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < cuda->steps->buckets(d->steps); i++) {
        const bool last = i == cuda->steps->buckets(d->steps) - 1;
        float *at, *tail;
        size_t n;

        DPT_TRY(cuda->steps->bucket(d->steps, i, &at, &n, &tail, err));
        if ((tail != NULL) != last)
            return dpt_fail(err, DPT_FAILED, "bucket %d has %s tail", i, tail ? "a" : "no");
        for (size_t k = 0; k < n; k++)
            at[k] *= ranks;
        for (int k = 0; last && d->scene->plan.on_device && k < DPT_TENSOR_ALIGN; k++)
            tail[k] *= ranks;
        DPT_TRY(cuda->steps->give(d->steps, i, err));
    }
out:
    return status;
}

static inline enum dpt_status device_steps(struct device *d, int first, int last,
                                           struct dpt_error *err)
{
    const struct scene *s = d->scene;
    const int staging_buffers = d->staging_buffers;
    enum dpt_status status = DPT_OK;
    int released = first; /* the first step whose staging buffer is still read */
    pthread_t thread;

    d->first = first, d->last = last;
    for (int i = 0; i < staging_buffers && s->plan.threaded; i++) {
        sem_init(&d->full[i], 0, 0);
        sem_init(&d->empty[i], 0, 1);
    }
    if (s->plan.threaded)
        pthread_create(&thread, NULL, loader, d);
    for (int step = first; step <= last && status == DPT_OK; step++) {
        if (s->plan.threaded)
            sem_wait(&d->full[step % staging_buffers]);
        else
            DPT_TRY(fill(d, step, err));
        DPT_TRY(cuda->steps->compute(d->steps, step % staging_buffers, scene_micros(s, step),
                                     s->plan.seed, (uint64_t)step, err));
        DPT_TRY(reduce(d, err));
        DPT_TRY(cuda->steps->update(d->steps, scene_rate(step), step, err));
        for (; s->plan.threaded && released <= step - cuda->steps->held(d->steps); released++)
            sem_post(&d->empty[released % staging_buffers]);
    }
out:
    /* The other thread ends in any case. */
    for (int i = 0; i < staging_buffers && s->plan.threaded && status != DPT_OK; i++)
        for (int step = first; step <= last; step++)
            sem_post(&d->empty[i]);
    if (s->plan.threaded)
        pthread_join(thread, NULL);
    if (status == DPT_OK && d->failed)
        return dpt_fail(err, DPT_FAILED, "a room cannot be had");
    return status;
}

static inline enum dpt_status device_open(struct device *d, const struct scene *s,
                                          struct dpt_error *err)
{
    const struct scene_plan *p = &s->plan;
    const struct dpt_program_spec program = {.graph = &s->graph,
                                             .loss = s->loss,
                                             .micro = p->micro,
                                             .threads = 1,
                                             .training = true,
                                             .precision = p->precision,
                                             .reproducible = true};
    struct dpt_steps_spec steps = {.rule = s->rule,
                                   .clip = p->clip,
                                   .skip = p->skip,
                                   .micros = p->micros,
                                   .whole = scene_whole(s),
                                   .staging_buffers = p->staging_buffers,
                                   .at_once = p->at_once,
                                   .targets = p->vectors ? s->outputs : 0,
                                   .weights = p->weighted,
                                   .reduces = p->reduces,
                                   .on_device = p->on_device,
                                   .bucket = p->bucket,
                                   .tree = !p->reduces && p->seed % 2 == 1,
                                   .blocks = dpt_tree_most(0, p->micros, p->micros)};
    enum dpt_status status = DPT_OK;

    *d = (struct device){.scene = s};
    if (p->stored)
        steps.data = (struct dpt_steps_data){.memory = s->data,
                                             .samples = s->samples,
                                             .stride = s->stride,
                                             .u8 = p->u8,
                                             .nhwc = p->nhwc,
                                             .scale = s->scale,
                                             .shift = s->shift};
    DPT_TRY(cuda->open(&program, &d->program, err));
    DPT_TRY(cuda->steps->open(d->program, &steps, &d->steps, err));
    d->staging_buffers = cuda->steps->staging_buffers(d->steps);
out:
    return status;
}

static inline void device_close(struct device *d)
{
    cuda->steps->close(d->steps);
    cuda->close(d->program);
}

/* Runs the whole job, or until a call fails. */
static inline enum dpt_status device_try(const struct scene *s, struct scene_result *r,
                                         struct dpt_error *err)
{
    const bool fp16 = s->plan.precision == DPT_PRECISION_FP16;
    const struct dpt_loss_scale scale = dpt_loss_scale_start(fp16, 1);
    enum dpt_status status = DPT_OK;
    struct device d;

    DPT_TRY(device_open(&d, s, err));
    DPT_TRY(cuda->steps->put(d.steps, r->params, r->slot, &scale, err));
    DPT_TRY(device_steps(&d, 1, s->plan.steps, err));
    DPT_TRY(cuda->steps->read(d.steps, &r->state, err));
    DPT_TRY(cuda->steps->get(d.steps, r->params, r->slot, r->gradient, err));
out:
    device_close(&d);
    return status;
}

static inline void device_run(const struct scene *s, struct scene_result *r)
{
    struct dpt_error err;

    result_open(r, s);
    OK(device_try(s, r, &err));
}

/* --- plans and libraries ---------------------------------------------------------------------- */

static inline struct scene_plan random_plan(uint64_t seed)
{
    struct draw d = {seed};

    return (struct scene_plan){.seed = seed,
                               .net = draw_int(&d, 0, 1),
                               .rule = (int)(seed % 5),
                               .micro = draw_int(&d, 1, 6),
                               .micros = draw_int(&d, 1, 3),
                               .steps = 4,
                               .staging_buffers = draw_int(&d, 2, 3),
                               .ranks = 1,
                               .clip = draw_int(&d, 0, 1) ? 0.5 : 0,
                               .u8 = draw_int(&d, 0, 1),
                               .nhwc = draw_int(&d, 0, 1),
                               .gaps = draw_int(&d, 0, 1),
                               .moved = draw_int(&d, 0, 1),
                               .vectors = draw_int(&d, 0, 2) == 0,
                               .stored = draw_int(&d, 0, 1)};
}

/* Reads the state, and adds its sums to those that were read before. */
static inline void device_read(struct device *d, struct dpt_steps_state *state)
{
    const struct dpt_steps_state before = *state;
    struct dpt_error err;

    OK(cuda->steps->read(d->steps, state, &err));
    state->loss += before.loss;
    state->correct += before.correct;
    state->samples += before.samples;
    state->weight += before.weight;
}

/* Sums that were read in parts are rounded otherwise. */
static inline void same_state(const struct dpt_steps_state *a, const struct dpt_steps_state *b)
{
    struct dpt_steps_state other = *b;

    assert_true(fabs(b->loss - a->loss) <= 1e-12 * fabs(b->loss) || isnan(b->loss));
    assert_true(fabs(b->correct - a->correct) <= 1e-12 * b->correct);
    assert_true(fabs(b->weight - a->weight) <= 1e-12 * b->weight);
    other.loss = a->loss;
    other.correct = a->correct;
    other.weight = a->weight;
    assert_memory_equal(a, &other, sizeof other);
}

#endif

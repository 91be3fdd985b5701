/*
 * steps_scene: a job of some steps, for tests: a net, a data set as it is stored, an optimizer, and
 * the samples of each micro-batch. On the host it is computed by `ref` and plain loops of float
 * (those of core/train/optimizers/). A pure function of its plan; to be included once in a program.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_STEPS_SCENE_H
#define DPT_BACKEND_CUDA_TESTS_STEPS_SCENE_H

#include "core/backend/tests/net.h"

#include "core/backend/backend.h"
#include "core/backend/steps.h"

enum { SAMPLES = 40, GAP = 24 };

struct scene_plan {
    uint64_t seed;
    int net;  /* 0: dense layers, 1: convolutions with dropout, 2: with joins besides */
    int rule; /* 0: sgd, 1: momentum, 2: nesterov, 3: adam, 4: adamw */
    int32_t micro, micros;
    int steps, staging_buffers;
    int64_t samples; /* in the data set; 0: SAMPLES */
    int32_t hidden;  /* 0: 18 */
    int ranks;       /* as many have the same samples, if the gradient is reduced */
    int bad;         /* the step that has a NaN among its samples; 0: none */
    bool weighted;   /* samples have weights, some of them 0 */
    int weightless;  /* the step whose samples all have weight 0; 0: none */
    float gain;      /* the samples are so much larger; 0: 1 */
    double clip;
    bool u8, nhwc, gaps, moved, vectors, skip;
    bool grouped; /* tensors have rates and decays of their own, and some are frozen */
    bool stored;  /* the data set is on the device; else the samples come in staging buffers */
    bool reduces, on_device, threaded;
    int at_once; /* steps in one launch, if the data set is on the device */
    int64_t bucket;
    enum dpt_precision precision;
};

struct scene_options {
    double momentum, beta1, beta2, eps, decay;
    bool decoupled;
};

struct scene {
    struct scene_plan plan;
    struct dpt_graph graph;
    struct dpt_loss loss;
    unsigned char *data; /* as it is stored */
    int64_t stride, samples;
    float scale[DPT_STEPS_CHANNELS], shift[DPT_STEPS_CHANNELS];
    int32_t labels[SAMPLES]; /* by the sample's number modulo SAMPLES, as targets */
    float *targets;
    float *params;
    int32_t outputs;
    struct dpt_rule rule;
    struct scene_options options; /* the rule's */
};

/* The results. */
struct scene_result {
    float *params, *slot[2], *gradient;
    struct dpt_steps_state state;
};

static inline void scene_net(struct scene *s)
{
    const struct dpt_window window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    const struct dpt_window half = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    struct dpt_graph *g = &s->graph;
    int32_t at = net_input(g, 3, 4, 4);

    if (s->plan.net == 1) {
        at = net_simple(g, net_conv(g, at, 6, &window, true), DPT_OP_RELU, 0);
        at = net_pool(g, at, DPT_OP_MAXPOOL, &half);
        at = net_simple(g, net_conv(g, at, 10, &window, false), DPT_OP_RELU, 0);
    }
    if (s->plan.net == 2) {
        struct draw d = {s->plan.seed};

        at = net_branches(g, at, 10, &d);
        at = net_simple(g, net_simple(g, at, DPT_OP_BATCHNORM, 0.1f), DPT_OP_RELU, 0);
    }
    at = net_simple(g, at, DPT_OP_FLATTEN, 0);
    at = net_simple(g, net_dense(g, at, s->plan.hidden > 0 ? s->plan.hidden : 18, true),
                    DPT_OP_RELU, 0);
    if (s->plan.net == 1)
        at = net_simple(g, at, DPT_OP_DROPOUT, 0.25f);
    at = net_dense(g, at, 5, true);
    s->outputs = 5;
    for (int32_t t = 0; t < g->n_tensors; t++)
        g->tensors[t].decay = g->tensors[t].n_dims > 1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == DPT_OP_BATCHNORM)
            g->nodes[i].attribute[DPT_BATCHNORM_DECAY] = 0.5f + 0.1f * (float)(i % 5);
    }
}

static inline void scene_groups(struct scene *s)
{
    struct draw d = {s->plan.seed + 7000};

    for (int32_t k = 0; k < s->graph.n_tensors; k++) {
        struct dpt_tensor *t = &s->graph.tensors[k];

        t->lr_scale = draw_int(&d, 0, 2) * 0.75;
        t->decays_alone = draw_int(&d, 0, 1);
        t->weight_decay = draw_int(&d, 0, 2) * 0.1;
    }
    net_freeze(&s->graph, s->plan.seed);
}

static inline void scene_scalars(const void *options, double lr, int64_t update,
                                 struct dpt_scalars *f)
{
    const struct scene_options *o = options;

    f->lr = (float)lr;
    f->factor[0] = (float)o->momentum;
    if (o->momentum > 0)
        return;
    f->rate[0] = (float)(lr / (1 - pow(o->beta1, (double)update)));
    f->rate[1] = (float)(1 / sqrt(1 - pow(o->beta2, (double)update)));
    f->factor[0] = (float)(1 - o->beta1);
    f->factor[1] = (float)o->beta2;
    f->factor[2] = (float)(1 - o->beta2);
    f->factor[3] = (float)o->eps;
}

static inline void scene_optimizer(struct scene *s)
{
    static const enum dpt_rule_kind kinds[] = {DPT_RULE_SGD, DPT_RULE_MOMENTUM, DPT_RULE_NESTEROV,
                                               DPT_RULE_ADAM, DPT_RULE_ADAM};
    const int rule = s->plan.rule;

    s->options = (struct scene_options){.momentum = rule == 1 || rule == 2 ? 0.9 : 0,
                                        .beta1 = 0.9,
                                        .beta2 = 0.99,
                                        .eps = 1e-3,
                                        .decay = 0.01,
                                        .decoupled = rule == 4};
    s->rule = (struct dpt_rule){.kind = kinds[rule],
                                .slots = rule < 3 ? 1 : 2,
                                .options = &s->options,
                                .scalars = scene_scalars,
                                .decay = s->options.decay,
                                .decoupled = s->options.decoupled};
}

static inline size_t scene_floats(const struct scene *s)
{
    return (size_t)dpt_shape_size(&s->graph.nodes[0].out);
}

static inline void scene_open(struct scene *s, const struct scene_plan *plan)
{
    struct draw d = {plan->seed};
    size_t size;

    *s = (struct scene){.plan = *plan};
    scene_net(s);
    if (plan->grouped)
        scene_groups(s);
    scene_optimizer(s);
    s->loss.kind = plan->vectors ? DPT_LOSS_MSE : DPT_LOSS_CROSS_ENTROPY;
    s->params = net_params(&s->graph, &d);
    size = scene_floats(s) * (plan->u8 ? 1 : sizeof(float));
    s->stride = (int64_t)(size + (plan->gaps ? GAP : 0));
    s->samples = plan->samples > 0 ? plan->samples : SAMPLES;
    s->data = dpt_alloc((size_t)s->stride * (size_t)s->samples);
    s->targets = dpt_alloc_array((size_t)(SAMPLES * s->outputs), sizeof(float));
    assert_true(s->data != NULL && s->targets != NULL);
    for (int64_t i = 0; i < s->stride * s->samples; i++)
        s->data[i] = (unsigned char)draw_bits(&d);
    for (int64_t i = 0; !plan->u8 && i < s->samples; i++)
        for (size_t k = 0; k < scene_floats(s); k++) {
            const float x = (float)draw_normal(&d);

            memcpy(s->data + i * s->stride + k * sizeof x, &x, sizeof x);
        }
    for (int c = 0; c < 3; c++) {
        s->scale[c] = (plan->u8 ? 0.015f : 1.0f) * (float)(1 + 0.2 * c) *
                      (plan->gain > 0 ? plan->gain : 1.0f);
        s->shift[c] = plan->u8 ? -1.5f : 0.1f * (float)c;
    }
    for (int i = 0; i < SAMPLES; i++)
        s->labels[i] = draw_int(&d, 0, s->outputs - 1);
    for (int i = 0; i < SAMPLES * s->outputs; i++)
        s->targets[i] = (float)draw_normal(&d);
}

static inline void scene_close(struct scene *s)
{
    dpt_graph_release(&s->graph);
    dpt_free(s->params);
    dpt_free(s->data);
    dpt_free(s->targets);
}

/* --- who is in which micro-batch -------------------------------------------------------------- */

/* The last step has fewer micro-batches, and the last of these fewer samples. */
static inline int32_t scene_micros(const struct scene *s, int step)
{
    return step == s->plan.steps && s->plan.micros > 1 ? s->plan.micros - 1 : s->plan.micros;
}

static inline int32_t scene_count(const struct scene *s, int step, int32_t m)
{
    if (step == s->plan.steps && m == scene_micros(s, step) - 1 && s->plan.micro > 2)
        return s->plan.micro - 2;
    return s->plan.micro;
}

/* The number of samples of a whole step: at times so many that all steps are tiny. */
static inline int64_t scene_whole(const struct scene *s)
{
    const int64_t all = (int64_t)s->plan.micros * s->plan.micro * s->plan.ranks;

    return s->plan.seed % 3 == 1 ? 5 * all : all;
}

static inline int64_t scene_sample(const struct scene *s, int step, int32_t m, int32_t row)
{
    return (int64_t)(dpt_mix64(s->plan.seed * 31 + (uint64_t)(step * 1000 + m * 100 + row)) %
                     (uint64_t)s->samples);
}

static inline struct dpt_steps_move scene_move(const struct scene *s, int step, int64_t sample)
{
    const uint64_t bits = dpt_mix64(s->plan.seed + (uint64_t)step * 77 + (uint64_t)sample);

    if (!s->plan.moved)
        return (struct dpt_steps_move){0};
    return (struct dpt_steps_move){(int16_t)(bits % 3) - 1, (int16_t)(bits / 3 % 3) - 1,
                                   (int32_t)(bits >> 40 & 1)};
}

static inline float scene_pixel(const struct scene *s, int64_t sample, int32_t c, int32_t y,
                                int32_t x)
{
    const struct dpt_shape *shape = &s->graph.nodes[0].out;
    const unsigned char *at = s->data + sample * s->stride;
    const int32_t i =
        s->plan.nhwc ? (y * shape->w + x) * shape->c + c : (c * shape->h + y) * shape->w + x;
    float value;

    if (y < 0 || y >= shape->h || x < 0 || x >= shape->w)
        return s->shift[c];
    if (s->plan.u8)
        value = at[i];
    else
        memcpy(&value, at + (size_t)i * sizeof value, sizeof value);
    return value * s->scale[c] + s->shift[c];
}

static inline float scene_weight(const struct scene *s, int step, int64_t sample)
{
    static const float weights[] = {0, 1, 0.25f, 2.7f, 0, 1.3f, 11};

    return step == s->plan.weightless ? 0 : weights[(uint64_t)sample % 7];
}

/* A row as the program is given it. */
static inline void scene_row(const struct scene *s, int step, int64_t sample, float *row)
{
    const struct dpt_shape *shape = &s->graph.nodes[0].out;
    const struct dpt_steps_move move = scene_move(s, step, sample);

    for (int32_t c = 0; c < shape->c; c++)
        for (int32_t y = 0; y < shape->h; y++)
            for (int32_t x = 0; x < shape->w; x++)
                *row++ = scene_pixel(s, sample, c, y + move.top,
                                     (move.flip ? shape->w - 1 - x : x) + move.left);
}

/* Micro-batch m of a step; arrays that are NULL are not wanted. */
static inline void scene_fill(const struct scene *s, int step, int32_t m,
                              const struct dpt_staging_buffer *staging_buffer)
{
    const size_t size = scene_floats(s), first = (size_t)m * (size_t)s->plan.micro;
    const int32_t count = scene_count(s, step, m);

    for (int32_t i = 0; i < s->plan.micro; i++) {
        const size_t at = first + (size_t)i;
        const int64_t sample = scene_sample(s, step, m, i);

        if (i >= count) {
            if (staging_buffer->input != NULL)
                memset(staging_buffer->input + at * size, 0, size * sizeof(float));
            continue;
        }
        if (staging_buffer->input != NULL)
            scene_row(s, step, sample, staging_buffer->input + at * size);
        if (staging_buffer->input != NULL && step == s->plan.bad && m == 0 && i == 1)
            staging_buffer->input[at * size] = NAN;
        if (staging_buffer->move != NULL)
            staging_buffer->move[at] = scene_move(s, step, sample);
        if (staging_buffer->labels != NULL)
            staging_buffer->labels[at] = s->labels[sample % SAMPLES];
        if (staging_buffer->targets != NULL)
            memcpy(staging_buffer->targets + at * (size_t)s->outputs,
                   s->targets + sample % SAMPLES * s->outputs, (size_t)s->outputs * sizeof(float));
        if (staging_buffer->weights != NULL)
            staging_buffer->weights[at] = scene_weight(s, step, sample);
        staging_buffer->sample[at] = sample;
    }
    staging_buffer->count[m] = count;
}

/* --- on the host ------------------------------------------------------------------------------ */

static inline void result_open(struct scene_result *r, const struct scene *s)
{
    const size_t n = (size_t)s->graph.arena;

    *r = (struct scene_result){.params = dpt_alloc_array(n, 4),
                               .gradient = dpt_alloc_array(n + DPT_TENSOR_ALIGN, 4)};
    for (int k = 0; k < 2; k++)
        r->slot[k] = dpt_alloc_array(n, 4);
    memcpy(r->params, s->params, n * 4);
}

static inline void result_close(struct scene_result *r)
{
    dpt_free(r->params), dpt_free(r->gradient);
    dpt_free(r->slot[0]), dpt_free(r->slot[1]);
}

static inline double scene_rate(int step)
{
    return 0.05 / (double)step;
}

/* One element's update number `step`. */
static inline void host_element(const struct scene *s, double rate, int step, float g, float decay,
                                float *p, float *m, float *v)
{
    const struct scene_options *o = &s->options;
    const float lr = (float)rate, momentum = (float)o->momentum;
    const float l2 = o->decoupled ? 0 : decay;
    const float kept = o->decoupled ? *p * (float)(1 - rate * (double)decay) : *p;
    const double correct1 = 1 - pow(o->beta1, step), correct2 = 1 - pow(o->beta2, step);

    g += l2 * kept;
    if (s->rule.kind == DPT_RULE_ADAM) {
        *m += (g - *m) * (float)(1 - o->beta1);
        *v = *v * (float)o->beta2 + g * g * (float)(1 - o->beta2);
        *p = kept - (float)(rate / correct1) *
                        (*m / (sqrtf(*v) * (float)(1 / sqrt(correct2)) + (float)o->eps));
        return;
    }
    if (s->rule.kind == DPT_RULE_SGD) {
        *p -= lr * g;
        return;
    }
    *m = momentum * *m + g;
    *p -= lr * (s->rule.kind == DPT_RULE_NESTEROV ? g + momentum * *m : *m);
}

static inline void host_update(const struct scene *s, int step, float scale, struct scene_result *r)
{
    for (int32_t k = 0; k < s->graph.n_tensors; k++) {
        const struct dpt_tensor *t = &s->graph.tensors[k];
        const double decay = t->decays_alone ? t->weight_decay : s->options.decay;
        const double rate = scene_rate(step) * (t->lr_scale != 0 ? t->lr_scale : 1);

        for (int64_t i = t->offset; !t->state && !t->frozen && i < t->offset + t->count; i++)
            host_element(s, rate, step, r->gradient[i] * scale, t->decay ? (float)decay : 0,
                         &r->params[i], &r->slot[0][i], &r->slot[1][i]);
    }
}

/* This rank's gradient and metric sums of a step. */
static inline void host_gradient(const struct scene *s, void *program, int step,
                                 struct scene_result *r, struct dpt_metric_sums *metric_sums)
{
    const size_t rows = (size_t)s->plan.micros * (size_t)s->plan.micro;
    int32_t counts[16];
    struct dpt_error err;
    struct dpt_staging_buffer staging_buffer = {.input = dpt_alloc_array(rows * scene_floats(s), 4),
                                                .labels = dpt_alloc_array(rows, 4),
                                                .targets =
                                                    dpt_alloc_array(rows * (size_t)s->outputs, 4),
                                                .weights = dpt_alloc_array(rows, 4),
                                                .sample = dpt_alloc_array(rows, 8),
                                                .count = counts};

    for (int32_t m = 0; m < scene_micros(s, step); m++) {
        const size_t first = (size_t)m * (size_t)s->plan.micro;
        struct dpt_batch batch = {.input = staging_buffer.input + first * scene_floats(s),
                                  .sample = staging_buffer.sample + first,
                                  .seed = s->plan.seed,
                                  .step = (uint64_t)step};

        scene_fill(s, step, m, &staging_buffer);
        batch.count = counts[m];
        batch.weights = s->plan.weighted ? staging_buffer.weights + first : NULL;
        if (s->plan.vectors)
            batch.targets = staging_buffer.targets + first * (size_t)s->outputs;
        else
            batch.labels = staging_buffer.labels + first;
        assert_int_equal(dpt_backend_ref.train(program, 0, &batch, r->params, r->gradient, m > 0,
                                               metric_sums, &err),
                         DPT_OK);
    }
    dpt_free(staging_buffer.input), dpt_free(staging_buffer.labels),
        dpt_free(staging_buffer.targets), dpt_free(staging_buffer.sample);
    dpt_free(staging_buffer.weights);
}

/* The whole job, as core/train does it. */
static inline void host_run(const struct scene *s, struct scene_result *r)
{
    const struct dpt_program_spec spec = {.graph = &s->graph,
                                          .loss = s->loss,
                                          .micro = s->plan.micro,
                                          .threads = 1,
                                          .training = true};
    const size_t n = (size_t)s->graph.floats;
    bool stopped = false;
    struct dpt_error err;
    void *program;

    result_open(r, s);
    assert_int_equal(dpt_backend_ref.open(&spec, &program, &err), DPT_OK);
    for (int step = 1; step <= s->plan.steps && !stopped; step++) {
        struct dpt_metric_sums metric_sums = {0};
        double sum_of_squares = 0, scale, norm;

        assert_int_equal(dpt_backend_ref.refresh(program, 0, r->params, &err), DPT_OK);
        host_gradient(s, program, step, r, &metric_sums);
        metric_sums.samples *= s->plan.ranks, metric_sums.correct *= s->plan.ranks;
        metric_sums.weight *= s->plan.ranks;
        for (size_t i = 0; i < n; i++) {
            r->gradient[i] *= (float)s->plan.ranks;
            sum_of_squares += (double)r->gradient[i] * (double)r->gradient[i];
        }
        for (int64_t i = s->graph.floats; i < s->graph.arena; i++)
            r->gradient[i] *= (float)s->plan.ranks;
        if (metric_sums.weight == 0) {
            r->state.weightless++;
            r->state.norm = 0;
            continue;
        }
        scale = 1 / metric_sums.weight;
        norm = sqrt(sum_of_squares) * scale;
        r->state.norm = norm;
        if (!isfinite(norm) || !isfinite(metric_sums.loss)) {
            r->state.skipped += s->plan.skip;
            r->state.withheld = stopped = !s->plan.skip;
            r->state.withheld_update = stopped ? step : 0;
            continue;
        }
        if (s->plan.clip > 0 && norm > s->plan.clip)
            scale *= s->plan.clip / norm;
        host_update(s, step, (float)scale, r);
        dpt_graph_update_state(
            &s->graph,
            &(struct dpt_step_samples){metric_sums.samples, scene_whole(s), s->plan.micro},
            r->gradient, r->params);
        r->state.loss += metric_sums.loss * s->plan.ranks;
        r->state.samples += metric_sums.samples;
        r->state.correct += metric_sums.correct;
        r->state.weight += metric_sums.weight;
    }
    dpt_backend_ref.close(program);
}

#endif

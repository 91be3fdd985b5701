/*
 * scene: a random graph with parameters and a micro-batch, for comparing backends. A pure function
 * of its seed; scene_release frees it.
 */
#ifndef DPT_BACKEND_TESTS_SCENE_H
#define DPT_BACKEND_TESTS_SCENE_H

#include "core/backend/tests/net.h"

#include "core/backend/backend.h"

/* A graph and all that a micro-batch of it needs. */
struct scene {
    struct dpt_graph graph;
    struct dpt_program_spec spec;
    float *params;
    struct owned_batch batch;
    size_t outputs;
    char text[512]; /* a description of the graph, for messages */
};

static inline void note(struct scene *s, const char *format, ...)
{
    const size_t used = strlen(s->text);
    va_list args;

    va_start(args, format);
    vsnprintf(s->text + used, sizeof s->text - used, format, args);
    va_end(args);
}

static inline int32_t add_conv(struct scene *s, int32_t at, struct draw *d)
{
    const struct dpt_shape *in = &s->graph.nodes[at].out;
    struct dpt_window w = draw_window(d, false, in->h, in->w);
    const int32_t groups[] = {1, 1, 1, in->c, 2};

    w.groups = groups[draw_int(d, 0, 4)];
    if (in->c % w.groups != 0)
        w.groups = 1;
    note(s, " conv(g%d %dx%d s%d,%d d%d,%d p%d,%d,%d,%d)", w.groups, w.kernel[0], w.kernel[1],
         w.stride[0], w.stride[1], w.dilation[0], w.dilation[1], w.before[0], w.before[1],
         w.after[0], w.after[1]);
    return net_conv(&s->graph, at, w.groups * draw_int(d, 1, 36 / w.groups + 1), &w,
                    draw_int(d, 0, 3) > 0);
}

static inline int32_t add_pool(struct scene *s, int32_t at, struct draw *d)
{
    const struct dpt_shape *in = &s->graph.nodes[at].out;
    struct dpt_window w = draw_window(d, true, in->h, in->w);
    const bool max = draw_int(d, 0, 2) > 0, resize = draw_int(d, 0, 3) == 0;

    if (resize) {
        const enum dpt_op up = w.kernel[0] % 2 ? DPT_OP_UPSAMPLE : DPT_OP_BILINEAR;
        const enum dpt_op op = max ? up : DPT_OP_ADAPTIVE_AVGPOOL;

        note(s, " %s", dpt_operations[op]->name);
        return net_resize(&s->graph, at, op, d);
    }
    if (draw_int(d, 0, 1) && in->h >= 2 && in->w >= 2)
        w = (struct dpt_window){{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    note(s, " %spool(%dx%d s%d,%d p%d,%d,%d,%d)", max ? "max" : "avg", w.kernel[0], w.kernel[1],
         w.stride[0], w.stride[1], w.before[0], w.before[1], w.after[0], w.after[1]);
    return net_pool(&s->graph, at, max ? DPT_OP_MAXPOOL : DPT_OP_AVGPOOL, &w);
}

static inline int32_t add_simple(struct scene *s, int32_t at, struct draw *d)
{
    enum dpt_op ops[DPT_OP_COUNT];
    const int n = net_operations(1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_NORM, ops);
    enum dpt_op op = draw_int(d, 0, 2) == 0 ? DPT_OP_RELU : ops[draw_int(d, 0, n - 1)];

    if (op == DPT_OP_GROUPNORM && s->graph.nodes[at].out.flat) /* groups of channels */
        op = DPT_OP_LAYERNORM;
    note(s, " %s", dpt_operations[op]->name);
    return net_simple(&s->graph, at, op, 0.4f);
}

static inline int32_t add_layer(struct scene *s, int32_t at, struct draw *d)
{
    const bool flat = s->graph.nodes[at].out.flat;
    const int kind = draw_int(d, 0, flat ? 3 : 6);

    if (kind <= 1)
        return add_simple(s, at, d);
    if (flat) {
        note(s, " dense");
        return net_dense(&s->graph, at, draw_int(d, 1, 40), draw_int(d, 0, 3) > 0);
    }
    if (kind <= 4)
        return add_conv(s, at, d);
    return add_pool(s, at, d);
}

/* Any loss but L1, whose slope jumps if an output is its target, so that rounding may change it. */
static inline enum dpt_loss_kind draw_loss(struct draw *d)
{
    const enum dpt_loss_kind kind = (enum dpt_loss_kind)draw_int(d, 0, DPT_LOSSES - 1);

    return kind == DPT_LOSS_L1 ? DPT_LOSS_HUBER : kind;
}

/* Planes through up to five layers; then often a vector through up to three; and an output of a few
 * numbers. */
static inline void scene_init(struct scene *s, uint64_t seed)
{
    struct draw d = {seed};
    const bool planes = draw_int(&d, 0, 4) > 0;
    int32_t at, count;

    *s = (struct scene){0};
    at = planes
             ? net_input(&s->graph, draw_int(&d, 1, 20), draw_int(&d, 2, 12), draw_int(&d, 2, 12))
             : net_input(&s->graph, draw_int(&d, 1, 60), 1, 1);
    note(s, "seed %d: %dx%dx%d", (int)seed, s->graph.nodes[at].out.c, s->graph.nodes[at].out.h,
         s->graph.nodes[at].out.w);
    for (int i = draw_int(&d, 1, 5); planes && i > 0; i--)
        at = add_layer(s, at, &d);
    if (planes && draw_int(&d, 0, 4) > 0) {
        const enum dpt_op op = draw_int(&d, 0, 2) ? DPT_OP_FLATTEN : DPT_OP_GLOBAL_AVGPOOL;

        note(s, " %s", dpt_operations[op]->name);
        at = net_simple(&s->graph, at, op, 0);
    }
    for (int i = draw_int(&d, 0, 3); s->graph.nodes[at].out.flat && i > 0; i--)
        at = add_layer(s, at, &d);
    if (s->graph.nodes[at].out.flat)
        at = net_dense(&s->graph, at, draw_int(&d, 1, 12), true);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    s->spec = (struct dpt_program_spec){
        .graph = &s->graph,
        .loss = {draw_loss(&d), 0.1f},
        .micro = draw_int(&d, 1, 9),
        .threads = 1,
        .training = true,
    };
    count = draw_int(&d, 0, 1) ? s->spec.micro : draw_int(&d, 1, s->spec.micro);
    note(s, " micro %d of %d", count, s->spec.micro);
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, count, !dpt_loss_has_classes(s->spec.loss.kind),
               &d);
}

static inline void scene_release(struct scene *s)
{
    dpt_free(s->params);
    batch_release(&s->batch);
    dpt_graph_release(&s->graph);
}

/* ref computes in fp32 alone, whatever precision the scene has for the other backend. */
static inline void *open_program(const struct dpt_backend *backend, const struct scene *s)
{
    struct dpt_program_spec spec = s->spec;
    struct dpt_error err;
    void *program;

    if (backend == &dpt_backend_ref)
        spec.precision = DPT_PRECISION_FP32;
    if (backend->open(&spec, &program, &err) != DPT_OK)
        fail_msg("%s: %s: %s", s->text, backend->name, err.text);
    for (int worker = 0; worker < s->spec.threads; worker++)
        assert_int_equal(backend->refresh(program, worker, s->params, &err), DPT_OK);
    return program;
}

static inline float *new_arena(const struct scene *s)
{
    float *arena = dpt_alloc_array((size_t)s->graph.arena, sizeof *arena);

    assert_non_null(arena);
    return arena;
}

static inline void train(const struct dpt_backend *backend, const struct scene *s, void *program,
                         int worker, bool add, float *gradient, struct dpt_metric_sums *metric_sums)
{
    struct dpt_error err;

    if (backend->train(program, worker, &s->batch.batch, s->params, gradient, add, metric_sums,
                       &err) != DPT_OK)
        fail_msg("%s: %s: %s", s->text, backend->name, err.text);
}

/* Relative to the larger norm; `floor` stands for what rounding leaves when everything cancels. */
static inline double distance(const float *a, const float *b, size_t n, double floor)
{
    double difference = 0, norm = floor * floor;

    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / norm);
}

#endif

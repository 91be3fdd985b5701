/*
 * net: small random graphs, parameters and batches for this folder's tests. Everything is a pure
 * function of a seed. Memory is the caller's: net_release, batch_release.
 */
#ifndef DPT_BACKEND_TESTS_NET_H
#define DPT_BACKEND_TESTS_NET_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/backend/backend.h"
#include "core/backend/operation.h"
#include "core/base/memory.h"
#include "core/base/rng.h"

/* Returns n, so that every n-th random case is tried: 1 for all of them; 7 under the sanitizers,
 * which look for other errors than wrong numbers and slow a case down several times; 4 on a GPU,
 * where plans are searched for, built and timed; 1 everywhere with DPT_HEAVY=1. */
static inline int net_every(void)
{
    const char *heavy = getenv("DPT_HEAVY"), *where = getenv("DPT_CUDA_TESTS");
#if defined(__SANITIZE_ADDRESS__)
    const int usual = 7;
#else
    const int usual = 1;
#endif

    if (heavy != NULL && *heavy == '1')
        return 1;
    return where != NULL && strcmp(where, "device") == 0 && usual < 4 ? 4 : usual;
}

struct draw {
    uint64_t state;
};

static inline uint64_t draw_bits(struct draw *d)
{
    d->state += UINT64_C(0x9E3779B97F4A7C15);
    return dpt_mix64(d->state);
}

/* A whole number of [low, high]. */
static inline int32_t draw_int(struct draw *d, int32_t low, int32_t high)
{
    return low + (int32_t)(draw_bits(d) % (uint64_t)(high - low + 1));
}

static inline double draw_uniform(struct draw *d)
{
    return (double)(draw_bits(d) >> 11) * 0x1p-53;
}

static inline double draw_normal(struct draw *d)
{
    const double u = 1 - draw_uniform(d), v = draw_uniform(d);

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* n numbers, to be freed: drawn, or `else_all` each without a draw. */
static inline float *draw_array(int64_t n, struct draw *d, float else_all)
{
    float *x = dpt_alloc_array((size_t)n, sizeof *x);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = d != NULL ? (float)draw_normal(d) : else_all;
    return x;
}

/* Each adds one node after `from` and returns its number. */

static inline int32_t net_node(struct dpt_graph *g, const struct dpt_graph_node *node)
{
    struct dpt_error err;
    int32_t index;

    assert_int_equal(dpt_graph_add(g, node, &index, &err), DPT_OK);
    return index;
}

static inline int32_t net_input(struct dpt_graph *g, int32_t c, int32_t h, int32_t w)
{
    const struct dpt_shape shape = {c, h, w, h == 1 && w == 1};
    const struct dpt_graph_node node = {.op = DPT_OP_INPUT,
                                        .name = "input",
                                        .in = shape,
                                        .out = shape,
                                        .weight = -1,
                                        .bias = -1,
                                        .mean = -1,
                                        .variance = -1};

    return net_node(g, &node);
}

static inline struct dpt_graph_node net_after(const struct dpt_graph *g, int32_t from,
                                              enum dpt_op op, const char *name)
{
    struct dpt_graph_node node = {.op = op,
                                  .n_inputs = 1,
                                  .inputs = {from},
                                  .in = g->nodes[from].out,
                                  .out = g->nodes[from].out,
                                  .weight = -1,
                                  .bias = -1,
                                  .mean = -1,
                                  .variance = -1};

    snprintf(node.name, sizeof node.name, "%s%d", name, g->n_nodes);
    if (op == DPT_OP_GROUPNORM)
        node.window.groups = node.in.c % 3 == 0 ? 3 : node.in.c % 2 == 0 ? 2 : 1;
    return node;
}

/* Gives the node its shape and its tensors, as its operation's row has them, and adds it. */
static inline int32_t net_add(struct dpt_graph *g, struct dpt_graph_node *node, bool bias)
{
    struct dpt_tensor tensors[DPT_MAX_TENSORS];
    struct dpt_error err;
    int n;

    dpt_operation_of(node)->shape(node);
    n = dpt_operation_tensors(node, tensors);
    for (int k = 0; k < n && (k != 1 || bias); k++) {
        char name[DPT_NAME];

        snprintf(name, sizeof name, "%.32s/%.16s", node->name, tensors[k].name);
        memcpy(tensors[k].name, name, sizeof name);
        assert_int_equal(dpt_graph_add_tensor(g, &tensors[k], dpt_operation_number(node, k), &err),
                         DPT_OK);
    }
    return net_node(g, node);
}

static inline int32_t net_conv(struct dpt_graph *g, int32_t from, int32_t channels,
                               const struct dpt_window *w, bool bias)
{
    struct dpt_graph_node node = net_after(g, from, DPT_OP_CONV, "conv");

    node.window = *w;
    node.out.c = channels;
    return net_add(g, &node, bias);
}

static inline int32_t net_dense(struct dpt_graph *g, int32_t from, int32_t outputs, bool bias)
{
    struct dpt_graph_node node = net_after(g, from, DPT_OP_DENSE, "dense");

    node.out.c = outputs;
    return net_add(g, &node, bias);
}

static inline int32_t net_pool(struct dpt_graph *g, int32_t from, enum dpt_op op,
                               const struct dpt_window *w)
{
    struct dpt_graph_node node = net_after(g, from, op, "pool");

    node.window = *w;
    return net_add(g, &node, false);
}

/* Adds a join of two nodes whose shapes agree. */
static inline int32_t net_join(struct dpt_graph *g, int32_t a, int32_t b, enum dpt_op op)
{
    struct dpt_graph_node node = net_after(g, a, op, "join");

    node.n_inputs = 2;
    node.inputs[1] = b;
    node.other = g->nodes[b].out;
    return net_add(g, &node, false);
}

/* Adds a node that needs neither a window nor a number of outputs; attribute: its first one. */
static inline int32_t net_simple(struct dpt_graph *g, int32_t from, enum dpt_op op, float attribute)
{
    struct dpt_graph_node node = net_after(g, from, op, "simple");

    node.attribute[0] = attribute;
    return net_add(g, &node, true);
}

static inline bool net_has_window(enum dpt_op op)
{
    return dpt_operations[op]->kind == DPT_CLASS_POOL && op != DPT_OP_GLOBAL_AVGPOOL;
}

/* Adds an adaptive pool to any size, or upsamples a small input. */
static inline int32_t net_resize(struct dpt_graph *g, int32_t from, enum dpt_op op, struct draw *d)
{
    struct dpt_graph_node node = net_after(g, from, op, "resize");

    for (int axis = 0; axis < 2; axis++)
        node.window.kernel[axis] = draw_int(d, 1, node.in.h * node.in.w > 100 ? 1 : 3);
    node.out.h = draw_int(d, 1, node.in.h + 3);
    node.out.w = draw_int(d, 1, node.in.w + 3);
    return net_add(g, &node, false);
}

/* A window that fits an input of h x w; pools: no dilation, padding below the kernel. */
static inline struct dpt_window draw_window(struct draw *d, bool pool, int32_t h, int32_t w)
{
    const int32_t inputs[2] = {h, w};
    struct dpt_window window = {.groups = 1};

    do {
        for (int axis = 0; axis < 2; axis++) {
            const int32_t kernel = draw_int(d, 1, 4);

            window.kernel[axis] = kernel;
            window.stride[axis] = draw_int(d, 1, 3);
            window.dilation[axis] = pool ? 1 : draw_int(d, 1, 3);
            window.before[axis] = draw_int(d, 0, pool ? kernel - 1 : kernel + 1);
            window.after[axis] = draw_int(d, 0, pool ? kernel - 1 : kernel + 1);
        }
    } while (dpt_window_extent(&window, 0, inputs[0]) < 1 ||
             dpt_window_extent(&window, 1, inputs[1]) < 1);
    return window;
}

/* The operations of these kinds (bits 1 << enum dpt_operation_class), but for NET_LEFT_OUT, which a
 * backend lacks; how many. */
static inline int net_operations(unsigned kinds, enum dpt_op ops[DPT_OP_COUNT])
{
    int n = 0;

    for (int op = 0; op < DPT_OP_COUNT; op++) {
#ifdef NET_LEFT_OUT
        if (op == NET_LEFT_OUT)
            continue;
#endif
        if (kinds & 1u << dpt_operations[op]->kind)
            ops[n++] = (enum dpt_op)op;
    }
    return n;
}

/* A node, `at` itself perhaps, whose value this join takes beside that of `at`. */
static inline int32_t net_partner(const struct dpt_graph *g, int32_t at, enum dpt_op join,
                                  struct draw *d)
{
    const struct dpt_shape *in = &g->nodes[at].out;
    int32_t chosen = at, fitting = 0;

    for (int32_t k = 0; k < g->n_nodes; k++) {
        const struct dpt_shape *s = &g->nodes[k].out;

        if (s->h == in->h && s->w == in->w && s->flat == in->flat &&
            (join == DPT_OP_CONCAT || s->c == in->c) && draw_int(d, 0, fitting++) == 0)
            chosen = k;
    }
    return chosen;
}

/* A random node of any operation but the input. */
static inline int32_t net_any(struct dpt_graph *g, int32_t from, enum dpt_op op, struct draw *d)
{
    const struct dpt_shape in = g->nodes[from].out;
    struct dpt_window w;

    if (op == DPT_OP_CONV) {
        const bool even = in.c % 2 == 0;

        w = draw_window(d, false, in.h, in.w);
        w.groups = draw_int(d, 0, 2) == 0 ? in.c : even ? draw_int(d, 1, 2) : 1;
        return net_conv(g, from, w.groups * draw_int(d, 1, 3), &w, draw_int(d, 0, 1));
    }
    if (op == DPT_OP_DENSE)
        return net_dense(g, from, draw_int(d, 1, 20), draw_int(d, 0, 1));
    if (op == DPT_OP_ADAPTIVE_AVGPOOL || op == DPT_OP_UPSAMPLE || op == DPT_OP_BILINEAR)
        return net_resize(g, from, op, d);
    if (dpt_operations[op]->kind == DPT_CLASS_JOIN)
        return net_join(g, from, net_partner(g, from, op, d), op);
    if (net_has_window(op)) {
        w = draw_window(d, true, in.h, in.w);
        return net_pool(g, from, op, &w);
    }
    return net_simple(g, from, op,
                      dpt_operations[op]->attributes[0] ? 0.8f * (float)draw_uniform(d) : 0);
}

/* A random layer that keeps the shape of the planes that it gets. */
static inline int32_t net_same(struct dpt_graph *g, int32_t from, int32_t channels, struct draw *d)
{
    static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    enum dpt_op ops[DPT_OP_COUNT];
    const int n = net_operations(1 << DPT_CLASS_POINTWISE | 1 << DPT_CLASS_NORM, ops);

    if (channels != g->nodes[from].out.c || draw_int(d, 0, 2) == 0)
        return net_conv(g, from, channels, &same, draw_int(d, 0, 1));
    return net_any(g, from, ops[draw_int(d, 0, n - 1)], d);
}

/* A net on planes of at least `layers` layers with two joins; several nodes read one value. */
static inline int32_t net_branches(struct dpt_graph *g, int32_t from, int32_t layers,
                                   struct draw *d)
{
    const int32_t end = g->n_nodes + layers;
    int32_t at = from;

    for (int joins = 0; joins < 2 || g->n_nodes < end;) {
        const int32_t start = at, channels = g->nodes[at].out.c;
        const enum dpt_op join = draw_int(d, 0, 1) ? DPT_OP_ADD : DPT_OP_MULTIPLY;

        for (int32_t k = draw_int(d, 1, 3); k > 0; k--)
            at = net_same(g, at, channels, d);
        if (draw_int(d, 0, 3) == 0)
            continue;
        if (draw_int(d, 0, 1)) { /* a third one reads the start */
            const int32_t other = net_same(g, start, draw_int(d, 1, 20), d);

            at = net_join(g, net_join(g, at, start, join), other, DPT_OP_CONCAT);
            joins++;
        } else {
            at = draw_int(d, 0, 1) ? net_join(g, at, start, join) : net_join(g, start, at, join);
        }
        joins++;
    }
    return at;
}

/* Freezes some nodes whole, single tensors of others, and all below a random node; not the last
 * node with weights. */
static inline void net_freeze(struct dpt_graph *g, uint64_t seed)
{
    struct draw d = {seed + 90000};
    int32_t last = g->n_nodes - 1, below;

    while (last > 0 && g->nodes[last].weight < 0)
        last--;
    below = draw_int(&d, 0, last);
    for (int32_t i = 0; i < last; i++) {
        const int32_t tensors[] = {g->nodes[i].mean, g->nodes[i].variance, g->nodes[i].weight,
                                   g->nodes[i].bias};
        const bool whole = i < below || draw_int(&d, 0, 3) == 0, state = draw_int(&d, 0, 3) == 0;

        for (int k = 0; k < 4; k++) {
            const bool alone = k < 2 ? state : draw_int(&d, 0, 3) == 0;

            if (tensors[k] >= 0)
                g->tensors[tensors[k]].frozen = whole || alone;
        }
    }
    dpt_graph_freeze(g);
}

/* Where the next tensor of the arena begins, whichever it is. */
static inline int64_t net_tensor_end(const struct dpt_tensor *t)
{
    return t->offset + (t->count + DPT_TENSOR_ALIGN - 1) / DPT_TENSOR_ALIGN * DPT_TENSOR_ALIGN;
}

/* An arena: weights of about unit output variance, the floats between tensors zero. */
static inline float *net_params(const struct dpt_graph *g, struct draw *d)
{
    float *params = dpt_alloc_array((size_t)g->arena, sizeof *params);

    assert_non_null(params);
    for (int32_t t = 0; t < g->n_tensors; t++) {
        const struct dpt_tensor *tensor = &g->tensors[t];

        for (int64_t i = 0; i < tensor->count; i++)
            params[tensor->offset + i] =
                (float)(draw_normal(d) * (tensor->decay ? 1 / sqrt((double)tensor->fan_in) : 0.3)) +
                (float)tensor->init.value;
        /* A variance is not negative. */
        for (int64_t i = 0; tensor->state && i < tensor->count; i++)
            params[tensor->offset + i] = fabsf(params[tensor->offset + i]);
    }
    return params;
}

/* A batch that owns its arrays. */
struct owned_batch {
    struct dpt_batch batch;
    float *input, *targets;
    int32_t *labels;
    int64_t *sample;
};

/* Random inputs; labels, or (`soft`) rows of probabilities; rows after `count` are zero. */
static inline void batch_fill(struct owned_batch *b, const struct dpt_graph *g, int32_t micro,
                              int32_t count, bool soft, struct draw *d)
{
    const size_t in = (size_t)dpt_shape_size(&g->nodes[0].out);
    const size_t out = (size_t)dpt_shape_size(&g->nodes[g->n_nodes - 1].out);

    b->input = dpt_alloc_array((size_t)micro * in, sizeof *b->input);
    b->targets = dpt_alloc_array((size_t)micro * out, sizeof *b->targets);
    b->labels = dpt_alloc_array((size_t)micro, sizeof *b->labels);
    b->sample = dpt_alloc_array((size_t)micro, sizeof *b->sample);
    assert_true(b->input != NULL && b->targets != NULL && b->labels != NULL && b->sample != NULL);
    for (size_t i = 0; i < (size_t)count * in; i++)
        b->input[i] = (float)draw_normal(d);
    for (int32_t i = 0; i < count; i++) {
        double sum = 0;

        b->labels[i] = draw_int(d, 0, (int32_t)out - 1);
        b->sample[i] = (int64_t)(draw_bits(d) >> 24);
        for (size_t j = 0; j < out; j++) {
            b->targets[(size_t)i * out + j] = (float)draw_uniform(d);
            sum += b->targets[(size_t)i * out + j];
        }
        for (size_t j = 0; j < out; j++)
            b->targets[(size_t)i * out + j] /= (float)sum;
    }
    b->batch = (struct dpt_batch){.count = count,
                                  .input = b->input,
                                  .labels = soft ? NULL : b->labels,
                                  .targets = soft ? b->targets : NULL,
                                  .sample = b->sample,
                                  .seed = draw_bits(d),
                                  .step = (uint64_t)draw_int(d, 0, 100000)};
}

/* The first node whose output has a number that is not finite among the batch's first `count`
 * samples, and *position of that sample; -1: none. */
static inline int32_t batch_nonfinite(const struct dpt_backend *backend, void *program,
                                      const struct owned_batch *b, const float *params,
                                      int32_t count, int32_t *position)
{
    struct dpt_batch batch = b->batch;
    struct dpt_nonfinite bad;
    struct dpt_error err;

    batch.count = count;
    assert_int_equal(backend->find_nonfinite(program, 0, &batch, params, &bad, &err), DPT_OK);
    *position = bad.position;
    return bad.node;
}

static inline void batch_release(struct owned_batch *b)
{
    dpt_free(b->input);
    dpt_free(b->targets);
    dpt_free(b->labels);
    dpt_free(b->sample);
    *b = (struct owned_batch){0};
}

/* For benchmarks: the shortest of the times so far; 0: there is none. */
static inline void keep_least(double *least, double value)
{
    if (*least == 0 || value < *least)
        *least = value;
}

#endif

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base/memory.h"
#include "models/tests/build.h"

static float *init(const struct dpt_graph *graph, uint64_t seed)
{
    float *params = dpt_alloc_array((size_t)graph->arena, sizeof *params);
    struct dpt_error err;

    assert_non_null(params);
    assert_int_equal(dpt_model_init(graph, seed, params, &err), DPT_OK);
    return params;
}

struct moments {
    double mean, variance, kurtosis, largest;
};

static struct moments measure(const float *x, int64_t n)
{
    struct moments m = {0};
    double fourth = 0;

    for (int64_t i = 0; i < n; i++) {
        m.mean += x[i] / (double)n;
        m.largest = fmax(m.largest, fabs((double)x[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        const double square = (x[i] - m.mean) * (x[i] - m.mean);

        m.variance += square / (double)n;
        fourth += square * square / (double)n;
    }
    m.kurtosis = fourth / (m.variance * m.variance);
    return m;
}

/* He: normal (kurtosis 3) of variance 2 / fan_in. Glorot: uniform (kurtosis 1.8) of variance 2 /
   (fan_in + fan_out), never beyond its limit. LeCun: normal, 1 / fan_in. PyTorch: uniform, up to
   1 / sqrt(fan_in). A standard deviation that is given: normal; a limit:
   uniform. Bounds are five standard errors wide and the seeds fixed. */
static void weights_have_their_distribution(void **state)
{
    static const struct {
        const char *text;
        double variance, kurtosis, limit;
    } cases[] = {
        {"model: {type: sequential, layers: [{dense: 300}]}\n", 2.0 / 200, 3, 1e9},
        {"model: {type: sequential, layers: [{dense: {outputs: 300, init: xavier}}]}\n",
         2.0 / (200 + 300), 1.8, 0.10954451},
        {"model: {type: sequential, layers: [{dense: {outputs: 300, init: lecun}}]}\n", 1.0 / 200,
         3, 1e9},
        {"model: {type: sequential, layers: [{dense: {outputs: 300, init: pytorch}}]}\n",
         1.0 / (3 * 200), 1.8, 0.070710678},
        {"model: {type: sequential, layers: [{dense: {outputs: 300, init: {normal: 0.02}}}]}\n",
         0.02 * 0.02, 3, 0.02 * 6},
        {"model: {type: linear, outputs: 300, init: {normal: 1}}\n", 1, 3, 6},
        {"model: {type: linear, outputs: 300, init: {uniform: 0.05}}\n", 0.05 * 0.05 / 3, 1.8,
         0.05},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct dpt_graph graph;

            must_build(cases[i].text, 200, 0, 0, &graph);
            float *params = init(&graph, seed);
            const int64_t n = graph.tensors[0].count;
            const struct moments m = measure(params, n);
            const double error = 5 / sqrt((double)n);

            assert_true(fabs(m.mean) < error * sqrt(cases[i].variance));
            assert_true(fabs(m.variance / cases[i].variance - 1) < error * sqrt(2));
            assert_true(fabs(m.kurtosis - cases[i].kurtosis) < error * 5);
            assert_true(m.largest <= cases[i].limit * (1 + 1e-6));
            dpt_free(params);
            dpt_graph_release(&graph);
        }
}

/* Biases begin at 0, but with PyTorch's way as its weights do, by the weights' fan-in, also where a
   model gives all its layers one way. */
static void biases_begin_at_zero_but_for_pytorchs(void **state)
{
    static const char *const ways[] = {"he", "lecun", "orthogonal", "pytorch"};
    static const char *const models[] = {
        "model: {type: sequential, layers: [{conv: {channels: 400, kernel: 3, init: %s}}, "
        "global_avgpool]}\n",
        "model: {type: cnn, channels: [400], kernel: 3, outputs: 5, init: %s}\n"};

    (void)state;
    for (int m = 0; m < 2; m++)
        for (int k = 0; k < 4; k++) {
            struct dpt_graph graph;
            struct moments of;
            float *params;
            char text[200];

            snprintf(text, sizeof text, models[m], ways[k]);
            must_build(text, 4, 8, 8, &graph);
            params = init(&graph, 9);
            assert_int_equal(graph.tensors[1].count, 400);
            of = measure(params + graph.tensors[1].offset, 400);
            if (k < 3)
                assert_true(of.largest == 0);
            else
                assert_true(of.largest <= 1.0 / 6 && of.largest > 0.16 &&
                            fabs(of.variance * 3 * 36 - 1) < 0.25);
            dpt_free(params);
            dpt_graph_release(&graph);
        }
}

/* A convolution's fan-in is its window over the channels of a group. */
static void convolutions_count_their_window(void **state)
{
    static const char text[] = "model: {type: sequential, layers: [{conv: {channels: 64, kernel: "
                               "[3, 5], groups: 4}}, global_avgpool]}\n";
    struct dpt_graph graph;

    (void)state;
    must_build(text, 32, 8, 8, &graph);
    float *params = init(&graph, 5);
    const struct moments m = measure(params, graph.tensors[0].count);

    assert_int_equal(graph.tensors[0].fan_in, 8 * 15);
    assert_int_equal(graph.tensors[0].fan_out, 16 * 15);
    assert_true(fabs(m.variance / (2.0 / (8 * 15)) - 1) <
                5 * sqrt(2.0 / (double)graph.tensors[0].count));
    dpt_free(params);
    dpt_graph_release(&graph);
}

/* Dot product of rows i of a and j of b, or of columns. */
static double dot(const float *a, int64_t i, const float *b, int64_t j, int64_t length,
                  int64_t next, int64_t along)
{
    double sum = 0;

    for (int64_t k = 0; k < length; k++)
        sum += (double)a[i * next + k * along] * (double)b[j * next + k * along];
    return sum;
}

/*
 * What says that W is the Q of a decomposition A = Q R, R with a positive diagonal, of the normal
 * matrix A that the same tensor has by {normal: 1}: its columns are orthonormal, and each is
 * orthogonal to the columns of A before its own. Rows, where there are fewer of them.
 */
static void orthogonal_weights_are_the_q_of_normal_ones(void **state)
{
    static const struct {
        const char *layer;
        int32_t c, h;
    } cases[] = {
        {"dense: {outputs: 30", 30, 0},
        {"dense: {outputs: 7", 40, 0},
        {"dense: {outputs: 61", 19, 0},
        {"dense: {outputs: 1", 5, 0},
        {"conv: {channels: 24", 5, 6},
        {"conv: {channels: 40", 3, 6},
        {"conv: {groups: 8, channels: 16", 8, 6},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_graph graph[2];
        float *params[2];
        char text[160];

        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text, "model: {type: sequential, layers: [{%s, init: %s}}%s]}\n",
                     cases[i].layer, k == 0 ? "{normal: 1}" : "orthogonal",
                     cases[i].h > 0 ? ", global_avgpool" : "");
            must_build(text, cases[i].c, cases[i].h, cases[i].h, &graph[k]);
            params[k] = init(&graph[k], 4 + i);
        }
        const int64_t rows = graph[1].tensors[0].dims[0];
        const int64_t columns = graph[1].tensors[0].count / rows;
        const bool wide = rows < columns;
        const int64_t n = wide ? rows : columns, length = wide ? columns : rows;
        const int64_t next = wide ? columns : 1, along = wide ? 1 : columns;

        for (int64_t a = 0; a < n; a++) {
            for (int64_t b = 0; b < n; b++)
                assert_true(fabs(dot(params[1], a, params[1], b, length, next, along) - (a == b)) <
                            1e-6);
            for (int64_t b = 0; b < a; b++)
                assert_true(fabs(dot(params[1], a, params[0], b, length, next, along)) < 1e-5);
            assert_true(dot(params[1], a, params[0], a, length, next, along) > 0);
        }
        for (int k = 0; k < 2; k++) {
            dpt_free(params[k]);
            dpt_graph_release(&graph[k]);
        }
    }
}

/* The short forms and the layers that they stand for begin alike; a deviation is a factor, to the
 * bit where it is a power of two. */
static void a_deviation_is_a_factor(void **state)
{
    static const char *const texts[] = {
        "model: {type: cnn, channels: [6], hidden: [9], outputs: 4, init: {normal: 1}}\n",
        "model: {type: cnn, channels: [6], hidden: [9], outputs: 4, init: {normal: 0.125}}\n",
        "model: {type: sequential, layers: [{conv: {channels: 6, padding: same, init: {normal: "
        "1}}},"
        " relu, {maxpool: 2}, flatten, {dense: {outputs: 9, init: {normal: 1}}}, relu,"
        " {dense: {outputs: 4, init: {normal: 1}}}]}\n",
    };
    struct dpt_graph graph[3];
    float *params[3];

    (void)state;
    for (int k = 0; k < 3; k++) {
        must_build(texts[k], 2, 6, 6, &graph[k]);
        params[k] = init(&graph[k], 9);
    }
    assert_int_equal(graph[0].floats, graph[2].floats);
    assert_memory_equal(params[0], params[2], (size_t)graph[0].floats * sizeof **params);
    for (int64_t i = 0; i < graph[0].floats; i++)
        assert_true(params[1][i] == params[0][i] / 8);
    for (int k = 0; k < 3; k++) {
        dpt_free(params[k]);
        dpt_graph_release(&graph[k]);
    }
}

/* Biases, `init: zero` and the floats between tensors are zero. */
static void the_rest_is_zero(void **state)
{
    static const char text[] =
        "model: {type: sequential, layers: [{dense: {outputs: 7, init: zero}}, {dense: 5}]}\n";
    struct dpt_graph graph;
    int64_t nonzero = 0;

    (void)state;
    must_build(text, 9, 0, 0, &graph);
    float *params = init(&graph, 1);

    for (int64_t i = 0; i < graph.arena; i++)
        nonzero += params[i] != 0;
    assert_true(nonzero <= graph.tensors[2].count && nonzero > graph.tensors[2].count / 2);
    for (int64_t i = 0; i < graph.tensors[2].count; i++)
        nonzero -= params[graph.tensors[2].offset + i] != 0;
    assert_int_equal(nonzero, 0);
    dpt_free(params);
    dpt_graph_release(&graph);
}

static double correlation(const float *x, const float *y, int64_t n)
{
    double xy = 0, xx = 0, yy = 0;

    for (int64_t i = 0; i < n; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xy / sqrt(xx * yy);
}

/* Equal seeds give equal bits; another seed or tensor gives other numbers. */
static void tensors_and_seeds_are_independent(void **state)
{
    static const char text[] =
        "model: {type: sequential, layers: [{dense: 100}, relu, {dense: 100}]}\n";
    struct dpt_graph graph;

    (void)state;
    must_build(text, 100, 0, 0, &graph);
    float *one = init(&graph, 1), *again = init(&graph, 1), *two = init(&graph, 2);
    const struct dpt_tensor *a = &graph.tensors[0], *b = &graph.tensors[2];
    const double bound = 5 / sqrt((double)a->count);

    assert_memory_equal(one, again, (size_t)graph.arena * sizeof *one);
    assert_true(fabs(correlation(one + a->offset, one + b->offset, a->count)) < bound);
    assert_true(fabs(correlation(one + a->offset, two + a->offset, a->count)) < bound);
    assert_true(fabs(correlation(one + a->offset, one + a->offset + 1, a->count - 1)) < bound);
    dpt_free(one);
    dpt_free(again);
    dpt_free(two);
    dpt_graph_release(&graph);
}

/* A tensor's numbers do not depend on the layers after it. */
static void earlier_tensors_keep_their_numbers(void **state)
{
    struct dpt_graph small, large;

    (void)state;
    must_build("model: {type: mlp, hidden: [30], outputs: 4}\n", 11, 0, 0, &small);
    must_build("model: {type: mlp, hidden: [30, 20], outputs: 4}\n", 11, 0, 0, &large);
    float *a = init(&small, 3), *b = init(&large, 3);

    assert_memory_equal(a, b, (size_t)small.tensors[0].count * sizeof *a);
    dpt_free(a);
    dpt_free(b);
    dpt_graph_release(&small);
    dpt_graph_release(&large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_have_their_distribution),
        cmocka_unit_test(convolutions_count_their_window),
        cmocka_unit_test(biases_begin_at_zero_but_for_pytorchs),
        cmocka_unit_test(orthogonal_weights_are_the_q_of_normal_ones),
        cmocka_unit_test(a_deviation_is_a_factor),
        cmocka_unit_test(the_rest_is_zero),
        cmocka_unit_test(tensors_and_seeds_are_independent),
        cmocka_unit_test(earlier_tensors_keep_their_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Layers that read others by name, joins and residual blocks: the graphs that they become, and the
 * errors in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "models/tests/build.h"

#define LAYERS "model:\n  type: sequential\n  layers:\n"
#define HEAD   "  - flatten\n  - dense: 3\n"

/* A node as a test expects it: its operation, its inputs, the shape that it gives. */
struct want {
    const char *name;
    enum dpt_op op;
    int32_t first, second; /* second -1: none */
    struct dpt_shape out;
};

static void assert_graph(const char *text, const struct want *want, int32_t n)
{
    struct dpt_graph graph;

    must_build(text, 4, 8, 8, &graph);
    assert_true(graph.n_nodes >= n);
    for (int32_t k = 1; k < n; k++) {
        const struct dpt_graph_node *node = &graph.nodes[k];
        const struct dpt_shape *a = &node->out, *b = &want[k].out;

        if (strcmp(node->name, want[k].name) != 0 || node->op != want[k].op ||
            node->inputs[0] != want[k].first || node->n_inputs != (want[k].second >= 0 ? 2 : 1) ||
            (node->n_inputs == 2 && node->inputs[1] != want[k].second) || a->c != b->c ||
            a->h != b->h || a->w != b->w || a->flat != b->flat)
            fail_msg("%s\nnode %d: %s of %d and %d, %dx%dx%d", text, (int)k, node->name,
                     (int)node->inputs[0], (int)node->inputs[1], (int)a->c, (int)a->h, (int)a->w);
        assert_memory_equal(&node->in, &graph.nodes[node->inputs[0]].out, sizeof node->in);
        if (node->n_inputs == 2)
            assert_memory_equal(&node->other, &graph.nodes[node->inputs[1]].out,
                                sizeof node->other);
    }
    dpt_graph_release(&graph);
}

/* The layer before is the first operand; of a list those that it names, in their order. */
static void joins_and_names(void **state)
{
    static const char text[] = LAYERS "  - conv: {channels: 4, kernel: 1, name: stem}\n"
                                      "  - relu\n"
                                      "  - conv: {channels: 4, kernel: 1}\n"
                                      "  - tanh: {from: stem}\n"
                                      "  - add: conv1\n"
                                      "  - add: [relu1, input, stem, relu1]\n"
                                      "  - multiply: {of: add1, from: tanh1, name: gate}\n"
                                      "  - concat: [gate, add2]\n"
                                      "  - global_avgpool: {from: stem}\n"
                                      "  - global_avgpool: {from: concat1}\n"
                                      "  - concat: global_avgpool1\n"
                                      "  - dense: 3\n";
    static const struct want want[] = {
        {"input", DPT_OP_INPUT, 0, -1, {4, 8, 8, false}},
        {"stem", DPT_OP_CONV, 0, -1, {4, 8, 8, false}},
        {"relu1", DPT_OP_RELU, 1, -1, {4, 8, 8, false}},
        {"conv1", DPT_OP_CONV, 2, -1, {4, 8, 8, false}},
        {"tanh1", DPT_OP_TANH, 1, -1, {4, 8, 8, false}},
        {"add1", DPT_OP_ADD, 4, 3, {4, 8, 8, false}},
        {"add2/1", DPT_OP_ADD, 2, 0, {4, 8, 8, false}},
        {"add2/2", DPT_OP_ADD, 6, 1, {4, 8, 8, false}},
        {"add2", DPT_OP_ADD, 7, 2, {4, 8, 8, false}},
        {"gate", DPT_OP_MULTIPLY, 4, 5, {4, 8, 8, false}},
        {"concat1", DPT_OP_CONCAT, 9, 8, {8, 8, 8, false}},
        {"global_avgpool1", DPT_OP_GLOBAL_AVGPOOL, 1, -1, {4, 1, 1, true}},
        {"global_avgpool2", DPT_OP_GLOBAL_AVGPOOL, 10, -1, {8, 1, 1, true}},
        {"concat2", DPT_OP_CONCAT, 12, 11, {12, 1, 1, true}},
        {"dense1", DPT_OP_DENSE, 13, -1, {3, 1, 1, true}},
    };

    (void)state;
    assert_graph(text, want, sizeof want / sizeof *want);
}

/* Layers in a block are numbered on, a block's name is that of its sum, and a projection, with the
 * block's norm, stands where shapes differ. */
static void residual_blocks(void **state)
{
    static const char text[] =
        LAYERS "  - conv: {channels: 4, padding: 1}\n"
               "  - residual: [conv: {channels: 4, padding: 1, name: conv2}, relu]\n"
               "  - residual:\n"
               "      name: down\n"
               "      layers:\n"
               "      - conv: {channels: 6, padding: 1, stride: [2, 3]}\n"
               "      - layernorm: {eps: 0.5}\n"
               "      - residual: {layers: [relu], shortcut: none}\n"
               "      - layernorm\n"
               "  - residual: {layers: [relu, add: down], shortcut: [tanh, {tanh: {name: past}}]}\n"
               "  - global_avgpool\n"
               "  - residual: {layers: [dense: 3], from: global_avgpool1}\n"
               "  - multiply: dense1\n";
    static const struct want want[] = {
        {"input", DPT_OP_INPUT, 0, -1, {4, 8, 8, false}},
        {"conv1", DPT_OP_CONV, 0, -1, {4, 8, 8, false}},
        {"conv2", DPT_OP_CONV, 1, -1, {4, 8, 8, false}},
        {"relu1", DPT_OP_RELU, 2, -1, {4, 8, 8, false}},
        {"residual1", DPT_OP_ADD, 3, 1, {4, 8, 8, false}},
        {"conv3", DPT_OP_CONV, 4, -1, {6, 4, 3, false}},
        {"layernorm1", DPT_OP_LAYERNORM, 5, -1, {6, 4, 3, false}},
        {"relu2", DPT_OP_RELU, 6, -1, {6, 4, 3, false}},
        {"residual2", DPT_OP_ADD, 7, 6, {6, 4, 3, false}},
        {"layernorm2", DPT_OP_LAYERNORM, 8, -1, {6, 4, 3, false}},
        {"conv4", DPT_OP_CONV, 4, -1, {6, 4, 3, false}},
        {"layernorm3", DPT_OP_LAYERNORM, 10, -1, {6, 4, 3, false}},
        {"down", DPT_OP_ADD, 9, 11, {6, 4, 3, false}},
        {"relu3", DPT_OP_RELU, 12, -1, {6, 4, 3, false}},
        {"add1", DPT_OP_ADD, 13, 12, {6, 4, 3, false}},
        {"tanh1", DPT_OP_TANH, 12, -1, {6, 4, 3, false}},
        {"past", DPT_OP_TANH, 15, -1, {6, 4, 3, false}},
        {"residual3", DPT_OP_ADD, 14, 16, {6, 4, 3, false}},
        {"global_avgpool1", DPT_OP_GLOBAL_AVGPOOL, 17, -1, {6, 1, 1, true}},
        {"dense1", DPT_OP_DENSE, 18, -1, {3, 1, 1, true}},
        {"dense2", DPT_OP_DENSE, 18, -1, {3, 1, 1, true}},
        {"residual4", DPT_OP_ADD, 19, 20, {3, 1, 1, true}},
        {"multiply1", DPT_OP_MULTIPLY, 21, 19, {3, 1, 1, true}},
    };
    struct dpt_graph graph;
    struct dpt_error err;

    (void)state;
    assert_graph(text, want, sizeof want / sizeof *want);
    assert_int_equal(build_model(text, 4, 8, 8, &graph, &err), DPT_OK);
    assert_int_equal(graph.nodes[10].bias, -1); /* projections have none */
    assert_int_equal(graph.nodes[20].bias, -1);
    assert_int_equal(graph.nodes[10].window.kernel[0], 1);
    assert_int_equal(graph.nodes[10].window.stride[0], 2);
    assert_int_equal(graph.nodes[10].window.stride[1], 3);
    assert_true(graph.nodes[11].attribute[0] == 0.5f);
    dpt_graph_release(&graph);
}

/* A short block and its long form are the same. */
static void forms_of_a_block(void **state)
{
    static const char *const texts[] = {
        LAYERS "  - residual: [conv: {channels: 6, stride: 2, padding: 1}, layernorm, relu]\n" HEAD,
        LAYERS "  - residual: {layers: [conv: {channels: 6, stride: 2, padding: 1}, layernorm, "
               "relu], shortcut: auto}\n" HEAD,
        LAYERS "  - residual: {layers: [conv: {channels: 6, stride: 2, padding: 1}, layernorm, "
               "relu], shortcut: [conv: {channels: 6, kernel: 1, stride: 2, bias: false}, "
               "layernorm]}\n" HEAD,
        LAYERS "  - conv: {channels: 6, stride: 2, padding: 1}\n  - layernorm\n  - relu\n"
               "  - conv: {channels: 6, kernel: 1, stride: 2, bias: false, from: input}\n"
               "  - layernorm\n  - add: {of: [relu1, layernorm2], name: residual1}\n" HEAD,
    };
    struct dpt_graph graphs[4];
    struct dpt_error err;

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(build_model(texts[i], 4, 8, 8, &graphs[i], &err), DPT_OK);
        assert_int_equal(graphs[i].n_nodes, graphs[0].n_nodes);
        assert_int_equal(graphs[i].n_tensors, graphs[0].n_tensors);
        for (int32_t k = 0; k < graphs[0].n_nodes; k++) {
            const struct dpt_graph_node *node = &graphs[i].nodes[k], *want = &graphs[0].nodes[k];

            assert_string_equal(node->name, want->name);
            assert_true(node->op == want->op && node->n_inputs == want->n_inputs);
            assert_memory_equal(node->inputs, want->inputs, sizeof node->inputs);
            assert_memory_equal(&node->window, &want->window, sizeof node->window);
            assert_true(node->weight == want->weight && node->bias == want->bias);
        }
        for (int32_t k = 0; k < graphs[0].n_tensors; k++) {
            const struct dpt_tensor *t = &graphs[i].tensors[k], *want = &graphs[0].tensors[k];

            assert_string_equal(t->name, want->name);
            assert_true(t->offset == want->offset && t->init.type == want->init.type);
            assert_memory_equal(t->dims, want->dims, sizeof t->dims);
        }
    }
    for (int i = 0; i < 4; i++)
        dpt_graph_release(&graphs[i]);
}

#define AT(line) "job.yaml:" #line ":5: model.layers"

static void mistakes_are_told(void **state)
{
    static const struct {
        const char *layers, *want;
    } cases[] = {
        {"  - relu: {name: a, from: a}\n" HEAD,
         AT(4) "[0] (a): reads its own output: a layer reads those before it"},
        {"  - add: [input, b]\n  - relu: {name: b}\n" HEAD,
         AT(4) "[0] (add1): reads 'b', which comes later: a layer reads those before it, so that "
               "there is no cycle"},
        {"  - residual: [add: r]\n  - residual: {layers: [relu: {name: r}]}\n" HEAD,
         "job.yaml:4:16: model.layers[0].residual.layers[0] (add1): reads 'r', which comes later"},
        {"  - relu: {name: stem}\n  - relu: {from: sten}\n" HEAD,
         AT(5) "[1] (relu1): no layer before it has the name 'sten'; did you mean 'stem'? there "
               "are input, stem"},
        {"  - relu\n  - multiply: xyz\n" HEAD,
         AT(5) "[1] (multiply1): no layer before it has the name 'xyz'; there are input, relu1"},
        {"  - add: [input, input, input]\n  - relu: {from: add1/1}\n" HEAD,
         AT(5) "[1] (relu1): no layer before it has the name 'add1/1'"},
        {"  - conv: 6\n  - add: input\n" HEAD,
         AT(5) "[1] (add1): joins 6x6x6 (conv1) and 4x8x8 (input), whose shapes must be equal"},
        {"  - conv: 4\n  - multiply: input\n" HEAD,
         AT(5) "[1] (multiply1): joins 4x6x6 (conv1) and 4x8x8 (input), whose shapes"},
        {"  - conv: 4\n  - concat: input\n" HEAD,
         AT(5) "[1] (concat1): joins 4x6x6 (conv1) and 4x8x8 (input), whose height and width must "
               "be equal, or both be flat"},
        {"  - global_avgpool\n  - concat: input\n" HEAD,
         AT(5) "[1] (concat1): joins 4 (global_avgpool1) and 4x8x8 (input)"},
        {"  - relu\n  - add: [input]\n" HEAD,
         "job.yaml:5:10: model.layers[1].add.of: a join of one: give two names, or input without "
         "brackets to join it with the layer before"},
        {"  - add: []\n" HEAD, "model.layers[0].add.of: a join of nothing: give the names of two"},
        {"  - add\n" HEAD, "model.layers[0].add.of: must be given: NAME or [NAME, NAME, ...]"},
        {"  - relu\n  - add: {of: [input, relu1], from: relu1}\n" HEAD,
         AT(5) "[1] (add1): `from` beside a list: a list names all that is joined, so put 'relu1' "
               "into it"},
        {"  - conv: 6\n  - tanh\n  - relu: {from: conv1}\n" HEAD,
         AT(5) "[1] (tanh1): no layer reads its output: join it (`add: tanh1`), read it (`from: "
               "tanh1`) or leave it out"},
        {"  - flatten: {name: a}\n  - dense: {outputs: 3, name: b}\n"
         "  - dense: {outputs: 3, from: a}\n",
         AT(5) "[1] (b): no layer reads its output"},
        {"  - residual: [relu, {tanh: {from: input}}]\n" HEAD,
         "job.yaml:4:16: model.layers[0].residual.layers[0] (relu1): no layer reads its output"},
        {"  - residual: {layers: [relu: {name: a}], shortcut: [tanh: {name: a}]}\n" HEAD,
         "model.layers[0].residual.shortcut[0].tanh: an earlier layer has the name 'a' too"},
        {"  - residual: {layers: [conv: 6], shortcut: none}\n" HEAD,
         AT(4) "[0] (residual1): its layers give 6x6x6, its shortcut 4x8x8: they must be equal "
               "(`shortcut: auto` puts a projection there)"},
        {"  - residual: {layers: [relu], shortcut: [maxpool: 2]}\n" HEAD,
         AT(4) "[0] (residual1): its layers give 4x8x8, its shortcut 4x4x4: they must be equal"},
        {"  - residual: [conv: {channels: 4, kernel: 4}]\n" HEAD,
         AT(4) "[0] (residual1): its layers turn 4x8x8 into 4x5x5, which no 1x1 convolution does: "
               "give the layers that do (`shortcut: [...]`)"},
        {"  - residual: [conv: {channels: 4, padding: 2}]\n" HEAD, "turn 4x8x8 into 4x10x10"},
        {"  - residual: [flatten, dense: 4]\n" HEAD, "turn 4x8x8 into 4, which no"},
        {"  - residual: []\n" HEAD, "model.layers[0].residual.layers: the list of layers is empty"},
        {"  - residual: relu\n" HEAD, "model.layers[0].residual.layers: expected a list of layers"},
        {"  - residual: {layers: [relu], shortcut: al}\n" HEAD,
         "model.layers[0].residual.shortcut: 'al' is none of auto, none"},
        {"  - residual: {layers: [relu], shortcut: {}}\n" HEAD,
         "model.layers[0].residual.shortcut: expected auto, none or a list of layers, got a map"},
        {"  - residual: [rellu]\n" HEAD,
         "model.layers[0].residual.layers[0]: unknown layer 'rellu'; did you mean 'relu'?"},
        {"  - attention\n" HEAD,
         "model.layers[0]: unknown layer 'attention'; there are conv, dense, maxpool, avgpool, "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_graph graph;
        struct dpt_error err = {0};
        char text[1000];

        snprintf(text, sizeof text, LAYERS "%s", cases[i].layers);
        if (build_model(text, 4, 8, 8, &graph, &err) != DPT_BAD_JOB)
            fail_msg("%s: no BAD_JOB", text);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s\nno '%s'\nin %s", text, cases[i].want, err.text);
        assert_null(graph.nodes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_and_names),
        cmocka_unit_test(residual_blocks),
        cmocka_unit_test(forms_of_a_block),
        cmocka_unit_test(mistakes_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

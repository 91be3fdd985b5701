#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/layer.h"
#include "models/tests/build.h"

#define LAYERS "model:\n  type: sequential\n  layers:\n"
#define CONVS                                                                                      \
    "  - conv: {channels: 32, padding: same}\n  - relu\n  - maxpool: 2\n"                          \
    "  - conv: {channels: 64, padding: same}\n  - relu\n  - maxpool: 2\n  - flatten\n"

/* Counts that PyTorch gives for the same models (sum of p.numel()), and sums by hand. */
static void parameters_are_counted(void **state)
{
    static const struct {
        const char *text;
        int32_t c, h, w;
        int64_t want;
    } cases[] = {
        {LAYERS CONVS "  - dense: 128\n  - relu\n  - dense: 10\n", 1, 28, 28, 421642},
        {"model: {type: cnn, hidden: 128, outputs: 10}\n", 1, 28, 28, 421642},
        {LAYERS CONVS "  - dense: 10\n", 3, 32, 32, 60362},
        {"model: {type: cnn, outputs: 10}\n", 3, 32, 32, 60362},
        {"model: {type: mlp, outputs: 10}\n", 1, 28, 28, 203530},
        {"model: {type: mlp, hidden: [256], outputs: 10}\n", 784, 0, 0, 203530},
        {"model: {type: mlp, hidden: [], outputs: 10}\n", 784, 0, 0, 7850},
        {"model: {type: resnet, depth: 18, outputs: 1000}\n", 3, 64, 64, 11689512},
        {"model: {type: resnet, depth: 34, outputs: 1000}\n", 3, 64, 64, 21797672},
        {"model: {type: resnet, depth: 50, outputs: 1000}\n", 3, 224, 224, 25557032},
        {"model: {type: resnet, depth: 101, outputs: 1000}\n", 3, 64, 64, 44549160},
        {"model: {type: resnet, depth: 152, outputs: 1000}\n", 3, 64, 64, 60192808},
        {"model: {type: resnet, depth: 20, outputs: 10}\n", 3, 32, 32, 272474},
        {"model: {type: mobilenet_v2, outputs: 1000}\n", 3, 64, 64, 3504872},
        {"model: {type: vgg, depth: 11, outputs: 1000}\n", 3, 64, 64, 132863336},
        {"model: {type: vgg, depth: 13, outputs: 1000}\n", 3, 64, 64, 133047848},
        {"model: {type: vgg, depth: 16, outputs: 1000}\n", 3, 224, 224, 138357544},
        {"model: {type: vgg, depth: 19, outputs: 1000}\n", 3, 64, 64, 143667240},
        {"model: {type: lenet, outputs: 10}\n", 1, 28, 28, 61706},
        {"model: {type: linear, outputs: 1}\n", 5, 0, 0, 6},
        {"model: {type: linear, outputs: 10}\n", 1, 28, 28, 7850},
        /* A depthwise convolution has one kernel per channel. */
        {LAYERS "  - conv: {channels: 8, groups: 8, bias: false}\n  - global_avgpool\n", 8, 9, 9,
         72},
        {LAYERS "  - conv: {channels: 6, kernel: [2, 5], groups: 2}\n  - flatten\n", 4, 9, 9, 126},
        {LAYERS "  - dense: {outputs: 3, bias: false}\n", 7, 0, 0, 21},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_graph graph;

        must_build(cases[i].text, cases[i].c, cases[i].h, cases[i].w, &graph);
        if (graph.parameters != cases[i].want)
            fail_msg("%s: %lld parameters", cases[i].text, (long long)graph.parameters);
        dpt_graph_release(&graph);
    }
}

/* torchvision's names, by which its weights are read. */
static void layers_of_vgg_have_their_names(void **state)
{
    struct dpt_graph graph;
    const struct dpt_graph_node *last;

    (void)state;
    must_build("model: {type: vgg, depth: 11, outputs: 7}\n", 3, 32, 32, &graph);
    last = &graph.nodes[graph.n_nodes - 1];
    assert_string_equal(graph.nodes[1].name, "features.0");
    assert_string_equal(last->name, "classifier.6");
    assert_int_equal(last->out.c, 7);
    dpt_graph_release(&graph);
}

static void assert_same_shape(const struct dpt_shape *a, const struct dpt_shape *b)
{
    assert_true(a->c == b->c && a->h == b->h && a->w == b->w && a->flat == b->flat);
}

/* What a backend relies on: order, shapes that meet, tensors that lie apart and are named after
 * their layer. */
static void graph_is_well_formed(void **state)
{
    static const char text[] = LAYERS CONVS
        "  - dropout: 0.25\n  - dense: 16\n  - gelu\n  - dense: {outputs: 5, bias: false}\n";
    struct dpt_graph graph;
    int64_t end = 0, sum = 0;

    (void)state;
    must_build(text, 3, 17, 12, &graph);
    assert_int_equal(graph.n_nodes, 12);
    assert_int_equal(graph.nodes[0].op, DPT_OP_INPUT);
    for (int32_t k = 1; k < graph.n_nodes; k++) {
        const struct dpt_graph_node *node = &graph.nodes[k];
        const struct dpt_graph_node *before = &graph.nodes[node->inputs[0]];

        assert_int_equal(node->n_inputs, 1);
        assert_int_equal(node->inputs[0], k - 1);
        assert_same_shape(&node->in, &before->out);
        assert_true(node->weight < graph.n_tensors && node->bias < graph.n_tensors);
        if (node->weight >= 0)
            assert_int_equal(
                strncmp(graph.tensors[node->weight].name, node->name, strlen(node->name)), 0);
    }
    for (int32_t k = 0; k < graph.n_tensors; k++) {
        const struct dpt_tensor *t = &graph.tensors[k];

        assert_true(t->offset >= end && t->offset % DPT_TENSOR_ALIGN == 0);
        assert_int_equal(t->decay, strstr(t->name, "/weight") != NULL);
        end = t->offset + t->count;
        sum += t->count;
    }
    assert_true(end <= graph.floats);
    assert_int_equal(sum, graph.parameters);
    assert_int_equal(dpt_graph_outputs(&graph), 5);
    assert_int_equal(graph.nodes[11].bias, -1);
    assert_string_equal(graph.tensors[2].name, "conv2/weight");
    assert_int_equal(graph.tensors[2].dims[0], 64);
    assert_int_equal(graph.tensors[2].dims[1], 32);
    assert_int_equal(graph.tensors[2].fan_in, 32 * 9);
    dpt_graph_release(&graph);
}

/* Numbers continue over names that the user took. */
static void names_are_unique(void **state)
{
    static const char *const want[] = {"input",  "dense2", "stem", "relu1",
                                       "dense1", "dense4", "relu2"};
    static const char text[] =
        LAYERS "  - dense: 4\n  - dense: {outputs: 4, name: stem}\n  - relu\n"
               "  - dense: {outputs: 4, name: dense1}\n  - dense: 4\n"
               "  - relu: {name: auto}\n  - dense: {outputs: 2, name: dense3}\n";
    struct dpt_graph graph;

    (void)state;
    must_build(text, 4, 0, 0, &graph);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_string_equal(graph.nodes[i].name, want[i]);
    dpt_graph_release(&graph);
}

static void assert_same_graph(const struct dpt_graph *first, const struct dpt_graph *second)
{
    assert_int_equal(first->n_nodes, second->n_nodes);
    assert_int_equal(first->n_tensors, second->n_tensors);
    assert_int_equal(first->floats, second->floats);
    for (int32_t k = 0; k < first->n_nodes; k++) {
        const struct dpt_graph_node *a = &first->nodes[k], *b = &second->nodes[k];

        assert_int_equal(a->op, b->op);
        assert_string_equal(a->name, b->name);
        assert_same_shape(&a->out, &b->out);
        assert_memory_equal(&a->window, &b->window, sizeof a->window);
        assert_true(a->attribute[0] == b->attribute[0] && a->weight == b->weight &&
                    a->bias == b->bias);
    }
    for (int32_t k = 0; k < first->n_tensors; k++) {
        const struct dpt_tensor *a = &first->tensors[k], *b = &second->tensors[k];

        assert_string_equal(a->name, b->name);
        assert_memory_equal(a->dims, b->dims, sizeof a->dims);
        assert_ptr_equal(a->init.type, b->init.type);
        assert_true(a->init.value == b->init.value && a->fan_in == b->fan_in &&
                    a->fan_out == b->fan_out);
    }
}

/* The tree after reading, written and read again, gives the same graph: the resolved job can be
 * run. */
static void resolved_model_is_the_same(void **state)
{
    static const char *const texts[] = {
        LAYERS CONVS "  - dense: 10\n",
        LAYERS "  - conv:\n      channels: 4\n      kernel: [3, 2]\n      padding: [1, 0]\n"
               "  - tanh:\n  - avgpool: [2, 3]\n  - maxpool: {size: 2, stride: 1}\n"
               "  - sigmoid: {}\n  - global_avgpool\n  - dense: {outputs: 3, name: head}\n",
        "model: {type: cnn, channels: [4, 8], kernel: [3, 5], pool: 3, hidden: [7], outputs: 3}\n",
        "model: {type: mlp, hidden: 5, dropout: 0.1, outputs: 3, activation: tanh}\n",
        "model: {type: linear, outputs: 2}\n",
    };
    const struct dpt_shape input = {2, 20, 22, false};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct dpt_graph first, second;
        struct dpt_variant_value model;
        struct dpt_conf conf;
        struct dpt_str written = {0};
        struct dpt_error err;

        assert_int_equal(read_model(&conf, texts[i], &model, &err), DPT_OK);
        dpt_conf_write(conf.root, &written);
        assert_int_equal(dpt_model_build(&model, &input, &first, &err), DPT_OK);
        dpt_conf_release(&conf);
        must_build(written.text, input.c, input.h, input.w, &second);
        assert_same_graph(&first, &second);
        dpt_graph_release(&first);
        dpt_graph_release(&second);
        dpt_str_release(&written);
    }
}

struct wrong {
    const char *text;
    int32_t c, h, w;
    const char *want;
};

static void assert_told(const struct wrong *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct dpt_graph graph;
        struct dpt_error err = {0};

        if (build_model(cases[i].text, cases[i].c, cases[i].h, cases[i].w, &graph, &err) !=
            DPT_BAD_JOB)
            fail_msg("%s: no BAD_JOB", cases[i].text);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s\nno '%s'\nin %s", cases[i].text, cases[i].want, err.text);
        assert_null(graph.nodes);
        assert_null(graph.tensors);
    }
}

/* Each names its place, its layer, and what came. */
static void shapes_that_do_not_fit_are_told(void **state)
{
    static const struct wrong cases[] = {
        {LAYERS "  - relu\n  - dense: 10\n", 64, 7, 7,
         "job.yaml:5:5: model.layers[1] (dense1): needs a flat input, gets 64x7x7: put `flatten` "
         "before it"},
        {LAYERS "  - conv: {channels: 4}\n", 784, 0, 0,
         "job.yaml:4:5: model.layers[0] (conv1): needs channels x height x width, gets 784"},
        {LAYERS "  - flatten\n  - maxpool: 2\n", 1, 28, 28,
         "(maxpool1): needs channels x height x width, gets 784: put it before `flatten`"},
        {LAYERS "  - flatten\n  - avgpool: 2\n", 1, 28, 28, "(avgpool1): needs channels"},
        {LAYERS "  - flatten\n  - global_avgpool\n", 1, 28, 28, "(global_avgpool1): needs"},
        {LAYERS "  - conv: {channels: 4, kernel: 5}\n", 3, 3, 3,
         "(conv1): kernel 5x5 does not fit 3x3 input"},
        {LAYERS "  - conv: {channels: 4, kernel: [1, 3], dilation: 4, padding: 2}\n", 3, 9, 3,
         "kernel 1x3 (dilation 4x4) does not fit 9x3 input with padding 2x2"},
        {LAYERS "  - maxpool: 4\n", 3, 9, 3, "kernel 4x4 does not fit 9x3 input"},
        {LAYERS "  - maxpool: {size: 2, padding: 2}\n", 3, 9, 9,
         "(maxpool1): padding 2x2 must be smaller than the window 2x2"},
        {LAYERS "  - conv: {channels: 32, groups: 3}\n", 3, 9, 9,
         "groups 3 does not divide 32 channels"},
        {LAYERS "  - conv: {channels: 32, groups: 2}\n", 3, 9, 9,
         "groups 2 does not divide the input's 3 channels"},
        {LAYERS "  - groupnorm: 4\n", 6, 9, 9,
         "(groupnorm1): groups 4 does not divide the input's 6 channels"},
        {LAYERS "  - flatten\n  - upsample: 2\n", 1, 28, 28, "(upsample1): needs channels"},
        {LAYERS "  - upsample: [1024, 1]\n", 1, 1 << 20, 1,
         "makes planes of 1x1048576x1 more than 268435456 numbers high"},
        {LAYERS "  - upsample: 1024\n", 3, 1000, 1000, "turns 3x1000x1000 into 3x1024000x1024000"},
        {LAYERS "  - conv1d: 4\n", 1, 12, 100,
         "(conv1d1): needs channels x 1 x length, gets 1x12x100: give the data the shape [samples, "
         "channels, 1, length]"},
        {LAYERS "  - conv1d: 4\n", 784, 0, 0, "needs channels x 1 x length, gets 784"},
        {LAYERS "  - relu\n  - conv1d: 4\n", 3, 9, 9,
         "gets 3x9x9: put it where planes are one row high"},
        {LAYERS "  - conv1d: {channels: 4, kernel: 9, padding: 2}\n", 3, 1, 4,
         "kernel 1x9 does not fit 1x4 input with padding 0x2"},
        {LAYERS "  - conv: {channels: 1048576, kernel: 1}\n", 1, 1000, 1000,
         "turns 1x1000x1000 into 1048576x1000x1000"},
        {LAYERS "  - conv: {channels: 1048576, kernel: 1024, padding: same}\n", 1, 4, 4,
         "(conv1): has more than 2147483647 weights"},
        {LAYERS "  - dense: 1048576\n  - dense: 1048576\n", 4, 0, 0, "(dense2): has more than"},
        {LAYERS "  - conv: {channels: 4}\n", 3, 9, 9,
         "(conv1): the last layer gives 4x7x7, a loss needs a flat output"},
        {LAYERS "  - flatten\n  - relu\n", 3, 9, 9, "there is nothing to train"},
        {"model: {type: cnn, outputs: 10}\n", 784, 0, 0,
         "job.yaml:1:8: model cnn (conv1): needs channels"},
        {"model:\n  type: cnn\n  outputs: 10\n", 1, 3, 3,
         "job.yaml:2:3: model cnn (maxpool2): kernel 2x2 does not"},
        {"model: {type: linear, outputs: 10}\n", 1 << 20, 1 << 10, 1 << 10, "model: samples of"},
        {"model: {type: linear, outputs: 10}\n", 0, 0, 0, "model: samples of"},
    };

    (void)state;
    assert_told(cases, sizeof cases / sizeof cases[0]);
}

static void mistakes_in_layers_are_told(void **state)
{
    static const struct wrong cases[] = {
        {LAYERS "  - relu\n  - conw: {channels: 4}\n", 3, 9, 9, "did you mean 'conv'"},
        {LAYERS "  - conv: {chanels: 4}\n", 3, 9, 9, "did you mean 'channels'"},
        {LAYERS "  - conv\n", 3, 9, 9, "model.layers[0].conv"},
        {LAYERS "  - conv: {channels: 0}\n", 3, 9, 9, "model.layers[0].conv.channels"},
        {LAYERS "  - conv: {channels: 4, kernel: 0}\n", 3, 9, 9, "conv.kernel"},
        {LAYERS "  - conv: {channels: 4, kernel: [1, 2, 3]}\n", 3, 9, 9,
         "model.layers[0].conv.kernel: expected one number or [height, width], got 3 numbers"},
        {LAYERS "  - conv: {channels: 4, kernel: []}\n", 3, 9, 9, "conv.kernel"},
        {LAYERS "  - conv: {channels: 4, padding: samee}\n", 3, 9, 9,
         "'samee' is neither a number nor [height, width] nor same nor valid"},
        {LAYERS "  - conv: {channels: 4, padding: -1}\n", 3, 9, 9, "conv.padding"},
        {LAYERS "  - conv: {channels: 4, init: heh}\n", 3, 9, 9,
         "conv.init: 'heh' is none of zero, he, xavier, lecun, pytorch, orthogonal, {normal: "
         "SIGMA} or {uniform: LIMIT}; did you mean 'he'?"},
        {LAYERS "  - conv: {channels: 4, init: normal}\n", 3, 9, 9,
         "conv.init: normal requires its standard deviation: write `init: {normal: 0.02}`"},
        {LAYERS "  - conv: {channels: 4, init: {he: 1}}\n", 3, 9, 9,
         "conv.init: he takes no number: write `init: he`"},
        {LAYERS "  - conv: {channels: 4, init: {normal: -1}}\n", 3, 9, 9,
         "conv.init.normal: -1 is not in 0 … 1000000"},
        {LAYERS "  - dense: {outputs: 4, init: [he]}\n", 3, 9, 9,
         "dense.init: expected one of zero, he, xavier, lecun, pytorch, orthogonal, {normal: "
         "SIGMA} or {uniform: LIMIT}"},
        {LAYERS "  - dense: {outputs: 4, init: uniform}\n", 3, 9, 9,
         "dense.init: uniform requires its largest absolute value: write `init: {uniform: 0.02}`"},
        {LAYERS "  - dense: {outputs: 4, init: {orthogonal: 1}}\n", 3, 9, 9,
         "dense.init: orthogonal takes no number: write `init: orthogonal`"},
        {LAYERS "  - dense: {outputs: 4, init: {normal: 1, he: 2}}\n", 3, 9, 9,
         "dense.init: expected one of"},
        {LAYERS "  - maxpool\n", 3, 9, 9, "size"},
        {LAYERS "  - upsample: {scale: 2, mode: cubic}\n", 3, 9, 9,
         "upsample.mode: 'cubic' is none of nearest, bilinear"},
        {LAYERS "  - upsample: 0\n", 3, 9, 9, "upsample.scale"},
        {LAYERS "  - adaptive_avgpool: [1, 2, 3]\n", 3, 9, 9,
         "adaptive_avgpool.size: expected one number or [height, width], got 3 numbers"},
        {LAYERS "  - conv1d: {channels: 4, padding: [1, 2]}\n", 3, 1, 9,
         "conv1d.padding: expected one number, same or valid, got a list"},
        {LAYERS "  - conv1d: {channels: 4, kernel: [1, 2]}\n", 3, 1, 9,
         "conv1d.kernel: expected a whole number, got a list"},
        {LAYERS "  - groupnorm\n", 3, 9, 9, "groupnorm.groups: must be given: a whole number"},
        {LAYERS "  - maxpool: {size: 2, stride: self}\n", 3, 9, 9, "nor auto"},
        {LAYERS "  - relu: 3\n", 3, 9, 9, "model.layers[0].relu: takes no value"},
        {LAYERS "  - relu: [3]\n", 3, 9, 9, "model.layers[0].relu: takes no value"},
        {LAYERS "  - dropout: 1\n", 3, 9, 9, "dropout.rate"},
        {LAYERS "  - [conv, relu]\n", 3, 9, 9, "model.layers[0]"},
        {LAYERS "  - conv:\n    channels: 4\n", 3, 9, 9, "model.layers[0]"},
        {LAYERS "  - {}\n", 3, 9, 9, "model.layers[0]"},
        {"model: {type: sequential, layers: []}\n", 3, 9, 9, "list of layers is empty"},
        {"model: {type: sequential, layers: 3}\n", 3, 9, 9, "model.layers"},
        {"model: sequential\n", 3, 9, 9, "layers"},
        {"model: {type: mlp}\n", 3, 9, 9, "model mlp (dense2): its outputs are left to the data"},
        {"model: {type: mlp, outputs: 0}\n", 3, 9, 9, "model.outputs: 0 is not in 1"},
        {LAYERS "  - dense\n  - relu\n  - dense: 3\n", 3, 9, 9,
         "model.layers[0].dense.outputs: must be given: a whole number; only the last layer"},
        {LAYERS "  - residual: [dense]\n", 3, 9, 9,
         "model.layers[0].residual.layers[0].dense.outputs: must be given"},
        {"model: {type: mlp, outputs: 3, hidden: [0]}\n", 3, 9, 9, "hidden"},
        {LAYERS "  - dense: {outputs: 3, name: a/b}\n", 3, 9, 9, "'a/b' is no name"},
        {LAYERS "  - dense: {outputs: 3, name: ..}\n", 3, 9, 9, "'..' is no name"},
        {LAYERS "  - dense: {outputs: 3, name: input}\n", 3, 9, 9, "what the model reads"},
        {LAYERS "  - relu: {name: a}\n  - tanh: {name: a}\n", 3, 9, 9,
         "an earlier layer has the name 'a' too"},
        {LAYERS "  - relu: {name: abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst}\n", 3, 9, 9,
         "is no name"},
    };

    (void)state;
    assert_told(cases, sizeof cases / sizeof cases[0]);
}

/* Not only the first error, each at its own line. */
static void all_mistakes_are_listed(void **state)
{
    static const char text[] = LAYERS "  - conw: {channels: 4}\n  - maxpool: 0\n  - dense: ten\n"
                                      "  - relu\n  - rellu\n";
    static const char *const want[] = {"job.yaml:4:", "job.yaml:5:", "job.yaml:6:", "job.yaml:8:"};
    struct dpt_graph graph;
    struct dpt_error err = {0};

    (void)state;
    assert_int_equal(build_model(text, 3, 9, 9, &graph, &err), DPT_BAD_JOB);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        if (strstr(err.text, want[i]) == NULL)
            fail_msg("no %s in:\n%s", want[i], err.text);
    assert_null(strstr(err.text, "job.yaml:7:"));
}

/* A 1-D convolution is one whose window is a row. */
static void lines_are_planes_of_one_row(void **state)
{
    static const char *const texts[] = {
        LAYERS
        "  - conv1d: {name: a, channels: 6, kernel: 5, stride: 2, padding: same, groups: 3}\n"
        "  - conv1d: {name: b, channels: 4, padding: 2, dilation: 3, bias: false}\n  - flatten\n",
        LAYERS
        "  - conv: {name: a, channels: 6, kernel: [1, 5], stride: [1, 2], padding: same, "
        "groups: 3}\n"
        "  - conv: {name: b, channels: 4, kernel: [1, 3], padding: [0, 2], dilation: [1, 3], "
        "bias: false}\n  - flatten\n"};
    struct dpt_graph graph[2];

    (void)state;
    for (int k = 0; k < 2; k++)
        must_build(texts[k], 3, 1, 21, &graph[k]);
    for (int k = 0; k < 3; k += 2) { /* but for the height of the weights */
        struct dpt_tensor *line = &graph[0].tensors[k], *plane = &graph[1].tensors[k];

        assert_true(line->n_dims == 3 && plane->n_dims == 4 && line->dims[0] == plane->dims[0] &&
                    line->dims[1] == plane->dims[1] && line->dims[2] == plane->dims[3]);
        memcpy(line->dims, plane->dims, sizeof line->dims);
    }
    assert_same_graph(&graph[0], &graph[1]);
    assert_int_equal(graph[0].nodes[2].out.w, 9);
    for (int k = 0; k < 2; k++)
        dpt_graph_release(&graph[k]);
}

#define X(NAME, name) +1
enum { LAYER_OPERATIONS = 0 DPT_LAYER_OPERATIONS(X) };
#undef X

/* Each operation but the input and kinds of others has one layer, of its name, whose options are
 * its attributes. */
static void layers_are_operations(void **state)
{
    (void)state;
    for (int op = 1; op <= LAYER_OPERATIONS; op++) {
        const struct dpt_layer_type *type = dpt_layer_types[op - 1];

        assert_int_equal(type->op, op);
        assert_string_equal(type->name, dpt_operations[op]->name);
        assert_true(strlen(type->summary) > 0);
        for (int k = 0; k < DPT_MAX_ATTRIBUTES && dpt_operations[op]->attributes[k] != NULL; k++) {
            const struct dpt_option *o = type->options;

            while (o->name != NULL && strcmp(o->name, dpt_operations[op]->attributes[k]) != 0)
                o++;
            assert_non_null(o->name);
        }
    }
    assert_ptr_equal(dpt_layer_types[LAYER_OPERATIONS], &dpt_layer_conv1d);
    assert_ptr_equal(dpt_layer_types[LAYER_OPERATIONS + 1], &dpt_layer_residual);
    assert_null(dpt_layer_types[LAYER_OPERATIONS + 2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_operations),
        cmocka_unit_test(lines_are_planes_of_one_row),
        cmocka_unit_test(parameters_are_counted),
        cmocka_unit_test(layers_of_vgg_have_their_names),
        cmocka_unit_test(graph_is_well_formed),
        cmocka_unit_test(names_are_unique),
        cmocka_unit_test(resolved_model_is_the_same),
        cmocka_unit_test(shapes_that_do_not_fit_are_told),
        cmocka_unit_test(mistakes_in_layers_are_told),
        cmocka_unit_test(all_mistakes_are_listed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

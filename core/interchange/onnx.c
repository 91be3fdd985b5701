/*
 * ONNX: the model as a graph with its weights, for onnxruntime and others; written, not read.
 *
 * A ModelProto of operator set 17, which all runtimes since 2022 know: input "input" [batch, c, h,
 * w] (or [batch, n]), normalised float32 as training sees it, output "logits" [batch, outputs], any
 * batch. What normalised means is in the model's metadata. Dropout does nothing when a model is
 * used, and is left out; GELU is made of Erf. Field numbers are those of onnx.proto3 (ONNX 1.12).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/proto.h"
#include "core/interchange/weights.h"

enum {
    IR_VERSION = 8,
    OPERATORS = 17,
    TYPE_FLOAT = 1, /* TensorProto.DataType */
    VALUE = DPT_NAME + 16,
};

/* AttributeProto.AttributeType */
enum { ATTRIBUTE_INT = 2, ATTRIBUTE_INTS = 7 };

/* No reader of Protocol Buffers takes more. */
static const uint64_t MOST = INT32_MAX;

static const char input_name[] = "input", output_name[] = "logits";

/* The graph as it grows. */
struct writer {
    const struct dpt_model_view *view;
    struct dpt_str nodes; /* GraphProto.node */
    struct dpt_str op;    /* the NodeProto under way */
    char (*value)[VALUE]; /* for each node the name of what it gives */
    bool constants;       /* GELU's are wanted */
};

/* --- nodes --------------------------------------------------------------------------------------
 */

static void begin_op(struct writer *w, const char *input)
{
    dpt_str_clear(&w->op);
    dpt_proto_text(&w->op, 1, input);
}

static void add_input(struct writer *w, const char *input)
{
    dpt_proto_text(&w->op, 1, input);
}

static void add_ints(struct writer *w, const char *name, const int64_t *values, size_t n)
{
    struct dpt_str attribute = {0};

    dpt_proto_text(&attribute, 1, name);
    dpt_proto_ints(&attribute, 8, values, n);
    dpt_proto_int(&attribute, 20, ATTRIBUTE_INTS);
    dpt_proto_message(&w->op, 5, &attribute);
    dpt_str_release(&attribute);
}

static void add_int(struct writer *w, const char *name, int64_t value)
{
    struct dpt_str attribute = {0};

    dpt_proto_text(&attribute, 1, name);
    dpt_proto_int(&attribute, 3, value);
    dpt_proto_int(&attribute, 20, ATTRIBUTE_INT);
    dpt_proto_message(&w->op, 5, &attribute);
    dpt_str_release(&attribute);
}

static void end_op(struct writer *w, const char *name, const char *type, const char *output)
{
    dpt_proto_text(&w->op, 2, output);
    dpt_proto_text(&w->op, 3, name);
    dpt_proto_text(&w->op, 4, type);
    dpt_proto_message(&w->nodes, 1, &w->op);
}

static void add_weights(struct writer *w, const struct dpt_graph_node *node)
{
    char name[DPT_NAME];

    add_input(w, dpt_weight_name(&w->view->graph->tensors[node->weight], name));
    if (node->bias >= 0)
        add_input(w, dpt_weight_name(&w->view->graph->tensors[node->bias], name));
}

static void add_window(struct writer *w, const struct dpt_window *window, bool dilated)
{
    const int64_t kernel[] = {window->kernel[0], window->kernel[1]};
    const int64_t strides[] = {window->stride[0], window->stride[1]};
    const int64_t dilations[] = {window->dilation[0], window->dilation[1]};
    const int64_t pads[] = {window->before[0], window->before[1], window->after[0],
                            window->after[1]};

    add_ints(w, "kernel_shape", kernel, 2);
    add_ints(w, "strides", strides, 2);
    add_ints(w, "pads", pads, 4);
    if (dilated)
        add_ints(w, "dilations", dilations, 2);
}

static void put_conv(struct writer *w, const struct dpt_graph_node *node, const char *in,
                     const char *out)
{
    begin_op(w, in);
    add_weights(w, node);
    add_window(w, &node->window, true);
    add_int(w, "group", node->window.groups);
    end_op(w, node->name, "Conv", out);
}

static void put_dense(struct writer *w, const struct dpt_graph_node *node, const char *in,
                      const char *out)
{
    begin_op(w, in);
    add_weights(w, node);
    add_int(w, "transB", 1);
    end_op(w, node->name, "Gemm", out);
}

static void put_maxpool(struct writer *w, const struct dpt_graph_node *node, const char *in,
                        const char *out)
{
    begin_op(w, in);
    add_window(w, &node->window, false);
    end_op(w, node->name, "MaxPool", out);
}

static void put_avgpool(struct writer *w, const struct dpt_graph_node *node, const char *in,
                        const char *out)
{
    begin_op(w, in);
    add_window(w, &node->window, false);
    add_int(w, "count_include_pad", 1);
    end_op(w, node->name, "AveragePool", out);
}

static void put_flatten(struct writer *w, const struct dpt_graph_node *node, const char *in,
                        const char *out)
{
    begin_op(w, in);
    add_int(w, "axis", 1);
    end_op(w, node->name, "Flatten", out);
}

static void put_global_avgpool(struct writer *w, const struct dpt_graph_node *node, const char *in,
                               const char *out)
{
    struct dpt_graph_node flat = *node;
    char mean[VALUE];

    snprintf(mean, sizeof mean, "%s/mean", node->name);
    begin_op(w, in);
    end_op(w, node->name, "GlobalAveragePool", mean);
    snprintf(flat.name, sizeof flat.name, "%.*s/flat", DPT_NAME - 8, node->name);
    put_flatten(w, &flat, mean, out);
}

/* x Phi(x) = x (1 + erf(x / sqrt(2))) / 2; Gelu itself came with operator set 20. */
static void put_gelu(struct writer *w, const struct dpt_graph_node *node, const char *in,
                     const char *out)
{
    static const struct {
        const char *suffix, *type, *constant;
    } steps[] = {
        {"scaled", "Div", "gelu/sqrt2"}, {"erf", "Erf", NULL},
        {"shifted", "Add", "gelu/one"},  {"times", "Mul", NULL}, /* by the input */
        {NULL, "Mul", "gelu/half"},
    };
    enum { STEPS = sizeof steps / sizeof steps[0] };
    char value[VALUE], next[VALUE];

    w->constants = true;
    snprintf(value, sizeof value, "%s", in);
    for (size_t i = 0; i < STEPS; i++) {
        if (i + 1 < STEPS)
            snprintf(next, sizeof next, "%s/%s", node->name, steps[i].suffix);
        begin_op(w, value);
        if (steps[i].constant != NULL)
            add_input(w, steps[i].constant);
        else if (strcmp(steps[i].type, "Mul") == 0)
            add_input(w, in);
        end_op(w, i + 1 < STEPS ? next : node->name, steps[i].type, i + 1 < STEPS ? next : out);
        memcpy(value, next, sizeof value);
    }
}

static void put_simple(struct writer *w, const struct dpt_graph_node *node, const char *in,
                       const char *out)
{
    static const char *const types[DPT_OP_COUNT] = {
        [DPT_OP_RELU] = "Relu", [DPT_OP_TANH] = "Tanh", [DPT_OP_SIGMOID] = "Sigmoid"};

    begin_op(w, in);
    end_op(w, node->name, types[node->op], out);
}

/* NULL: it gives what it gets. */
static void (*const put[DPT_OP_COUNT])(struct writer *w, const struct dpt_graph_node *node,
                                       const char *in, const char *out) = {
    [DPT_OP_CONV] = put_conv,
    [DPT_OP_DENSE] = put_dense,
    [DPT_OP_MAXPOOL] = put_maxpool,
    [DPT_OP_AVGPOOL] = put_avgpool,
    [DPT_OP_GLOBAL_AVGPOOL] = put_global_avgpool,
    [DPT_OP_FLATTEN] = put_flatten,
    [DPT_OP_RELU] = put_simple,
    [DPT_OP_GELU] = put_gelu,
    [DPT_OP_TANH] = put_simple,
    [DPT_OP_SIGMOID] = put_simple,
};

static enum dpt_status put_nodes(struct writer *w, struct dpt_error *err)
{
    const struct dpt_graph *g = w->view->graph;
    int32_t last = g->n_nodes - 1;

    w->value = calloc((size_t)g->n_nodes, sizeof *w->value);
    if (w->value == NULL)
        return dpt_fail_memory(err, "an ONNX model", (double)g->n_nodes * VALUE);
    while (last > 0 && put[g->nodes[last].op] == NULL)
        last--;
    snprintf(w->value[0], VALUE, "%s", input_name);
    for (int32_t k = 1; k < g->n_nodes; k++) {
        const struct dpt_graph_node *node = &g->nodes[k];
        const char *in = w->value[node->inputs[0]];

        if (put[node->op] == NULL) {
            memcpy(w->value[k], in, VALUE);
            continue;
        }
        if (k == last)
            snprintf(w->value[k], VALUE, "%s", output_name);
        else /* with a slash, so that it is no name of a tensor, of the input or the output */
            snprintf(w->value[k], VALUE, "%s/out", node->name);
        put[node->op](w, node, in, w->value[k]);
    }
    return DPT_OK;
}

/* --- what is around them ------------------------------------------------------------------------
 */

/* GELU's numbers. */
static void put_constants(struct dpt_str *graph)
{
    static const struct {
        const char *name;
        float value;
    } constants[] = {
        {"gelu/sqrt2", 1.41421356237309504880F}, {"gelu/one", 1.0F}, {"gelu/half", 0.5F}};
    struct dpt_str tensor = {0};

    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        dpt_proto_int(&tensor, 2, TYPE_FLOAT);
        dpt_proto_text(&tensor, 8, constants[i].name);
        dpt_proto_bytes(&tensor, 9, &constants[i].value, sizeof constants[i].value);
        dpt_proto_message(graph, 5, &tensor);
    }
    dpt_str_release(&tensor);
}

/* A ValueInfoProto: floats, [batch, ...]. */
static void put_value(struct dpt_str *graph, int field, const char *name, const int64_t *dims,
                      size_t n)
{
    struct dpt_str one = {0}, shape = {0}, tensor = {0}, type = {0}, value = {0};

    dpt_proto_text(&one, 2, "batch");
    dpt_proto_message(&shape, 1, &one);
    for (size_t i = 0; i < n; i++) {
        dpt_proto_int(&one, 1, dims[i]);
        dpt_proto_message(&shape, 1, &one);
    }
    dpt_proto_int(&tensor, 1, TYPE_FLOAT);
    dpt_proto_message(&tensor, 2, &shape);
    dpt_proto_message(&type, 1, &tensor);
    dpt_proto_text(&value, 1, name);
    dpt_proto_message(&value, 2, &type);
    dpt_proto_message(graph, field, &value);
    dpt_str_release(&one);
    dpt_str_release(&shape);
    dpt_str_release(&tensor);
    dpt_str_release(&type);
    dpt_str_release(&value);
}

static void put_property(struct dpt_str *model, const char *key, const char *text)
{
    struct dpt_str entry = {0};

    dpt_proto_text(&entry, 1, key);
    dpt_proto_text(&entry, 2, text != NULL ? text : "");
    dpt_proto_message(model, 14, &entry);
    dpt_str_release(&entry);
}

/* All of the graph but the tensors of the arena. */
static void put_rest(const struct writer *w, struct dpt_str *graph)
{
    const struct dpt_graph *g = w->view->graph;
    const struct dpt_shape *in = &g->nodes[0].out;
    const int64_t dims[] = {in->c, in->h, in->w}, outputs = g->nodes[g->n_nodes - 1].out.c;

    dpt_str_add(graph, w->nodes.text, w->nodes.length);
    graph->failed = graph->failed || w->nodes.failed;
    dpt_proto_text(graph, 2, "dptrain");
    put_value(graph, 11, input_name, dims, in->flat ? 1 : 3);
    put_value(graph, 12, output_name, &outputs, 1);
    if (w->constants)
        put_constants(graph);
}

/* The model in front of its graph. */
static void put_model(const struct dpt_model_view *view, struct dpt_str *model)
{
    struct dpt_str text = {0};
    char step[32];

    dpt_proto_int(model, 1, IR_VERSION);
    dpt_proto_text(model, 2, "dptrain");
    dpt_proto_text(model, 3, view->producer);
    dpt_proto_int(&text, 2, OPERATORS); /* OperatorSetIdProto, of the default domain */
    dpt_proto_message(model, 8, &text);
    snprintf(step, sizeof step, "%lld", (long long)view->step);
    put_property(model, "step", step);
    dpt_reals_json(&view->normalize->mean, &text);
    put_property(model, "normalize_mean", text.text);
    dpt_str_clear(&text);
    dpt_reals_json(&view->normalize->std, &text);
    put_property(model, "normalize_std", text.text);
    put_property(model, "input",
                 "(x - normalize_mean) / normalize_std for each channel; x: bytes divided by 255, "
                 "or numbers as they are; an empty list: nothing is subtracted or divided");
    model->failed = model->failed || text.failed;
    dpt_str_release(&text);
}

/* A TensorProto's head, up to its bytes, with what stands in front of it in the graph. */
static void put_tensor(const struct dpt_tensor *t, struct dpt_str *head)
{
    struct dpt_str tensor = {0};
    char name[DPT_NAME];

    dpt_proto_ints(&tensor, 1, t->dims, (size_t)t->n_dims);
    dpt_proto_int(&tensor, 2, TYPE_FLOAT);
    dpt_proto_text(&tensor, 8, dpt_weight_name(t, name));
    dpt_proto_head(&tensor, 9, (uint64_t)t->count * sizeof(float));
    dpt_proto_head(head, 5, tensor.length + (uint64_t)t->count * sizeof(float));
    dpt_str_add(head, tensor.text, tensor.length);
    head->failed = head->failed || tensor.failed;
    dpt_str_release(&tensor);
}

/* The file in pieces: the model, the graph's head and rest, then for each tensor its head, from
 * `heads`, and its bytes, which are not copied. */
static enum dpt_status write_pieces(const struct writer *w, struct dpt_file_piece *pieces,
                                    struct dpt_str *heads, const char *path, struct dpt_error *err)
{
    const struct dpt_graph *g = w->view->graph;
    enum dpt_status status = DPT_OK;
    struct dpt_str front = {0}, rest = {0};
    uint64_t bytes;

    put_rest(w, &rest);
    bytes = rest.length;
    for (int32_t k = 0; k < g->n_tensors; k++) {
        put_tensor(&g->tensors[k], &heads[k]);
        bytes += heads[k].length + (uint64_t)g->tensors[k].count * sizeof(float);
        rest.failed = rest.failed || heads[k].failed;
    }
    put_model(w->view, &front);
    dpt_proto_head(&front, 7, bytes);
    if (front.failed || rest.failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)rest.length));
    if (front.length + bytes > MOST)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "%s: the model has %.1f GB and an ONNX file at most 2: --to safetensors",
                         path, (double)bytes / 1e9));
    pieces[0] = (struct dpt_file_piece){front.text, front.length};
    pieces[1] = (struct dpt_file_piece){rest.text, rest.length};
    for (int32_t k = 0; k < g->n_tensors; k++) {
        const struct dpt_tensor *t = &g->tensors[k];

        pieces[2 + 2 * k] = (struct dpt_file_piece){heads[k].text, heads[k].length};
        pieces[3 + 2 * k] =
            (struct dpt_file_piece){w->view->params + t->offset, (size_t)t->count * sizeof(float)};
    }
    DPT_TRY(dpt_file_write_pieces(path, pieces, 2 + 2 * (size_t)g->n_tensors, err));
out:
    dpt_str_release(&front);
    dpt_str_release(&rest);
    return status;
}

static enum dpt_status write_onnx(const struct dpt_model_view *view, const char *path,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)view->graph->n_tensors;
    struct writer w = {.view = view};
    struct dpt_file_piece *pieces = calloc(2 + 2 * n, sizeof *pieces);
    struct dpt_str *heads = calloc(n, sizeof *heads);

    if (pieces == NULL || heads == NULL)
        DPT_TRY(dpt_fail_memory(err, path, (double)n * sizeof *heads));
    DPT_TRY(put_nodes(&w, err));
    DPT_TRY(write_pieces(&w, pieces, heads, path, err));
out:
    for (size_t k = 0; heads != NULL && k < n; k++)
        dpt_str_release(&heads[k]);
    free(heads);
    free(pieces);
    free(w.value);
    dpt_str_release(&w.nodes);
    dpt_str_release(&w.op);
    return status;
}

const struct dpt_weights_format dpt_weights_onnx = {
    .name = "onnx",
    .suffix = ".onnx",
    .summary =
        "the whole model, for onnxruntime, OpenVINO or TensorRT; `input` is normalised as in "
        "training, `logits` is what the last layer gives",
    .write = write_onnx,
};

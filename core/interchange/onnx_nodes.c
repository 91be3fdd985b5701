/* The nodes of an ONNX graph, and the numbers that they are made with. */
#include "core/interchange/onnx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/proto.h"

enum {
    VALUE = DPT_NAME + 16,
    CONSTANTS = 32, /* more than all operations have */
};

/* AttributeProto.AttributeType */
enum { ATTRIBUTE_FLOAT = 1, ATTRIBUTE_INT = 2, ATTRIBUTE_STRING = 3, ATTRIBUTE_INTS = 7 };

static const char logits_name[] = "logits", probabilities_name[] = "probabilities";

/* The graph as it grows. */
struct writer {
    const struct dpt_model_view *view;
    struct dpt_str *nodes;     /* GraphProto.node */
    struct dpt_str op;         /* the NodeProto being written */
    char (*value)[VALUE];      /* for each node the name of what it gives */
    struct dpt_str *constants; /* GraphProto.initializer: numbers that operations are made with */
    const char *constant[CONSTANTS]; /* their names */
    int n_constants;
};

/* An AttributeProto whose value stands in `value` already. */
static void add_attribute(struct writer *w, const char *name, int type, struct dpt_str *value)
{
    struct dpt_str attribute = {0};

    dpt_proto_text(&attribute, 1, name);
    dpt_str_add(&attribute, value->text, value->length);
    dpt_proto_int(&attribute, 20, type);
    attribute.failed = attribute.failed || value->failed;
    dpt_proto_message(&w->op, 5, &attribute);
    dpt_str_release(&attribute);
    dpt_str_release(value);
}

static void add_value(struct writer *w, const struct dpt_graph_node *node, const char *name,
                      enum dpt_onnx_value source, int number, const char *text)
{
    const struct dpt_window *window = &node->window;
    const int32_t *const pairs[] = {[DPT_ONNX_KERNEL] = window->kernel,
                                    [DPT_ONNX_STRIDES] = window->stride,
                                    [DPT_ONNX_DILATIONS] = window->dilation};
    int64_t ints[4] = {window->before[0], window->before[1], window->after[0], window->after[1]};
    struct dpt_str value = {0};

    switch (source) {
    case DPT_ONNX_INT:
    case DPT_ONNX_GROUP:
        dpt_proto_int(&value, 3, source == DPT_ONNX_INT ? number : window->groups);
        add_attribute(w, name, ATTRIBUTE_INT, &value);
        break;
    case DPT_ONNX_TEXT:
        dpt_proto_text(&value, 4, text);
        add_attribute(w, name, ATTRIBUTE_STRING, &value);
        break;
    case DPT_ONNX_FLOAT:
        dpt_proto_float(&value, 2, node->attribute[number]);
        add_attribute(w, name, ATTRIBUTE_FLOAT, &value);
        break;
    case DPT_ONNX_KERNEL:
    case DPT_ONNX_STRIDES:
    case DPT_ONNX_DILATIONS:
        ints[0] = pairs[source][0];
        ints[1] = pairs[source][1];
        /* fall through */
    case DPT_ONNX_PADS:
        dpt_proto_ints(&value, 8, ints, source == DPT_ONNX_PADS ? 4 : 2);
        add_attribute(w, name, ATTRIBUTE_INTS, &value);
        break;
    }
}

/* A TensorProto with all its bytes; n_dims 0: a scalar. */
static void put_constant(struct writer *w, const char *name, int type, const int64_t *dims,
                         size_t n_dims, const void *bytes, size_t n)
{
    struct dpt_str tensor = {0};

    if (n_dims > 0)
        dpt_proto_ints(&tensor, 1, dims, n_dims);
    dpt_proto_int(&tensor, 2, type);
    dpt_proto_text(&tensor, 8, name);
    dpt_proto_bytes(&tensor, 9, bytes, n);
    dpt_proto_message(w->constants, 5, &tensor);
    dpt_str_release(&tensor);
}

/* Adds a constant of that name, once for the whole graph. */
static const char *add_constant(struct writer *w, const char *name, float number)
{
    for (int i = 0; i < w->n_constants; i++)
        if (strcmp(w->constant[i], name) == 0)
            return name;
    if (w->n_constants < CONSTANTS)
        w->constant[w->n_constants++] = name;
    put_constant(w, name, DPT_ONNX_TYPE_FLOAT, NULL, 0, &number, sizeof number);
    return name;
}

/* A constant for each group of a node. */
static void put_groups(struct writer *w, const char *name, const struct dpt_graph_node *node,
                       float number)
{
    const int64_t n = node->window.groups;
    float *numbers = calloc((size_t)n, sizeof *numbers);

    w->constants->failed = w->constants->failed || numbers == NULL;
    for (int64_t i = 0; numbers != NULL && i < n; i++)
        numbers[i] = number;
    if (numbers != NULL)
        put_constant(w, name, DPT_ONNX_TYPE_FLOAT, &n, 1, numbers, (size_t)n * sizeof *numbers);
    free(numbers);
}

/* The means of an adaptive pool along an axis as a matrix, [outputs][inputs] or (columns) its
 * transpose. */
static void put_means(struct writer *w, const char *name, int64_t in, int64_t out, bool columns)
{
    const int64_t dims[] = {columns ? in : out, columns ? out : in};
    float *means = calloc((size_t)(in * out), sizeof *means);

    w->constants->failed = w->constants->failed || means == NULL;
    for (int64_t o = 0; means != NULL && o < out; o++) {
        const int64_t first = o * in / out, last = ((o + 1) * in + out - 1) / out;

        for (int64_t i = first; i < last; i++)
            means[columns ? i * out + o : o * in + i] = 1 / (float)(last - first);
    }
    if (means != NULL)
        put_constant(w, name, DPT_ONNX_TYPE_FLOAT, dims, 2, means,
                     (size_t)(in * out) * sizeof *means);
    free(means);
}

/* Adds a constant of a node; its name to `full`, VALUE bytes. */
static const char *add_of_node(struct writer *w, const struct dpt_graph_node *node,
                               enum dpt_onnx_source source, const char *name, float number,
                               char *full)
{
    const struct dpt_shape *in = &node->in, *out = &node->out;
    const int32_t *kernel = node->window.kernel;
    const int64_t shape[] = {0, out->c, out->h, out->w}, groups[] = {0, node->window.groups, -1};
    const float scales[] = {1, 1, (float)kernel[0], (float)kernel[1]};
    const int64_t three = 3, four = 4, dims = out->flat ? 2 : 4;

    snprintf(full, VALUE, "%s/%s", node->name, name);
    if (source == DPT_ONNX_EACH_GROUP)
        put_groups(w, full, node, number);
    else if (source == DPT_ONNX_GROUPS_SHAPE)
        put_constant(w, full, DPT_ONNX_TYPE_INT64, &three, 1, groups, sizeof groups);
    else if (source == DPT_ONNX_OUT_SHAPE)
        put_constant(w, full, DPT_ONNX_TYPE_INT64, &dims, 1, shape, (size_t)dims * sizeof *shape);
    else if (source == DPT_ONNX_SCALES)
        put_constant(w, full, DPT_ONNX_TYPE_FLOAT, &four, 1, scales, sizeof scales);
    else if (source == DPT_ONNX_ROW_MEANS)
        put_means(w, full, in->h, out->h, false);
    else if (source == DPT_ONNX_COLUMN_MEANS)
        put_means(w, full, in->w, out->w, true);
    else
        full[0] = '\0';
    return full;
}

static void add_inputs(struct writer *w, const struct dpt_graph_node *node,
                       const struct dpt_onnx_step *step, const char *in)
{
    const char *other = node->n_inputs > 1 ? w->value[node->inputs[1]] : in;
    const int32_t tensors[] = {[DPT_ONNX_WEIGHT] = node->weight,
                               [DPT_ONNX_BIAS] = node->bias,
                               [DPT_ONNX_MEAN] = node->mean,
                               [DPT_ONNX_VARIANCE] = node->variance};
    char name[DPT_NAME], full[VALUE];

    for (int i = 0; i < DPT_ONNX_INPUTS; i++) {
        const enum dpt_onnx_source source = step->with[i].source;

        if (source == DPT_ONNX_X)
            dpt_proto_text(&w->op, 1, in);
        else if (source == DPT_ONNX_OTHER)
            dpt_proto_text(&w->op, 1, other);
        else if (source == DPT_ONNX_NUMBER)
            dpt_proto_text(&w->op, 1, add_constant(w, step->with[i].name, step->with[i].number));
        else if (source > DPT_ONNX_NUMBER)
            dpt_proto_text(
                &w->op, 1,
                add_of_node(w, node, source, step->with[i].name, step->with[i].number, full));
        else if (source != DPT_ONNX_NONE && tensors[source] >= 0)
            dpt_proto_text(&w->op, 1,
                           dpt_weight_name(&w->view->graph->tensors[tensors[source]], name));
    }
}

/* The steps of a node's row (core/backend/operation.h), one after the other. */
static void put_node(struct writer *w, const struct dpt_graph_node *node, const char *in,
                     const char *out)
{
    const struct dpt_onnx_step *step = dpt_operation_of(node)->onnx;
    char value[VALUE], next[VALUE];

    snprintf(value, sizeof value, "%s", in);
    for (int k = 0; k < DPT_ONNX_STEPS && step[k].type != NULL; k++) {
        const bool end = step[k].result == NULL;

        snprintf(next, sizeof next, "%s/%s", node->name, end ? "" : step[k].result);
        dpt_str_clear(&w->op);
        if (!step[k].last)
            dpt_proto_text(&w->op, 1, value);
        add_inputs(w, node, &step[k], in);
        if (step[k].last)
            dpt_proto_text(&w->op, 1, value);
        for (int i = 0; i < DPT_ONNX_ATTRIBUTES && step[k].attribute[i].name != NULL; i++)
            add_value(w, node, step[k].attribute[i].name, step[k].attribute[i].value,
                      step[k].attribute[i].number, step[k].attribute[i].text);
        dpt_proto_text(&w->op, 2, end ? out : next);
        dpt_proto_text(&w->op, 3, end ? node->name : next);
        dpt_proto_text(&w->op, 4, step[k].type);
        dpt_proto_message(w->nodes, 1, &w->op);
        memcpy(value, next, sizeof value);
    }
}

/* A node of two inputs, or of one, without a row of its own. */
static void put_step(struct writer *w, const char *type, const char *in, const char *other,
                     const char *out)
{
    dpt_proto_text(&w->op, 1, in);
    if (other != NULL)
        dpt_proto_text(&w->op, 1, other);
    dpt_proto_text(&w->op, 2, out);
    dpt_proto_text(&w->op, 3, out);
    dpt_proto_text(&w->op, 4, type);
    dpt_proto_message(w->nodes, 1, &w->op);
}

/* x becomes x - numbers or x / numbers, of which there is one for all channels or one for each, or
 * none: then nothing is done. value: what x is called; `out` afterwards. */
static void put_with_reals(struct writer *w, const char *type, const struct dpt_reals *reals,
                           const char *name, const char *out, char value[VALUE])
{
    const int64_t dims[] = {(int64_t)reals->n, 1, 1};
    const bool planes = !w->view->graph->nodes[0].out.flat;
    float *numbers = malloc((reals->n + 1) * sizeof *numbers);

    w->constants->failed = w->constants->failed || numbers == NULL;
    for (size_t i = 0; numbers != NULL && i < reals->n; i++)
        numbers[i] = (float)reals->at[i];
    if (numbers != NULL && reals->n > 0) {
        put_constant(w, name, DPT_ONNX_TYPE_FLOAT, dims,
                     reals->n == 1 ? 0
                     : planes      ? 3
                                   : 1,
                     numbers, reals->n * sizeof *numbers);
        put_step(w, type, value, name, out);
        snprintf(value, VALUE, "%s", out);
    }
    free(numbers);
}

/* What floats leave of means that are far from 0, as times are: subtracted last it is exact. */
static void put_rest(struct writer *w, const struct dpt_reals *mean, char value[VALUE])
{
    struct dpt_reals rest = {.at = malloc((mean->n + 1) * sizeof *rest.at), .n = mean->n};
    const struct dpt_reals *std = &w->view->normalize->std;
    bool matters = false;

    w->constants->failed = w->constants->failed || rest.at == NULL;
    for (size_t i = 0; rest.at != NULL && i < mean->n; i++) {
        const double s = std->n == 0 ? 1 : std->at[std->n == 1 ? 0 : i];

        rest.at[i] = mean->at[i] - (double)(float)mean->at[i];
        matters = matters || fabs(rest.at[i]) > 1e-4 * s;
    }
    if (matters)
        put_with_reals(w, "Sub", &rest, "input/mean_rest", "input/centered_rest", value);
    free(rest.at);
}

/* What is done to samples before the first layer sees them. */
static void put_normalize(struct writer *w, char value[VALUE])
{
    const struct dpt_normalize *normalize = w->view->normalize;

    if (w->view->normalized)
        return;
    if (w->view->bytes) {
        put_step(w, "Div", value, add_constant(w, "input/255", 255), "input/unit");
        snprintf(value, VALUE, "input/unit");
    }
    put_with_reals(w, "Sub", &normalize->mean, "input/mean", "input/centered", value);
    put_rest(w, &normalize->mean, value);
    put_with_reals(w, "Div", &normalize->std, "input/std", "input/scaled", value);
}

static void put_probabilities(struct writer *w)
{
    struct dpt_str axis = {0};

    if (w->view->labels) {
        put_step(w, "Sigmoid", logits_name, NULL, probabilities_name);
        return;
    }
    dpt_proto_int(&axis, 3, 1);
    add_attribute(w, "axis", ATTRIBUTE_INT, &axis);
    put_step(w, "Softmax", logits_name, NULL, probabilities_name);
}

/* Whether a node gives its input unchanged, and so is left out. */
static bool does_nothing(const struct dpt_graph_node *node)
{
    return strcmp(dpt_operation_of(node)->onnx[0].type, "Identity") == 0;
}

/* Adds the end of a model whose targets were scaled: what the last layer gives, in their units. */
static void put_targets(struct writer *w, const char *in)
{
    const struct dpt_target_scale *scale = w->view->targets;
    const bool exponential = dpt_target_scale_inverse(scale) != NULL;
    const int64_t n = scale->outputs;
    const struct {
        const char *type, *with, *out;
        const float *numbers;
    } steps[] = {{"Mul", "targets/std", "targets/out", scale->std},
                 {"Add", "targets/mean", exponential ? "targets/log" : logits_name, scale->mean}};

    for (size_t i = 0; scale->used && i < sizeof steps / sizeof steps[0]; i++) {
        put_constant(w, steps[i].with, DPT_ONNX_TYPE_FLOAT, &n, 1, steps[i].numbers,
                     (size_t)n * sizeof(float));
        put_step(w, steps[i].type, in, steps[i].with, steps[i].out);
        in = steps[i].out;
    }
    if (!exponential)
        return;
    put_step(w, "Exp", in, NULL,
             scale->transform == DPT_TARGETS_LOG1P ? "targets/exp" : logits_name);
    if (scale->transform == DPT_TARGETS_LOG1P)
        put_step(w, "Sub", "targets/exp", add_constant(w, "targets/1", 1), logits_name);
}

static enum dpt_status put_nodes(struct writer *w, struct dpt_error *err)
{
    const struct dpt_graph *g = w->view->graph;
    int32_t last = g->n_nodes - 1;

    if (DPT_ALLOCATE(w->value, (size_t)g->n_nodes, "an ONNX model", err) != DPT_OK)
        return err->status;
    while (last > 0 && does_nothing(&g->nodes[last]))
        last = g->nodes[last].inputs[0];
    snprintf(w->value[0], VALUE, DPT_ONNX_INPUT);
    put_normalize(w, w->value[0]);
    for (int32_t k = 1; k < g->n_nodes; k++) {
        const struct dpt_graph_node *node = &g->nodes[k];
        const char *in = w->value[node->inputs[0]];

        if (does_nothing(node)) {
            memcpy(w->value[k], in, VALUE);
            continue;
        }
        if (k == last && !dpt_target_scale_undoes(w->view->targets))
            snprintf(w->value[k], VALUE, "%s", logits_name);
        else /* with a slash, so that it is no name of a tensor, of the input or the output */
            snprintf(w->value[k], VALUE, "%s/out", node->name);
        put_node(w, node, in, w->value[k]);
    }
    if (dpt_target_scale_undoes(w->view->targets))
        put_targets(w, w->value[last]);
    if (w->view->probabilities)
        put_probabilities(w);
    return DPT_OK;
}

const char *dpt_onnx_output(const struct dpt_model_view *view)
{
    return view->probabilities ? probabilities_name : logits_name;
}

enum dpt_status dpt_onnx_nodes(const struct dpt_model_view *view, struct dpt_str *nodes,
                               struct dpt_str *constants, struct dpt_error *err)
{
    struct writer w = {.view = view, .nodes = nodes, .constants = constants};
    const enum dpt_status status = put_nodes(&w, err);

    dpt_free(w.value);
    dpt_str_release(&w.op);
    return status;
}

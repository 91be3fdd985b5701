#include <stdio.h>
#include <string.h>

#include "core/backend/operation.h"
#include "models/layer.h"

enum dpt_status dpt_builder_fail(const struct dpt_builder *b, struct dpt_error *err,
                                 const char *format, ...)
{
    const struct dpt_layer_place *here = &b->here;
    const struct dpt_conf_node *at = here->layer->at != NULL ? here->layer->at : b->model->at;
    char place[512] = "", layer[512], text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (at != NULL && at->origin != NULL)
        snprintf(place, sizeof place, "%s: ", at->origin);
    else if (at != NULL && at->line > 0 && b->model->file != NULL)
        snprintf(place, sizeof place, "%s:%d:%d: ", b->model->file, at->line, at->column);
    if (here->prefix != NULL)
        snprintf(layer, sizeof layer, "%s[%zu]", here->prefix, here->index);
    else
        snprintf(layer, sizeof layer, "model %s", b->model->variant->name);
    return dpt_fail(err, DPT_BAD_JOB, "%s%s (%s): %s", place, layer, here->name, text);
}

const struct dpt_shape *dpt_builder_shape(const struct dpt_builder *b)
{
    return &b->graph->nodes[b->last].out;
}

struct dpt_graph_node dpt_builder_node(const struct dpt_builder *b)
{
    const struct dpt_conf_node *at = b->here.layer->at;
    struct dpt_graph_node node = {
        .op = b->here.layer->type->op,
        .n_inputs = 1,
        .inputs = {b->last},
        .in = *dpt_builder_shape(b),
        .weight = -1,
        .bias = -1,
        .mean = -1,
        .variance = -1,
        .line = at != NULL ? at->line : 0,
        .column = at != NULL ? at->column : 0,
    };

    snprintf(node.name, sizeof node.name, "%s", b->here.name);
    return node;
}

enum dpt_status dpt_builder_add(struct dpt_builder *b, struct dpt_graph_node *node,
                                struct dpt_error *err)
{
    const struct dpt_shape *s = &node->out;
    enum dpt_status status = DPT_OK;
    char in[40], out[40];

    dpt_operation_of(node)->shape(node);
    /* c and the area each fit 31 bits, so that neither product overflows. */
    if ((int64_t)s->h * s->w > DPT_MAX_SIZE || (int64_t)s->h * s->w * s->c > DPT_MAX_SIZE)
        return dpt_builder_fail(b, err, "turns %s into %s: more than %d numbers per sample",
                                dpt_shape_text(&node->in, in), dpt_shape_text(s, out),
                                DPT_MAX_SIZE);
    DPT_TRY(dpt_graph_add(b->graph, node, &b->last, err));
    DPT_GROW(b->places, &b->place_room, (size_t)b->last + 1, "the model's layers", err);
    b->places[b->last] = b->here;
out:
    return status;
}

enum dpt_status dpt_builder_join(struct dpt_builder *b, enum dpt_op op, const char *name,
                                 int32_t other, struct dpt_error *err)
{
    const struct dpt_graph_node *one = &b->graph->nodes[b->last], *two = &b->graph->nodes[other];
    struct dpt_graph_node node = dpt_builder_node(b);
    const bool planes =
        one->out.h == two->out.h && one->out.w == two->out.w && one->out.flat == two->out.flat;
    char first[40], second[40];

    snprintf(node.name, sizeof node.name, "%s", name);
    node.op = op;
    node.n_inputs = 2;
    node.inputs[1] = other;
    node.other = two->out;
    if (!planes || (op != DPT_OP_CONCAT && one->out.c != two->out.c))
        return dpt_builder_fail(
            b, err, "joins %s (%s) and %s (%s), %s", dpt_shape_text(&one->out, first), one->name,
            dpt_shape_text(&two->out, second), two->name,
            op == DPT_OP_CONCAT ? "whose height and width must be equal, or both be flat"
                                : "whose shapes must be equal");
    return dpt_builder_add(b, &node, err);
}

enum dpt_status dpt_builder_tensors(struct dpt_builder *b, struct dpt_graph_node *node,
                                    const struct dpt_initializer *init, bool bias,
                                    struct dpt_error *err)
{
    struct dpt_tensor tensors[DPT_MAX_TENSORS];
    const int n = dpt_operation_tensors(node, tensors);
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < n; k++) {
        struct dpt_tensor *t = &tensors[k];
        char name[DPT_NAME];
        int64_t count = 1;

        if (k == 1 && !bias)
            continue;
        for (int i = 0; i < t->n_dims; i++) {
            /* Each factor fits 31 bits and the product before it too: no overflow. */
            count *= t->dims[i];
            if (count > DPT_MAX_TENSOR)
                return dpt_builder_fail(b, err, "has more than %d weights", DPT_MAX_TENSOR);
        }
        if (init != NULL && (k == 0 || (k == 1 && init->type->biases)))
            t->init = *init;
        snprintf(name, sizeof name, "%.40s/%.12s", node->name, t->name);
        memcpy(t->name, name, sizeof name);
        DPT_TRY(dpt_graph_add_tensor(b->graph, t, dpt_operation_number(node, k), err));
    }
out:
    return status;
}

enum dpt_status dpt_builder_add_with(struct dpt_builder *b, struct dpt_graph_node *node,
                                     const struct dpt_attribute_options *options,
                                     struct dpt_error *err)
{
    enum dpt_status status;

    for (int k = 0; k < DPT_MAX_ATTRIBUTES; k++)
        node->attribute[k] = (float)options->attribute[k];
    DPT_TRY(dpt_builder_tensors(b, node, NULL, true, err));
    if (dpt_operation_of(node)->kind == DPT_CLASS_NORM)
        b->graph->tensors[node->weight].init.value = options->scale;
    DPT_TRY(dpt_builder_add(b, node, err));
out:
    return status;
}

enum dpt_status dpt_layer_with_attributes(struct dpt_builder *b, const struct dpt_layer *layer,
                                          struct dpt_error *err)
{
    struct dpt_graph_node node = dpt_builder_node(b);

    return dpt_builder_add_with(b, &node, layer->options, err);
}

/*
 * Padding that gives ceil(input / stride) outputs, the odd one at the end (TensorFlow's "SAME").
 * https://www.tensorflow.org/api_docs/python/tf/nn#notes_on_padding_2
 */
static void pad_same(struct dpt_window *w, int axis, int32_t input)
{
    const int64_t reach = (int64_t)w->dilation[axis] * (w->kernel[axis] - 1) + 1;
    const int64_t last = ((int64_t)input - 1) / w->stride[axis] * w->stride[axis];
    const int64_t missing = last + reach - input;

    w->before[axis] = missing > 0 ? (int32_t)(missing / 2) : 0;
    w->after[axis] = missing > 0 ? (int32_t)(missing - missing / 2) : 0;
}

enum dpt_status dpt_builder_window(const struct dpt_builder *b, struct dpt_graph_node *node,
                                   const struct dpt_padding *padding, struct dpt_error *err)
{
    const int32_t input[2] = {node->in.h, node->in.w};
    struct dpt_window *w = &node->window;
    char shape[40], dilated[48] = "", padded[64] = "";

    for (int i = 0; i < 2; i++) {
        w->before[i] = w->after[i] = padding->pair.at[i];
        if (padding->same)
            pad_same(w, i, input[i]);
    }
    if (dpt_window_extent(w, 0, input[0]) >= 1 && dpt_window_extent(w, 1, input[1]) >= 1)
        return DPT_OK;
    if (w->dilation[0] != 1 || w->dilation[1] != 1)
        snprintf(dilated, sizeof dilated, " (dilation %dx%d)", (int)w->dilation[0],
                 (int)w->dilation[1]);
    if (w->before[0] != 0 || w->before[1] != 0)
        snprintf(padded, sizeof padded, " with padding %dx%d", (int)w->before[0],
                 (int)w->before[1]);
    return dpt_builder_fail(b, err, "kernel %dx%d%s does not fit %dx%d input%s (the layer gets %s)",
                            (int)w->kernel[0], (int)w->kernel[1], dilated, (int)input[0],
                            (int)input[1], padded, dpt_shape_text(&node->in, shape));
}

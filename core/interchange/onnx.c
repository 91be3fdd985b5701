/*
 * ONNX: the model as a graph with its weights, for onnxruntime and others; written, not read.
 *
 * A ModelProto of operator set 17, which all runtimes since 2022 know: input "input" [batch, c, h,
 * w] (or [batch, n]), float32, samples as files hold them, which the graph normalises itself unless
 * it is told that they come so; output "logits" [batch, outputs], or the softmax of these
 * (multi-label: the sigmoids), "probabilities"; any batch. If targets were scaled in
 * training, the graph ends with what takes its outputs back to their units. What a layer becomes
 * stands in its operation's row; what does nothing when a model is used is left out. Field numbers
 * are those of onnx.proto3 (ONNX 1.12).
 */
#include "core/interchange/onnx.h"

#include <string.h>

#include "core/backend/operation.h"
#include "core/base/file.h"
#include "core/base/proto.h"

enum { IR_VERSION = 8, OPERATORS = 17 };

/* No reader of Protocol Buffers takes more. */
static const uint64_t MOST = INT32_MAX;

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
    dpt_proto_int(&tensor, 1, DPT_ONNX_TYPE_FLOAT);
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

/* Writes all of the graph but the tensors of the arena. */
static enum dpt_status put_rest(const struct dpt_model_view *view, struct dpt_str *graph,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *g = view->graph;
    const struct dpt_shape *in = &g->nodes[0].out;
    const int64_t dims[] = {in->c, in->h, in->w}, outputs = g->nodes[g->n_nodes - 1].out.c;
    struct dpt_str constants = {0};

    DPT_TRY(dpt_onnx_nodes(view, graph, &constants, err));
    dpt_proto_text(graph, 2, "dptrain");
    put_value(graph, 11, DPT_ONNX_INPUT, dims, in->flat ? 1 : 3);
    put_value(graph, 12, dpt_onnx_output(view), &outputs, 1);
    dpt_str_add(graph, constants.text, constants.length);
    graph->failed = graph->failed || constants.failed;
out:
    dpt_str_release(&constants);
    return status;
}

/* The shape that a tensor of a node has there: one that is for channels stands beside planes, and a
 * convolution's has a height. Returns how many dims. */
static size_t onnx_dims(const struct dpt_graph_node *node, const struct dpt_tensor *t,
                        int64_t dims[4])
{
    const bool planes = node != NULL && dpt_operation_of(node)->onnx_planes && !node->in.flat;
    size_t n = (size_t)t->n_dims;

    memcpy(dims, t->dims, n * sizeof *dims);
    if (planes && n == 1) {
        dims[n++] = 1;
        dims[n++] = 1;
    } else if (node != NULL && node->op == DPT_OP_CONV && n == 3) {
        dims[n++] = dims[2];
        dims[2] = 1;
    }
    return n;
}

/* The node whose weight or bias a tensor is, or NULL. */
static const struct dpt_graph_node *owner_of(const struct dpt_graph *g, int32_t tensor)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].weight == tensor || g->nodes[i].bias == tensor)
            return &g->nodes[i];
    return NULL;
}

/* A TensorProto's head, up to its bytes, with what stands in front of it in the graph. */
static void put_tensor(const struct dpt_graph *g, int32_t number, struct dpt_str *head)
{
    const struct dpt_tensor *t = &g->tensors[number];
    struct dpt_str tensor = {0};
    char name[DPT_NAME];
    int64_t dims[4];
    const size_t n = onnx_dims(owner_of(g, number), t, dims);

    dpt_proto_ints(&tensor, 1, dims, n);
    dpt_proto_int(&tensor, 2, DPT_ONNX_TYPE_FLOAT);
    dpt_proto_text(&tensor, 8, dpt_weight_name(t, name));
    dpt_proto_head(&tensor, 9, (uint64_t)t->count * sizeof(float));
    dpt_proto_head(head, 5, tensor.length + (uint64_t)t->count * sizeof(float));
    dpt_str_add(head, tensor.text, tensor.length);
    head->failed = head->failed || tensor.failed;
    dpt_str_release(&tensor);
}

/* The file in pieces: the model, the graph's head and rest, then for each tensor its head, from
 * `heads`, and its bytes, which are not copied. */
static enum dpt_status write_pieces(const struct dpt_model_view *view,
                                    struct dpt_file_piece *pieces, struct dpt_str *heads,
                                    const char *path, struct dpt_error *err)
{
    const struct dpt_graph *g = view->graph;
    enum dpt_status status = DPT_OK;
    struct dpt_str front = {0}, rest = {0}, operators = {0};
    uint64_t bytes;

    DPT_TRY(put_rest(view, &rest, err));
    bytes = rest.length;
    for (int32_t k = 0; k < g->n_tensors; k++) {
        put_tensor(g, k, &heads[k]);
        bytes += heads[k].length + (uint64_t)g->tensors[k].count * sizeof(float);
        rest.failed = rest.failed || heads[k].failed;
    }
    dpt_proto_int(&front, 1, IR_VERSION);
    dpt_proto_text(&front, 2, "dptrain");
    dpt_proto_text(&front, 3, view->producer);
    dpt_proto_int(&operators, 2, OPERATORS); /* OperatorSetIdProto, of the default domain */
    dpt_proto_message(&front, 8, &operators);
    DPT_TRY(dpt_onnx_metadata(view, &front, err));
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
            (struct dpt_file_piece){view->params + t->offset, (size_t)t->count * sizeof(float)};
    }
    DPT_TRY(dpt_file_write_pieces(path, pieces, 2 + 2 * (size_t)g->n_tensors, err));
out:
    dpt_str_release(&front);
    dpt_str_release(&rest);
    dpt_str_release(&operators);
    return status;
}

static enum dpt_status write_onnx(const struct dpt_model_view *view, const char *path,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)view->graph->n_tensors;
    struct dpt_file_piece *pieces = NULL;
    struct dpt_str *heads = NULL;

    DPT_TRY(DPT_ALLOCATE(pieces, 2 + 2 * n, path, err));
    DPT_TRY(DPT_ALLOCATE(heads, n, path, err));
    DPT_TRY(write_pieces(view, pieces, heads, path, err));
out:
    for (size_t k = 0; heads != NULL && k < n; k++)
        dpt_str_release(&heads[k]);
    dpt_free(heads);
    dpt_free(pieces);
    return status;
}

const struct dpt_weights_format dpt_weights_onnx = {
    .name = "onnx",
    .suffix = ".onnx",
    .summary = "the whole model, for onnxruntime, OpenVINO or TensorRT; `input` takes raw "
               "samples, `logits` is the last layer's output",
    .write = write_onnx,
};

/*
 * onnx_nodes: a model's layers as the nodes of an ONNX graph. Private to interchange/.
 */
#ifndef DPT_INTERCHANGE_ONNX_NODES_H
#define DPT_INTERCHANGE_ONNX_NODES_H

#include "core/base/str.h"
#include "core/interchange/weights.h"

/* TensorProto.DataType */
enum { DPT_ONNX_TYPE_FLOAT = 1, DPT_ONNX_TYPE_INT64 = 7 };

/* What the graph's input and its output are called. */
const char *dpt_onnx_input(void);
const char *dpt_onnx_output(const struct dpt_model_view *view);

/* Writes GraphProto.node, and as GraphProto.initializer all numbers but the model's own tensors;
 * where there was no memory for them they are `failed`. Errors: RANK. */
enum dpt_status dpt_onnx_nodes(const struct dpt_model_view *view, struct dpt_str *nodes,
                               struct dpt_str *constants, struct dpt_error *err);

#endif

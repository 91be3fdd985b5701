/*
 * onnx: what the files that write ONNX share. Private to interchange/.
 *
 * Beside the graph a file says of its model: `step`; `input`, what the graph takes, with
 * `normalize_mean` and `normalize_std`; where they are known `classes`, the names of the outputs,
 * and of a table `features`, what the inputs are called, both JSON lists in the order of their
 * numbers, and `columns`, how the table was read (data/tables/columns.h).
 */
#ifndef DPT_INTERCHANGE_ONNX_H
#define DPT_INTERCHANGE_ONNX_H

#include "core/base/str.h"
#include "core/interchange/weights.h"

/* TensorProto.DataType */
enum { DPT_ONNX_TYPE_FLOAT = 1, DPT_ONNX_TYPE_INT64 = 7 };

/* What the graph's input and its output are called. */
#define DPT_ONNX_INPUT "input"
const char *dpt_onnx_output(const struct dpt_model_view *view);

/* Writes GraphProto.node, and as GraphProto.initializer all numbers but the model's own tensors;
 * where there was no memory for them they are `failed`. Errors: RANK. */
enum dpt_status dpt_onnx_nodes(const struct dpt_model_view *view, struct dpt_str *nodes,
                               struct dpt_str *constants, struct dpt_error *err);

/* Adds what is said beside the graph to a ModelProto; check model->failed. Errors: BAD_DATA (its
 * columns), RANK. */
enum dpt_status dpt_onnx_metadata(const struct dpt_model_view *view, struct dpt_str *model,
                                  struct dpt_error *err);

#endif

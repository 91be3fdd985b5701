/*
 * onnx_metadata: what an ONNX file says of its model beside the graph. Private to interchange/.
 *
 * `step`; `input`, what the graph takes, with `normalize_mean` and `normalize_std`; where they are
 * known `classes`, the names of the outputs, and of a table `features`, what the inputs are called,
 * both JSON lists in the order of their numbers, and `columns`, how the table was read
 * (data/tables/columns.h).
 */
#ifndef DPT_INTERCHANGE_ONNX_METADATA_H
#define DPT_INTERCHANGE_ONNX_METADATA_H

#include "core/base/str.h"
#include "core/interchange/weights.h"

/* Adds it to a ModelProto; check model->failed. Errors: BAD_DATA (its columns), RANK. */
enum dpt_status dpt_onnx_metadata(const struct dpt_model_view *view, struct dpt_str *model,
                                  struct dpt_error *err);

#endif

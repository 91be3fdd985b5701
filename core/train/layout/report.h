/* report: what a person and metrics.jsonl are told of a layout. */
#ifndef DPT_TRAIN_LAYOUT_REPORT_H
#define DPT_TRAIN_LAYOUT_REPORT_H

#include "core/base/str.h"
#include "core/comm/comm.h"
#include "core/state/metrics.h"
#include "core/train/layout/layout.h"

/* What a rank is there for: its stage, and its part of that; "" where each has all of the model. */
const char *dpt_layout_place_text(const struct dpt_layout *layout, int rank,
                                  char text[DPT_PLACE_TEXT]);
/* Say which stage begins where and is on which ranks, and which layers are divided. Of one stage,
 * and of whole layers, they say nothing. */
void dpt_layout_describe_stages(const struct dpt_layout *layout, struct dpt_str *out);
void dpt_layout_describe_parts(const struct dpt_layout *layout, struct dpt_str *out);
/* Adds the mesh to a `run` event, where the ranks divide the model or keep shards. nodes: [ranks],
 * the number of each one's node. */
void dpt_layout_metrics(const struct dpt_layout *layout, const int32_t *nodes,
                        struct dpt_metrics *m);

#endif

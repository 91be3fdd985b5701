/* report: the text about a layout for people and for metrics.jsonl. */
#ifndef DPT_TRAIN_LAYOUT_REPORT_H
#define DPT_TRAIN_LAYOUT_REPORT_H

#include "core/base/str.h"
#include "core/comm/comm.h"
#include "core/state/metrics.h"
#include "core/train/layout/layout.h"

/* The role of a rank: its stage, and its part of the stage; "" if each rank has the whole model. */
const char *dpt_layout_place_text(const struct dpt_layout *layout, int rank,
                                  char text[DPT_PLACE_TEXT]);
/* These print where each stage begins and its ranks, and which layers are divided. They print
 * nothing if there is one stage, or no layer is divided. */
void dpt_layout_describe_stages(const struct dpt_layout *layout, struct dpt_str *out);
void dpt_layout_describe_parts(const struct dpt_layout *layout, struct dpt_str *out);
/* Adds the mesh to a `run` event, if the ranks divide the model or keep shards. nodes: [ranks], the
 * number of each one's node. */
void dpt_layout_metrics(const struct dpt_layout *layout, const int32_t *nodes,
                        struct dpt_metrics *m);

#endif

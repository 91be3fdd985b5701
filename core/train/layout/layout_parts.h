/* layout_parts: functions that the files that make a layout share. For core/train/layout only. */
#ifndef DPT_TRAIN_LAYOUT_PARTS_H
#define DPT_TRAIN_LAYOUT_PARTS_H

#include "core/train/layout/layout.h"

/* cuts.c. Makes l->stage, with the nodes of each of l->stages. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_layout_cut_stages(struct dpt_layout *l, struct dpt_error *err);
/* Finds the units of a stage whose graph is there. Errors: RANK. */
enum dpt_status dpt_layout_cut_units(const struct dpt_layout *l, struct dpt_layout_stage *stage,
                                     struct dpt_error *err);

/* sizes.c. How many threads of a rank a step can keep busy, at least 1. */
int dpt_layout_useful_threads(const struct dpt_layout *l);
/* The size of a micro-batch. If dptrain may not choose it, some replicas may have no
 * micro-batch. */
int32_t dpt_layout_choose_micro(const struct dpt_layout *l, int32_t micro_most);
/* The size, if it follows from the job and the model alone. */
int32_t dpt_layout_fixed_micro(const struct dpt_job *job, const struct dpt_graph *graph);
/*
 * How many micro-batches a rank's team computes at once if sums follow a tree: as many as form a
 * node of the reduction's tree; the team adds their gradients while it computes them (backend.h,
 * `sub_batch`). The bits are the same, and weights and gradient are read and written once. In
 * stages it has several such groups in flight, which are smaller so that few stages wait.
 */
int32_t dpt_layout_choose_at_once(const struct dpt_layout *l);
/* How many micro-batches' gradients the backend is to sum: all that a rank, or a thread by itself,
 * has in a step, unless the ranks exchange them in rounds, or something looks at each. */
int32_t dpt_layout_choose_adds(const struct dpt_layout *l);
#endif

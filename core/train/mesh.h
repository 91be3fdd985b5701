/*
 * mesh: how the ranks divide the model among them (parallel.pipeline).
 *
 * A pipeline's stages are ranges of the graph's nodes. The ranks of a stage are replicas, among
 * which a step's micro-batches are divided as among the ranks of a job without a pipeline: rank
 * stage x replicas + replica. Each has the weights, gradients and slots of its stage alone, in
 * arenas of their own (dpt_trainer_graph), and every node is computed as in the whole graph: so the
 * bytes are those of one rank.
 */
#ifndef DPT_TRAIN_MESH_H
#define DPT_TRAIN_MESH_H

#include "core/state/metrics.h"
#include "core/train/trainer.h"

/* Finds the stages of a trainer whose model is built, and this rank's; sets t->mesh but for what
 * communicates. Where the job has no pipeline, or does not train, there is nothing to do. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_mesh_plan(struct dpt_trainer *t, struct dpt_error *err);
/* Makes t->mesh.graph that of a stage. Errors: RANK. */
enum dpt_status dpt_mesh_take(struct dpt_trainer *t, int stage, struct dpt_error *err);
/* Collective over t->comm: splits the ranks. Errors: RANK. */
enum dpt_status dpt_mesh_open(struct dpt_trainer *t, struct dpt_error *err);
/* Collective. */
void dpt_mesh_close(struct dpt_trainer *t);

/* The group of two with the stage after this one, in which that one's number is 1, or with the one
 * before, whose number is 0. */
const struct dpt_group *dpt_mesh_edge(const struct dpt_trainer *t, bool next);

/* Floats that a micro-batch's value has between stage k and the next. */
int64_t dpt_mesh_edge_floats(const struct dpt_trainer *t, int stage);

/* Which stage begins where and is on which ranks; with stages. */
void dpt_mesh_describe(const struct dpt_trainer *t, struct dpt_str *out);
/* The mesh, where the ranks divide the model, as part of a `run` event. nodes: [ranks], the number
 * of each one's node. */
void dpt_mesh_metrics(const struct dpt_trainer *t, const int32_t *nodes, struct dpt_metrics *m);

#endif

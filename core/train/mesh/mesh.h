/*
 * mesh: how the ranks divide the model among them (parallel.pipeline, parallel.tensor).
 *
 * A pipeline's stages are ranges of the graph's nodes. The ranks of a stage are replicas, among
 * which a step's micro-batches are divided as among the ranks of a job without a pipeline: rank
 * stage x replicas + replica. Each has the weights, gradients and slots of its stage alone, in
 * arenas of their own (dpt_trainer_graph), and every node is computed as in the whole graph: so the
 * bytes are those of one rank. Where ranks also divide layers (tensor_parallel.h), each of these
 * ranks is as many: rank (stage x replicas + replica) x tensor + part, so that those which tell
 * each other most are next to each other.
 */
#ifndef DPT_TRAIN_MESH_H
#define DPT_TRAIN_MESH_H

#include "core/state/metrics.h"
#include "core/train/trainer.h"

/*
 * Whether a stage may begin with a node: a convolution or dense layer, in front of which no kernel
 * takes two nodes at once, and whose input is the only value that crosses.
 */
bool dpt_mesh_may_begin(const struct dpt_graph *graph, int32_t node);
/* Finds the stages of a trainer whose model is built, and this rank's; sets t->mesh but for what
 * communicates. Where the job has no pipeline, or does not train, there is nothing to do. Errors:
 * BAD_JOB, RANK. */
enum dpt_status dpt_mesh_plan(struct dpt_trainer *t, struct dpt_error *err);
/* Makes t->mesh.graph that of a stage, where ranks divide the model. Errors: RANK. */
enum dpt_status dpt_mesh_take(struct dpt_trainer *t, int stage, struct dpt_error *err);
/* Collective over t->comm: splits the ranks. Errors: RANK. */
enum dpt_status dpt_mesh_open(struct dpt_trainer *t, struct dpt_error *err);
/* Collective. */
void dpt_mesh_close(struct dpt_trainer *t);

/* The pair of this stage and the next one, whose number in it is 1, or the one before, whose number
 * is 0. */
const struct dpt_group *dpt_mesh_link(const struct dpt_trainer *t, bool next);

/* Collective. Sums the gradient (dpt_gradient_reduction_type.sum). Where ranks divide the model
 * each stage sums its own, once all ranks of the job know that none has failed. Errors: RANK. */
enum dpt_status dpt_mesh_sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                             const float flags[DPT_FLAGS], struct dpt_error *err);

/* What the stages learn of each other after the sum of a step's gradients. */
struct dpt_mesh_words {
    double squares;
    float words[8];
};
/* Collective. The chunks' squares are added up in the order of the stages: *squares becomes the sum
 * of those before this one, from which it goes on. Errors: RANK. */
enum dpt_status dpt_mesh_before(const struct dpt_trainer *t, double *squares,
                                struct dpt_error *err);
/* Collective. Hands this stage's sum on; then all ranks get the last stage's sum and words.
 * finite_state: whether what the step adds to the state is a number here; where ranks divide the
 * model and it is none on one of them, the sum is NAN, so that all know. Errors: RANK. */
enum dpt_status dpt_mesh_share(const struct dpt_trainer *t, bool finite_state,
                               struct dpt_mesh_words *words, struct dpt_error *err);

/* Bytes of a micro-batch's value between a stage and the next, or of its gradient. */
double dpt_mesh_link_bytes(const struct dpt_trainer *t, int stage);

/* What a rank is there for: its stage, and its part of that; "" where each has all of the model. */
const char *dpt_mesh_place(const struct dpt_trainer *t, int rank, char place[DPT_PLACE_TEXT]);
/* Say which stage begins where and is on which ranks, and which layers are divided. Of one stage,
 * and of whole layers, they say nothing. */
void dpt_mesh_describe_stages(const struct dpt_trainer *t, struct dpt_str *out);
void dpt_mesh_describe_parts(const struct dpt_trainer *t, struct dpt_str *out);
/* Adds the mesh to a `run` event, where the ranks divide the model or keep shards. nodes: [ranks],
 * the number of each one's node. */
void dpt_mesh_metrics(const struct dpt_trainer *t, const int32_t *nodes, struct dpt_metrics *m);
/* Whether what this rank has of a tensor of its stage is its own to tell of: of those ranks that
 * have the same of it, and the same micro-batches, one tells. */
bool dpt_mesh_tells(const struct dpt_trainer *t, int32_t tensor);

#endif

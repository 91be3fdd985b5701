/*
 * state: what a trainer holds, to and from checkpoints.
 *
 * A checkpoint is what one rank would write. If ranks keep parts of it (t->layout.streams), each
 * rank writes its own to the file, of a copy while training continues or, without memory for that,
 * while all ranks wait, and reads its own from it; rank 0 does what is left, and asks the others
 * for it: ends of parts, which share pages of the file with others (state_file.h). If a rank does
 * not see rank 0's file, all of it goes through rank 0, piece by piece, and is read tensor by
 * tensor; so no rank ever has room for more. Else rank 0 has all of it, copies it, and writes while
 * training continues.
 */
#ifndef DPT_TRAIN_STATE_H
#define DPT_TRAIN_STATE_H

#include "core/comm/sums/deterministic_allreduce.h"
#include "core/train/trainer.h"

/* The arenas beside the slots, which are numbered from 0 on. The gradient is the last sum. */
enum { DPT_PARAMS = -1, DPT_GRADIENT = -2 };

/* One of the arenas of this rank, where all floats of a range (dpt_gradient_own) have their places;
 * of the gradient, of the range that has float `at` of this rank's part of the model. */
float *dpt_trainer_arena(const struct dpt_trainer *t, int k, int64_t at);
/* Whether rank 0 has all of it, as of weights that a node has once; else the ranks have parts. */
bool dpt_trainer_has_all(const struct dpt_trainer *t, int k);
/* The learned floats of it, in the range that has float `at`, that a replica keeps for all: in
 * slices its own; else all of them, by the first replica. */
struct dpt_slice dpt_trainer_kept(const struct dpt_trainer *t, int k, int replica, int64_t at);

/* The state at the begin of a run, for its size. arenas: with slots counted. job_text: from
 * dpt_job_signature. All of it is borrowed. */
struct dpt_state dpt_state_of(const struct dpt_layout *layout, const struct dpt_splits *data,
                              const struct dpt_trainer_model *model, struct dpt_arenas *arenas,
                              struct dpt_target_scale *targets, const char *job_text);
/* The trainer's present state, for a checkpoint. job_text: from dpt_job_signature. */
struct dpt_state dpt_trainer_state(struct dpt_trainer *t, const char *job_text);

/* Collective. Gives rank 0 a tensor of the parameters, or of the last step's summed gradient, which
 * has none of the state. *x: out, on rank 0 where all of it is, in `room` where the ranks have
 * parts of it; else NULL. Errors: RANK. */
enum dpt_status dpt_trainer_tensor(const struct dpt_trainer *t, bool gradient, int32_t number,
                                   float *room, const float **x, struct dpt_error *err);
/* Collective. Gives all ranks rank 0's parameters, and with `slots` its slots, if it has all of
 * them; else they have theirs already (dpt_trainer_read). Errors: RANK. */
enum dpt_status dpt_trainer_broadcast(struct dpt_trainer *t, bool slots, struct dpt_error *err);
/* Collective, once rank 0 has saved a state or failed: the others do what it asks of them
 * meanwhile. If rank 0 has all, it does nothing. Errors: of what a rank did for rank 0, on all
 * ranks; RANK. */
enum dpt_status dpt_trainer_serve(struct dpt_trainer *t, struct dpt_error *err);

/* Verifies a checkpoint as dpt_checkpoint_verify does, each rank a part of it where all see it; on
 * rank 0, in dpt_trainer_read. */
enum dpt_status dpt_trainer_verify(struct dpt_trainer *t, const char *path, struct dpt_error *err);

/*
 * Collective. Rank 0 reads a checkpoint, or other weights, into the state by `read`. If ranks keep
 * parts (t->layout.streams), the state has address space for the whole model meanwhile, in place of
 * rank 0's own arenas. Each rank reads what it keeps from a checkpoint that all see
 * (dpt_trainer_verify); of other weights it gets that at once, tensor by tensor. Errors: of
 * `read`, which the others do not know yet; RANK.
 */
enum dpt_status dpt_trainer_read(struct dpt_trainer *t, struct dpt_state *state,
                                 enum dpt_status (*read)(void *arg, struct dpt_state *state,
                                                         struct dpt_error *err),
                                 void *arg, struct dpt_error *err);

/* Collective. Gives all ranks rank 0's scale of the targets. Errors: MPI. */
enum dpt_status dpt_trainer_share_targets(struct dpt_trainer *t, struct dpt_error *err);
/* Collective. Broadcasts rank 0's parameters, where it has all, and scale of the targets, and
 * refreshes what is derived from them. status: whether rank 0 has them. Errors: that status;
 * RANK. */
enum dpt_status dpt_trainer_share_params(struct dpt_trainer *t, enum dpt_status status,
                                         struct dpt_error *err);
/* Compares the columns of the opened sets with those that a checkpoint's model learned from, where
 * both say them. Errors: BAD_DATA (names the first that differs), RANK. */
enum dpt_status dpt_trainer_check_columns(const struct dpt_trainer *t,
                                          const struct dpt_checkpoint *file, struct dpt_error *err);
/* Collective. Loads the parameters of a checkpoint on rank 0 and broadcasts them. path: a file, or
 * a run folder (dpt_checkpoint_resolve). how: DPT_LOAD_ANY and those after it. Logs that an average
 * was taken. */
enum dpt_status dpt_trainer_load_params(struct dpt_trainer *t, const char *path, unsigned how,
                                        struct dpt_error *err);

#endif

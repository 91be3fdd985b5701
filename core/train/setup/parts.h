/*
 * parts: opens and closes a trainer's parts. For setup.c, which opens trainers, and the engines.
 *
 * What has a size of its own for each micro-batch (loaders, team, evaluation, program) is opened
 * again if one does not fit; closing what is not open does nothing.
 */
#ifndef DPT_TRAIN_PARTS_H
#define DPT_TRAIN_PARTS_H

#include "core/train/trainer.h"

/* splits.c. Opens the job's data sets of `parts` (DPT_PART_...), collectively over comm; NULL: only
 * describes them, on this process alone, and reads no sample. log: NULL, or for warnings. Errors:
 * as dpt_dataset_open; BAD_JOB (data.valid). */
enum dpt_status dpt_splits_open(struct dpt_splits *data, const struct dpt_job *job, unsigned parts,
                                const struct dpt_comm *comm, struct dpt_log *log,
                                struct dpt_error *err);
/* Collective, unless they were only described. */
void dpt_splits_close(struct dpt_splits *data);
/* Warns where the samples look as if they were in another layout. */
void dpt_splits_warn_layout(const struct dpt_splits *data, struct dpt_log *log);
/* Finds what the job's targets are scaled by, and tells the data sets of it. reads: whether the
 * targets may be read, else what is measured stays as it is. Errors: BAD_JOB, BAD_DATA, RANK. */
enum dpt_status dpt_splits_open_targets(struct dpt_splits *data, const struct dpt_job *job,
                                        const struct dpt_trainer_model *model, bool reads,
                                        struct dpt_target_scale *targets, struct dpt_error *err);
/* Sets the samplers: which samples a step of each split has. Errors: BAD_JOB. */
enum dpt_status dpt_splits_plan(struct dpt_splits *data, const struct dpt_layout *layout,
                                struct dpt_error *err);
/* Counts the steps of an epoch and of the whole run. There must be a training set, planned. */
void dpt_splits_length(const struct dpt_splits *data, const struct dpt_job *job,
                       int64_t *steps_per_epoch, int64_t *steps);
/* Finds what checkpoints are to keep of the training set: its identity, and its classes' names
 * (data->identity, classes). Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_splits_identify(struct dpt_splits *data, struct dpt_error *err);
/* Opens a loader for every split, whose samplers are set. Errors: BAD_DATA (no sample of one
 * counts), IO, RANK. */
enum dpt_status dpt_trainer_open_loaders(struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_loaders(struct dpt_trainer *t);

/* arenas.c. Opens the parameters and, where it trains, the slots but for
 * those of dpt_trainer_join_state. Errors: RANK. */
enum dpt_status dpt_trainer_open_arenas(struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_arenas(struct dpt_trainer *t);
/* Collective over the node. Opens the parameters and slots that its ranks have together
 * (dpt_layout_shares_state): each rank updates a part of them. So a node holds and updates them
 * once, and a fault in them shows only against those of other nodes. Errors: RANK. */
enum dpt_status dpt_trainer_join_state(struct dpt_trainer *t, struct dpt_error *err);
/* Sets how many slots there are, and their names. */
void dpt_arenas_count_slots(struct dpt_arenas *arenas, const struct dpt_layout *layout);

/*
 * program.c.
 *
 * If a backend can compute the same in several ways, whose bits differ, it records which it took
 * (t->model.plans). All ranks take rank 0's, and a resumed run takes those of its checkpoint,
 * whatever would be chosen today: so neither another rank, nor a timing, nor a lost cache changes
 * the bytes of a run.
 */

/* Builds the graph, on the first set's shape, with norms settled (dpt_layout_settle_norms). The
 * other sets must have that shape too, and targets that fit its outputs. Sets the splits' form.
 * Errors: BAD_JOB, BAD_DATA, RANK. */
enum dpt_status dpt_model_of_splits(struct dpt_trainer_model *model, const struct dpt_job *job,
                                    struct dpt_splits *data, struct dpt_error *err);
/* What a backend is asked to make of a stage, but for the device. pool: of a team's threads. */
struct dpt_program_spec dpt_layout_program(const struct dpt_layout *layout,
                                           const struct dpt_layout_stage *stage,
                                           const struct dpt_loss *loss, struct dpt_pool *pool);
/* Opens t->model.program, on this rank, as that spec says; one that is open is closed first. plans:
 * to be taken where they can be had; NULL: none. Sets t->model.plans, and after a failure
 * t->model.too_large. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_trainer_open_program(struct dpt_trainer *t, const char *plans,
                                         struct dpt_error *err);
void dpt_trainer_close_program(struct dpt_trainer *t);

/*
 * Collective. Ranks whose plans are not these open their program, and what the engine has attached
 * to it, once more with them. plans: of rank 0; NULL or empty: all stays as it is. If something was
 * attached, dpt_trainer_refresh must follow. Errors: BAD_JOB, RANK.
 */
enum dpt_status dpt_trainer_share_plans(struct dpt_trainer *t, const char *plans,
                                        struct dpt_error *err);

/* How many lines of `before` differ in `now`. *total: the number of lines; name: what the first
 * changed line is for, cut to `size` bytes. */
int dpt_plans_changed(const char *before, const char *now, int *total, char *name, size_t size);

#endif

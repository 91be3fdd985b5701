/*
 * parts: how a trainer's parts come and go. For who opens trainers (setup.c), and the engines.
 *
 * What has a size of its own for each micro-batch (loaders, team, evaluation, program) is opened
 * again if one does not fit; closing what is not open does nothing.
 */
#ifndef DPT_TRAIN_PARTS_H
#define DPT_TRAIN_PARTS_H

#include "core/train/trainer.h"

/* splits.c. Opens the job's data sets of `parts` (DPT_PART_...), or describes them where t is
 * planned. Collective unless it is. Errors: as dpt_dataset_open; BAD_JOB (data.valid). */
enum dpt_status dpt_trainer_open_data(struct dpt_trainer *t, unsigned parts, struct dpt_error *err);
/* Finds what the job's targets are scaled by, and tells the data sets of it. The model must be
 * built. Errors: BAD_JOB, BAD_DATA, RANK. */
enum dpt_status dpt_trainer_open_targets(struct dpt_trainer *t, struct dpt_error *err);
/* Collective. */
void dpt_trainer_close_data(struct dpt_trainer *t);
/* Opens a loader for every split, whose samplers are set. Errors: BAD_DATA (no sample of one
 * counts), IO, RANK. */
enum dpt_status dpt_trainer_open_loaders(struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_loaders(struct dpt_trainer *t);

/* arenas.c. Opens the parameters, initialised on rank 0, and, where it trains, the slots but for
 * those of dpt_trainer_join_slots. Errors: RANK. */
enum dpt_status dpt_trainer_open_arenas(struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_arenas(struct dpt_trainer *t);
/* Collective over the node. Opens the slots that its ranks have together
 * (dpt_trainer_shares_slots). Errors: RANK. */
enum dpt_status dpt_trainer_join_slots(struct dpt_trainer *t, struct dpt_error *err);
/* To be called before an update behind which the replicas are compared. In shards it takes the hash
 * of the weights as they are now, for that check; elsewhere it does nothing. */
void dpt_trainer_hash_replica(struct dpt_trainer *t);
/* Sets how many slots there are, and their names. */
void dpt_trainer_count_slots(struct dpt_trainer *t);
/* Whether the optimizer's slots are so large that the ranks of a node have them together, each of
 * which writes a part (engines/host.c). The engine must be chosen. */
bool dpt_trainer_shares_slots(const struct dpt_trainer *t);

/* team.c. Opens a buffer of `most` samples for each thread, and the pool, which stays until the
 * trainer closes. Errors: RANK. */
enum dpt_status dpt_trainer_open_team(struct dpt_trainer *t, int32_t most, struct dpt_error *err);
void dpt_trainer_close_team(struct dpt_trainer *t);

/* evaluate.c. Makes room for the sums of every split. Errors: RANK. */
enum dpt_status dpt_trainer_open_evaluation(struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_evaluation(struct dpt_trainer *t);

/*
 * program.c.
 *
 * Where a backend may compute the same in several ways, which differ in their bits, it says which
 * it took (t->model.plans). All ranks take rank 0's, and a run that goes on takes those of its
 * checkpoint, whatever would be chosen today: so neither another rank, nor a timing, nor a lost
 * cache changes the bytes of a run.
 */

/* Builds the graph, on the first set's shape. The other sets must have that shape too, and targets
 * that fit its outputs. Errors: BAD_JOB, BAD_DATA, RANK. */
enum dpt_status dpt_trainer_build_model(struct dpt_trainer *t, struct dpt_error *err);
/* What a backend is asked to make of it, for t->team.group micro-batches of `micro` samples. */
struct dpt_program_spec dpt_trainer_program_spec(const struct dpt_trainer *t, int32_t micro);
/* Opens t->model.program, on this rank, as that spec says; one that is open is closed first. plans:
 * to be taken where they can be had; NULL: none. Sets t->model.plans, and after a failure
 * t->model.too_large. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_trainer_open_program(struct dpt_trainer *t, int32_t micro, const char *plans,
                                         struct dpt_error *err);
void dpt_trainer_close_program(struct dpt_trainer *t);

/*
 * Collective. Ranks whose plans are not these open their program, and what the engine has
 * attached to it, once more with them. plans: of rank 0; NULL or empty: all stays as it is. Where
 * something was attached dpt_trainer_refresh is to follow. Errors: BAD_JOB, RANK.
 */
enum dpt_status dpt_trainer_share_plans(struct dpt_trainer *t, const char *plans,
                                        struct dpt_error *err);

/* How many lines of `before` differ in `now`. *total: the number of lines; name: what the first
 * changed line is for, cut to `size` bytes. */
int dpt_plans_changed(const char *before, const char *now, int *total, char *name, size_t size);

#endif

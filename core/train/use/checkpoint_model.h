/*
 * checkpoint_model: the model of a checkpoint with its weights, from the checkpoint alone.
 *
 * A checkpoint holds the job that made it and the shape of the samples, which is what a model is
 * built from; so neither the job file nor the data need be there. On one process, without MPI.
 */
#ifndef DPT_TRAIN_CHECKPOINT_MODEL_H
#define DPT_TRAIN_CHECKPOINT_MODEL_H

#include <limits.h>

#include "core/interchange/weights.h"
#include "core/state/checkpoint.h"
#include "core/train/job/job.h"
#include "data/sources/source.h"

/* Zero-initialise: {0}. */
struct dpt_checkpoint_model {
    char path[PATH_MAX]; /* the file's */
    struct dpt_conf conf;
    struct dpt_job job; /* what of it decides the result; its strings live in conf */
    struct dpt_graph graph;
    float *params; /* arena */
    struct dpt_target_scale targets;
    struct dpt_progress progress;
    bool averaged; /* the parameters are the weights' moving average */
    struct dpt_source_kept kept;
};

/*
 * Verifies and reads. path: a file, or a run folder (dpt_checkpoint_resolve). shape: of the
 * samples, if the checkpoint does not have it; NULL: unknown. how: DPT_LOAD_ANY and those after it.
 * Close it in any case. Errors: BAD_DATA (damaged, no checkpoint, a shape that does not fit or is
 * not known), BAD_JOB (its job cannot be read by this dptrain), IO, RANK.
 */
enum dpt_status dpt_checkpoint_model_open(struct dpt_checkpoint_model *m, const char *path,
                                          const struct dpt_shape *shape, unsigned how,
                                          struct dpt_error *err);
void dpt_checkpoint_model_close(struct dpt_checkpoint_model *m);

/* Reads what a checkpoint keeps of its samples, and frees that. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_checkpoint_kept(const struct dpt_checkpoint *file, struct dpt_source_kept *kept,
                                    struct dpt_error *err);
void dpt_checkpoint_kept_release(struct dpt_source_kept *kept);
/* Collective. Gives all ranks rank 0's, each its own. Errors: MPI, RANK. */
enum dpt_status dpt_checkpoint_kept_share(struct dpt_source_kept *kept,
                                          const struct dpt_group *world, struct dpt_error *err);

/* The job of a checkpoint alone. *job, *conf: zeroed; the latter is the caller's to release in any
 * case, and the job's strings live in it. Errors: as above. */
enum dpt_status dpt_checkpoint_job(const char *path, struct dpt_job *job, struct dpt_conf *conf,
                                   struct dpt_error *err);

/* Checks that a checkpoint's model is that of a job, for samples of this shape; what a checkpoint
 * does not record fits. Reads no weights. path: as above. Errors: BAD_DATA (names the first
 * difference). */
enum dpt_status dpt_checkpoint_fits(const char *path, const struct dpt_job *job,
                                    const struct dpt_shape *shape, struct dpt_error *err);

/* A checkpoint as a file of weights: read, not written. */
extern const struct dpt_weights_format dpt_weights_checkpoint;

#endif

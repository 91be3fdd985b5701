/*
 * trainer: one rank's part of a job, opened and ready for training steps.
 *
 * It holds the data, the model's graph, the backend's program, the flat arenas (parameters, a
 * gradient for each thread, the reduced gradient, the optimizer's slots) and the threads. Between
 * two steps all ranks hold the same parameters and slots, bit for bit. The gradient arena ends with
 * a tail of a few words (enum dpt_tail), so that one collective per step carries the gradient and
 * everything else that the ranks exchange. After the first step nothing is allocated. One thread
 * uses a trainer; the trainer's own pool works inside its calls.
 *
 * An engine (engine.h) takes the steps. If a device takes them, the arenas here are copies, which
 * are current only after dpt_trainer_fetch, and the results of steps are known only after
 * dpt_trainer_settle.
 */
#ifndef DPT_TRAIN_TRAINER_H
#define DPT_TRAIN_TRAINER_H

#include "core/base/log.h"
#include "core/comm/transport.h"
#include "core/state/checkpoint.h"
#include "core/train/job/fault.h"
#include "core/train/job/job.h"
#include "core/train/scores/decide.h"
#include "core/train/trainer_parts.h"
#include "data/sets/targets.h"

struct dpt_runner;

struct dpt_trainer {
    const struct dpt_job *job;   /* borrowed */
    const struct dpt_comm *comm; /* borrowed */
    struct dpt_log *log;         /* borrowed */
    const struct dpt_backend *backend;
    int gpu;                   /* number of its device, if it has devices */
    struct dpt_rank_gpu *gpus; /* [ranks] (choose.h); NULL: no rank has a GPU */
    bool shares_gpu;           /* some ranks have the same one */
    /* The ranks' devices are linked, and sum by themselves (core/comm/transport.h); NULL: they are
     * not. */
    void *link;
    bool loads; /* DPT_PART_LOADED */
    struct dpt_splits data;
    struct dpt_trainer_model model;
    struct dpt_target_scale targets;      /* scale of the outputs; loss mse. Owner: splits.c */
    struct dpt_layout layout;             /* how the work is divided. Owner: setup.c */
    const struct dpt_layout_stage *stage; /* this rank's stage */
    struct dpt_mesh mesh;
    struct dpt_units units;
    struct dpt_runner *runner; /* runs the list of actions (step/runner.h) */
    struct dpt_team team;
    struct dpt_arenas arenas;
    struct dpt_state_file file;
    const struct dpt_engine *engine; /* takes the steps */
    struct dpt_engine_state *engine_state;
    struct dpt_gradient_reduction reduction;
    /* Whether MPI sums in the memory of the device that takes the steps, and why; or "". */
    char aware[DPT_CUDA_AWARE_TEXT];
    char transport[DPT_CUDA_AWARE_TEXT]; /* what links those devices, or why nothing does; or "" */
    /* Metric sums of an evaluation, per micro-batch of some steps; they are added in the
     * micro-batches' order, whichever rank computed them. Owner: evaluate.c. */
    double *sums;
    float *outputs; /* of an evaluation: [threads][micro][outputs] */
    /* Samples of the last evaluation whose outputs are not finite: how many, and the number of the
     * first in its set. If there are any, there are no scores. */
    struct {
        int64_t samples, first;
    } nonfinite;
    struct dpt_scores scores;        /* of the last evaluation; on rank 0 */
    struct dpt_class_score *classes; /* likewise, [outputs]; NULL: no classes */
    double *confusion;        /* likewise, [outputs][outputs] true by chosen class; NULL: none */
    struct dpt_called called; /* class names, borrowed; the data sets', unless a model has names */
    struct dpt_positive positive; /* of two classes; preferably from data.train */
    /* The thresholds to decide by, or to find; NULL: none. Borrowed. */
    struct dpt_decision *decision;
    bool all_scores; /* also slow scores: the ROC AUC of more than two classes */
    struct dpt_requests requests;
    struct dpt_progress progress;
    struct dpt_loss_scale scale;    /* for half-precision gradients; else 1 */
    int64_t steps, steps_per_epoch; /* of the whole run */
    double lr;                      /* base rate after scaling */
    /* Seconds that this rank worked on its part of the steps, until it was ready for the reduction;
     * the reader resets it. */
    double busy;
    struct dpt_fault fault;      /* only in tests */
    struct dpt_profile *profile; /* NULL: no profile is recorded; borrowed */
};

/* The model as this rank's arenas have it: the whole model, or only the tensors of its part. */
static inline const struct dpt_graph *dpt_trainer_graph(const struct dpt_trainer *t)
{
    return &t->stage->graph;
}

/* The ranks that have the same part of the model, and divide the samples. */
static inline const struct dpt_comm *dpt_trainer_replicas(const struct dpt_trainer *t)
{
    return t->mesh.replicas;
}

enum dpt_trainer_parts {
    DPT_PART_TRAIN = 1,
    DPT_PART_VALID = 2,
    DPT_PART_TEST = 4,
    DPT_PART_LOADED = 8, /* no data: all weights are loaded before use, so none is initialised */
};

/*
 * Collective over comm->world. Opens the data sets that `parts` asks for and the job names, builds
 * the model, starts the threads, prepares the backend, initialises the weights and gives rank 0's
 * to all. given: NULL, or, if `parts` is empty, the shape of samples from elsewhere: then weights
 * can be loaded, and samples predicted (predict.h). All ranks get the same status. Errors: BAD_JOB
 * (shapes), BAD_DATA, RANK, IO. On failure everything is released.
 */
enum dpt_status dpt_trainer_open(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_comm *comm, struct dpt_log *log, unsigned parts,
                                 const struct dpt_shape *given, struct dpt_error *err);
/* Collective; does nothing to one that is zeroed. */
void dpt_trainer_close(struct dpt_trainer *t);

/* The results of one step or several, the same numbers on all ranks. Steps without an update do not
 * count in the first five members. */
struct dpt_step_result {
    double loss, correct; /* as in struct dpt_metric_sums */
    int64_t samples;
    double weight;
    double norm;        /* of the last step's mean gradient, before clipping */
    double lr;          /* of the last step; not set by dpt_trainer_settle */
    int64_t skipped;    /* steps whose gradient was not finite, with train.on_nan: skip */
    int64_t weightless; /* steps without update, since their samples' weights sum to 0 */
    int64_t overflows;  /* steps without update, since the loss scale was too large */
    /* a device takes the step: dpt_trainer_settle returns the members above, but lr */
    bool deferred;
    bool save;   /* a rank asked for a checkpoint */
    bool signal; /* a rank received a signal to stop */
    bool clock;  /* a rank's time limit is reached */
    bool writes; /* a rank still writes its part of a checkpoint */
};

/*
 * Collective. Takes the next step: forward, backward, reduction, update. A rank on which something
 * fails still takes part in the reduction, and then all ranks return that failure. Errors: FAILED
 * (not finite: names step, rank and layer), BAD_DATA, IO, RANK.
 */
enum dpt_status dpt_trainer_step(struct dpt_trainer *t, struct dpt_step_result *result,
                                 struct dpt_error *err);

/* Collective. Positions the data for the step after t->progress. Errors: INTERNAL, RANK. */
enum dpt_status dpt_trainer_seek(struct dpt_trainer *t, struct dpt_error *err);

/*
 * If a device takes the steps (engine.h), these functions wait for all steps so far; else they do
 * nothing.
 *
 * settle: collective. Returns the results of all steps since the last call. If a gradient or loss
 * was not finite, the device withheld that update and all after it: then t->progress returns to the
 * step before it, and the failure is that of dpt_trainer_step. All ranks must call it after the
 * same steps, and regularly, since updates after such a step are wasted.
 *
 * peek: returns the same results on this rank alone, and leaves a value that is not finite to
 * settle.
 *
 * fetch: copies parameters, slots and loss scale to t->arenas and t->scale, and with `gradient`
 * also the last step's summed gradient with its tail to t->reduction.sum.
 */
enum dpt_status dpt_trainer_settle(struct dpt_trainer *t, struct dpt_step_result *since,
                                   struct dpt_error *err);
enum dpt_status dpt_trainer_peek(struct dpt_trainer *t, struct dpt_step_result *since,
                                 struct dpt_error *err);
enum dpt_status dpt_trainer_fetch(struct dpt_trainer *t, bool gradient, struct dpt_error *err);
/* Stops prefetching samples; for when no step follows. */
void dpt_trainer_stop_prefetching(struct dpt_trainer *t);

/* Collective. Evaluates each sample of the split once. *total: out, sums over all ranks; sets
 * t->scores and, if t->decision seeks a threshold, what it finds. Errors: as dpt_trainer_step;
 * USAGE, if t->decision requires what is not there. */
enum dpt_status dpt_trainer_evaluate(struct dpt_trainer *t, struct dpt_split *split,
                                     struct dpt_metric_sums *total, struct dpt_error *err);

/* Collective, after dpt_trainer_fetch. Compares the weights and slots of all ranks. Errors: FAILED,
 * naming the ranks that differ. */
enum dpt_status dpt_trainer_check_replicas(const struct dpt_trainer *t, struct dpt_error *err);
/* To be called before an update after which the replicas are compared. With shards it hashes the
 * current weights, for that check; else it does nothing. */
void dpt_trainer_hash_replica(struct dpt_trainer *t);
/* Must be called after parameters, slots, loss scale or progress were changed from outside, as by
 * loading a checkpoint. Errors: as the backend's refresh. */
enum dpt_status dpt_trainer_refresh(struct dpt_trainer *t, struct dpt_error *err);

#endif

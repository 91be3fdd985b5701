/*
 * trainer: one rank's part of a job, opened and ready for training steps.
 *
 * It holds the data, the model's graph, the backend's program, the flat arenas (parameters, a
 * gradient for each thread, the reduced gradient, the optimizer's slots) and the threads. Between
 * two steps all ranks hold the same parameters and slots, bit for bit. The gradient arena ends with
 * a tail of a few words (enum dpt_tail), so that one collective a step carries the gradient and
 * everything else that the ranks tell each other. After the first step nothing is allocated. One
 * thread uses a trainer; the trainer's own pool works inside its calls.
 *
 * An engine (engine.h) takes the steps. Where a device does, the arenas here are copies, which are
 * current only after dpt_trainer_fetch, and the results of steps are known only after
 * dpt_trainer_settle.
 */
#ifndef DPT_TRAIN_TRAINER_H
#define DPT_TRAIN_TRAINER_H

#include "core/backend/backend.h"
#include "core/base/log.h"
#include "core/base/pool.h"
#include "core/comm/comm.h"
#include "core/comm/cuda_aware.h"
#include "core/state/checkpoint.h"
#include "core/train/job/job.h"
#include "core/train/run/fault.h"
#include "core/train/update/optimizer.h"
#include "core/train/use/scores.h"
#include "data/sets/loader.h"
#include "data/sets/sampler.h"
#include "data/sets/targets.h"

/* The flags that the ranks reduce with each step: how many ranks have set each. */
enum dpt_flag {
    DPT_FLAG_FAILED, /* its part of the step failed */
    DPT_FLAG_SAVE,   /* it asks for a checkpoint after this step */
    DPT_FLAG_SIGNAL, /* it received a signal to stop */
    DPT_FLAG_CLOCK,  /* its time limit is reached */
    DPT_FLAGS
};

/* Words after the gradient, which are summed with it. */
enum dpt_tail {
    DPT_TAIL_LOSS,    /* sum of the samples' losses, each times its weight */
    DPT_TAIL_SAMPLES, /* samples that were counted; exact below 2^24 */
    DPT_TAIL_CORRECT, /* sum of the weights of correctly classified samples */
    DPT_TAIL_WEIGHT,  /* sum of all weights: divides loss and gradient */
    DPT_TAIL_FLAGS,   /* the first of DPT_FLAGS */
    DPT_TAIL_WORDS = DPT_TENSOR_ALIGN
};

enum { DPT_SPLITS = 3 };

/* A set of samples, with the order in which training or evaluation reads it. */
struct dpt_split {
    const char *name; /* "train", "valid", "test" */
    bool present;
    const struct dpt_dataset *set; /* borrowed from the trainer */
    struct dpt_sampler sampler;
    struct dpt_loader *loader;
};

/* The samples for training, validation and test: data sets of their own, or a fraction of one.
 * Owner: splits.c. */
struct dpt_splits {
    struct dpt_dataset sets[DPT_SPLITS];
    union {
        struct {
            struct dpt_split train, valid, test;
        };
        struct dpt_split split[DPT_SPLITS]; /* the same three, for loops */
    };
    /* Shape of samples that do not come from these sets (predict.h); borrowed, or NULL. */
    const struct dpt_shape *given;
};

/* The model and the program that the backend made of it. Owner: program.c. */
struct dpt_trainer_model {
    struct dpt_loss loss;
    struct dpt_graph graph;
    void *program;
    /* The ranks of a node have together what the program derives from the weights
     * (dpt_backend.share). */
    bool shared;
    /* The kernels that it chose, in the text of dpt_backend.plans; empty: there was no choice. */
    struct dpt_str plans;
    int32_t micro_most; /* a larger micro-batch did not fit; 0: no limit is known */
    bool too_large;     /* the last failure was that the micro-batch did not fit */
};

/* Most micro-batches that a rank's team computes at once under `reproducible`. */
enum { DPT_GROUP_MOST = 16 };

/* The data of one thread, on cache lines of its own. */
struct dpt_worker {
    struct dpt_batch_buffer buffer;
    struct dpt_metric_sums metric_sums;
    int32_t done; /* micro-batches of this step in its gradient */
    /* The micro-batches that this thread is computing: the metrics of each, the arena for their
     * gradient, and whether it is added to the arena's content. */
    struct dpt_metric_sums own[DPT_GROUP_MOST];
    float *target;
    bool add;
    enum dpt_status filled; /* of filling its part of a team's micro-batch */
    enum dpt_status status;
    struct dpt_error err;
};

/* The threads of a rank. Owner: team.c; batch_sizing.c chooses how they share the samples. */
struct dpt_team {
    int threads;   /* of this rank */
    bool together; /* they compute each micro-batch together */
    int32_t group; /* micro-batches that are computed at once: 1, or a power of two */
    /* Micro-batches of which the backend gives the sum of their gradients (dpt_backend.adds), if
     * that is more than a group; of a trainer that is only planned, those that it is asked for. */
    int32_t adds;
    bool
        synchronized; /* synchronized batch norms: all micro-batches of a step are under way at once */
    int in_flight;    /* the most micro-batches, or groups, that a worker has in flight */
    /* Threads that take micro-batches and have gradients of their own: 1 where the threads compute
     * together, else all. */
    int gradient_workers;
    bool spin;           /* there is a core for every thread, so waiting threads may spin */
    int64_t all_threads; /* of all ranks */
    struct dpt_pool *pool;
    struct dpt_worker *workers; /* [threads] */
};

/* What is equal on all ranks between two steps. Owner: arenas.c. */
struct dpt_arenas {
    float *params; /* with t->units.gathers only this rank's slice, and the state */
    /* In shards only the floats that this rank owns (gradient_reduction.h) are there: the rest is
     * address space, which takes no memory. */
    float *slot[DPT_MAX_SLOTS];
    int slots;
    /* The memory of the slots where the ranks of a node have them together; else empty. */
    struct dpt_shared shared;
    size_t reserved;        /* bytes of such a slot; 0: there are no shards */
    struct dpt_parts parts; /* [ranks]: for messages with the owners of shards or stages */
    uint64_t *hashes;       /* [ranks], for the replica check */
    /* In shards: of the weights before the update of this step, if replicas are compared behind it:
     * all ranks get the owners' weights then. */
    uint64_t hash;
    int64_t hashed_step;
};

/* The gradient of all ranks. Owner: the engine. */
struct dpt_gradient_reduction {
    /* NULL in evaluation, and where a device steps. */
    const struct dpt_gradient_reduction_type *type;
    struct dpt_gradient_reduction_state *state; /* data of that type */
    float reduced_flags[DPT_FLAGS];             /* the last step's flags, summed over the ranks */
    double weight; /* with stages: of the last step's samples, which the last stage's tail has */
    struct dpt_chunks chunks; /* of the tensors (dpt_graph_chunks) */
    /* With its tail; the first worker's arena where there is one rank, or where it is large; NULL
     * where a device steps (dpt_trainer_fetch). */
    float *sum;
};

/* This rank's place among those that divide the model, and its part of it. Owner: mesh.c. */
struct dpt_mesh {
    int stages, stage; /* of the pipeline; 1: the stage is the whole model */
    int tensor, part;  /* how many ranks divide a stage's layers; 1: they are not divided */
    int32_t *first;    /* [stages + 1]: the first node of each stage, and the end */
    /* Where ranks divide the model (dpt_mesh_divides): the graph of this rank's part, whose arena
     * has its tensors alone, and groups of ranks; else empty. */
    struct dpt_graph graph;
    struct dpt_comm replicas; /* the ranks that have the same part of the model */
    struct dpt_comm line;     /* those that have the same micro-batches, of all stages and parts */
    struct dpt_comm parts;    /* those that divide the layers of this stage */
    struct dpt_comm edges[2]; /* with the stages beside it: see dpt_mesh_edge */
    struct dpt_comm *open[DPT_AXES_MOST]; /* those of these that are */
    int splits;
    struct dpt_tensor_parallel *divided; /* (tensor_parallel.h); NULL: no layer is */
};

/* The ranges of the stage's nodes that passes take one after another. Owner: units.c. */
struct dpt_units {
    int n;         /* at least 1 */
    int32_t *node; /* [n + 1]: the first node of each, and the end */
    size_t *edge;  /* [n + 1]: where its learned floats begin, and the end */
    bool sliced;   /* FSDP units: each rank keeps a slice of the weights */
    bool gathers;  /* their weights come by messages; else all ranks have one arena of them */
    struct dpt_shared weights; /* that arena */
};

/* What this rank tells the others with the next step. Owner: the loop (run.c). */
struct dpt_requests {
    enum dpt_status deferred_error; /* a failure of this rank alone; its text is the caller's err */
    bool save;                      /* a checkpoint after that step */
    bool check;                     /* known on all: the replicas are compared after that step */
    bool signal, clock;             /* to stop after it, and why */
};

struct dpt_runner;

struct dpt_trainer {
    const struct dpt_job *job;   /* borrowed */
    const struct dpt_comm *comm; /* borrowed */
    struct dpt_log *log;         /* borrowed */
    const struct dpt_backend *backend;
    int gpu;                   /* number of its device, if it has devices */
    struct dpt_rank_gpu *gpus; /* [ranks] (choose.h); NULL: no rank has a GPU */
    bool planned;              /* opened by dpt_trainer_plan: cannot take steps */
    struct dpt_splits data;
    struct dpt_trainer_model model;
    struct dpt_target_scale targets; /* of the model's outputs; with loss mse. Owner: splits.c */
    struct dpt_mesh mesh;
    struct dpt_units units;
    struct dpt_runner *runner; /* goes through the micro-batches (step/runner.h) */
    struct dpt_team team;
    struct dpt_arenas arenas;
    const struct dpt_engine *engine; /* takes the steps */
    struct dpt_engine_state *engine_state;
    struct dpt_gradient_reduction reduction;
    /* Whether MPI sums in the memory of the device that takes the steps, and why; or "". */
    char aware[DPT_CUDA_AWARE_TEXT];
    /* Metric sums of an evaluation, by micro-batch; they are added in their order, whichever rank
     * computed them. Owner: evaluate.c. */
    double *sums;
    float *outputs; /* of one, and room for probabilities: [threads][micro + 1][outputs] */
    struct dpt_scores scores;        /* of the last one; rank 0's */
    struct dpt_class_score *classes; /* likewise, [outputs]; NULL: there are none */
    double *confusion;        /* likewise, [outputs][outputs] true by chosen class; NULL: none */
    struct dpt_called called; /* what the data sets call the classes; borrowed of these */
    struct dpt_positive positive; /* of two classes; what data.train says goes before the rest */
    bool all_scores; /* also those that take long: the ROC AUC of more than two classes */
    struct dpt_requests requests;
    struct dpt_progress progress;
    struct dpt_loss_scale scale;    /* for gradients in half floats; else 1 */
    int64_t steps, steps_per_epoch; /* of the whole run */
    double lr;                      /* base rate after scaling */
    /* Seconds that this rank worked on its part of the steps, until it was ready for the reduction;
     * the reader resets it. */
    double busy;
    struct dpt_fault fault;      /* only in tests */
    struct dpt_profile *profile; /* NULL: no profile is recorded; borrowed */
};

/* Whether ranks have parts of the model; else each has all of it, and all ranks are replicas. */
static inline bool dpt_mesh_divides(const struct dpt_mesh *m)
{
    return m->stages * m->tensor > 1;
}

/* Whether ranks have parts of the model, or slices of its weights, so that it is computed by passes
 * over some of its nodes, and no rank has all of it. */
static inline bool dpt_trainer_in_parts(const struct dpt_trainer *t)
{
    return dpt_mesh_divides(&t->mesh) || t->units.sliced;
}

/* The model as this rank's arenas have it: all of it, or the tensors of its part alone. */
static inline const struct dpt_graph *dpt_trainer_graph(const struct dpt_trainer *t)
{
    return dpt_mesh_divides(&t->mesh) ? &t->mesh.graph : &t->model.graph;
}

/* The ranks that have the same part of the model, and divide the samples. */
static inline const struct dpt_comm *dpt_trainer_replicas(const struct dpt_trainer *t)
{
    return dpt_mesh_divides(&t->mesh) ? &t->mesh.replicas : t->comm;
}

/* How many ranks have the model once: all stages and parts of it. */
static inline int dpt_trainer_model_ranks(const struct dpt_trainer *t)
{
    return t->mesh.stages * t->mesh.tensor;
}

/* Whether each rank keeps and updates a part of its own (parallel.shard). */
static inline bool dpt_trainer_sharded(const struct dpt_trainer *t)
{
    return t->job->parallel.shard != DPT_SHARD_NONE && dpt_trainer_replicas(t)->world.size > 1 &&
           t->data.train.present;
}

/* Whether the ranks take micro-batches in turn, and keep no gradient but a part of their own; with
 * t->units neither weights. */
static inline bool dpt_trainer_round_robin(const struct dpt_trainer *t)
{
    return dpt_trainer_sharded(t) && t->job->parallel.shard >= DPT_SHARD_GRADIENTS;
}

/* Whether ranks keep parts of what a checkpoint has: then rank 0 gathers and writes it piece by
 * piece, while all ranks wait, and reads and scatters it tensor by tensor; so no rank ever has
 * room for more. Else rank 0 has all of it, copies it, and writes while training goes on. */
static inline bool dpt_trainer_streams(const struct dpt_trainer *t)
{
    return dpt_mesh_divides(&t->mesh) || dpt_trainer_sharded(t);
}

enum dpt_trainer_parts {
    DPT_PART_TRAIN = 1,
    DPT_PART_VALID = 2,
    DPT_PART_TEST = 4,
};

/*
 * Collective over comm->world. Opens the data sets that `parts` asks for and the job names, builds
 * the model, starts the threads, prepares the backend, initialises the weights and gives rank 0's
 * to all. given: NULL, or without any parts the shape of samples from elsewhere: then weights can
 * be loaded, and samples predicted (predict.h). All ranks get the same status. Errors: BAD_JOB
 * (shapes), BAD_DATA, RANK, IO. On failure everything is released.
 */
enum dpt_status dpt_trainer_open(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_comm *comm, struct dpt_log *log, unsigned parts,
                                 const struct dpt_shape *given, struct dpt_error *err);
/*
 * Fills in a trainer as dpt_trainer_open would on rank 0 of `comm`, whose ranks need not exist:
 * data sets described, model, micro-batch, steps, rates. Only the graph is allocated; no sample is
 * read and no file written. threads: cores of each rank. Errors: BAD_JOB, BAD_DATA, RANK, IO.
 */
enum dpt_status dpt_trainer_plan(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_comm *comm, int threads, unsigned parts,
                                 struct dpt_error *err);
/* Whether a norm of the model takes the statistics of steps of more than one micro-batch. Follows
 * from the job and the model alone. */
bool dpt_trainer_synchronized(const struct dpt_trainer *t);
/* How many threads of a rank a step of the trainer's model can keep busy, at least 1. */
int dpt_trainer_useful_threads(const struct dpt_trainer *t);
/* Whether dptrain may choose the size of the micro-batch by the number of ranks and the machine:
 * the job does not give it, and it does not change the result, as it would under `reproducible` or
 * with a batch norm. */
bool dpt_trainer_micro_is_open(const struct dpt_trainer *t);
/* The size of a trainer's micro-batch. Where dptrain may not choose it, some ranks may be without
 * any. */
int32_t dpt_trainer_choose_micro(const struct dpt_trainer *t);
/* Warns where the samples look as if they were in another layout. The data must be open. */
void dpt_trainer_warn_layout(const struct dpt_trainer *t, struct dpt_log *log);
/* Warns where a step takes more samples than there are, and where classes are learned as numbers.
 * The trainer must be open or planned. */
void dpt_trainer_warn_data(const struct dpt_trainer *t, struct dpt_log *log);
/* Warns of ranks that have no micro-batch in a whole step, and says which size would give them one.
 * The trainer must be open or planned. */
void dpt_trainer_warn_idle(const struct dpt_trainer *t, struct dpt_log *log);
/*
 * How many micro-batches of size `micro` a rank's team computes at once under `reproducible`: as
 * many as form a node of the reduction's tree, whose gradients it adds on the way (backend.h,
 * `sub_batch`). The bits are the same, and weights and gradient are read and written once. In
 * stages it has several such groups under way, which are smaller so that few stages wait.
 */
int32_t dpt_trainer_choose_group(const struct dpt_trainer *t, int32_t micro);
/* Of how many a device is to add the gradients before the host gets their sum: of all that a rank
 * has in a step, unless the ranks exchange them in rounds, or something looks at each. */
int32_t dpt_trainer_choose_adds(const struct dpt_trainer *t, int32_t micro);
/* Collective. */
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
 * Where a device takes the steps (engine.h), these wait for those so far; else they do nothing.
 *
 * settle: collective. Returns the results of all steps since the last call. Where a gradient or
 * loss was not finite, the device withheld that update and all after it: then t->progress returns
 * to the step before it, and the failure is that of dpt_trainer_step. All ranks must call it after
 * the same steps, and now and then, since updates after such a step are wasted.
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
/* Stops prefetching samples, when no step follows. */
void dpt_trainer_rest(struct dpt_trainer *t);
/* Seconds that steps have waited for samples, so far. */
double dpt_trainer_waited(const struct dpt_trainer *t);

/* Collective. Finds which of two classes is the positive one, for an evaluation of a split: by the
 * labels of data.train where they are open, or with t->all_scores can be read; else by the split's.
 * Does nothing for other models. */
void dpt_trainer_find_positive(struct dpt_trainer *t, const struct dpt_split *split);
/* Collective. Evaluates each sample of the split once. *total: out, sums over all ranks; sets
 * t->scores. Errors: as dpt_trainer_step. */
enum dpt_status dpt_trainer_evaluate(struct dpt_trainer *t, struct dpt_split *split,
                                     struct dpt_metric_sums *total, struct dpt_error *err);
/* The same for an engine whose ranks have the whole model on the host, or stages of it. */
enum dpt_status dpt_evaluate_split(struct dpt_trainer *t, struct dpt_split *split,
                                   struct dpt_metric_sums *total, struct dpt_error *err);
/* How many labels each sample has that hold or not; 0: it has a class or numbers. */
int32_t dpt_trainer_labels(const struct dpt_trainer *t);
/* What a person calls the accuracy: that all labels of a sample are right is "exact match". */
const char *dpt_trainer_accuracy_name(const struct dpt_trainer *t);
/* Adds what an evaluation of a split found, for a person: a line whose loss has so many digits. */
void dpt_trainer_tell(const struct dpt_trainer *t, const char *split,
                      const struct dpt_metric_sums *sums, const struct dpt_scores *scores,
                      int digits, struct dpt_str *out);

/* Collective, after dpt_trainer_fetch. Compares the weights and slots of all ranks. Errors: FAILED,
 * naming the ranks that differ. */
enum dpt_status dpt_trainer_check_replicas(const struct dpt_trainer *t, struct dpt_error *err);
/* In shards, before an update behind which the replicas are compared: the check is of the weights
 * as they are now. */
void dpt_trainer_hash_replica(struct dpt_trainer *t);

/*
 * Collective, after a step whose reduced gradient or loss is not finite and before the next one:
 * finds the rank, layer and sample where that began, fills err and returns FAILED. view: the
 * step's. gradient: memory for a gradient of this rank.
 */
enum dpt_status dpt_trainer_find_nonfinite(struct dpt_trainer *t, const struct dpt_step_view *view,
                                           float *gradient, struct dpt_error *err);

/* Must be called after parameters, slots, loss scale or progress were changed from outside, as by
 * loading a checkpoint. Errors: as the backend's refresh. */
enum dpt_status dpt_trainer_refresh(struct dpt_trainer *t, struct dpt_error *err);

/* Collective over the node. *cores: out, the cores that this rank may use; those shared with other
 * ranks are divided among them. Errors: RANK. */
enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err);

/* The largest micro-batch with which every rank has one; 0: there are fewer samples than ranks. */
int64_t dpt_feeding_micro(int64_t global, int ranks);

/*
 * Loads and computes n micro-batches of a step, at most t->team.group. metric_sums: [n]. In a team
 * all threads call it with the first worker's buffer, gradient and metric sums; a failure on one of
 * them then fails on all. Errors: BAD_DATA, INTERNAL, RANK.
 */
enum dpt_status dpt_trainer_train(struct dpt_trainer *t, int thread,
                                  const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                  struct dpt_batch *batch, float *gradient, bool add,
                                  struct dpt_metric_sums *metric_sums, struct dpt_error *err);
/* The first part of that: loads them for this thread, or for a team, into a buffer that has room
 * for them. */
enum dpt_status dpt_trainer_fill(struct dpt_trainer *t, int thread,
                                 const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                 struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                 struct dpt_error *err);
/* Whether the optimizer's slots are so large that the ranks of a node have them together, each of
 * which writes a part (engines/host.c). Once the engine is chosen. */
bool dpt_trainer_shares_slots(const struct dpt_trainer *t);

/* Turns a profile (core/trace/profile.h) on, or off (NULL), between two steps. p is borrowed. */
void dpt_trainer_observe(struct dpt_trainer *t, struct dpt_profile *p);

/* A barrier of the trainer's threads, for work that all of them do. */
void dpt_trainer_barrier(const struct dpt_trainer *t, int thread);

/* The trainer's present state, for a checkpoint. job_text: from dpt_job_signature. */
struct dpt_state dpt_trainer_state(struct dpt_trainer *t, const char *job_text);

/* Collective. Of a tensor of the parameters, or of the last step's summed gradient, which is none
 * of the state. *x: out, on rank 0 where all of it is, in `room` where the ranks have parts of it;
 * else NULL. Errors: RANK. */
enum dpt_status dpt_trainer_tensor(const struct dpt_trainer *t, bool gradient, int32_t number,
                                   float *room, const float **x, struct dpt_error *err);
/* Collective. Gives all ranks rank 0's parameters, or its slots, where it has all of them; else
 * they have theirs already (dpt_trainer_follow). Errors: RANK. */
enum dpt_status dpt_trainer_broadcast_params(struct dpt_trainer *t, struct dpt_error *err);
enum dpt_status dpt_trainer_broadcast_slots(struct dpt_trainer *t, struct dpt_error *err);
/* In shards, while rank 0 saves a state: what all other ranks do, which send it what they own. Else
 * nothing. Errors: RANK. */
enum dpt_status dpt_trainer_give_slots(struct dpt_trainer *t, struct dpt_error *err);

/*
 * Where ranks keep parts (dpt_trainer_streams), rank 0 reads a checkpoint into address space for
 * the whole model, which is there from open to close: `state` gets it in place of its own arenas,
 * and gives each tensor away at once. On other ranks, and elsewhere, both do nothing. Errors: RANK.
 */
enum dpt_status dpt_trainer_open_whole(const struct dpt_trainer *t, struct dpt_state *state,
                                       struct dpt_error *err);
/* Collective, there, once rank 0 has read such a state or failed: the others take from it what they
 * keep of each tensor that it reads. Elsewhere nothing. Errors: RANK. */
enum dpt_status dpt_trainer_follow(const struct dpt_trainer *t, struct dpt_error *err);
void dpt_trainer_close_whole(const struct dpt_trainer *t, struct dpt_state *state);

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
 * a run folder for its latest. any: accept weights that are not finite. */
enum dpt_status dpt_trainer_load_params(struct dpt_trainer *t, const char *path, bool any,
                                        struct dpt_error *err);

/* Runs `work` on every thread of the trainer. Errors: the first failure of its workers. */
enum dpt_status dpt_trainer_run(struct dpt_trainer *t, void (*work)(void *arg, int thread),
                                void *arg, struct dpt_error *err);

#endif

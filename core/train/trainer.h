/*
 * trainer: one rank's share of a job, made ready to step.
 *
 * Holds the data, the model's graph, the backend's program, the flat arenas (parameters, a gradient
 * a thread, the reduced gradient, the optimizer's slots) and the threads. All ranks hold the same
 * parameters and slots, bit for bit, at every moment between two steps. The gradient arena ends
 * with a tail of a few words (enum dpt_tail), so that one collective a step carries the gradient
 * and all that the ranks must tell each other. After the first step nothing is allocated. Used by
 * one thread; the trainer's own pool works inside its calls.
 *
 * Who takes the steps is a row of engine.h. Where a device does, the arenas here are copies,
 * current only after dpt_trainer_fetch, and what steps gave is known after dpt_trainer_settle.
 */
#ifndef DPT_TRAIN_TRAINER_H
#define DPT_TRAIN_TRAINER_H

#include "core/backend/backend.h"
#include "core/base/log.h"
#include "core/base/pool.h"
#include "core/comm/comm.h"
#include "core/comm/cuda_aware.h"
#include "core/state/checkpoint.h"
#include "core/train/fault.h"
#include "core/train/job.h"
#include "core/train/optimizer.h"
#include "data/sets/loader.h"
#include "data/sets/sampler.h"

/* The flags that the ranks reduce with each step: how many ranks have set each. */
enum dpt_flag {
    DPT_FLAG_FAILED, /* their part of the step failed */
    DPT_FLAG_SAVE,   /* ask for a checkpoint after this step */
    DPT_FLAG_SIGNAL, /* were sent a signal to stop */
    DPT_FLAG_CLOCK,  /* their time is up */
    DPT_FLAGS
};

/* Words behind the gradient, summed with it. */
enum dpt_tail {
    DPT_TAIL_LOSS,    /* sum of the samples' losses, each times its weight */
    DPT_TAIL_SAMPLES, /* samples that were counted; exact below 2^24 */
    DPT_TAIL_CORRECT, /* the weights of those of them that were classified right */
    DPT_TAIL_WEIGHT,  /* of all of them: what loss and gradient are divided by */
    DPT_TAIL_FLAGS,   /* the first of DPT_FLAGS */
    DPT_TAIL_WORDS = DPT_TENSOR_ALIGN
};

enum { DPT_SPLITS = 3 };

/* A sample set as training or evaluation walks it. */
struct dpt_split {
    const char *name; /* "train", "valid", "test" */
    bool present;
    const struct dpt_dataset *set; /* borrowed from the trainer */
    struct dpt_sampler sampler;
    struct dpt_loader *loader;
};

/* The samples that train, validate and test, as the job names them: data sets of their own, or a
 * fraction of one. Owner: splits.c. */
struct dpt_splits {
    struct dpt_dataset sets[DPT_SPLITS];
    union {
        struct {
            struct dpt_split train, valid, test;
        };
        struct dpt_split split[DPT_SPLITS]; /* the same three, for loops */
    };
    const struct dpt_shape
        *given; /* of samples that come from elsewhere, not from these; borrowed */
};

/* What is computed, and what the backend made of it. Owner: program.c. */
struct dpt_trainer_model {
    struct dpt_loss loss;
    struct dpt_graph graph;
    void *program;
    struct dpt_str plans; /* which kernels it chose, as its backend tells it; empty: there is no
                             choice */
    int32_t micro_most;   /* a larger micro-batch did not fit; 0: any */
    bool too_large;       /* what failed is that this one does not fit */
};

/* At most this many micro-batches of a rank that its team computes at once under `reproducible`. */
enum { DPT_GROUP_MOST = 16 };

/* What belongs to one thread, on cache lines of its own. */
struct dpt_worker {
    struct dpt_batch_buffer buffer;
    struct dpt_metric_sums metric_sums;
    int32_t done; /* micro-batches of this step that its gradient holds */
    /* The micro-batches under way, where this thread takes them: what is counted in each, where
     * their gradient goes, and whether it is added there. */
    struct dpt_metric_sums own[DPT_GROUP_MOST];
    float *target;
    bool add;
    enum dpt_status filled; /* its part of a team's micro-batch */
    enum dpt_status status;
    struct dpt_error err;
};

/* The threads of a rank. Owner: team.c; batch_sizing.c says how they share the samples. */
struct dpt_team {
    int threads;          /* of this rank */
    bool together;        /* they compute each micro-batch together */
    int32_t group;        /* micro-batches that are computed at once: 1, or a power of two */
    int gradient_workers; /* threads that take micro-batches, and have gradients: one where they compute
                      together, else all */
    bool spin;            /* a core for every thread: waiting may be active */
    int64_t all_threads; /* of all ranks */
    struct dpt_pool *pool;
    struct dpt_worker *workers; /* [threads] */
};

/* What all ranks hold alike between two steps. Owner: arenas.c. */
struct dpt_arenas {
    float *params;
    float *slot[DPT_MAX_SLOTS];
    int slots;
    uint64_t *hashes; /* one a rank, for the replica check */
};

/* The gradient of all ranks. Owner: the engine. */
struct dpt_gradient_reduction {
    const struct dpt_gradient_reduction_type
        *type;                                  /* NULL for evaluation, and where a device steps */
    struct dpt_gradient_reduction_state *state; /* what that way of summing keeps */
    float reduced_flags[DPT_FLAGS];             /* the last step's flags, summed over the ranks */
    float *sum; /* with its tail; the first worker's own arena where there is one rank; NULL where a
                   device steps: dpt_trainer_fetch */
};

/* What this rank tells the others with the next step. Owner: the loop (run.c). */
struct dpt_requests {
    enum dpt_status deferred_error; /* a failure of this rank alone; its text is the caller's err */
    bool save;                      /* a checkpoint after that step */
    bool signal, clock;             /* to stop after it, and why */
};

struct dpt_trainer {
    const struct dpt_job *job;   /* borrowed */
    const struct dpt_comm *comm; /* borrowed */
    struct dpt_log *log;         /* borrowed */
    const struct dpt_backend *backend;
    int gpu; /* number of its device, where it has some: for the program, dpt_choose_sums */
    struct dpt_rank_gpu *gpus; /* of all ranks (choose.h); NULL: nobody has one */
    bool planned;              /* by dpt_trainer_plan: there is nothing to step with */
    struct dpt_splits data;
    struct dpt_trainer_model model;
    struct dpt_team team;
    struct dpt_arenas arenas;
    const struct dpt_engine *engine; /* takes the steps */
    struct dpt_engine_state *engine_state;
    struct dpt_gradient_reduction reduction;
    char aware[DPT_CUDA_AWARE_TEXT]; /* whether MPI sums in the memory of the device that takes the
                                        steps, and how that is known; or "" */
    double *sums;                    /* of an evaluation, for each micro-batch: added in
                     their order, whoever computed them. Owner: evaluate.c */
    struct dpt_requests requests;
    struct dpt_progress progress;
    struct dpt_loss_scale scale;    /* of half floats' gradients; else 1 */
    int64_t steps, steps_per_epoch; /* of the whole run */
    double lr;                      /* base rate after scaling */
    double busy; /* seconds that this rank worked on its part of the steps, until it was ready for
                    the reduction; whoever reads it sets it back */
    struct dpt_fault fault;      /* to play; none but in tests */
    struct dpt_profile *profile; /* NULL: nobody asks where the time goes; borrowed */
};

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
 * As dpt_trainer_open would have it on rank 0 of `comm`, whose ranks need not exist: data sets
 * described, model, micro-batch, steps, rates. Nothing is allocated but the graph, no sample is
 * read, no file written. threads: that each rank has cores for. Errors: BAD_JOB, BAD_DATA, RANK,
 * IO.
 */
enum dpt_status dpt_trainer_plan(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_comm *comm, int threads, unsigned parts,
                                 struct dpt_error *err);
/* How many threads of a rank a step of the trainer's model can keep busy, at least 1. */
int dpt_trainer_useful_threads(const struct dpt_trainer *t);
/* Whether the size of its micro-batch may follow the ranks and the machine: the job leaves it open,
 * and neither `reproducible` nor a batch norm makes it part of what is computed. */
bool dpt_trainer_micro_is_open(const struct dpt_trainer *t);
/* The size of a trainer's micro-batch. Where it is not open, some ranks may be left without any. */
int32_t dpt_trainer_choose_micro(const struct dpt_trainer *t);
/* Of a trainer with its data: a warning where samples look as if they were of another layout. */
void dpt_trainer_warn_layout(const struct dpt_trainer *t, struct dpt_log *log);
/* Of an open or planned trainer: a warning that names the ranks without a micro-batch in a whole
 * step, and says what would feed them; nothing where all have one. */
void dpt_trainer_warn_idle(const struct dpt_trainer *t, struct dpt_log *log);
/*
 * How many of these are computed at once under `reproducible`: a rank's team takes as many
 * micro-batches as are a node of the reduction's tree, and adds their gradients up on the way
 * (backend.h, `sub_batch`): the same bits, and one pass over the weights and their gradient.
 */
int32_t dpt_trainer_choose_group(const struct dpt_trainer *t, int32_t micro);
/* Collective. */
void dpt_trainer_close(struct dpt_trainer *t);

/* What a step gave, or several, the same numbers on all ranks. Steps without an update do not
 * count in the first five. */
struct dpt_step_result {
    double loss, correct; /* as in struct dpt_metric_sums */
    int64_t samples;
    double weight;
    double norm;        /* of the last one's mean gradient, before clipping */
    double lr;          /* of the last one; not from dpt_trainer_settle */
    int64_t skipped;    /* steps: not finite, and the job says to skip */
    int64_t weightless; /* steps: their samples' weights sum to 0, so there is no update */
    int64_t overflows;  /* steps: the loss scale was too large for them, and is smaller now */
    bool deferred; /* a device has the step: dpt_trainer_settle will tell of all above but lr */
    bool save;     /* some rank asked for a checkpoint */
    bool signal;   /* some rank was asked to stop by a signal */
    bool clock;    /* some rank's time is up */
};

/*
 * Collective. The next step: forward, backward, reduction, update. A rank on which something fails
 * takes part in the reduction nevertheless, and then all ranks return that failure. Errors: FAILED
 * (not a number: names step, rank and layer), BAD_DATA, IO, RANK.
 */
enum dpt_status dpt_trainer_step(struct dpt_trainer *t, struct dpt_step_result *result,
                                 struct dpt_error *err);

/* Collective. The next step will be that of t->progress. Errors: INTERNAL, RANK. */
enum dpt_status dpt_trainer_seek(struct dpt_trainer *t, struct dpt_error *err);

/*
 * Where steps are done on a device (engine.h), these wait for those so far; else they do nothing.
 *
 * settle: collective. What all steps since the last time gave. It finds out about what is not a
 * number, which the device withheld with all updates behind it: then t->progress goes back to the
 * last step before that, and the failure is that of dpt_trainer_step. To be called by all ranks
 * after the same steps; every so many of them, since updates behind such a step are wasted.
 * peek: the same numbers on this rank alone, and what is not a number is left to settle.
 * fetch: the parameters, the slots and the loss scale, to t->arenas and t->scale; `gradient`: also
 * the last step's summed gradient with its tail, to t->reduction.sum.
 */
enum dpt_status dpt_trainer_settle(struct dpt_trainer *t, struct dpt_step_result *since,
                                   struct dpt_error *err);
enum dpt_status dpt_trainer_peek(struct dpt_trainer *t, struct dpt_step_result *since,
                                 struct dpt_error *err);
enum dpt_status dpt_trainer_fetch(struct dpt_trainer *t, bool gradient, struct dpt_error *err);
/* Stops reading ahead, since no step follows. */
void dpt_trainer_rest(struct dpt_trainer *t);
/* Seconds that steps have waited for samples, so far. */
double dpt_trainer_waited(const struct dpt_trainer *t);

/* Collective. Each sample of the split once; sums over all ranks. Errors: as dpt_trainer_step. */
enum dpt_status dpt_trainer_evaluate(struct dpt_trainer *t, struct dpt_split *split,
                                     struct dpt_metric_sums *total, struct dpt_error *err);
/* The same for an engine whose ranks have the whole model. */
enum dpt_status dpt_evaluate_split(struct dpt_trainer *t, struct dpt_split *split,
                                   struct dpt_metric_sums *total, struct dpt_error *err);

/* Collective, after dpt_trainer_fetch. Compares the weights and slots of all ranks. Errors: FAILED,
 * naming the ranks that differ. */
enum dpt_status dpt_trainer_check_replicas(const struct dpt_trainer *t, struct dpt_error *err);

/*
 * Collective, after a step whose reduced gradient or loss is not finite and before the next: finds
 * the rank, the layer and the sample where it began, fills err and returns FAILED. view: the
 * step's. gradient: room for one of this rank.
 */
enum dpt_status dpt_trainer_find_nonfinite(struct dpt_trainer *t, const struct dpt_step_view *view,
                                           float *gradient, struct dpt_error *err);

/* To be called when the parameters, slots, loss scale or progress were changed from outside (a
 * checkpoint was loaded). Errors: as the backend's refresh. */
enum dpt_status dpt_trainer_refresh(struct dpt_trainer *t, struct dpt_error *err);

/* Collective over the node. The cores that this rank may use, those shared with other ranks divided
 * among them. Errors: RANK. */
enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err);

/* The largest micro-batch that leaves no rank without one; 0: there are fewer samples than ranks.
 */
int64_t dpt_feeding_micro(int64_t global, int ranks);

/*
 * Fills and computes n micro-batches of a step, at most t->team.group, metric_sums: [n]. In a team all
 * threads call it with the first worker's buffer, gradient and metric sums; what fails on one of them
 * then fails on all. Errors: BAD_DATA, INTERNAL, RANK.
 */
enum dpt_status dpt_trainer_train(struct dpt_trainer *t, int thread,
                                  const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                  struct dpt_batch *batch, float *gradient, bool add,
                                  struct dpt_metric_sums *metric_sums, struct dpt_error *err);
/* Turns a profile (core/trace/profile.h) on, or off (NULL), between two steps. p is borrowed. */
void dpt_trainer_observe(struct dpt_trainer *t, struct dpt_profile *p);

/* In work that all threads do: returns when all have come here. */
void dpt_trainer_barrier(const struct dpt_trainer *t, int thread);

/* The trainer's present state. job_text: dpt_job_signature's. */
struct dpt_state dpt_trainer_state(struct dpt_trainer *t, const char *job_text);

/* Collective. Gives rank 0's parameters to all ranks, and to what is derived from them; status: rank
 * 0's, of getting them. Errors: that status; RANK. */
enum dpt_status dpt_trainer_share_params(struct dpt_trainer *t, enum dpt_status status,
                                         struct dpt_error *err);
/* Collective. dpt_checkpoint_load of the parameters on rank 0, then the same on all. path: a file,
 * or a run folder for its latest. any: also weights that are not finite. */
enum dpt_status dpt_trainer_load_params(struct dpt_trainer *t, const char *path, bool any,
                                        struct dpt_error *err);

/* Runs work on every thread of the trainer and gives the first failure of its workers. */
enum dpt_status dpt_trainer_run(struct dpt_trainer *t, void (*work)(void *arg, int thread),
                                void *arg, struct dpt_error *err);

#endif

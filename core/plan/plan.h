/*
 * plan: estimates what a job would do and need, without running it.
 *
 * Steps, partitions, shapes and buffers come from what training is opened by: the layout
 * (core/train/layout), the backend's own plan, the reductions' and the checkpoint's sizes. Seconds
 * are a model: a micro-batch's time, the update of the weights, and the sum over the ranks, on
 * nodes like this machine. A micro-batch's time is measured if the model is small enough to try one
 * (dpt_trial_run), else taken from the limits of cost.h and what the layers reach of them.
 */
#ifndef DPT_PLAN_PLAN_H
#define DPT_PLAN_PLAN_H

#include "core/backend/devices.h"
#include "core/base/str.h"
#include "core/plan/cost.h"
#include "core/train/layout/shares.h"
#include "core/train/trainer.h"

/* --- GPUs, none of which needs to be there (plan_gpu*.c)
 * --------------------------------------- */

/* A GPU by its data sheet; operations are counted without sparsity. */
struct dpt_gpu_type {
    const char *key;              /* for the command line */
    char name[96];                /* as the driver calls it */
    double memory;                /* bytes */
    double bandwidth;             /* bytes per second */
    double nvlink;                /* bytes per second to the other GPUs of a node; 0: it has none */
    double pcie;                  /* bytes per second; both links: in each direction */
    double flops[DPT_PRECISIONS]; /* per second; 0: as with the precision before */
};

/* "h100", or NULL. */
const struct dpt_gpu_type *dpt_gpu_type_find(const char *key);

/* A device of this machine: the row of its name, or a guess by its size, with what the driver says.
 */
void dpt_gpu_describe(const struct dpt_device_info *info, struct dpt_gpu_type *gpu);

/* Its peak at a precision (enum dpt_precision). */
double dpt_gpu_peak(const struct dpt_gpu_type *gpu, int precision);

/* --- a plan ----------------------------------------------------------------------------------- */

struct dpt_plan_spec {
    int ranks;
    int node_ranks;                 /* ranks that share a node; 0: all, but one per GPU */
    bool trial;                     /* a few micro-batches may be computed, if they are small */
    const struct dpt_gpu_type *gpu; /* for kind: cuda; NULL: the one that is here */
    /* What an earlier plan in this process has measured: what the machine can do, and what the
     * process took before that. NULL, 0: there is none. */
    const struct dpt_machine *machine;
    double process;
    struct dpt_fabric fabric;
};

enum dpt_plan_scope {
    DPT_PLAN_RANK,  /* every rank has it */
    DPT_PLAN_FIRST, /* rank 0 has it */
    DPT_PLAN_NODE,  /* the ranks of a node that have the same stage share it */
    DPT_PLAN_ONCE,  /* a node has it once, for all stages */
};

/* What memory is for. */
#define DPT_PLAN_PART_LIST(X)                                                                      \
    X(DPT_PLAN_WEIGHTS, "weights")                                                                 \
    X(DPT_PLAN_GRADIENTS, "gradients")                                                             \
    X(DPT_PLAN_OPTIMIZER, "optimizer")                                                             \
    X(DPT_PLAN_VALUES, "values") /* layers' and samples' */                                        \
    X(DPT_PLAN_OTHER, "other")
enum dpt_plan_part { DPT_PLAN_PART_LIST(DPT_LIST_NAME) DPT_PLAN_PARTS };

struct dpt_plan_memory {
    const char *name, *key; /* for a person; in JSON */
    enum dpt_plan_part part;
    enum dpt_plan_scope scope;
    double bytes;
};

enum { DPT_PLAN_MEMORY = 17, DPT_PLAN_DEVICE = 9 };

/* What a step's gradients go through while they are summed. */
#define DPT_PLAN_LINK_LIST(X)                                                                      \
    X(DPT_PLAN_LINK_MEMORY, "memory") /* the hosts' */                                             \
    X(DPT_PLAN_LINK_PCIE, "pcie")                                                                  \
    X(DPT_PLAN_LINK_NVLINK, "nvlink")                                                              \
    X(DPT_PLAN_LINK_NETWORK, "network")
enum dpt_plan_link { DPT_PLAN_LINK_LIST(DPT_LIST_NAME) DPT_PLAN_LINKS };

/* Seconds of a step at the slowest rank. */
struct dpt_plan_step {
    double compute; /* forward and backward, the loss; in a pipeline the slowest stage's */
    double wait;    /* a stage waits for the others (pipeline bubble) */
    double between; /* messages between stages */
    double data;    /* filling micro-batches */
    double local;   /* the sum on a node, and the gathering of what devices update in parts */
    double network; /* the same between nodes */
    double update;  /* norm, optimizer, weight layouts */
    double total;
    enum dpt_plan_link link; /* which takes longest in these; of no meaning without them */
    double meetings;         /* how often ranks meet before they sum */
    int32_t micro;
};

/* What was timed; seconds. */
struct dpt_trial {
    bool done;
    int32_t micro;      /* samples that were computed at once */
    double micro_batch; /* by one thread, or by a team */
    double update;      /* optimizer and weight layouts, on all threads of a rank */
    /* Measured with a thread on each core of a node; 0: not known. */
    double sum;     /* a step's sum of as many gradients as threads, in slices */
    double barrier; /* a barrier of these threads */
};

/* What a rank's list of a full step moves (core/train/layout/actions.h). */
struct dpt_plan_traffic {
    double kind[DPT_ACTION_KINDS]; /* bytes, by the actions' rows */
    double to_next;                /* the messages to the next stage */
    double exchanges, largest_exchange;
    double in_flight; /* micro-batches, or groups of them, that a worker has in flight at most */
};

/* A stage of the model, of which there is at least one. */
struct dpt_plan_stage {
    struct dpt_plan_traffic traffic;

    const char *first;  /* its first layer; borrowed */
    double flop;        /* the share of all arithmetic */
    double bytes;       /* touched by each of its ranks, without what rank 0 has alone */
    double own, shared; /* parts of bytes: a rank's own, and what its replicas on a node share */
    double device;      /* bytes of its GPU; 0: there is none */
    int in_flight;      /* micro-batches that each thread has in flight at most */
};

/* What the ranks along an axis of the mesh send in a step. */
struct dpt_plan_axis {
    const char *name, *part, *what; /* as parallel has it; a place along it; what it sends */
    int ranks;                      /* along it; 1: it sends nothing */
    double bytes;                   /* at least, of the rank that sends most */
    bool crosses;                   /* from node to node */
};
enum { DPT_PLAN_AXES = 3, DPT_PLAN_TEXT = 128 };

struct dpt_plan {
    struct dpt_plan_spec spec;
    const struct dpt_job *job; /* borrowed */
    const struct dpt_backend *backend;
    struct dpt_splits data; /* described only */
    struct dpt_trainer_model model;
    struct dpt_target_scale targets;
    struct dpt_layout layout;
    const struct dpt_layout_stage
        *stage;         /* the one that needs most memory, of a GPU's if there are any */
    int32_t micro_most; /* a larger micro-batch does not fit on the device; 0: no limit is known */
    int32_t adds;       /* micro-batches of which the backend gives the sum of the gradients */
    struct dpt_pool *pool;          /* for what backends say of a team; NULL: there is no team */
    int64_t steps, steps_per_epoch; /* steps of the whole run */
    double lr;                      /* base rate after scaling */
    double cores;                   /* a node's, all its ranks together */
    int nodes;
    bool assumes_nodes; /* the spec does not say how many ranks share a node */
    struct dpt_program_bytes program;
    struct dpt_plan_memory memory[DPT_PLAN_MEMORY];
    double first_rank, other_rank, node; /* bytes: what each touches, and what a node needs */
    double available;                    /* bytes on this machine; -1: unknown */
    double process;                      /* touched by this process, without libraries */
    double libraries;                    /* and their pages */
    struct dpt_gpu_type gpu;             /* the GPU to run on; no name: none */
    bool gpu_here;                       /* in this machine */
    bool linked;                         /* GPUs could sum by NCCL, if they took the steps */
    const char *by_host; /* why gradients are summed in the hosts' memory; NULL: by NCCL */
    struct dpt_plan_memory device[DPT_PLAN_DEVICE]; /* a rank's, on that GPU */
    double device_bytes;
    bool stored;          /* the samples stay there */
    int32_t device_micro; /* samples of a micro-batch that would fit; 0: this one does, or none */
    uint64_t checkpoint;  /* bytes */
    double reduced;       /* bytes that each rank puts into a step's sum */
    double gathered; /* bytes of weights that each rank needs of a step's messages, its own too */
    struct dpt_plan_axis axes[DPT_PLAN_AXES];
    struct dpt_plan_stage
        *stages;                /* the layout's; the memory above is of the one that needs most */
    double bubble;              /* the share of a step in which a stage waits for the others */
    struct dpt_machine machine; /* flops 0: not measured */
    struct dpt_trial trial;
    double sample; /* seconds to decode, resize or augment a sample; 0: nothing is done to it */
    struct dpt_plan_step step;
};

/* Everything but the seconds. *plan keeps pointing to job and spec; it may not be moved, and is to
 * be closed in any case. job_text: dpt_job_signature's. Errors: BAD_JOB, BAD_DATA, RANK, IO. */
enum dpt_status dpt_plan_open(struct dpt_plan *plan, const struct dpt_job *job,
                              const struct dpt_plan_spec *spec, const char *job_text,
                              struct dpt_error *err);
void dpt_plan_close(struct dpt_plan *plan);
/* The layout of a plan's model on other ranks, of a job that differs from the plan's in numbers. It
 * is to be closed, after a failure too. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_plan_layout(const struct dpt_plan *plan, const struct dpt_job *job, int ranks,
                                int node_ranks, struct dpt_layout *layout, struct dpt_error *err);
/* Adds a line with the nodes that were assumed, if the spec leaves them out and that matters; else
 * nothing. */
void dpt_plan_assumption(const struct dpt_plan *plan, char text[DPT_PLAN_TEXT]);

/* Measures the machine, tries a micro-batch if that is allowed, fills plan->step. Takes about a
 * second. Errors: RANK. */
enum dpt_status dpt_plan_time(struct dpt_plan *plan, struct dpt_error *err);

/* What falls to a rank that needs most, of a GPU's memory if it has one: what the ranks of a node
 * share is divided by their number. */
struct dpt_plan_share {
    double bytes[DPT_PLAN_PARTS], all;
    double first; /* what rank 0 needs in addition while it saves a checkpoint */
    double host;  /* if it has a GPU: of the host's memory */
};
struct dpt_plan_share dpt_plan_share(const struct dpt_plan *plan);

/* plan_memory.c: what the backend needs for a micro-batch of plan->stage; the memory, once that is
 * known. */
enum dpt_status dpt_plan_measure(struct dpt_plan *plan, struct dpt_error *err);
void dpt_plan_fill_memory(struct dpt_plan *plan);
/* Plans each stage by itself; the one that needs most stays. Errors: RANK. */
enum dpt_status dpt_plan_stages(struct dpt_plan *plan, struct dpt_error *err);
/* Fills plan->axes, and with stages what rank 0 and a node need. */
void dpt_plan_fill_mesh(struct dpt_plan *plan);

/* Whether ranks of a stage and of the next one, of so many replicas, are on several nodes. */
bool dpt_plan_link_crosses(const struct dpt_plan *plan, int replicas, int stage);
/* Seconds of either end of a message between ranks of a node. */
double dpt_plan_copy_seconds(const struct dpt_plan *plan, double bytes);
/* Seconds in which ranks tell each other their parts of divided layers in a step. */
double dpt_plan_part_seconds(const struct dpt_plan *plan, double slower);

/* plan_lists.c: the ranks' lists of actions. What a rank of the stage sends. Errors: RANK. */
enum dpt_status dpt_plan_read_list(const struct dpt_layout *layout,
                                   const struct dpt_layout_stage *stage,
                                   struct dpt_plan_traffic *traffic, struct dpt_error *err);
/* Fills plan->bubble. Errors: RANK. */
enum dpt_status dpt_plan_find_bubble(struct dpt_plan *plan, struct dpt_error *err);

/* How fast ranks go through their lists. */
struct dpt_plan_pace {
    int32_t micro; /* samples of a round, of one worker */
    /* Seconds of a round's passes (DPT_COMPUTES_) through nodes [first, last). */
    double (*seconds)(const struct dpt_plan *plan, int32_t first, int32_t last, int32_t micro,
                      int computes);
    double slower;       /* as ranks share cores */
    int replicas, nodes; /* ranks with the same part of the model; nodes that they are on */
    double add;          /* seconds to add a float */
};
/* Runs the lists of all stages against each other: fills the step's compute, wait, between, network
 * and meetings. layout: of that many ranks and samples. Errors: RANK. */
enum dpt_status dpt_plan_run_lists(const struct dpt_plan *plan, const struct dpt_layout *layout,
                                   const struct dpt_plan_pace *pace, int32_t rounds,
                                   struct dpt_plan_step *step, struct dpt_error *err);

/* A step of so many samples on so many ranks; if they are more than micro-batches, some idle.
 * Errors: RANK. */
enum dpt_status dpt_plan_predict(const struct dpt_plan *plan, int ranks, int64_t global,
                                 struct dpt_plan_step *step, struct dpt_error *err);

/* Floating point operations of a node for one sample, forward and backward; only products count. */
void dpt_plan_flop(const struct dpt_plan *plan, int32_t node, double *forward, double *backward);

/*
 * The share of a plan that is a GPU's. Memory is what the backend says that it would allocate, and
 * what the steps on the device take beside it. Seconds are bounds by the data sheet's peaks, with
 * what kernels reach of these; of graph replay only the start of each kernel is modelled.
 */

/* The type that the spec names, or the GPU of this machine, or, where there is none, an H200. */
void dpt_plan_gpu_choose(struct dpt_plan *plan);
/* Fills plan->by_host and `linked`; and by_host once more, of a layout that is known. */
void dpt_plan_gpu_links(struct dpt_plan *plan);
void dpt_plan_gpu_transport(struct dpt_plan *plan);
/* Fills plan->device. */
void dpt_plan_gpu_memory(struct dpt_plan *plan);
/* Seconds of a micro-batch's passes (DPT_COMPUTES_) through nodes [first, last). */
double dpt_plan_gpu_micro(const struct dpt_plan *plan, int32_t first, int32_t last, int32_t micro,
                          int computes);
/* Seconds of a message between the devices of two stages of a layout, on a node or between
 * nodes. */
double dpt_plan_gpu_message(const struct dpt_plan *plan, const struct dpt_layout *layout,
                            bool crosses, double bytes);
/* A step of so many rounds through units of the weights, of which the GPUs keep slices: a unit's
 * are gathered beside the pass before its own, and its gradient is summed beside the next one
 * back. step: out: what nothing hides; NULL: nobody asks. Returns the bytes that each GPU
 * gathers, its own slices included. */
double dpt_plan_gpu_gathered(const struct dpt_plan *plan, const struct dpt_layout *layout,
                             int64_t rounds, struct dpt_plan_step *step);
/* Estimates a step of a layout whose compute is known: the busiest rank has so many
 * micro-batches. */
void dpt_plan_gpu_step(const struct dpt_plan *plan, const struct dpt_layout *layout, int64_t micros,
                       struct dpt_plan_step *step);

/* Fills trial->sum and trial->barrier for gradients of so many floats. Errors: RANK. */
enum dpt_status dpt_trial_sum(size_t floats, int threads, struct dpt_trial *trial,
                              struct dpt_error *err);
/* A rank by itself that has the whole model, on this machine: a trainer with threads and, once they
 * are opened, arenas and a program. It may not be moved. */
struct dpt_lone {
    struct dpt_comm comm;
    struct dpt_job job;
    struct dpt_trainer t;
};
/* samples: that each thread has room for. Errors: RANK. */
enum dpt_status dpt_lone_open(struct dpt_lone *lone, const struct dpt_plan *plan, int threads,
                              int32_t samples, struct dpt_error *err);
void dpt_lone_close(struct dpt_lone *lone);
/* Computes a few micro-batches and updates of the plan's model on `threads` threads at once, and
 * throws them away. Errors: RANK. */
enum dpt_status dpt_trial_run(const struct dpt_plan *plan, int threads, struct dpt_trial *trial,
                              struct dpt_error *err);

/*
 * Adds lines for a person whose job found too little memory: what it needs and what is there, and
 * what it would need with each option that shrinks it, one after another and all together. Plans
 * the job for each, which allocates nothing of its size. Nothing is added if planning itself fails.
 */
void dpt_plan_advise(const struct dpt_job *job, const struct dpt_plan_spec *spec,
                     const char *job_text, struct dpt_str *out);

#endif

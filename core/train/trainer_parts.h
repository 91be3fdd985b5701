/*
 * trainer_parts: the parts of a trainer, one struct each. One file owns each part, as the struct's
 * comment says.
 *
 * The parts are members of struct dpt_trainer (trainer.h), and any file may read them. Only the
 * owner changes a part.
 */
#ifndef DPT_TRAIN_TRAINER_PARTS_H
#define DPT_TRAIN_TRAINER_PARTS_H

#include "core/backend/backend.h"
#include "core/base/pool.h"
#include "core/comm/comm.h"
#include "core/state/checkpoint.h"
#include "core/train/layout/layout.h"
#include "core/train/update/optimizer.h"
#include "data/sets/identity.h"
#include "data/sets/loader.h"
#include "data/sets/sampler.h"

/* The flags that the ranks reduce with each step: each counts the ranks that set it. */
enum dpt_flag {
    DPT_FLAG_FAILED, /* its part of the step failed */
    DPT_FLAG_SAVE,   /* it asks for a checkpoint after this step */
    DPT_FLAG_SIGNAL, /* it received a signal to stop */
    DPT_FLAG_CLOCK,  /* its time limit is reached */
    DPT_FLAG_WRITES, /* its part of a checkpoint is not written yet (state_file.h) */
    DPT_FLAGS
};

/* Words after the gradient, summed with it. */
enum dpt_tail {
    DPT_TAIL_LOSS,    /* sum of the samples' losses, each times its weight */
    DPT_TAIL_SAMPLES, /* samples that were counted; exact below 2^24 */
    DPT_TAIL_CORRECT, /* sum of the weights of correctly classified samples */
    DPT_TAIL_WEIGHT,  /* sum of all weights: divides loss and gradient */
    DPT_TAIL_FLAGS,   /* the first of DPT_FLAGS */
    DPT_TAIL_WORDS = DPT_TENSOR_ALIGN
};
_Static_assert((int)DPT_TAIL_FLAGS + (int)DPT_FLAGS <= (int)DPT_TAIL_WORDS,
               "flags fit in the tail");

enum { DPT_SPLITS = 3 };

/* A set of samples, with the order in which training or evaluation reads it. */
struct dpt_split {
    const char *name; /* "train", "valid", "test" */
    bool present;
    const struct dpt_dataset *set; /* borrowed from the trainer */
    struct dpt_batch_form form;    /* once there is a model */
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
    /* What checkpoints keep of the training set (dpt_splits_identify; data/sets/identity.h). */
    char identity[DPT_IDENTITY_TEXT];
    struct dpt_str classes;
    struct dpt_called called; /* class names, borrowed from the data sets */
};

/* The model and the program that the backend made of it. Owner: program.c. */
struct dpt_trainer_model {
    struct dpt_loss loss;
    struct dpt_graph graph;
    void *program;
    /* Memory that the ranks of a node share, for what the program derives from the weights
     * (dpt_backend.share). */
    bool shared;
    /* The kernels that the program chose, as the text of dpt_backend.plans; empty: there was no
     * choice. */
    struct dpt_str plans;
    bool too_large; /* the last failure: the micro-batch did not fit */
};

/* The data of one thread, on cache lines of its own. */
struct dpt_worker {
    struct dpt_batch_buffer buffer;
    struct dpt_metric_sums metric_sums;
    int32_t done; /* micro-batches of this step in its gradient */
    /* The micro-batches that this thread is computing: the metrics of each, the arena for their
     * gradient, and whether it is added to the arena's content. */
    struct dpt_metric_sums own[DPT_MOST_AT_ONCE];
    float *target;
    bool add;
    enum dpt_status filled; /* status of filling its part of a team's micro-batch */
    enum dpt_status status;
    struct dpt_error err;
};

/* The threads of a rank, and the data of each. Owner: team.c, but for `adds`, which is
 * program.c's. */
struct dpt_team {
    /* How many micro-batches' gradients the backend sums (dpt_backend.adds); as many as it was
     * asked for, if it has no such function. */
    int32_t adds;
    bool spin; /* each thread has a core: waiting may spin */
    struct dpt_pool *pool;
    struct dpt_worker *workers; /* [threads] */
};

/* What is equal on all ranks between two steps. Owner: arenas.c, but for `params`, which is
 * units.c's. */
struct dpt_arenas {
    float *params; /* with t->units.gathers only this rank's slices, and the state */
    /* If there are several owners, each has only the floats that it owns (gradient_reduction.h):
     * the rest is address space, which takes no memory. */
    float *slot[DPT_MAX_SLOTS];
    int slots; /* the last one is the weights' moving average, if there is one (average.h) */
    const char *slot_names[DPT_MAX_SLOTS];
    /* The memory of parameters and slots, if the ranks of a node share them; else empty. */
    struct dpt_shared shared;
    int owners;             /* ranks that divide each slot */
    struct dpt_parts parts; /* [ranks]: for messages with the owners of shards or stages */
    uint64_t *hashes;       /* [ranks], for the replica check */
    /* If several ranks divide the update: the hash of the weights before the update of this
     * step, if replicas are compared after it, since all ranks get the owners' weights then. */
    uint64_t hash;
    int64_t hashed_step;
};

/* A checkpoint's file that all ranks have open, if ranks keep parts of it. Owner: state_file.c. */
struct dpt_state_file {
    struct dpt_shared_file file;
    int fd;
    bool open;               /* fd is */
    bool seen;               /* all ranks have it open, and use it */
    bool told;               /* that a rank does not see it */
    int64_t block;           /* bytes that one rank alone writes: the largest page of any */
    int64_t *offset;         /* [1 + slots][tensors]: where in it the tensors lie; -1: not there */
    struct dpt_stretch *own; /* what this rank has written or read */
    const float **from;      /* where what is to be written of each of them lies */
    size_t n;                /* of them are written */
    struct dpt_stretch *all; /* [most]: what all ranks have; on rank 0 */
    size_t most;
    /* While the ranks write beside the training: */
    bool pending; /* known on all: they do, or have ended and not told each other */
    float *copy;  /* what this rank writes, and then lent to the system; NULL: there is none */
    size_t copy_bytes;
    struct dpt_thread thread; /* which writes it */
    _Atomic bool writes;      /* it does; changed under its lock */
    bool syncs;               /* rank 0's fsync does not do it for this rank */
    enum dpt_status status;   /* of what it wrote */
    struct dpt_error err;
};

/* The gradient of all ranks. Owner: the engine. */
struct dpt_gradient_reduction {
    /* NULL in evaluation, and if a device takes the steps. */
    const struct dpt_gradient_reduction_type *type;
    struct dpt_gradient_reduction_state *state; /* data of that type */
    float reduced_flags[DPT_FLAGS];             /* the last step's flags, summed over the ranks */
    /* Buckets of the sum that go between nodes beside backward; 0: none do. And how many of all
     * steps' so far did so on this rank. */
    int buckets;
    int64_t early;
    double weight; /* of the last step's samples; from a device, after dpt_trainer_fetch */
    struct dpt_chunks chunks; /* of the tensors (dpt_graph_chunks) */
    /* Memory for sums of squares that a backend may write (dpt_batch.squares) with the gradient of
     * a step that is one batch; NULL: it has none to write. Owner: host_update.c. */
    double **squares;
    /* The sum with its tail. It is the first worker's arena if there is one rank, or if it is
     * large; NULL if a device takes the steps (dpt_trainer_fetch). */
    float *sum;
};

/* The ranks with which this rank shares the model and the samples, from the layout. Owner: mesh.c,
 * but for `divided`, which is the engine's. */
struct dpt_mesh {
    int part; /* of the layers that ranks divide */
    /* The ranks that have the same part of the model: the job's, or those of the group below. */
    const struct dpt_comm *replicas;
    /* Empty if no ranks divide the model: an empty group is this rank alone. */
    struct dpt_comm replica_group;
    struct dpt_comm model_group;          /* the ranks that have one model together */
    struct dpt_comm tensor_group;         /* the ranks that divide the layers of this stage */
    struct dpt_comm stage_links[2];       /* pairs with the previous and next stage */
    struct dpt_comm *open[DPT_AXES_MOST]; /* which of these groups are open */
    int splits;                           /* how many are */
    struct dpt_tensor_parallel *divided;  /* (tensor_parallel.h); NULL: no layer is divided */
};

/* How a rank gets the weights of FSDP units. Owner: units.c. */
struct dpt_units {
    bool gathers;              /* by messages; else all ranks have one arena of them */
    const float *unit;         /* that is gathered, as the begin of an arena of all */
    struct dpt_shared weights; /* that arena */
};

/* What this rank sends the others with the next step. Owner: the loop (run/). */
struct dpt_requests {
    enum dpt_status deferred_error; /* a failure of this rank alone; its text is the caller's err */
    bool save;                      /* a checkpoint after that step */
    bool check;                     /* known on all: the replicas are compared after that step */
    bool signal, clock;             /* to stop after it, and why */
    bool writes;                    /* it still writes its part of a checkpoint */
};

#endif

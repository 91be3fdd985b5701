/*
 * layout: a value that describes how a job's work is divided.
 *
 * A layout says which stages, parts and slices the model has and how many ranks have each, on how
 * many threads a rank computes, how large a micro-batch is, and how many are computed at once. It
 * is a pure function of its input: it asks no rank, opens nothing and measures nothing. A trainer
 * is opened from it, and code that only estimates a job (core/plan) reads it without a trainer. So
 * nothing else reads from the job how its work is divided.
 *
 * The ranks of a job are stages x replicas x tensor: rank (stage x replicas + replica) x tensor +
 * part, so that ranks that exchange most are next to each other. A pipeline's stages are ranges of
 * the graph's nodes. Replicas have the same part of the model and divide a step's micro-batches. If
 * ranks divide layers (parallel.tensor), each has some rows of them. Every node is computed as in
 * the whole graph, so the result is byte-identical to that of one rank.
 */
#ifndef DPT_TRAIN_LAYOUT_H
#define DPT_TRAIN_LAYOUT_H

#include "core/backend/backend.h"
#include "core/train/job/job.h"
#include "data/sets/sampler.h"

/* Most micro-batches that a rank's team computes at once under `reproducible`. */
enum { DPT_MOST_AT_ONCE = 16 };
/* Samples that a team computes at once, at most. */
enum { DPT_MICRO_TEAM = 256 };

/* A stage of the model, as the ranks of one part of it have it. Without a pipeline the whole model
 * is one stage. */
struct dpt_layout_stage {
    int number;
    int32_t first, last; /* nodes of the whole graph */
    /* The nodes of the whole model with only the tensors of this part of the stage, in an arena
     * that has room for no others. */
    struct dpt_graph graph;
    /*
     * Units: ranges of the stage's nodes that passes take one after another. With `parallel.shard:
     * parameters` they are FSDP units (Zhao et al. 2023), whose weights are there, on hosts or on
     * devices, only during their passes. With batch norms that take the statistics of a whole step,
     * units end at these norms. Else there is one unit.
     */
    int units;         /* at least 1 */
    int32_t *node;     /* [units + 1]: the first node of each, and the end */
    size_t *edge;      /* [units + 1]: where its learned floats begin, and the end */
    int32_t in_flight; /* the most micro-batches, or groups, that a worker has in flight */
};

struct dpt_layout {
    /* --- the input; borrowed, for as long as the layout is there --- */
    const struct dpt_job *job;
    const struct dpt_backend *backend;
    /* The whole model. Batch norms take the statistics of a whole step only if a step has several
     * micro-batches (dpt_layout_settle_norms). */
    const struct dpt_graph *graph;
    bool files;            /* the training set's samples are decoded from files */
    bool each_gradient;    /* something looks at the gradient of each micro-batch */
    bool linked;           /* the ranks' devices sum by themselves (core/comm/transport.h) */
    int ranks, node_ranks; /* node_ranks: ranks that share a node */

    bool trains;    /* else it only evaluates or predicts: all ranks are replicas */
    bool on_device; /* the backend takes whole steps on its device */

    /* --- the model, among the ranks --- */
    int stages;        /* of the pipeline; 1: there is none */
    int tensor;        /* ranks that divide a stage's layers; 1: they are whole */
    int model_ranks;   /* ranks per copy of the model: stages x tensor */
    int replicas;      /* ranks that have the same part of the model */
    int node_replicas; /* replicas on a node */
    int owners;        /* replicas that divide optimizer state and update; 1: none do */
    /* On devices that take steps the host has the whole state, so its owners are 1, and these
     * divide it on the devices; else as many as owners. */
    int updaters;
    bool sliced;       /* each owner keeps only a slice of the weights */
    bool sliced_there; /* the devices do, of which each updates its slice */
    bool by_messages;  /* slices come by messages: not all owners share a node */
    bool in_parts;     /* no rank computes the whole model at once: it goes by passes */
    bool round_robin;  /* ranks take rounds of micro-batches round-robin */
    bool synchronized; /* batch norms take the statistics of a step: all its micro-batches
                          are in flight at once */
    int slots;         /* of the optimizer, and the weights' moving average */
    bool streams;      /* ranks keep parts of what a checkpoint has (setup/state.h) */
    struct dpt_layout_stage *stage; /* [stages] */
    int schedule;                   /* enum dpt_pipeline_kind */

    /* --- the threads of a rank --- */
    bool together; /* threads compute each micro-batch together, as a team */
    int threads;
    int gradient_workers; /* workers with own micro-batches and gradients: 1, or all */
    int64_t all_threads;  /* of all ranks */
    int decoders;         /* threads that decode a device's samples; 1: nothing to decode */

    /* --- the micro-batches --- */
    int32_t micro;   /* samples per micro-batch */
    int32_t at_once; /* micro-batches that are computed at once: 1, or a power of two */
    int32_t adds;    /* micro-batches of which the backend is asked for the sum of the gradients */
    struct dpt_sampler sampler; /* of a training step */
};

/* Batch norms need the statistics of a whole step only if a step has several micro-batches:
 * otherwise this clears whole_step in the graph. It also clears it unless `trains`. */
void dpt_layout_settle_norms(const struct dpt_job *job, bool trains, struct dpt_graph *graph);

/*
 * Makes a layout that has its input, and is zero else, of a rank with `cores` of its own. samples:
 * the training set's; NULL: the job does not train. rank: whose part of divided layers the stages'
 * graphs have. It is to be closed, after a failure too. Errors: BAD_JOB (the job cannot be divided
 * so; names the key), RANK (memory).
 */
enum dpt_status dpt_layout_open(struct dpt_layout *layout, const struct dpt_sampler *samples,
                                int rank, double cores, struct dpt_error *err);
void dpt_layout_close(struct dpt_layout *layout);

/* Whether the backend takes whole steps on its device, as far as the layout's input and `trains`
 * say: the optimizer must have a rule, nothing may need every gradient on the host, and nothing but
 * links keeps the tree's order over ranks, or divides the update and the gradients. */
bool dpt_layout_takes_steps(const struct dpt_layout *layout);

/*
 * Sets what follows from the numbers of threads: this rank's, and all ranks' together. micro_most:
 * more samples did not fit on the device; 0: no limit is known. If a round takes the workers of all
 * ranks, all must have as many threads: stages take the same micro-batches at once, and rounds go
 * round-robin over all workers. dpt_layout_open does this for ranks that are all alike.
 */
void dpt_layout_set_threads(struct dpt_layout *layout, int threads, int64_t all_threads,
                            int32_t micro_most);
/* Sets what follows from micro-batches of this size. */
void dpt_layout_set_micro(struct dpt_layout *layout, int32_t micro);

/* Whether dptrain may choose the size of the micro-batch by the number of ranks and the machine:
 * the job does not give it, and it does not change the result, as it would under `reproducible` or
 * with a batch norm. */
bool dpt_layout_micro_is_open(const struct dpt_job *job, const struct dpt_graph *graph);
/* The largest micro-batch with which every replica has at least one; 0: there are too few
 * samples. */
int64_t dpt_feeding_micro(int64_t global, int replicas);
/* Whether the threads compute each micro-batch of an evaluation together: if layers are divided,
 * since the main thread exchanges their values with other ranks, and if a device computes one
 * micro-batch after the other. */
static inline bool dpt_layout_infers_as_team(const struct dpt_layout *l)
{
    return l->in_parts && (l->tensor > 1 || l->backend->devices != NULL);
}

/* The stage of a rank, its replica, its part of the layers. */
struct dpt_layout_place {
    int stage, replica, part;
};
struct dpt_layout_place dpt_layout_place(const struct dpt_layout *layout, int rank);
/* Whether a unit of the stage begins with this node. */
bool dpt_layout_begins_unit(const struct dpt_layout_stage *stage, int32_t node);
/* Floats of the parameters that a rank of the stage keeps: all of them, or what it owns and the
 * state. */
double dpt_layout_parameters(const struct dpt_layout *layout, const struct dpt_layout_stage *stage);
/* Floats of the stage's largest unit of weights that have several owners; 0: they have one. */
double dpt_layout_unit(const struct dpt_layout *layout, const struct dpt_layout_stage *stage);
/* Whether ranks' devices update a part of the weights each: to be whole on one host these, or the
 * gradient, have to be fetched on all. */
static inline bool dpt_layout_updates_apart(const struct dpt_layout *layout)
{
    return layout->on_device && (layout->updaters > 1 || layout->stages > 1);
}
/* The bytes of a weight that is gathered: devices whose layers read weights in half the width
 * gather these, but for the few that norms read. */
static inline double dpt_layout_gathered_weight(const struct dpt_layout *layout)
{
    return layout->on_device && layout->job->device.precision >= DPT_PRECISION_BF16 ? 2 : 4;
}
/* Whether weights are there unit by unit, on hosts or on devices. */
static inline bool dpt_layout_gathers(const struct dpt_layout *layout)
{
    return layout->sliced || layout->sliced_there;
}
/* Whether gradients are summed along the tree of core/comm/sums/tree.h: those of owners always
 * are. */
static inline bool dpt_layout_along_tree(const struct dpt_layout *layout)
{
    return layout->job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE || layout->owners > 1;
}
/* The nodes over which the ranks are spread that have the same part of the model. */
static inline int dpt_layout_nodes(const struct dpt_layout *layout)
{
    return (layout->replicas + layout->node_replicas - 1) / layout->node_replicas;
}
/* Whether the optimizer's state of a stage is so large that the ranks of a node share it, and the
 * weights with it, and each updates a part (setup/arenas.c). */
bool dpt_layout_shares_state(const struct dpt_layout *layout, const struct dpt_layout_stage *stage);
/* How many ranks divide the update of a stage's weights; 1: each makes all of it. */
int dpt_layout_dividers(const struct dpt_layout *layout, const struct dpt_layout_stage *stage);

#endif

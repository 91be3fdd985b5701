/*
 * optimizer: one pass over the flat arena.
 *
 * An optimizer is a row of DPT_OPTIMIZERS (core/backend/optimizers.inc) and a file of optimizers/:
 * its options, the slots of the parameters' size that it keeps, and either a rule or a step of its
 * own. A rule changes each parameter by itself; a device that takes whole steps has it, too. A step
 * of its own is for updates that depend on the norms of whole tensors; it runs on the host's
 * arenas, even if a device computes the gradients. Threads may take different ranges of the arena;
 * the result does not depend on which thread takes which range. Values are checked against
 * PyTorch's.
 */
#ifndef DPT_TRAIN_OPTIMIZER_H
#define DPT_TRAIN_OPTIMIZER_H

#include "core/backend/graph.h"
#include "core/backend/steps.h"
#include "core/conf/option.h"
#include "core/train/update/tensor_groups.h"

/* One step. */
struct dpt_update {
    double lr;    /* after schedule, warm-up and scaling */
    int64_t step; /* 1 for the first update: bias correction */
    /* The gradient is multiplied by this first: 1 / samples, times the clipping factor. */
    float scale;
    /* Other ranks read these weights: rules write them past the caches (nontemporal.h), and the
     * caller fences. */
    bool for_others;
    /* The share of the new weights in their moving average, which is the slot after the
     * optimizer's; 0: there is none. */
    double average;
};

/* Every optimizer's options begin with these. */
struct dpt_optimizer_options {
    double lr, weight_decay;
    struct dpt_groups groups;
};

/* A part of a tensor. f: keep and l2 are 1 and 0 if the tensor does not decay. */
struct dpt_optimizer_part {
    const struct dpt_scalars *f;
    float scale; /* as in struct dpt_update */
    bool spared; /* a bias or a norm's parameters: no decay */
    size_t n;
    float *params;
    const float *gradient;
    float *slot[DPT_MAX_SLOTS]; /* zero before the first step */
};

/* Euclidean norms of a whole tensor, the same bits for any threads: the norm of its parameters, and
 * of its direction (see below). */
struct dpt_optimizer_norms {
    double params, direction;
};

struct dpt_optimizer_type {
    int slots;
    const char *slot_names[DPT_MAX_SLOTS];  /* folder in the checkpoint: "momentum", "m", "v" */
    int (*slots_used)(const void *options); /* how many of these; NULL: all */
    /* Computes the scalars of an update, which are zero before, except `keep`, which is 1. */
    void (*scalars)(const void *options, double lr, int64_t update, struct dpt_scalars *f);
    bool decoupled;          /* decay is subtracted from the weight, not added to the gradient */
    enum dpt_rule_kind rule; /* the rule; NONE: a step of its own */
    /* if it depends on the options; else NULL */
    enum dpt_rule_kind (*rule_of)(const void *options);
    /*
     * A step of its own takes two passes. direction: updates the slots and writes the n numbers
     * whose norm is needed: the gradient of LARS, the update before its trust ratio of LAMB. step:
     * changes the parameters, once the norms are known.
     */
    void (*direction)(const void *options, const struct dpt_optimizer_part *part, float *direction);
    void (*step)(const void *options, const struct dpt_optimizer_part *part,
                 const struct dpt_optimizer_norms *norms);
};

/* dpt_variant rows whose `impl` is a struct dpt_optimizer_type; ends with NULL. */
extern const struct dpt_variant *const dpt_optimizer_variants[];

/* Arenas that a job's optimizer keeps, and their names. */
int dpt_optimizer_slots(const struct dpt_variant_value *optimizer);
const char *const *dpt_optimizer_slot_names(const struct dpt_variant_value *optimizer);

/* The job's learning rate. */
double dpt_optimizer_lr(const struct dpt_variant_value *optimizer);
const struct dpt_groups *dpt_optimizer_groups(const struct dpt_variant_value *optimizer);

/* The rule of a job's optimizer; its kind is DPT_RULE_NONE if it has a step of its own. */
struct dpt_rule dpt_optimizer_rule(const struct dpt_variant_value *optimizer);

/*
 * Makes the first pass of an optimizer with a step of its own, before dpt_optimizer_apply, over the
 * graph's chunks [first, last) (dpt_graph_chunks). squares: DPT_OPTIMIZER_SQUARES numbers for each
 * chunk of the graph; those of other chunks are not touched.
 */
enum { DPT_OPTIMIZER_SQUARES = 2 };
/* How many chunks there are; 0: there is no such pass. */
size_t dpt_optimizer_chunks(const struct dpt_variant_value *optimizer,
                            const struct dpt_graph *graph);
void dpt_optimizer_measure(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                           const struct dpt_update *update, size_t first, size_t last,
                           float *params, const float *gradient, float *const *slot,
                           double *squares);

/*
 * Applies one step to the floats [begin, end) of the arena (any range), tensor by tensor so that
 * tensors without decay are spared. slot[k]: arenas. squares: what dpt_optimizer_measure wrote for
 * all chunks; unused if there is no such pass.
 */
void dpt_optimizer_apply(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                         const struct dpt_update *update, size_t begin, size_t end, float *params,
                         const float *gradient, float *const *slot, const double *squares);

#endif

/*
 * optimizer: one pass over the flat arena.
 *
 * An optimizer is a row: a name, how many slots of the parameters' size it keeps, its options, and
 * one pass over a range of the arena. Every element is updated by itself, so threads may take
 * different ranges. Values are checked against PyTorch's.
 */
#ifndef DPT_TRAIN_OPTIMIZER_H
#define DPT_TRAIN_OPTIMIZER_H

#include "core/backend/graph.h"
#include "core/backend/steps.h"
#include "core/conf/option.h"

/* The scalars of one step. */
struct dpt_update {
    double lr;    /* after schedule, warm-up and scaling */
    int64_t step; /* 1 for the first update: bias correction */
    float scale; /* the gradient is multiplied by this first: 1 / samples, times the clipping factor
                  */
    float decay; /* weight decay of this range; 0 for biases */
};

struct dpt_optimizer_type {
    int slots;
    const char *slot_names[DPT_MAX_SLOTS]; /* folder in the checkpoint: "momentum", "m", "v" */
    /* Updates n parameters in place from n gradients; slot[k]: n floats each, zero before the first
     * step. */
    void (*step)(const void *options, const struct dpt_update *update, size_t n, float *params,
                 const float *gradient, float *const *slot);
    double (*lr)(const void *options); /* base learning rate */
    double (*weight_decay)(const void *options);
    /* The same as `step`, for a device that takes whole steps: what of it the options decide. All
     * of *rule is filled but `decay` and `slots`. */
    void (*rule)(const void *options, struct dpt_rule *rule);
};

/* sgd, adam, adamw: dpt_variant rows whose `impl` is a struct dpt_optimizer_type; ends with NULL.
 */
extern const struct dpt_variant *const dpt_optimizer_variants[];

/* The whole rule of a job's optimizer. */
struct dpt_rule dpt_optimizer_rule(const struct dpt_variant_value *optimizer);

/*
 * Applies one step to the floats [begin, end) of the arena (any range), tensor by tensor so that
 * decay spares what it must. slot[k]: arenas. update->decay is ignored: it comes from the options
 * and the tensors.
 */
void dpt_optimizer_apply(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                         const struct dpt_update *update, size_t begin, size_t end, float *params,
                         const float *gradient, float *const *slot);

#endif

/*
 * trust: for tests: an optimizer with norms of whole tensors, as LAMB and LARS have them: the
 * update is the running mean of the gradient, times the tensor's norm over the update's.
 */
#ifndef DPT_TRAIN_TESTS_TRUST_H
#define DPT_TRAIN_TESTS_TRUST_H

#include <math.h>

#include "core/train/update/optimizer.h"

static void trust_scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    (void)update;
    (void)options;
    f->lr = (float)lr;
}

static void trust_direction(const void *options, const struct dpt_optimizer_part *part,
                            float *direction)
{
    (void)options;
    for (size_t i = 0; i < part->n; i++) {
        part->slot[0][i] = 0.5f * part->slot[0][i] + part->gradient[i] * part->scale;
        direction[i] = part->slot[0][i] + part->f->l2 * part->params[i];
    }
}

static void trust_step(const void *options, const struct dpt_optimizer_part *part,
                       const struct dpt_optimizer_norms *norms)
{
    const float rate =
        part->f->lr * (float)(norms->direction > 0 ? norms->params / norms->direction : 0);

    (void)options;
    for (size_t i = 0; i < part->n; i++)
        part->params[i] -= rate * (part->slot[0][i] + part->f->l2 * part->params[i]);
}

static const struct dpt_optimizer_type trust_type = {.slots = 1,
                                                     .slot_names = {"mean"},
                                                     .scalars = trust_scalars,
                                                     .direction = trust_direction,
                                                     .step = trust_step};
static const struct dpt_variant trust_variant = {.name = "trust", .impl = &trust_type};
static struct dpt_optimizer_options trust_options = {.lr = 0.02, .weight_decay = 0.1};
static const struct dpt_variant_value trust = {.variant = &trust_variant,
                                               .options = &trust_options};

/* Takes one step in double, each norm by one plain sum. */
static inline void trust_by_hand(const struct dpt_graph *graph, const struct dpt_update *update,
                                 const float *gradient, double *mean, double *params)
{
    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const struct dpt_tensor *t = &graph->tensors[k];
        const double decay = t->decay ? trust_options.weight_decay : 0;
        double of_params = 0, of_direction = 0;

        for (int64_t i = t->offset; i < t->offset + t->count; i++) {
            mean[i] = 0.5 * mean[i] + (double)gradient[i] * (double)update->scale;
            of_params += params[i] * params[i];
            of_direction += pow(mean[i] + decay * params[i], 2);
        }
        for (int64_t i = t->offset; i < t->offset + t->count; i++)
            params[i] -=
                update->lr * sqrt(of_params / of_direction) * (mean[i] + decay * params[i]);
    }
}

#endif

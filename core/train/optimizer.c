#include "core/train/optimizer.h"

#include "core/train/optimizers/rows.h"

const struct dpt_variant *const dpt_optimizer_variants[] = {&dpt_sgd, &dpt_adam, &dpt_adamw, NULL};

void dpt_optimizer_apply(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                         const struct dpt_update *update, size_t begin, size_t end, float *params,
                         const float *gradient, float *const *slot)
{
    const struct dpt_optimizer_type *type = optimizer->variant->impl;
    const double decay = type->weight_decay(optimizer->options);

    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const struct dpt_tensor *t = &graph->tensors[k];
        const size_t first = (size_t)t->offset > begin ? (size_t)t->offset : begin;
        const size_t last =
            (size_t)(t->offset + t->count) < end ? (size_t)(t->offset + t->count) : end;
        struct dpt_update own = *update;
        float *slots[DPT_MAX_SLOTS] = {0};

        if (first >= last)
            continue;
        own.decay = t->decay ? (float)decay : 0.0f;
        for (int s = 0; s < type->slots; s++)
            slots[s] = slot[s] + first;
        type->step(optimizer->options, &own, last - first, params + first, gradient + first, slots);
    }
}

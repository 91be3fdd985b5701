#include "core/train/optimizer.h"

#include "core/train/optimizers/rows.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

const struct dpt_variant *const dpt_optimizer_variants[] = {&dpt_sgd, &dpt_adam, &dpt_adamw, NULL};

/*
 * Numbers below 2^-126 count as zero from here on. Behind a relu that is silent many gradients are
 * zero for ever, and what a running mean keeps of them shrinks into that range, where it stays:
 * each is worth nothing, and costs 3 to 100 times as long (an MLP's update by Adam: 84 us, now 57).
 */
static unsigned without_denormals(void)
{
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
    const unsigned before = _mm_getcsr();

    _mm_setcsr(before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    return before;
#else
    return 0;
#endif
}

static void as_before(unsigned mode)
{
#if defined(__x86_64__)
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

struct dpt_rule dpt_optimizer_rule(const struct dpt_variant_value *optimizer)
{
    const struct dpt_optimizer_type *type = optimizer->variant->impl;
    struct dpt_rule rule = {.slots = type->slots, .decay = type->weight_decay(optimizer->options)};

    type->rule(optimizer->options, &rule);
    return rule;
}

void dpt_optimizer_apply(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                         const struct dpt_update *update, size_t begin, size_t end, float *params,
                         const float *gradient, float *const *slot)
{
    const struct dpt_optimizer_type *type = optimizer->variant->impl;
    const double decay = type->weight_decay(optimizer->options);
    const unsigned mode = without_denormals();

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
    as_before(mode);
}
